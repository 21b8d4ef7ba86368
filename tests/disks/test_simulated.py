"""The simulated disk: what becomes durable when, room, locks, and a cache that shows what the disk does not have."""

from __future__ import annotations

import errno
import threading

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import read_whole
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.disks.simulated_files import BLOCK_BYTES, SimFile

POWER_LOSSES = [mode for mode in CrashMode if mode is not CrashMode.KEEP]


def put(disk: SimDisk, path: str, content: bytes, *, sync: bool = True) -> SimFile:
    file = disk.create(path)
    file.write([content], 0)
    if sync:
        file.fsync()
    return file


def content(disk: SimDisk, path: str) -> bytes:
    return read_whole(disk, path, 1 << 20)


# --- durability ------------------------------------------------------------------------------------------------------------


def test_a_file_without_a_durable_name_vanishes_however_well_it_was_synced() -> None:
    disk = SimDisk()
    put(disk, "a", b"abc")
    assert not disk.crash(CrashMode.DROP).exists("a")
    disk.sync_directory(".")
    assert content(disk.crash(CrashMode.DROP), "a") == b"abc"


def test_a_durable_name_says_nothing_about_the_bytes() -> None:
    disk = SimDisk()
    put(disk, "a", b"abc", sync=False)
    disk.sync_directory(".")
    assert content(disk.crash(CrashMode.DROP), "a") == b""


@pytest.mark.parametrize("mode", POWER_LOSSES)
def test_what_is_synced_and_named_survives_every_power_loss(mode: CrashMode) -> None:
    disk = SimDisk()
    disk.make_directory("d/e")
    put(disk, "d/e/a", b"abc" * 1000)
    disk.sync_directory("d/e")
    assert all(content(disk.crash(mode, seed), "d/e/a") == b"abc" * 1000 for seed in range(20))


def test_a_rename_is_durable_with_the_directory_of_the_new_name() -> None:
    disk = SimDisk()
    disk.make_directory("one")
    disk.make_directory("two")
    put(disk, "one/a", b"abc")
    disk.sync_directory("one")
    disk.rename("one/a", "two/a")
    disk.sync_directory("one")
    assert disk.crash(CrashMode.DROP).list_directory("one") == ["a"]
    disk.sync_directory("two")
    left = disk.crash(CrashMode.DROP)
    assert (left.list_directory("one"), left.list_directory("two")) == ([], ["a"])


def test_a_link_is_durable_with_its_directory_and_both_names_are_one_file() -> None:
    disk = SimDisk()
    put(disk, "a", b"abc")
    disk.sync_directory(".")
    disk.link("a", "b")
    assert disk.crash(CrashMode.DROP).list_directory(".") == ["a"]
    disk.sync_directory(".")
    left = disk.crash(CrashMode.DROP)
    assert left.list_directory(".") == ["a", "b"]
    file = left.open_write("a")
    file.write([b"X"], 0)
    assert content(left, "b") == b"Xbc"


def test_an_unlink_may_be_undone_until_its_directory_is_synced() -> None:
    disk = SimDisk()
    put(disk, "a", b"abc")
    disk.sync_directory(".")
    disk.unlink("a")
    assert content(disk.crash(CrashMode.DROP), "a") == b"abc"
    disk.sync_directory(".")
    assert not disk.crash(CrashMode.DROP).exists("a")


def test_made_directories_are_durable() -> None:
    disk = SimDisk()
    disk.make_directory("a/b")
    assert disk.crash(CrashMode.DROP).exists("a/b")


def test_what_lies_in_a_lost_directory_is_lost() -> None:
    disk = SimDisk()
    put(disk, "a", b"")
    disk.sync_directory(".")
    lost = {disk.crash(mode, seed).exists("a") for mode in POWER_LOSSES for seed in range(5)}
    assert lost == {True}


def test_a_killed_process_leaves_everything_and_nothing_more_durable() -> None:
    disk = SimDisk()
    put(disk, "a", b"abc", sync=False)
    killed = disk.crash(CrashMode.KEEP)
    assert content(killed, "a") == b"abc"
    assert not killed.crash(CrashMode.DROP).exists("a")


def test_a_crash_leaves_the_crashed_disk_alone() -> None:
    disk = SimDisk()
    file = put(disk, "a", b"abc", sync=False)
    before = disk.fingerprint()
    for mode in CrashMode:
        left = disk.crash(mode, 3)
        put(left, "b", b"more")
    file.write([b"d"], 3)
    assert content(disk, "a") == b"abcd"
    file.truncate(3)
    assert disk.fingerprint() == before


def test_only_what_was_written_before_a_sync_began_is_covered_by_it() -> None:
    disk = SimDisk()
    file = put(disk, "a", b"abc")
    disk.sync_directory(".")
    disk.pause_in_sync = lambda: file.write([b"late"], 100)
    file.write([b"early"], 3)
    file.fdatasync()
    assert content(disk.crash(CrashMode.DROP), "a") == b"abcearly"
    assert len(content(disk, "a")) == 104


