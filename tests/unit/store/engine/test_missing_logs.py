"""Log files that are gone when a store is opened: what is known to be lost, and that each subscriber is told of it exactly once."""

from __future__ import annotations

import errno
from collections.abc import Iterable

import pytest

from quiver_actors.base.units import KIB
from quiver_actors.errors import DiskError
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK
from quiver_actors.store.recovery.missing_logs import Extent, MissingLog, find_missing_logs
from quiver_actors.store.subscriber.gaps import GapNotice
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

WAL = "default/core_0/wal/"
SETTINGS = topic_settings(segment_target_size_bytes=4 * KIB, wal_max_rotated_files=8)
BUNDLES = 3
"""Number of bundles in each log."""


def log(segment_seq: int, *, first: int | None = None, count: int = BUNDLES, is_log: bool = True) -> Extent:
    """Each bundle takes 100 bytes of log; numbers rise as they do in one life."""
    first = segment_seq * BUNDLES if first is None else first
    return Extent(segment_seq, first * 100, (first + count) * 100, first, first + count, b"one", is_log)


def segment(segment_seq: int) -> Extent:
    return log(segment_seq, is_log=False)


def found(extents: Iterable[Extent], cursor: int | None, taken: Iterable[int] = ()) -> list[MissingLog]:
    extents = list(extents)
    return find_missing_logs(extents, {*taken, *(each.segment_seq for each in extents)}, cursor)


def test_nothing_is_missing_between_adjacent_files() -> None:
    assert found([], None) == []
    assert found([log(0), log(1), log(2)], 0) == []
    assert found([segment(4), segment(5), log(6)], 1800) == []


@pytest.mark.parametrize("cursor", [None, 0, 300])
def test_one_log_between_logs_is_known_exactly(cursor: int | None) -> None:
    assert found([log(0), log(2), log(3)], cursor) == [MissingLog(1, BUNDLES)]


@pytest.mark.parametrize("cursor", [300, 0])
def test_the_oldest_log_behind_a_segment_is_known_by_the_cursor(cursor: int) -> None:
    assert found([segment(0), log(2)], cursor) == [MissingLog(1, BUNDLES)]


def test_behind_a_segment_nothing_is_proven_without_a_cursor_or_where_it_has_passed() -> None:
    assert found([segment(0), log(2)], None) == []
    assert found([segment(0), log(2)], 600) == []
    assert found([log(2)], None) == []


def test_several_logs_between_logs_are_lost_without_a_count() -> None:
    assert found([log(0), log(3)], None) == [MissingLog(1, 0), MissingLog(2, 0)]


def test_only_the_last_is_certain_where_others_may_have_been_done_and_deleted() -> None:
    assert found([segment(0), log(4)], 600) == [MissingLog(3, 0)]
    assert found([log(4)], 600) == [MissingLog(3, 0)]
    assert found([segment(0), log(4)], 300, taken=[2]) == [MissingLog(3, 0)], "a damaged segment is between them"


def test_only_the_last_is_certain_behind_numbers_that_a_start_has_skipped() -> None:
    behind = log(SEGMENT_SEQ_BLOCK + 2, first=1 << 20)
    assert found([segment(0), behind], 300) == [MissingLog(SEGMENT_SEQ_BLOCK + 1, 0)]


def test_skipped_numbers_and_damaged_files_beside_them_are_no_missing_logs() -> None:
    skipped = Extent(SEGMENT_SEQ_BLOCK, 300, 600, 1 << 20, (1 << 20) + 3, b"one", True)
    assert found([segment(0), skipped], 0) == [], "no position is left out"
    assert found([segment(0), log(2)], 300, taken=[1]) == [], "it is there, and damaged"
    assert found([log(0), log(2)._replace(incarnation=b"two")], None) == [], "of another directory"


def test_sequences_that_contradict_positions_give_no_count() -> None:
    assert found([log(0), log(2)._replace(first_sequence=3)], None) == [MissingLog(1, 0)]


# --- stores ------------------------------------------------------------------------------------------------------------------


