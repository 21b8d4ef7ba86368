"""What does a bundle cost the machine: CPU a gigabyte, and system calls, context switches and page faults a bundle?

Method: a real node with one worker, one producer process that pushes without a pause. Two windows of the same length, one after the
other, so that strace disturbs no other figure:

    counters   CPU of worker and producer (the scheduler's account), context switches and minor faults of the worker (/proc), bundles that
               the worker took in (its counters page)
    strace     system calls of the worker's threads, counted by `strace -f -c`; the bundles of that window. strace slows the node down, so
               that more bundles share a turn: a lower bound

Without strace that part is named as skipped. There is no limit to compare with.

    python -m benchmarks.footprint [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil

import quiver_actors
from benchmarks.harness import (
    Measurements,
    Report,
    arguments,
    begun,
    cpu_seconds,
    running_node,
    worker_of,
)
from benchmarks.ingest import make_batches
from quiver_actors.base.metrics.figures import EngineFigure, RowKind
from quiver_actors.store.status.status_view import attach_page
from quiver_actors.supervisor.figures import region_of

KIB = 1 << 10
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Case:
    bundle_bytes: int
    per_call: int

    @property
    def name(self) -> str:
        return f"footprint/{self.bundle_bytes // KIB}KiB/{self.per_call}_a_call"


CASES = (Case(KIB, 1), Case(KIB, 64), Case(KIB, 4096), Case(64 * KIB, 256))


def push_on(run_dir: str, case: Case, ready: Event, over: Event) -> None:
    """The producer."""
    batches = make_batches(case.bundle_bytes)
    group = [batches[number % len(batches)] for number in range(case.per_call)]
    with quiver_actors.connect(run_dir) as client:
        client.push_many(batches)
        ready.set()
        while not over.is_set():
            if case.per_call == 1:
                client.push(group[0])
            else:
                client.push_many(group)


class Observed:
    """A worker and a producer at work."""

    def __init__(self, run_dir: str, producer_pid: int, case: Case) -> None:
        self.case = case
        self.worker, self.producer = worker_of(run_dir), psutil.Process(producer_pid)
        self._page = attach_page(run_dir)

    def bundles(self) -> int:
        """Bundles ingested so far; published ten times a second."""
        rows = {row.kind: row.values for row in self._page.read_region(region_of(0)).rows}
        return int(rows[RowKind.ENGINE][EngineFigure.BUNDLES_IN])

    def during(self, wait: Callable[[], object]) -> int:
        """Bundles that came while that went on."""
        before = self.bundles()
        wait()
        return max(1, self.bundles() - before)

    def counters(self, seconds: float) -> Measurements:
        before = self._account()
        bundles = self.during(lambda: time.sleep(seconds))
        spent = {key: value - before[key] for key, value in self._account().items()}
        size_gb = bundles * self.case.bundle_bytes / 1e9
        return {
            "worker_cpu_per_GB": spent["worker"] / size_gb,
            "producer_cpu_per_GB": spent["producer"] / size_gb,
            "worker_cpu": spent["worker"] / bundles * 1e6,
            "producer_cpu": spent["producer"] / bundles * 1e6,
            "switches": spent["switches"] / bundles,
            "faults": spent["faults"] / bundles,
        }

    def _account(self) -> dict[str, float]:
        pid = self.worker.pid
        told = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
        switches = sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", told)))
        faults = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
        return {
            "worker": cpu_seconds(self.worker),
            "producer": cpu_seconds(self.producer),
            "switches": switches,
            "faults": faults,
        }

    def syscalls(self, seconds: float, directory: str) -> Measurements:
        """Calls a bundle: all, and the most frequent."""
        path = os.path.join(directory, "strace")
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-o", path, "-p", str(self.worker.pid)], stderr=subprocess.DEVNULL
        )
        time.sleep(0.3)
        bundles = self.during(lambda: time.sleep(seconds))
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
        rows = re.findall(
            r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?([a-z]\w+)$", Path(path).read_text(), re.MULTILINE
        )
        counted = {name: int(calls) / bundles for calls, name in rows if name != "total"}
        frequent = sorted(counted, key=counted.__getitem__, reverse=True)[:6]
        return {"all": sum(counted.values()), **{name: counted[name] for name in frequent}}


@contextmanager
def at_work(base: str, case: Case) -> Iterator[Observed]:
    with running_node(base) as run_dir:
        ready, over = _CONTEXT.Event(), _CONTEXT.Event()
        process = _CONTEXT.Process(target=push_on, args=(run_dir, case, ready, over))
        process.start()
        try:
            ready.wait()
            time.sleep(0.3)
            yield Observed(run_dir, process.pid or 0, case)
        finally:
            over.set()
            process.join()


def observe(report: Report, base: str, case: Case, rounds: int, seconds: float) -> None:
    directory = tempfile.mkdtemp(prefix="observed-", dir=base)
    with at_work(base, case) as observed:
        counted = [observed.counters(seconds) for _ in range(rounds)]
        calls = observed.syscalls(seconds, directory) if shutil.which("strace") else None
    for key, unit in (
        ("worker_cpu_per_GB", "s/GB"),
        ("producer_cpu_per_GB", "s/GB"),
        ("worker_cpu", "us/bundle"),
        ("producer_cpu", "us/bundle"),
        ("switches", "a bundle"),
        ("faults", "a bundle"),
    ):
        report.show_rounds(f"{case.name}/{key}", counted, key, unit, "synced")
    for name in calls or {}:
        report.show_rounds(f"{case.name}/syscalls/{name}", [calls or {}], name, "a bundle", "synced")


def main() -> None:
    options = arguments(__doc__)
    seconds = 0.5 if options.quick else 4.0
    with begun(options) as (report, base):
        if shutil.which("strace") is None:
            report.skipped("strace", "no program strace: install it (Debian, Ubuntu: apt install strace)")
        for case in CASES[1:2] if options.quick else CASES:
            observe(report, base, case, options.rounds, seconds)


if __name__ == "__main__":
    main()
