"""A copied data directory and its original name one cold directory: one of the two changes what lies there, and says what is lost of it."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from quiver_actors.store.files.cold_owner import decode_owner
from tests.support.cold_directories import ENGINE, Directories, faults_of, fill, use_up
from tests.support.engine_driver import EngineDriver
from tests.unit.store.engine.test_cold_segments import gaps_of, numbers_through_descriptors


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Directories]:
    with contextlib.ExitStack() as disks:
        yield Directories(tmp_path, disks)


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


@pytest.mark.parametrize("has_looked", [True, False])
def test_a_topic_that_is_deleted_on_a_copy_takes_nothing_along(directories: Directories, has_looked: bool) -> None:
    original = directories.filled()
    copy, before = directories.copied(), directories.content()
    if has_looked:
        copy.run_for(SECOND_NS)
    for driver in (copy, original):
        assert directories.content() == before
        removal = driver.engine.storage.remove_cold()
        assert removal is not None
        removal.run()
    assert list(directories.cold.glob(f"{ENGINE}/*/*")) == []
