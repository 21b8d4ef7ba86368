"""The newest log is gone or blank when a directory is opened: everybody is told once, and no crash of ours looks like that."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from quiver_actors.base.units import KIB
from quiver_actors.errors import DiskError
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.wal.layout import HEADER_BYTES
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.support.other_writer import OtherWriter
from tests.unit.store.recovery.test_damaged_files import kept, replace

PATHS = EnginePaths("default/core_0")
SETTINGS = topic_settings(segment_target_size_bytes=64 * KIB)
SEALED, OPEN = 2, 3
"""Bundles of segment 0, and of the log that is to become segment 1."""
ALL_NUMBERS = list(range(SEALED + OPEN))
Told = list[tuple[int, int, int]]


def pushed(disk: SimDisk | FaultyDisk) -> EngineDriver:
    """A sealed segment and an open log. `ann` has taken nothing yet, `ben` has done with all but the last bundle."""
    driver = EngineDriver(disk, SETTINGS)
    driver.engine.registrations.register("ann", "earliest")
    driver.engine.registrations.register("ben", "earliest")
    driver.push_numbered(0, SEALED)
    driver.commit()
    driver.seal()
    driver.push_numbered(SEALED, OPEN)
    driver.commit()
    return driver


def killed() -> SimDisk:
    disk = SimDisk()
    driver = pushed(disk)
    for grant in driver.claim("ben", "owner", SEALED + OPEN - 1):
        driver.resolve("ben", "owner", grant.segment_seq, "ack", grant.indexes)
    driver.flush_progress()
    return disk.crash(CrashMode.KEEP)


def owed(disk: SimDisk | FaultyDisk, subscriber: str) -> tuple[list[int], Told]:
    """What a start delivers, and what it tells."""
    driver = EngineDriver(disk, SETTINGS)
    driver.settle()
    driver.told.clear()
    numbers = driver.claim_numbers(subscriber)
    return numbers, [(each.segment_seq, each.bundle_index_first, each.bundle_count) for each in driver.told]


def remove(disk: SimDisk | FaultyDisk) -> None:
    disk.unlink(PATHS.active)
    disk.sync_directory(PATHS.wal)


def remove_all(disk: SimDisk) -> None:
    for name in disk.list_directory(PATHS.wal):
        disk.unlink(f"{PATHS.wal}/{name}")
    disk.sync_directory(PATHS.wal)


def empty(disk: SimDisk) -> None:
    replace(disk, PATHS.active, lambda _: b"")


def zero(disk: SimDisk) -> None:
    replace(disk, PATHS.active, lambda content: bytes(len(content)))


def scribble(disk: SimDisk) -> None:
    replace(disk, PATHS.active, lambda content: b"\xff" * len(content))


HANDS = [remove, remove_all, empty, zero, scribble]
Hand = Callable[[SimDisk], None]


@pytest.mark.parametrize("hand", HANDS)
def test_a_newest_log_that_is_gone_or_blank_is_told_of(hand: Hand) -> None:
    """Regression: its bundles were acknowledged, and a subscriber that had taken none of them never heard of them."""
    disk = SimDisk()
    pushed(disk)
    left = disk.crash(CrashMode.KEEP)
    hand(left)
    assert owed(left, "ann") == ([0, 1], [(1, 0, 0)])
    assert kept(left) == ([b"\xff" * len(disk.contents()[PATHS.active])] if hand is scribble else [])


@pytest.mark.parametrize("hand", HANDS)
def test_who_has_done_with_some_of_it_is_told_of_what_nobody_knows_besides(hand: Hand) -> None:
    disk = killed()
    hand(disk)
    assert owed(disk.crash(CrashMode.KEEP), "ann") == ([0, 1], [(1, 0, 0), (2, 0, 0)])
    assert owed(disk.crash(CrashMode.KEEP), "ben") == ([], [(1, 2, 1), (2, 0, 0)])


def test_pushes_go_on_behind_what_is_lost_and_it_is_told_once() -> None:
    disk = killed()
    remove(disk)
    driver = EngineDriver(disk, SETTINGS)
    driver.settle()
    driver.claim_numbers("ann")
    for notice in driver.told:
        driver.engine.claims.ack_gap("ann", notice.notice)
    assert driver.push_numbered(9)[0].segment_seq > 2
    driver.commit()
    driver.flush_progress()
    assert owed(disk.crash(CrashMode.KEEP), "ann") == ([0, 1, 9], [])


def test_a_log_that_is_lost_again_is_told_again() -> None:
    disk = killed()
    remove(disk)
    driver = EngineDriver(disk, SETTINGS)
    driver.push_numbered(9)
    driver.commit()
    again = disk.crash(CrashMode.KEEP)
    remove(again)
    assert len(owed(again, "ann")[1]) == 3


def test_of_a_log_without_its_beginning_the_rest_is_delivered() -> None:
    """The header and the first entry are zeroes: nothing says what log it was, nor how many bundles stood there."""
    disk = SimDisk()
    pushed(disk)
    left = disk.crash(CrashMode.KEEP)
    replace(left, PATHS.active, lambda content: bytes(HEADER_BYTES + 64) + content[HEADER_BYTES + 64 :])
    numbers, told = owed(left, "ann")
    assert (numbers, len(told)) == ([0, 1, 3, 4], 1)


def test_of_a_log_that_only_lacks_its_header_nothing_is_lost() -> None:
    disk = SimDisk()
    pushed(disk)
    left = disk.crash(CrashMode.KEEP)
    replace(left, PATHS.active, lambda content: bytes(HEADER_BYTES) + content[HEADER_BYTES:])
    assert owed(left, "ann") == (ALL_NUMBERS, [])


@pytest.mark.parametrize("hand", HANDS)
def test_after_a_clean_stop_nothing_is_lost_with_the_log(hand: Hand) -> None:
    disk = SimDisk()
    pushed(disk).drain_and_close()
    hand(disk)
    assert owed(disk, "ann") == (ALL_NUMBERS, [])


def test_where_the_numbers_are_gone_too_nothing_is_proven() -> None:
    disk = SimDisk()
    pushed(disk)
    left = disk.crash(CrashMode.KEEP)
    remove_all(left)
    left.unlink(PATHS.core)
    assert owed(left, "ann") == ([0, 1], [])


# --- kills -------------------------------------------------------------------------------------------------------------------


def _live(disk: FaultyDisk) -> None:
    """Everything that takes a log out of its name: a start, an end of a log by age, a drain, a clean stop."""
    driver = pushed(disk)
    driver.seal()
    driver.push_numbered(SEALED + OPEN)
    driver.commit()
    driver.drain_and_close()


@pytest.mark.parametrize(
    ("mode", "begin"), [(CrashMode.KEEP, SimDisk), (CrashMode.REORDER, SimDisk), (CrashMode.DROP, killed)]
)
def test_no_kill_makes_a_directory_look_like_one_that_has_lost_a_log(
    mode: CrashMode, begin: Callable[[], SimDisk]
) -> None:
    before = begin()
    for point in range(1, 10_000):
        inner = before.copy()
        disk = FaultyDisk(inner)
        disk.crash_at(point)
        try:
            _live(disk)
        except SimulatedCrash:
            driver = EngineDriver(inner.crash(mode, point), SETTINGS)
            assert [note for note in driver.engine.recovery_notes if "is gone" in note] == [], f"killed at call {point}"
        else:
            assert point > 50
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("hand", [remove, scribble])
def test_a_start_that_is_cut_off_anywhere_tells_the_same(hand: Hand) -> None:
    disk = killed()
    hand(disk)
    check_cut_off(disk, owed(disk.crash(CrashMode.KEEP), "ann"))


def check_cut_off(disk: SimDisk, expected: tuple[list[int], Told]) -> None:
    """A start that is cut off at any of its calls leaves what the next one delivers and tells."""
    for point in range(1, 10_000):
        inner = disk.crash(CrashMode.KEEP)
        faulty = FaultyDisk(inner)
        faulty.crash_at(point)
        try:
            EngineDriver(faulty, SETTINGS)
        except SimulatedCrash:
            assert owed(inner.crash(CrashMode.DROP, point), "ann") == expected, f"cut off at call {point}"
        else:
            assert point > 20
            return
    raise AssertionError("it never came to its end")


def adopted_from() -> SimDisk:
    """What another writer has logged behind a start of ours that was killed."""
    disk = SimDisk()
    driver = EngineDriver(disk, SETTINGS)
    driver.engine.registrations.register("ann", "earliest")
    driver.flush_progress()
    other = OtherWriter(disk, PATHS.root)
    for number in range(3):
        other.append({0: numbered_batch(number)})
    return disk.crash(CrashMode.KEEP)


def test_no_kill_in_the_adoption_of_another_writers_log_looks_like_a_loss() -> None:
    check_cut_off(adopted_from(), ([0, 1, 2], []))


# --- a full disk -------------------------------------------------------------------------------------------------------------


def test_a_log_that_goes_where_there_is_no_room_for_an_empty_one_is_not_missed() -> None:
    disk = FaultyDisk(SimDisk())
    driver = pushed(disk)
    for nth in range(1, 9):
        disk.fail("create", nth, errno.ENOSPC, path_part="quiver.wal.tmp")
    driver.seal()
    assert len(driver.engine.segments()) == 2
    assert not disk.exists(PATHS.active)
    assert owed(disk.inner.crash(CrashMode.DROP), "ben") == (ALL_NUMBERS, [])  # type: ignore[attr-defined]
    disk.heal()
    driver.push_numbered(SEALED + OPEN)
    driver.commit()
    driver.seal()
    remove(disk)
    assert owed(disk.inner.crash(CrashMode.KEEP), "ben")[1] == [(3, 0, 0)], "there was one again"  # type: ignore[attr-defined]


@pytest.mark.parametrize("begin", [killed, adopted_from], ids=["ours", "theirs"])
def test_a_start_goes_on_without_room_for_an_empty_log(begin: Callable[[], SimDisk]) -> None:
    disk = begin()
    faulty = FaultyDisk(disk)
    faulty.fail("create", 1, errno.ENOSPC, path_part="quiver.wal.tmp")
    EngineDriver(faulty, SETTINGS)
    assert disk.exists(PATHS.active)
    assert owed(disk.crash(CrashMode.KEEP), "ann")[1] == []


@pytest.mark.parametrize("begin", [killed, adopted_from], ids=["ours", "theirs"])
def test_a_start_whose_disk_fails_at_the_empty_log_can_be_done_again(begin: Callable[[], SimDisk]) -> None:
    disk = begin()
    faulty = FaultyDisk(disk)
    faulty.fail("create", 1, errno.EIO, path_part="quiver.wal.tmp")
    with pytest.raises(DiskError, match="simulated"):
        EngineDriver(faulty, SETTINGS)
    assert owed(disk.crash(CrashMode.KEEP), "ann")[1] == []


def test_a_blank_log_is_told_of_also_where_there_is_no_room_for_an_empty_one() -> None:
    disk = killed()
    scribble(disk)
    faulty = FaultyDisk(disk)
    faulty.fail("create", 1, errno.ENOSPC, path_part="quiver.wal.tmp")
    assert owed(faulty, "ann") == ([0, 1], [(1, 0, 0), (2, 0, 0)])
    assert owed(disk.crash(CrashMode.KEEP), "ann") == ([0, 1], [(1, 0, 0), (2, 0, 0)])
