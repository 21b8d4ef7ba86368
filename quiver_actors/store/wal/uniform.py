"""Admission and completion of many like entries at once: every check of `store.wal.admission`, as array operations.

For pushes whose entries all have the same slots, of the same schemas without dictionaries: what a producer of small bundles sends.
`check_uniform` never refuses: for whatever is not like that, or not right, it says None, and the entries are looked at one by one, which
finds out what is wrong. Each byte is checked as there; only Python's share is paid once a push instead of once an entry
(docs/performance.md).

Spans are read as aligned 8-byte words. Entries start on multiples of 64, and so do their slots but for 29 bytes, so the words of an entry
up to the end of its first slot, and of each other slot, are (`store.wal.layout`):

    0..3      entry header, or the end of the slot before; of word 3 the bytes 5, 6 are the slot id and 7 is the fingerprint's first
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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import SLOTS_MAX
from quiver_actors.base.protocol.messages import ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.base.units import KIB
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal import layout

UNIFORM_ENTRIES_MIN = 24
"""The fewest entries that are checked together: with fewer, looking at each costs less."""

_KEPT_SPAN_BYTES_MAX = 384 * KIB
"""Spans up to this size keep what was found out about them: in longer ones more entries share what it costs to find out."""

_PATTERNS_MAX = 128
"""Number of patterns that are kept. One takes about 10 KB with the rows of its last push, and 40 us to make. A client that connects anew
has new handles, and so a new pattern."""

_ROW_WORDS = ENTRY_ROW.size // 8
_SLOTS_OFFSET = layout.ENTRY_HEAD.size
_PAYLOAD_OFFSET = _SLOTS_OFFSET + layout.SLOT_HEAD.size
_HEAD_WORDS = 4
_METADATA_BYTES_MIN = 16
_PREFIX_BYTES = 8
_U32 = 0xFFFFFFFF
_SIGN = -1 << 63
_CONTINUATION = 0xFFFFFFFF

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Schemas = tuple[StreamSchema, ...]
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


class _SlotColumns(NamedTuple):
    """What the rows of slots say. Each field has a row for each slot of an entry."""

    offsets: Integers
    """Offset of the payload in the entry."""
    payload_bytes: Integers
    row_counts: Integers
    metadata_bytes: Integers
    """Metadata bytes of the record-batch message."""
    body_bytes: Integers


@dataclass(slots=True)
class UniformEntries:
    """Entries that may be logged, one behind the other from the start of their span. Columns of one length; not to be changed.

    What is here follows from the rows of a push and its schema alone, CRCs left out: pushes that are laid out alike share it.
    """

    schemas: Schemas
    """The schemas of the slots, in ascending order of slot id."""
    sizes: Integers
    item_counts: Integers
    ingestion_ts_nanos: Integers
    """Ingestion time of each entry, UNIX nanoseconds; 0: to be stamped."""
    of_slots: _SlotColumns
    batch_starts: Integers
    """Offset in the span of each slot's record-batch message."""
    row_count: int
    """Rows of all slots of all entries together."""
    has_times: bool
    """Whether some entries have ingestion times of their own, which are not to be stamped."""
    slots: Places
    """Where the bytes begin and end that the producer's CRCs cover."""
    bodies: Places
    """Where the bytes begin and end that the entries' own CRCs cover."""
    heads: bytes
    """Packed `_HEAD`s, without the fields that `complete` fills in."""
    head_items: Integers
    """Where the heads belong, in items of their size."""
    crc_words: Integers
    """Where the entries' CRCs belong, in words of four bytes."""
    place_of_words: Integers
    """Where each slot's words are, from its id to the prefix of the record-batch message: a row for each entry."""
    pattern: _Pattern
    words: bytes | None = None
    """The contents of those words, once they were found to be right."""

    def __len__(self) -> int:
        return len(self.sizes)


