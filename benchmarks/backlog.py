"""How much memory does a worker need for what is stored and not read yet?

Method: a node of one worker with its default settings; three subscribers that are known and away. One producer stores bundles of 1 KiB. The
worker's anonymous memory (`RssAnon` of /proc: neither mapped segments nor shared memory) is read again and again:

    stored       the most while the bundles came in and afterwards, above what the worker had before the first of them
    per_bundle   its growth over the last three quarters of the bundles, a bundle: what would go on growing
    restarted    the most of a new worker on the same store, until all segments were checked, above an empty one
    catching_up  the most while one of the subscribers reads and acknowledges everything, above an empty one
    consumer     the most of that subscriber's process, by which it grew

Aim: each of the worker's below 64 MiB at 10,000,000 bundles, which take 11 GB of disk: `--bundles 10000000`.

    python -m benchmarks.backlog [--quick] [--json] [--dir D] [--bundles N]
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quiver_actors
from benchmarks.harness import (
    Figure,
    Measurements,
    begun,
    parser,
    push_patiently,
    read_options,
    running_node,
    worker_of,
)
from benchmarks.ingest import make_batches
from benchmarks.resident_memory import watched
from quiver_actors.client import Client

MIB = 1 << 20
SUBSCRIBERS = ("ann", "ben", "cem")
LIMIT_MIB = 64
_GROUP = 4096
_SETTLE_SECONDS = 3.0
_CONTEXT = multiprocessing.get_context("spawn")


def anonymous_bytes(pid: int) -> int:
    """Return the memory of the process that is neither a file nor shared, in bytes."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0


class MostMemory:
    """The most that a process had."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.most = anonymous_bytes(pid)

    def look(self) -> None:
        self.most = max(self.most, anonymous_bytes(self.pid))


def store(client: Client, bundles: int, at_quarter: Callable[[], None]) -> None:
    """Push so many; tells when a quarter is stored."""
    batches = make_batches(1024)
    group = [batches[number % len(batches)] for number in range(_GROUP)]
    stored, has_told = 0, False
    while stored < bundles:
        push_patiently(client, group[: min(_GROUP, bundles - stored)])
        stored += _GROUP
        if not has_told and stored >= bundles / 4:
            has_told = True
            at_quarter()
    client.flush()


def read_all(run_dir: str, bundles: int, results: Any) -> None:
    """The subscriber that catches up, in a process of its own; its growth in bytes."""
    with quiver_actors.connect(run_dir) as client, client.subscribe(SUBSCRIBERS[0], prefetch=4096) as subscription:
        began, most = anonymous_bytes(os.getpid()), 0
        for number in range(bundles):
            delivery = subscription.get(120)
            assert delivery is not None
            assert delivery.row_count
            delivery.ack()
            if number % 10_000 == 0:
                most = max(most, anonymous_bytes(os.getpid()))
        subscription.flush()
    results.put(most - began)


def wait_checked(client: Client) -> None:
    """A start reads its segments through, in the background."""
    while not all(info.is_checked for infos in client.segments().values() for info in infos):
        time.sleep(0.2)


def measure(directory: str, bundles: int) -> Measurements:
    """Measure memory, in bytes, as the module says."""
    data_dir = os.path.join(directory, "data")
    with running_node(directory, data_dir=data_dir) as run_dir, quiver_actors.connect(run_dir) as client:
        for name in SUBSCRIBERS:
            client.subscribe(name, start="earliest").close()
        empty = MostMemory(worker_of(run_dir).pid)
        memory, quarter = MostMemory(empty.pid), MostMemory(empty.pid)
        with watched(memory):
            started = time.perf_counter()
            store(client, bundles, quarter.look)
            rate = bundles / (time.perf_counter() - started)
            time.sleep(_SETTLE_SECONDS)
        per_bundle = (anonymous_bytes(empty.pid) - quarter.most) / (0.75 * bundles)
        segments = sum(map(len, client.segments().values()))
    found = {"stored": memory.most - empty.most, "per_bundle": per_bundle, "rate": rate, "segments": segments}
    with running_node(directory, data_dir=data_dir, ready_seconds=600) as run_dir:
        return found | _after_a_restart(run_dir, bundles, empty.most)


def _after_a_restart(run_dir: str, bundles: int, empty_bytes: int) -> Measurements:
    memory = MostMemory(worker_of(run_dir).pid)
    with quiver_actors.connect(run_dir, timeout=60) as client:
        with watched(memory):
            wait_checked(client)
            time.sleep(_SETTLE_SECONDS)
        restarted, results = memory.most, _CONTEXT.SimpleQueue()
        process = _CONTEXT.Process(target=read_all, args=(run_dir, bundles, results))
        with watched(memory):
            process.start()
            consumer = results.get()
            process.join()
            time.sleep(_SETTLE_SECONDS)
        pending = {info.subscriber: info.pending for infos in client.subscribers().values() for info in infos}
    assert pending == dict.fromkeys(SUBSCRIBERS, bundles) | {SUBSCRIBERS[0]: 0}, pending
    return {"restarted": restarted - empty_bytes, "catching_up": memory.most - empty_bytes, "consumer": consumer}


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--bundles", type=int, help="how many of 1 KiB (1,000,000)")
    options = read_options(options_parser)
    bundles = options.bundles or (50_000 if options.quick else 1_000_000)
    with begun(options) as (report, base):
        found = measure(base, bundles)
        for name in ("stored", "restarted", "catching_up", "consumer"):
            report.show(Figure(f"backlog/{bundles}/{name}", found[name] / MIB, "MiB", "", None, "synced", 1))
        report.show(Figure(f"backlog/{bundles}/per_bundle", found["per_bundle"], "bytes", "", None, "synced", 1))
        report.show(Figure(f"backlog/{bundles}/segments", found["segments"], "segments", "", None, "synced", 1))
        report.show(Figure(f"backlog/{bundles}/rate", found["rate"], "bundles/s", "", None, "synced", 1))
    return int(max(found[name] for name in ("stored", "restarted", "catching_up")) >= LIMIT_MIB * MIB)


if __name__ == "__main__":
    sys.exit(main())
