"""Admission and completion of many like entries at once: every check of `wal.admission`, as array operations.

For pushes whose entries all have one slot, of one schema without dictionaries: what a producer of small bundles sends. `check_uniform`
never refuses: for whatever is not like that, or not right, it says None, and the entries are looked at one by one, which finds out what is
wrong. Each byte is checked as there; only Python's share is paid once a push instead of once an entry (docs/performance.md).

Spans are read as aligned 8-byte words. Entries start on multiples of 64, so the words of an entry are (`wal.layout`):

    0..3      entry header; of word 3 the bytes 5, 6 are the slot id and 7 is the fingerprint's first
    4..7      fingerprint; byte 7 of word 7 is row_count's first
    8         row_count, payload_len; byte 7 is the payload's first
    9..       payload: the schema message, then the record-batch message, each ending before byte 7 of a word; a message begins
              with four bytes of ones and the length of its metadata
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.checksum import crc32
from quiver_actors.protocol.messages import ENTRY_ROW, Push
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.wal import layout

UNIFORM_ENTRIES_MIN = 24
"""With fewer entries, looking at each costs less."""

_ROW_WORDS = ENTRY_ROW.size // 8
_SLOTS_OFFSET = layout.ENTRY_HEAD.size
_PAYLOAD_OFFSET = _SLOTS_OFFSET + layout.SLOT_HEAD.size
_FRAME_BYTES = _PAYLOAD_OFFSET + layout.ENTRY_CRC.size
_HEAD_WORDS = 4
_METADATA_BYTES_MIN = 16
_PREFIX_BYTES = 8
_U32 = 0xFFFFFFFF
_SIGN = -1 << 63
_CONTINUATION = 0xFFFFFFFF

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_HEAD = np.dtype(
    [("length", "<u4"), ("type", "u1"), ("time", "<i8"), ("sequence", "<u8"), ("bitmap", "<u8"), ("slot", "V3")]
)
"""`layout.ENTRY_HEAD` and the three bytes behind it that fill the last word."""
_HEAD_ITEM = np.dtype(f"V{_HEAD.itemsize}")
assert layout.ALIGNMENT % _HEAD_ITEM.itemsize == 0


@dataclass(slots=True)
class UniformEntries:
    """Entries that may be logged, one behind the other from the start of their span. Columns of one length; not to be changed."""

    schema: StreamSchema
    bitmap: int
    starts: Integers
    """Offsets in the span."""
    ends: Integers
    sizes: Integers
    item_counts: Integers
    ingestion_ts_nanos: Integers
    """0: to be stamped."""
    row_counts: Integers
    """Of the slot."""
    batch_starts: Integers
    """Of the record-batch messages: offsets in the span."""
    metadata_bytes: Integers
    body_bytes: Integers

    def __len__(self) -> int:
        return len(self.sizes)


def check_uniform(
    span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]
) -> tuple[UniformEntries, int] | None:
    """Check all entries of a push: they, and the rows of all their slots. None: the push is not uniform, or not right."""
    count, rest = divmod(len(push.entries), ENTRY_ROW.size)
    if rest or count < UNIFORM_ENTRIES_MIN or len(push.slots) != len(push.entries) or push.dictionaries:
        return None
    # Turned over: what follows is a few operations, each on words that stand side by side.
    by_row = np.frombuffer(push.entries + push.slots, "<i8").reshape(2, count, _ROW_WORDS)
    columns = by_row.transpose(0, 2, 1).reshape(2 * _ROW_WORDS, count)
    handle = int(columns[_ROW_WORDS, 0]) & _U32
    schema = schemas.get(handle)
    pattern = None if schema is None else _pattern(schema, handle)
    if schema is None or pattern is None or not _rows_agree(columns, pattern):
        return None
    entries = _entries_of(columns, schema)
    # The span's own limit is that of one entry: none of them is larger.
    if len(span) > layout.ENTRY_BYTES_MAX or int(entries.ends[-1]) != len(span):
        return None
    if not _heads_agree(entries, span, pattern):
        return None
    crcs = _crcs(span, entries.starts + _SLOTS_OFFSET, entries.ends - layout.ENTRY_CRC.size)
    if crcs != columns[0].view("<u4")[1::2].tolist():
        return None
    return entries, int(entries.row_counts.sum())


def complete(span: memoryview, entries: UniformEntries, entry_type: int, sequence: int, now_unix_ns: int) -> Integers:
    """Fill headers and CRCs; the first entry gets `sequence`. Returns the ingestion times."""
    count = len(entries)
    times = entries.ingestion_ts_nanos
    times = np.where(times == 0, now_unix_ns, times) if times.any() else np.full(count, now_unix_ns)
    heads = np.zeros(count, _HEAD)
    heads["length"] = entries.sizes - layout.ENTRY_OVERHEAD_BYTES
    heads["type"] = entry_type
    heads["time"] = times
    heads["sequence"] = np.arange(sequence, sequence + count, dtype=np.uint64)
    heads["bitmap"] = entries.bitmap
    heads["slot"] = bytes(span[_SLOTS_OFFSET : _HEAD_WORDS * 8])
    # As items without fields, which are copied whole; entries start on multiples of two of them.
    np.frombuffer(span, _HEAD_ITEM)[entries.starts // _HEAD_ITEM.itemsize] = heads.view(_HEAD_ITEM)
    crcs = _crcs(span, entries.starts + layout.ENTRY_LENGTH_BYTES, entries.ends - layout.ENTRY_CRC.size)
    np.frombuffer(span, "<u4")[(entries.ends >> 2) - 1] = crcs
    return times


class _Pattern(NamedTuple):
    """What the rows and entries of a push have in common."""

    values: Integers
    """Of each column of the rows, where `masks` has ones."""
    masks: Integers
    words: Words
    """Of every entry from its slot id to the prefix of the record-batch message, as `_heads_agree` compares them."""
    places: Integers
    """Where those stand, in words from the entry's start."""
    message_bytes: int


