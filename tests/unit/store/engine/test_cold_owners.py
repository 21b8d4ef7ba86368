"""A copied data directory and its original name one cold directory: one of the two changes what lies there, and says what is lost of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.config import TierSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError, InvalidFormat
from quiver_actors.node.node_dirs import bring_data_version_up_to_date
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from quiver_actors.store.engine.events import ColdDiskFaulted
from quiver_actors.store.files.cold_owner import decode_owner
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.store.engine.test_cold_segments import fill, gaps_of, move, numbers_through_descriptors

ENGINE = "default/core_0"


@pytest.fixture
def disks() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


class Directories:
    """A data directory, a copy of it, and the cold directory that both name."""

    def __init__(self, tmp_path: Path, disks: contextlib.ExitStack) -> None:
        self.cold = tmp_path / "cold"
        self.hot = tmp_path / "hot"
        self.copy = tmp_path / "copy"
        self.cold.mkdir()
        self.hot.mkdir()
        self._disks = disks

    def opened(self, data_dir: Path, **options: Any) -> EngineDriver:
        disk = PosixDisk(str(data_dir))
        self._disks.callback(disk.close)
        tier = TierSettings(cold_dir=str(self.cold), keep_hot_segments=1)
        return EngineDriver(disk, topic_settings(tier=tier, segment_compaction="off"), **options)

    def filled(self) -> EngineDriver:
        """The original, with four segments of two bundles each of which three have moved, and a subscriber that has none of them."""
        driver = self.opened(self.hot)
        driver.engine.registrations.register("s", "earliest")
        fill(driver, 4)
        move(driver)
        assert self.cold_segments() == [0, 1, 2]
        return driver

    def copied(self) -> EngineDriver:
        """A copy that is opened."""
        shutil.copytree(self.hot, self.copy)
        return self.opened(self.copy)

    def cold_segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self.cold.glob(f"{ENGINE}/*/*.qseg"))

    def cold_file(self, segment_seq: int) -> Path:
        (path,) = self.cold.glob(f"{ENGINE}/*/{segment_seq:016}.qseg")
        return path

    @property
    def owner_file(self) -> Path:
        (path,) = self.cold.glob(f"{ENGINE}/*/quiver.cold-owner")
        return path

    def content(self) -> dict[str, bytes]:
        """Everything that lies in the cold directory, but for the lock."""
        return {path.name: path.read_bytes() for path in self.cold.glob(f"{ENGINE}/*/*") if "lock" not in path.name}


@pytest.fixture
def directories(tmp_path: Path, disks: contextlib.ExitStack) -> Directories:
    return Directories(tmp_path, disks)


def faults_of(driver: EngineDriver) -> str:
    return " ".join(event.reason for event in driver.events if isinstance(event, ColdDiskFaulted))


def use_up(driver: EngineDriver) -> None:
    """Be done with what was moved, push more, and let everything move and go that may."""
    driver.engine.claims.ack_through("s", 2, 1)
    fill(driver, 3, first=4)
    driver.run_for(60 * SECOND_NS)


def test_a_copy_beside_its_original_changes_nothing_there_and_says_so(directories: Directories) -> None:
    original = directories.filled()
    copy, before = directories.copied(), directories.content()
    use_up(copy)
    assert directories.content() == before
    assert "this data directory is a copy" in faults_of(copy)
    assert str(directories.owner_file.parent) in faults_of(copy), "it says which directory"
    assert "delete" in faults_of(copy), "it says what to do"
    assert gaps_of(copy) == []
    assert copy.claim_numbers("s") == list(range(6, 14)), "pushes and deliveries of the hot disk go on"
    assert numbers_through_descriptors(original, [0, 1, 2, 3]) == list(range(8))
    use_up(original)
    assert faults_of(original) == ""
    assert directories.cold_segments() == [3, 4, 5], "the original goes on as ever"


def test_a_copy_reads_what_is_its_own_and_takes_nothing_else_for_lost(directories: Directories) -> None:
    original = directories.filled()
    copy = directories.copied()
    assert numbers_through_descriptors(copy, [0, 1, 2, 3]) == list(range(8))
    use_up(original)  # which deletes three segments that the copy needs
    copy.run_for(60 * SECOND_NS)
    for _ in range(2):
        with pytest.raises(ColdStorageUnavailable) as refused:
            copy.engine.open_segment(0)
        copy.settle()
    assert "this data directory is a copy" in str(refused.value)
    copy.engine.check_segment(1)
    copy.run_for(60 * SECOND_NS)
    assert (gaps_of(copy), copy.take_gaps("s")) == ([], [])
    assert [info.segment_seq for info in copy.engine.segments()] == [0, 1, 2, 3]


def test_a_copy_does_not_take_the_original_s_later_files_for_its_own(directories: Directories) -> None:
    original = directories.filled()
    copy = directories.copied()
    fill(copy, 2, first=10)  # the numbers of these are those that the original gives to others
    fill(original, 2, first=4)
    for driver in (original, copy):
        driver.run_for(60 * SECOND_NS)
    assert directories.cold_segments() == [0, 1, 2, 3, 4]
    assert copy.claim_numbers("s") == [*range(8), 20, 21, 22, 23]
    assert original.claim_numbers("s") == list(range(12))


def test_once_an_operator_says_so_the_copy_has_it_and_the_running_original_changes_nothing_more(
    directories: Directories,
) -> None:
    original = directories.filled()
    copy = directories.copied()
    copy.run_for(SECOND_NS)
    directories.owner_file.unlink()
    use_up(copy)
    assert directories.cold_segments()[0] == 3
    assert len(directories.cold_segments()) == 3, "it moves and deletes what is there"
    before = directories.content()
    use_up(original)
    assert directories.content() == before
    assert "another data directory" in faults_of(original)
    assert gaps_of(original) == []
    copy.engine.close()
    assert faults_of(directories.opened(directories.copy)) == "", "what was taken once is taken again"


def restored(directories: Directories, backup: Path) -> EngineDriver:
    """The original with the contents of a backup, in the same directories: a snapshot of its file system."""
    for path in (directories.hot / ENGINE).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(backup / ENGINE, directories.hot / ENGINE, dirs_exist_ok=True)
    return directories.opened(directories.hot)


def test_a_snapshot_from_before_the_last_opening_deletes_nothing(directories: Directories, tmp_path: Path) -> None:
    directories.filled().drain_and_close()
    shutil.copytree(directories.hot, tmp_path / "backup")
    later = directories.opened(directories.hot)
    fill(later, 3, first=4)
    later.run_for(60 * SECOND_NS)
    assert directories.cold_segments() == [0, 1, 2, 3, 4, 5]
    later.drain_and_close()
    before = directories.content()
    old = restored(directories, tmp_path / "backup")
    old.run_for(60 * SECOND_NS)
    assert directories.content() == before, "segments that the snapshot does not know are not leftovers"
    assert "another data directory" in faults_of(old)


def test_a_snapshot_from_the_last_opening_deletes_nothing_that_it_does_not_know(
    directories: Directories, tmp_path: Path
) -> None:
    """Nothing tells it from the directory that moved them. What it is done with goes, as it may."""
    later = directories.filled()
    shutil.copytree(directories.hot, tmp_path / "backup")
    fill(later, 3, first=4)
    later.run_for(60 * SECOND_NS)
    before = directories.content()
    later.drain_and_close()
    old = restored(directories, tmp_path / "backup")
    old.run_for(60 * SECOND_NS)
    assert faults_of(old) == ""
    assert directories.cold_segments() == [0, 1, 2, 3], "it has the last one on its hot disk"
    strays = {path.name: path.read_bytes() for path in directories.cold.glob(f"{ENGINE}/*/*.stray")}
    assert strays == {f"{seq:016}.qseg.stray": before[f"{seq:016}.qseg"] for seq in (4, 5)}
    assert old.claim_numbers("s") == list(range(8))


@pytest.mark.parametrize("left", ["neither", "hot", "cold"])
def test_who_takes_a_directory_over_of_which_a_token_is_gone(directories: Directories, left: str) -> None:
    """Programs from before have written neither. A cold directory that has an owner is not taken on the word of nobody."""
    directories.filled().drain_and_close()
    hot = directories.hot / ENGINE / "quiver.cold-owner"
    for path, name in ((hot, "hot"), (directories.owner_file, "cold")):
        if name != left:
            path.unlink()
    driver = directories.opened(directories.hot)
    use_up(driver)
    assert directories.cold_segments() == ([0, 1, 2] if left == "cold" else [3, 4, 5])
    assert ("nothing in this data directory says" in faults_of(driver)) == (left == "cold")
    assert gaps_of(driver) == []


def test_a_damaged_owner_of_a_cold_directory_is_nobody(directories: Directories) -> None:
    directories.filled().drain_and_close()
    directories.owner_file.write_bytes(directories.owner_file.read_bytes()[:-1] + b"\xff")
    driver = directories.opened(directories.hot)
    use_up(driver)
    assert directories.cold_segments() == [0, 1, 2]
    assert "quiver.cold-owner cannot be read" in faults_of(driver)
    directories.owner_file.unlink()
    driver.run_for(60 * SECOND_NS)
    assert directories.cold_segments() == [3, 4, 5]


def test_each_opening_has_a_token_of_its_own(directories: Directories) -> None:
    driver, tokens = directories.filled(), []
    for _ in range(3):
        found = decode_owner(directories.owner_file.read_bytes())
        assert found == decode_owner((directories.hot / ENGINE / "quiver.cold-owner").read_bytes())
        tokens.append(found.token)
        driver.drain_and_close()
        driver = directories.opened(directories.hot)
        driver.run_for(SECOND_NS)
    assert len(set(tokens)) == 3


def test_a_damaged_list_is_not_made_anew_from_what_is_another_s(directories: Directories) -> None:
    directories.filled().drain_and_close()
    shutil.copytree(directories.hot, directories.copy)
    path = directories.copy / ENGINE / "quiver.cold"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DiskError, match="this data directory is a copy"):
        directories.opened(directories.copy)


def test_while_another_process_works_in_the_directory_a_node_waits(directories: Directories) -> None:
    driver = directories.filled()
    other = PosixDisk(str(directories.owner_file.parent))
    lock = other.lock("quiver.cold-lock")
    assert lock is not None
    use_up(driver)
    assert directories.cold_segments() == [0, 1, 2]
    assert "another process works in the directory" in faults_of(driver)
    lock.release()
    other.close()
    driver.run_for(60 * SECOND_NS)
    assert directories.cold_segments() == [3, 4, 5]


class LocklessDisk(PosixDisk):
    """A file system without locks."""

    def lock(self, path: str, wait_seconds: float = 0.0) -> None:
        raise DiskError("flock", path, errno.ENOLCK)


def test_a_file_system_without_locks_is_no_reason_not_to_move(directories: Directories) -> None:
    driver = directories.filled()
    driver.drain_and_close()

    @contextlib.contextmanager
    def lockless(root: str) -> Iterator[Disk]:
        with contextlib.closing(LocklessDisk(root)) as disk:
            yield disk

    driver = directories.opened(directories.hot, cold_disks=lockless)
    use_up(driver)
    assert directories.cold_segments() == [3, 4, 5]
    assert faults_of(driver) == ""


def test_another_whole_segment_in_the_place_of_one_is_never_delivered(
    directories: Directories, tmp_path: Path, disks: contextlib.ExitStack
) -> None:
    driver = directories.filled()
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Directories(tmp_path / "elsewhere", disks)
    elsewhere.filled()
    path, other = directories.cold_file(1), elsewhere.cold_file(2)
    assert path.stat().st_size == other.stat().st_size
    path.chmod(0o640)
    path.write_bytes(other.read_bytes())
    with pytest.raises(ColdStorageUnavailable):
        driver.engine.open_segment(1)
    driver.run_for(60 * SECOND_NS)
    assert [gap.segment_seq for gap in gaps_of(driver)] == [1]
    assert numbers_through_descriptors(driver, [0, 2, 3]) == [0, 1, 4, 5, 6, 7]
    assert path.with_name(path.name + ".stray").read_bytes() == other.read_bytes(), "it is somebody's: it is kept"
    assert driver.claim_numbers("s") == [0, 1, 4, 5, 6, 7]


def test_a_cold_disk_that_is_lost_for_good_is_told_as_lost_once_an_operator_says_so(directories: Directories) -> None:
    driver = directories.filled()
    directory = directories.owner_file.parent
    shutil.rmtree(directories.cold)
    directories.cold.mkdir()
    with pytest.raises(ColdStorageUnavailable):
        driver.engine.open_segment(0)
    driver.run_for(60 * SECOND_NS)
    assert f"open of {directory} failed" in faults_of(driver)
    assert "an empty file quiver.cold-lost in it" in faults_of(driver)
    assert gaps_of(driver) == []
    driver.engine.close()
    directory.mkdir(parents=True)
    (directory / "quiver.cold-lost").touch()
    driver = directories.opened(directories.hot)
    fill(driver, 2, first=4)
    for segment_seq in (0, 1, 2):
        driver.engine.check_segment(segment_seq)
    driver.run_for(60 * SECOND_NS)
    assert [gap.segment_seq for gap in gaps_of(driver)] == [0, 1, 2]
    assert driver.claim_numbers("s") == list(range(6, 12))
    assert len(directories.cold_segments()) == 2, "segments move there again"


def test_with_another_cold_dir_reads_say_where_the_files_are(directories: Directories, tmp_path: Path) -> None:
    directories.filled().drain_and_close()
    former, directories.cold = directories.cold, tmp_path / "new"
    directories.cold.mkdir()
    driver = directories.opened(directories.hot)
    fill(driver, 2, first=4)
    driver.run_for(60 * SECOND_NS)
    assert f"the segments were moved to {former}" in faults_of(driver)
    assert (list(directories.cold.iterdir()), gaps_of(driver)) == ([], [])
    driver.engine.close()
    shutil.copytree(former, directories.cold, dirs_exist_ok=True)
    driver = directories.opened(directories.hot)
    driver.run_for(60 * SECOND_NS)
    assert faults_of(driver) == ""
    assert driver.claim_numbers("s") == list(range(12))
    shutil.rmtree(former)
    driver.engine.close()
    driver = directories.opened(directories.hot)
    assert numbers_through_descriptors(driver, [0, 1, 2]) == list(range(6))


@pytest.mark.parametrize("length", [0, 100, -30])
def test_a_cold_file_that_was_cut_costs_no_other_segment(directories: Directories, length: int) -> None:
    driver = directories.filled()
    path = directories.cold_file(0)
    path.chmod(0o640)
    os.truncate(path, length if length >= 0 else path.stat().st_size + length)
    with pytest.raises(ColdStorageUnavailable):
        driver.engine.open_segment(0)
    driver.run_for(60 * SECOND_NS)
    assert numbers_through_descriptors(driver, [1, 2, 3]) == list(range(2, 8))
    told = driver.claim_numbers("s")
    assert told[-6:] == list(range(2, 8))
    assert set(told) | {0, 1} == set(range(8))
    assert len(told) == 8 or driver.told, "what could not be saved is told"


def test_a_cold_directory_is_no_data_directory(directories: Directories) -> None:
    directories.filled().drain_and_close()
    before = directories.content()
    with pytest.raises(InvalidFormat, match=f"segments into {ENGINE} there"):
        bring_data_version_up_to_date(str(directories.cold))
    assert directories.content() == before
    assert [path.name for path in directories.cold.iterdir()] == ["default"]
    bring_data_version_up_to_date(str(directories.hot))
    assert (directories.hot / "quiver.version").exists()
