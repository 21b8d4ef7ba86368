"""What happens to the cold disk of a running topic: it is full, lost, elsewhere, and files on it are replaced or cut."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError, InvalidFormat
from quiver_actors.node.node_dirs import bring_data_version_up_to_date
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from tests.support.cold_directories import ENGINE, Directories, faults_of, fill, use_up
from tests.support.engine_driver import topic_settings
from tests.unit.store.engine.test_cold_segments import gaps_of, numbers_through_descriptors


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    with contextlib.ExitStack() as disks:
        yield Directories(tmp_path, disks)


class FullDisk(PosixDisk):
    """A file system without room for anything new, as long as `is_full`."""

    is_full = True

    def create(self, path: str) -> Any:
        if self.is_full:
            raise DiskError("open", path, errno.ENOSPC)
        return super().create(path)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if path.endswith(".qseg"):
            type(self).is_full = False


@contextlib.contextmanager
def full(root: str) -> Iterator[Disk]:
    with contextlib.closing(FullDisk(root)) as disk:
        yield disk


@pytest.mark.parametrize("has_owner", [True, False])
def test_a_cold_disk_that_is_full_at_a_start_gets_room_by_what_is_done_with(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, has_owner: bool
) -> None:
    monkeypatch.setattr(FullDisk, "is_full", True)
    driver = directories.filled()
    driver.drain_and_close()
    if not has_owner:  # as a program from before has left it
        directories.owner_file.unlink()
    driver = directories.opened(directories.hot, cold_disks=full)
    use_up(driver)
    assert directories.cold_segments() == [3, 4, 5]
    driver.engine.close()
    assert faults_of(directories.opened(directories.hot)) == ""


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_without_room_on_a_disk_both_keep_their_token_and_segments_move(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    driver = directories.filled()
    driver.drain_and_close()
    steps: list[str] = []

    def create(disk: PosixDisk, path: str, create: Any = PosixDisk.create) -> Any:
        steps.extend([path] if path.endswith("cold-owner.tmp") else [])
        if path.endswith("cold-owner.tmp") and len(steps) == failing:
            raise DiskError("open", path, errno.ENOSPC)
        return create(disk, path)

    monkeypatch.setattr(PosixDisk, "create", create)
    driver = directories.opened(directories.hot)
    use_up(driver)
    assert directories.cold_segments() == [3, 4, 5]
    assert faults_of(driver) == ""
    driver.engine.close()
    driver = directories.opened(directories.hot)
    driver.run_for(SECOND_NS)
    assert faults_of(driver) == "", "what was kept is taken over again"


def test_another_whole_segment_in_the_place_of_one_is_never_delivered(directories: Directories, tmp_path: Path) -> None:
    driver = directories.filled()
    (tmp_path / "elsewhere").mkdir()
    with contextlib.ExitStack() as disks:
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


def test_a_cold_dir_that_never_was_there_is_no_fault_once_it_is_not_set_any_more(directories: Directories) -> None:
    directories.cold.rmdir()
    driver = directories.opened(directories.hot)
    fill(driver, 4)
    driver.run_for(5 * SECOND_NS)
    assert "No such file or directory" in faults_of(driver)
    assert driver.engine.figures().cold_work == 1
    driver.engine.change_settings(topic_settings(segment_compaction="off"))
    assert driver.engine.figures().cold_work == 0
