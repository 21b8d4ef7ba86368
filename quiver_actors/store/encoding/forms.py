"""Runs of bundles that differ in their values alone: filled into a form, instead of written batch by batch.

Batches of one schema with as many rows, without nulls, of fixed-width columns and of texts that add up to as many bytes, have the same
Arrow message but for the values in its body. So their entries are copies of one: Arrow puts the batches together in one call, and numpy
lays each column into all entries at once. Buffers keep the form that they were last laid out in, so that nothing but values is written.

The bytes are those that Arrow writes for batches that own their buffers. Of a slice it writes up to 63 bytes of what stands behind it in
its parent; in a form nothing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import SLOT_ROW
from quiver_actors.base.units import KIB, MIB
from quiver_actors.store.encoding.entries import CRC_BYTES, ENTRY_HEAD_BYTES
from quiver_actors.store.encoding.run_layout import Integers, RunLayout, Streams, layout_of, write_run

RUN_BYTES_MAX = MIB
"""The size of one run: what a producer's core keeps in its cache between encoding, checksum and copy."""
FORM_BYTES_MAX = 16 * KIB
"""The size up to which entries get a form: of larger ones Arrow's part is small, and their values would be copied once more."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""Entries or their bodies, one row for each; or the bytes of one entry."""
Buffers: TypeAlias = Sequence[pa.Buffer]


@dataclass(frozen=True, slots=True)
class _Values:
    """A column whose values are whole bytes, or the texts of a text column. `start` is counted from the start of an entry's body."""

    start: int
    size_bytes: int

    def lay(self, bodies: Bytes, buffers: Buffers) -> bool:
        """Fill the column into all bodies, from what Arrow made of all batches together; False if it does not fit."""
        size_bytes = self.size_bytes
        values = np.frombuffer(buffers[-1], np.uint8, len(bodies) * size_bytes)
        bodies[:, self.start : self.start + size_bytes] = values.reshape(len(bodies), size_bytes)
        return True

    def blank(self) -> list[bytes]:
        """The buffers of one batch, but for the values, without the validity."""
        return [bytes(self.size_bytes)]

    def is_in(self, bodies: Bytes) -> bool:
        """Whether bodies that Arrow wrote have such a column, as far as their size leaves that open."""
        return True

    @property
    def body_end(self) -> int:
        """Where the next column begins."""
        return self.start + _padded(self.size_bytes)


@dataclass(frozen=True, slots=True)
class _Bits(_Values):
    """A column of booleans."""

    rows: int

    def lay(self, bodies: Bytes, buffers: Buffers) -> bool:
        bits = np.unpackbits(np.frombuffer(buffers[1], np.uint8), count=len(bodies) * self.rows, bitorder="little")
        packed = np.packbits(bits.reshape(len(bodies), self.rows), axis=1, bitorder="little")
        bodies[:, self.start : self.start + self.size_bytes] = packed
        return True


@dataclass(frozen=True, slots=True)
class _Texts(_Values):
    """The offsets of a column of texts or binaries, and the texts. The last offset, which is their length in bytes, belongs to the form."""

    rows: int
    offset_type: np.dtype[np.signedinteger]
    texts: _Values

    @property
    def body_end(self) -> int:
        return self.texts.body_end

    def lay(self, bodies: Bytes, buffers: Buffers) -> bool:
        count, texts = len(bodies), self.texts
        offsets = np.frombuffer(buffers[1], self.offset_type, count * self.rows + 1)
        starts = offsets[:-1].reshape(count, self.rows)
        if (offsets[self.rows :: self.rows] - starts[:, 0] != texts.size_bytes).any():
            return False
        own = (starts - starts[:, :1]).view(np.uint8)
        bodies[:, self.start : self.start + own.shape[1]] = own
        return not texts.size_bytes or texts.lay(bodies, buffers)

    def blank(self) -> list[bytes]:
        offsets = np.zeros(self.rows + 1, self.offset_type)
        offsets[-1] = self.texts.size_bytes
        return [offsets.tobytes(), *self.texts.blank()]

    def is_in(self, bodies: Bytes) -> bool:
        end = self.start + self.size_bytes
        lasts = bodies[:, end - self.offset_type.itemsize : end]
        return bool((lasts == lasts[0]).all())