class Store:
    """Segment 0 is sealed; segments 1 to 5 are still logs of `BUNDLES` bundles each, as their seals lag. Three subscribers: `ann` from
    the beginning, `ben` from the second bundle of segment 2, `cid` who has done with all of it."""

    def __init__(self) -> None:
        disk = SimDisk()
        faulty = FaultyDisk(disk)
        driver = EngineDriver(faulty, SETTINGS)
        driver.engine.registrations.register("ann", "earliest")
        driver.push_numbered(0, BUNDLES)
        driver.commit()
        driver.seal()
        faulty.fail("truncate", 1, errno.ENOSPC, then=["truncate"])  # only a seal cuts a log
        for segment_seq in range(1, 6):
            self._fill(driver, segment_seq)
        driver.engine.registrations.register("cid", "latest")
        driver.flush_progress()
        self.disk = disk.crash(CrashMode.KEEP)
        self.logs = sorted(path for path in self.disk.contents() if path.startswith(WAL) and path[-1].isdigit())

    def _fill(self, driver: EngineDriver, segment_seq: int) -> None:
        first = segment_seq * BUNDLES
        driver.push_numbered(first)
        if segment_seq == 2:
            driver.engine.registrations.register("ben", "latest")
        driver.push_numbered(first + 1, BUNDLES - 1)
        driver.commit()
        driver.engine.seal_now()
        driver.commit()
        driver.run_background()

    def remove(self, *segment_seqs: int) -> None:
        for segment_seq in segment_seqs:
            self.disk.unlink(self.logs[segment_seq - 1])
        self.disk.sync_directory(WAL.rstrip("/"))

    def opened(self) -> EngineDriver:
        return EngineDriver(self.disk.crash(CrashMode.KEEP), SETTINGS)


def owed(driver: EngineDriver, subscriber: str) -> tuple[list[int], list[tuple[int, int, int]]]:
    """All that a subscriber gets, and what it is told."""
    driver.settle()
    driver.told.clear()
    numbers = driver.claim_numbers(subscriber)
    assert {notice.reason for notice in driver.told} <= {"damaged"}
    return numbers, [(notice.segment_seq, notice.bundle_index_first, notice.bundle_count) for notice in driver.told]


