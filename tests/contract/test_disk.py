"""What every disk must do alike: the real file system, the simulated one, and both behind wrappers that tests put in front."""

from __future__ import annotations

import errno
import os

import pytest

from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from tests.contract.every_disk import content, failing, put
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk

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
    # A kernel may have written them back by now, unasked; the simulated disk never does.
    early = (b"x" * 5_000, None) if isinstance(disk, PosixDisk) else (None,)
    assert file.reread(5_000, 0) in early, "they wait to be written"
    file.fdatasync()
    # None: a file system that keeps files in memory.
    assert file.reread(5_000, 0) in (b"x" * 5_000, None)
    assert file.read(10_000, 1_000) == b"x" * 4_000
    file.close()


def test_a_file_has_a_name_until_the_last_one_is_removed(disk: Disk) -> None:
    file = disk.create("a")
    assert file.has_name()
    disk.rename("a", "b")
    assert file.has_name()
    disk.link("b", "c")
    disk.unlink("b")
    assert file.has_name()
    disk.unlink("c")
    assert not file.has_name()
    put(disk, "b", b"another file")
    assert not file.has_name(), "a name that leads to another file says nothing about this one"
    file.close()
    failing(disk, file.has_name, errno.EBADF)


def test_a_file_or_directory_keeps_its_id_under_another_name_and_shares_it_with_no_other(disk: Disk) -> None:
    disk.make_directory("d")
    put(disk, "d/a", b"one")
    put(disk, "d/b", b"two")
    ids = [disk.file_id(path) for path in ("d", "d/a", "d/b")]
    assert None not in ids
    assert len(set(ids)) == 3
    disk.rename("d", "e")
    assert [disk.file_id(path) for path in ("e", "e/a", "e/b")] == ids
    disk.make_directory("d")
    put(disk, "d/a", b"three")
    assert disk.file_id("d") not in ids
    assert disk.file_id("d/a") not in ids
    assert disk.file_id("d/b") is None
    assert disk.file_id("d/a/below a file") is None
