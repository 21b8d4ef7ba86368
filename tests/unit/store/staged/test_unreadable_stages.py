"""Prepared stages that the disk does not give back: an error decides nothing, they are kept and read again."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from quiver_actors.errors import DiskError, StageUnreadable, TransactionLost
from quiver_actors.store.staged.jobs import JournalJob
from quiver_actors.store.staged.states import StageState
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.stage_driver import StageDriver
from tests.unit.store.staged.test_stages import SMALL, STAGED


def prepared() -> tuple[SimDisk, int]:
    """A disk with a prepared stage of two bundles, and its number."""
    disk = SimDisk()
    number = StageDriver(disk, SMALL).prepared(10, 11)
    return disk.crash(CrashMode.DROP), number


def kept(disk: FaultyDisk | SimDisk) -> list[str]:
    assert not disk.list_directory("default/core_0/quarantine")
    return disk.list_directory(STAGED)


def test_one_error_at_open_decides_nothing() -> None:
    inner, number = prepared()
    (whole,) = StageDriver(inner.copy(), SMALL).engine.stages
    for nth in range(1, 100):
        disk = FaultyDisk(inner.copy())
        fault = disk.fail("read", nth, errno.EIO, path_part=".stage")
        driver = StageDriver(disk, SMALL)
        if not fault.hits:
            break
        (stage,) = driver.engine.stages
        assert stage.state is StageState.PREPARED
        figures = (stage.bundle_count, stage.row_count, stage.size_bytes, stage.disk_bytes, stage.part_count)
        assert figures == (2, 10, whole.size_bytes, whole.disk_bytes, 1)
        assert kept(disk) == kept(inner)
        with pytest.raises(StageUnreadable, match="ask again"):
            driver.publish(number)
        driver.settle()
        driver.publish(number)
        assert driver.stored() == [10, 11]
    assert nth > 1


def test_what_stays_unreadable_is_kept_until_it_can_be_read() -> None:
    inner, number = prepared()
    disk = FaultyDisk(inner)
    disk.fail("read", 1, errno.EIO, then=["read"], path_part=".stage")
    driver = StageDriver(disk, SMALL)
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(StageUnreadable):
                driver.publish(number)
            driver.settle()
        driver.push_numbered(1)
        driver.settle()
        driver.restart()
    assert driver.stored() == [1, 1, 1], "the others go on"
    driver.engine.close()
    assert kept(disk) == kept(inner)
    healed = StageDriver(inner, SMALL)
    healed.publish(number)
    assert healed.stored() == [1, 1, 1, 10, 11]


def test_what_cannot_be_read_can_be_aborted() -> None:
    inner, number = prepared()
    disk = FaultyDisk(inner)
    disk.fail("read", 1, errno.EIO, then=["read"], path_part=".stage")
    driver = StageDriver(disk, SMALL)
    driver.drop(number)
    assert kept(disk) == []
    with pytest.raises(TransactionLost):
        driver.publish(number)


def test_damage_that_shows_when_it_is_read_again_is_for_the_next_start() -> None:
    inner, number = prepared()
    disk = FaultyDisk(inner)
    disk.fail("read", 1, errno.EIO, path_part=".stage")
    driver = StageDriver(disk, SMALL)
    (path,) = [path for path in inner.contents() if path.endswith(".stage")]
    file = inner.open_write(path)
    file.write([b"\xff"], len(inner.contents()[path]) // 2)
    file.fsync()
    for _ in range(2):
        with pytest.raises(StageUnreadable):
            driver.publish(number)
        driver.settle()
    with pytest.raises(StageUnreadable, match=r"checksum|bundles up to"):
        driver.publish(number)
    driver.restart()
    with pytest.raises(TransactionLost, match="damaged"):
        driver.publish(number)
    assert path.rpartition("/")[2] in str(disk.list_directory("default/core_0/quarantine"))


@pytest.mark.parametrize(
    ("damaged", "delivered", "lost"),
    [("0001.stage", [1, 20, 22], [(2, 0, 1)]), (".prepared", [1], [(1, 0, 0), (2, 0, 0), (3, 0, 0)])],
)
def test_subscribers_are_told_what_damage_has_taken_from_a_publish(
    damaged: str, delivered: list[int], lost: list[tuple[int, int, int]]
) -> None:
    """The other parts are published, even if the start that found the damage is interrupted anywhere."""
    left = _cut_off_publish(damaged)
    for point in range(1, 10_000):
        inner = left.copy()
        disk = FaultyDisk(inner)
        disk.crash_at(point)
        with suppress(SimulatedCrash):
            StageDriver(disk, SMALL)
        again = StageDriver(inner.crash(CrashMode.DROP), SMALL)
        again.settle()
        assert again.claim_numbers("ann") == delivered, f"cut off at call {point}"
        told = [(notice.segment_seq, notice.bundle_index_first, notice.bundle_count) for notice in again.told]
        assert told == lost, f"cut off at call {point}"
        if disk.mutating_count < point:
            return


def _cut_off_publish(damaged: str) -> SimDisk:
    """A segment, and a publish of a prepared stage of three parts that has its numbers, of which a file is damaged."""
    disk = SimDisk()
    driver = StageDriver(disk, SMALL)
    driver.engine.registrations.register("ann", "earliest")
    driver.push_numbered(1)
    driver.settle()
    driver.seal()
    driver.flush_progress()
    number = driver.begin()
    driver.push_staged(number, 20, 21, 22, rows=1500)
    driver.prepare(number)
    driver.engine.stages.publish("t", driver.engine.incarnation, [number])
    while (job := driver.engine.next_background()) is not None:
        job.run()
        driver.engine.finish(job)
        if isinstance(job, JournalJob):
            break
    (path,) = [path for path in disk.contents() if path.endswith(damaged)]
    file = disk.open_write(path)
    file.write([b"\xff"], len(disk.contents()[path]) // 2)
    file.fsync()
    return disk.crash(CrashMode.DROP)


def test_a_publish_that_was_cut_off_waits_for_the_next_start() -> None:
    inner, number = prepared()
    driver = StageDriver(inner, SMALL)
    driver.engine.stages.publish("t", driver.engine.incarnation, [number])
    while (job := driver.engine.next_background()) is not None:
        job.run()
        driver.engine.finish(job)
        if isinstance(job, JournalJob):
            break
    disk = FaultyDisk(inner.crash(CrashMode.DROP))
    disk.fail("read", 1, errno.EIO, path_part=".stage")
    with pytest.raises(DiskError):
        StageDriver(disk, SMALL)
    assert kept(disk)
    assert StageDriver(disk, SMALL).stored() == [10, 11]
