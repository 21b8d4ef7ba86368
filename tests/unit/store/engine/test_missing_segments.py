"""Sealed segments that are gone when a store is opened and that no progress names: told where numbers prove it, and never falsely."""

from __future__ import annotations

import pytest

from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.recovery.missing_logs import Extent, MissingLog
from quiver_actors.store.recovery.missing_segments import find_missing_segments
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

PATHS = EnginePaths("default/core_0")
COUNT = 3
"""Bundles of each segment."""
FAR = 1 << 40


def segment(segment_seq: int, *, first: int | None = None, count: int = COUNT, incarnation: bytes = b"one") -> Extent:
    first = segment_seq * COUNT if first is None else first
    return Extent(segment_seq, first * 100, (first + count) * 100, first, first + count, incarnation, is_log=False)


def found(
    *extents: Extent,
    cursor: int | None = FAR,
    floor: int = 0,
    highest: int = 0,
    taken: tuple[int, ...] = (),
    transactions: bool = False,
) -> list[MissingLog]:
    lost = find_missing_segments(
        extents,
        {*taken, *(each.segment_seq for each in extents)},
        cursor,
        has_transactions=transactions,
        bare={"ann": floor},
        watermark_max=max(floor, highest),
    )
    return lost.get("ann", [])


def test_the_table() -> None:
    end = segment(3, count=0)
    assert found(segment(0), segment(1), segment(2), end) == []
    assert found(segment(0), segment(2), end) == [MissingLog(1, COUNT)]
    assert found(segment(1), segment(2), end) == [MissingLog(0, COUNT)]
    assert found(segment(0), segment(1), end) == [MissingLog(2, COUNT)]
    assert found(end) == [MissingLog(0, 0), MissingLog(1, 0), MissingLog(2, 0)]
    assert found(segment(0), end) == [MissingLog(1, 0), MissingLog(2, 0)]
    assert found(segment(0), end, transactions=True) == [], "some of the numbers may be those of transactions"
    assert found(segment(0), segment(2), transactions=True) == [MissingLog(1, COUNT)]
    assert found(segment(0), segment(2), floor=1) == [MissingLog(1, COUNT)]
    assert found(segment(0), segment(2), floor=2) == [], "done with it"
    assert found(segment(0), segment(2), taken=(1,)) == [], "it is there, and damaged"
    assert found(segment(0), segment(2), cursor=None) == [], "it may be a log that is missing"
    assert found(segment(0), segment(2), cursor=300) == [], "likewise"
    assert found(segment(0), segment(2, first=3)) == [], "no positions: it was a number of a transaction"
    assert found(segment(0), segment(2, incarnation=b"two")) == []
    far = SEGMENT_SEQ_BLOCK
    assert found(segment(0), segment(far)) == [], "a start lies between that was no clean one"
    assert found(segment(1), end, highest=1) == [MissingLog(2, COUNT)], "0 may have been done and deleted"


def test_the_table_of_those_who_have_read_before() -> None:
    """A bare watermark above 0 says by itself which segment comes next."""
    assert found(segment(7), floor=6, highest=7) == [MissingLog(6, 0)], "nobody knows where it began"
    assert found(segment(7), floor=5, highest=7) == [MissingLog(5, 0), MissingLog(6, 0)]
    assert found(segment(1), segment(7), floor=6, highest=7) == [MissingLog(6, 0)]
    assert found(segment(6), segment(7), floor=6, highest=7) == []
    assert found(segment(5), segment(7), floor=6, highest=7) == [MissingLog(6, COUNT)], "told once"
    assert found(floor=6, highest=7) == [MissingLog(6, 0)], "somebody else has done it"
    assert found(segment(8), floor=6, highest=7, cursor=None) == [MissingLog(6, 0)], "7 may be a log that is missing"
    assert found(floor=6) == []
    assert found(segment(7), floor=6, cursor=None) == [], "it may be a log that is missing"
    assert found(segment(7), floor=0, highest=7) == [], "0 is also written of those whom other cores know"
    assert found(segment(7), floor=6, highest=7, transactions=True) == []
    assert found(segment(7), floor=6, highest=7, taken=(6,)) == []
    far = SEGMENT_SEQ_BLOCK // 2
    assert found(segment(far), floor=6, highest=far) == [], "a start lies between that was no clean one"


def stored(segments: int = 3) -> EngineDriver:
    """Ann has read nothing since she was registered; ben reads."""
    driver = EngineDriver(SimDisk())
    for subscriber in ("ann", "ben"):
        driver.engine.registrations.register(subscriber, "earliest")
    driver.flush_progress()
    for number in range(segments):
        driver.push_numbered(number * COUNT, COUNT)
        driver.seal()
    return driver


