"""The failing disk: which call fails, how, how long, and from where it came."""

from __future__ import annotations

import contextlib
import errno

import pytest

from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.store.disk.interposed import KINDS
from quiver_actors.store.disk.protocol import read_whole, write_atomically
from tests.disks.crashes import CrashMode
from tests.disks.faulty import ANY, MUTATING, CallSite, FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk


def failures(disk: FaultyDisk, count: int) -> list[int]:
    """Which of so many atomic writes fail."""
    found = []
    for number in range(count):
        try:
            write_atomically(disk, f"file{number}", b"abc")
        except DiskError:
            found.append(number)
    return found


def test_the_nth_call_of_a_kind_fails_once() -> None:
    disk = FaultyDisk(SimDisk())
    fault = disk.fail("rename", 3, errno.EIO)
    assert failures(disk, 6) == [2]
    assert fault.hits == 1


def test_from_then_on_every_call_of_the_given_kinds_fails() -> None:
    disk = FaultyDisk(SimDisk())
    disk.fail("rename", 3, errno.EIO, then=["rename"])
    assert failures(disk, 6) == [2, 3, 4, 5]
    disk.heal()
    assert failures(disk, 6) == []


def test_a_failure_may_be_followed_by_failures_of_other_kinds() -> None:
    disk = FaultyDisk(SimDisk())
    disk.fail("rename", 2, errno.EIO, then=KINDS)
    assert failures(disk, 3) == [1, 2]
    with pytest.raises(DiskError):
        disk.list_directory(".")


def test_faults_count_calls_from_when_they_were_set_and_only_on_their_paths() -> None:
    disk = FaultyDisk(SimDisk())
    failures(disk, 2)
    disk.fail("fdatasync", 1, errno.EIO, path_part="file3")
    assert failures(disk, 5) == [3]


@pytest.mark.parametrize(("kind", "fails"), [(ANY, True), (MUTATING, False)])
def test_kinds_can_be_all_or_all_that_change_something(kind: str, fails: bool) -> None:
    disk = FaultyDisk(SimDisk())
    fault = disk.fail(kind, 1, errno.EIO)
    with pytest.raises(DiskError) if fails else contextlib.nullcontext():
        disk.list_directory(".")
    assert fault.hits == fails
    with contextlib.nullcontext() if fails else pytest.raises(DiskError):
        disk.create("a")


def test_a_write_may_be_done_in_part() -> None:
    disk = FaultyDisk(SimDisk())
    file = disk.create("a")
    disk.fail("write", 1, errno.ENOSPC, written_share=0.5)
    with pytest.raises(DiskError):
        file.write([b"abc", b"def"], 10)
    assert read_whole(disk, "a", 100) == bytes(10) + b"abc"


def test_a_failed_call_is_not_done() -> None:
    disk = FaultyDisk(SimDisk())
    write_atomically(disk, "a", b"abc")
    disk.fail("rename", 1, errno.EIO)
    disk.fail("unlink", 1, errno.EIO)
    with pytest.raises(DiskError):
        disk.rename("a", "b")
    with pytest.raises(DiskError):
        disk.unlink("a")
    assert disk.list_directory(".") == ["a"]


def test_a_failed_sync_leaves_what_the_kernel_leaves() -> None:
    inner = SimDisk()
    disk = FaultyDisk(inner)
    file = disk.create("a")
    inner.sync_directory(".")
    file.write([b"abc"], 0)
    disk.fail("fdatasync", 1, errno.EIO)
    with pytest.raises(DiskError):
        file.fdatasync()
    file.fdatasync()
    assert read_whole(disk, "a", 10) == b"abc"
    assert read_whole(inner.crash(CrashMode.DROP), "a", 10) == b""


def test_a_lying_disk_says_yes_and_does_nothing() -> None:
    inner = SimDisk()
    disk = FaultyDisk(inner)
    disk.lies = True
    file = disk.create("a")
    file.write([b"abc"], 0)
    file.fsync()
    disk.sync_directory(".")
    assert read_whole(disk, "a", 10) == b"abc"
    assert not inner.crash(CrashMode.DROP).exists("a")


def test_errors_name_the_operation_as_the_real_disk_does() -> None:
    disk = FaultyDisk(SimDisk())
    file = disk.create("a")
    disk.fail("allocate", 1, errno.EDQUOT)
    with pytest.raises(DiskError) as caught:
        file.allocate(10)
    assert (caught.value.operation, caught.value.path) == ("fallocate", "a")


def test_the_process_may_end_at_a_call_and_nothing_of_ours_stops_it() -> None:
    disk = FaultyDisk(SimDisk())
    disk.crash_at(2)
    disk.create("a")

    def careless() -> None:
        with contextlib.suppress(QuiverError, Exception):
            disk.create("b")

    with pytest.raises(SimulatedCrash):
        careless()
    assert disk.list_directory(".") == ["a"]


def test_calls_are_counted_by_where_they_come_from() -> None:
    disk = FaultyDisk(FaultyDisk(SimDisk()))
    failures(disk, 3)
    disk.create("x")
    module = "quiver_actors.store.disk.protocol"
    assert disk.calls[CallSite("rename", module, "write_atomically")] == 3
    assert disk.calls[CallSite("write", module, "write_atomically")] == 3
    assert disk.calls[CallSite("create", __name__, test_calls_are_counted_by_where_they_come_from.__qualname__)] == 1
    assert str(disk.history[0]) == f"{module}:write_atomically:create"
    assert disk.mutating_count == 13
