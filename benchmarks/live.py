"""How soon after a push does another process have the bundle, and what do live consumers cost the ingest?

One worker, bundles of 1 KiB, `max_open_duration = "1h"`: nothing is delivered by a seal unless a log is full. All times come from
`time.perf_counter_ns`, which is one clock for all processes.

latency      one consumer in another process; single pushes, back to back or 200 a second. `push` ends with the receipt, `get` when the
             consumer has the batch; both begin with the call of `push`. `get_above_push` is the difference of the medians,
             `get_p99_above_fdatasync` that of the 99th percentiles of `get` and of a write and fdatasync of the same bytes on the same
             schedule. Beside it, with the same schedule and consumers of their own: Redis Streams (XADD, AOF synced always; XREAD BLOCK)
             and NATS JetStream (sync always; a push consumer), which store the bytes of an encoded batch. `make bench-peers` installs
             them; one that is not there is named as skipped.
ingest       pushes of 1,000 bundles at a time, paced at 50,000 bundles a second, with one live consumer that acknowledges everything, and
             without one (`alone`). `lag` is what the consumer has not got when the last push has its receipt.
catchup      a consumer that comes when everything is there: the rate from a log that is open, until all acknowledgements are durable,
             against the same from a sealed segment. Segments of 512 MiB, so that one log holds all of it.
subscribers  single pushes, 200 a second, to 64 live subscribers of one topic, against one; then with one of the 64 stopped by SIGSTOP. Each
             subscriber has a connection; all but the one that is stopped are threads of three processes.

    python -m benchmarks.live [--quick] [--json] [--rounds N] [--dir D] [--only CASE ...]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import quiver_actors
from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    begun,
    parser,
    percentile,
    read_options,
    run_interleaved,
    running_node,
)
from benchmarks.ingest import make_batches
from benchmarks.live_consumers import WARM_CALLS, Consumers, consumers, gets, gets_of_many, push_timed
from benchmarks.live_peers import LIVE_PEERS, Gets
from benchmarks.peers import encoded
from benchmarks.stores import Store

KIB, MIB = 1 << 10, 1 << 20
OPEN_LONG = '[segment]\nmax_open_duration = "1h"\n'
ONE_LOG = '[segment]\nmax_open_duration = "1h"\ntarget_size = "512MiB"\n'
PUSHES_PER_SECOND = 200
PACED_PER_SECOND, PACED_GROUP = 50_000, 1_000
SUBSCRIBERS, SUBSCRIBER_PROCESSES = 64, 3
WARM_BYTES = 64 * MIB


# --- latency -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """`rate`: pushes a second; 0: back to back."""

    total: int
    rate: int

    @property
    def name(self) -> str:
        return f"live/latency/{f'{self.rate}per_s' if self.rate else 'back_to_back'}"


def latency_of(push: Callable[[int], object], consumer: Consumers, case: Case) -> Measurements:
    """Push one at a time; the consumer's times come at the end."""
    consumer.begin()
    pushes = push_timed(push, case.total, case.rate)
    ((got, _),) = consumer.results()
    took, measured = pushes.took(got), pushes.summary()
    measured |= {"get_p50": percentile(took, 0.5), "get_p99": percentile(took, 0.99)}
    return {**measured, "get_above_push": measured["get_p50"] - measured["push_p50"]}


def ours(directory: str, case: Case) -> Measurements:
    batches = make_batches(KIB)
    with (
        running_node(directory, OPEN_LONG) as run_dir,
        quiver_actors.connect(run_dir) as client,
        consumers(gets, [(run_dir, WARM_CALLS + case.total)]) as consumer,
    ):
        return latency_of(lambda number: client.push(batches[number % len(batches)]), consumer, case)


def peer(directory: str, case: Case, kind: type[Store], target: Gets, address_of: Callable[[Any], str]) -> Measurements:
    bundles = [[encoded(batch)] for batch in make_batches(KIB)]
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as root:
        store = kind(root)
        try:
            with consumers(target, [(address_of(store), WARM_CALLS + case.total)]) as consumer:
                return latency_of(lambda number: store.append(bundles[number % len(bundles)]), consumer, case)
        finally:
            store.close()


