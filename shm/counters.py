"""The counters page: named shared memory where each process keeps its figures and anybody may read them without its help.

Owner: the process that creates the page owns the name; each region has one writing process, and a region's writer may be the page's
creator or any process forked from it. Readers attach by name and cannot write.

Layout, little-endian, everything a u64 word unless said otherwise:

    page header, 128 bytes
        0    8  magic `QVCOUNTS`, written last
        8    8  version = 1
        16   8  figures version, the meaning of kinds and values, given by the creator
        24   8  region count
        32   8  rows per region
        40   8  creation time, UNIX ns
        48   8  process id of the creator
    region, for each region: 64 bytes of header, then its rows
        0    8  sequence lock of process id, generation, start time and of the table as a whole
        8    8  process id of the writer, 0 = never begun
        16   8  generation: how often the region was begun
        24   8  state, a code of the writer's
        32   8  heartbeat, CLOCK_MONOTONIC ns, 0 = none yet
        40   8  start time of the writer, UNIX ns
    row, 512 bytes
        0    8  sequence lock of kind and label, and of which figures the values are
        8    8  kind, 0 = free
        16 216  label, UTF-8, zero padded
        232 256 values, 32 words
        488  24  zero

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
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import posix_ipc

from .errors import NoRoom, NotPermitted, ShmError, WriterStuck
from .names import check_name, hold_name, unlink_name
from .words import WORD_BYTES, SequenceLock, Words, read_stable

MAGIC = b"QVCOUNTS"
VERSION = 1
LABEL_BYTES = 216
VALUES_PER_ROW = 32

_HEADER = struct.Struct("<8s6Q")
_HEADER_BYTES = 128

_REGION_HEADER_WORDS = 8
_REGION_HEADER_BYTES = _REGION_HEADER_WORDS * WORD_BYTES
_SEQUENCE, _PID, _GENERATION, _STATE, _HEARTBEAT, _STARTED = range(6)

_ROW_BYTES = 512
_ROW_WORDS = _ROW_BYTES // WORD_BYTES
_ROW_SEQUENCE, _ROW_KIND = range(2)
_LABEL_OFFSET_BYTES = 2 * WORD_BYTES
_VALUES_OFFSET_BYTES = _LABEL_OFFSET_BYTES + LABEL_BYTES
_VALUES_WORD = _VALUES_OFFSET_BYTES // WORD_BYTES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """One row as a reader found it."""

    kind: int
    label: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """One region as a reader found it; generation 0 = no process has begun it yet."""

    index: int
    pid: int
    generation: int
    state: int
    heartbeat_ns: int
    started_unix_ns: int
    rows: tuple[RowSnapshot, ...]


class CountersPage:
    """One page, created or attached. A fork shares the mapping, so that a child can write its own region."""

    def __init__(self, name: str, mapping: mmap.mmap, *, creator_pid: int) -> None:
        """Take over a mapping of a checked page: use `create` or `attach`. `creator_pid` is 0 for a reader."""
        header = _HEADER.unpack_from(mapping)
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
        fd = _open_new(name)
        try:
            hold_name(fd, name)
            mapping = _allocate(fd, name, _page_bytes(regions, rows_per_region))
        except BaseException:
            unlink_name(name)
            raise
        finally:
            os.close(fd)
        facts = (VERSION, figures_version, regions, rows_per_region, time.time_ns(), os.getpid())
        # The magic goes last, so that nobody attaches to a page without its other facts.
        mapping[: _HEADER.size] = _HEADER.pack(bytes(8), *facts)
        mapping[: len(MAGIC)] = MAGIC
        return cls(name, mapping, creator_pid=os.getpid())

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
        return RegionWriter(self._region_memory(region), region)

    def read(self) -> list[RegionSnapshot]:
        """All regions, each consistent in itself; needs no help of the writers. Raises ShmError after `close`."""
        return [self.read_region(region) for region in range(self.regions)]

    def read_region(self, region: int) -> RegionSnapshot:
        """One region, as `read`."""
        memory = self._region_memory(region)
        words = Words(memory, 0, memory.nbytes // WORD_BYTES)
        return _read_or_as_it_stands(words, _SEQUENCE, lambda: _region_snapshot(region, words, memory))

    def read_head(self, region: int) -> RegionSnapshot:
        """The same without the rows, of which there may be many thousands."""
        memory = self._region_memory(region)
        words = Words(memory, 0, _REGION_HEADER_WORDS)
        return _read_or_as_it_stands(words, _SEQUENCE, lambda: _region_head(region, words, ()))

    def unlink(self) -> None:
        """Remove the name: nobody can attach any more, whoever has the page keeps it. Idempotent.

        Raises:
            ShmError: this process did not create the page.
        """
        if self._creator_pid != os.getpid():
            raise ShmError(f"counters page {self.name} belongs to another process: only its creator removes the name")
        unlink_name(self.name)

    def close(self) -> None:
        """Give up the mapping; it stays while writers made from this page are in use. Idempotent."""
        if self._mapping is None:
            return
        self._memory.release()
        with contextlib.suppress(BufferError):
            self._mapping.close()
        self._mapping = None

    def __repr__(self) -> str:
        state = "closed" if self._mapping is None else "creator" if self._creator_pid else "reader"
        return f"<CountersPage {self.name} regions={self.regions} rows_per_region={self.rows_per_region} {state}>"

    def _region_memory(self, region: int) -> memoryview:
        if self._mapping is None:
            raise ShmError(f"counters page {self.name} is closed")
        if not 0 <= region < self.regions:
            raise ShmError(f"counters page {self.name} has regions 0 to {self.regions - 1}, not {region}")
        size_bytes = _region_bytes(self.rows_per_region)
        start = _HEADER_BYTES + region * size_bytes
        return self._memory[start : start + size_bytes]


class RegionWriter:
    """The one writer of a region: a header and a table of rows. Not thread-safe. Making one writes nothing."""

    def __init__(self, memory: memoryview, region: int) -> None:
        """Take over a region's memory with the rows that are in it: use `CountersPage.writer`."""
        self.region = region
        self._memory = memory
        self._header = Words(memory, 0, _REGION_HEADER_WORDS)
        self._lock = SequenceLock(self._header, _SEQUENCE)
        self._rows: dict[tuple[int, str], RowWriter] = {}
        self._free: list[int] = []
        self._take_stock()

    @property
    def generation(self) -> int:
        """How often the region was begun."""
        return self._header.load(_GENERATION)

    def begin(self, pid: int, started_unix_ns: int) -> None:
        """Start a new life of the region: next generation, no rows, state and heartbeat 0. Ends all row writers of this object."""
        header = self._header
        with self._lock:
            header.store(_PID, pid)
            header.add(_GENERATION, 1)
            header.store(_STATE, 0)
            header.store(_HEARTBEAT, 0)
            header.store(_STARTED, started_unix_ns)
            for row in self._rows.values():
                row._end()
            for index in range(self._row_count()):
                self._row_at(index)._end()
        self._take_stock()

    def set_state(self, state: int) -> None:
        """Store the writer's own state code."""
        self._header.store(_STATE, state)

    def heartbeat(self, now_ns: int) -> None:
        """Say that the writer is alive at `now_ns` of CLOCK_MONOTONIC."""
        self._header.store(_HEARTBEAT, now_ns)

    def row(self, kind: int, label: str) -> RowWriter:
        """The row of that kind and label: the one that exists, else a new one with all values 0.

        A label over 216 bytes of UTF-8 is cut at a character border.

        Raises:
            ShmError: the table is full, or the kind is not positive.
        """
        label = _fitting(label)
        found = self._rows.get((kind, label))
        if found is not None:
            return found
        if kind < 1:
            raise ShmError(f"row kind {kind}: expected a positive number")
        if not self._free:
            raise ShmError(f"region {self.region} has no row left for {label!r}: all {self._row_count()} are in use")
        row = self._row_at(self._free.pop())
        row._begin(int(kind), label)
        self._rows[row.kind, label] = row
        return row

    def drop(self, row: RowWriter) -> None:
        """Free a row of this region and end its writer. Idempotent."""
        if self._rows.get((row.kind, row.label)) is row:
            del self._rows[row.kind, row.label]
            row._end()
            self._free.append(row.index)

    def relabel(self, row: RowWriter, label: str) -> None:
        """Give a row another label; its values stay.

        Raises:
            ShmError: another row of that kind has the label, or the row was dropped.
        """
        label = _fitting(label)
        if self._rows.get((row.kind, row.label)) is not row:
            raise ShmError(f"row {row.label!r} is not a row of region {self.region}, or was dropped")
        if self._rows.get((row.kind, label), row) is not row:
            raise ShmError(f"region {self.region} has another row of kind {row.kind} with the label {label!r}")
        del self._rows[row.kind, row.label]
        row._relabel(label)
        self._rows[row.kind, label] = row

    def __repr__(self) -> str:
        return f"<RegionWriter region={self.region} generation={self.generation} rows={len(self._rows)}>"

    def _take_stock(self) -> None:
        rows = [self._row_at(index) for index in range(self._row_count())]
        self._rows = {(row.kind, row.label): row for row in rows if row.kind}
        self._free = [row.index for row in reversed(rows) if not row.kind]

    def _row_count(self) -> int:
        return self._memory.nbytes // _ROW_BYTES

    def _row_at(self, index: int) -> RowWriter:
        start = _REGION_HEADER_BYTES + index * _ROW_BYTES
        return RowWriter(self._memory[start : start + _ROW_BYTES], index)


