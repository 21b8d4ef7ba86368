"""What does another user who floods a worker with requests cost those who push to it?

Method: a producer of the node's own user pushes 1 KiB bundles at fixed times to the one worker of a real node, each push acknowledged after
the fdatasync that covers it (`benchmarks.latency` says how it is counted). Beside it another user, whom a topic of the node names, holds
100 connections, and each of them sends requests as fast as its socket takes them, from one process:

    lists      ListSubscribers, over and over, of a topic with 64 subscribers
    tiny       the cheapest requests
    mixed      every kind of request: claims, questions, descriptors, progress to be made durable, segments to be sealed
    malformed  a broken frame, and a new connection
    unread     as `mixed`, but no answer is ever read

Limit in the same run, interleaved: `alone`, the same node and pushes without that user. Needs root, which can be two users.

    python -m benchmarks.besieged [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import contextlib
import grp
import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from multiprocessing.synchronize import Event

import quiver_actors
from benchmarks.flooding import Flood, flood_as, requests_of
from benchmarks.harness import Candidate, Measurements, arguments, begun, run_interleaved, running_node
from benchmarks.ingest import make_batches
from benchmarks.latency import on_schedule, summary

GUEST_UID = 65534
CONNECTIONS = 100
SUBSCRIBERS = 64
RATE = 200
KINDS = ("lists", "tiny", "mixed", "malformed", "unread")
_TOPIC = "open"
_CONFIG = """
[access]
group = "{group}"
max_connections = {connections}

[topics.open]
allowed_uids = [{uid}]
"""
_CONTEXT = multiprocessing.get_context("spawn")


def pushes(directory: str, kind: str, seconds: float) -> Measurements:
    """Measure how long pushes take beside a flood of that kind; empty: no flood."""
    group = grp.getgrgid(GUEST_UID).gr_name
    config = _CONFIG.format(group=group, connections=CONNECTIONS, uid=GUEST_UID)
    (batch,) = make_batches(1 << 10)[:1]
    with running_node(directory, config) as run_dir, quiver_actors.connect(run_dir) as client:
        client.push(batch, topic=_TOPIC)
        subscribers = [client.subscribe(name, topic=_TOPIC) for name in ["flood", *map(str, range(SUBSCRIBERS - 1))]]
        with flooding(os.path.join(run_dir, "core_0.sock"), kind):
            took = on_schedule(lambda _: client.push(batch, topic=_TOPIC), RATE, seconds)
        for subscriber in subscribers:
            subscriber.close()
    return summary(took)


@contextlib.contextmanager
def flooding(path: str, kind: str) -> Iterator[None]:
    """Let another user flood that socket in a process of its own until the block ends."""
    if not kind:
        yield
        return
    ready, end = _CONTEXT.Event(), _CONTEXT.Event()
    process = _CONTEXT.Process(target=flood, args=(path, kind, ready, end))
    process.start()
    ready.wait()
    try:
        yield
    finally:
        end.set()
        process.join()


def flood(path: str, kind: str, ready: Event, end: Event) -> None:
    """The other user's process."""
    messages = requests_of(_TOPIC)["mixed" if kind == "unread" else kind]
    flood_as(GUEST_UID, partial(Flood, path, messages, CONNECTIONS, reads=kind != "unread"), end.is_set, ready.set)


def main() -> None:
    options = arguments(__doc__)
    with begun(options) as (report, directory):
        if os.geteuid() != 0:
            report.skipped("besieged", "another user connects: run it as root")
            return
        os.chmod(directory, 0o711)
        seconds = 0.3 if options.quick else 6.0
        kinds = ("lists",) if options.quick else KINDS
        candidates: dict[str, Candidate] = {
            kind or "alone": partial(pushes, directory, kind, seconds) for kind in ("", *kinds)
        }
        results = run_interleaved(candidates, options.rounds)
        report.show_rounds("besieged/alone/p99", results["alone"], "p99", "us", "synced")
        for kind in kinds:
            for key in ("p50", "p99", "max"):
                against = ("alone", results["alone"])
                report.show_rounds(f"besieged/{kind}/{key}", results[kind], key, "us", "synced", against)


if __name__ == "__main__":
    main()
