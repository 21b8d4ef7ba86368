"""Compaction as the engine does it: when, beside what, and what is on disk and in readers' hands before, during and after."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.jobs.commits import SealJob
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS, CompactJob, SlicedJob
from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.golden.parser import parse_segment
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings

ONLY_COMPACTION = topic_settings(segment_statistics="off")

COUNT = 400
PATH = "default/core_0/segments/0000000000000000.qseg"


def small_bundles(driver: EngineDriver, count: int = COUNT, first: int = 0) -> None:
    """A sealed segment of bundles so small that half of it is schemas and padding."""
    driver.push_numbered(first, count)
    driver.settle()
    driver.seal()


def dictionary_batch(number: int) -> pa.RecordBatch:
    words = [f"word-{number}", f"word-{number % 7}"]
    return pa.record_batch({"w": pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int16()), pa.array(words))})


def numbers_in(reader: SegmentReader) -> list[int]:
    return [reader.bundle(index)[0].column(0)[0].as_py() for index in range(reader.bundle_count)]


def started(driver: EngineDriver) -> CompactJob:
    """The compaction under way after its first slices, not finished."""
    driver.clock.advance(COMPACTION_AGE_NS)
    job = driver.engine.next_background()
    assert isinstance(job, CompactJob)
    while not driver.disk.exists(PATH + ".tmp"):
        next(job._steps)
    return job


# --- what it does ---------------------------------------------------------------------------------------------------------


def test_a_segment_of_small_bundles_is_rewritten_a_minute_after_it_was_sealed(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    before = (tmp_path / PATH).stat().st_size
    driver.run_for(COMPACTION_AGE_NS - SECOND_NS)
    assert (tmp_path / PATH).stat().st_size == before
    driver.run_for(10 * SECOND_NS)
    data = (tmp_path / PATH).read_bytes()
    assert len(data) < before * 0.75
    assert len(parse_segment(data).bundles) == COUNT
    figures = driver.engine.figures()
    assert (figures.compactions, figures.compacted_bytes_saved) == (1, before - len(data))
    assert [info.size_bytes for info in driver.engine.segments()] == [len(data)]
    assert figures.segment_bytes == len(data)
    assert sorted(path.name for path in (tmp_path / PATH).parent.iterdir()) == [Path(PATH).name]


def test_ids_sequences_and_contents_stay(disk: Disk) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    driver.engine.registrations.register("s", "earliest")
    small_bundles(driver)
    before = driver.read(0)
    driver.run_for(2 * COMPACTION_AGE_NS)
    after = driver.read(0)
    assert driver.engine.figures().compactions == 1
    for index in range(COUNT):
        assert after.bundle(index)[0].equals(before.bundle(index)[0])
        assert after.sequence(index) == before.sequence(index)
        assert after.ingestion_ts(index) == before.ingestion_ts(index)
    assert driver.claim_numbers("s") == list(range(COUNT))


def test_damage_that_comes_while_a_segment_is_rewritten_gets_no_valid_checksum(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    driver.engine.registrations.register("s", "earliest")
    small_bundles(driver)
    driver.engine.finish(started(driver))
    path, value = tmp_path / PATH, numbered_batch(COUNT - 1).column(0).buffers()[1].to_pybytes()
    at = path.read_bytes().index(value)  # it is copied last
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x2a")
    driver.run_for(COMPACTION_AGE_NS)
    assert driver.claim_numbers("s") == list(range(COUNT - 1))
    assert [(gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in driver.told] == [
        (COUNT - 1, 1, "damaged")
    ]


def test_many_dictionary_streams_become_one(disk: Disk) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    batches = [dictionary_batch(number) for number in range(60)]
    driver.push(*({3: batch} for batch in batches))
    driver.settle()
    driver.seal()
    assert len(driver.read(0).streams) > 50
    driver.run_for(2 * COMPACTION_AGE_NS)
    reader = driver.read(0)
    assert len(reader.streams) == 1
    for number, batch in enumerate(batches):
        assert reader.bundle(number)[3].schema == batch.schema
        assert reader.bundle(number)[3].to_pydict() == batch.to_pydict()


def test_large_bundles_are_left_alone(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    driver.push(*({0: numbered_batch(number, rows=2000)} for number in range(20)))
    driver.settle()
    driver.seal()
    before = (tmp_path / PATH).stat()
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert (tmp_path / PATH).stat().st_ino == before.st_ino
    assert driver.engine.figures().compactions == 0


def test_it_is_done_once_also_across_a_restart(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.run_for(2 * COMPACTION_AGE_NS)
    inode = (tmp_path / PATH).stat().st_ino
    driver.drain_and_close()
    driver.reopen()
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.figures().compactions == 0
    assert (tmp_path / PATH).stat().st_ino == inode
    assert numbers_in(driver.read(0)) == list(range(COUNT))


def test_it_can_be_switched_off(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, topic_settings(segment_compaction="off", segment_statistics="off"))
    small_bundles(driver)
    before = (tmp_path / PATH).stat().st_size
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert (tmp_path / PATH).stat().st_size == before


# --- beside other work ----------------------------------------------------------------------------------------------------


def test_it_waits_while_anything_else_is_to_be_done(disk: Disk) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(COUNT)
    commit = driver.engine.next_commit()
    assert commit is not None
    driver.clock.advance(COMPACTION_AGE_NS)
    first = driver.engine.next_background()
    assert first is not None
    assert not isinstance(first, SlicedJob), "progress and allocations come first"
    first.run()
    driver.engine.finish(first)
    driver.run_background()
    assert driver.engine.figures().compactions == 0, "not while a commit is out"
    commit.run()
    driver.engine.finish(commit)
    driver.run_for(SECOND_NS)
    assert driver.engine.figures().compactions == 1


def test_a_seal_comes_between_two_slices(disk: Disk) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.engine.finish(started(driver))
    driver.push_numbered(COUNT, 5)
    driver.engine.seal_now()
    driver.commit()
    kinds = []
    while (job := driver.engine.next_background()) is not None and driver.engine.figures().compactions == 0:
        kinds.append(type(job))
        job.run()
        driver.engine.finish(job)
    assert SealJob in kinds
    assert CompactJob in kinds
    assert kinds.index(SealJob) < kinds.index(CompactJob)
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1]
    assert numbers_in(driver.read(0)) == list(range(COUNT))


def test_a_segment_that_is_deleted_in_the_middle_stays_deleted(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    driver.engine.registrations.register("s", "earliest")
    small_bundles(driver)
    job = started(driver)
    driver.engine.finish(job)
    for segment_seq, indexes, *_ in driver.claim("s", "x", COUNT):
        driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    assert list((tmp_path / PATH).parent.iterdir()) == [], "neither the segment nor what was to replace it"
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert list((tmp_path / PATH).parent.iterdir()) == []
    assert driver.engine.figures().compactions == 0


def test_closing_in_the_middle_leaves_nothing_behind(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.engine.finish(started(driver))
    driver.drain_and_close()
    assert [path.name for path in (tmp_path / PATH).parent.iterdir()] == [Path(PATH).name]


# --- readers --------------------------------------------------------------------------------------------------------------


def test_readers_of_the_old_file_go_on_and_new_ones_get_the_new_file(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    descriptor, size_bytes = driver.engine.open_segment(0)
    mapping = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
    os.close(descriptor)
    old = SegmentReader(mapping)
    first_half = [old.bundle(index)[0].column(0)[0].as_py() for index in range(COUNT // 2)]
    driver.run_for(2 * COMPACTION_AGE_NS)
    second_half = [old.bundle(index)[0].column(0)[0].as_py() for index in range(COUNT // 2, COUNT)]
    assert first_half + second_half == list(range(COUNT))
    descriptor, size_bytes = driver.engine.open_segment(0)
    assert size_bytes == (tmp_path / PATH).stat().st_size == os.fstat(descriptor).st_size
    assert numbers_in(SegmentReader(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ))) == list(range(COUNT))
    os.close(descriptor)


def test_between_the_swap_and_its_news_a_reader_gets_the_size_of_the_file_that_it_gets(disk: Disk) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.clock.advance(COMPACTION_AGE_NS)
    job = driver.engine.next_background()
    assert isinstance(job, CompactJob)
    while not job.is_done:
        job.run()
    assert job.new_size_bytes is not None
    descriptor, size_bytes = driver.engine.open_segment(0)
    assert size_bytes == job.new_size_bytes == os.fstat(descriptor).st_size
    os.close(descriptor)


# --- what goes wrong --------------------------------------------------------------------------------------------------------


def test_damage_in_the_old_file_never_gets_a_new_checksum(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.engine.registrations.register("s", "earliest")
    driver.settle()
    path = tmp_path / PATH
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.figures().quarantined == 1
    left = driver.claim_numbers("s")
    assert len(left) == COUNT - 1
    assert set(left) < set(range(COUNT))


def test_no_room_for_the_new_file_leaves_the_old_one(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".qseg.tmp")
    driver.run_for(2 * COMPACTION_AGE_NS - SECOND_NS)
    assert driver.engine.failure is None
    assert driver.engine.figures().compactions == 0
    assert [path.name for path in (tmp_path / PATH).parent.iterdir()] == [Path(PATH).name]
    disk.heal()
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.figures().compactions == 1, "tried again when there may be room"


def test_below_the_low_water_mark_it_is_not_begun(disk: Disk) -> None:
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    driver.settings = topic_settings(retention=RetentionSettings(min_free_bytes=1 << 60))
    driver.drain_and_close()
    driver.reopen()
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.figures().compactions == 0


@pytest.mark.parametrize("operation", ["create", "write", "fsync", "read"])
def test_a_bad_disk_under_the_new_file_costs_the_compaction_only(tmp_path: Path, operation: str) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    disk.fail(operation, 1, errno.EIO, path_part=".qseg.tmp")
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.failure is None
    assert driver.engine.figures().compactions == 0
    assert numbers_in(driver.read(0)) == list(range(COUNT))


# --- crashes ----------------------------------------------------------------------------------------------------------------


def crash_points() -> int:
    """How many calls that change the disk a compaction makes."""
    disk = FaultyDisk(SimDisk())
    driver = EngineDriver(disk, ONLY_COMPACTION)
    small_bundles(driver)
    before = disk.mutating_count
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.figures().compactions == 1
    return disk.mutating_count - before


@pytest.mark.parametrize("mode", list(CrashMode), ids=lambda mode: mode.name.lower())
def test_a_crash_at_any_call_leaves_the_old_file_or_the_new_one(mode: CrashMode) -> None:
    points = crash_points()
    assert points > 5
    sizes = set()
    for point in range(1, points + 1):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        driver = EngineDriver(OrderMonitor(disk))
        small_bundles(driver)
        disk.crash_at(disk.mutating_count + point)
        with pytest.raises(SimulatedCrash):
            driver.run_for(2 * COMPACTION_AGE_NS)
        left = EngineDriver(inner.crash(mode, point))
        left.settle()
        assert numbers_in(left.read(0)) == list(range(COUNT))
        left.read(0).verify_checksum()
        assert left.engine.figures().quarantined == 0
        sizes.add(left.engine.segments()[0].size_bytes)
        assert not [name for name in left.disk.list_directory("default/core_0/segments") if name.endswith(".tmp")]
    assert len(sizes) == 2, "crashes before and after the swap"
