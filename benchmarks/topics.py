"""What do idle topics cost a worker?

Method: a real node with one worker, once with the default topic alone and once with 500 more that nobody uses (`--topics N`), in
alternating order. Each time: memory of the worker (unique set size) and bytes on disk when it is ready, its processor time while nothing
happens, its processor time for each of many lone pushes of 1 KiB to the default topic (a push is a turn of the loop or two, so this is
what a turn costs), and the time from `topics create` to a topic that every worker serves. Processor time, not wall time: the machine may
be shared.

    python -m benchmarks.topics [--topics N] [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Figure,
    Measurements,
    Report,
    begun,
    cpu_seconds,
    median,
    parser,
    read_options,
    run_interleaved,
    running_node,
    worker_of,
)

_BATCH = pa.record_batch({"x": pa.array(range(100), pa.int64())})


def measure(directory: str, topics: int, pushes: int, idle_seconds: float) -> Measurements:
    """One node with so many idle topics."""
    config = "".join(f"[topics.idle_{number:04}]\n" for number in range(topics))
    with running_node(directory, config, ready_seconds=300) as run_dir, quiver_actors.connect(run_dir) as client:
        worker = worker_of(run_dir)
        client.push(_BATCH)
        time.sleep(1.0)  # what a start leaves to be done, such as looking at every directory once
        found = {
            "memory_bytes": float(worker.memory_full_info().uss),
            "disk_bytes": float(_bytes_below(client.data_dir)),
        }
        found["idle_us_per_s"] = _cpu_us(worker, lambda: time.sleep(idle_seconds)) / idle_seconds
        found["push_us"] = _cpu_us(worker, lambda: [client.push(_BATCH) for _ in range(pushes)]) / pushes
        started = time.perf_counter()
        client.create_topic("one_more")
        found["create_ms"] = (time.perf_counter() - started) * 1e3
        return found


def _cpu_us(process: psutil.Process, run: Callable[[], object]) -> float:
    before = cpu_seconds(process)
    run()
    return (cpu_seconds(process) - before) * 1e6


def _bytes_below(path: str) -> int:
    files = (os.stat(file) for file in Path(path).rglob("*") if file.is_file())
    return sum(found.st_blocks * 512 for found in files)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--topics", type=int, default=500, help="idle topics (default 500)")
    options = read_options(arguments)
    pushes, idle_seconds = (300, 1.0) if options.quick else (3000, 5.0)
    with begun(options) as (report, directory):
        results = run_interleaved(
            {
                "alone": lambda: measure(directory, 0, pushes, idle_seconds),
                "many": lambda: measure(directory, options.topics, pushes, idle_seconds),
            },
            options.rounds,
        )
        show(report, results["alone"], results["many"], options.topics)


def show(report: Report, alone: list[Measurements], many: list[Measurements], topics: int) -> None:
    for key, unit in (
        ("memory_bytes", "B"),
        ("disk_bytes", "B"),
        ("idle_us_per_s", "us CPU/s"),
        ("push_us", "us CPU"),
        ("create_ms", "ms"),
    ):
        report.show_rounds(f"topics/default alone/{key}", alone, key, unit, "synced")
        report.show_rounds(f"topics/{topics} idle/{key}", many, key, unit, "synced", ("alone", alone))
    per_topic = (median(many, "memory_bytes") - median(alone, "memory_bytes")) / topics
    report.show(Figure("topics/memory of one idle topic", per_topic, "B", "", None, "", len(many)))


if __name__ == "__main__":
    main()
