"""How long does one durable push take, alone and beside others, and how much of that is the disk's?

Method: a producer pushes at fixed times, whether the push before was quick or not, and each push counts from the time at which it was due:
what a pause delays is not left out (no coordinated omission). One worker of a real node, bundles from RecordBatches, acknowledged
after the fdatasync that covers them.

    lone       nobody else pushes
    loaded     a second process pushes 64 KiB bundles, sixteen at a time, fast enough for several rotations and seals a second

Limit in the same run, interleaved: `fdatasync`, the same schedule of the same bytes written to a preallocated new file and synced, without
a node; for `loaded` beside the same second stream, written by a process of its own to files of its own. `loop_gap` is the longest turn of
the worker's loop in the last two seconds of a round, which is what a push waits behind at the worst.

    python -m benchmarks.latency [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event

import quiver_actors
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
from benchmarks.ingest import make_batches

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 32 * MIB
BACKGROUND_BUNDLES, BACKGROUND_BYTES = 16, 64 * KIB
BACKGROUND_PER_SECOND = 100
"""Groups: 100 MiB/s, three segments a second."""
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Case:
    """`rate`: pushes a second."""

    bundle_bytes: int
    rate: int
    is_loaded: bool
    seconds: float

    @property
    def name(self) -> str:
        return f"latency/{self.bundle_bytes // KIB}KiB/{self.rate}per_s/{'loaded' if self.is_loaded else 'lone'}"


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case(KIB, 200, True, 0.3)]
    return [Case(size, rate, loaded, 6.0) for size in (KIB, 64 * KIB) for rate, loaded in ((200, False), (200, True))]


def on_schedule(act: Callable[[int], None], rate: int, seconds: float) -> list[float]:
    """Call `act` at fixed times; microseconds from when each call was due to its end, sorted."""
    took: list[float] = []
    started = time.perf_counter() + 0.01
    for number in range(int(rate * seconds)):
        due = started + number / rate
        while (now := time.perf_counter()) < due:
            time.sleep(due - now)
        act(number)
        took.append((time.perf_counter() - due) * 1e6)
    return sorted(took)


def summary(took: list[float]) -> Measurements:
    return {
        "p50": percentile(took, 0.5),
        "p99": percentile(took, 0.99),
        "p99.9": percentile(took, 0.999),
        "max": took[-1],
    }


def ours(directory: str, case: Case) -> Measurements:
    """Pushes to a node."""
    batches = make_batches(case.bundle_bytes)
    with running_node(directory) as run_dir, quiver_actors.connect(run_dir) as client:
        client.push_many(batches)
        with beside(push_stream, run_dir, case.is_loaded):
            took = on_schedule(lambda number: client.push(batches[number % len(batches)]), case.rate, case.seconds)
            gap_ns = loop_gap_ns(run_dir)
    return {**summary(took), "loop_gap": gap_ns / 1e3}


def fdatasync(directory: str, case: Case) -> Measurements:
    """The same bytes to a new file, synced by the same process."""
    content = os.urandom(case.bundle_bytes)
    with tempfile.TemporaryDirectory(dir=directory) as root:
        total = int(case.rate * case.seconds) * len(content)
        descriptor = _new_file(os.path.join(root, "lone"), total)
        try:

            def write(number: int) -> None:
                os.pwrite(descriptor, content, number * len(content))
                os.fdatasync(descriptor)

            with beside(write_stream, root, case.is_loaded):
                return summary(on_schedule(write, case.rate, case.seconds))
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def beside(target: Callable[[str, Event, Event], None], place: str, wanted: bool) -> Iterator[None]:
    """Run a second stream in a process of its own, warmed up, until the block ends."""
    if not wanted:
        yield
        return
    ready, end = _CONTEXT.Event(), _CONTEXT.Event()
    process = _CONTEXT.Process(target=target, args=(place, ready, end))
    process.start()
    ready.wait()
    try:
        yield
    finally:
        end.set()
        process.join()


def push_stream(run_dir: str, ready: Event, end: Event) -> None:
    group = make_batches(BACKGROUND_BYTES)[:BACKGROUND_BUNDLES]
    with quiver_actors.connect(run_dir) as client:
        client.push_many(group)
        _stream(lambda: client.push_many(group), ready, end)


def write_stream(root: str, ready: Event, end: Event) -> None:
    content = os.urandom(BACKGROUND_BUNDLES * BACKGROUND_BYTES)
    state = [_new_file(os.path.join(root, "stream-0"), FILE_BYTES), 0, 0]

    def write() -> None:
        if state[1] + len(content) > FILE_BYTES:
            os.close(state[0])
            state[2] += 1
            state[0], state[1] = _new_file(os.path.join(root, f"stream-{state[2]}"), FILE_BYTES), 0
        os.pwrite(state[0], content, state[1])
        os.fdatasync(state[0])
        state[1] += len(content)

    write()
    _stream(write, ready, end)
    os.close(state[0])


def _stream(act: Callable[[], object], ready: Event, end: Event) -> None:
    ready.set()
    due = time.perf_counter()
    while not end.is_set():
        act()
        due = max(due + 1 / BACKGROUND_PER_SECOND, time.perf_counter() - 0.1)
        time.sleep(max(0.0, due - time.perf_counter()))


def _new_file(path: str, size_bytes: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.posix_fallocate(descriptor, 0, size_bytes)
    os.fsync(descriptor)
    return descriptor


def loop_gap_ns(run_dir: str) -> int:
    """The longest turn of the worker's loop lately."""
    command = [sys.executable, "-m", "quiver_actors.cli.main", "status", "--run-dir", run_dir, "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return max(int(worker["loop_gap_ns_max"]) for worker in told["workers"])


def main() -> None:
    options = arguments(__doc__)
    report = Report(options.json)
    with scratch(options) as directory:
        report.note(machine_line(directory))
        for case in cases(options.quick):
            candidates: dict[str, Candidate] = {
                "ours": lambda case=case: ours(directory, case),
                "fdatasync": lambda case=case: fdatasync(directory, case),
            }
            results = run_interleaved(candidates, options.rounds)
            for key in ("p50", "p99", "p99.9", "max"):
                value, limit = median(results["ours"], key), median(results["fdatasync"], key)
                ratio = median_ratio(results["ours"], results["fdatasync"], key)
                name = f"{case.name}/{key}"
                report.show(Figure(name, value, "us", "fdatasync", ratio, "synced", options.rounds))
                report.show(Figure(f"{name}/fdatasync", limit, "us", "", None, "synced", options.rounds))
            gap = median(results["ours"], "loop_gap")
            report.show(Figure(f"{case.name}/loop_gap", gap, "us", "", None, "synced", options.rounds))


if __name__ == "__main__":
    main()