def fdatasync(directory: str, case: Case) -> Measurements:
    """Write the same bytes to a preallocated file, synced by the same process."""
    content = os.urandom(KIB)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, (WARM_CALLS + case.total) * KIB)
        os.fsync(file.fileno())

        def write(number: int) -> None:
            os.pwrite(file.fileno(), content, number * KIB)
            os.fdatasync(file.fileno())

        return push_timed(write, case.total, case.rate).summary()


def show_latency(report: Report, directory: str, options: argparse.Namespace) -> None:
    candidates: dict[str, Callable[[Case], Measurements]] = {"ours": lambda case: ours(directory, case)}
    candidates["fdatasync"] = lambda case: fdatasync(directory, case)
    for kind, target, address_of in LIVE_PEERS:
        if why := kind.missing():
            report.skipped(kind.name, why)
        else:
            found = kind, target, address_of
            candidates[kind.name] = lambda case, found=found: peer(directory, case, *found)  # type: ignore[misc]
    cases = (
        [Case(100, 0), Case(60, PUSHES_PER_SECOND)] if options.quick else [Case(3000, 0), Case(1200, PUSHES_PER_SECOND)]
    )
    for case in cases:
        bound: dict[str, Candidate] = {name: lambda run=run, case=case: run(case) for name, run in candidates.items()}  # type: ignore[misc]
        _show_case(report, case, run_interleaved(bound, options.rounds, warm_bytes=WARM_BYTES))


def _show_case(report: Report, case: Case, results: dict[str, list[Measurements]]) -> None:
    mine, limit = results.pop("ours"), results.pop("fdatasync")
    for key in ("push_p50", "push_p99", "get_p50", "get_p99"):
        for name, theirs in results.items():
            report.show_rounds(f"{case.name}/{key}", mine, key, "us", "synced", (name, theirs))
            report.show_rounds(f"{case.name}/{key}/{name}", theirs, key, "us", "synced")
        if not results:
            report.show_rounds(f"{case.name}/{key}", mine, key, "us", "synced")
    for key in ("push_p50", "push_p99"):
        report.show_rounds(f"{case.name}/{key}/fdatasync", limit, key, "us", "synced")
    for name, theirs in {"": mine, **results}.items():
        report.show_rounds(f"{case.name}/get_above_push{name and f'/{name}'}", theirs, "get_above_push", "us", "synced")
    above = [{"us": our["get_p99"] - its["push_p99"]} for our, its in zip(mine, limit, strict=True)]
    report.show_rounds(f"{case.name}/get_p99_above_fdatasync", above, "us", "us", "synced")


# --- ingest --------------------------------------------------------------------------------------------------------------


