"""What seals and deletes have made durable when they are done, and at every call before: the disk after a power loss is looked at."""

from __future__ import annotations

import contextlib

from quiver_actors.store.disk.protocol import read_whole
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.removal import DeleteJob
from quiver_actors.store.wal.codec import decode_cursor
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

DIRECTORY = "default/core_0"
PATHS = EnginePaths(DIRECTORY)


def sealed(disk: SimDisk) -> tuple[EngineDriver, str]:
    """A store with one segment that a subscriber is owed, and its path."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 3)
    driver.seal()
    (info,) = driver.engine.segments()
    return driver, PATHS.segment(info.segment_seq)


def after_power_loss(driver: EngineDriver, disk: SimDisk) -> EngineDriver:
    """The store as it opens with nothing but what was durable."""
    driver.engine.close()
    driver = EngineDriver(disk.crash(CrashMode.DROP))
    driver.settle()
    return driver


def test_what_a_commit_acknowledges_is_there_under_its_name() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.flush_progress()
    driver.push_numbered(0, 3)
    driver.commit()
    assert driver.engine.group_commit.sequence_durable == 3
    assert after_power_loss(driver, disk).claim_numbers("s") == [0, 1, 2]


def test_progress_that_is_reported_durable_is_not_forgotten() -> None:
    disk = SimDisk()
    driver, _ = sealed(disk)
    (grant,) = driver.claim("s", "owner", 2)
    driver.resolve("s", "owner", grant.segment_seq, "ack", grant.indexes)
    driver.flush_progress()
    assert driver.engine.progress.durable > 0
    assert after_power_loss(driver, disk).claim_numbers("s") == [2]


def test_a_segment_has_its_name_for_good_when_its_seal_is_done() -> None:
    disk = SimDisk()
    driver, segment = sealed(disk)
    left = disk.crash(CrashMode.DROP)
    (info,) = driver.engine.segments()
    assert len(read_whole(left, segment, 1 << 30)) == info.size_bytes, "nothing of what was allocated ahead is left"
    names = [name for name in left.list_directory(PATHS.wal) if "spare" not in name]
    assert names == ["quiver.wal", "quiver.wal.cursor"]
    assert len(read_whole(left, PATHS.active, 1 << 30)) == 121, "an empty log, for whoever writes next"


def test_a_deleted_segment_does_not_come_back() -> None:
    disk = SimDisk()
    driver, segment = sealed(disk)
    (grant,) = driver.claim("s", "owner", 10)
    driver.resolve("s", "owner", grant.segment_seq, "ack", grant.indexes)
    driver.flush_progress()
    assert not disk.exists(segment)
    assert not disk.crash(CrashMode.DROP).exists(segment)


def test_the_newest_segment_goes_only_when_the_cursor_that_is_owed_is_durable() -> None:
    for calls in range(1, 20):
        inner = SimDisk()
        driver, segment = sealed(inner)
        disk = FaultyDisk(inner)
        newest = driver.engine.segments()[-1].segment_seq
        disk.crash_at(calls)
        job = DeleteJob(disk, PATHS, [newest], cursor_owed=12_345)
        with contextlib.suppress(SimulatedCrash):
            job.run()
        for mode in (CrashMode.KEEP, CrashMode.DROP):
            left = inner.crash(mode)
            assert left.exists(segment) or decode_cursor(read_whole(left, PATHS.cursor, 1000)) == 12_345
        if disk.mutating_count < calls:
            return
    raise AssertionError("the job does not end")
