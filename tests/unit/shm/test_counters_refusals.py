"""Counters pages that cannot be: names, sizes, and memory that holds something else. Nothing is left of them."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import posix_ipc
import pytest

from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.errors import NoRoom, ShmError
from tests.unit.shm.children import fork, join

REGIONS = 3
ROWS = 4


@pytest.mark.parametrize(
    "name", ["", "quiver-0123456789ab", "/quiver-x", "/quiver-0123456789AB", "/psm_0123456789ab", "/../x"]
)
def test_page_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ShmError, match="12 hex digits"):
        CountersPage.create(name, 1, 1)
    with pytest.raises(ShmError, match="12 hex digits"):
        CountersPage.attach(name)


@pytest.mark.parametrize(("regions", "rows"), [(0, 1), (1, 0), (-1, 1)])
def test_page_without_regions_or_rows_is_refused(name: str, regions: int, rows: int) -> None:
    with pytest.raises(ShmError, match="at least one of each"):
        CountersPage.create(name, regions, rows)


def test_page_that_does_not_fit_is_a_clean_error_and_leaves_no_name(name: str) -> None:
    def run() -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(NoRoom, match="cannot be allocated: File too large"):
            CountersPage.create(name, REGIONS, 100)
        assert len(os.listdir("/proc/self/fd")) == descriptors

    assert join(fork(run)) == 0
    assert not Path(f"/dev/shm{name}").exists()


@pytest.mark.parametrize(
    ("found", "size_bytes", "message"),
    [
        (b"", 0, "still being created: it has 0 bytes"),
        (b"", 4096, "still being created: its magic is"),
        (struct.pack("<8s6Q", b"QVCOUNTS", 2, 1, 1, 1, 0, 0), 4096, "has version 2: this program reads version 1"),
        (struct.pack("<8s6Q", b"QVCOUNTS", 1, 1, 1, 1, 0, 0), 4096, "has 4096 bytes: its header says 1 x 1 rows"),
        (struct.pack("<8s6Q", b"QVCOUNTS", 1, 1, 1 << 63, 1 << 63, 0, 0), 4096, "has 4096 bytes"),
    ],
)
def test_page_attach_to_something_else_is_refused(name: str, found: bytes, size_bytes: int, message: str) -> None:
    memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
    os.pwrite(memory.fd, found, 0)
    os.ftruncate(memory.fd, size_bytes)
    memory.close_fd()
    with pytest.raises(ShmError, match=message):
        CountersPage.attach(name)


def test_page_leaves_no_descriptor_or_mapping(name: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    page = CountersPage.create(name, REGIONS, ROWS)
    reader = CountersPage.attach(name)
    reader.read()
    page.unlink()
    page.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert name not in Path("/proc/self/maps").read_text()
