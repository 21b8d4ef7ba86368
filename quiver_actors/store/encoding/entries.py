"""Bundles, laid out as unfinished log entries (`store.wal.layout`) in memory that a worker will read.

An entry, offsets from its start, which stands at 57 mod 64 in the file:

    0    u32  entry_len            left zero, the worker fills it
    4    25   entry header         left zero
    29   42   slot head            u16 slot_id, 32 fingerprint, u32 row_count, u32 payload_len
    71        payload              schema message, dictionary messages, one record-batch message, end of stream, zeroes
    ...       further slot heads and payloads, ascending slot ids
    -4   u32  CRC                  left zero

A payload begins on a 64-byte file offset; zeroes behind its end of stream, counted in payload_len, bring the next slot head
to 22 mod 64 or, behind the last one, the CRC to 53 mod 64. So an entry is a multiple of 64 bytes, and one laid behind the
other keeps the alignment.

Two steps: `plan` measures a bundle exactly and encodes what is small, needing neither arena nor connection; `write` puts a planned
entry at its place, once. What was encoded on the heap is freed then: holding on to it until the acknowledgement would make every
later bundle pay for fresh memory (measured with 64 KiB bundles: 80 us of CPU each instead of 23).

Small batches are serialized on the heap and copied once; from about 128 KiB on that costs more than letting Arrow write into the arena
itself, so then it does.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import ENTRY_BODY_BYTES_MAX, SLOTS_MAX
from quiver_actors.base.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.base.units import format_size
from quiver_actors.errors import ArrowError, BundleTooLarge, InvalidBundle
from quiver_actors.store.encoding.streams import END_OF_STREAM, WRITE_OPTIONS, EncodedStream, StreamTable
from quiver_actors.store.segment.arrow_ipc import walk_stream
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.layout import ENTRY_CRC, ENTRY_HEAD, SLOT_HEAD

ENTRY_HEAD_BYTES = ENTRY_HEAD.size
"""Length field and entry header."""
CRC_BYTES = ENTRY_CRC.size
MESSAGE_PREFIX_BYTES = 8

SERIALIZE_BYTES_MAX = 128 << 10
"""Where serialize-and-copy and writing in place cost the same (measured: 10.0 and 10.8 us at 127 KiB, 6.1 and 8.9 at 64 KiB)."""
JOINED_BYTES_MAX = 16 << 10
"""Entries up to this size are joined on the heap and copied by one assignment; above, the second copy would cost more than it saves."""

ROWS_MAX = (1 << 32) - 1
"""The most rows that all slots of one bundle may have together."""
_ITEMS_MAX = (1 << 63) - 1
_SLOT_HEAD_BYTES = SLOT_HEAD.size
_EOS_BYTES = len(END_OF_STREAM)
_ENTRY_HEAD = bytes(ENTRY_HEAD_BYTES)
_metadata_length = struct.Struct("<4xI").unpack_from

Ending: TypeAlias = tuple[int, tuple[bytes, ...]]
# Where a payload ends mod 64, and what follows its content for each length of padding.
_MIDDLE: Ending = (22, tuple(END_OF_STREAM + bytes(padding) for padding in range(64)))
_LAST: Ending = (53, tuple(END_OF_STREAM + bytes(padding + CRC_BYTES) for padding in range(64)))

Spans: TypeAlias = tuple[int, int, int, int]
"""The last four fields of `SLOT_ROW`."""
_NOT_YET: Spans = (0, 0, 0, 0)
_HANDED_ON: list[Any] = []
"""Takes the place of the lists of a plan that was written; stays empty."""


class InPlace(msgspec.Struct, gc=False):
    """A slot's stream that Arrow writes straight into its place. The slot's rows are made at that time."""

    stream: EncodedStream
    batch: pa.RecordBatch
    content_bytes: int
    fields: tuple[int, ...] = ()
    """The first four fields of its `SLOT_ROW`."""
    slot_index: int = 0
    """Where its rows belong in `BundlePlan.slot_rows` and `dictionary_rows`."""
    dictionary_index: int = 0


Part: TypeAlias = "bytes | memoryview | pa.Buffer | InPlace"


class BundlePlan(msgspec.Struct, gc=False):
    """One bundle, measured: everything that does not depend on a place in memory or on a connection. Keeps the batches alive.

    What is in the lists is handed on when the entry is written: bundles under way number in the thousands, and each list that they hold
    costs the garbage collector a visit (measured: 3 us a bundle).
    """

    batches: Sequence[tuple[int, pa.RecordBatch]]
    item_count: int | None
    entry_bytes: int
    bitmap: int
    row_count: int
    parts: list[Part]
    """Parts of the entry, back to back."""
    slot_rows: list[bytes]
    """One packed `SLOT_ROW` for each slot; complete once the entry is written."""
    dictionary_rows: list[bytes]
    """The packed rows of the dictionaries of each slot that has some; complete once the entry is written."""
    streams: list[EncodedStream]
    """The stream of each slot."""
    crc: int = 0
    """CRC over everything between the entry header and the CRC field; valid once the entry is written."""


def plan(
    batches: Sequence[tuple[int, pa.RecordBatch]], table: StreamTable, item_count: int | None = None
) -> BundlePlan:
    """Measure a bundle and encode its small slots.

    Args:
        batches: (slot id, batch) in ascending order of id, at least one.

    Raises:
        InvalidBundle: Arrow cannot encode a batch, too many rows, or an impossible item count.
        BundleTooLarge: the entry would be over the limit; nothing of that size has been copied.
    """
    check_item_count(item_count)
    streams: list[EncodedStream] = []
    slot_rows: list[bytes] = []
    dictionary_rows: list[bytes] = []
    parts: list[Part] = []
    lead = _ENTRY_HEAD
    at, bitmap, row_count = ENTRY_HEAD_BYTES, 0, 0
    last = batches[-1][0]
    for slot_id, batch in batches:
        stream = table.stream(slot_id, batch.schema)
        part, content_bytes, spans, dictionaries = _encode(stream, batch)
        mod, tails = _LAST if slot_id == last else _MIDDLE
        stream_bytes = stream.frame_bytes + content_bytes
        padding = (mod - stream_bytes) & 63
        payload_bytes = stream_bytes + padding
        rows = batch.num_rows
        head = SLOT_HEAD.pack(slot_id, stream.fingerprint, rows, payload_bytes)
        fields = (stream.handle, at + _SLOT_HEAD_BYTES, payload_bytes, rows)
        if isinstance(part, InPlace):
            part.fields, part.slot_index, part.dictionary_index = fields, len(slot_rows), len(dictionary_rows)
            parts += (lead + head, part)
        else:
            parts += (lead + head + stream.message, part)
        if stream.has_dictionaries:
            dictionary_rows.append(dictionaries)
        slot_rows.append(SLOT_ROW.pack(*fields, *spans))
        streams.append(stream)
        lead = tails[padding]
        at += _SLOT_HEAD_BYTES + payload_bytes
        bitmap |= 1 << slot_id
        row_count += rows
    parts.append(lead)
    entry_bytes = at + CRC_BYTES
    planned = BundlePlan(
        batches, item_count, entry_bytes, bitmap, row_count, parts, slot_rows, dictionary_rows, streams
    )
    if entry_bytes > JOINED_BYTES_MAX or row_count > ROWS_MAX:
        _check_limits(planned)
    else:
        _join(planned)
    return planned


def check_item_count(item_count: int | None) -> None:
    """
    Raises:
        InvalidBundle: an entry cannot say that.
    """
    if item_count is None:
        return
    try:
        # Without it a fraction would be cut off where numpy packs it.
        is_possible = 0 <= operator.index(item_count) <= _ITEMS_MAX
    except TypeError:
        is_possible = False
    if not is_possible:
        raise InvalidBundle(
            f"item_count {item_count!r} is not possible: expected an integer of 0..{_ITEMS_MAX}, or None for unknown"
        )


class PlannedBundles:
    """Bundles that travel in one Push message, each with its plan."""

    __slots__ = ("_plans", "size_bytes")

    def __init__(self, plans: list[BundlePlan]) -> None:
        self._plans = plans
        self.size_bytes = sum([planned.entry_bytes for planned in plans])

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def streams_max(self) -> int:
        """An upper bound for the number of `streams`, found without looking at the bundles."""
        return SLOTS_MAX * len(self._plans)

    @property
    def streams(self) -> set[EncodedStream]:
        """The streams of all slots of all bundles; complete only until the bundles are written."""
        return {stream for planned in self._plans for stream in planned.streams}

    def write(self, ring: memoryview, offset: int) -> PushRows:
        """Lay the entries at `ring[offset : offset + size_bytes]`, once.

        Raises:
            InvalidBundle, ArrowError: a bundle could not be encoded in place.
        """
        return lay_out(self._plans, ring, offset)

    def bundles_from(self, first: int) -> list[tuple[Sequence[tuple[int, pa.RecordBatch]], int | None]]:
        """Batches by slot, and item counts, of the bundles from index `first` on."""
        return [(planned.batches, planned.item_count) for planned in self._plans[first:]]


class PushRows:
    """Rows of a Push message about the entries that were written for it, collected bundle by bundle."""

    __slots__ = ("dictionaries", "entries", "slots", "streams")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.slots: list[bytes] = []
        self.dictionaries: list[bytes] = []
        self.streams: set[EncodedStream] = set()

    def push(
        self, tag: int, topic: str, offset: int, length: int, end_position: int, patience_ms: int = 0, call: int = 0
    ) -> Push:
        """The Push message; the arguments are its fields of the same names."""
        packed = (b"".join(self.entries), b"".join(self.slots), b"".join(self.dictionaries))
        return Push(tag, topic, offset, length, end_position, *packed, patience_ms, call)

    def schemas(self) -> dict[int, StreamSchema]:
        """The schema of each stream, by the handle by which the rows name it."""
        streams = self.streams
        return {stream.handle: StreamSchema(stream.slot_id, stream.fingerprint, stream.message) for stream in streams}


def lay_out(plans: Iterable[BundlePlan], memory: memoryview, offset: int = 0) -> PushRows:
    """Write planned entries back to back from `offset` on."""
    rows = PushRows()
    for planned in plans:
        write(planned, memory, offset, rows)
        offset += planned.entry_bytes
    return rows


def write(planned: BundlePlan, ring: memoryview, offset: int, rows: PushRows) -> None:
    """Lay the entry at `ring[offset : offset + planned.entry_bytes]` and add its rows to `rows`. At most once for each plan.

    The memory may hold anything before; every byte of the entry is written.
    """
    parts = planned.parts
    if len(parts) == 1:
        entry = parts[0]
        assert isinstance(entry, bytes), "a plan of one part is a joined one"
        ring[offset : offset + len(entry)] = entry
    else:
        _write_parts(planned, ring, offset)
    _hand_on(planned, rows)


def _write_parts(planned: BundlePlan, ring: memoryview, offset: int) -> None:
    at = offset
    for part in planned.parts:
        if isinstance(part, InPlace):
            at = _write_in_place(planned, part, ring, at)
        else:
            content = memoryview(part).cast("B")
            end = at + len(content)
            ring[at:end] = content
            at = end
    planned.crc = crc32(ring[offset + ENTRY_HEAD_BYTES : at - CRC_BYTES])


def _hand_on(planned: BundlePlan, rows: PushRows) -> None:
    slot_rows = planned.slot_rows
    item_count = -1 if planned.item_count is None else planned.item_count
    rows.entries.append(
        ENTRY_ROW.pack(
            planned.entry_bytes, planned.crc, planned.bitmap, item_count, 0, len(slot_rows), planned.row_count
        )
    )
    rows.slots += slot_rows
    rows.streams.update(planned.streams)
    if planned.dictionary_rows:
        rows.dictionaries += planned.dictionary_rows
    planned.parts = planned.slot_rows = planned.dictionary_rows = planned.streams = _HANDED_ON


def _encode(stream: EncodedStream, batch: pa.RecordBatch) -> tuple[pa.Buffer | memoryview | InPlace, int, Spans, bytes]:
    """What stands between the schema message and the end of stream, its length, its spans and its packed dictionary rows."""
    try:
        # The sum over whole buffers is cheap, and for a slice too high: then the exact size decides.
        if stream.has_dictionaries or batch.get_total_buffer_size() > SERIALIZE_BYTES_MAX:
            content_bytes = _measure(stream, batch)
            if content_bytes > SERIALIZE_BYTES_MAX:
                return InPlace(stream, batch, content_bytes), content_bytes, _NOT_YET, b""
            if stream.has_dictionaries:
                return _encode_with_dictionaries(stream, batch)
        buffer = batch.serialize()
    except pa.ArrowException as error:
        raise InvalidBundle(f"slot {stream.slot_id}: Arrow cannot encode the batch: {error}") from error
    size = buffer.size
    metadata_bytes = MESSAGE_PREFIX_BYTES + _metadata_length(buffer)[0]
    return buffer, size, (len(stream.message), metadata_bytes, size - metadata_bytes, 0), b""


def _encode_with_dictionaries(stream: EncodedStream, batch: pa.RecordBatch) -> tuple[memoryview, int, Spans, bytes]:
    sink = pa.BufferOutputStream()
    _write_stream(sink, stream, batch)
    encoded = memoryview(sink.getvalue()).cast("B")
    content = encoded[len(stream.message) : -_EOS_BYTES]
    return content, len(content), *_walk(encoded, 0, len(encoded))


def _measure(stream: EncodedStream, batch: pa.RecordBatch) -> int:
    """Exact bytes of the dictionary and record-batch messages. Copies no values."""
    if not stream.has_dictionaries:
        size: int = pa.ipc.get_record_batch_size(batch)
        return size
    sink = pa.MockOutputStream()
    _write_stream(sink, stream, batch)
    size = sink.size()
    return size - len(stream.message) - _EOS_BYTES


def _join(planned: BundlePlan) -> None:
    """Assemble a small entry on the heap."""
    entry = b"".join(planned.parts)  # type: ignore[arg-type]  # what Arrow writes in place is larger than this entry
    planned.parts = [entry]
    planned.crc = crc32(memoryview(entry)[ENTRY_HEAD_BYTES:-CRC_BYTES])


def _write_in_place(planned: BundlePlan, part: InPlace, ring: memoryview, start: int) -> int:
    """Let Arrow write a slot's stream at `start`, complete its rows, and return where its end-of-stream mark stands."""
    stream = part.stream
    end = start + len(stream.message) + part.content_bytes + _EOS_BYTES
    # Wrapping a slice of the memoryview, not a slice of a wrapped ring: Arrow aborts the process on an immutable buffer.
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(ring[start:end]))
    _write_stream(sink, stream, part.batch)
    if sink.tell() != end - start:
        raise ArrowError(f"slot {stream.slot_id}: Arrow wrote {sink.tell()} bytes but announced {end - start}")
    if stream.has_dictionaries:
        spans, dictionary_rows = _walk(ring, start, end)
    else:
        offset = len(stream.message)
        metadata_bytes = MESSAGE_PREFIX_BYTES + _metadata_length(ring, start + offset)[0]
        spans, dictionary_rows = (offset, metadata_bytes, part.content_bytes - metadata_bytes, 0), b""
    planned.slot_rows[part.slot_index] = SLOT_ROW.pack(*part.fields, *spans)
    if stream.has_dictionaries:
        planned.dictionary_rows[part.dictionary_index] = dictionary_rows
    return end - _EOS_BYTES


