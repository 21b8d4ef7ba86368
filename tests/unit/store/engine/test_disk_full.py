"""A full disk stops ingest, and only that; it goes on by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.config import RetentionSettings, TopicSettings
from quiver_actors.base.units import KIB, MIB, SECOND_NS
from quiver_actors.errors import StorageFull
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.files.ballast import BALLAST_BYTES
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

BALLAST = "default/core_0/quiver.ballast"
PROGRESS = "default/core_0/quiver.sub.s"
FILLER = "filler"
CAPACITY_BYTES = 16 * MIB


def small_settings(min_free_bytes: int = 0) -> TopicSettings:
    return topic_settings(
        segment_target_size_bytes=64 * KIB, retention=RetentionSettings(min_free_bytes=min_free_bytes)
    )


def small_disk(no_space_errno: int = errno.ENOSPC) -> SimDisk:
    return SimDisk(capacity_bytes=CAPACITY_BYTES, no_space_errno=no_space_errno)


def fill(disk: Disk, left_bytes: int = 0) -> None:
    """Something else on the disk takes all but so many bytes."""
    file = disk.create(FILLER)
    file.allocate(disk.free_bytes(".") - left_bytes)
    file.close()


def free(disk: Disk) -> None:
    disk.unlink(FILLER)


def store(disk: Disk, settings: TopicSettings | None = None) -> EngineDriver:
    """A subscriber and a sealed segment of ten bundles, all progress flushed."""
    driver = EngineDriver(disk, settings or small_settings())
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 10)
    driver.settle()
    driver.seal()
    driver.flush_progress()
    return driver


def acknowledge(driver: EngineDriver, bundles: int = 1000) -> list[int]:
    numbers = []
    for segment_seq, indexes, *_ in driver.claim("s", "x", bundles):
        reader = driver.read(segment_seq)
        numbers += [reader.bundle(index)[0].column(0)[0].as_py() for index in indexes]
        assert driver.resolve("s", "x", segment_seq, "ack", indexes, 0) == []
    return numbers


def push_until_full(driver: EngineDriver, first: int = 10) -> int:
    """Push until no push is taken any more; returns the first number that was not."""
    number = first
    while True:
        memory, push, schemas = driver.layout([{0: big_batch(number)}])
        for _ in range(3):
            if driver.engine.intake.can_stage(len(memory)):
                break
            driver.settle()
        else:
            return number
        driver.engine.intake.stage(memory, push, schemas)
        driver.engine.write()
        number += 1


def big_batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number] * 2000, pa.int64())})


# --- ingest waits and resumes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("no_space_errno", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_everything_taken_is_kept_and_ingest_resumes_when_consumers_make_room(no_space_errno: int) -> None:
    disk = small_disk(no_space_errno)
    driver = store(OrderMonitor(disk))
    driver.engine.seal_now()
    end = push_until_full(driver)
    assert end > 20
    assert driver.engine.state is EngineState.FULL
    assert isinstance(driver.engine.intake.refusal(), StorageFull)
    driver.seal()
    assert acknowledge(driver) == list(range(end))
    driver.flush_progress()
    assert driver.engine.segments() == [], "deletes go through"
    driver.run_for(SECOND_NS)
    assert driver.engine.state is EngineState.READY
    driver.push_numbered(end)
    driver.settle()
    driver.seal()
    assert acknowledge(driver) == [end]


def test_ingest_resumes_when_somebody_else_makes_room() -> None:
    disk = small_disk()
    driver = store(disk)
    fill(disk)
    end = push_until_full(driver)
    assert driver.engine.state is EngineState.FULL
    free(disk)
    driver.run_for(SECOND_NS)
    assert driver.engine.state is EngineState.READY
    driver.push_numbered(end)
    driver.settle()
    assert driver.engine.group_commit.sequence_durable == end + 1


def test_no_log_is_begun_below_the_low_water_mark() -> None:
    disk = small_disk()
    driver = store(disk, small_settings(min_free_bytes=4 * MIB))
    end = push_until_full(driver)
    assert end > 20
    assert driver.engine.state is EngineState.FULL
    assert disk.free_bytes(".") >= 4 * MIB
    assert driver.engine.failure is None
    driver.seal()
    assert acknowledge(driver) == list(range(end))
    driver.flush_progress()
    driver.run_for(SECOND_NS)
    assert driver.engine.state is EngineState.READY


def test_the_low_water_mark_on_a_real_disk(disk: Disk) -> None:
    driver = EngineDriver(disk, small_settings(min_free_bytes=1 << 60))
    memory, _, _ = driver.layout([{0: big_batch(0)}])
    assert not driver.engine.intake.can_stage(len(memory))
    driver.settle()
    assert driver.engine.state is EngineState.FULL
    assert not [name for name in disk.list_directory("default/core_0/wal") if "spare" in name]


# --- the ballast ------------------------------------------------------------------------------------------------------------


def test_it_is_made_at_the_start_and_kept_across_restarts(disk: Disk, tmp_path: Path) -> None:
    driver = store(disk)
    assert disk.allocated_bytes(BALLAST) >= BALLAST_BYTES
    inode = (tmp_path / BALLAST).stat().st_ino
    driver.drain_and_close()
    driver.reopen()
    driver.settle()
    assert (tmp_path / BALLAST).stat().st_ino == inode


def test_acknowledgements_become_durable_with_no_byte_free() -> None:
    disk = small_disk()
    driver = store(OrderMonitor(disk), small_settings(min_free_bytes=64 * KIB))
    fill(disk)
    acknowledge(driver, 5)
    ticket = driver.engine.progress.flush()
    driver.settle()
    assert driver.engine.progress.durable >= ticket
    assert not disk.exists(BALLAST), "its room was needed"
    driver.engine._lock.release()
    again = EngineDriver(disk, small_settings())
    again.settle()
    assert acknowledge(again) == [5, 6, 7, 8, 9]


def test_it_is_made_again_when_there_is_room() -> None:
    disk = small_disk()
    driver = store(disk, small_settings(min_free_bytes=64 * KIB))
    fill(disk)
    acknowledge(driver, 5)
    driver.flush_progress()
    driver.run_for(5 * SECOND_NS)
    assert not disk.exists(BALLAST)
    free(disk)
    driver.run_for(2 * SECOND_NS)
    assert disk.allocated_bytes(BALLAST) >= BALLAST_BYTES


def test_it_is_made_again_only_above_the_low_water_mark() -> None:
    disk = small_disk()
    driver = store(disk, small_settings(min_free_bytes=2 * MIB))
    driver.drain_and_close()
    disk.unlink(BALLAST)
    driver.reopen()
    fill(disk, left_bytes=2 * MIB + BALLAST_BYTES // 2)
    driver.run_for(3 * SECOND_NS)
    assert not disk.exists(BALLAST)
    free(disk)
    driver.run_for(2 * SECOND_NS)
    assert disk.exists(BALLAST)


def test_a_seal_whose_tail_needs_more_room_goes_through() -> None:
    disk = small_disk()
    driver = EngineDriver(OrderMonitor(disk), small_settings())
    driver.engine.registrations.register("s", "earliest")
    driver.settle()
    bundles = [{0: pa.record_batch({f"{number}_{'x' * 400}": pa.array([number])})} for number in range(100)]
    memory, push, schemas = driver.layout(bundles)
    assert not driver.engine.intake.can_stage(len(memory))
    driver.settle()
    driver.engine.intake.stage(memory, push, schemas)
    driver.engine.write()
    driver.commit()
    capacity = disk.allocated_bytes("default/core_0/wal/quiver.wal")
    fill(disk)
    driver.seal()
    assert driver.engine.failure is None
    assert [info.bundle_count for info in driver.engine.segments()] == [100]
    assert driver.engine.segments()[0].size_bytes > capacity, "or this tests nothing"
    driver.read(0).verify_checksum()


def test_a_node_starts_on_a_full_disk() -> None:
    disk = small_disk()
    driver = store(disk)
    driver.push_numbered(10, 3)
    driver.commit()
    driver.engine._lock.release()
    fill(disk)
    again = EngineDriver(OrderMonitor(disk), small_settings())
    again.settle()
    assert acknowledge(again) == list(range(13))
    again.flush_progress()
    assert again.engine.segments() == []


# --- where there is no room --------------------------------------------------------------------------------------------------


def faulty(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(PosixDisk(str(tmp_path)))


def test_a_progress_file_whose_sync_found_no_room_is_written_anew(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    driver = store(OrderMonitor(disk))
    disk.fail("fdatasync", 1, errno.ENOSPC, path_part="quiver.sub.s")
    acknowledge(driver, 5)
    ticket = driver.engine.progress.flush()
    driver.settle()
    assert driver.engine.failure is None
    assert driver.engine.progress.durable >= ticket


def test_a_log_whose_sync_found_no_room_is_not_synced_again(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    driver = store(OrderMonitor(disk))
    driver.push_numbered(10)
    disk.fail("fdatasync", 1, errno.ENOSPC, path_part="/wal/")
    driver.settle()
    assert driver.engine.state is EngineState.FAILED


def test_a_segment_is_whole_although_its_cursor_finds_no_room(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    driver = store(OrderMonitor(disk))
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part="wal.cursor")
    driver.push_numbered(10, 5)
    driver.settle()
    driver.seal()
    assert driver.engine.failure is None
    assert [info.bundle_count for info in driver.engine.segments()] == [10, 5]
    disk.heal()
    driver.push_numbered(15)
    driver.settle()
    driver.seal()
    driver.engine._lock.release()
    driver.reopen()
    driver.settle()
    assert acknowledge(driver) == list(range(16))


def test_room_that_is_never_found_delays_progress_and_nothing_fails(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    driver = store(OrderMonitor(disk))
    disk.fail("create", 1, errno.ENOSPC, then=["create", "write", "allocate"], path_part="core_0/quiver.")
    acknowledge(driver, 5)
    ticket = driver.engine.progress.flush()
    driver.run_for(SECOND_NS)
    assert driver.engine.failure is None
    assert driver.engine.progress.durable < ticket
    disk.heal()
    driver.run_for(SECOND_NS)
    assert driver.engine.progress.durable >= ticket
    assert disk.exists(PROGRESS)


def test_near_the_cap_it_gives_way_to_who_waits_for_room() -> None:
    disk = SimDisk()
    driver = store(disk)
    before = driver.engine.storage.disk_bytes
    driver.engine.storage.releases_spare = True
    driver.settle()
    assert not disk.exists(BALLAST)
    assert driver.engine.storage.disk_bytes <= before - BALLAST_BYTES
    driver.engine.storage.releases_spare = False
    driver.run_for(2 * SECOND_NS)
    assert disk.allocated_bytes(BALLAST) == BALLAST_BYTES
