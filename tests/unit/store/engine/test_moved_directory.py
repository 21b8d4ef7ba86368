"""The directory of an engine that was moved away, unmounted or deleted: nothing of it is made anew by a node that has had it open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.engine import Engine
from quiver_actors.store.files.own_directory import DirectoryGone
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import copy_span, move_to_quarantine
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, ManualClock, topic_settings
from tests.support.stage_driver import StageDriver

DIRECTORY = "default/core_0"
PATHS = EnginePaths(DIRECTORY)


def stored() -> SimDisk:
    disk = SimDisk()
    driver = EngineDriver(disk, directory=DIRECTORY)
    driver.push_numbered(0, 3)
    driver.settle()
    driver.seal()
    return disk.crash(CrashMode.KEEP)


def open_again(disk: SimDisk) -> Engine:
    return Engine.open(disk, DIRECTORY, topic_settings(), 0, ManualClock(), was_open=True)


def move_all(disk: SimDisk) -> None:
    disk.rename(DIRECTORY, "away")


def unmount(disk: SimDisk) -> None:
    disk.rename(DIRECTORY, "away")
    disk.make_directory(DIRECTORY)


def move_segments(disk: SimDisk) -> None:
    disk.rename(PATHS.segments, "away")


@pytest.mark.parametrize("take", [move_all, unmount, move_segments])
def test_what_was_open_and_is_gone_is_a_fault_and_is_not_made_anew(take: Callable[[SimDisk], None]) -> None:
    disk = stored()
    take(disk)
    before = disk.contents()
    with pytest.raises(DirectoryGone, match="bring it back"):
        open_again(disk)
    assert disk.contents() == before
    assert disk.exists(DIRECTORY) is (take is not move_all)


def test_what_is_back_is_opened_with_everything_in_it() -> None:
    disk = stored()
    move_all(disk)
    with pytest.raises(DirectoryGone):
        open_again(disk)
    disk.rename("away", DIRECTORY)
    engine = open_again(disk)
    assert [info.bundle_count for info in engine.segments()] == [3]


def test_a_log_directory_that_was_deleted_is_made_anew() -> None:
    """Only its directory is gone: what was in it is lost, and told where it can be."""
    disk = stored()
    disk.rename(PATHS.wal, "away")
    assert [info.bundle_count for info in open_again(disk).segments()] == [3]


def test_no_quarantine_is_made_where_the_directory_was() -> None:
    disk = stored()
    path = PATHS.segment(0)
    move_all(disk)
    with pytest.raises(DiskError, match="No such file"):
        move_to_quarantine(disk, PATHS, path)
    with pytest.raises(DiskError, match="No such file"):
        copy_span(disk, PATHS, lambda length, _: bytes(length), "quiver.wal", 0, 8)
    assert not disk.exists(DIRECTORY)


def test_no_directory_for_stages_is_made_where_the_directory_was() -> None:
    disk = SimDisk()
    driver = StageDriver(disk)
    driver.push_numbered(0)
    driver.settle()
    disk.rename(DIRECTORY, "away")
    with pytest.raises(AssertionError):
        driver.prepared(1)
    assert not disk.exists(DIRECTORY)
