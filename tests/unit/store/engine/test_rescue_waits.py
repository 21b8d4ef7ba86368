"""Rescues that wait, that are cut off by a crash, and that meet progress in the middle."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.events import Sealed
from quiver_actors.store.jobs.rescue import RescueJob
from quiver_actors.store.wal.layout import HEADER_BYTES
from quiver_actors.store.wal.reader import LogReader
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.store.engine.damaged_store import (
    COUNT,
    ENGINE,
    closed_store,
    entry_offsets,
    flip,
    gaps,
    reopened,
    segment,
)

# --- in the middle of things ------------------------------------------------------------------------------------------------


def test_without_room_for_a_rescue_later_segments_are_delivered_first(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    assert driver.engine.state is EngineState.READY
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    driver.flush_progress()
    driver.run_for(25 * SECOND_NS)
    assert path.exists(), "the damaged file stays where it is until it can be rebuilt"
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT)]
    assert gaps(driver) == [(0, 3, 1, "damaged")]
    assert [event.segment_seq for event in driver.events if isinstance(event, Sealed)] == [1, 0]


@pytest.mark.parametrize("says_its_count", [True, False])
def test_what_waits_for_room_to_be_rescued_is_owed(tmp_path: Path, says_its_count: bool) -> None:
    """A consumer that asked after a lost connection was told that nothing is owed of it, and then got it again."""
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    if says_its_count:
        flip(path, entry_offsets(path)[3] + 200)
    else:
        path.chmod(0o600)
        os.truncate(path, path.stat().st_size - 30)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    driver.resolve("s", "owner", 1, "ack", [0, 1])
    driver.flush_progress()
    # Who reads ranges must not take it for gone.
    assert (0 in driver.engine.unlisted_segments()) == (not says_its_count)
    counts = driver.engine.owed.pending("s", (0, 2), (0, 3))
    assert (counts.in_range, counts.drained) == (1, False)
    assert counts.unsealed == (COUNT if says_its_count else 1)
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    counts = driver.engine.owed.pending("s", (0, 2), (0, 3))
    assert (counts.in_range, counts.drained, counts.unsealed) == (1, False, 0)
    assert 0 not in driver.engine.unlisted_segments()
    driver.claim("s", "owner", COUNT)
    driver.resolve("s", "owner", 0, "ack", [0, 1, 2, *range(3 + says_its_count, COUNT)])
    driver.take_gaps("s")
    assert driver.engine.owed.pending("s", (0, 2), (0, 3)).in_range == 0


def test_what_was_rescued_late_goes_out_of_age_like_any_other(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 30)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    hour_ns = 3600 * SECOND_NS
    driver = EngineDriver(disk, topic_settings(retention=RetentionSettings(max_age_ns=hour_ns)))
    driver.run_for(SECOND_NS)
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1]
    driver.run_for(hour_ns)
    assert driver.engine.segments() == []


def test_progress_before_and_after_a_postponed_rescue_agree(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 100):
        driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    driver.engine._lock.release()
    disk.heal()
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT)]


def test_bundles_before_an_open_end_are_owed_also_where_their_rescue_had_to_wait(tmp_path: Path) -> None:
    """Progress that was flushed before the rebuilt file had its place took the segment for one that was not there."""
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment(1)
    first, second = entry_offsets(path)
    path.chmod(0o600)
    os.truncate(path, (first + second) // 2 + (second - first))
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT))
    disk.heal()
    driver.clock.advance(25 * SECOND_NS)
    while not isinstance(job := driver.engine.next_background(), RescueJob):
        assert job is not None
        job.run()
        driver.events += driver.engine.finish(job)
    job.run()
    driver.events += driver.engine.finish(job)
    driver.resolve("s", "owner", 0, "ack", range(COUNT))
    driver.flush_progress()
    assert driver.claim_numbers("s") == [COUNT]
    assert gaps(driver) == [(1, 1, 0, "damaged")], "no later segment says how many there were"


def rescue_points() -> int:
    disk = FaultyDisk(SimDisk())
    damaged_simulated_store(disk)
    before = disk.mutating_count
    reopened(disk)
    return disk.mutating_count - before


def damaged_simulated_store(disk: Disk) -> None:
    closed_store(disk)
    file = disk.open_read(segment())
    data = bytearray(file.read(file.size(), 0))
    file.close()
    data[2000] ^= 1
    disk.unlink(segment())
    damaged = disk.create(segment())
    damaged.write([bytes(data)], 0)
    damaged.fsync()
    damaged.close()
    disk.sync_directory(f"{ENGINE}/segments")


@pytest.mark.parametrize("mode", list(CrashMode), ids=lambda mode: mode.name.lower())
def test_a_crash_at_any_call_of_a_rescue_loses_nothing_more(mode: CrashMode) -> None:
    points = rescue_points()
    assert points > 15
    for point in range(1, points + 1):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        damaged_simulated_store(disk)
        disk.crash_at(disk.mutating_count + point)
        with pytest.raises(SimulatedCrash):
            reopened(OrderMonitor(disk))
        left = inner.crash(mode, point)
        driver = reopened(left)
        assert driver.claim_numbers("s") == [number for number in range(COUNT + 2) if number != 2]
        assert [name for name in left.list_directory(f"{ENGINE}/quarantine") if name.endswith(".0")]
        names = left.list_directory(f"{ENGINE}/segments")
        assert names == [segment(0).rpartition("/")[2], segment(1).rpartition("/")[2]]


def cut_simulated_store(disk: Disk) -> None:
    """The last segment ends inside its second bundle: nobody knows how many there were."""
    closed_store(disk)
    file = disk.open_read(segment(1))
    data = file.read(file.size(), 0)
    file.close()
    scan = LogReader(lambda length, at: data[at : at + length], len(data)).scan(HEADER_BYTES, stride=64)
    second = scan.entries[1]
    cut = (second.start + second.end) // 2
    disk.unlink(segment(1))
    damaged = disk.create(segment(1))
    damaged.write([data[:cut]], 0)
    damaged.fsync()
    damaged.close()
    disk.sync_directory(f"{ENGINE}/segments")


@pytest.mark.parametrize("mode", list(CrashMode), ids=lambda mode: mode.name.lower())
def test_a_crash_at_any_call_of_a_rescue_does_not_lose_the_notice_of_an_open_end(mode: CrashMode) -> None:
    counted = FaultyDisk(SimDisk())
    cut_simulated_store(counted)
    before = counted.mutating_count
    whole = reopened(counted)
    points = counted.mutating_count - before
    whole.claim_numbers("s")
    assert gaps(whole) == [(1, 1, 0, "damaged")]
    for point in range(1, points + 1):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        cut_simulated_store(disk)
        disk.crash_at(disk.mutating_count + point)
        with pytest.raises(SimulatedCrash):
            reopened(OrderMonitor(disk))
        driver = reopened(inner.crash(mode, point))
        assert driver.claim_numbers("s") == list(range(COUNT + 1))
        assert gaps(driver) == [(1, 1, 0, "damaged")], f"a crash at call {point} of {points}"


def test_bundles_before_an_open_end_are_still_owed_after_a_restart() -> None:
    disk = SimDisk()
    cut_simulated_store(disk)
    reopened(disk).engine.close()
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 1))
    assert gaps(driver) == [(1, 1, 0, "damaged")]