def ingest(directory: str, total: int, *, is_read: bool) -> Measurements:
    batches = make_batches(KIB)
    group = [batches[number % len(batches)] for number in range(PACED_GROUP)]
    calls = total // PACED_GROUP
    with (
        running_node(directory, OPEN_LONG) as run_dir,
        quiver_actors.connect(run_dir) as client,
        consumers(gets, [(run_dir, (WARM_CALLS + calls) * PACED_GROUP)] if is_read else []) as consumer,
    ):
        consumer.begin()
        pushes = push_timed(lambda _: client.push_many(group), calls, PACED_PER_SECOND // PACED_GROUP)
        got = consumer.results()
    # A schedule ends one interval behind its last call, or with the call if that takes longer.
    end_ns = max(pushes.ends[-1], pushes.begins[-1] + PACED_GROUP * 10**9 // PACED_PER_SECOND)
    measured = {"rate": calls * PACED_GROUP / (end_ns - pushes.begins[0]) * 1e9}
    for took, _ in got:
        measured["lag"] = sum(at > pushes.ends[-1] for at in took)
        measured["lag_ms"] = max(0.0, (took[-1] - pushes.ends[-1]) / 1e6)
    return measured


def show_ingest(report: Report, directory: str, options: argparse.Namespace) -> None:
    total = 10_000 if options.quick else 5 * PACED_PER_SECOND
    candidates: dict[str, Candidate] = {
        "read": lambda: ingest(directory, total, is_read=True),
        "alone": lambda: ingest(directory, total, is_read=False),
    }
    results = run_interleaved(candidates, options.rounds)
    case, read = "live/ingest/50000per_s", results["read"]
    report.show_rounds(case, read, "rate", "bundles/s", "synced", ("alone", results["alone"]))
    report.show_rounds(f"{case}/alone", results["alone"], "rate", "bundles/s", "synced")
    report.show_rounds(f"{case}/lag", read, "lag", "bundles", "synced")
    report.show_rounds(f"{case}/lag_time", read, "lag_ms", "ms", "synced")


# --- catch-up ------------------------------------------------------------------------------------------------------------


def catch_up(directory: str, total: int, *, is_sealed: bool) -> Measurements:
    batches = make_batches(KIB)
    with running_node(directory, ONE_LOG) as run_dir, quiver_actors.connect(run_dir) as client:
        client.subscribe("live").close()
        client.push_many(batches[number % len(batches)] for number in range(total))
        if is_sealed:
            client.flush()
        with consumers(gets, [(run_dir, total)]) as consumer:
            consumer.begin()
            ((took, durable_ns),) = consumer.results()
    return {"rate": (total - 1) / (durable_ns - took[0]) * 1e9}


def show_catch_up(report: Report, directory: str, options: argparse.Namespace) -> None:
    total = 4_096 if options.quick else 131_072
    candidates: dict[str, Candidate] = {
        "open": lambda: catch_up(directory, total, is_sealed=False),
        "sealed": lambda: catch_up(directory, total, is_sealed=True),
    }
    results = run_interleaved(candidates, options.rounds)
    report.show_rounds(
        "live/catchup/open", results["open"], "rate", "bundles/s", "synced", ("sealed", results["sealed"])
    )
    report.show_rounds("live/catchup/sealed", results["sealed"], "rate", "bundles/s", "synced")


# --- subscribers ---------------------------------------------------------------------------------------------------------


def subscribers(directory: str, count: int, total: int, *, is_one_stopped: bool = False) -> Measurements:
    """The first of the subscribers is a process of its own, which may be stopped."""
    names = [f"live-{number}" for number in range(count)]
    parts = [
        names[:1],
        *(part for first in range(SUBSCRIBER_PROCESSES) if (part := names[1 + first :: SUBSCRIBER_PROCESSES])),
    ]
    batches = make_batches(KIB)
    with (
        running_node(directory, OPEN_LONG) as run_dir,
        quiver_actors.connect(run_dir) as client,
        consumers(gets_of_many, [(run_dir, part, WARM_CALLS + total) for part in parts]) as found,
    ):
        stopped = found.processes[0].pid
        assert stopped is not None
        found.begin()
        if is_one_stopped:
            os.kill(stopped, signal.SIGSTOP)
        try:
            pushes = push_timed(lambda number: client.push(batches[number % len(batches)]), total, PUSHES_PER_SECOND)
        finally:
            os.kill(stopped, signal.SIGCONT)
        results = dict(found.results())
    if is_one_stopped:
        del results[stopped]
    got = [pushes.took(ends) for times in results.values() for ends in times]
    measured = pushes.summary()
    measured["get_p50"] = statistics.median(percentile(took, 0.5) for took in got)
    return {**measured, "get_p99": max(percentile(took, 0.99) for took in got)}


def show_subscribers(report: Report, directory: str, options: argparse.Namespace) -> None:
    count, total = (8, 60) if options.quick else (SUBSCRIBERS, 4 * PUSHES_PER_SECOND)
    names = ("1", str(count), f"{count}_one_stopped")
    candidates: dict[str, Candidate] = {
        names[0]: lambda: subscribers(directory, 1, total),
        names[1]: lambda: subscribers(directory, count, total),
        names[2]: lambda: subscribers(directory, count, total, is_one_stopped=True),
    }
    results = run_interleaved(candidates, options.rounds, warm_bytes=WARM_BYTES)
    for name, against in zip(names, (None, names[0], names[1]), strict=True):
        beside = (against, results[against]) if against else None
        for key in ("push_p50", "push_p99", "get_p50", "get_p99"):
            report.show_rounds(f"live/subscribers/{name}/{key}", results[name], key, "us", "synced", beside)


SHOWN = {
    "latency": show_latency,
    "ingest": show_ingest,
    "catchup": show_catch_up,
    "subscribers": show_subscribers,
}


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--only", nargs="+", default=list(SHOWN), choices=SHOWN, help="these cases")
    options = read_options(found)
    with begun(options) as (report, directory):
        for name in SHOWN:
            if name in options.only:
                SHOWN[name](report, directory, options)


if __name__ == "__main__":
    main()
