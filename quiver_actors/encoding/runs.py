"""Many small bundles of one stream, laid out at once: what `push_many` of like batches takes instead of a plan each.

A run's entries (encoding/entries.py has the layout) are written by one Arrow stream writer into warm private memory, with what stands
between two record batches written in one piece; slot heads, CRCs and rows are filled in for all of them by numpy. The whole is copied
into the ring with one call. What that saves: `python -m benchmarks.push_cost`, docs/performance.md.

Streams with dictionaries and large batches go the other way (`entries.plan`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.checksum import crc32
from quiver_actors.encoding.entries import CRC_BYTES, ENTRY_HEAD_BYTES, SLOT_HEAD, PushRows
from quiver_actors.encoding.streams import END_OF_STREAM, WRITE_OPTIONS, EncodedStream
from quiver_actors.protocol.messages import ENTRY_ROW, SLOT_ROW
from quiver_actors.units import KIB, MIB

RUN_BYTES_MAX = MIB
"""Of one run: what a producer's core keeps in its cache between encoding, checksum and copy."""
RUN_BUNDLES_MIN = 12
"""With fewer bundles a plan each costs less."""
MESSAGE_BYTES_MAX = 4 * KIB
"""Schema messages up to here: what stands between two batches is kept ready in 64 lengths."""

_POOL_MAX = 4
_ALIGNMENT = 64
_PAYLOAD_OFFSET = ENTRY_HEAD_BYTES + SLOT_HEAD.size
_FRAME_BYTES = _PAYLOAD_OFFSET + CRC_BYTES
_TAIL_BYTES = len(END_OF_STREAM) + CRC_BYTES
_ROW_WORDS = 5
_PREFIX_BYTES = 8

Integers = npt.NDArray[np.int64]


class RunMemory:
    """Buffers that runs are laid out in, used again so that their pages stay mapped and warm, and how the last one was laid out. May be
    used by several threads."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self.layout: RunLayout | None = None
        """Of the last run."""

    def take(self) -> memoryview:
        try:
            # One step: another thread may take the last one between a look and this.
            return self._free.pop()
        except IndexError:
            return np.empty(RUN_BYTES_MAX, np.uint8).data

    def give_back(self, memory: memoryview) -> None:
        if len(self._free) < _POOL_MAX:
            self._free.append(memory)


class PlannedRun:
    """A run, encoded. Keeps the batches alive until they are acknowledged, its memory until it is written."""

    __slots__ = ("_batches", "_entries", "_item_counts", "_memory", "_pool", "_slots", "_span", "size_bytes", "stream")

    def __init__(
        self,
        stream: EncodedStream,
        batches: Sequence[pa.RecordBatch],
        item_counts: Sequence[int | None],
        rows: tuple[bytes, bytes],
        span: memoryview,
        lease: tuple[RunMemory, memoryview],
    ) -> None:
        self.stream = stream
        self.size_bytes = len(span)
        self._batches = batches
        self._item_counts = item_counts
        self._entries, self._slots = rows
        self._span = span
        self._pool, self._memory = lease

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def streams(self) -> set[EncodedStream]:
        return {self.stream}

    def write(self, ring: memoryview, offset: int) -> PushRows:
        """Lay the entries at `ring[offset : offset + size_bytes]`, once."""
        ring[offset : offset + self.size_bytes] = self._span
        rows = PushRows()
        rows.entries.append(self._entries)
        rows.slots.append(self._slots)
        rows.streams.add(self.stream)
        self._span, memory = self._span[:0], self._memory
        self._pool.give_back(memory)
        return rows

    def bundles_from(self, first: int) -> list[tuple[list[tuple[int, pa.RecordBatch]], int | None]]:
        """Batches by slot, and item counts, of the bundles behind the first ones."""
        slot_id = self.stream.slot_id
        return [
            ([(slot_id, batch)], item_count)
            for batch, item_count in zip(self._batches[first:], self._item_counts[first:], strict=True)
        ]


def fits_run(stream: EncodedStream) -> bool:
    """Whether batches of that stream may make a run."""
    message_bytes = len(stream.message)
    return not stream.has_dictionaries and message_bytes <= MESSAGE_BYTES_MAX and message_bytes % 8 == 0


def plan_run(
    pool: RunMemory, stream: EncodedStream, batches: Sequence[pa.RecordBatch], item_counts: Sequence[int | None]
) -> PlannedRun | None:
    """Lay out as many of the bundles as fit and can be encoded, from the first one on; None if that is not even the first.

    Args:
        stream: of all batches, one that `fits_run`.
        item_counts: in the range that an entry allows.
    """
    memory = pool.take()
    ends = _write(memory, stream, batches)
    count = len(ends)
    if not ends:
        pool.give_back(memory)
        return None
    # Arrow refuses a batch of 2^31 rows, so that they fit the slot head's u32.
    rows = [batch.num_rows for batch in batches[:count]]
    layout = pool.layout
    if layout is None or not layout.is_of(stream, memory, ends, rows):
        layout = pool.layout = _layout_of(stream, memory, ends, rows)
    packed = layout.fill(memory, item_counts[:count])
    return PlannedRun(stream, batches[:count], item_counts[:count], packed, memory[: layout.size_bytes], (pool, memory))


@dataclass(slots=True, eq=False)
class RunLayout:
    """Where everything is in a run, and what its rows say but for CRCs and item counts. Batches of fixed-width columns with as many
    rows are laid out alike, call after call."""

    stream: EncodedStream
    ends: list[int]
    """Of the batches, in the run's memory."""
    rows: list[int]
    """Of each batch."""
    size_bytes: int
    head_places: Integers
    """Of row_count and payload_len, in words of `_words_of`; `heads` belong there."""
    heads: Integers
    message_places: Integers
    """Of the record-batch messages' prefixes, likewise, which are `prefixes`."""
    prefixes: Integers
    crc_starts: list[int]
    crc_ends: list[int]
    entries: Integers
    """`ENTRY_ROW`s as words."""
    slots: bytes

    def is_of(self, stream: EncodedStream, memory: memoryview, ends: list[int], rows: list[int]) -> bool:
        """Whether a run that was written to the memory is laid out so."""
        is_alike = self.stream is stream and self.ends == ends and self.rows == rows
        return is_alike and bool((_words_of(memory)[self.message_places] == self.prefixes).all())

    def fill(self, memory: memoryview, item_counts: Sequence[int | None]) -> tuple[bytes, bytes]:
        """Complete the slot heads, and give the packed `ENTRY_ROW`s and `SLOT_ROW`s."""
        _words_of(memory)[self.head_places] = self.heads
        places = zip(self.crc_starts, self.crc_ends, strict=True)
        entries = self.entries.copy()
        entries.view("<u4")[:, 1] = [crc32(memory[start:end]) for start, end in places]
        if item_counts.count(None) < len(item_counts):
            entries[:, 2] = [-1 if item_count is None else item_count for item_count in item_counts]
        return entries.tobytes(), self.slots