Slots: TypeAlias = "list[tuple[int, tuple[_Values, ...]]]"
"""Place of each slot's body in the entry, and the columns in the body."""


@dataclass(frozen=True, slots=True, eq=False)
class RunForm:
    """The common part of entries that differ only in their values. Immutable, so that threads may share it."""

    streams: Streams
    entry: Bytes
    """The bytes of one entry, with zeroes where its values and its CRC belong."""
    slots: Slots
    entry_row: Integers
    """The entry's `ENTRY_ROW` as words, without CRC and item count."""
    slot_rows: bytes

    @property
    def entries_max(self) -> int:
        """How many entries of this form one run holds at most."""
        return RUN_BYTES_MAX // len(self.entry)

    def fill(self, entries: Bytes, batches: Sequence[pa.RecordBatch]) -> bool:
        """Write the values of two or more bundles into as many entries of this form. False: they do not fit the form, or hold nulls."""
        slot_count = len(self.slots)
        return all(
            _lay_slot(entries[:, body_start:], columns, batches[slot::slot_count])
            for slot, (body_start, columns) in enumerate(self.slots)
        )

    def rows(self, crcs: list[int], item_counts: Sequence[int | None]) -> tuple[bytes, bytes]:
        """The packed `ENTRY_ROW`s and `SLOT_ROW`s of entries with those CRCs."""
        count = len(crcs)
        entries = np.empty((count, len(self.entry_row)), np.int64)
        entries[:] = self.entry_row
        entries.view("<u4")[:, 1] = crcs
        if item_counts.count(None) < count:
            entries[:, 2] = [-1 if item_count is None else item_count for item_count in item_counts]
        return entries.tobytes(), self.slot_rows * count


def _lay_slot(bodies: Bytes, columns: tuple[_Values, ...], batches: Sequence[pa.RecordBatch]) -> bool:
    try:
        found = pa.concat_batches(batches).columns
    except pa.ArrowException:
        # Too many texts for one array.
        return False
    if any(column.null_count or column.offset for column in found):
        return False
    return all(mine.lay(bodies, column.buffers()) for mine, column in zip(columns, found, strict=True))


class RunBuffer:
    """Memory that one run is laid out in."""

    __slots__ = ("_bytes", "_covered", "_form", "memory")

    def __init__(self) -> None:
        self._bytes = np.empty(RUN_BYTES_MAX, np.uint8)
        self.memory = self._bytes.data
        self._form: RunForm | None = None
        """The form in which entries were laid out last, from the memory's start on."""
        self._covered: list[memoryview] = []
        """The bytes of each of these entries that its CRC covers."""

    def write(self, streams: Streams, batches: Sequence[pa.RecordBatch]) -> list[int]:
        """Let Arrow write bundles, see `write_run`."""
        self._form = None
        return write_run(self.memory, streams, batches)

    def fill(self, form: RunForm, batches: Sequence[pa.RecordBatch]) -> list[int] | None:
        """Lay out two or more bundles in a form, and return the CRC of each entry; None if they do not fit the form."""
        count = len(batches) // len(form.slots)
        entries = self._entries(form, count)
        return list(map(crc32, self._covered[:count])) if form.fill(entries, batches) else None

    def _entries(self, form: RunForm, count: int) -> Bytes:
        size_bytes = len(form.entry)
        if self._form is not form:
            self._form, self._covered = form, []
        laid = len(self._covered)
        entries = self._bytes[: count * size_bytes].reshape(count, size_bytes)
        if laid < count:
            entries[laid:] = form.entry
            starts = range(laid * size_bytes, count * size_bytes, size_bytes)
            self._covered += [
                self.memory[start + ENTRY_HEAD_BYTES : start + size_bytes - CRC_BYTES] for start in starts
            ]
        return entries


