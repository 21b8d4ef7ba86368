"""The counters page: named shared memory where each process keeps its figures and anybody may read them without its help.

Owner: the process that creates the page owns the name; each region has one writing process, and a region's writer may be the page's
creator or any process forked from it. Readers attach by name and cannot write. `counters_layout` has the layout.

Invariants:
- Each value is whole at any time. Values of one row are not a snapshot of one moment.
- A reader never sees the values of one label under another, whatever the writer does meanwhile. The one exception is a writer
  that died or was stopped in the middle of such a change: its row is then returned as it stands, since figures of a stopped
  process are wanted most of all.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time

import posix_ipc

from .counters_layout import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    REGION_HEADER_WORDS,
    SEQUENCE,
    VALUES_PER_ROW,
    VERSION,
    RegionSnapshot,
    RowSnapshot,
    page_bytes,
    read_or_as_it_stands,
    region_bytes,
    region_head,
    region_snapshot,
)
from .counters_writer import RegionWriter, RowWriter
from .errors import NoRoom, NotPermitted, ShmError
from .names import check_name, hold_name, unlink_name
from .words import WORD_BYTES, Words

__all__ = ["VALUES_PER_ROW", "CountersPage", "RegionSnapshot", "RegionWriter", "RowSnapshot", "RowWriter"]

_SWEEPS_MAX = 16


class CountersPage:
    """One page, created or attached. A fork shares the mapping, so that a child can write its own region."""

    def __init__(self, name: str, mapping: mmap.mmap, *, creator_pid: int) -> None:
        """Take over a mapping of a checked page: use `create` or `attach`. `creator_pid` is 0 for a reader."""
        header = HEADER.unpack_from(mapping)
        self.name = name
        self.figures_version: int = header[2]
        self.regions: int = header[3]
        self.rows_per_region: int = header[4]
        self.created_unix_ns: int = header[5]
        self.size_bytes = len(mapping)
        self._creator_pid = creator_pid
        self._mapping: mmap.mmap | None = mapping
        self._memory = memoryview(mapping)

    @classmethod
    def create(cls, name: str, regions: int, rows_per_region: int, figures_version: int = 1) -> CountersPage:
        """Make the page under a new name (`names.new_name()`), readable and writable by this user only.

        Raises:
            NoRoom: `/dev/shm` is full.
            ShmError: the name is taken or not allowed, or the kernel refuses.
        """
        if regions < 1 or rows_per_region < 1:
            raise ShmError(f"a page of {regions} regions of {rows_per_region} rows: expected at least one of each")
        fd = _open_held(name)
        try:
            mapping = _allocate(fd, name, page_bytes(regions, rows_per_region))
        except BaseException:
            unlink_name(name)
            raise
        finally:
            os.close(fd)
        facts = (VERSION, figures_version, regions, rows_per_region, time.time_ns(), os.getpid())
        # The magic goes last, so that nobody attaches to a page without its other facts.
        mapping[: HEADER.size] = HEADER.pack(bytes(8), *facts)
        mapping[: len(MAGIC)] = MAGIC
        return cls(name, mapping, creator_pid=os.getpid())

    @classmethod
    def private(cls, regions: int, rows_per_region: int, figures_version: int = 1) -> CountersPage:
        """Make a page without a name in memory of this process alone. A fork does not share it."""
        mapping = mmap.mmap(-1, page_bytes(regions, rows_per_region), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        facts = (VERSION, figures_version, regions, rows_per_region, time.time_ns(), os.getpid())
        mapping[: HEADER.size] = HEADER.pack(MAGIC, *facts)
        return cls("", mapping, creator_pid=os.getpid())

    @classmethod
    def attach(cls, name: str) -> CountersPage:
        """Map an existing page for reading.

        Raises:
            ShmError: no such page, not a page of this version, or still being created.
        """
        fd = _open_existing(name)
        try:
            mapping = _map_checked(fd, name)
        except OSError as error:
            raise ShmError(f"counters page {name} cannot be mapped: {error.strerror}") from error
        finally:
            os.close(fd)
        return cls(name, mapping, creator_pid=0)

    def writer(self, region: int) -> RegionWriter:
        """The writing side of one region, for its one writing process.

        Raises:
            ShmError: no such region, or the page was attached for reading.
        """
        if not self._creator_pid:
            raise ShmError(f"counters page {self.name} is attached for reading only")
        return RegionWriter(self.region_memory(region), region)

    def read(self) -> list[RegionSnapshot]:
        """All regions, each consistent in itself; needs no help of the writers. Raises ShmError after `close`."""
        return [self.read_region(region) for region in range(self.regions)]

    def read_region(self, region: int) -> RegionSnapshot:
        """One region, read as `read` does."""
        memory = self.region_memory(region)
        words = Words(memory, 0, memory.nbytes // WORD_BYTES)
        return read_or_as_it_stands(words, SEQUENCE, lambda: region_snapshot(region, words, memory))

    def read_head(self, region: int) -> RegionSnapshot:
        """One region without its rows, of which there may be many thousands."""
        memory = self.region_memory(region)
        words = Words(memory, 0, REGION_HEADER_WORDS)
        return read_or_as_it_stands(words, SEQUENCE, lambda: region_head(region, words, ()))

    def unlink(self) -> None:
        """Remove the name: nobody can attach any more, whoever has the page keeps it. Idempotent.

        Raises:
            ShmError: this process did not create the page.
        """
        if self._creator_pid != os.getpid():
            raise ShmError(f"counters page {self.name} belongs to another process: only its creator removes the name")
        unlink_name(self.name)

    def close(self) -> None:
        """Close the mapping; it stays while writers made from this page are in use. Idempotent."""
        if self._mapping is None:
            return
        self._memory.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()
        self._mapping = None

    def __repr__(self) -> str:
        state = "closed" if self._mapping is None else "creator" if self._creator_pid else "reader"
        return f"<CountersPage {self.name} regions={self.regions} rows_per_region={self.rows_per_region} {state}>"

    def region_memory(self, region: int) -> memoryview:
        """The live memory of one region, for readers and the region's writer.

        Raises:
            ShmError: no such region, or the page is closed.
        """
        if self._mapping is None:
            raise ShmError(f"counters page {self.name} is closed")
        if not 0 <= region < self.regions:
            raise ShmError(f"counters page {self.name} has regions 0 to {self.regions - 1}, not {region}")
        size_bytes = region_bytes(self.rows_per_region)
        start = HEADER_BYTES + region * size_bytes
        return self._memory[start : start + size_bytes]


def _open_new(name: str) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(check_name(name), posix_ipc.O_CREX, mode=0o600).fd
    except (posix_ipc.Error, OSError) as error:
        raise ShmError(f"counters page {name} cannot be created: {error}") from error
    return fd


def _open_held(name: str) -> int:
    """Make named memory that no sweeper removes; one that starts at the same time may have been faster, so it is made again."""
    for _ in range(_SWEEPS_MAX):
        fd = _open_new(name)
        try:
            if hold_name(fd, name):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise ShmError(
        f"counters page {name} was removed {_SWEEPS_MAX} times before it was in use: does another program clean /dev/shm?"
    )


def _open_existing(name: str) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(check_name(name), read_only=True).fd
    except posix_ipc.ExistentialError as error:
        raise ShmError(f"counters page {name} does not exist (any more)") from error
    except posix_ipc.PermissionsError as error:
        raise NotPermitted(f"counters page {name} belongs to another user") from error
    except (posix_ipc.Error, OSError) as error:
        raise ShmError(f"counters page {name} cannot be opened: {error}") from error
    return fd


def _allocate(fd: int, name: str, size_bytes: int) -> mmap.mmap:
    """Give new shared memory its pages now: a full file system is an error here instead of SIGBUS at some later store."""
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        return mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise NoRoom(
            f"counters page {name} of {size_bytes} bytes cannot be allocated: {error.strerror}; it lies in /dev/shm"
        ) from error


def _map_checked(fd: int, name: str) -> mmap.mmap:
    size_bytes = os.fstat(fd).st_size
    if size_bytes < HEADER_BYTES:
        raise ShmError(f"{name} is not a counters page, or still being created: it has {size_bytes} bytes")
    mapping = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    magic, version, _, regions, rows_per_region, _, _ = HEADER.unpack_from(mapping)
    if magic != MAGIC:
        raise ShmError(f"{name} is not a counters page, or still being created: its magic is {magic!r}")
    if version != VERSION:
        raise ShmError(f"counters page {name} has version {version}: this program reads version {VERSION}")
    if size_bytes != page_bytes(regions, rows_per_region):
        raise ShmError(
            f"counters page {name} has {size_bytes} bytes: its header says {regions} x {rows_per_region} rows"
        )
    return mapping