def _words_of(memory: memoryview) -> Integers:
    """From the byte on that lets row_count and payload_len be a word, and all that is a multiple of eight bytes away."""
    return np.frombuffer(memory, "<i8", len(memory) // 8 - 1, _PAYLOAD_OFFSET % 8)


def _layout_of(stream: EncodedStream, memory: memoryview, ends: list[int], rows: list[int]) -> RunLayout:
    batch_ends, row_counts = np.array(ends), np.array(rows)
    entry_ends = (batch_ends + (_TAIL_BYTES + _ALIGNMENT - 1)) & -_ALIGNMENT
    starts = np.concatenate(([0], entry_ends[:-1]))
    payload_bytes = entry_ends - starts - _FRAME_BYTES
    message_places = starts + (_PAYLOAD_OFFSET + len(stream.message)) >> 3
    prefixes = _words_of(memory)[message_places]
    metadata_bytes = (prefixes >> 32) + _PREFIX_BYTES
    entries = np.zeros((len(ends), _ROW_WORDS), np.int64)
    entries[:, 0] = entry_ends - starts
    entries[:, 1] = _signed(1 << stream.slot_id)
    entries[:, 2] = -1
    entries[:, 4] = row_counts << 32 | 1
    slots = np.zeros((len(ends), _ROW_WORDS), np.int64)
    slots[:, 0] = stream.handle | _PAYLOAD_OFFSET << 32
    slots[:, 1] = payload_bytes | row_counts << 32
    slots[:, 2] = metadata_bytes << 32 | len(stream.message)
    slots[:, 3] = batch_ends - starts - (_PAYLOAD_OFFSET + len(stream.message)) - metadata_bytes
    return RunLayout(
        stream,
        ends,
        rows,
        size_bytes=int(entry_ends[-1]),
        head_places=starts + (_PAYLOAD_OFFSET - 8) >> 3,
        heads=row_counts | payload_bytes << 32,
        message_places=message_places,
        prefixes=prefixes,
        crc_starts=(starts + ENTRY_HEAD_BYTES).tolist(),
        crc_ends=(entry_ends - CRC_BYTES).tolist(),
        entries=entries,
        slots=slots.tobytes(),
    )


def _write(memory: memoryview, stream: EncodedStream, batches: Sequence[pa.RecordBatch]) -> list[int]:
    """Let Arrow write batches, with what belongs between them, from the memory's start on: where each batch ends."""
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
    ends: list[int] = []
    head, gaps = _pieces(stream)
    try:
        # It writes the schema message in front of the first batch: right where the first entry needs it.
        writer = pa.ipc.new_stream(sink, stream.schema, options=WRITE_OPTIONS)
        write_batch, write, tell = writer.write_batch, sink.write, sink.tell
        write(head)
        for batch in batches:
            write_batch(batch)
            end = tell()
            write(gaps[-(end + _TAIL_BYTES) & (_ALIGNMENT - 1)])
            ends.append(end)
    except (pa.ArrowException, OSError):
        # The memory is full, or that batch is not to be encoded: whoever comes back with it alone finds out.
        pass
    return ends


@functools.lru_cache(maxsize=16)
def _pieces(stream: EncodedStream) -> tuple[pa.Buffer, tuple[pa.Buffer, ...]]:
    """What stands before the first schema message, and between two batches for each length of padding. Lengths are left zero."""
    head = bytes(ENTRY_HEAD_BYTES) + SLOT_HEAD.pack(stream.slot_id, stream.fingerprint, 0, 0)
    following = head + stream.message
    gaps = (END_OF_STREAM + bytes(padding + CRC_BYTES) + following for padding in range(_ALIGNMENT))
    # As Arrow's buffers: it would wrap bytes at each write.
    return pa.py_buffer(head), tuple(map(pa.py_buffer, gaps))


def _signed(word: int) -> int:
    return word - ((word >> 63) << 64)


assert ENTRY_ROW.size == SLOT_ROW.size == 8 * _ROW_WORDS
