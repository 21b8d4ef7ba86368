"""How fast do bundles become durable and readable, and what does it cost?

Method: producer processes push distinct RecordBatches of one slot through the public client into one worker of a real node: encode,
hand-off through shared memory, copy, CRC, log, fdatasync before the acknowledgement, sealing into readable 32 MiB segments. Closed
loop per producer: `single` calls push(), `batch64` push_many of 64, the plain case push_many of 16 MiB (64 KiB bundles) or 4,096
bundles (1 KiB), which keeps the pipe full. Acknowledgement times are those of a call. CPU is user + system of each side.

Limits in the same run, interleaved: `memcpy` of the same bytes, and `durable-limit` (benchmarks/durable_limit.py): the same bytes
written with pwritev to preallocated new files under an adaptive fdatasync thread.

    python -m benchmarks.ingest [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import quiver_actors
from benchmarks.durable_limit import durable_limit
from benchmarks.harness import (
    Candidate,
    Figure,
    Measurements,
    Report,
    arguments,
    machine_line,
    median,
    median_ratio,
    percentile,
    run_interleaved,
    running_node,
    scratch,
)
from quiver_actors.client.node_view import read_node_view

KIB, MIB = 1 << 10, 1 << 20
_DISTINCT_BATCHES = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One way to push. `per_call`: bundles in a call; 1 = push()."""

    bundle_bytes: int
    producers: int
    per_call: int
    suffix: str
    bundles: int
    """Per producer and round."""

    @property
    def name(self) -> str:
        size = f"{self.bundle_bytes // MIB}MiB" if self.bundle_bytes >= MIB else f"{self.bundle_bytes // KIB}KiB"
        return f"push/{size}/1slot/{self.producers}p/sync{self.suffix}"


def cases(quick: bool) -> list[Case]:
    scale = 16 if quick else 1
    found = []
    for producers in (1, 2):
        share = scale * producers
        found += [
            Case(64 * KIB, producers, 256, "", 16_384 // share),
            Case(64 * KIB, producers, 1, "/single", 4_096 // share),
            Case(1 * KIB, producers, 64, "/batch64", 131_072 // share),
            Case(1 * KIB, producers, 4096, "", 524_288 // share),
            Case(1 * KIB, producers, 1, "/single", 4_096 // share),
        ]
    return found


def make_batches(bundle_bytes: int) -> list[pa.RecordBatch]:
    """Distinct batches of integers, floats and strings of about that encoded size."""
    rng = np.random.default_rng(bundle_bytes)
    rows = max(1, (bundle_bytes - 500) // 36)
    return [
        pa.record_batch(
            {
                "id": pa.array(rng.integers(0, 1 << 40, rows)),
                "ts": pa.array(rng.integers(0, 1 << 50, rows), pa.timestamp("us")),
                "value": pa.array(rng.random(rows)),
                "text": pa.array(np.char.add("user-", rng.integers(100, 999, rows).astype(str))),
            }
        )
        for _ in range(_DISTINCT_BATCHES)
    ]


def produce(run_dir: str, case: Case, barrier: Barrier, results: Any) -> None:
    """One producer process: warm up, wait for the others, push, report."""
    batches = make_batches(case.bundle_bytes)
    # A call's bundles are chosen before the clock starts: drawing them from a list is not part of what is measured.
    group = [batches[number % len(batches)] for number in range(case.per_call)]
    with quiver_actors.connect(run_dir) as client:
        client.push_many(batches)
        barrier.wait()
        cpu, started, took = time.process_time(), time.perf_counter(), []
        for number in range(max(1, case.bundles // case.per_call)):
            call = time.perf_counter()
            if case.per_call == 1:
                client.push(batches[number % len(batches)])
            else:
                client.push_many(group)
            took.append((time.perf_counter() - call) * 1e6)
        ended = time.perf_counter()
        results.put((started, ended, time.process_time() - cpu, took))


def push(directory: str, case: Case) -> Measurements:
    """Run one case on a node of its own."""
    context = multiprocessing.get_context("spawn")
    with running_node(directory) as run_dir:
        worker = psutil.Process(worker_pid(run_dir))
        barrier, results = context.Barrier(case.producers + 1), context.SimpleQueue()
        processes = [
            context.Process(target=produce, args=(run_dir, case, barrier, results)) for _ in range(case.producers)
        ]
        for process in processes:
            process.start()
        barrier.wait()
        cpu_before = sum(worker.cpu_times()[:2])
        parts = [results.get() for _ in processes]
        cpu_worker = sum(worker.cpu_times()[:2]) - cpu_before
        for process in processes:
            process.join()
    seconds = max(part[1] for part in parts) - min(part[0] for part in parts)
    calls = sorted(took for part in parts for took in part[3])
    bundles = len(calls) * case.per_call
    return {
        "bundles/s": bundles / seconds,
        "MB/s": bundles * case.bundle_bytes / seconds / 1e6,
        "ack_p50": percentile(calls, 0.5),
        "ack_p99": percentile(calls, 0.99),
        "producer_cpu": sum(part[2] for part in parts) / bundles * 1e6,
        "worker_cpu": cpu_worker / bundles * 1e6,
    }


def worker_pid(run_dir: str) -> int:
    """The pid of the only worker."""
    supervisor = psutil.Process(read_node_view(run_dir).pid)
    return int(supervisor.children()[0].pid)


def memcpy(case: Case) -> Measurements:
    """Copy the same bytes, walking over memory larger than the caches."""
    source = np.ones(256 * MIB, np.uint8)
    target = np.empty(case.bundle_bytes, np.uint8)
    total = min(case.bundles * case.producers, 1 << 18)
    started = time.perf_counter()
    for number in range(total):
        at = number * case.bundle_bytes % (len(source) - case.bundle_bytes)
        np.copyto(target, source[at : at + case.bundle_bytes])
    return {"bundles/s": total / (time.perf_counter() - started)}


def compare(report: Report, directory: str, case: Case, rounds: int) -> None:
    """Measure one case with its limits and print the figures."""
    group = max(1, min(case.per_call, MIB // case.bundle_bytes))
    total = case.bundles * case.producers
    candidates: dict[str, Candidate] = {
        "ours": lambda: push(directory, case),
        "durable-limit": lambda: durable_limit(directory, case.bundle_bytes, total, group),
        "memcpy": lambda: memcpy(case),
    }
    results = run_interleaved(candidates, rounds)
    ours = results["ours"]
    rate = median(ours, "bundles/s")
    for against in ("durable-limit", "memcpy"):
        ratio = median_ratio(ours, results[against], "bundles/s")
        report.show(Figure(case.name, rate, "bundles/s", against, ratio, "synced", rounds))
    for key, unit in (
        ("MB/s", "MB/s"),
        ("ack_p50", "us"),
        ("ack_p99", "us"),
        ("producer_cpu", "us/bundle"),
        ("worker_cpu", "us/bundle"),
    ):
        name = case.name if key == "MB/s" else f"{case.name}/{key}"
        report.show(Figure(name, median(ours, key), unit, "", None, "synced", rounds))


def main() -> None:
    options = arguments(__doc__)
    report = Report(options.json)
    with scratch(options) as directory:
        report.note(machine_line(directory))
        for case in cases(options.quick):
            compare(report, directory, case, options.rounds)


if __name__ == "__main__":
    main()