def numbers_without(*segment_seqs: int) -> list[int]:
    return [number for number in range(6 * BUNDLES) if number // BUNDLES not in segment_seqs]


def test_nobody_is_told_of_anything_where_nothing_is_missing() -> None:
    driver = Store().opened()
    assert owed(driver, "ann") == (numbers_without(), [])
    assert owed(driver, "ben") == ([7, *range(8, 18)], [])


def test_a_middle_log_that_is_gone_is_told_to_each_who_was_owed_it() -> None:
    store = Store()
    store.remove(2)
    driver = store.opened()
    assert owed(driver, "ann") == (numbers_without(2), [(2, 0, BUNDLES)])
    assert owed(driver, "ben") == (list(range(9, 18)), [(2, 1, BUNDLES - 1)])
    assert owed(driver, "cid") == ([], [])
    loss = driver.engine.storage.losses.by_reason["damaged"]
    assert (loss.segments, loss.bundles) == (1, BUNDLES)
    assert [note for note in driver.engine.recovery_notes if "the log of segment 2 is gone" in note]


def test_the_oldest_log_that_is_gone_is_told() -> None:
    store = Store()
    store.remove(1)
    assert owed(store.opened(), "ann") == (numbers_without(1), [(1, 0, BUNDLES)])


def test_two_logs_that_are_gone_are_told_without_a_count() -> None:
    store = Store()
    store.remove(2, 3)
    driver = store.opened()
    assert owed(driver, "ann") == (numbers_without(2, 3), [(2, 0, 0), (3, 0, 0)])
    assert owed(driver, "ben") == (list(range(12, 18)), [(2, 1, 2), (2, 3, 0), (3, 0, 0)]), (
        "its progress names three bundles"
    )


def test_a_log_behind_one_that_is_sealed_but_for_its_name_is_told_exactly() -> None:
    store = Store()
    disk = FaultyDisk(store.disk)
    disk.fail("rename", 1, errno.EIO, path_part="segments/")
    with pytest.raises(DiskError, match="simulated"):
        EngineDriver(disk, SETTINGS)
    store.remove(2)
    assert owed(store.opened(), "ann") == (numbers_without(2), [(2, 0, BUNDLES)])


def test_where_another_file_may_be_the_missing_one_nobody_is_told() -> None:
    store = Store()
    store.remove(3)
    file = store.disk.open_write(store.logs[3])
    file.write([b"?"], 20)  # within its header
    file.close()
    assert _told(store.opened()) == []


def test_a_stage_that_waits_for_its_publish_may_have_taken_the_numbers() -> None:
    store = Store()
    store.remove(3)
    store.disk.make_directory("default/core_0/staged")
    store.disk.create("default/core_0/staged/0000000000000001.prepared").close()
    assert _told(store.opened()) == []


def _told(driver: EngineDriver) -> list[GapNotice]:
    owed(driver, "ann")
    return driver.told


def test_what_was_told_is_not_told_again() -> None:
    store = Store()
    store.remove(2)
    driver = store.opened()
    assert owed(driver, "ann")[1] == [(2, 0, BUNDLES)]
    for notice in driver.told:
        driver.engine.claims.ack_gap("ann", notice.notice)
    driver.flush_progress()
    again = EngineDriver(driver.disk.crash(CrashMode.KEEP), SETTINGS)  # type: ignore[attr-defined]
    assert owed(again, "ann") == (numbers_without(2), [])
    assert again.engine.storage.losses.by_reason["damaged"].segments == 0


@pytest.mark.parametrize(("gone", "mode"), [((2,), CrashMode.DROP), ((2, 3), CrashMode.REORDER)])
def test_a_start_that_is_cut_off_anywhere_tells_the_same(gone: tuple[int, ...], mode: CrashMode) -> None:
    store = Store()
    store.remove(*gone)
    expected = {name: owed(store.opened(), name) for name in ("ann", "ben", "cid")}
    for point in range(1, 10_000):
        inner = store.disk.crash(CrashMode.KEEP)
        disk = FaultyDisk(inner)
        disk.crash_at(point)
        is_cut_off = False
        try:
            EngineDriver(disk, SETTINGS)
        except SimulatedCrash:
            is_cut_off = True
        again = EngineDriver(inner.crash(mode, point), SETTINGS)
        assert {name: owed(again, name) for name in expected} == expected, f"cut off at call {point}"
        if not is_cut_off:
            assert point > 20
            return
    raise AssertionError("it never came to its end")


def test_a_start_that_follows_one_that_was_cut_off_leaves_its_notices_as_they_are() -> None:
    store = Store()
    store.remove(2)
    path = "default/core_0/quiver.gaps.ann"
    inner = store.disk.crash(CrashMode.KEEP)
    before = inner.contents().get(path)
    contents = []
    disk = FaultyDisk(inner)
    for _ in range(2):
        disk.fail("rename", 1, errno.EIO, path_part="segments/")
        with pytest.raises(DiskError, match="simulated"):
            EngineDriver(disk, SETTINGS)
        contents.append(inner.contents()[path])
        disk.heal()
    assert before != contents[0] == contents[1]


# --- what was deleted by ourselves ---------------------------------------------------------------------------------------------


def with_a_cursor_that_is_owed() -> tuple[SimDisk, FaultyDisk, EngineDriver]:
    """Segments 0 to 4 are sealed; while those behind 0 were, there was no room for a cursor. `ann` is done with 1, 2 and 3."""
    disk = SimDisk()
    faulty = FaultyDisk(disk)
    driver = EngineDriver(faulty, SETTINGS)
    driver.engine.registrations.register("ann", "earliest")
    for segment_seq in range(5):
        driver.push_numbered(segment_seq * BUNDLES, BUNDLES)
        driver.seal()
        if not segment_seq:
            for nth in range(1, 100):
                faulty.fail("create", nth, errno.ENOSPC, path_part="quiver.wal.cursor")
    faulty.heal()
    for grant in driver.claim("ann", "owner", 1000):
        if grant.segment_seq in (1, 2, 3):
            driver.resolve("ann", "owner", grant.segment_seq, "ack", grant.indexes)
    driver.engine.claims.release("owner")
    return disk, faulty, driver


def test_no_kill_in_a_deletion_makes_what_it_deleted_look_like_a_log_that_is_gone() -> None:
    for point in range(1, 100):
        disk, faulty, driver = with_a_cursor_that_is_owed()
        faulty.crash_at(faulty.mutating_count + point)
        is_killed = False
        try:
            driver.flush_progress()
        except SimulatedCrash:
            is_killed = True
        again = EngineDriver(disk.crash(CrashMode.KEEP), SETTINGS)
        assert [note for note in again.engine.recovery_notes if "is gone" in note] == [], f"killed at call {point}"
        assert set(owed(again, "ann")[0]) >= {*range(BUNDLES), *range(4 * BUNDLES, 5 * BUNDLES)}
        assert again.told == []
        if not is_killed:
            assert point > 5
            return
    raise AssertionError("it never came to its end")
