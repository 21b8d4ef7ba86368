"""A run as Arrow wrote it: batches of one stream behind one another, with all that makes each a log entry (encoding/entries.py has the
layout).

One Arrow stream writer writes them, and what stands between two record batches in one piece; slot heads, CRCs and rows are filled in for
all of them by numpy.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.checksum import crc32
from quiver_actors.encoding.entries import CRC_BYTES, ENTRY_HEAD_BYTES, SLOT_HEAD
from quiver_actors.encoding.streams import END_OF_STREAM, WRITE_OPTIONS, EncodedStream
from quiver_actors.protocol.messages import ENTRY_ROW, SLOT_ROW

PAYLOAD_OFFSET = ENTRY_HEAD_BYTES + SLOT_HEAD.size
"""In an entry of one slot."""

_ALIGNMENT = 64
_FRAME_BYTES = PAYLOAD_OFFSET + CRC_BYTES
_TAIL_BYTES = len(END_OF_STREAM) + CRC_BYTES
_ROW_WORDS = 5
_PREFIX_BYTES = 8

Integers = npt.NDArray[np.int64]


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
    is_uniform: bool
    """All entries have their parts in the same places."""

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
    return np.frombuffer(memory, "<i8", len(memory) // 8 - 1, PAYLOAD_OFFSET % 8)


def layout_of(stream: EncodedStream, memory: memoryview, ends: list[int], rows: list[int]) -> RunLayout:
    batch_ends, row_counts = np.array(ends), np.array(rows)
    entry_ends = (batch_ends + (_TAIL_BYTES + _ALIGNMENT - 1)) & -_ALIGNMENT
    starts = np.concatenate(([0], entry_ends[:-1]))
    payload_bytes = entry_ends - starts - _FRAME_BYTES
    message_places = starts + (PAYLOAD_OFFSET + len(stream.message)) >> 3
    prefixes = _words_of(memory)[message_places]
    metadata_bytes = (prefixes >> 32) + _PREFIX_BYTES
    entries = np.zeros((len(ends), _ROW_WORDS), np.int64)
    entries[:, 0] = entry_ends - starts
    entries[:, 1] = _signed(1 << stream.slot_id)
    entries[:, 2] = -1
    entries[:, 4] = row_counts << 32 | 1
    slots = np.zeros((len(ends), _ROW_WORDS), np.int64)
    slots[:, 0] = stream.handle | PAYLOAD_OFFSET << 32
    slots[:, 1] = payload_bytes | row_counts << 32
    slots[:, 2] = metadata_bytes << 32 | len(stream.message)
    slots[:, 3] = batch_ends - starts - (PAYLOAD_OFFSET + len(stream.message)) - metadata_bytes
    slot_rows = slots.tobytes()
    return RunLayout(
        stream,
        ends,
        rows,
        size_bytes=int(entry_ends[-1]),
        head_places=starts + (PAYLOAD_OFFSET - 8) >> 3,
        heads=row_counts | payload_bytes << 32,
        message_places=message_places,
        prefixes=prefixes,
        crc_starts=(starts + ENTRY_HEAD_BYTES).tolist(),
        crc_ends=(entry_ends - CRC_BYTES).tolist(),
        entries=entries,
        slots=slot_rows,
        is_uniform=slot_rows == slot_rows[: SLOT_ROW.size] * len(ends),
    )


def write_run(memory: memoryview, stream: EncodedStream, batches: Sequence[pa.RecordBatch]) -> list[int]:
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
