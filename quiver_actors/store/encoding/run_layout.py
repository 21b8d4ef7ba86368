"""A run as Arrow wrote it: bundles of the same streams behind one another, with all that makes each a log entry (encoding/entries.py has
the layout).

An Arrow stream writer for each slot writes its batches, and what stands between two record batches in one piece; slot heads, CRCs and rows
are filled in for all of them by numpy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import ENTRY_ROW, SLOT_ROW
from quiver_actors.store.encoding.entries import CRC_BYTES, ENTRY_HEAD_BYTES
from quiver_actors.store.encoding.streams import END_OF_STREAM, WRITE_OPTIONS, EncodedStream
from quiver_actors.store.wal.layout import SLOT_HEAD

PAYLOAD_OFFSET = ENTRY_HEAD_BYTES + SLOT_HEAD.size
"""Offset of the payload of an entry's first slot. Every slot begins, as the first one does, `ENTRY_HEAD_BYTES` behind a multiple of 64."""

_ALIGNMENT = 64
_EOS_BYTES = len(END_OF_STREAM)
_ROW_WORDS = 5
_PREFIX_BYTES = 8

Integers = npt.NDArray[np.int64]
Streams = tuple[EncodedStream, ...]
"""The streams of the slots of a bundle, in ascending order of slot id."""


