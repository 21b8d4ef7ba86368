"""Entries of one shape, read as columns: what the replay of a log of small bundles takes instead of a look at each. Pure.

All entries of a run have one slot, of one schema without dictionaries, and record-batch messages of one layout. Their first bytes, up to
the last one that tells where something is, differ only in numbers, and those are read and checked for all entries at once: the result
is exactly what `recovery.parse_entry` finds in each. Their CRCs were checked before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.store.segment.arrow_ipc import batch_layout
from quiver_actors.store.segment.builder import BundleRun
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.reader import Span
from quiver_actors.store.wal.recovery import parse_entry

Integers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]

_TYPE = layout.ENTRY_LENGTH_BYTES
_TIME = _TYPE + 1
_SEQUENCE = _TIME + 8
_ROW_COUNT = layout.ENTRY_HEAD.size + layout.SLOT_TABLE.offsets["row_count"]
_PAYLOAD_LENGTH = _ROW_COUNT + 4
_PAYLOAD = _PAYLOAD_LENGTH + 4
_FRAME_BYTES = _PAYLOAD + layout.ENTRY_CRC.size
_END_OF_STREAM = 0x00000000_FFFFFFFF
_WORD = 8
_HEAD_BYTES_MAX = 16 << 10
"""Entries with longer schemas are looked at one by one, so that a chunk of them does not take a multiple of itself."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the entries of a run have in common. Places are counted from an entry's start."""

    schema: StreamSchema
    head: npt.NDArray[np.uint64]
    """The first bytes of each entry, zero where entries may differ."""
    mask: npt.NDArray[np.uint64]
    """All ones at the bits of `head` where entries may not differ."""
    batch: int
    """Place of the record-batch message."""
    metadata_bytes: int
    rows: int
    """Place of its row count."""
    body: int
    """Place of its body length."""

    @property
    def _entry_bytes_min(self) -> int:
        return max(self.head.nbytes, self.batch + self.metadata_bytes + _WORD + layout.ENTRY_CRC.size)

    def fits(self, memory: memoryview, start: int, end: int) -> bool:
        """Whether the entry is of this form, as far as its first bytes tell."""
        if end - start < self._entry_bytes_min:
            return False
        head = np.frombuffer(memory, np.uint64, len(self.head), start)
        return bool((head & self.mask == self.head).all())

    def columns(self, memory: memoryview, offset: int, bounds: Integers) -> BundleRun | None:
        """The first entries as columns, as many as are of this form and in rising sequence without a gap; None: not even the first is.
        The first one must fit.

        Args:
            memory: bytes from `offset` of the file on.
            bounds: entry i is `memory[bounds[i]:bounds[i + 1]]`.
        """
        sizes = np.diff(bounds)
        count = _leading(sizes >= self._entry_bytes_min)
        starts, sizes = bounds[:count], sizes[:count]
        heads = _gather(memory, starts, self.head.nbytes)
        sequences = _column(heads, _SEQUENCE, "<u8")
        rows, body = _column(heads, self.rows, "<i8"), _column(heads, self.body, "<i8")
        right = ((heads.view(np.uint64) & self.mask) == self.head).all(axis=1)
        right &= sequences == sequences[0] + np.arange(count, dtype=np.uint64)
        right &= (_column(heads, _PAYLOAD_LENGTH, "<u4") == sizes - _FRAME_BYTES) & (rows >= 0)
        room = sizes - (self.batch + self.metadata_bytes + _WORD + layout.ENTRY_CRC.size)
        right &= (body >= 0) & (body & 7 == 0) & (body <= room)
        stream_ends = starts + self.batch + self.metadata_bytes + np.where(right, body, 0)
        right &= _gather(memory, stream_ends, _WORD).view("<u8")[:, 0] == _END_OF_STREAM
        count = _leading(right)
        if not count:
            return None
        return BundleRun(
            (self.schema,),
            int(sequences[0]),
            _column(heads, _TIME, "<i8")[:count],
            np.full(count, -1),
            sizes[:count],
            rows[None, :count],
            starts[None, :count] + (offset + self.batch),
            np.full((1, count), self.metadata_bytes),
            body[None, :count],
            int(rows[:count].sum()),
        )


def form_of(memory: memoryview, start: int, end: int) -> Form | None:
    """The form of the valid entry `memory[start:end]`; None if entries like it are not taken as runs."""
    body = memory[start + layout.ENTRY_LENGTH_BYTES : end - layout.ENTRY_CRC.size]
    entry = parse_entry(body, Span(start, end))
    if entry.error or entry.entry_type != layout.ENTRY_TYPE_BUNDLE or len(entry.placements) != 1:
        return None
    schema, _, batch_offset, metadata_bytes, _, dictionaries = entry.placements[0]
    if dictionaries or schema.slot_id == ENVELOPE_SLOT:
        return None
    batch = batch_offset - start
    found = batch_layout(memory[batch_offset : batch_offset + metadata_bytes])
    if found is None:
        return None
    structure, rows, body_length = found
    head_bytes = -(-(batch + max(structure[-1] + 1, rows + 8, body_length + 8)) // _WORD) * _WORD
    if head_bytes > min(_HEAD_BYTES_MAX, end - start):
        return None
    mask = np.zeros(head_bytes, np.uint8)
    mask[_TYPE] = 0xFF
    mask[_SEQUENCE + 8 : _ROW_COUNT] = 0xFF
    mask[_PAYLOAD:batch] = 0xFF
    mask[batch + np.array(structure)] = 0xFF
    words = mask.view(np.uint64)
    head = np.frombuffer(memory, np.uint64, len(words), start) & words
    return Form(schema, head, words, batch, metadata_bytes, batch + rows, batch + body_length)


def _gather(memory: memoryview, starts: Integers, size: int) -> Rows:
    """The `size` bytes that begin at each start, as rows."""
    windows = np.ndarray((max(0, memory.nbytes - size + 1),), f"V{size}", memory, strides=(1,))
    return windows[starts].view(np.uint8).reshape(-1, size)


def _column(rows: Rows, at: int, kind: str) -> Integers:
    """The number at `at` of each row."""
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(rows[:, at : at + size]).view(kind)[:, 0]


def _leading(right: npt.NDArray[np.bool_]) -> int:
    """How many of the first ones are right."""
    return int(len(right) if right.all() else np.argmin(right))
