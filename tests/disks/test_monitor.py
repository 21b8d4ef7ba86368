"""The monitor speaks up for each broken rule, and for none that is kept."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.interposed import Call
from quiver_actors.store.disk.protocol import write_atomically
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk


@pytest.fixture
def faulty() -> FaultyDisk:
    return FaultyDisk(SimDisk())


@pytest.fixture
def disk(faulty: FaultyDisk) -> OrderMonitor:
    made = OrderMonitor(faulty, may_unlink=lambda path: path != "needed.qseg", sequences_in=_sequences)
    made.make_directory("wal")
    return made


def _sequences(write: Call) -> list[int]:
    """Each byte that is written is a log entry with that sequence."""
    return list(b"".join(write.buffers))


def broken(call: Callable[[], object], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        call()


def put(disk: OrderMonitor, path: str, content: bytes, *, sync: bool = True) -> None:
    file = disk.create(path)
    file.write([content], 0)
    if sync:
        file.fdatasync()
    file.close()


def test_replacing_a_file_in_the_right_order_is_fine(disk: OrderMonitor) -> None:
    for content in (b"one", b"two"):
        write_atomically(disk, "core", content)
        disk.sync_directory(".")


def test_naming_a_file_whose_bytes_are_not_synced_is_not(disk: OrderMonitor) -> None:
    put(disk, "core.tmp", b"abc", sync=False)
    broken(lambda: disk.rename("core.tmp", "core"), "not synced")


def test_a_second_name_asks_for_synced_bytes_too(disk: OrderMonitor) -> None:
    put(disk, "a.tmp", b"abc", sync=False)
    broken(lambda: disk.link("a.tmp", "a"), "not synced")
    put(disk, "b.tmp", b"abc")
    disk.link("b.tmp", "b")
    disk.unlink("b.tmp")
    disk.sync_directory(".")
    put(disk, "c.tmp", b"abc")
    disk.rename("c.tmp", "b")


def test_the_active_log_may_have_grown_since_its_sync(disk: OrderMonitor) -> None:
    file = disk.create("wal/spare.tmp")
    file.write([b"abc"], 0)
    broken(lambda: disk.rename("wal/spare.tmp", "wal/quiver.wal"), "not synced")
    file.fdatasync()
    file.write([b"def"], 3)
    disk.rename("wal/spare.tmp", "wal/quiver.wal")
    broken(lambda: disk.rename("wal/quiver.wal", "wal/quiver.wal.1"), "not synced")


def test_a_temporary_name_asks_for_nothing(disk: OrderMonitor) -> None:
    put(disk, "a.tmp", b"abc", sync=False)
    disk.rename("a.tmp", "b.tmp")
    disk.unlink("b.tmp")


def test_a_name_is_not_taken_from_a_file_whose_new_name_is_not_durable(disk: OrderMonitor) -> None:
    put(disk, "wal/one.tmp", b"1")
    put(disk, "wal/two.tmp", b"2")
    disk.rename("wal/one.tmp", "wal/quiver.wal")
    disk.sync_directory("wal")
    disk.rename("wal/quiver.wal", "wal/quiver.wal.1")
    broken(lambda: disk.rename("wal/two.tmp", "wal/quiver.wal"), "only durable name")
    disk.sync_directory("wal")
    disk.rename("wal/two.tmp", "wal/quiver.wal")


def test_a_file_whose_sync_failed_is_left_alone(disk: OrderMonitor, faulty: FaultyDisk) -> None:
    file = disk.create("a.tmp")
    file.write([b"abc"], 0)
    faulty.fail("fdatasync", 1, errno.EIO)
    with pytest.raises(DiskError):
        file.fdatasync()
    for call in (file.fdatasync, file.fsync, lambda: file.write([b"d"], 3)):
        broken(call, "failed before")
    broken(lambda: disk.rename("a.tmp", "a"), "not synced")
    broken(lambda: disk.open_write("a.tmp"), "failed before")
    put(disk, "a.tmp", b"a new file")


def test_a_file_whose_write_failed_is_not_written_again(disk: OrderMonitor, faulty: FaultyDisk) -> None:
    file = disk.create("a.tmp")
    faulty.fail("write", 1, errno.EIO)
    with pytest.raises(DiskError):
        file.write([b"abc"], 0)
    broken(lambda: file.write([b"abc"], 0), "failed before")
    file.fdatasync()  # a sync may be under way already


def test_running_out_of_room_in_a_write_is_no_failure_of_the_file(disk: OrderMonitor, faulty: FaultyDisk) -> None:
    file = disk.create("a.tmp")
    faulty.fail("write", 1, errno.ENOSPC)
    with pytest.raises(DiskError):
        file.write([b"abc"], 0)
    file.write([b"abc"], 0)


def test_a_segment_goes_only_when_nobody_needs_it(disk: OrderMonitor) -> None:
    put(disk, "needed.qseg", b"")
    put(disk, "done.qseg", b"")
    disk.unlink("done.qseg")
    broken(lambda: disk.unlink("needed.qseg"), "may be needed")


def test_progress_that_is_told_asks_for_synced_bytes_under_a_durable_name(disk: OrderMonitor) -> None:
    disk.progress_told("quiver.sub.s")  # of a former process
    file = disk.create("quiver.sub.s")
    disk.sync_directory(".")
    file.write([b"abc"], 0)
    broken(lambda: disk.progress_told("quiver.sub.s"), "not synced")
    file.fdatasync()
    disk.progress_told("quiver.sub.s")
    put(disk, "quiver.sub.s.tmp", b"newer")
    disk.rename("quiver.sub.s.tmp", "quiver.sub.s")
    broken(lambda: disk.progress_told("quiver.sub.s"), "durable name")
    disk.sync_directory(".")
    disk.progress_told("quiver.sub.s")


def test_an_acknowledgement_asks_for_synced_bytes_under_a_durable_name(disk: OrderMonitor) -> None:
    file = disk.create("wal/spare.tmp")
    broken(lambda: disk.acknowledged(1), "never written")
    file.write([bytes([1])], 0)
    broken(lambda: disk.acknowledged(1), "not synced")
    file.fdatasync()
    disk.sync_directory("wal")
    broken(lambda: disk.acknowledged(1), "durable name")
    disk.rename("wal/spare.tmp", "wal/quiver.wal")
    broken(lambda: disk.acknowledged(1), "durable name")
    disk.sync_directory("wal")
    disk.acknowledged(1)
    file.write([bytes([2])], 1)
    broken(lambda: disk.acknowledged(2), "not synced")
    disk.acknowledged(1)


def test_a_later_rename_does_not_take_the_durable_name_away(disk: OrderMonitor) -> None:
    put(disk, "wal/spare.tmp", bytes([1]))
    disk.rename("wal/spare.tmp", "wal/quiver.wal.1")
    disk.sync_directory("wal")
    disk.rename("wal/quiver.wal.1", "segment.qseg")
    disk.acknowledged(1)


def test_a_broken_rule_shows_the_calls_before(disk: OrderMonitor) -> None:
    put(disk, "core.tmp", b"abc", sync=False)
    with pytest.raises(AssertionError) as caught:
        disk.rename("core.tmp", "core")
    assert "write core.tmp at 0, 3 bytes" in str(caught.value)
    assert "rename core.tmp -> core" in str(caught.value)