@dataclass(slots=True, eq=False)
class RunLayout:
    """Where everything is in a run, and what its rows say but for CRCs and item counts. Batches of fixed-width columns with as many
    rows are laid out alike, call after call."""

    streams: Streams
    ends: list[int]
    """Byte offset behind each batch in the run's memory."""
    rows: list[int]
    """Number of rows of each batch."""
    size_bytes: int
    head_places: Integers
    """Indexes into `_words_of` at which row_count and payload_len of each slot stand; `heads` has the words that belong there."""
    heads: Integers
    message_places: Integers
    """Indexes into `_words_of` at which the prefix of each record-batch message stands; `prefixes` has the words that Arrow wrote there."""
    prefixes: Integers
    crc_starts: list[int]
    crc_ends: list[int]
    entries: Integers
    """The `ENTRY_ROW`s as words, one row for each entry."""
    slots: bytes
    is_uniform: bool
    """Whether all entries have their parts in the same places."""

    def is_of(self, streams: Streams, memory: memoryview, ends: list[int], rows: list[int]) -> bool:
        """Whether a run that was written to the memory is laid out so."""
        is_alike = self.streams == streams and self.ends == ends and self.rows == rows
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
    """The memory as words of eight bytes, from the byte on that makes row_count and payload_len of a slot one word."""
    return np.frombuffer(memory, "<i8", len(memory) // 8 - 1, PAYLOAD_OFFSET % 8)


def layout_of(streams: Streams, memory: memoryview, ends: list[int], rows: list[int]) -> RunLayout:
    """The layout of a run of whole bundles that `write_run` wrote to the memory; `ends` and `rows` are those of its batches."""
    shape = (-1, len(streams))
    batch_ends, row_counts = np.array(ends).reshape(shape), np.array(rows).reshape(shape)
    message_bytes = np.array([len(stream.message) for stream in streams])
    payload_ends = _aligned(batch_ends + (_EOS_BYTES - ENTRY_HEAD_BYTES)) + ENTRY_HEAD_BYTES
    entry_ends = _aligned(batch_ends[:, -1] + (_EOS_BYTES + CRC_BYTES))
    payload_ends[:, -1] = entry_ends - CRC_BYTES
    starts = np.concatenate(([0], entry_ends[:-1]))
    payloads = np.concatenate((starts[:, None] + ENTRY_HEAD_BYTES, payload_ends[:, :-1]), axis=1) + SLOT_HEAD.size
    payload_bytes = payload_ends - payloads
    message_places = (payloads + message_bytes >> 3).ravel()
    prefixes = _words_of(memory)[message_places]
    metadata_bytes = (prefixes >> 32).reshape(shape) + _PREFIX_BYTES
    entries = np.zeros((len(starts), _ROW_WORDS), np.int64)
    entries[:, 0] = entry_ends - starts
    entries[:, 1] = _signed(sum([1 << stream.slot_id for stream in streams]))
    entries[:, 2] = -1
    entries[:, 4] = row_counts.sum(axis=1) << 32 | len(streams)
    slots = np.zeros((len(starts), len(streams), _ROW_WORDS), np.int64)
    slots[:, :, 0] = [stream.handle for stream in streams] | payloads - starts[:, None] << 32
    slots[:, :, 1] = payload_bytes | row_counts << 32
    slots[:, :, 2] = metadata_bytes << 32 | message_bytes
    slots[:, :, 3] = batch_ends - payloads - message_bytes - metadata_bytes
    slot_rows = slots.tobytes()
    return RunLayout(
        streams,
        ends,
        rows,
        size_bytes=int(entry_ends[-1]),
        head_places=(payloads - 8 >> 3).ravel(),
        heads=(row_counts | payload_bytes << 32).ravel(),
        message_places=message_places,
        prefixes=prefixes,
        crc_starts=(starts + ENTRY_HEAD_BYTES).tolist(),
        crc_ends=(entry_ends - CRC_BYTES).tolist(),
        entries=entries,
        slots=slot_rows,
        is_uniform=slot_rows == slots[0].tobytes() * len(starts),
    )


def write_run(memory: memoryview, streams: Streams, batches: Sequence[pa.RecordBatch]) -> list[int]:
    """Let Arrow write bundles, with what belongs between their batches, from the memory's start on.

    Args:
        batches: those of all slots, bundle by bundle.

    Returns:
        Where each batch ends, of as many bundles as there is room for.
    """
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
    ends: list[int] = []
    head, first, following = _pieces(streams)
    try:
        # Each writes its schema message in front of its first batch: right where the first entry needs it.
        writers = [pa.ipc.new_stream(sink, stream.schema, options=WRITE_OPTIONS).write_batch for stream in streams]
        write, tell = sink.write, sink.tell
        write(head)
        behind = itertools.chain(first, itertools.cycle(following))
        for batch, write_batch, gaps in zip(batches, itertools.cycle(writers), behind, strict=False):
            write_batch(batch)
            end = tell()
            write(gaps[-end & (_ALIGNMENT - 1)])
            ends.append(end)
    except (pa.ArrowException, OSError):
        # The memory is full, or that batch cannot be encoded: a caller that comes back with the batch alone finds out which.
        pass
    return ends[: len(ends) // len(streams) * len(streams)]


Gaps = tuple[pa.Buffer, ...]
"""What stands between a batch and the next one, by how many bytes the former ends in front of a multiple of 64. Lengths are left zero."""


@functools.lru_cache(maxsize=16)
def _pieces(streams: Streams) -> tuple[pa.Buffer, list[Gaps], list[Gaps]]:
    """What stands before the first schema message, and behind each slot: in the first entry, and in others."""
    heads = [SLOT_HEAD.pack(stream.slot_id, stream.fingerprint, 0, 0) for stream in streams]
    entry_head = bytes(ENTRY_HEAD_BYTES) + heads[0]
    # Where the writer writes the message itself, it is left out.
    first = [_gaps(ENTRY_HEAD_BYTES, head) for head in heads[1:]]
    following = [
        _gaps(ENTRY_HEAD_BYTES, head + stream.message) for head, stream in zip(heads[1:], streams[1:], strict=True)
    ]
    last = _gaps(-CRC_BYTES, bytes(CRC_BYTES) + entry_head + streams[0].message)
    return pa.py_buffer(entry_head), [*first, last], [*following, last]


def _gaps(place: int, behind: bytes) -> Gaps:
    """The gap for each place where a batch may end: end-of-stream mark, padding to `place` bytes behind a multiple of 64, `behind`."""
    paddings = ((before + place - _EOS_BYTES) & (_ALIGNMENT - 1) for before in range(_ALIGNMENT))
    # As Arrow's buffers: it would wrap bytes at each write.
    return tuple(pa.py_buffer(END_OF_STREAM + bytes(padding) + behind) for padding in paddings)


def _aligned(places: Integers) -> Integers:
    return places + (_ALIGNMENT - 1) & -_ALIGNMENT


def _signed(word: int) -> int:
    return word - ((word >> 63) << 64)


assert ENTRY_ROW.size == SLOT_ROW.size == 8 * _ROW_WORDS
