"""Admission and completion of many like entries at once: every check of `wal.admission`, as array operations.

For pushes whose entries all have one slot, of one schema without dictionaries: what a producer of small bundles sends. `check_uniform`
never refuses: for whatever is not like that, or not right, it says None, and the entries are looked at one by one, which finds out what is
wrong. Each byte is checked as there; only Python's share is paid once a push instead of once an entry (docs/performance.md).

Spans are read as aligned 8-byte words. Entries start on multiples of 64, so the words of an entry are (`wal.layout`):

    0..3      entry header; of word 3 the bytes 5, 6 are the slot id and 7 is the fingerprint's first
    4..7      fingerprint; byte 7 of word 7 is row_count's first
    8         row_count, payload_len; byte 7 is the payload's first
    9..       payload: the schema message, then the record-batch message, each ending before byte 7 of a word
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

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
_CONTINUATION = 0xFFFFFFFF

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

_HEAD = np.dtype(
    [("length", "<u4"), ("type", "u1"), ("time", "<i8"), ("sequence", "<u8"), ("bitmap", "<u8"), ("slot", "V3")]
)
"""`layout.ENTRY_HEAD` and the three bytes behind it that fill the last word."""


@dataclass(frozen=True, slots=True)
class UniformEntries:
    """Entries that may be logged, one behind the other from the start of their span. Columns of one length."""

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
    entry_rows = np.frombuffer(push.entries, "<i8").reshape(count, _ROW_WORDS)
    slot_rows = np.frombuffer(push.slots, "<i8").reshape(count, _ROW_WORDS)
    handle = int(slot_rows[0, 0]) & _U32
    schema = schemas.get(handle)
    expected = None if schema is None else _expected_words(schema)
    if schema is None or expected is None:
        return None
    entries = _entries_of(entry_rows, slot_rows, schema)
    if not (_rows_agree(entries, entry_rows, slot_rows, handle, len(span)) and _heads_agree(entries, span, expected)):
        return None
    crcs = _crcs(span, entries.starts + _SLOTS_OFFSET, entries.ends - layout.ENTRY_CRC.size)
    if crcs != (entry_rows[:, 0] >> 32 & _U32).tolist():
        return None
    return entries, int((entry_rows[:, 4] >> 32 & _U32).sum())


def complete(span: memoryview, entries: UniformEntries, entry_type: int, sequence: int, now_unix_ns: int) -> Integers:
    """Fill headers and CRCs; the first entry gets `sequence`. Returns the ingestion times."""
    count = len(entries)
    times = np.where(entries.ingestion_ts_nanos == 0, now_unix_ns, entries.ingestion_ts_nanos)
    heads = np.zeros(count, _HEAD)
    heads["length"] = entries.sizes - layout.ENTRY_OVERHEAD_BYTES
    heads["type"] = entry_type
    heads["time"] = times
    heads["sequence"] = np.arange(sequence, sequence + count, dtype=np.uint64)
    heads["bitmap"] = entries.bitmap
    heads["slot"] = bytes(span[_SLOTS_OFFSET : _HEAD_WORDS * 8])
    words = np.frombuffer(span, "<u8")
    words[(entries.starts >> 3)[:, None] + np.arange(_HEAD_WORDS)] = heads.view("<u8").reshape(count, _HEAD_WORDS)
    crcs = _crcs(span, entries.starts + layout.ENTRY_LENGTH_BYTES, entries.ends - layout.ENTRY_CRC.size)
    np.frombuffer(span, "<u4")[(entries.ends >> 2) - 1] = crcs
    return times


def _entries_of(entry_rows: Integers, slot_rows: Integers, schema: StreamSchema) -> UniformEntries:
    """The rows by column; nothing is checked yet."""
    sizes = entry_rows[:, 0] & _U32
    ends = np.cumsum(sizes)
    starts = ends - sizes
    return UniformEntries(
        schema=schema,
        bitmap=1 << schema.slot_id,
        starts=starts,
        ends=ends,
        sizes=sizes,
        item_counts=entry_rows[:, 2],
        ingestion_ts_nanos=entry_rows[:, 3],
        row_counts=slot_rows[:, 1] >> 32 & _U32,
        batch_starts=(slot_rows[:, 2] & _U32) + starts + _PAYLOAD_OFFSET,
        metadata_bytes=slot_rows[:, 2] >> 32 & _U32,
        body_bytes=slot_rows[:, 3],
    )


def _rows_agree(
    entries: UniformEntries, entry_rows: Integers, slot_rows: Integers, handle: int, span_bytes: int
) -> bool:
    """Whether the rows agree with each other, entries fill the span, and messages lie inside their payloads, aligned."""
    if span_bytes > layout.ENTRY_BYTES_MAX or int(entries.ends[-1]) != span_bytes:
        return False
    sizes, metadata, body, items = entries.sizes, entries.metadata_bytes, entries.body_bytes, entries.item_counts
    payload_bytes = slot_rows[:, 1] & _U32
    offset = slot_rows[:, 2] & _U32
    # Zero where all is well.
    wrong = (slot_rows[:, 0] ^ (handle | _PAYLOAD_OFFSET << 32)) | slot_rows[:, 4] | (body >> 32)
    wrong |= (
        ((offset | metadata | body) & 7) | (sizes & (layout.ALIGNMENT - 1)) | (sizes - _FRAME_BYTES ^ payload_bytes)
    )
    wrong |= (entry_rows[:, 1] ^ _signed(entries.bitmap)) | ((entry_rows[:, 4] & _U32) ^ 1)
    # Not negative where all is well. With a giant `body` the sum may overflow: that is wrong already.
    signs = (payload_bytes - offset - metadata - body) | (metadata - _METADATA_BYTES_MIN)
    signs |= entries.ingestion_ts_nanos | (items - (items >> 63)) | (payload_bytes - len(entries.schema.message))
    wrong |= signs >> 63
    return not wrong.any()


def _heads_agree(entries: UniformEntries, span: memoryview, expected: Words) -> bool:
    """Whether slot heads, schema messages and the prefixes of the record-batch messages are what the rows say."""
    words = np.frombuffer(span, "<u8")
    places = (entries.starts >> 3)[:, None] + _numbers(len(expected))
    found = words.take(places)
    rows = entries.row_counts.view(np.uint64)
    found[:, 0] >>= 40
    found[:, 4] ^= rows << 56
    found[:, 5] ^= (rows >> 8) | (entries.sizes - _FRAME_BYTES << 24).view(np.uint64)
    found[:, -1] &= 0x00FF_FFFF_FFFF_FFFF
    if not (found == expected).all():
        return False
    prefixes = entries.batch_starts >> 3
    is_continued = (words.take(prefixes) >> 56) | (words.take(prefixes + 1) << 8)
    metadata = entries.metadata_bytes - _PREFIX_BYTES
    return bool((is_continued == (metadata << 32 | _CONTINUATION).view(np.uint64)).all())


@functools.lru_cache(maxsize=256)
def _numbers(count: int) -> Integers:
    """Where the words that are looked at stand in an entry."""
    return np.arange(_HEAD_WORDS - 1, _HEAD_WORDS - 1 + count)


@functools.lru_cache(maxsize=1024)
def _expected_words(schema: StreamSchema) -> Words | None:
    """The words of every entry from its slot id to the end of the schema message, as `_heads_agree` compares them; None: not this way."""
    if schema.has_dictionaries or len(schema.message) % 8:
        return None
    head = schema.slot_id.to_bytes(2, "little") + schema.fingerprint + bytes(8)
    words = np.frombuffer(bytes(5) + head + schema.message + bytes(1), "<u8").copy()
    words[0] >>= 40
    return words


def _crcs(span: memoryview, starts: Integers, ends: Integers) -> list[int]:
    return [crc32(span[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _signed(word: int) -> int:
    return word - ((word >> 63) << 64)
