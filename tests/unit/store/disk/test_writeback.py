"""Data written beside a sync does not wait in memory for the next one."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest

from quiver_actors.store.disk.posix import PosixDisk

PAGE, PAGES = 4096, 16
_CACHESTAT = 451
_libc = ctypes.CDLL(None, use_errno=True)


def dirty_pages(descriptor: int, offset: int, length: int) -> int:
    """Pages of the range that nobody has begun to write to the disk."""
    wanted, found = (ctypes.c_uint64 * 2)(offset, length), (ctypes.c_uint64 * 5)()
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(found), 0):
        pytest.skip("this kernel has no cachestat")
    return found[1]


def test_what_is_written_while_a_sync_is_under_way_goes_to_the_disk_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = PosixDisk(str(tmp_path))
    file = disk.create("log")
    file.allocate(4 * PAGES * PAGE)
    file.write([bytes(PAGES * PAGE)], 0)
    if not dirty_pages(file.fileno(), 0, PAGES * PAGE):
        pytest.skip("this file system keeps nothing back")
    file.fdatasync()
    if dirty_pages(file.fileno(), 0, PAGES * PAGE):
        pytest.skip("this file system keeps files in memory")
    begun, may_end = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        may_end.wait()

    monkeypatch.setattr(os, "fdatasync", slow)
    thread = threading.Thread(target=file.fdatasync)
    thread.start()
    begun.wait()
    file.write([b"\1" * PAGE] * PAGES, PAGES * PAGE)
    left = dirty_pages(file.fileno(), PAGES * PAGE, PAGES * PAGE)
    may_end.set()
    thread.join()
    assert left == 0, f"{left} of {PAGES} pages wait for the next sync"
    assert file.read(PAGES * PAGE, PAGES * PAGE) == b"\1" * PAGES * PAGE
    file.close()
    disk.close()
