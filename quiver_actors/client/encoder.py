"""Bundles, laid out as unfinished log entries (FORMATS section 2) in memory that a worker will read.

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
entry at its place. Small batches are serialized on the heap and copied once; from about 128 KiB on that costs more
than letting Arrow write into the arena itself, so then it does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from quiver_actors.checksum import crc32
from quiver_actors.client.schemas import END_OF_STREAM, WRITE_OPTIONS, EncodedStream, StreamTable
from quiver_actors.errors import ArrowError, BundleTooLarge, InvalidBundle
from quiver_actors.model import ENTRY_BODY_BYTES_MAX
from quiver_actors.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW
from quiver_actors.segment.arrow_ipc import walk_stream
from quiver_actors.units import format_size

ENTRY_HEAD_BYTES = 29
"""Length field and entry header."""
SLOT_HEAD = struct.Struct("<H32sII")
CRC_BYTES = 4
MESSAGE_PREFIX_BYTES = 8

SERIALIZE_BYTES_MAX = 128 << 10
"""Where serialize-and-copy and writing in place cost the same (measured: 10.0 and 10.8 us at 127 KiB, 6.1 and 8.9 at 64 KiB)."""
JOINED_BYTES_MAX = 16 << 10
"""Entries up to here are put together on the heap and copied by one assignment; above, the second copy would cost more than it saves."""

_ROWS_MAX = (1 << 32) - 1
_ITEMS_MAX = (1 << 63) - 1
_MIDDLE_MOD, _LAST_MOD = 22, 53
_SLOT_HEAD_BYTES = SLOT_HEAD.size
_PAYLOAD_OFFSET_FIRST = ENTRY_HEAD_BYTES + SLOT_HEAD.size
_ENTRY_HEAD = bytes(ENTRY_HEAD_BYTES)
# End of stream, padding, and the CRC's place behind the last slot: one constant for each length of padding.
_MIDDLE_TAILS = tuple(END_OF_STREAM + bytes(n) for n in range(64))
_LAST_TAILS = tuple(END_OF_STREAM + bytes(n + CRC_BYTES) for n in range(64))
_metadata_length = struct.Struct("<4xI").unpack_from


class SlotPlan(msgspec.Struct, gc=False):
    """One slot of a planned bundle: its size, and its encoded messages if they are small."""

    stream: EncodedStream
    batch: pa.RecordBatch
    row_count: int
    content_bytes: int
    """Everything between the schema message and the end of stream."""
    content: pa.Buffer | memoryview | None
    """The same, encoded; None when Arrow writes it in place, and once it was written."""
    batch_offset: int = 0
    """Of the record-batch message, from the payload's start. It and the next three are known once `content` has been encoded."""
    metadata_bytes: int = 0
    body_bytes: int = 0
    dictionary_rows: tuple[bytes, ...] = ()
    payload_bytes: int = 0
    tail: bytes = b""
    """What follows `content`: end of stream, padding, and the place of the CRC behind the last slot."""

    def head(self) -> bytes:
        """The 42 bytes in front of the payload."""
        stream = self.stream
        return SLOT_HEAD.pack(stream.slot_id, stream.fingerprint, self.row_count, self.payload_bytes)


class BundlePlan(msgspec.Struct, gc=False):
    """One bundle, measured: everything that does not depend on a place in memory or on a connection. Keeps the batches alive."""

    slots: list[SlotPlan]
    bitmap: int
    row_count: int
    item_count: int
    entry_bytes: int
    entry: bytes | None = None
    """The whole entry, if it is small and was not written yet."""
    crc: int = 0
    """Over everything between the entry header and the CRC; valid once `entry` is there or `write` has run."""


def plan(
    batches: Sequence[tuple[int, pa.RecordBatch]], streams: StreamTable, item_count: int | None = None
) -> BundlePlan:
    """Measure a bundle and encode its small slots.

    Args:
        batches: (slot id, batch) in ascending order of id, at least one.

    Raises:
        InvalidBundle: Arrow cannot encode a batch, too many rows, or an impossible item count.
        BundleTooLarge: the entry would be over the limit; nothing of that size has been copied.
    """
    slots = []
    bitmap = row_count = 0
    entry_bytes = ENTRY_HEAD_BYTES + CRC_BYTES
    last = len(batches) - 1
    for position, (slot_id, batch) in enumerate(batches):
        slot = _plan_slot(streams.stream(slot_id, batch.schema), batch)
        entry_bytes += _SLOT_HEAD_BYTES + _close(slot, is_last=position == last)
        bitmap |= 1 << slot_id
        row_count += slot.row_count
        slots.append(slot)
    planned = BundlePlan(slots, bitmap, row_count, _checked_item_count(item_count), entry_bytes)
    if entry_bytes > JOINED_BYTES_MAX or row_count > _ROWS_MAX:
        _check_limits(planned)
    else:
        _join(planned)
    return planned


