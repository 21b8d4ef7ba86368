"""How fast do sealed bundles reach another process, and how soon after the push?

Rate: one worker, bundles of two slots with 1,000 rows each (16 and 12 KB), all sealed before the clock starts. Every consumer is a
process with a subscriber of its own that gets each bundle (claimed by the worker for it), maps the segment, makes the batches of both slots
and acknowledges; the clock stops when all acknowledgements are durable. The figure is one consumer's, the slowest's: with more
consumers than cores it falls by their number; `sum` adds them up. CPU is user + system of one consumer, and of the worker.

Limit in the same run, interleaved: `ipc-files`, as many processes that map plain Arrow files with the same batches (one a slot and 1,024
bundles) and get each batch by `pyarrow.ipc.open_file`, with nobody to claim from or to tell.

Check: CPU of one consumer with and without `verify_checksums`, and of a process that takes the CRC of as many mapped bytes and does nothing
else; `over_crc` is what the check costs beyond that, the aim is 1 us a bundle at most.

Batches: one consumer of bundles of 100 and of 1,000 rows, which takes them by `Subscription.batches` and has one table for each slot.

Latency: a producer pushes single bundles at a steady pace, a consumer notes the time from before the push to when it has the batch.
At the default settings it comes out of the open log; with `max_open=10ms` a hundred segments a second are sealed beside it.

    python -m benchmarks.deliver [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    arguments,
    begun,
    cpu_seconds,
    percentile,
    push_patiently,
    run_interleaved,
    running_node,
    worker_of,
)
from quiver_actors.base.checksum import crc32

ROWS = 1000
PREFETCH = 2048
PUSHES_PER_SECOND = 200
LATENCY_CONFIGS = {"default": "", "max_open=10ms": '[segment]\nmax_open_duration = "10ms"\n'}
_DISTINCT_BUNDLES = 64
_BUNDLES_PER_FILE = 1024

Bundle = dict[str | int, pa.RecordBatch]
Consumer = Callable[..., None]


def make_bundles(row_count: int = ROWS) -> list[Bundle]:
    """Distinct bundles of two slots, 28 bytes a row."""
    rng = np.random.default_rng(1)
    return [
        {
            1: pa.record_batch({"id": rng.integers(0, 1 << 40, row_count), "value": rng.random(row_count)}),
            2: pa.record_batch(
                {"ts": rng.integers(0, 1 << 50, row_count), "kind": rng.integers(0, 9, row_count, np.int32)}
            ),
        }
        for _ in range(_DISTINCT_BUNDLES)
    ]


# --- rate ----------------------------------------------------------------------------------------------------------------


def consume(run_dir: str, subscriber: str, total: int, verifies: bool, barrier: Barrier, results: Any) -> None:
    """One consumer process: get, read both slots, acknowledge, all durable at the end."""
    with quiver_actors.connect(run_dir, verify_checksums=verifies) as client:
        subscription = client.subscribe(subscriber, prefetch=PREFETCH)
        barrier.wait()
        cpu, started, rows = time.process_time(), time.perf_counter(), 0
        for _ in range(total):
            delivery = subscription.get()
            assert delivery is not None
            for batch in delivery.slots.values():
                rows += batch.num_rows
            delivery.ack()
        subscription.flush()
        results.put((time.perf_counter() - started, time.process_time() - cpu))
        assert rows % (2 * total) == 0
        subscription.close()


def consume_batches(run_dir: str, subscriber: str, total: int, verifies: bool, barrier: Barrier, results: Any) -> None:
    """One consumer process: batches, their tables of both slots, one acknowledgement for all of each, all durable at the end."""
    with quiver_actors.connect(run_dir, verify_checksums=verifies) as client:
        subscription = client.subscribe(subscriber, prefetch=PREFETCH, idle_timeout=20)
        barrier.wait()
        cpu, started, bundles, rows = time.process_time(), time.perf_counter(), 0, 0
        for batch in subscription.batches():
            rows += batch[1].num_rows + batch[2].num_rows
            bundles += len(batch)
            batch.ack()
            if bundles == total:
                break
        subscription.flush()
        results.put((time.perf_counter() - started, time.process_time() - cpu))
        assert rows % (2 * total) == 0
        subscription.close()


def deliver(
    directory: str,
    consumers: int,
    total: int,
    *,
    verifies: bool = True,
    row_count: int = ROWS,
    consume_all: Consumer = consume,
) -> Measurements:
    """Push and seal, then let the consumers go. Without `verifies` they do not check what they read."""
    names = [f"consumer-{number}" for number in range(consumers)]
    bundles = make_bundles(row_count)
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        for name in names:
            client.subscribe(name).close()
        push_patiently(client, [bundles[number % len(bundles)] for number in range(total)])
        client.flush()
        worker = worker_of(run_dir)
        cpu_before = cpu_seconds(worker)
        measured = _run_together(consume_all, [(run_dir, name, total, verifies) for name in names])
        measured["worker_cpu"] = (cpu_seconds(worker) - cpu_before) / (total * consumers) * 1e6
    return _per_bundle(measured, consumers, total)


def read_files(paths: Sequence[str], barrier: Barrier, results: Any) -> None:
    """One process of the limit."""
    barrier.wait()
    cpu, started, rows = time.process_time(), time.perf_counter(), 0
    for path in paths:
        with pa.memory_map(path) as first, pa.memory_map(path.replace("slot-1", "slot-2")) as second:
            readers = [pa.ipc.open_file(first), pa.ipc.open_file(second)]
            for number in range(readers[0].num_record_batches):
                for reader in readers:
                    rows += reader.get_batch(number).num_rows
    results.put((time.perf_counter() - started, time.process_time() - cpu))


def ipc_files(directory: str, consumers: int, total: int, row_count: int = ROWS) -> Measurements:
    """Read the same batches from plain Arrow files."""
    bundles = make_bundles(row_count)
    paths = []
    for first in range(0, total, _BUNDLES_PER_FILE):
        for slot in (1, 2):
            paths.append(os.path.join(directory, f"slot-{slot}-{first}.arrow"))
            with pa.OSFile(paths[-1], "wb") as file, pa.ipc.new_file(file, bundles[0][slot].schema) as writer:
                for number in range(first, min(total, first + _BUNDLES_PER_FILE)):
                    writer.write_batch(bundles[number % len(bundles)][slot])
    try:
        measured = _run_together(read_files, [(paths[::2],)] * consumers)
    finally:
        for path in paths:
            os.unlink(path)
    return _per_bundle(measured, consumers, total)


def _run_together(target: Consumer, calls: Sequence[tuple[Any, ...]]) -> Measurements:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(calls)), context.SimpleQueue()
    processes = [context.Process(target=target, args=(*call, barrier, results)) for call in calls]
    for process in processes:
        process.start()
    parts = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return {"seconds": max(part[0] for part in parts), "cpu": sum(part[1] for part in parts)}


def _per_bundle(measured: Measurements, consumers: int, total: int) -> Measurements:
    rate = total / measured["seconds"]
    return {
        "bundles/s": rate,
        "sum": rate * consumers,
        "consumer_cpu": measured["cpu"] / (total * consumers) * 1e6,
        "worker_cpu": measured.get("worker_cpu", 0.0),
    }


def compare(report: Report, directory: str, consumers: int, total: int, rounds: int) -> None:
    candidates: dict[str, Candidate] = {
        "ours": lambda: deliver(directory, consumers, total),
        "ipc-files": lambda: ipc_files(directory, consumers, total),
    }
    results = run_interleaved(candidates, rounds)
    ours, limit = results["ours"], results["ipc-files"]
    case = f"deliver/1000rows/2slots/{consumers}sub"
    report.show_rounds(case, ours, "bundles/s", "bundles/s", "synced", ("ipc-files", limit))
    for key, unit in (("sum", "bundles/s"), ("consumer_cpu", "us/bundle"), ("worker_cpu", "us/bundle")):
        report.show_rounds(f"{case}/{key}", ours, key, unit, "synced")


def show_batches(report: Report, directory: str, total: int, rounds: int) -> None:
    """One consumer of small bundles: batches, one by one, and the plain files."""
    for row_count in (100, ROWS):
        candidates: dict[str, Candidate] = {
            "batches": partial(deliver, directory, 1, total, row_count=row_count, consume_all=consume_batches),
            "one by one": partial(deliver, directory, 1, total, row_count=row_count),
            "ipc-files": partial(ipc_files, directory, 1, total, row_count),
        }
        results = run_interleaved(candidates, rounds)
        limit = ("ipc-files", results.pop("ipc-files"))
        for name, measured in results.items():
            case = f"deliver/{row_count}rows/2slots/{name.replace(' ', '-')}"
            report.show_rounds(case, measured, "bundles/s", "bundles/s", "synced", limit)
            report.show_rounds(f"{case}/consumer_cpu", measured, "consumer_cpu", "us/bundle", "synced", limit)


# --- what the check costs ------------------------------------------------------------------------------------------------


def checksum_files(paths: Sequence[str], total: int, barrier: Barrier, results: Any) -> None:
    """One process that maps files and takes the CRC of their bytes in pieces as large as a bundle, and does nothing else."""
    barrier.wait()
    cpu, started = time.process_time(), time.perf_counter()
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            view = memoryview(mapping)
            size_bytes = -(-len(view) * len(paths) // total)
            for start in range(0, len(view), size_bytes):
                crc32(view[start : start + size_bytes])
            view.release()
    results.put((time.perf_counter() - started, time.process_time() - cpu))


def checksums(directory: str, total: int) -> Measurements:
    """The CRC of as many bytes as the bundles have, and nothing else."""
    bundles = make_bundles()
    content = b"".join(batch.serialize().to_pybytes() for bundle in bundles for batch in bundle.values())
    paths = [os.path.join(directory, f"bytes-{number}") for number in range(total // len(bundles))]
    try:
        for path in paths:
            with open(path, "wb") as file:
                file.write(content)
        measured = _run_together(checksum_files, [(paths, total)])
    finally:
        for path in paths:
            os.unlink(path)
    return _per_bundle(measured, 1, total)


def show_check(report: Report, directory: str, total: int, rounds: int) -> None:
    """CPU of one consumer with and without the check, the difference, and the CRC of as many bytes alone."""
    results = run_interleaved(
        {
            "checked": lambda: deliver(directory, 1, total),
            "unchecked": lambda: deliver(directory, 1, total, verifies=False),
            "crc": lambda: checksums(directory, total),
        },
        rounds,
    )
    for name, measured in results.items():
        report.show_rounds(f"deliver/check/{name}", measured, "consumer_cpu", "us/bundle", "synced")
    pairs = zip(results["checked"], results["unchecked"], results["crc"], strict=True)
    over = [{"over": on["consumer_cpu"] - off["consumer_cpu"] - crc["consumer_cpu"]} for on, off, crc in pairs]
    report.show_rounds("deliver/check/over_crc", over, "over", "us/bundle", "synced")


# --- latency -------------------------------------------------------------------------------------------------------------


def note_latencies(run_dir: str, total: int, barrier: Barrier, results: Any) -> None:
    """A consumer process that reads when each bundle was pushed."""
    took = []
    with quiver_actors.connect(run_dir) as client, client.subscribe("latency") as subscription:
        barrier.wait()
        for _ in range(total):
            delivery = subscription.get()
            assert delivery is not None
            pushed_ns = delivery[1].column(0)[0].as_py()
            took.append((time.monotonic_ns() - pushed_ns) / 1e6)
            delivery.ack()
    results.put(sorted(took))


def latency(directory: str, config: str, seconds: float) -> Measurements:
    """Push at a steady pace; milliseconds from before the push to the batch in the consumer."""
    total = round(seconds * PUSHES_PER_SECOND)
    context = multiprocessing.get_context("spawn")
    with running_node(directory, config) as run_dir, quiver_actors.connect(run_dir) as client:
        barrier, results = context.Barrier(2), context.SimpleQueue()
        process = context.Process(target=note_latencies, args=(run_dir, total, barrier, results))
        process.start()
        barrier.wait()
        started_ns = time.monotonic_ns()
        for number in range(total):
            due_ns = started_ns + number * 10**9 // PUSHES_PER_SECOND
            time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            push_patiently(client, [{1: pa.record_batch({"pushed_ns": [time.monotonic_ns()] * ROWS})}])
        took = results.get()
        process.join()
    return {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99), "max": took[-1]}


def show_latency(report: Report, directory: str, name: str, seconds: float, rounds: int) -> None:
    results = [latency(directory, LATENCY_CONFIGS[name], seconds) for _ in range(rounds)]
    for key in ("p50", "p99", "max"):
        report.show_rounds(f"deliver/latency/{name}/{key}", results, key, "ms", "synced")


def main() -> None:
    options = arguments(__doc__)
    with begun(options) as (report, directory):
        for consumers, total in ((1, 65_536), (4, 24_576), (16, 8_192)):
            compare(report, directory, consumers, total // 8 if options.quick else total, options.rounds)
        show_batches(report, directory, 8_192 if options.quick else 65_536, options.rounds)
        show_check(report, directory, 8_192 if options.quick else 65_536, options.rounds)
        for name in LATENCY_CONFIGS:
            show_latency(
                report, directory, name, 1 if options.quick else 12, 1 if options.quick else min(3, options.rounds)
            )


if __name__ == "__main__":
    main()
