"""How fast do bundles become durable and readable, and what does it cost?

Method: producer processes push distinct RecordBatches through the public client into one worker of a real node: encode,
hand-off through shared memory, copy, CRC, log, fdatasync before the acknowledgement, sealing into readable 32 MiB segments. Closed
loop per producer: `single` calls push(), `batch64` push_many of 64, the plain case push_many of 16 MiB or 4,096
bundles, whichever is less, which keeps the pipe full. Acknowledgement times are those of a call. CPU is user + system of each side.
The mode is `sync` (acknowledged after the covering fdatasync), `25ms` (after the write, synced by the timer) or `segment_only`; a bundle
of four slots has a quarter of its bytes in each.

Limits in the same run, interleaved: `memcpy` of the same bytes, and `durable-limit` (benchmarks/durable_limit.py): the same bytes
written with pwritev to preallocated new files under an adaptive fdatasync thread. Where a call waits for few bundles, also `bare-hop`
(benchmarks/bare_hop.py): as many processes, each with one message of the same bytes under way, and another one that only writes, lets a
thread sync, and answers: no encoding, no hand-off of bytes, no check, no log.

Memory that the page cache will need is touched before every run: a guest whose host takes free pages back pays five times more for
the first write to a cold one, in the limit as well as in the node.

    python -m benchmarks.ingest [--quick] [--json] [--rounds N] [--dir D] [--only PART_OF_A_NAME]
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import pyarrow as pa

import quiver_actors
from benchmarks.bare_hop import bare_hops_per_s
from benchmarks.durable_limit import durable_limit
from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    begun,
    cpu_seconds,
    parser,
    percentile,
    read_options,
    run_interleaved,
    running_node,
    warm_memory,
    worker_of,
)

KIB, MIB = 1 << 10, 1 << 20
_DISTINCT_BATCHES = 64
_MESSAGE_BUNDLES_MAX = 64
"""Calls of more bundles are several messages."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to push. `per_call`: bundles in a call; 1 = push()."""

    bundle_bytes: int
    producers: int
    per_call: int
    suffix: str
    bundles: int
    """Per producer and round."""
    slots: int = 1
    mode: str = "sync"

    @property
    def size_and_slots(self) -> str:
        size = f"{self.bundle_bytes // MIB}MiB" if self.bundle_bytes >= MIB else f"{self.bundle_bytes // KIB}KiB"
        return f"{size}/{self.slots}slot" + "s" * (self.slots > 1)

    @property
    def name(self) -> str:
        return f"push/{self.size_and_slots}/{self.producers}p/{self.mode}{self.suffix}"

    @property
    def durability(self) -> str:
        return {"sync": "synced", "25ms": "written", "segment_only": "open-segment"}[self.mode]

    @property
    def is_one_message(self) -> bool:
        """A call waits for one message, and that for its sync."""
        return (
            self.per_call <= _MESSAGE_BUNDLES_MAX and self.bundle_bytes * self.per_call <= MIB and self.mode == "sync"
        )

    @property
    def total_bytes(self) -> int:
        """Payload bytes of one round."""
        return self.bundles * self.producers * self.bundle_bytes


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
    found += wider_cases(scale)
    # A round of each kind shows that it works.
    return [found[number] for number in (0, 2, 4, -7, -6, -1)] if quick else found