def _write_stream(sink: pa.NativeFile, stream: EncodedStream, batch: pa.RecordBatch) -> None:
    # The stream's schema, not the batch's: equal ones may list their metadata in another order, and the worker compares bytes.
    with pa.ipc.new_stream(sink, stream.schema, options=WRITE_OPTIONS) as writer:
        writer.write_batch(batch)


def _walk(memory: memoryview, start: int, end: int) -> tuple[Spans, bytes]:
    layout = walk_stream(memory, start, end)
    rows = [
        DICTIONARY_ROW.pack(~span.id if span.is_delta else span.id, span.offset, span.metadata_bytes, span.body_bytes)
        for span in layout.dictionaries
    ]
    return (*layout.batch, len(rows)), b"".join(rows)


def _check_limits(planned: BundlePlan) -> None:
    body_bytes = planned.entry_bytes - 2 * CRC_BYTES
    if body_bytes > ENTRY_BODY_BYTES_MAX:
        raise BundleTooLarge(
            f"the encoded bundle has {body_bytes} bytes ({format_size(body_bytes)}): the limit of one bundle is "
            f"{ENTRY_BODY_BYTES_MAX} bytes ({format_size(ENTRY_BODY_BYTES_MAX)}); push it in several bundles"
        )
    if planned.row_count > ROWS_MAX:
        raise InvalidBundle(
            f"the bundle has {planned.row_count} rows: the limit is {ROWS_MAX}; push it in several bundles"
        )
