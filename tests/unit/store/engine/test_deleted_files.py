"""Somebody deletes files of a running engine, or moves its directory: a loss is told at once, a fault that may pass is not a loss."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import NotStored, StorageUnavailable
from quiver_actors.store.disk.interposed import Call, Result
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.disk_account import LIST_INTERVAL_NS
from quiver_actors.store.engine.events import Faulted
from quiver_actors.store.engine.faults import FAULT_RETRY_NS_MAX
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.rescue import RescueJob
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS, SCRUB_AGE_NS
from quiver_actors.store.segment.layout import TRAILER
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

PATHS = EnginePaths("default/core_0")
COUNT = 3
"""Bundles of each segment."""


def stored(
    segments: int = 3, *, subscribers: tuple[str, ...] = ("ann",), disk: Disk | None = None, **settings: Any
) -> EngineDriver:
    driver = EngineDriver(disk or SimDisk(shows_descriptors=True), topic_settings(**settings))
    for subscriber in subscribers:
        driver.engine.registrations.register(subscriber, "earliest")
    for number in range(segments):
        driver.push_numbered(number * COUNT, COUNT)
        driver.seal()
    driver.flush_progress()
    return driver


def opened(driver: EngineDriver, segment_seq: int) -> bool:
    """Open a segment as a worker does before it delivers of it."""
    try:
        descriptor, _ = driver.engine.open_segment(segment_seq)
    except (StorageUnavailable, NotStored):
        return False
    os.close(descriptor)
    return True


def told(driver: EngineDriver, subscriber: str = "ann") -> list[tuple[int, int, int, str]]:
    driver.settle()
    return [
        (notice.segment_seq, notice.bundle_index_first, notice.bundle_count, notice.reason)
        for notice in driver.take_gaps(subscriber)
    ]


def unlink(driver: EngineDriver, segment_seq: int) -> None:
    driver.disk.unlink(PATHS.segment(segment_seq))


def test_a_segment_that_somebody_deleted_is_told_as_soon_as_it_cannot_be_opened() -> None:
    driver = stored()
    unlink(driver, 1)
    assert not opened(driver, 1), "a temporary error, until it is looked into"
    driver.settle()
    assert driver.claim_numbers("ann") == [0, 1, 2, 6, 7, 8]
    assert [(each.segment_seq, each.bundle_count, each.reason) for each in driver.told] == [(1, COUNT, "damaged")]
    assert driver.engine.figures().segments_deleted_by_others == 1
    assert driver.engine.figures().state == EngineState.READY
    assert driver.engine.storage.losses.by_reason["damaged"].bundles == COUNT
    with pytest.raises(NotStored):
        driver.engine.open_segment(1)


@pytest.mark.parametrize("left_bytes", [0, TRAILER.size - 1])
def test_a_segment_that_somebody_emptied_is_no_file_for_a_consumer_and_is_told(
    disk: Disk, tmp_path: Path, left_bytes: int
) -> None:
    """Regression: a consumer was sent the empty file, failed at it at each of its tries, and nobody looked at the file."""
    driver = stored(disk=disk)
    os.truncate(tmp_path / PATHS.segment(1), left_bytes)
    with pytest.raises(StorageUnavailable, match=f"segment 1 has {left_bytes} bytes"):
        driver.engine.open_segment(1)
    driver.settle()
    assert driver.claim_numbers("ann") == [0, 1, 2, 6, 7, 8]
    assert [(each.segment_seq, each.bundle_count, each.reason) for each in driver.told] == [(1, COUNT, "damaged")]


def test_what_the_engine_has_moved_to_quarantine_is_not_looked_for_as_if_somebody_had_deleted_it(
    disk: Disk, tmp_path: Path
) -> None:
    """Regression: a consumer that could not read the segment either, while it was rescued, had it looked for once more."""
    driver = stored(disk=disk)
    os.truncate(tmp_path / PATHS.segment(1), 100)
    driver.engine.check_segment(1)
    while not isinstance(job := driver.engine.next_background(), RescueJob):
        assert job is not None
        job.run()
        driver.events += driver.engine.finish(job)
    driver.engine.check_segment(1)
    job.run()
    driver.events += driver.engine.finish(job)
    driver.settle()
    assert driver.claim_numbers("ann") == [0, 1, 2, 6, 7, 8]
    assert [(each.segment_seq, each.bundle_count, each.reason) for each in driver.told] == [(1, COUNT, "damaged")]
    assert driver.engine.figures().segments_deleted_by_others == 0
    assert driver.engine.figures().quarantined == 1


def test_a_segment_that_nobody_opens_is_missed_by_the_next_listing() -> None:
    driver = stored(subscribers=("ann", "ben"))
    for segment_seq in (0, 2):
        unlink(driver, segment_seq)
    driver.run_for(LIST_INTERVAL_NS)
    assert driver.engine.disk_account.look_again()
    for subscriber in ("ann", "ben"):
        assert told(driver, subscriber) == [(0, 0, COUNT, "damaged")], "the next one comes behind the bundles before it"
        assert driver.claim_numbers(subscriber) == [3, 4, 5]
    assert driver.engine.figures().segments_deleted_by_others == 2


def test_whoever_was_done_with_it_loses_nothing_by_it_and_without_subscribers_it_is_counted() -> None:
    driver = stored(subscribers=("ann", "ben"))
    assert driver.claim_numbers("ann") == list(range(9))
    driver.resolve("ann", "owner", 1, "ack", range(COUNT))
    driver.flush_progress()
    unlink(driver, 1)
    assert not opened(driver, 1)
    assert told(driver) == []
    assert driver.claim_numbers("ben") == [0, 1, 2, 6, 7, 8]
    nobody = stored(subscribers=())
    unlink(nobody, 1)
    assert not opened(nobody, 1)
    nobody.settle()
    assert nobody.engine.storage.losses.by_reason["damaged"].bundles == COUNT
    nobody.engine.registrations.register("late", "earliest")
    assert nobody.claim_numbers("late") == [0, 1, 2, 6, 7, 8]


def move_root(disk: SimDisk) -> Callable[[], None]:
    disk.rename("default/core_0", "default/aside")
    return lambda: disk.rename("default/aside", "default/core_0")


def move_segments(disk: SimDisk) -> Callable[[], None]:
    disk.rename(PATHS.segments, "default/aside")
    return lambda: disk.rename("default/aside", PATHS.segments)


def cover_segments(disk: SimDisk) -> Callable[[], None]:
    """Another, empty directory stands there, as after something was unmounted."""
    disk.rename(PATHS.segments, "default/aside")
    disk.make_directory(PATHS.segments)

    def back() -> None:
        disk.rename(PATHS.segments, "default/empty")
        disk.rename("default/aside", PATHS.segments)

    return back


def cover_root(disk: SimDisk) -> Callable[[], None]:
    disk.rename("default/core_0", "default/aside")
    disk.make_directory(PATHS.segments)
    disk.create(PATHS.lock).close()

    def back() -> None:
        disk.rename("default/core_0", "default/empty")
        disk.rename("default/aside", "default/core_0")

    return back


@pytest.mark.parametrize("move", [move_root, move_segments, cover_segments, cover_root])
@pytest.mark.parametrize("is_opened", [True, False], ids=["opened", "listed"])
def test_a_directory_that_was_moved_or_unmounted_is_a_fault_and_no_loss(
    move: Callable[[SimDisk], Callable[[], None]], is_opened: bool
) -> None:
    driver = stored()
    assert isinstance(driver.disk, SimDisk)
    bring_back = move(driver.disk)
    if is_opened:
        assert not opened(driver, 1)
    else:
        driver.run_for(LIST_INTERVAL_NS)
        driver.engine.disk_account.look_again()
    for _ in range(3):
        driver.run_for(SECOND_NS)
        assert told(driver) == []
        assert driver.engine.figures().state == EngineState.DEGRADED
    faults = [event for event in driver.events if isinstance(event, Faulted)]
    assert len(faults) == 1, "said once"
    bring_back()
    driver.run_for(FAULT_RETRY_NS_MAX)
    assert driver.engine.figures().state == EngineState.READY, "it was looked at again by itself"
    assert driver.events.count(Faulted("")) == 1
    assert opened(driver, 1)
    assert driver.claim_numbers("ann") == list(range(9))
    assert driver.told == []
    assert driver.engine.figures().segments_deleted_by_others == 0


def test_an_error_that_passes_is_no_loss_and_is_shown_while_it_lasts() -> None:
    inner = stored().disk
    assert isinstance(inner, SimDisk)
    disk = FaultyDisk(inner.copy())
    driver = EngineDriver(disk)
    driver.settle()
    disk.fail("open_read", 1, errno.EIO, then=["open_read"])
    with pytest.raises(StorageUnavailable, match="being checked"):
        driver.engine.open_segment(1)
    driver.run_for(SECOND_NS)
    assert driver.engine.figures().state == EngineState.DEGRADED
    disk.heal()
    driver.run_for(FAULT_RETRY_NS_MAX)
    assert driver.engine.figures().state == EngineState.READY
    assert driver.claim_numbers("ann") == list(range(9))
    assert driver.told == []


@pytest.mark.parametrize("wait_ns", [COMPACTION_AGE_NS, SCRUB_AGE_NS], ids=["compaction", "scrub"])
def test_care_that_finds_no_file_tells_the_loss_and_the_engine_goes_on(wait_ns: int) -> None:
    driver = stored(segment_compaction="auto" if wait_ns == COMPACTION_AGE_NS else "off")
    unlink(driver, 1)
    driver.run_for(wait_ns + SECOND_NS)
    assert driver.engine.state is EngineState.READY
    assert driver.claim_numbers("ann") == [0, 1, 2, 6, 7, 8]
    assert [each.segment_seq for each in driver.told] == [1]


class Deleting(FaultyDisk):
    """Somebody deletes a segment at the n-th call that opens or looks for one."""

    countdown = -1

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        if call.path.endswith(".qseg") and call.kind in ("open_read", "exists", "rename", "file_id"):
            self.countdown -= 1
            if self.countdown == 0:
                self.inner.unlink(PATHS.segment(1))
        return super().around(call, proceed)


@pytest.mark.parametrize("at", range(1, 11))
def test_a_damaged_segment_that_is_deleted_while_it_is_checked_and_rescued_is_told_once(at: int) -> None:
    inner = stored().disk
    assert isinstance(inner, SimDisk)
    copy = inner.copy()
    file = copy._inode("open", PATHS.segment(1))
    file.read_only = False
    written = copy.open_write(PATHS.segment(1))
    written.write([b"\xff" * 40], written.size() // 2)
    written.fsync()
    written.close()
    disk = Deleting(copy)
    driver = EngineDriver(disk)
    disk.countdown = at
    driver.run_for(SECOND_NS)
    opened(driver, 1)
    driver.run_for(SECOND_NS)
    numbers = driver.claim_numbers("ann")
    assert driver.engine.state is EngineState.READY
    lost = [each for each in driver.told if each.segment_seq == 1]
    assert {each.reason for each in driver.told} <= {"damaged"}
    assert len(numbers) + sum(each.bundle_count for each in lost) == 9
    assert {0, 1, 2, 6, 7, 8} <= set(numbers)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_loss_is_told_once_whatever_crashes_behind_it(mode: CrashMode) -> None:
    driver = stored()
    assert isinstance(driver.disk, SimDisk)
    unlink(driver, 1)
    assert not opened(driver, 1)
    disks = [driver.disk.copy()]
    while (job := driver.engine.next_background()) is not None:
        job.run()
        driver.engine.finish(job)
        disks.append(driver.disk.copy())
    assert len(disks) > 3
    for seed, disk in enumerate(disks):
        after = EngineDriver(disk.crash(mode, seed))
        after.settle()
        numbers = after.claim_numbers("ann")
        if 3 in numbers:  # the deletion itself was lost with the power
            assert numbers == list(range(9))
            assert after.told == []
        else:
            assert numbers == [0, 1, 2, 6, 7, 8]
            assert [each.segment_seq for each in after.told] == [1]
