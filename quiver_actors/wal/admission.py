"""The door of the log: a producer's Push is checked against the bytes that were copied from its arena. Pure.

Nothing in a control message is believed. After `check_push` returns, every entry's bytes carry the CRC that the producer
computed, slot heads, bitmap and rows agree, payloads start with the declared schema message, and all message spans lie
inside their payloads, aligned as Arrow demands. What is *inside* a record-batch message of a producer of the same user is
its own business: it can spoil its own bundle, nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quiver_actors.checksum import crc32
from quiver_actors.errors import FormatError, ProtocolError
from quiver_actors.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, Push
from quiver_actors.segment.builder import DictionaryPlacement, SlotPlacement, StreamSchema, check_dictionaries
from quiver_actors.wal import layout

PUSH_ENTRIES_MAX = 8192
_CONTINUATION = 0xFFFFFFFF
_MESSAGE_PREFIX = struct.Struct("<II")
_SLOT_COUNT_MAX = 64


class CheckedEntry(NamedTuple):
    """One entry of a push that may be logged. Offsets of `placements` are file offsets already."""

    offset: int
    entry_bytes: int
    crc_of_slots: int
    slot_bitmap: int
    item_count: int
    ingestion_ts_nanos: int
    row_count: int
    placements: tuple[SlotPlacement, ...]


def check_push(
    span: memoryview, file_offset: int, push: Push, schemas: Mapping[int, StreamSchema]
) -> list[CheckedEntry]:
    """Check all entries of a push.

    Args:
        span: private copy of the arena bytes.
        file_offset: where the span will stand in the log file.
        schemas: what this connection declared, by handle.

    Raises:
        ProtocolError: the message and the bytes do not agree; names the entry and what was expected.
    """
    try:
        entry_rows = list(ENTRY_ROW.iter_unpack(push.entries))
        slot_rows = SLOT_ROW.iter_unpack(push.slots)
        dictionary_rows = DICTIONARY_ROW.iter_unpack(push.dictionaries)
    except struct.error as error:
        raise ProtocolError(f"push {push.tag}: packed rows have a wrong length: {error}") from error
    if not 1 <= len(entry_rows) <= PUSH_ENTRIES_MAX:
        raise ProtocolError(f"push {push.tag}: {len(entry_rows)} entries, expected 1..{PUSH_ENTRIES_MAX}")
    checker = _EntryChecker(span, file_offset, schemas, slot_rows, dictionary_rows)
    try:
        checked = [checker.check(row) for row in entry_rows]
        checker.finish()
    except (_Refusal, FormatError) as refusal:
        raise ProtocolError(f"push {push.tag}, byte {checker.offset} of the span: {refusal}") from refusal
    return checked


class _Refusal(Exception):
    """What is wrong with one entry; `check_push` adds where."""


class _EntryChecker:
    """Walks the entries of one span from front to back."""

    def __init__(
        self,
        span: memoryview,
        file_offset: int,
        schemas: Mapping[int, StreamSchema],
        slot_rows: Iterator[tuple[int, ...]],
        dictionary_rows: Iterator[tuple[int, ...]],
    ) -> None:
        self.offset = 0
        self._span = span
        self._file_offset = file_offset
        self._schemas = schemas
        self._slot_rows = slot_rows
        self._dictionary_rows = dictionary_rows

    def check(self, row: tuple[int, ...]) -> CheckedEntry:
        entry_bytes, crc_of_slots, bitmap, item_count, ingestion_ts, slot_count, row_count = row
        start, end = self.offset, self.offset + entry_bytes
        if entry_bytes % layout.ALIGNMENT or not layout.ALIGNMENT <= entry_bytes <= layout.ENTRY_BYTES_MAX:
            raise _Refusal(f"an entry of {entry_bytes} bytes; expected a multiple of 64 up to {layout.ENTRY_BYTES_MAX}")
        if end > len(self._span):
            raise _Refusal(f"an entry of {entry_bytes} bytes leaves the span of {len(self._span)}")
        if item_count < -1 or ingestion_ts < 0:
            raise _Refusal(f"item count {item_count} or ingestion time {ingestion_ts} is negative")
        if not 1 <= slot_count <= _SLOT_COUNT_MAX or bitmap.bit_count() != slot_count:
            raise _Refusal(f"{slot_count} slots against bitmap {bitmap:#x}; expected 1..64 that agree")
        slots_end = end - layout.ENTRY_CRC.size
        if crc32(self._span[start + layout.ENTRY_HEAD.size : slots_end]) != crc_of_slots:
            raise _Refusal("the CRC of the slots does not match the bytes in the arena")
        placements = self._check_slots(start + layout.ENTRY_HEAD.size, slots_end, slot_count, bitmap)
        self.offset = end
        return CheckedEntry(start, entry_bytes, crc_of_slots, bitmap, item_count, ingestion_ts, row_count, placements)

    def finish(self) -> None:
        if self.offset != len(self._span):
            raise _Refusal(f"{len(self._span) - self.offset} bytes of the span belong to no entry")
        if next(self._slot_rows, None) is not None or next(self._dictionary_rows, None) is not None:
            raise _Refusal("more slot or dictionary rows than the entries use")

    def _check_slots(self, at: int, end: int, slot_count: int, bitmap: int) -> tuple[SlotPlacement, ...]:
        placements = []
        for _ in range(slot_count):
            row = next(self._slot_rows, None)
            if row is None:
                raise _Refusal("fewer slot rows than the entries use")
            placement, at = self._check_slot(at, end, row)
            slot_bit = 1 << placement[0].slot_id
            if not bitmap & slot_bit:
                raise _Refusal(f"slot {placement[0].slot_id} is not in the bitmap, stands twice or out of order")
            bitmap &= ~((slot_bit << 1) - 1)
            placements.append(placement)
        if at != end:
            raise _Refusal(f"{end - at} bytes behind the last slot")
        return tuple(placements)

    def _check_slot(self, at: int, end: int, row: tuple[int, ...]) -> tuple[SlotPlacement, int]:
        handle, payload_offset, payload_bytes, row_count, batch_offset, metadata_bytes, body_bytes, dictionaries = row
        schema = self._schemas.get(handle)
        if schema is None:
            raise _Refusal(f"schema handle {handle} was not declared on this connection")
        payload = at + layout.SLOT_HEAD.size
        payload_end = payload + payload_bytes
        if payload_offset != payload - self.offset or payload_end > end:
            raise _Refusal(f"payload at {payload_offset} with {payload_bytes} bytes does not follow its slot head")
        head = layout.SLOT_HEAD.pack(schema.slot_id, schema.fingerprint, row_count, payload_bytes)
        if self._span[at:payload] != head:
            raise _Refusal("the slot head does not say what its row says")
        if self._span[payload : payload + len(schema.message)] != schema.message:
            raise _Refusal("the payload does not start with the declared schema message")
        self._check_message(payload, payload_bytes, batch_offset, metadata_bytes, body_bytes)
        held: tuple[DictionaryPlacement, ...] = ()
        if dictionaries or schema.has_dictionaries:
            held = self._check_dictionaries(payload, payload_bytes, dictionaries)
            check_dictionaries(schema, held)
        file_offset = self._file_offset + payload + batch_offset
        return (schema, row_count, file_offset, metadata_bytes, body_bytes, held), payload_end

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