def check_uniform(
    span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]
) -> tuple[UniformEntries, int] | None:
    """Check all entries of a push: they, and the rows of all their slots. None: the push is not uniform, or not right."""
    count, rest = divmod(len(push.entries), ENTRY_ROW.size)
    if rest or count < UNIFORM_ENTRIES_MIN or push.dictionaries:
        return None
    slot_count, rest = divmod(len(push.slots), len(push.entries))
    if rest or not 1 <= slot_count <= SLOTS_MAX:
        return None
    handles = tuple([_HANDLE.unpack_from(push.slots, slot * SLOT_ROW.size)[0] for slot in range(slot_count)])
    try:
        declared = tuple([schemas[handle] for handle in handles])
    except KeyError:
        return None
    rows = np.frombuffer(bytearray(push.entries), _U4).reshape(count, 2 * _ROW_WORDS)
    crcs = rows[:, 1].tolist()
    rows[:, 1] = 0
    # The span's own limit is that of one entry: none of them is larger.
    pattern = _pattern(declared, handles)
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

    schemas: Schemas
    bitmap: int
    message_bytes: Integers
    """Bytes of each slot's schema message, a row for each slot."""
    values: Integers
    """What each column of the rows holds, where `masks` has ones."""
    masks: Integers
    words: Integers
    """The words of the slots of every entry, from the slot id to the prefix of the record-batch message, without what the rows say."""
    word_masks: Integers
    """Masks for those words, with zeroes for what stands before the slot and for the metadata."""
    places: list[tuple[slice, Integers]]
    """The words of each slot among `words`, and their places, in words from 29 bytes in front of the slot."""
    slots_before: bytes = b""
    """The slot rows of the last push; empty if its span was longer than `_KEPT_SPAN_BYTES_MAX`."""


@functools.lru_cache(maxsize=_PATTERNS_MAX)
def _pattern(schemas: Schemas, handles: tuple[int, ...]) -> _Pattern | None:
    """The pattern of such pushes; None: their entries are looked at one by one."""
    slot_ids = [schema.slot_id for schema in schemas]
    if slot_ids != sorted(set(slot_ids)) or any(_is_other(schema) for schema in schemas):
        return None
    bitmap = sum([1 << slot_id for slot_id in slot_ids])
    columns = [
        # ENTRY_ROW: size and CRC, bitmap, item count, ingestion time, slot count and rows.
        (0, layout.ALIGNMENT - 1),
        (_signed(bitmap), -1),
        (0, 0),
        (0, _SIGN),
        (len(schemas), _U32 | _SIGN),
    ]
    for schema, handle in zip(schemas, handles, strict=True):
        columns += [
            # SLOT_ROW: handle and payload's place, payload's size and rows, batch message's place and metadata, its body, no dictionaries.
            (handle | _PAYLOAD_OFFSET << 32, (layout.ALIGNMENT - 1) << 32 | _U32 if len(columns) > _ROW_WORDS else -1),
            (0, _SIGN),
            (len(schema.message), 7 << 32 | _U32),
            (0, ~_U32 | 7),
            (0, -1),
        ]
    values, masks = np.array(columns, np.int64).T[:, :, None].copy()
    words = [_words_of(schema) for schema in schemas]
    word_masks = [np.full(len(each), -1) for each in words]
    places, start = [], 0
    for each in word_masks:
        each[0], each[-1] = -1 << 40, 0x00FF_FFFF_FFFF_FFFF
        places.append((slice(start, start + len(each)), np.arange(_HEAD_WORDS - 1, _HEAD_WORDS - 1 + len(each))))
        start += len(each)
    message_bytes = np.array([[len(schema.message)] for schema in schemas])
    return _Pattern(
        schemas, bitmap, message_bytes, values, masks, np.concatenate(words), np.concatenate(word_masks), places
    )


def _is_other(schema: StreamSchema) -> bool:
    return schema.has_dictionaries or len(schema.message) % 8 != 0


def _words_of(schema: StreamSchema) -> Integers:
    """The words of one slot, in the form that `_Pattern.words` has."""
    prefix = _CONTINUATION.to_bytes(4, "little") + bytes(4 + 1)
    return np.frombuffer(bytes(5) + _slot_start(schema) + bytes(8) + schema.message + prefix, "<i8")


def _slot_start(schema: StreamSchema) -> bytes:
    """Return the first bytes of a slot head: slot and fingerprint."""
    return schema.slot_id.to_bytes(2, "little") + schema.fingerprint


def _laid_out(pattern: _Pattern, entry_rows: bytes, slot_rows: bytes, span_bytes: int) -> UniformEntries | None:
    """Read a push's rows about its entries, and check all that needs no entry bytes. None if the push is not uniform, or wrong.

    Args:
        entry_rows: the rows of the entries, with zeroes for CRCs.
    """
    by_entry = np.frombuffer(entry_rows, "<i8").reshape(-1, _ROW_WORDS)
    by_slot = np.frombuffer(slot_rows, "<i8").reshape(len(by_entry), -1)
    # Transposed, so that each of the few operations below works on adjacent words.
    columns = np.empty((len(pattern.values), len(by_entry)), np.int64)
    columns[:_ROW_WORDS], columns[_ROW_WORDS:] = by_entry.T, by_slot.T
    ends = columns[0].cumsum()
    slots = columns[_ROW_WORDS:].reshape(-1, _ROW_WORDS, len(by_entry)).swapaxes(0, 1)
    of_slots = _SlotColumns(slots[0] >> 32, slots[1] & _U32, slots[1] >> 32, slots[2] >> 32, slots[3])
    if ends[-1] != span_bytes or not _rows_agree(columns, of_slots, pattern):
        return None
    return _entries_of(columns, of_slots, ends, pattern)