def test_copies_keep_what_is_pending() -> None:
    disk = SimDisk()
    file = put(disk, "a", b"abc")
    disk.sync_directory(".")
    file.write([b"X"], 0)
    twin = disk.copy()
    assert twin.fingerprint() == disk.fingerprint()
    assert content(twin, "a") == b"Xbc"
    assert content(twin.crash(CrashMode.DROP), "a") == b"abc"


def test_fingerprints_tell_contents_sizes_and_names_apart() -> None:
    def made(path: str, data: bytes, size: int) -> int:
        disk = SimDisk()
        put(disk, path, data).truncate(size)
        return disk.fingerprint()

    prints = [made("a", b"x", 1), made("a", b"y", 1), made("a", b"x", 2), made("b", b"x", 1)]
    assert len(set(prints)) == 4
    assert made("a", b"x\0", 2) == made("a", b"x", 2)


# --- failed syncs ------------------------------------------------------------------------------------------------------------


def test_after_a_failed_sync_the_cache_shows_what_no_later_sync_brings_to_the_disk() -> None:
    disk = SimDisk()
    file = put(disk, "a", b"durable")
    disk.sync_directory(".")
    file.write([b"NEVER"], 7)
    file.fail_sync()
    assert content(disk, "a") == b"durableNEVER"
    file.write([b"later"], 12)
    file.fdatasync()
    assert content(disk, "a") == b"durableNEVERlater"
    assert content(disk.crash(CrashMode.KEEP), "a") == b"durableNEVERlater"
    assert content(disk.crash(CrashMode.DROP), "a") == b"durable" + bytes(5) + b"later"


def test_writing_the_bytes_again_makes_them_durable_after_all() -> None:
    disk = SimDisk()
    file = put(disk, "a", b"durable")
    disk.sync_directory(".")
    file.write([b"again"], 7)
    file.fail_sync()
    file.write([file.read(100, 0)], 0)
    file.fsync()
    assert content(disk.crash(CrashMode.DROP), "a") == b"durableagain"


# --- room and locks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_running_out_of_room_is_met_by_allocation_and_writes(code: int) -> None:
    disk = SimDisk(capacity_bytes=4 * BLOCK_BYTES, no_space_errno=code)
    file = disk.create("a")
    with pytest.raises(DiskError) as caught:
        file.allocate(5 * BLOCK_BYTES)
    assert caught.value.errno == code
    assert (file.size(), disk.allocated_bytes("a")) == (0, 0)
    file.allocate(3 * BLOCK_BYTES)
    with pytest.raises(DiskError):
        file.write([bytes(3 * BLOCK_BYTES)], 2 * BLOCK_BYTES)
    assert file.size() == 4 * BLOCK_BYTES, "a short write"


def test_writes_into_allocated_blocks_need_no_room() -> None:
    disk = SimDisk(capacity_bytes=2 * BLOCK_BYTES)
    file = disk.create("a")
    file.allocate(2 * BLOCK_BYTES)
    file.write([b"x" * 2 * BLOCK_BYTES], 0)
    assert disk.free_bytes(".") == 0


def test_room_comes_back_when_the_last_name_and_descriptor_are_gone() -> None:
    disk = SimDisk(capacity_bytes=2 * BLOCK_BYTES)
    file = disk.create("a")
    file.allocate(2 * BLOCK_BYTES)
    disk.unlink("a")
    assert disk.free_bytes(".") == 0
    file.close()
    assert disk.free_bytes(".") == 2 * BLOCK_BYTES
    other = disk.create("b")
    other.allocate(2 * BLOCK_BYTES)
    other.truncate(10)
    assert disk.free_bytes(".") == BLOCK_BYTES


def test_a_read_only_file_opens_only_for_reading_until_it_is_gone() -> None:
    disk = SimDisk()
    put(disk, "a", b"abc").make_read_only()
    for call in (disk.open_write, disk.create):
        with pytest.raises(DiskError) as caught:
            call("a")
        assert caught.value.errno == errno.EACCES
    assert content(disk, "a") == b"abc"
    disk.rename("a", "b")
    disk.unlink("b")


def test_locks_end_with_the_process() -> None:
    disk = SimDisk()
    assert disk.lock("lock") is not None
    assert disk.lock("lock") is None
    left = disk.crash(CrashMode.KEEP)
    assert left.lock("lock") is not None


def test_calls_of_several_threads_do_not_mix() -> None:
    disk = SimDisk()
    file = disk.create("a")

    def write(letter: int) -> None:
        for number in range(200):
            file.write([bytes([letter])], letter * 200 + number)
            file.fdatasync()

    threads = [threading.Thread(target=write, args=(letter,)) for letter in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert file.read(800, 0) == b"".join(bytes([letter]) * 200 for letter in range(4))