class RowWriter:
    """The one writer of a row: 32 values of 64 bits, each visible to readers at once. Made by `RegionWriter.row`."""

    __slots__ = ("_label", "_lock", "_values", "_words", "index", "kind", "label")

    def __init__(self, memory: memoryview, index: int) -> None:
        """Take over a row's memory as it stands."""
        self.index = index
        self._words = Words(memory, 0, 2)
        self._lock = SequenceLock(self._words, _ROW_SEQUENCE)
        self._label = memory[_LABEL_OFFSET_BYTES:_VALUES_OFFSET_BYTES]
        self._values = Words(memory, _VALUES_OFFSET_BYTES, VALUES_PER_ROW)
        self.kind = self._words.load(_ROW_KIND)
        self.label = _decode_label(self._label.tobytes())

    def set(self, index: int, value: int) -> None:
        """Store a value; a negative one as 0. Raises ShmError when the index is over 31 or the row was dropped."""
        self._values.store(index, value if value > 0 else 0)

    def add(self, index: int, delta: int) -> None:
        """Add to a value; below 0 it stays 0. Raises as `set`."""
        value = self._values.load(index) + delta
        self._values.store(index, value if value > 0 else 0)

    def get(self, index: int) -> int:
        """Read a value back. Raises as `set`."""
        return self._values.load(index)

    def __repr__(self) -> str:
        return f"<RowWriter index={self.index} kind={self.kind} label={self.label!r}>"

    def _begin(self, kind: int, label: str) -> None:
        with self._lock:
            for index in range(VALUES_PER_ROW):
                self._values.store(index, 0)
            self._label[:] = _encode_label(label)
            self._words.store(_ROW_KIND, kind)
        self.kind, self.label = kind, label

    def _relabel(self, label: str) -> None:
        with self._lock:
            self._label[:] = _encode_label(label)
        self.label = label

    def _end(self) -> None:
        with self._lock:
            self._words.store(_ROW_KIND, 0)
        self._values.release()