def write(planned: BundlePlan, ring: memoryview, offset: int) -> None:
    """Lay the entry at `ring[offset : offset + planned.entry_bytes]`; its CRC and message spans are known then.

    The memory may hold anything before; every byte of the entry is written. What was encoded on the heap is given up, because holding on
    to it until the acknowledgement makes every later bundle pay for fresh memory; to write it again, Arrow encodes it again.
    """
    entry = planned.entry
    if entry is not None:
        ring[offset : offset + len(entry)] = entry
        planned.entry = None
        return
    position = offset + ENTRY_HEAD_BYTES
    ring[offset:position] = _ENTRY_HEAD
    for slot in planned.slots:
        position = _write_slot(slot, ring, position)
    planned.crc = crc32(ring[offset + ENTRY_HEAD_BYTES : position - CRC_BYTES])


class PushRows:
    """The packed rows of one Push message, collected bundle by bundle."""

    __slots__ = ("dictionaries", "entries", "slots")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.slots: list[bytes] = []
        self.dictionaries: list[bytes] = []

    def add(self, planned: BundlePlan) -> None:
        """Describe an entry that has been written."""
        slots = planned.slots
        self.entries.append(
            ENTRY_ROW.pack(
                planned.entry_bytes, planned.crc, planned.bitmap, planned.item_count, 0, len(slots), planned.row_count
            )
        )
        payload = _PAYLOAD_OFFSET_FIRST
        for slot in slots:
            payload_bytes = slot.payload_bytes
            dictionaries = slot.dictionary_rows
            self.slots.append(
                SLOT_ROW.pack(
                    slot.stream.handle,
                    payload,
                    payload_bytes,
                    slot.row_count,
                    slot.batch_offset,
                    slot.metadata_bytes,
                    slot.body_bytes,
                    len(dictionaries),
                )
            )
            payload += payload_bytes + _SLOT_HEAD_BYTES
            if dictionaries:
                self.dictionaries.extend(dictionaries)


def _plan_slot(stream: EncodedStream, batch: pa.RecordBatch) -> SlotPlan:
    try:
        # The sum over whole buffers is cheap, and for a slice too high: then the exact size decides.
        if batch.get_total_buffer_size() > SERIALIZE_BYTES_MAX:
            content_bytes = _measure(stream, batch)
            if content_bytes > SERIALIZE_BYTES_MAX:
                return SlotPlan(stream, batch, batch.num_rows, content_bytes, None)
        if stream.has_dictionaries:
            return _plan_small_with_dictionaries(stream, batch)
        buffer = batch.serialize()
    except pa.ArrowException as error:
        raise InvalidBundle(f"slot {stream.slot_id}: Arrow cannot encode the batch: {error}") from error
    size = buffer.size
    metadata_bytes = MESSAGE_PREFIX_BYTES + _metadata_length(buffer)[0]
    return SlotPlan(
        stream,
        batch,
        batch.num_rows,
        size,
        buffer,
        len(stream.message),
        metadata_bytes,
        size - metadata_bytes,
    )


def _plan_small_with_dictionaries(stream: EncodedStream, batch: pa.RecordBatch) -> SlotPlan:
    sink = pa.BufferOutputStream()
    _write_stream(sink, stream, batch)
    encoded = memoryview(sink.getvalue()).cast("B")
    content = encoded[len(stream.message) : -len(END_OF_STREAM)]
    slot = SlotPlan(stream, batch, batch.num_rows, len(content), content)
    _walk(slot, encoded, 0, len(encoded))
    return slot


def _measure(stream: EncodedStream, batch: pa.RecordBatch) -> int:
    """Exact bytes of the dictionary and record-batch messages. Reads no values."""
    if not stream.has_dictionaries:
        size: int = pa.ipc.get_record_batch_size(batch)
        return size
    sink = pa.MockOutputStream()
    _write_stream(sink, stream, batch)
    size = sink.size()
    return size - len(stream.message) - len(END_OF_STREAM)


