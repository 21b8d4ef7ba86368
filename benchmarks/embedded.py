"""What does a push into the embedded store cost above the disk, and how does it compare with other stores inside the process?

Method: bundles of 1 KiB, each group of them on the disk before the next: single ones as fast as they go (`back_to_back`), single ones at
fixed times (`200per_s`), and groups of 64 (`64outstanding`). Quiver is `quiver_actors.open`, which encodes its RecordBatches; the peers
get ready-encoded bytes, and make a group durable as benchmarks/stores.py says. Then 64 threads that push single bundles
(`64threads`), with the group commit of the embedded store; the peers have one writer.

Limit, interleaved in the same run: `disk` writes the same bytes with one `pwrite` and one `fdatasync` a group into a file whose blocks are
reserved. `above_disk` is the difference of the medians of a round.

    python -m benchmarks.embedded [--quick] [--json] [--rounds N] [--dir D] [--seconds S]
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import quiver_actors
from benchmarks.harness import Candidate, Measurements, Report, begun, parser, percentile, read_options, run_interleaved
from benchmarks.ingest import make_batches
from benchmarks.latency import on_schedule
from benchmarks.peers import encoded
from benchmarks.stores import Lmdb, RocksDb, Sqlite, Store

BUNDLE_BYTES = 1 << 10
PUSHES_PER_SECOND = 200
GROUP, THREADS = 64, 64
PEERS: tuple[type[Store], ...] = (Sqlite, RocksDb, Lmdb)
_FILE_BYTES = 64 << 20


class Appends(Protocol):
    """A store that appends groups of bundles durably."""

    def append(self, group: Sequence[Any]) -> None: ...

    def close(self) -> None: ...


class Disk:
    """The bytes alone."""

    def __init__(self, directory: str) -> None:
        self._descriptor = os.open(os.path.join(directory, "file"), os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._descriptor, 0, _FILE_BYTES)
        os.fsync(self._descriptor)
        self._at = 0

    def append(self, group: Sequence[bytes]) -> None:
        """Write the group with one call, and sync it."""
        size_bytes = sum(map(len, group))
        if self._at + size_bytes > _FILE_BYTES:
            self._at = 0
        os.pwritev(self._descriptor, group, self._at)
        self._at += size_bytes
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Quiver:
    """The embedded store behind the same calls."""

    def __init__(self, directory: str) -> None:
        self._store = quiver_actors.open(Path(directory) / "store")

    def append(self, group: Sequence[Any]) -> None:
        """Push, durable when this returns."""
        if len(group) == 1:
            self._store.push(group[0])
        else:
            self._store.push_many(group)

    def close(self) -> None:
        self._store.close()


Opens = Callable[[str], Appends]
OPENED: dict[str, Opens] = {"quiver": Quiver, "disk": Disk, **{peer.name: peer for peer in PEERS}}


def measure(name: str, base: str, act: Callable[[Callable[[int], object]], Measurements], size: int) -> Measurements:
    """Open a store in an empty directory and let `act` append groups of so many bundles to it."""
    batches = make_batches(BUNDLE_BYTES)
    bundles: list[Any] = batches if name == "quiver" else [encoded(batch) for batch in batches]
    groups = [[bundles[(first + each) % len(bundles)] for each in range(size)] for first in range(len(bundles))]
    directory = tempfile.mkdtemp(prefix="store-", dir=base)
    try:
        store = OPENED[name](directory)
        try:
            store.append(bundles)  # caches and schemas are warm
            return act(lambda number: store.append(groups[number % len(groups)]))
        finally:
            store.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def one_by_one(append: Callable[[int], object], *, seconds: float, size: int) -> Measurements:
    """Append for so long, each group after the one before."""
    took: list[float] = []
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        before = time.perf_counter()
        append(len(took))
        took.append((time.perf_counter() - before) * 1e6)
    rate = len(took) * size / (time.perf_counter() - started)
    took.sort()
    return {"bundles/s": rate, "p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}


def paced(append: Callable[[int], object], *, seconds: float) -> Measurements:
    """Append single bundles at fixed times."""
    took = on_schedule(append, PUSHES_PER_SECOND, seconds)
    return {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}


def at_once(append: Callable[[int], object], *, seconds: float) -> Measurements:
    """Append single bundles from many threads."""
    counts = [0] * THREADS
    started = time.perf_counter()

    def work(thread: int) -> None:
        while time.perf_counter() < started + seconds:
            append(thread)
            counts[thread] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"bundles/s": sum(counts) / (time.perf_counter() - started)}


def show_latency(report: Report, case: str, results: dict[str, list[Measurements]]) -> None:
    """The times of each, and how far those of Quiver are above the disk's."""
    for name, found in results.items():
        report.show_rounds(f"{case}/{name}/p50", found, "p50", "us", "synced")
        report.show_rounds(f"{case}/{name}/p99", found, "p99", "us", "synced")
    pairs = zip(results["quiver"], results["disk"], strict=True)
    above = [{"above": ours["p50"] - limit["p50"]} for ours, limit in pairs]
    report.show_rounds(f"{case}/above_disk", above, "above", "us", "synced")


def show_rates(report: Report, case: str, results: dict[str, list[Measurements]]) -> None:
    """The rates of each, and that of Quiver against each of the others."""
    for name, found in results.items():
        report.show_rounds(f"{case}/{name}", found, "bundles/s", "bundles/s", "synced")
    for name in list(results)[1:]:
        pair = (name, results[name])
        report.show_rounds(f"{case}/quiver", results["quiver"], "bundles/s", "bundles/s", "synced", pair)


def main() -> None:
    """Measure every case and print it."""
    found = parser(__doc__)
    found.add_argument("--seconds", type=float, default=0, help="of each store, case and round (default 1, quick 0.05)")
    options = read_options(found)
    seconds = options.seconds or (0.05 if options.quick else 1.0)
    with begun(options) as (report, base):
        names = ["quiver", "disk"]
        for peer in PEERS:
            if why := peer.missing():
                report.skipped(peer.name, why)
            else:
                names.append(peer.name)

        def compare(act: Callable[..., Measurements], size: int, of: Sequence[str]) -> dict[str, list[Measurements]]:
            candidates: dict[str, Candidate] = {name: partial(measure, name, base, act, size) for name in of}
            return run_interleaved(candidates, options.rounds)

        single = compare(partial(one_by_one, seconds=seconds, size=1), 1, names)
        show_latency(report, "embedded/1KiB/back_to_back", single)
        show_rates(report, "embedded/1KiB/1outstanding", single)
        show_latency(report, "embedded/1KiB/200per_s", compare(partial(paced, seconds=seconds), 1, names))
        grouped = compare(partial(one_by_one, seconds=seconds, size=GROUP), GROUP, names)
        show_rates(report, f"embedded/1KiB/{GROUP}outstanding", grouped)
        threads = compare(partial(at_once, seconds=seconds), 1, ["quiver"])
        report.show_rounds(
            f"embedded/1KiB/{THREADS}threads/quiver", threads["quiver"], "bundles/s", "bundles/s", "synced"
        )


if __name__ == "__main__":
    main()
