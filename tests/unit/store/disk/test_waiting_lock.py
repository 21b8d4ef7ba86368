"""Locks that are waited for: handed on when the holder lets go or is killed, and given up in time."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.posix import PosixDisk

WAIT_SECONDS = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    return PosixDisk(str(tmp_path))


def test_a_lock_goes_to_who_waits_for_it(disk: PosixDisk) -> None:
    held = disk.lock("lock")
    assert held is not None
    order: list[int] = []

    def hold(number: int) -> None:
        lock = disk.lock("lock", WAIT_SECONDS)
        assert lock is not None
        order.append(number)
        # Exclusive for as long as it is held.
        assert disk.lock("lock") is None
        lock.release()

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert order == []
    held.release()
    for thread in threads:
        thread.join()
    assert sorted(order) == [0, 1, 2, 3]


def test_the_lock_of_a_killed_process_is_free(disk: PosixDisk) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        assert disk.lock("lock") is not None
        os.write(writing, b"x")
        signal.pause()
    try:
        assert os.read(reading, 1) == b"x"
        assert disk.lock("lock", 0.001) is None
    finally:
        threading.Thread(target=os.kill, args=(child, signal.SIGKILL)).start()
    lock = disk.lock("lock", WAIT_SECONDS)
    assert lock is not None
    os.waitpid(child, 0)
    lock.release()
    os.close(reading)
    os.close(writing)


def test_who_has_given_up_waiting_takes_no_lock_later(disk: PosixDisk) -> None:
    held = disk.lock("lock")
    assert held is not None
    assert disk.lock("lock", 0.001) is None
    held.release()
    for _ in range(3):
        lock = disk.lock("lock", WAIT_SECONDS)
        assert lock is not None
        lock.release()


def test_a_file_that_cannot_be_locked_is_told(disk: PosixDisk, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError):
        disk.lock("file/lock", WAIT_SECONDS)
