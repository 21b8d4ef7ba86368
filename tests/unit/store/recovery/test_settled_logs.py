"""Logs of ours that cannot just be sealed: another file has their number, or nothing of them is left. No bundle of theirs is lost."""

from __future__ import annotations

import pytest

from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.wal.codec import decode_header
from quiver_actors.store.wal.layout import HEADER_BYTES
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver
from tests.support.other_writer import OtherWriter
from tests.unit.store.recovery.test_damaged_files import kept, replace, say_that_it_was_stopped

PATHS = EnginePaths("default/core_0")
OLD_PATH, NEW_PATH = PATHS.rotated(7), PATHS.rotated(8)


def killed(first: int = 0) -> tuple[SimDisk, bytes]:
    """Return the disk of a process that was killed with six bundles in the open log of segment 0, and the log with three of them."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(first, 3)
    driver.commit()
    early = disk.contents()[PATHS.active]
    driver.push_numbered(first + 3, 3)
    driver.commit()
    driver.flush_progress()
    return disk.crash(CrashMode.KEEP), early


def segment_of(disk: SimDisk) -> bytes:
    """Return the segment that a start makes of the log: what the log is between its seal and its rename."""
    left = disk.copy()
    EngineDriver(left)
    return left.contents()[PATHS.segment(0)]


def put(disk: SimDisk, path: str, content: bytes) -> None:
    replace(disk, path, lambda _: content)


def delivered(disk: SimDisk) -> list[int]:
    """Return what a start delivers; one after a power loss delivers the same, and nothing is announced as lost."""
    driver = EngineDriver(disk)
    driver.settle()
    found = driver.claim_numbers("s")
    assert not driver.told
    again = EngineDriver(disk.crash(CrashMode.DROP))
    again.settle()
    assert again.claim_numbers("s") == found
    return found


@pytest.mark.parametrize("has_core", [True, False])
def test_what_a_log_has_behind_an_older_copy_of_itself_gets_another_number(has_core: bool) -> None:
    """Somebody has brought a log back from a backup. Nothing comes twice, also where `quiver.core` does not tell whose logs they are."""
    disk, early = killed()
    put(disk, OLD_PATH, early)
    if not has_core:
        disk.unlink(PATHS.core)
    assert delivered(disk) == list(range(6))
    assert kept(disk) == []
    assert not disk.exists(OLD_PATH)


def test_an_older_copy_of_a_log_is_kept_aside() -> None:
    disk, early = killed()
    put(disk, OLD_PATH, disk.contents()[PATHS.active])
    put(disk, PATHS.active, early)
    assert delivered(disk) == list(range(6))
    assert kept(disk) == [early]


@pytest.mark.parametrize("is_whole_first", [True, False])
def test_a_log_that_only_lacks_its_name_goes_before_an_older_copy_of_it(is_whole_first: bool) -> None:
    """Nothing of a finished seal can be adopted: if the copy came first, what it lacks would be set aside with the seal."""
    disk, early = killed()
    whole = segment_of(disk)
    disk.unlink(PATHS.active)
    put(disk, OLD_PATH, whole if is_whole_first else early)
    put(disk, NEW_PATH, early if is_whole_first else whole)
    assert delivered(disk) == list(range(6))
    assert disk.contents()[PATHS.segment(0)] == whole
    assert kept(disk) == [early]


def test_of_two_finished_seals_one_becomes_the_segment() -> None:
    disk, _ = killed()
    whole = segment_of(disk)
    disk.unlink(PATHS.active)
    put(disk, OLD_PATH, whole)
    put(disk, NEW_PATH, whole)
    assert delivered(disk) == list(range(6))
    assert kept(disk) == [whole]


def test_a_log_of_another_directory_gets_another_number() -> None:
    """The ids that receipts and progress name are those of our log."""
    disk, _ = killed()
    copied, _ = killed(first=100)
    put(disk, OLD_PATH, copied.contents()[PATHS.active])
    assert delivered(disk) == [*range(6), *range(100, 106)]
    assert kept(disk) == []


def test_a_finished_seal_of_another_directory_does_not_take_the_number_of_our_log() -> None:
    disk, _ = killed()
    theirs = segment_of(killed(first=100)[0])
    put(disk, OLD_PATH, theirs)
    assert delivered(disk) == list(range(6))
    assert kept(disk) == [theirs]


@pytest.mark.parametrize("has_seal", [True, False])
def test_half_a_segment_under_the_number_of_a_log_gives_way_to_the_log(has_seal: bool) -> None:
    """Another writer was killed while it wrote the segment of our log under its final name."""
    disk, _ = killed()
    whole = segment_of(disk)
    other = OtherWriter(disk.copy(), PATHS.root)
    assert other.seal() == 0
    half = other.disk.contents()[PATHS.segment(0)][:700]
    put(disk, PATHS.segment(0), half)
    if has_seal:
        put(disk, PATHS.active, whole)
    assert delivered(disk) == list(range(6))
    assert kept(disk) == [half]


@pytest.mark.parametrize("left", [b"", bytes(HEADER_BYTES), bytes(4096)], ids=["empty", "header", "more"])
def test_an_active_log_of_zeroes_is_replaced_by_one_that_another_writer_goes_on_in(left: bytes) -> None:
    """A power loss has left the name of the file and nothing in it."""
    disk, _ = killed()
    put(disk, OLD_PATH, disk.contents()[PATHS.active])
    put(disk, PATHS.active, left)
    say_that_it_was_stopped(disk)
    assert delivered(disk) == list(range(6))
    assert kept(disk) == []
    left_by_us = disk.crash(CrashMode.KEEP)
    position = decode_header(left_by_us.contents()[PATHS.active][:HEADER_BYTES]).position_start
    assert position > 0
    assert OtherWriter(left_by_us, PATHS.root).position_start == position