def form_of(
    streams: Streams, batches: Sequence[pa.RecordBatch], memory: memoryview, layout: RunLayout
) -> RunForm | None:
    """The form of the entries of a run that Arrow wrote to the memory; None if there is none."""
    slot_count, rows_bytes = len(streams), len(streams) * SLOT_ROW.size
    count = len(batches) // slot_count
    if not layout.is_uniform or layout.size_bytes > count * FORM_BYTES_MAX:
        return None
    entries = np.frombuffer(memory, np.uint8, layout.size_bytes).reshape(count, layout.size_bytes // count)
    slots: Slots = []
    for batch, row in zip(batches[:slot_count], SLOT_ROW.iter_unpack(layout.slots[:rows_bytes]), strict=True):
        _, payload_offset, _, _, batch_offset, metadata_bytes, body_bytes, _ = row
        body_start = payload_offset + batch_offset + metadata_bytes
        bodies, columns = entries[:, body_start:], _columns(batch)
        if not columns or columns[-1].body_end != body_bytes or not all(column.is_in(bodies) for column in columns):
            return None
        slots.append((body_start, columns))
    entry, blank = _blank_entry(streams, slots, layout.rows[:slot_count])
    is_alike = blank.slots == layout.slots[:rows_bytes]
    return RunForm(streams, entry, slots, blank.entries[0], blank.slots) if is_alike else None


def _blank_entry(streams: Streams, slots: Slots, rows: list[int]) -> tuple[Bytes, RunLayout]:
    """An entry of zeroes that Arrow writes, and its layout. The batches own their buffers: for a slice Arrow may write more bytes."""
    batches = [
        _blank_batch(stream.schema, columns, count)
        for stream, (_, columns), count in zip(streams, slots, rows, strict=True)
    ]
    # Behind an entry the writer leaves what the next one begins with.
    memory = np.zeros(FORM_BYTES_MAX + 2 * len(streams[0].message), np.uint8)
    ends = write_run(memory.data, streams, batches)
    layout = layout_of(streams, memory.data, ends, rows)
    layout.fill(memory.data, [None])
    return memory[: layout.size_bytes].copy(), layout


def _blank_batch(schema: pa.Schema, columns: tuple[_Values, ...], rows: int) -> pa.RecordBatch:
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, *map(pa.py_buffer, column.blank())])
        for field, column in zip(schema, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _columns(batch: pa.RecordBatch) -> tuple[_Values, ...] | None:
    """The columns of the batch's body; None if one of them is of a kind that no form has, or the batch holds no values."""
    columns: list[_Values] = []
    start = 0
    for column in batch.columns if batch.num_rows else ():
        found = _column(column, start)
        if found is None:
            return None
        columns.append(found)
        start = found.body_end
    return tuple(columns) or None


def _column(column: pa.Array, start: int) -> _Values | None:
    rows, kind, types = len(column), column.type, pa.types
    if types.is_boolean(kind):
        return _Bits(start, -(-rows // 8), rows)
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return _Values(start, rows * kind.byte_width)
    if types.is_string(kind) or types.is_binary(kind):
        return _texts(column, start, np.dtype(np.int32))
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _texts(column, start, np.dtype(np.int64))
    return None


def _texts(column: pa.Array, start: int, offset_type: np.dtype[np.signedinteger]) -> _Texts:
    rows, first = len(column), column.offset
    offsets = np.frombuffer(column.buffers()[1], offset_type)[first : first + rows + 1]
    offsets_bytes = (rows + 1) * offset_type.itemsize
    texts = _Values(start + _padded(offsets_bytes), int(offsets[-1] - offsets[0]))
    return _Texts(start, offsets_bytes, rows, offset_type, texts)


def _padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of eight, as Arrow pads the buffers of a body."""
    return size_bytes + 7 & -8