@functools.lru_cache(maxsize=1024)
def _pattern(schema: StreamSchema, handle: int) -> _Pattern | None:
    """None: not this way."""
    message_bytes = len(schema.message)
    if schema.has_dictionaries or message_bytes % 8:
        return None
    columns = [
        # ENTRY_ROW: size and CRC, bitmap, item count, ingestion time, slot count and rows.
        (0, layout.ALIGNMENT - 1),
        (_signed(1 << schema.slot_id), -1),
        (0, 0),
        (0, _SIGN),
        (1, _U32 | _SIGN),
        # SLOT_ROW: handle and payload's place, payload's size and rows, batch message's place and metadata, its body, no dictionaries.
        (handle | _PAYLOAD_OFFSET << 32, -1),
        (0, 0),
        (message_bytes, 7 << 32 | _U32),
        (0, ~_U32 | 7),
        (0, -1),
    ]
    values, masks = np.array(columns, np.int64).T[:, :, None].copy()
    head = schema.slot_id.to_bytes(2, "little") + schema.fingerprint + bytes(8)
    prefix = _CONTINUATION.to_bytes(4, "little") + bytes(4 + 1)
    words = np.frombuffer(bytes(5) + head + schema.message + prefix, "<u8").copy()
    words[0] >>= 40
    return _Pattern(values, masks, words, np.arange(_HEAD_WORDS - 1, _HEAD_WORDS - 1 + len(words)), message_bytes)


def _rows_agree(columns: Integers, pattern: _Pattern) -> bool:
    """Whether the rows are what all have in common and agree with each other, and messages lie inside their payloads, aligned."""
    wrong = columns ^ pattern.values
    wrong &= pattern.masks
    payload_bytes = (columns[0] & _U32) - _FRAME_BYTES
    items, metadata, body = columns[2], columns[7] >> 32, columns[8]
    # The slot count is 1, or wrong already: without it, both rows say the same of the number of rows.
    wrong[6] = columns[6] ^ columns[4] ^ payload_bytes ^ 1
    # Not negative where all is well. With a giant `body` it may overflow: that is wrong already.
    signs = payload_bytes - pattern.message_bytes - metadata - body
    signs |= metadata - _METADATA_BYTES_MIN
    signs |= items - (items >> 63)
    np.bitwise_and(signs, _SIGN, out=wrong[2])
    return not wrong.any()


def _entries_of(columns: Integers, schema: StreamSchema) -> UniformEntries:
    """Of rows that agree."""
    sizes = columns[0] & _U32
    ends = sizes.cumsum()
    starts = ends - sizes
    return UniformEntries(
        schema,
        bitmap=1 << schema.slot_id,
        starts=starts,
        ends=ends,
        sizes=sizes,
        item_counts=columns[2],
        ingestion_ts_nanos=columns[3],
        row_counts=columns[4] >> 32,
        batch_starts=starts + (_PAYLOAD_OFFSET + len(schema.message)),
        metadata_bytes=columns[7] >> 32,
        body_bytes=columns[8],
    )


def _heads_agree(entries: UniformEntries, span: memoryview, pattern: _Pattern) -> bool:
    """Whether slot heads, schema messages and the prefixes of the record-batch messages are what the rows say."""
    found = np.frombuffer(span, "<i8").take((entries.starts >> 3)[:, None] + pattern.places)
    counts = entries.row_counts | (entries.sizes - _FRAME_BYTES) << 32
    found[:, 4] ^= counts << 56
    found[:, 5] ^= counts >> 8
    found[:, -1] ^= entries.metadata_bytes - _PREFIX_BYTES << 24
    words = found.view(np.uint64)
    words[:, 0] >>= 40
    words[:, -1] &= 0x00FF_FFFF_FFFF_FFFF
    return bool((words == pattern.words).all())


def _crcs(span: memoryview, starts: Integers, ends: Integers) -> list[int]:
    return [crc32(span[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _signed(word: int) -> int:
    return word - ((word >> 63) << 64)
