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
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quiver_actors.checksum import crc32
from quiver_actors.protocol.messages import ENTRY_ROW, Push
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.units import KIB
from quiver_actors.wal import layout

UNIFORM_ENTRIES_MIN = 24
"""With fewer entries, looking at each costs less."""

_KEPT_SPAN_BYTES_MAX = 128 * KIB
"""What is known of longer spans is not kept: there more entries share what it costs to find out."""

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
Places = tuple[list[int], list[int]]
"""Where pieces of a span begin and end."""

_HANDLE = struct.Struct("<I")
_HEAD = np.dtype(
    [("length", "<u4"), ("type", "u1"), ("time", "<i8"), ("sequence", "<u8"), ("bitmap", "<u8"), ("slot", "V3")]
)
"""`layout.ENTRY_HEAD` and the three bytes behind it that fill the last word."""
_HEAD_ITEM = np.dtype(f"V{_HEAD.itemsize}")
_U4, _I8 = np.dtype("<u4"), np.dtype("<i8")
assert layout.ALIGNMENT % _HEAD_ITEM.itemsize == 0


@dataclass(slots=True)
class UniformEntries:
    """Entries that may be logged, one behind the other from the start of their span. Columns of one length; not to be changed.

    What is here follows from the rows of a push and its schema alone, CRCs left out: pushes that are laid out alike share it.
    """

    schema: StreamSchema
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
    row_count: int
    """Of all together."""
    has_times: bool
    """Some are not to be stamped."""
    slots: Places
    """What the producer's CRCs are of."""
    bodies: Places
    """What the entries' own CRCs are of."""
    heads: bytes
    """`_HEAD`s, without what `complete` knows."""
    head_items: Integers
    """Where they belong, in items of their size."""
    crc_words: Integers
    """Where the entries' CRCs belong, in words of theirs."""
    place_of_words: Integers
    """Of the words from the slot id to the prefix of the record-batch message, a row for each entry."""
    pattern: _Pattern
    words: bytes | None = None
    """What they are, once they were found to be right."""

    def __len__(self) -> int:
        return len(self.sizes)


def check_uniform(
    span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]
) -> tuple[UniformEntries, int] | None:
    """Check all entries of a push: they, and the rows of all their slots. None: the push is not uniform, or not right."""
    count, rest = divmod(len(push.entries), ENTRY_ROW.size)
    if rest or count < UNIFORM_ENTRIES_MIN or len(push.slots) != len(push.entries) or push.dictionaries:
        return None
    (handle,) = _HANDLE.unpack_from(push.slots)
    schema = schemas.get(handle)
    if schema is None:
        return None
    rows = np.frombuffer(bytearray(push.entries), _U4).reshape(count, 2 * _ROW_WORDS)
    crcs = rows[:, 1].tolist()
    rows[:, 1] = 0
    # The span's own limit is that of one entry: none of them is larger.
    pattern = _pattern(schema, handle)
    if pattern is None or len(span) > layout.ENTRY_BYTES_MAX:
        return None
    is_alike = pattern.slots_before == push.slots
    pattern.slots_before = push.slots if len(span) <= _KEPT_SPAN_BYTES_MAX else b""
    entries = (_kept if is_alike else _laid_out)(pattern, rows.tobytes(), push.slots, len(span))
    if entries is None or not _heads_agree(entries, span, keeps=is_alike) or _crcs(span, entries.slots) != crcs:
        return None
    return entries, entries.row_count


def complete(span: memoryview, entries: UniformEntries, entry_type: int, sequence: int, now_unix_ns: int) -> Integers:
    """Fill headers and CRCs; the first entry gets `sequence`. Returns the ingestion times."""
    count = len(entries.sizes)
    times = np.empty(count, np.int64)
    times.fill(now_unix_ns)
    if entries.has_times:
        times = np.where(entries.ingestion_ts_nanos == 0, times, entries.ingestion_ts_nanos)
    memory = bytearray(entries.heads)
    heads = np.frombuffer(memory, _HEAD)
    heads["type"] = entry_type
    heads["time"] = times
    heads["sequence"] = np.arange(sequence, sequence + count, dtype=np.uint64)
    # As items without fields, which are copied whole; entries start on multiples of two of them.
    np.frombuffer(span, _HEAD_ITEM)[entries.head_items] = np.frombuffer(memory, _HEAD_ITEM)
    np.frombuffer(span, _U4)[entries.crc_words] = _crcs(span, entries.bodies)
    return times


@dataclass(slots=True, eq=False)
class _Pattern:
    """What the rows and entries of a push have in common."""

    schema: StreamSchema
    values: Integers
    """Of each column of the rows, where `masks` has ones."""
    masks: Integers
    words: Integers
    """Of every entry from its slot id to the prefix of the record-batch message, without what the rows say."""
    word_masks: Integers
    """Zeroes where those belong to the entry header and to the metadata."""
    places: Integers
    """Where those stand, in words from the entry's start."""
    slots_before: bytes = b""
    """Of the last push, if it was short."""


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
    prefix = _CONTINUATION.to_bytes(4, "little") + bytes(4 + 1)
    words = np.frombuffer(bytes(5) + _slot_start(schema) + bytes(8) + schema.message + prefix, "<i8")
    word_masks = np.full(len(words), -1)
    word_masks[0], word_masks[-1] = -1 << 40, 0x00FF_FFFF_FFFF_FFFF
    places = np.arange(_HEAD_WORDS - 1, _HEAD_WORDS - 1 + len(words))
    return _Pattern(schema, values, masks, words, word_masks, places)