def told(driver: EngineDriver, subscriber: str) -> list[tuple[int, int, int, str]]:
    return [
        (notice.segment_seq, notice.bundle_index_first, notice.bundle_count, notice.reason)
        for notice in driver.take_gaps(subscriber)
    ]


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_segment_that_nobody_has_read_and_that_is_gone_is_told_once_to_everybody(lost: int, is_clean: bool) -> None:
    driver = stored()
    if is_clean:
        driver.drain_and_close()
    disk = driver.disk
    assert isinstance(disk, SimDisk)
    disk = disk.copy()
    disk.unlink(PATHS.segment(lost))
    wanted = [number for number in range(9) if number // COUNT != lost]
    for _ in range(3):
        driver = EngineDriver(disk)
        driver.settle()
        for subscriber in ("ann", "ben"):
            driver.told.clear()
            assert driver.claim_numbers(subscriber) == wanted
            assert [(each.segment_seq, each.bundle_count, each.reason) for each in driver.told] == [
                (lost, COUNT, "damaged")
            ]
        disk = disk.crash(CrashMode.KEEP)


def test_all_that_was_stored_is_gone_behind_a_clean_stop() -> None:
    driver = stored(1)
    driver.drain_and_close()
    driver.disk.unlink(PATHS.segment(0))
    driver.reopen()
    driver.settle()
    assert told(driver, "ann") == [(0, 0, COUNT, "damaged")]
    driver.push_numbered(100, 1)
    driver.seal()
    assert driver.claim_numbers("ann") == [100]


def test_the_last_segment_is_gone_behind_a_clean_stop() -> None:
    driver = stored()
    driver.drain_and_close()
    driver.disk.unlink(PATHS.segment(2))
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("ann") == list(range(6))
    assert [each.segment_seq for each in driver.told] == [2]


@pytest.mark.parametrize("has_more", [True, False], ids=["more_behind", "nothing_behind"])
def test_a_segment_that_others_have_read_and_that_is_gone_is_told_to_who_has_not(has_more: bool) -> None:
    driver = stored(2)
    for subscriber in ("ann", "ben"):
        driver.engine.claims.ack_through(subscriber, 1, COUNT - 1)
    driver.settle()
    driver.flush_progress()
    driver.push_numbered(2 * COUNT, COUNT)
    driver.seal()
    driver.engine.claims.ack_through("ben", 2, COUNT - 1)
    driver.settle()
    driver.flush_progress()
    if has_more:
        driver.push_numbered(3 * COUNT, COUNT)
        driver.commit()
    disk = driver.disk
    assert isinstance(disk, SimDisk)
    disk = disk.copy().crash(CrashMode.KEEP)
    disk.unlink(PATHS.segment(2))
    driver = EngineDriver(disk)
    driver.settle()
    expected = list(range(3 * COUNT, 4 * COUNT)) if has_more else []
    assert driver.claim_numbers("ann") == expected
    assert [(each.segment_seq, each.reason) for each in driver.told] == [(2, "damaged")]
    driver.told.clear()
    assert driver.claim_numbers("ben") == expected
    assert driver.told == []


@pytest.mark.parametrize("mode", list(CrashMode))
def test_what_was_done_and_deleted_by_us_is_never_told_wherever_a_crash_comes(mode: CrashMode) -> None:
    driver = stored(4)
    disks: list[SimDisk] = []
    for segment_seq in (1, 0, 2):
        for subscriber in ("ann", "ben"):
            driver.engine.claims.ack_through(subscriber, 2, COUNT - 1) if segment_seq == 2 else _ack(
                driver, subscriber, segment_seq
            )
        driver.engine.progress.flush()
        while (job := driver.engine.next_background()) is not None:
            assert isinstance(driver.disk, SimDisk)
            disks.append(driver.disk.copy())
            job.run()
            driver.engine.finish(job)
            disks.append(driver.disk.copy())
    driver.engine.registrations.register("late", "earliest")
    driver.settle()
    assert isinstance(driver.disk, SimDisk)
    disks.append(driver.disk.copy())
    for seed, disk in enumerate(disks):
        after = EngineDriver(disk.crash(mode, seed))
        after.settle()
        for subscriber in after.engine.registrations.names():
            after.claim_numbers(subscriber)
        assert after.told == []


def _ack(driver: EngineDriver, subscriber: str, segment_seq: int) -> None:
    for index in range(COUNT):
        grant = driver.engine.claims.claim_ref(subscriber, "owner", segment_seq, index)
        driver.engine.claims.resolve(subscriber, "owner", segment_seq, grant.token, "ack", [index], 0)


def test_progress_from_when_a_segment_was_open_does_not_hide_its_later_bundles() -> None:
    """Two of three bundles are acknowledged while the segment is open; two more come before its seal."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("ann", "earliest")
    driver.push_numbered(0, 3)
    driver.settle()
    driver.claim("ann", "ann", 3)
    driver.resolve("ann", "ann", 0, "ack", [0, 1])
    driver.flush_progress()
    driver.push_numbered(3, 2)
    driver.seal()
    driver.push_numbered(5, 1)
    driver.seal()
    crashed = disk.crash(CrashMode.DROP)
    crashed.unlink(PATHS.segment(0))
    again = EngineDriver(crashed)
    again.settle()
    told = [event for event in again.events if isinstance(event, GapFound)]
    assert {
        index for event in told for index in range(event.bundle_index, event.bundle_index + event.bundle_count)
    } == {2, 3, 4}
