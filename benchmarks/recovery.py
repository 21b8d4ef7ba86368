"""How fast does a store open after a crash?

Replay: an engine's log files that nobody sealed, in bundles of 1 KiB, 64 KiB and 1 MiB, copied for each round and dropped from the page
cache; `Engine.open` reads them, checks every CRC, and seals them in place. Limit in the same run, interleaved: another such copy only read,
in 1 MiB chunks.

Open: a clean directory of 10, 1,000 and 10,000 sealed segments. Seconds, and bytes read of each segment, counted at the disk seam.

Restart: a real node with one worker on 100 GiB of sealed segments that its subscriber has not read; seconds from starting the process to
`ready`, and to the oldest bundle in the subscriber's hands; against the same with one segment. The segments are sparse copies of a real
one (benchmarks/scale.py): nothing of the bundles themselves is read at a start.

    python -m benchmarks.recovery [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Candidate,
    Measurements,
    Report,
    arguments,
    begun,
    run_interleaved,
    running_node,
)
from benchmarks.scale import BEHIND, CONFIG, READY_SECONDS, SPARSE_SEGMENT_BYTES, Size, make_store
from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config import SegmentSettings, TopicSettings, WalSettings
from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine import Engine
from tests.support.engine_driver import EngineDriver

KIB, MIB = 1 << 10, 1 << 20
BUNDLE_BYTES = (KIB, 64 * KIB, MIB)
SEGMENT_COUNTS = (10, 1_000, 10_000)
CHUNK_BYTES = MIB
DIRECTORY = "default/core_0"
BALLAST_NAME = "quiver.ballast"
_GROUP_BYTES = 8 * MIB


def settings_for(total_bytes: int) -> TopicSettings:
    """Logs of 64 MiB, or a quarter of all if that is less."""
    target_bytes = min(64 * MIB, total_bytes // 4)
    return TopicSettings(
        segment=SegmentSettings(target_size_bytes=target_bytes), wal=WalSettings(max_rotated_files=1_000)
    )


class CountingDisk(InterposedDisk):
    """Counts the bytes that are read of segments."""

    segment_bytes = 0

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        result = proceed()
        if call.kind == "read" and call.path.endswith(".qseg") and isinstance(result, bytes):
            self.segment_bytes += len(result)
        return result


# --- replay --------------------------------------------------------------------------------------------------------------


def write_logs(root: str, bundle_bytes: int, total_bytes: int) -> None:
    """Synced logs that hold `total_bytes` in such bundles; none is sealed, and nobody stops cleanly."""
    driver = EngineDriver(PosixDisk(root), settings_for(total_bytes), DIRECTORY)
    random = np.random.default_rng(bundle_bytes)
    bundle = {0: pa.record_batch({"value": pa.array(random.integers(0, 1 << 60, bundle_bytes // 8))})}
    per_push = max(1, min(4096, _GROUP_BYTES // bundle_bytes))
    for _ in range(max(1, total_bytes // (bundle_bytes * per_push))):
        span, push, schemas = driver.layout([bundle] * per_push)
        while not driver.engine.intake.can_stage(len(span)):
            _allocate(driver)
        driver.engine.intake.stage(span, push, schemas)
        driver.engine.write()
        driver.commit()


def _allocate(driver: EngineDriver) -> None:
    """One background job: while a log is missing, allocation comes before sealing."""
    job = driver.engine.next_background()
    assert job is not None, "nothing to wait for"
    job.run()
    driver.engine.finish(job)


def replay(template: str, base: str) -> Measurements:
    """Open a copy of the template once."""
    root = os.path.join(base, "replayed")
    shutil.copytree(template, root)
    try:
        size = drop_from_cache(root)
        started = time.perf_counter()
        engine = Engine.open(PosixDisk(root), DIRECTORY, TopicSettings(), 0, SystemClock())
        took = time.perf_counter() - started
        bundles = sum(info.bundle_count for info in engine.segments())
        engine.close()
    finally:
        shutil.rmtree(root)
    return {"GB/s": size / took / 1e9, "bundles/s": bundles / took}


def read_only(template: str, base: str) -> Measurements:
    """Read another copy, which takes as much new memory as the one that is replayed, and do nothing with it."""
    root = os.path.join(base, "read")
    shutil.copytree(template, root)
    try:
        size = drop_from_cache(root)
        started = time.perf_counter()
        for path in files_below(root):
            with open(path, "rb", buffering=0) as file:
                while file.read(CHUNK_BYTES):
                    pass
        return {"GB/s": size / (time.perf_counter() - started) / 1e9}
    finally:
        shutil.rmtree(root)


def files_below(root: str) -> Iterator[str]:
    """All but the ballast, which nobody reads."""
    for directory, _, names in os.walk(root):
        yield from (os.path.join(directory, name) for name in sorted(names) if name != BALLAST_NAME)


def drop_from_cache(root: str) -> int:
    """Make the next reads go to the disk. Returns the bytes of all files."""
    size = 0
    for path in files_below(root):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return size


def measure_replay(base: str, bundle_bytes: int, total_bytes: int, rounds: int, report: Report) -> None:
    template = tempfile.mkdtemp(prefix="logs-", dir=base)
    write_logs(template, bundle_bytes, total_bytes)
    candidates: dict[str, Candidate] = {
        "read": partial(read_only, template, base),
        "replay": partial(replay, template, base),
    }
    results = run_interleaved(candidates, rounds)
    shutil.rmtree(template)
    name = f"{bundle_bytes // MIB}MiB" if bundle_bytes >= MIB else f"{bundle_bytes // KIB}KiB"
    read, replayed = results["read"], results["replay"]
    report.show_rounds(f"read/{name}", read, "GB/s", "GB/s")
    report.show_rounds(f"replay/{name}", replayed, "GB/s", "GB/s", "synced", (f"read/{name}", read))
    report.show_rounds(f"replay/{name}/bundles", replayed, "bundles/s", "bundles/s", "synced")


# --- open ----------------------------------------------------------------------------------------------------------------


def write_segments(root: str, count: int) -> None:
    """One sealed segment, and copies of it under the next numbers: an open reads their ends alone."""
    driver = EngineDriver(PosixDisk(root), TopicSettings(), DIRECTORY)
    driver.push_numbered(0, 64)
    driver.drain_and_close()
    directory = os.path.join(root, DIRECTORY, "segments")
    (first,) = os.listdir(directory)
    for number in range(1, count):
        shutil.copyfile(os.path.join(directory, first), os.path.join(directory, f"{number:016}.qseg"))


def open_once(root: str, count: int) -> Measurements:
    disk = CountingDisk(PosixDisk(root))
    started = time.perf_counter()
    engine = Engine.open(disk, DIRECTORY, TopicSettings(), 0, SystemClock())
    took = time.perf_counter() - started
    assert len(engine.segments()) == count
    engine.close()
    return {"s": took, "B/segment": disk.segment_bytes / count}


def measure_open(base: str, count: int, rounds: int, report: Report) -> None:
    root = tempfile.mkdtemp(prefix="segments-", dir=base)
    write_segments(root, count)
    results = run_interleaved({"open": partial(open_once, root, count)}, rounds)["open"]
    shutil.rmtree(root)
    report.show_rounds(f"open/{count}segments", results, "s", "s", "synced")
    report.show_rounds(f"open/{count}segments/read", results, "B/segment", "B/segment")


# --- restart -------------------------------------------------------------------------------------------------------------


def restart(base: str, data_dir: str) -> Measurements:
    """A node on that directory: seconds until it is ready, and until its subscriber has the oldest bundle."""
    started = time.perf_counter()
    with running_node(base, CONFIG, data_dir=data_dir, ready_seconds=READY_SECONDS) as run_dir:
        ready = time.perf_counter() - started
        with quiver_actors.connect(run_dir) as client, client.subscribe(BEHIND, prefetch=1) as subscription:
            delivery = subscription.get(READY_SECONDS)
            assert delivery is not None
            assert delivery.row_count
            return {"ready": ready, "first": time.perf_counter() - started}


def measure_restart(base: str, backlog_bytes: int, rounds: int, report: Report) -> None:
    stores = {"one segment": 1, "backlog": backlog_bytes // SPARSE_SEGMENT_BYTES}
    found = {name: make_store(base, Size(segments=count, is_sparse=True)) for name, count in stores.items()}
    candidates = {name: partial(restart, base, data_dir) for name, data_dir in found.items()}
    results = run_interleaved(candidates, rounds, warm_bytes=MIB)
    for data_dir in found.values():
        shutil.rmtree(os.path.dirname(data_dir))
    small, large = results["one segment"], results["backlog"]
    for key in ("ready", "first"):
        report.show_rounds(f"restart/1segment/{key}", small, key, "s", "synced")
        name = f"restart/{backlog_bytes >> 30}GiB/{key}"
        report.show_rounds(name, large, key, "s", "synced", ("1segment", small))


def main() -> None:
    options = arguments(__doc__)
    total_bytes = (32 if options.quick else 1024) * MIB
    with begun(options) as (report, base):
        for bundle_bytes in BUNDLE_BYTES:
            measure_replay(base, bundle_bytes, total_bytes, options.rounds, report)
        for count in SEGMENT_COUNTS[: 2 if options.quick else 3]:
            measure_open(base, count, options.rounds, report)
        measure_restart(base, (1 if options.quick else 100) << 30, options.rounds, report)


if __name__ == "__main__":
    main()