def wider_cases(scale: int) -> list[Case]:
    """More producers, larger bundles, more slots, other modes."""
    found = [
        Case(1 * KIB, 4, 1, "/single", 8_192 // scale // 4),
        Case(1 * KIB, 4, 64, "/batch64", 131_072 // scale // 4),
        Case(64 * KIB, 4, 256, "", 16_384 // scale // 4),
    ]
    for producers in (1, 2, 4):
        found.append(Case(1 * MIB, producers, 16, "", max(16, 1_024 // scale // producers)))
    for size, per_call, bundles in ((1 * KIB, 64, 65_536), (64 * KIB, 256, 16_384), (1 * MIB, 16, 1_024)):
        found.append(Case(size, 1, per_call, "/batch64" if size == KIB else "", max(16, bundles // scale), slots=4))
    for mode in ("25ms", "segment_only"):
        found.append(Case(64 * KIB, 1, 256, "", 16_384 // scale, mode=mode))
        found.append(Case(1 * KIB, 1, 64, "/batch64", 131_072 // scale, mode=mode))
        found.append(Case(1 * KIB, 1, 1, "/single", 8_192 // scale, mode=mode))
    return found


CONFIGS = {
    "sync": "",
    "25ms": 'wal.flush_interval = "25ms"\n',
    "segment_only": 'durability = "segment_only"\n',
}


def make_bundles(case: Case) -> list[Any]:
    """Distinct bundles of the case's size and slots."""
    batches = make_batches(case.bundle_bytes // case.slots)
    if case.slots == 1:
        return list(batches)
    return [
        {slot: batches[(number + slot) % len(batches)] for slot in range(case.slots)} for number in range(len(batches))
    ]


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
    batches = make_bundles(case)
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
    with running_node(directory, CONFIGS[case.mode]) as run_dir:
        worker = worker_of(run_dir)
        barrier, results = context.Barrier(case.producers + 1), context.SimpleQueue()
        processes = [
            context.Process(target=produce, args=(run_dir, case, barrier, results)) for _ in range(case.producers)
        ]
        for process in processes:
            process.start()
        while barrier.n_waiting < case.producers:
            time.sleep(0.01)
        warm_memory(case.total_bytes + 256 * MIB)
        barrier.wait()
        cpu_before = cpu_seconds(worker)
        parts = [results.get() for _ in processes]
        cpu_worker = cpu_seconds(worker) - cpu_before
        for process in processes:
            process.join()
    seconds = max(part[1] for part in parts) - min(part[0] for part in parts)
    calls = sorted(took for part in parts for took in part[3])
    bundles = len(calls) * case.per_call
    cpu_producers = sum(part[2] for part in parts)
    return {
        "bundles/s": bundles / seconds,
        "MB/s": bundles * case.bundle_bytes / seconds / 1e6,
        "ack_p50": percentile(calls, 0.5),
        "ack_p99": percentile(calls, 0.99),
        "producer_cpu": cpu_producers / bundles * 1e6,
        "worker_cpu": cpu_worker / bundles * 1e6,
        "cpu_per_GB": (cpu_producers + cpu_worker) / (bundles * case.bundle_bytes) * 1e9,
    }


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


def hop(directory: str, case: Case) -> Measurements:
    """Send the same number of bundles in messages of a call's bytes."""
    warm_memory(case.total_bytes + 256 * MIB)
    messages = case.bundles // case.per_call
    rate = bare_hops_per_s(directory, case.bundle_bytes * case.per_call, messages, case.producers)
    return {"bundles/s": rate * case.per_call}


def compare(report: Report, directory: str, case: Case, rounds: int) -> None:
    """Measure one case with its limits and print the figures."""
    group = max(1, min(case.per_call, MIB // case.bundle_bytes))
    total = case.bundles * case.producers

    def limit() -> Measurements:
        warm_memory(case.total_bytes + 256 * MIB)
        return durable_limit(directory, case.bundle_bytes, total, group)

    candidates: dict[str, Candidate] = {
        "ours": lambda: push(directory, case),
        "durable-limit": limit,
        "memcpy": lambda: memcpy(case),
    }
    if case.is_one_message:
        candidates["bare-hop"] = lambda: hop(directory, case)
    results = run_interleaved(candidates, rounds)
    ours = results["ours"]
    for against in [name for name in candidates if name != "ours"]:
        report.show_rounds(case.name, ours, "bundles/s", "bundles/s", case.durability, (against, results[against]))
    report.show_rounds(case.name, ours, "MB/s", "MB/s", case.durability)
    for key, unit in (
        ("ack_p50", "us"),
        ("ack_p99", "us"),
        ("producer_cpu", "us/bundle"),
        ("worker_cpu", "us/bundle"),
        ("cpu_per_GB", "s/GB"),
    ):
        report.show_rounds(f"{case.name}/{key}", ours, key, unit, case.durability)


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--only", default="", help="cases whose name contains this")
    options = read_options(found)
    with begun(options) as (report, directory):
        for case in [case for case in cases(options.quick) if options.only in case.name]:
            compare(report, directory, case, options.rounds)


if __name__ == "__main__":
    main()
