"""What every disk must do alike: the real file system, the simulated one, and both behind wrappers that tests put in front."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import FaultyDisk
from quiver_actors.disk.interposed import InterposedDisk
from quiver_actors.disk.posix import PosixDisk
from quiver_actors.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.errors import DiskError

Make = Callable[[Path], Disk]

DISKS: dict[str, Make] = {
    "posix": lambda path: PosixDisk(str(path)),
    "simulated": lambda path: SimDisk(),
    "interposed posix": lambda path: InterposedDisk(PosixDisk(str(path))),
    "faulty simulated": lambda path: FaultyDisk(SimDisk()),
}


@pytest.fixture(params=DISKS, ids=str)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = DISKS[request.param](tmp_path)
    yield made
    inner = made.inner if isinstance(made, InterposedDisk) else made
    if isinstance(inner, PosixDisk):
        inner.close()


def put(disk: Disk, path: str, content: bytes) -> None:
    file = disk.create(path)
    file.write([content], 0)
    file.close()


def content(disk: Disk, path: str) -> bytes:
    return read_whole(disk, path, 1 << 20)


def failing(disk: Disk, call: Callable[[], object], code: int) -> DiskError:
    with pytest.raises(DiskError) as caught:
        call()
    assert caught.value.errno == code
    return caught.value


# --- files ---------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_back(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"one", bytearray(b"two"), memoryview(b"three")], 0)
    file.write([b"TWO"], 3)
    assert file.read(100, 0) == b"oneTWOthree"
    assert file.read(3, 3) == b"TWO"
    assert file.size() == 11
    assert file.path == "a"
    file.close()


def test_reading_ends_at_the_end_of_the_file(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open_read("a")
    assert file.read(10, 2) == b"c"
    assert file.read(10, 3) == b""
    assert file.read(10, 300) == b""
    file.close()


def test_a_write_of_nothing_changes_nothing(disk: Disk) -> None:
    file = disk.create("a")
    file.write([], 0)
    file.write([b""], 50)
    assert file.size() == 0
    file.close()


def test_more_buffers_than_one_call_takes(disk: Disk) -> None:
    file = disk.create("a")
    pieces = [b"%04d" % number for number in range(3000)]
    file.write(pieces, 5)
    assert file.read(1 << 20, 0) == bytes(5) + b"".join(pieces)
    file.close()


def test_a_hole_reads_as_zero(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"x"], 9000)
    assert file.read(9001, 0) == bytes(9000) + b"x"
    file.close()


def test_allocating_grows_with_zeroes_and_never_shrinks(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"abc"], 0)
    file.allocate(10_000)
    assert file.size() == 10_000
    assert file.read(10_000, 0) == b"abc" + bytes(9997)
    file.allocate(100)
    assert file.size() == 10_000
    file.close()
    assert disk.allocated_bytes("a") >= 10_000


def test_truncating_cuts_and_grows_with_zeroes(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"abcdef"], 0)
    file.truncate(3)
    assert (file.size(), file.read(10, 0)) == (3, b"abc")
    file.truncate(6)
    assert file.read(10, 0) == b"abc\0\0\0"
    file.close()


def test_syncs_change_nothing_that_can_be_read(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"abc"], 0)
    file.fdatasync()
    file.write([b"d"], 3)
    file.fsync()
    disk.sync_directory(".")
    assert content(disk, "a") == b"abcd"
    file.close()


def test_creating_empties_what_is_there(disk: Disk) -> None:
    put(disk, "a", b"old and long")
    put(disk, "a", b"new")
    assert content(disk, "a") == b"new"


def test_two_descriptors_of_one_file_see_the_same(disk: Disk) -> None:
    writer = disk.create("a")
    reader = disk.open_read("a")
    writer.write([b"abc"], 0)
    assert reader.read(10, 0) == b"abc"
    assert reader.size() == 3
    writer.close()
    reader.close()


def test_an_open_file_outlives_its_name(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open_write("a")
    disk.unlink("a")
    file.write([b"d"], 3)
    assert file.read(10, 0) == b"abcd"
    assert not disk.exists("a")
    file.close()


def test_a_file_follows_its_rename(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open_write("a")
    disk.rename("a", "b")
    file.write([b"X"], 0)
    file.close()
    assert content(disk, "b") == b"Xbc"


def test_making_read_only_leaves_the_open_file_and_readers_alone(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"abc"], 0)
    file.make_read_only()
    file.write([b"d"], 3)
    file.close()
    assert content(disk, "a") == b"abcd"


def test_closing_twice_is_allowed_and_using_a_closed_file_is_not(disk: Disk) -> None:
    file = disk.create("a")
    file.close()
    file.close()
    failing(disk, lambda: file.write([b"x"], 0), errno.EBADF)
    failing(disk, lambda: file.read(1, 0), errno.EBADF)
    failing(disk, file.fdatasync, errno.EBADF)
    failing(disk, file.fsync, errno.EBADF)
    failing(disk, lambda: file.truncate(0), errno.EBADF)
    failing(disk, lambda: file.allocate(1), errno.EBADF)
    failing(disk, file.size, errno.EBADF)


def test_a_file_opened_for_reading_cannot_be_written(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open_read("a")
    failing(disk, lambda: file.write([b"x"], 0), errno.EBADF)
    file.close()


# --- names ---------------------------------------------------------------------------------------------------------------


def test_a_missing_file_cannot_be_opened(disk: Disk) -> None:
    assert "nothing" in str(failing(disk, lambda: disk.open_read("nothing"), errno.ENOENT))
    failing(disk, lambda: disk.open_write("nothing"), errno.ENOENT)
    failing(disk, lambda: disk.rename("nothing", "b"), errno.ENOENT)
    assert not disk.exists("nothing")
    assert disk.allocated_bytes("nothing") == 0


def test_unlinking_a_missing_file_is_allowed(disk: Disk) -> None:
    disk.unlink("nothing")


def test_renaming_replaces_what_has_the_name(disk: Disk) -> None:
    put(disk, "a", b"new")
    put(disk, "b", b"old")
    disk.rename("a", "b")
    assert disk.list_directory(".") == ["b"]
    assert content(disk, "b") == b"new"


def test_renaming_to_itself_changes_nothing(disk: Disk) -> None:
    put(disk, "a", b"abc")
    disk.rename("a", "a")
    assert content(disk, "a") == b"abc"


def test_renaming_goes_across_directories(disk: Disk) -> None:
    disk.make_directory("one")
    disk.make_directory("two")
    put(disk, "one/a", b"abc")
    disk.rename("one/a", "two/b")
    assert (disk.list_directory("one"), disk.list_directory("two")) == ([], ["b"])
    assert content(disk, "two/b") == b"abc"


def test_a_renamed_directory_takes_along_what_is_in_it(disk: Disk) -> None:
    disk.make_directory("one/inner")
    put(disk, "one/inner/a", b"abc")
    disk.rename("one", "two")
    assert disk.list_directory(".") == ["two"]
    assert not disk.exists("one/inner/a")
    assert content(disk, "two/inner/a") == b"abc"
    disk.make_directory("one")
    assert disk.list_directory("one") == []


def test_of_two_that_link_to_a_name_the_first_has_it(disk: Disk) -> None:
    put(disk, "a", b"first")
    put(disk, "b", b"second")
    disk.link("a", "c")
    failing(disk, lambda: disk.link("b", "c"), errno.EEXIST)
    failing(disk, lambda: disk.link("nothing", "d"), errno.ENOENT)
    disk.unlink("a")
    assert disk.list_directory(".") == ["b", "c"]
    assert content(disk, "c") == b"first"


def test_both_names_of_a_file_show_what_is_written_to_it(disk: Disk) -> None:
    put(disk, "a", b"abc")
    disk.link("a", "b")
    file = disk.open_write("a")
    file.write([b"XY"], 0)
    file.close()
    assert content(disk, "b") == b"XYc"


def test_what_is_created_under_a_name_that_is_taken_is_another_file(disk: Disk) -> None:
    """One whose sync has failed is never written again, also where it could not be removed then."""
    put(disk, "a", b"before")
    former = disk.open_read("a")
    put(disk, "a", b"now")
    assert content(disk, "a") == b"now"
    assert former.read(6, 0) == b"before"
    former.close()
    disk.open_write("a").make_read_only()
    failing(disk, lambda: disk.create("a"), errno.EACCES)
    assert content(disk, "a") == b"now"


def test_a_name_in_a_missing_directory_is_refused(disk: Disk) -> None:
    put(disk, "a", b"abc")
    failing(disk, lambda: disk.create("missing/b"), errno.ENOENT)
    failing(disk, lambda: disk.rename("a", "missing/b"), errno.ENOENT)
    failing(disk, lambda: disk.link("a", "missing/b"), errno.ENOENT)
    failing(disk, lambda: disk.sync_directory("missing"), errno.ENOENT)
    assert content(disk, "a") == b"abc"


def test_a_file_is_no_directory_and_a_directory_no_file(disk: Disk) -> None:
    put(disk, "file", b"")
    disk.make_directory("directory")
    failing(disk, lambda: disk.create("file/a"), errno.ENOTDIR)
    failing(disk, lambda: disk.sync_directory("file"), errno.ENOTDIR)
    failing(disk, lambda: disk.list_directory("file"), errno.ENOTDIR)
    failing(disk, lambda: disk.create("directory"), errno.EISDIR)
    failing(disk, lambda: disk.open_write("directory"), errno.EISDIR)
    failing(disk, lambda: disk.unlink("directory"), errno.EISDIR)
    failing(disk, lambda: disk.rename("file", "directory"), errno.EISDIR)


def test_directories_are_made_with_their_parents_and_again(disk: Disk) -> None:
    disk.make_directory("a/b/c")
    disk.make_directory("a/b/c")
    disk.make_directory("a/b/d")
    assert disk.list_directory("a") == ["b"]
    assert disk.list_directory("a/b") == ["c", "d"]
    assert disk.exists("a/b/c")
    disk.sync_directory("a/b")


def test_listing_is_sorted_and_shows_one_level(disk: Disk) -> None:
    disk.make_directory("d/e")
    for name in ("d/b", "d/a", "d/e/deeper"):
        put(disk, name, b"")
    assert disk.list_directory("d") == ["a", "b", "e"]
    assert disk.list_directory("missing") == []


# --- locks, space, helpers -------------------------------------------------------------------------------------------------


def test_a_lock_is_exclusive_until_released(disk: Disk) -> None:
    lock = disk.lock("lock")
    assert lock is not None
    assert disk.lock("lock") is None
    assert disk.exists("lock")
    lock.release()
    lock.release()
    again = disk.lock("lock")
    assert again is not None
    again.release()


def test_locks_of_two_files_do_not_meet(disk: Disk) -> None:
    locks = [disk.lock("a"), disk.lock("b")]
    assert None not in locks
    for lock in locks:
        assert lock is not None
        lock.release()


def test_free_space_is_told(disk: Disk) -> None:
    disk.make_directory("d")
    assert disk.free_bytes("d") > 0
    failing(disk, lambda: disk.free_bytes("missing"), errno.ENOENT)


def test_an_atomic_write_replaces_the_content_and_leaves_nothing_else(disk: Disk) -> None:
    write_atomically(disk, "a", b"first")
    write_atomically(disk, "a", b"second")
    assert content(disk, "a") == b"second"
    assert disk.list_directory(".") == ["a"]


def test_reading_whole_files_is_bounded(disk: Disk) -> None:
    put(disk, "a", b"abcdef")
    assert read_whole(disk, "a", 4) == b"abcd"
    assert read_whole(disk, "a", 400) == b"abcdef"


def test_what_was_synced_survives_and_only_a_real_disk_can_show_its_descriptor(disk: Disk) -> None:
    put(disk, "a", b"abc")
    file = disk.open_read("a")
    if isinstance(disk, PosixDisk):
        assert os.fstat(file.fileno()).st_size == 3
    elif isinstance(disk, SimDisk):
        with pytest.raises(OSError, match="descriptor"):
            file.fileno()
        assert not disk.crash(CrashMode.DROP).exists("a")
    file.close()


def test_bytes_on_the_disk_can_be_read_from_there(disk: Disk) -> None:
    file = disk.create("a")
    file.write([b"x" * 5_000], 0)
    assert file.is_cached()
    assert file.reread(5_000, 0) is None, "they wait to be written"
    file.fdatasync()
    # None: a file system that keeps files in memory.
    assert file.reread(5_000, 0) in (b"x" * 5_000, None)
    assert file.read(10_000, 1_000) == b"x" * 4_000
    file.close()