def _close(slot: SlotPlan, *, is_last: bool) -> int:
    """Pad the payload, and return its length."""
    stream_bytes = len(slot.stream.message) + slot.content_bytes + len(END_OF_STREAM)
    if is_last:
        padding = (_LAST_MOD - stream_bytes) & 63
        slot.tail = _LAST_TAILS[padding]
    else:
        padding = (_MIDDLE_MOD - stream_bytes) & 63
        slot.tail = _MIDDLE_TAILS[padding]
    slot.payload_bytes = size = stream_bytes + padding
    return size


def _join(planned: BundlePlan) -> None:
    """Put a small entry together on the heap."""
    parts: list[bytes | memoryview | pa.Buffer] = [_ENTRY_HEAD]
    for slot in planned.slots:
        assert slot.content is not None, (
            "a slot that Arrow writes in place cannot be in an entry below JOINED_BYTES_MAX"
        )
        parts += (slot.head(), slot.stream.message, slot.content, slot.tail)
        slot.content = None
    planned.entry = entry = b"".join(parts)
    planned.crc = crc32(memoryview(entry)[ENTRY_HEAD_BYTES:-CRC_BYTES])


def _write_slot(slot: SlotPlan, ring: memoryview, position: int) -> int:
    """Write a slot's head, payload and tail, and return where they end."""
    payload = position + _SLOT_HEAD_BYTES
    ring[position:payload] = slot.head()
    message = slot.stream.message
    content_start = payload + len(message)
    content_end = content_start + slot.content_bytes
    if slot.content is not None:
        ring[payload:content_start] = message
        ring[content_start:content_end] = memoryview(slot.content).cast("B")
        slot.content = None
    else:
        _write_in_place(slot, ring, payload, content_end + len(END_OF_STREAM))
    end = content_end + len(slot.tail)
    ring[content_end:end] = slot.tail
    return end


def _write_in_place(slot: SlotPlan, ring: memoryview, start: int, end: int) -> None:
    # Wrapping a slice of the memoryview, not a slice of a wrapped ring: Arrow aborts the process on an immutable buffer.
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(ring[start:end]))
    _write_stream(sink, slot.stream, slot.batch)
    if sink.tell() != end - start:
        raise ArrowError(f"slot {slot.stream.slot_id}: Arrow wrote {sink.tell()} bytes but announced {end - start}")
    if slot.stream.has_dictionaries:
        _walk(slot, ring, start, end)
        return
    slot.batch_offset = len(slot.stream.message)
    slot.metadata_bytes = MESSAGE_PREFIX_BYTES + _metadata_length(ring, start + slot.batch_offset)[0]
    slot.body_bytes = slot.content_bytes - slot.metadata_bytes


def _write_stream(sink: pa.NativeFile, stream: EncodedStream, batch: pa.RecordBatch) -> None:
    # The stream's schema, not the batch's: equal ones may list their metadata in another order, and the worker compares bytes.
    with pa.ipc.new_stream(sink, stream.schema, options=WRITE_OPTIONS) as writer:
        writer.write_batch(batch)


def _walk(slot: SlotPlan, memory: memoryview, start: int, end: int) -> None:
    layout = walk_stream(memory, start, end)
    slot.batch_offset, slot.metadata_bytes, slot.body_bytes = layout.batch
    slot.dictionary_rows = tuple(
        DICTIONARY_ROW.pack(~span.id if span.is_delta else span.id, span.offset, span.metadata_bytes, span.body_bytes)
        for span in layout.dictionaries
    )


def _checked_item_count(item_count: int | None) -> int:
    if item_count is None:
        return -1
    if not 0 <= item_count <= _ITEMS_MAX:
        raise InvalidBundle(f"item_count {item_count} is not possible: expected 0..{_ITEMS_MAX}, or None for unknown")
    return item_count


def _check_limits(planned: BundlePlan) -> None:
    body_bytes = planned.entry_bytes - 2 * CRC_BYTES
    if body_bytes > ENTRY_BODY_BYTES_MAX:
        raise BundleTooLarge(
            f"the encoded bundle has {body_bytes} bytes ({format_size(body_bytes)}): the limit of one bundle is "
            f"{ENTRY_BODY_BYTES_MAX} bytes ({format_size(ENTRY_BODY_BYTES_MAX)}); push it in several bundles"
        )
    if planned.row_count > _ROWS_MAX:
        raise InvalidBundle(
            f"the bundle has {planned.row_count} rows: the limit is {_ROWS_MAX}; push it in several bundles"
        )