def _region_snapshot(index: int, words: Words, memory: memoryview) -> RegionSnapshot:
    row_words = range(_REGION_HEADER_WORDS, memory.nbytes // WORD_BYTES, _ROW_WORDS)
    rows = (_row_snapshot(words, first, memory) for first in row_words if words.load(first + _ROW_KIND))
    return _region_head(index, words, tuple(row for row in rows if row is not None))


def _region_head(index: int, words: Words, rows: tuple[RowSnapshot, ...]) -> RegionSnapshot:
    _, pid, generation, state, heartbeat_ns, started_unix_ns = words.load_many(0, 6)
    return RegionSnapshot(index, pid, generation, state, heartbeat_ns, started_unix_ns, rows)


def _row_snapshot(words: Words, first: int, memory: memoryview) -> RowSnapshot | None:
    """The row whose words start at `first`, None when it has just been freed."""
    label_start = first * WORD_BYTES + _LABEL_OFFSET_BYTES

    def copy() -> tuple[int, bytes, list[int]]:
        return (
            words.load(first + _ROW_KIND),
            memory[label_start : label_start + LABEL_BYTES].tobytes(),
            words.load_many(first + _VALUES_WORD, VALUES_PER_ROW),
        )

    kind, label, values = _read_or_as_it_stands(words, first + _ROW_SEQUENCE, copy)
    return RowSnapshot(kind, _decode_label(label), tuple(values)) if kind else None


def _read_or_as_it_stands(words: Words, sequence_index: int, read: Callable[[], T]) -> T:
    """A consistent reading, or what is there when the writer died or was stopped in the middle of a change."""
    try:
        return read_stable(words, sequence_index, read)
    except WriterStuck:
        return read()


def _fitting(label: str) -> str:
    """The label as a row can hold it: cut at a character border, without zero bytes."""
    encoded = label.replace("\0", " ").encode("utf-8", errors="replace")
    return encoded[:LABEL_BYTES].decode("utf-8", errors="ignore")


def _encode_label(label: str) -> bytes:
    return label.encode("utf-8").ljust(LABEL_BYTES, b"\0")


def _decode_label(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", errors="replace")


def _region_bytes(rows_per_region: int) -> int:
    return _REGION_HEADER_BYTES + rows_per_region * _ROW_BYTES


def _page_bytes(regions: int, rows_per_region: int) -> int:
    return _HEADER_BYTES + regions * _region_bytes(rows_per_region)


def _open_new(name: str) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(check_name(name), posix_ipc.O_CREX, mode=0o600).fd
    except (posix_ipc.Error, OSError) as error:
        raise ShmError(f"counters page {name} cannot be created: {error}") from error
    return fd


def _open_existing(name: str) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(check_name(name), read_only=True).fd
    except posix_ipc.ExistentialError as error:
        raise ShmError(f"counters page {name} does not exist: its supervisor is gone") from error
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
        raise NoRoom(f"counters page {name} of {size_bytes} bytes cannot be allocated: {error.strerror}") from error


def _map_checked(fd: int, name: str) -> mmap.mmap:
    size_bytes = os.fstat(fd).st_size
    if size_bytes < _HEADER_BYTES:
        raise ShmError(f"{name} is not a counters page, or still being created: it has {size_bytes} bytes")
    mapping = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    magic, version, _, regions, rows_per_region, _, _ = _HEADER.unpack_from(mapping)
    if magic != MAGIC:
        raise ShmError(f"{name} is not a counters page, or still being created: its magic is {magic!r}")
    if version != VERSION:
        raise ShmError(f"counters page {name} has version {version}: this program reads version {VERSION}")
    if size_bytes != _page_bytes(regions, rows_per_region):
        raise ShmError(
            f"counters page {name} has {size_bytes} bytes: its header says {regions} x {rows_per_region} rows"
        )
    return mapping