_kept = functools.lru_cache(maxsize=8)(_laid_out)
"""Batches of fixed-width columns with as many rows are laid out alike, push after push: what follows from that is found out once."""


def _rows_agree(columns: Integers, of_slots: _SlotColumns, pattern: _Pattern) -> bool:
    """Whether the rows are what all have in common and agree with each other, and messages lie inside their payloads, aligned."""
    wrong = columns ^ pattern.values
    wrong &= pattern.masks
    # Slots follow one another, the last one up to the CRC.
    ends = of_slots.offsets + of_slots.payload_bytes
    ends[:-1] ^= of_slots.offsets[1:] - layout.SLOT_HEAD.size
    ends[-1] ^= columns[0] - layout.ENTRY_CRC.size
    wrong[_ROW_WORDS::_ROW_WORDS] |= ends
    wrong[4] |= np.add.reduce(of_slots.row_counts) ^ columns[4] >> 32
    # Not negative where all is well. With a giant `body_bytes` it may overflow: that is wrong already.
    signs = of_slots.payload_bytes - pattern.message_bytes - of_slots.metadata_bytes - of_slots.body_bytes
    signs |= of_slots.metadata_bytes - _METADATA_BYTES_MIN
    wrong[_ROW_WORDS + 1 :: _ROW_WORDS] |= signs & _SIGN
    wrong[2] = columns[2] - (columns[2] >> 63) & _SIGN
    return not wrong.any()


def _entries_of(columns: Integers, of_slots: _SlotColumns, ends: Integers, pattern: _Pattern) -> UniformEntries:
    """The entries that these rows describe, which agree with each other."""
    sizes = columns[0]
    starts = ends - sizes
    crc_places = ends - layout.ENTRY_CRC.size
    crc_list = crc_places.tolist()
    heads = np.zeros(len(sizes), _HEAD)
    heads["length"] = sizes - layout.ENTRY_OVERHEAD_BYTES
    heads["bitmap"] = pattern.bitmap
    heads["slot"] = _slot_start(pattern.schemas[0])[:3]
    payloads = of_slots.offsets + starts
    return UniformEntries(
        pattern.schemas,
        sizes,
        item_counts=columns[2],
        ingestion_ts_nanos=columns[3],
        of_slots=of_slots,
        batch_starts=payloads + pattern.message_bytes,
        row_count=int((columns[4] >> 32).sum()),
        has_times=bool(columns[3].any()),
        slots=((starts + _SLOTS_OFFSET).tolist(), crc_list),
        bodies=((starts + layout.ENTRY_LENGTH_BYTES).tolist(), crc_list),
        heads=heads.tobytes(),
        head_items=starts // _HEAD_ITEM.itemsize,
        crc_words=crc_places >> 2,
        place_of_words=_places_of_words(payloads - _PAYLOAD_OFFSET >> 3, pattern),
        pattern=pattern,
    )


def _places_of_words(starts: Integers, pattern: _Pattern) -> Integers:
    """Where the words of each entry are, a row for each entry. `starts`: what `_Pattern.places` count from, a row for each slot."""
    places = np.empty((starts.shape[1], len(pattern.words)), np.int64)
    for start, (own, own_places) in zip(starts, pattern.places, strict=True):
        np.add(start[:, None], own_places, out=places[:, own])
    return places


def _heads_agree(entries: UniformEntries, span: memoryview, *, keeps: bool) -> bool:
    """Whether slot heads, schema messages and the prefixes of the record-batch messages are what the rows say.

    Args:
        keeps: remember the words, so that the words of later pushes are compared with them.
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
    """Whether these words are what the rows say. The words are changed on the way."""
    of_slots = entries.of_slots
    counts = of_slots.row_counts | of_slots.payload_bytes << 32
    firsts, seconds, lengths = counts << 56, counts >> 8, of_slots.metadata_bytes - _PREFIX_BYTES << 24
    for slot, (own, _) in enumerate(entries.pattern.places):
        words[:, own.start + 4] ^= firsts[slot]
        words[:, own.start + 5] ^= seconds[slot]
        words[:, own.stop - 1] ^= lengths[slot]
    return bool((words == entries.pattern.words).all())


def _crcs(span: memoryview, places: Places) -> list[int]:
    return [crc32(span[start:end]) for start, end in zip(*places, strict=True)]


def _signed(word: int) -> int:
    return word - ((word >> 63) << 64)