def _slot_start(schema: StreamSchema) -> bytes:
    """What a slot head begins with."""
    return schema.slot_id.to_bytes(2, "little") + schema.fingerprint


def _laid_out(pattern: _Pattern, entry_rows: bytes, slot_rows: bytes, span_bytes: int) -> UniformEntries | None:
    """What a push says of its entries, checked as far as that goes without their bytes; None if it is not uniform, or not right.

    Args:
        entry_rows: with zeroes for CRCs.
    """
    # Turned over: what follows is a few operations, each on words that stand side by side.
    by_row = np.frombuffer(entry_rows + slot_rows, "<i8").reshape(2, -1, _ROW_WORDS)
    columns = by_row.transpose(0, 2, 1).reshape(2 * _ROW_WORDS, -1)
    ends = columns[0].cumsum()
    if ends[-1] != span_bytes or not _rows_agree(columns, pattern):
        return None
    return _entries_of(columns, ends, pattern)


_kept = functools.lru_cache(maxsize=8)(_laid_out)
"""Batches of fixed-width columns with as many rows are laid out alike, push after push: what follows from that is found out once."""


def _rows_agree(columns: Integers, pattern: _Pattern) -> bool:
    """Whether the rows are what all have in common and agree with each other, and messages lie inside their payloads, aligned."""
    wrong = columns ^ pattern.values
    wrong &= pattern.masks
    payload_bytes = columns[0] - _FRAME_BYTES
    items, metadata, body = columns[2], columns[7] >> 32, columns[8]
    # The slot count is 1, or wrong already: without it, both rows say the same of the number of rows.
    wrong[6] = columns[6] ^ columns[4] ^ payload_bytes ^ 1
    # Not negative where all is well. With a giant `body` it may overflow: that is wrong already.
    signs = payload_bytes - len(pattern.schema.message) - metadata - body
    signs |= metadata - _METADATA_BYTES_MIN
    signs |= items - (items >> 63)
    np.bitwise_and(signs, _SIGN, out=wrong[2])
    return not wrong.any()


def _entries_of(columns: Integers, ends: Integers, pattern: _Pattern) -> UniformEntries:
    """Of rows that agree."""
    schema = pattern.schema
    sizes, row_counts, metadata_bytes = columns[0], columns[4] >> 32, columns[7] >> 32
    starts = ends - sizes
    crc_places = ends - layout.ENTRY_CRC.size
    crc_list = crc_places.tolist()
    heads = np.zeros(len(sizes), _HEAD)
    heads["length"] = sizes - layout.ENTRY_OVERHEAD_BYTES
    heads["bitmap"] = 1 << schema.slot_id
    heads["slot"] = _slot_start(schema)[:3]
    return UniformEntries(
        schema,
        sizes,
        item_counts=columns[2],
        ingestion_ts_nanos=columns[3],
        row_counts=row_counts,
        batch_starts=starts + (_PAYLOAD_OFFSET + len(schema.message)),
        metadata_bytes=metadata_bytes,
        body_bytes=columns[8],
        row_count=int(row_counts.sum()),
        has_times=bool(columns[3].any()),
        slots=((starts + _SLOTS_OFFSET).tolist(), crc_list),
        bodies=((starts + layout.ENTRY_LENGTH_BYTES).tolist(), crc_list),
        heads=heads.tobytes(),
        head_items=starts // _HEAD_ITEM.itemsize,
        crc_words=crc_places >> 2,
        place_of_words=(starts >> 3)[:, None] + pattern.places,
        pattern=pattern,
    )


def _heads_agree(entries: UniformEntries, span: memoryview, *, keeps: bool) -> bool:
    """Whether slot heads, schema messages and the prefixes of the record-batch messages are what the rows say.

    Args:
        keeps: the next ones are compared with these.
    """
    found = np.frombuffer(span, _I8).take(entries.place_of_words)
    found &= entries.pattern.word_masks
    words = found.tobytes() if keeps else b""
    if entries.words is not None:
        return words == entries.words
    is_right = _words_agree(entries, found)
    if keeps and is_right:
        entries.words = words
    return is_right


def _words_agree(entries: UniformEntries, words: Integers) -> bool:
    """`_heads_agree`, of words that are changed on the way."""
    counts = entries.row_counts | (entries.sizes - _FRAME_BYTES) << 32
    words[:, 4] ^= counts << 56
    words[:, 5] ^= counts >> 8
    words[:, -1] ^= entries.metadata_bytes - _PREFIX_BYTES << 24
    return bool((words == entries.pattern.words).all())


def _crcs(span: memoryview, places: Places) -> list[int]:
    return [crc32(span[start:end]) for start, end in zip(*places, strict=True)]


def _signed(word: int) -> int:
    return word - ((word >> 63) << 64)
