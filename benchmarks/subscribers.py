"""What do subscribers cost, in claims, in pages and in memory, and what do slow ones cost the others?

claims      one subscriber's books alone, without a socket: CPU of a claim while 100,000 bundles are held, as against the first ones
            (`flat`: the ratio of the two), of an acknowledgement, and of giving all back. `batch` bundles are claimed at a time.
backlog     ingest of one producer while a subscriber that is connected and does nothing is 100,000 bundles behind; against the same
            node whose subscriber has nothing left to do. Then that subscriber catches up.
stalled     nine subscribers that each get all bundles, while a tenth has stopped with its hands full; against a tenth that is not there.
projection  bytes of a segment that are touched (mapped by page faults) to read one of two slots, one of its four columns; against all.
watchdog    is in the tests, as it needs a broken worker; `notification` here is the time from the end of a seal, as a flush tells it,
            to the bundle in another process.
memory      gigabytes through a node, from a producer to a consumer process: by how much the most that a process had resident afterwards is
            above the most of the first tenth. Mapped segments count.

    python -m benchmarks.subscribers [--quick] [--json] [--rounds N] [--dir D] [--only CASE ...] [--gigabytes N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Candidate,
    Figure,
    Measurements,
    Report,
    begun,
    cpu_seconds,
    parser,
    percentile,
    push_patiently,
    read_options,
    run_interleaved,
    running_node,
    worker_of,
)
from benchmarks.resident_memory import ResidentMemory, watched
from quiver_actors.client import Client
from quiver_actors.store.subscriber import terms
from quiver_actors.store.subscriber.claims import SubscriberState

MIB = 1 << 20
_CONTEXT = multiprocessing.get_context("spawn")


def batch_of(size_bytes: int, columns: int = 1) -> pa.RecordBatch:
    values = np.arange(size_bytes // 8 // columns)
    return pa.record_batch({f"c{number}": values + number for number in range(columns)})


# --- claims --------------------------------------------------------------------------------------------------------------


def claims(batch: int, bundles: int) -> Measurements:
    state = SubscriberState("s")
    for segment_seq in range(bundles // 1000 + 2):
        state.add_segment(segment_seq, 1000, 28_000_000)
    terms.set_terms(state, lease_ns=30 * 10**9, max_deliveries=0, exhausted="drop", now_ns=0)
    tenth, took = bundles // 10, []
    for part in range(10):
        started = time.process_time_ns()
        while state.leases.claimed_count < (part + 1) * tenth:
            state.claim("me", batch, 1)
        took.append((time.process_time_ns() - started) / tenth)
    started = time.process_time_ns()
    state.release("me")
    released = time.process_time_ns() - started
    return {"first": took[0], "last": took[-1], "ack": _acks(state, batch, bundles), "release": released / 1e6}


def _acks(state: SubscriberState, batch: int, bundles: int) -> float:
    granted = []
    while state.leases.claimed_count < bundles:
        granted += state.claim("me", batch, 1)
    started = time.process_time_ns()
    for grant in granted:
        state.resolve("me", grant.segment_seq, grant.token, "ack", grant.indexes, 0, 1)
    return (time.process_time_ns() - started) / bundles


def show_claims(report: Report, directory: str, options: argparse.Namespace) -> None:
    for batch in (1, 8, 64, 1024):
        results = [claims(batch, 20_000 if options.quick else 100_000) for _ in range(options.rounds)]
        first = [{"last": result["first"]} for result in results]
        case = f"claims/batch={batch}"
        report.show_rounds(f"{case}/claim", results, "last", "ns/bundle", "", ("first", first))
        report.show_rounds(f"{case}/ack", results, "ack", "ns/bundle")
        report.show_rounds(f"{case}/release", results, "release", "ms")


# --- backlog -------------------------------------------------------------------------------------------------------------


def ingest_beside(directory: str, behind: int, bundles: int, *, is_behind: bool) -> Measurements:
    small, large = batch_of(64), batch_of(4096)
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        subscription = client.subscribe("slow", prefetch=64, lease=None)
        client.push_many(small for _ in range(behind))
        client.flush()
        assert subscription.get(20) is not None
        if not is_behind:
            client.ack_through(next(reversed(_last_bundles(client))), subscriber="slow")
        worker = worker_of(run_dir)
        cpu, started = cpu_seconds(worker), time.perf_counter()
        client.push_many(large for _ in range(bundles))
        rate = bundles / (time.perf_counter() - started)
        measured = {"rate": rate, "worker_cpu": (cpu_seconds(worker) - cpu) / bundles * 1e6}
        if is_behind:
            measured["catch_up"] = _catch_up(client)
        subscription.abort()
    return measured


def _last_bundles(client: Client) -> list[quiver_actors.BundleId]:
    return [
        quiver_actors.BundleId("default", core, infos[-1].segment_seq, infos[-1].bundle_count - 1)
        for core, infos in client.segments().items()
    ]


def _catch_up(client: Client) -> float:
    """Bundles a second until nothing is left."""
    client.flush()
    with client.subscribe("slow", prefetch=2048) as subscription:
        count, left, started = 0, subscription.pending_count(), time.perf_counter()
        while count < left - 65:  # what the slow connection holds
            count += sum(delivery.ack() is not None for delivery in subscription.get_many(1024, 20))
        subscription.flush()
        return count / (time.perf_counter() - started)


def show_backlog(report: Report, directory: str, options: argparse.Namespace) -> None:
    behind, bundles = (10_000, 5_000) if options.quick else (100_000, 40_000)
    candidates: dict[str, Candidate] = {
        "behind": lambda: ingest_beside(directory, behind, bundles, is_behind=True),
        "alone": lambda: ingest_beside(directory, behind, bundles, is_behind=False),
    }
    results = run_interleaved(candidates, options.rounds)
    ours, limit = results["behind"], results["alone"]
    for key, unit in (("rate", "bundles/s"), ("worker_cpu", "us/bundle")):
        report.show_rounds(f"backlog/ingest/{key}", ours, key, unit, "synced", ("alone", limit))
    report.show_rounds("backlog/catch_up", ours, "catch_up", "bundles/s", "synced")


# --- stalled -------------------------------------------------------------------------------------------------------------


def consume_all(run_dir: str, subscriber: str, total: int, ready: Any, go: Any, results: Any) -> None:
    with quiver_actors.connect(run_dir) as client, client.subscribe(subscriber, prefetch=256) as subscription:
        ready.release()
        go.wait()
        started, rows = time.perf_counter(), 0
        for _ in range(total):
            delivery = subscription.get()
            assert delivery is not None
            rows += delivery.row_count
            delivery.ack()
        subscription.flush()
        results.put(total / (time.perf_counter() - started))


def hold_some(run_dir: str, subscriber: str, ready: Any) -> None:
    """Takes bundles until it is stopped by a signal."""
    with quiver_actors.connect(run_dir) as client, client.subscribe(subscriber, prefetch=64) as subscription:
        held = subscription.get_many(8, 20)
        ready.release()
        signal.pause()
        del held


def beside_a_stalled_one(directory: str, total: int, *, is_stalled: bool) -> Measurements:
    names = [f"s{number}" for number in range(9)]
    batch = batch_of(4096)
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        for name in [*names, *(["stalled"] if is_stalled else [])]:
            client.subscribe(name).close()
        client.push_many(batch for _ in range(total))
        client.flush()
        ready, go, results = _CONTEXT.Semaphore(0), _CONTEXT.Event(), _CONTEXT.SimpleQueue()
        processes = [
            _CONTEXT.Process(target=consume_all, args=(run_dir, name, total, ready, go, results)) for name in names
        ]
        stalled = _CONTEXT.Process(target=hold_some, args=(run_dir, "stalled", ready))
        started = [*processes, *([stalled] if is_stalled else [])]
        for process in started:
            process.start()
        for _ in started:
            ready.acquire()
        if is_stalled:
            os.kill(stalled.pid or 0, signal.SIGSTOP)
        go.set()
        rates = [results.get() for _ in processes]
        for process in processes:
            process.join()
        if is_stalled:
            stalled.kill()
            stalled.join()
    return {"sum": sum(rates), "slowest": min(rates)}


def show_stalled(report: Report, directory: str, options: argparse.Namespace) -> None:
    total = 1_000 if options.quick else 8_000
    candidates: dict[str, Candidate] = {
        "stalled": lambda: beside_a_stalled_one(directory, total, is_stalled=True),
        "absent": lambda: beside_a_stalled_one(directory, total, is_stalled=False),
    }
    results = run_interleaved(candidates, options.rounds)
    for key in ("sum", "slowest"):
        absent = "absent", results["absent"]
        report.show_rounds(f"stalled/{key}", results["stalled"], key, "bundles/s", "synced", absent)


# --- projection ----------------------------------------------------------------------------------------------------------

PROJECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "slot": {"slots": [1]},
    "column": {"slots": [1], "columns": {1: ["c0"]}},
}


def touched_bytes(pid: int) -> int:
    """How much of the segments that the process has mapped was faulted in (or mapped around what was)."""
    found = 0
    for block in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.MULTILINE):
        if ".qseg" in block:
            found += sum(1024 * int(size) for size in re.findall(r"^Rss:\s+(\d+) kB", block, re.MULTILINE))
    return found


def read_projected(run_dir: str, projection: dict[str, Any], bundles: int, results: Any) -> None:
    with quiver_actors.connect(run_dir) as client:
        kept = list(client.read("default", 0, **projection))
        for bundle in kept:
            for batch in bundle.slots.values():
                for column in batch.columns:
                    column.sum()
        assert len(kept) == bundles
        results.put(touched_bytes(os.getpid()))


def show_projection(report: Report, directory: str, options: argparse.Namespace) -> None:
    bundles = 4 if options.quick else 16
    bundle: dict[str | int, pa.RecordBatch] = {slot: batch_of(8 * MIB, columns=4) for slot in (1, 2)}
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        client.subscribe("keeper").close()
        client.push_many(bundle for _ in range(bundles))
        client.flush()
        found: dict[str, float] = {}
        for name, projection in PROJECTIONS.items():
            results = _CONTEXT.SimpleQueue()
            process = _CONTEXT.Process(target=read_projected, args=(run_dir, projection, bundles, results))
            process.start()
            found[name] = results.get() / MIB / bundles
            process.join()
    for name, value in found.items():
        report.show(Figure(f"projection/{name}", value, "MiB/bundle", "all", value / found["all"], "synced", 1))


# --- notification --------------------------------------------------------------------------------------------------------


def note_arrivals(run_dir: str, total: int, ready: Any, results: Any) -> None:
    with quiver_actors.connect(run_dir) as client, client.subscribe("told") as subscription:
        ready.release()
        for _ in range(total):
            delivery = subscription.get()
            assert delivery is not None
            results.put(time.monotonic_ns())
            delivery.ack()


def show_notification(report: Report, directory: str, options: argparse.Namespace) -> None:
    total, took = 20 if options.quick else 300, []
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        ready, results = _CONTEXT.Semaphore(0), _CONTEXT.SimpleQueue()
        process = _CONTEXT.Process(target=note_arrivals, args=(run_dir, total, ready, results))
        process.start()
        ready.acquire()
        for _ in range(total):
            client.push(batch_of(1024))
            client.flush()
            sealed_ns = time.monotonic_ns()
            took.append(max(0, results.get() - sealed_ns) / 1e6)
        process.join()
    took.sort()
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        report.show(Figure(f"notification/{name}", percentile(took, fraction), "ms", "", None, "synced", 1))


# --- memory --------------------------------------------------------------------------------------------------------------


def consume_until_killed(run_dir: str, ready: Any) -> None:
    with quiver_actors.connect(run_dir) as client, client.subscribe("consumer") as subscription:
        ready.release()
        for delivery in subscription:
            with delivery:
                assert delivery.row_count


def through(directory: str, size_bytes: int) -> Measurements:
    """Push and consume so much."""
    batch, pushed = batch_of(256 << 10), 0
    total = size_bytes // batch.nbytes
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        ready = _CONTEXT.Semaphore(0)
        process = _CONTEXT.Process(target=consume_until_killed, args=(run_dir, ready))
        process.start()
        ready.acquire()
        memories = {
            name: ResidentMemory(pid, lambda: pushed / total)
            for name, pid in (("consumer", process.pid or 0), ("worker", worker_of(run_dir).pid))
        }
        started = time.perf_counter()
        try:
            with watched(*memories.values()):
                while pushed < total:
                    push_patiently(client, [batch] * min(512, total - pushed))
                    pushed += 512
                    _wait_lag(client, 2_000)
                client.flush()
                _wait_lag(client, 0)
            rate = size_bytes / (time.perf_counter() - started) / MIB
        finally:
            process.kill()
            process.join()
    return {"rate": rate, **{name: memory.growth_mib for name, memory in memories.items()}}


def _wait_lag(client: Client, bundles: int) -> None:
    """Wait until the consumer is not further behind, so that the disk holds what is under way only."""
    while (
        sum(info.pending + info.claimed + info.unsealed for infos in client.subscribers().values() for info in infos)
        > bundles
    ):
        time.sleep(0.01)


def show_memory(report: Report, directory: str, options: argparse.Namespace) -> None:
    gigabytes = options.gigabytes or (0.5 if options.quick else 4)
    measured = through(directory, round(gigabytes * 1e9))
    case = f"memory/{gigabytes:g}GB"
    for name in ("consumer", "worker"):
        report.show(Figure(f"{case}/{name}_growth", measured[name], "MiB", "", None, "synced", 1))
    report.show(Figure(f"{case}/rate", measured["rate"], "MiB/s", "", None, "synced", 1))


CASES: dict[str, Callable[[Report, str, argparse.Namespace], None]] = {
    "claims": show_claims,
    "backlog": show_backlog,
    "stalled": show_stalled,
    "projection": show_projection,
    "notification": show_notification,
    "memory": show_memory,
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="these cases")
    arguments.add_argument("--gigabytes", type=float, default=0, help="for the case memory (4, with --quick 0.5)")
    options = read_options(arguments)
    with begun(options) as (report, directory):
        for name in options.only:
            CASES[name](report, directory, options)


if __name__ == "__main__":
    main()
