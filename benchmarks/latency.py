"""How long does one durable push take, alone and beside others, and how much of that is the disk's?

Method: a producer pushes at fixed times, whether the push before was quick or not, and each push counts from the time at which it was due:
what a pause delays is not left out (no coordinated omission). One worker of a real node, bundles from RecordBatches, acknowledged
after the fdatasync that covers them.

    lone       nobody else pushes
    loaded     a second process pushes 64 KiB bundles, sixteen at a time, fast enough for several rotations and seals a second

Limits in the same run, interleaved: `fdatasync`, the same schedule of the same bytes written to a preallocated new file and synced, without
a node; for `loaded` beside the same second stream, written by a process of its own to files of its own. And `bare-hop`
(benchmarks/bare_hop.py): the same through a second process that does nothing but write, let a thread sync, and answer. The differences
of the medians of a round: `p50_above_fdatasync`, and `p50_above_bare-hop`, which is what the product's own work takes.

`loop_gap` is the longest turn of the worker's loop while the pushes went on, which is what a push waits behind at the worst; `stalls`
counts the looks (two a second) at which a new one of more than 5 ms had been; `seals` how many segments were sealed meanwhile. The
worker publishes all three.

    python -m benchmarks.latency [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event

import quiver_actors
from benchmarks.bare_hop import bare_hop
from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    arguments,
    begun,
    percentile,
    run_interleaved,
    running_node,
)
from benchmarks.ingest import make_batches
from quiver_actors.base.metrics.figures import EngineFigure, RowKind, WorkerFigure
from quiver_actors.store.status.status_view import attach_page
from quiver_actors.supervisor.figures import region_of

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 32 * MIB
BACKGROUND_BUNDLES, BACKGROUND_BYTES = 16, 64 * KIB
BACKGROUND_PER_SECOND = 100
"""Groups: 100 MiB/s, three segments a second."""
STALL_NS = 5_000_000
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


def on_schedule(act: Callable[[int], object], rate: int, seconds: float) -> list[float]:
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
        with beside(push_stream, run_dir, case.is_loaded), turns_watched(run_dir) as watch:
            took = on_schedule(lambda number: client.push(batches[number % len(batches)]), case.rate, case.seconds)
    return {**summary(took), "loop_gap": watch.longest_ns / 1e3, "stalls": watch.stall_count, "seals": watch.seals}


def fdatasync(directory: str, case: Case) -> Measurements:
    """Write the same bytes to a new file, synced by the same process."""
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


def hopping(directory: str, case: Case) -> Measurements:
    """Send the same bytes to a second process that writes and syncs them and does nothing else."""
    with (
        tempfile.TemporaryDirectory(dir=directory) as root,
        bare_hop(root, case.bundle_bytes, int(case.rate * case.seconds)) as push,
        beside(write_stream, root, case.is_loaded),
    ):
        return summary(on_schedule(lambda _: push(), case.rate, case.seconds))


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


class TurnWatch:
    """Looks at what the only worker publishes, twice a second: it tells the longest turn of the last one to two seconds."""

    def __init__(self, run_dir: str) -> None:
        self._page = attach_page(run_dir)
        self._over = threading.Event()
        self._gap_before, seals = self._told()
        self._seals_first = self._seals_last = seals
        self.longest_ns = self.stall_count = 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @property
    def seals(self) -> int:
        return self._seals_last - self._seals_first

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        self._page.close()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self._look()

    def _look(self) -> None:
        gap_ns, self._seals_last = self._told()
        if gap_ns != self._gap_before:  # the same value is the same turn, also one from before
            self.longest_ns = max(self.longest_ns, gap_ns)
            self.stall_count += gap_ns > STALL_NS
            self._gap_before = gap_ns

    def _told(self) -> tuple[int, int]:
        rows = {row.kind: row.values for row in self._page.read_region(region_of(0)).rows}
        return rows[RowKind.WORKER][WorkerFigure.LOOP_GAP_NS_MAX], rows[RowKind.ENGINE][EngineFigure.SEALS]


@contextlib.contextmanager
def turns_watched(run_dir: str) -> Iterator[TurnWatch]:
    watch = TurnWatch(run_dir)
    try:
        yield watch
    finally:
        watch.end()


def main() -> None:
    options = arguments(__doc__)
    with begun(options) as (report, directory):
        for case in cases(options.quick):
            compare(report, directory, case, options.rounds)


def compare(report: Report, directory: str, case: Case, rounds: int) -> None:
    candidates: dict[str, Candidate] = {
        "ours": lambda: ours(directory, case),
        "fdatasync": lambda: fdatasync(directory, case),
        "bare-hop": lambda: hopping(directory, case),
    }
    results = run_interleaved(candidates, rounds)
    ours_ = results.pop("ours")
    for key in ("p50", "p99", "p99.9", "max"):
        for name, limit in results.items():
            report.show_rounds(f"{case.name}/{key}", ours_, key, "us", "synced", (name, limit))
        for name, limit in results.items():
            report.show_rounds(f"{case.name}/{key}/{name}", limit, key, "us", "synced")
    for name, limit in results.items():
        above = [{"us": mine["p50"] - its["p50"]} for mine, its in zip(ours_, limit, strict=True)]
        report.show_rounds(f"{case.name}/p50_above_{name}", above, "us", "us", "synced")
    for key, unit in (("loop_gap", "us"), ("stalls", "count"), ("seals", "count")):
        report.show_rounds(f"{case.name}/{key}", ours_, key, unit, "synced")


if __name__ == "__main__":
    main()
