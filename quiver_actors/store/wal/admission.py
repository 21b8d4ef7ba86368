"""The door of the log: a producer's Push is checked against the bytes that were copied from its arena. Pure.

Nothing in a control message is believed. After `check_push` returns, every entry's bytes carry the CRC that the producer
computed, slot heads, bitmap and rows agree, payloads start with the declared schema message, and all message spans lie
inside their payloads, aligned as Arrow demands. What is *inside* a record-batch message of a producer of the same user is
its own business: it can spoil its own bundle, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.errors import FormatError, ProtocolError
from quiver_actors.store.segment.builder import DictionaryPlacement
from quiver_actors.store.segment.placement import SlotPlacement, StreamSchema, check_dictionaries
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.uniform import UniformEntries, check_uniform

PUSH_ENTRIES_MAX = 8192
PUSH_SLOTS_MAX = 1 << 16
"""The most slots that all entries of a push have together: each may begin a stream of its segment, which holds 100,000."""
_CONTINUATION = 0xFFFFFFFF
_MESSAGE_PREFIX = struct.Struct("<II")
_SLOT_COUNT_MAX = 64
_HEAD_BYTES = layout.ENTRY_HEAD.size
_SLOT_HEAD_BYTES = layout.SLOT_HEAD.size
_CRC_BYTES = layout.ENTRY_CRC.size


CheckedEntry = tuple[int, int, int, int, int, int, tuple[SlotPlacement, ...]]
"""An entry that may be logged: offset in the span, entry_bytes, CRC of its slots, slot bitmap, item count, ingestion time
(0: stamp it), placements. Offsets of placements are file offsets already. A plain tuple, because a worker makes one per bundle."""


CheckedEntries = list[CheckedEntry] | UniformEntries


def check_push(
    span: memoryview, file_offset: int, push: Push, schemas: Mapping[int, StreamSchema]
) -> tuple[CheckedEntries, int]:
    """Check all entries of a push.

    Args:
        span: private copy of the arena bytes.
        file_offset: where the span will stand in the log file.
        schemas: what this connection declared, by handle.

    Returns:
        The entries, and the rows of all their slots.

    Raises:
        ProtocolError: the message and the bytes do not agree; names the entry and what was expected.
    """
    entries, slots = len(push.entries) // ENTRY_ROW.size, len(push.slots) // SLOT_ROW.size
    if entries > PUSH_ENTRIES_MAX or slots > PUSH_SLOTS_MAX:
        raise ProtocolError(
            f"push {push.tag}: {entries} entries with {slots} slots, expected 1..{PUSH_ENTRIES_MAX} with at most {PUSH_SLOTS_MAX}"
        )
    return check_uniform(span, push, schemas) or check_each(span, file_offset, push, schemas)


def check_each(
    span: memoryview, file_offset: int, push: Push, schemas: Mapping[int, StreamSchema]
) -> tuple[list[CheckedEntry], int]:
    """Check a push as `check_push` does, entry by entry."""
    try:
        entry_rows = list(ENTRY_ROW.iter_unpack(push.entries))
        slot_rows = SLOT_ROW.iter_unpack(push.slots)
        dictionary_rows = DICTIONARY_ROW.iter_unpack(push.dictionaries)
    except struct.error as error:
        raise ProtocolError(f"push {push.tag}: packed rows have a wrong length: {error}") from error
    if not entry_rows:
        raise ProtocolError(f"push {push.tag}: 0 entries, expected 1..{PUSH_ENTRIES_MAX}")
    checker = _EntryChecker(span, file_offset, schemas, slot_rows, dictionary_rows)
    try:
        checked = [checker.check(row) for row in entry_rows]
        checker.finish()
    except (_Refusal, FormatError) as refusal:
        raise ProtocolError(f"push {push.tag}, byte {checker.offset} of the span: {refusal}") from refusal
    return checked, checker.row_count


class _Refusal(Exception):
    """Carries what is wrong with one entry; `check_push` adds where."""


class _EntryChecker:
    """Walks the entries of one span from front to back. Hot: a bundle of one slot costs one `check` and one `_check_slot`."""

    def __init__(
        self,
        span: memoryview,
        file_offset: int,
        schemas: Mapping[int, StreamSchema],
        slot_rows: Iterator[tuple[int, ...]],
        dictionary_rows: Iterator[tuple[int, ...]],
    ) -> None:
        self.offset = 0
        self.row_count = 0
        self._span = span
        self._file_offset = file_offset
        self._schemas = schemas
        self._slot_rows = slot_rows
        self._dictionary_rows = dictionary_rows
        self._plain: set[int] = set()
        """Handles of schemas without dictionaries."""

    def check(self, row: tuple[int, ...]) -> CheckedEntry:
        entry_bytes, crc_of_slots, bitmap, item_count, ingestion_ts, slot_count, row_count = row
        start = self.offset
        end = start + entry_bytes
        if entry_bytes & 63 or not layout.ALIGNMENT <= entry_bytes <= layout.ENTRY_BYTES_MAX:
            raise _Refusal(f"an entry of {entry_bytes} bytes; expected a multiple of 64 up to {layout.ENTRY_BYTES_MAX}")
        if end > len(self._span):
            raise _Refusal(f"an entry of {entry_bytes} bytes leaves the span of {len(self._span)}")
        if item_count < -1 or ingestion_ts < 0:
            raise _Refusal(f"item count {item_count} or ingestion time {ingestion_ts} is negative")
        if not 1 <= slot_count <= _SLOT_COUNT_MAX or bitmap.bit_count() != slot_count:
            raise _Refusal(f"{slot_count} slots against bitmap {bitmap:#x}; expected 1..64 that agree")
        if crc32(self._span[start + _HEAD_BYTES : end - _CRC_BYTES]) != crc_of_slots:
            raise _Refusal("the CRC of the slots does not match the bytes in the arena")
        placements = self._check_slots(start + _HEAD_BYTES, end - _CRC_BYTES, slot_count, bitmap)
        self.row_count += row_count
        self.offset = end
        return start, entry_bytes, crc_of_slots, bitmap, item_count, ingestion_ts, placements

    def finish(self) -> None:
        if self.offset != len(self._span):
            raise _Refusal(f"{len(self._span) - self.offset} bytes of the span belong to no entry")
        if next(self._slot_rows, None) is not None or next(self._dictionary_rows, None) is not None:
            raise _Refusal("more slot or dictionary rows than the entries use")

    def _check_slots(self, at: int, end: int, slot_count: int, bitmap: int) -> tuple[SlotPlacement, ...]:
        if slot_count == 1:
            placement, at = self._check_slot(at, end)
            if bitmap != 1 << placement[0][0]:
                raise _Refusal(f"slot {placement[0].slot_id} is not in the bitmap")
            placements = [placement]
        else:
            placements = []
            for _ in range(slot_count):
                placement, at = self._check_slot(at, end)
                slot_bit = 1 << placement[0].slot_id
                if not bitmap & slot_bit:
                    raise _Refusal(f"slot {placement[0].slot_id} is not in the bitmap, stands twice or out of order")
                bitmap &= ~((slot_bit << 1) - 1)
                placements.append(placement)
        if at != end:
            raise _Refusal(f"{end - at} bytes behind the last slot")
        return tuple(placements)

    def _check_slot(self, at: int, end: int) -> tuple[SlotPlacement, int]:
        row = next(self._slot_rows, None)
        if row is None:
            raise _Refusal("fewer slot rows than the entries use")
        handle, payload_offset, payload_bytes, row_count, batch_offset, metadata_bytes, body_bytes, dictionaries = row
        schema = self._schemas.get(handle)
        if schema is None:
            raise _Refusal(f"schema handle {handle} was not declared on this connection")
        slot_id, fingerprint, message = schema
        payload = at + _SLOT_HEAD_BYTES
        payload_end = payload + payload_bytes
        if payload_offset != payload - self.offset or payload_end > end:
            raise _Refusal(f"payload at {payload_offset} with {payload_bytes} bytes does not follow its slot head")
        expected = layout.SLOT_HEAD.pack(slot_id, fingerprint, row_count, payload_bytes) + message
        if self._span[at : at + len(expected)] != expected:
            raise _Refusal("slot head and schema message are not what the row and the declared schema say")
        self._check_message(payload, payload_bytes, batch_offset, metadata_bytes, body_bytes)
        held: tuple[DictionaryPlacement, ...] = ()
        if dictionaries or handle not in self._plain:
            held = self._check_dictionaries(payload, payload_bytes, dictionaries)
            check_dictionaries(schema, held)
            if not schema.has_dictionaries:
                self._plain.add(handle)
        return (
            schema,
            row_count,
            self._file_offset + payload + batch_offset,
            metadata_bytes,
            body_bytes,
            held,
        ), payload_end

    def _check_message(self, payload: int, payload_bytes: int, offset: int, metadata: int, body: int) -> None:
        """One encapsulated IPC message lies inside its payload, 8-byte aligned, and its prefix says its length."""
        if offset + metadata + body > payload_bytes or metadata < 16 or (offset | metadata | body) & 7:
            raise _Refusal(f"an IPC message at {offset} of {metadata} + {body} bytes does not fit its payload")
        if _MESSAGE_PREFIX.unpack_from(self._span, payload + offset) != (_CONTINUATION, metadata - 8):
            raise _Refusal(f"no IPC message of {metadata} metadata bytes at {offset} of the payload")

    def _check_dictionaries(self, payload: int, payload_bytes: int, count: int) -> tuple[DictionaryPlacement, ...]:
        held = []
        for _ in range(count):
            row = next(self._dictionary_rows, None)
            if row is None:
                raise _Refusal("fewer dictionary rows than the slots use")
            id_or_inverse, offset, metadata_bytes, body_bytes = row
            self._check_message(payload, payload_bytes, offset, metadata_bytes, body_bytes)
            start = payload + offset
            is_delta = id_or_inverse < 0
            held.append(
                DictionaryPlacement(
                    ~id_or_inverse if is_delta else id_or_inverse,
                    is_delta,
                    self._file_offset + start,
                    metadata_bytes,
                    body_bytes,
                    self._span[start : start + metadata_bytes + body_bytes],
                )
            )
        return tuple(held)
