"""Reads single bundles out of a log, in place, by where their entries lie: for logs that are not segments yet.

Zero-copy: batches point into the memory that was given and keep it alive. Nothing is touched but the entries that were named: what lies
behind them may go away with the seal of the log.

Concurrency: any number of threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ArrowError, ChecksumMismatch, FormatError, InvalidFormat
from quiver_actors.store.segment.arrow_ipc import walk_stream
from quiver_actors.store.segment.bodies import has_compressed_body
from quiver_actors.store.segment.single_reads import SingleReads
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import decode_header

_LENGTH_BYTES = layout.ENTRY_LENGTH_BYTES
_CRC = layout.ENTRY_CRC
_CRC_BYTES = _CRC.size
_HEAD_BYTES = layout.ENTRY_HEAD.size
_SLOT_HEAD_BYTES = layout.SLOT_HEAD.size
_LENGTH = struct.Struct("<I")
_BITMAP = struct.Struct(f"<{layout.ENTRY_TABLE.offsets['slot_bitmap']}xQ")
_PREFIX_BYTES = 8
"""What stands before the metadata of an Arrow message: a marker and the metadata's length, 4 bytes each."""
_SLOT_START = struct.Struct(f"<H{layout.SLOT_TABLE.offsets['payload_len'] - 2}xI4xI")
"""Number and payload's length out of a slot's head, and of its payload the length of the schema's metadata."""
_BEYOND = (struct.error, OverflowError)
"""What unpacking raises outside of the memory."""
_UNREADABLE = (pa.ArrowException, ValueError, OverflowError, OSError, EOFError, StopIteration)
_read_record_batch = pa.ipc.read_record_batch
_SCHEMAS_MAX = 1024
"""Schemas that are remembered for one log; it has no more streams than that as a rule."""


TellDamaged = Callable[[str, int], None]


def tell_nobody(reason: str, bundle_index: int) -> None:
    """Do nothing: the caller of such a reader reports damage itself."""


class Place(NamedTuple):
    """Where one bundle lies in a log."""

    offset: int
    size_bytes: int
    """Bytes of the entry, its length field included."""
    item_count: int
    """What the producer said; -1 where it said nothing."""


_Slot = tuple[int, int, int, int]
"""Number, begin and end of the payload in the file, and bytes of the metadata of its schema."""


class LogEntries:
    """The memory of one log, and the schemas that were found in it.

    Args:
        memory: the file from its start, at least as far as the entries that are asked for.
    """

    def __init__(self, memory: memoryview) -> None:
        self.view = memory
        self.buffer = pa.py_buffer(memory)
        self.size_bytes = memory.nbytes
        self.schemas: dict[bytes, tuple[pa.Schema, bool]] = {}
        """Known schemas by their messages, and whether payloads of them bring dictionaries; `add_schema` adds one."""

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine writes the log, 16 bytes; None: its header does not say. Raises FormatError."""
        identity = decode_header(bytes(self.view[: layout.HEADER_BYTES])).identity
        return identity.incarnation if identity else None

    def add_schema(self, message: bytes) -> tuple[pa.Schema, bool]:
        """Read the schema of a message, and remember it."""
        schema = pa.ipc.read_schema(pa.py_buffer(message))
        known = schema, any(_has_dictionary(field.type) for field in schema)
        if len(self.schemas) >= _SCHEMAS_MAX:
            self.schemas.clear()
        self.schemas[message] = known
        return known


class EntryReader(SingleReads):
    """Some bundles of a log, with the methods of a `SegmentReader` that name one bundle.

    Args:
        places: where each of these bundles lies, by its index.
        tell_damage: called with what is wrong, and the bundle's index, before that is raised. Must not raise.
    """

    def __init__(
        self,
        entries: LogEntries,
        places: Mapping[int, Place],
        segment_seq: int,
        *,
        verifies_checksums: bool = True,
        tell_damage: TellDamaged = tell_nobody,
    ) -> None:
        self._entries = entries
        self._places = places
        self._segment_seq = segment_seq
        self._verifies_checksums = verifies_checksums
        self._tell_damage = tell_damage

    @property
    def bundle_count(self) -> int:
        """Number of bundles up to the last one that is known here."""
        return max(self._places, default=-1) + 1

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine writes the log; None: not recorded."""
        return self._entries.incarnation

    def check(self, index: int) -> None:
        """Prove a bundle against its checksum; see `CheckedReader.check`.

        Raises:
            IndexError: the bundle is not one of these.
            ChecksumMismatch: the bundle is damaged; the reader's owner was told.
        """
        place = self._places.get(index) or self._place(index)
        if not self._verifies_checksums:
            return
        view, offset = self._entries.view, place.offset
        end = offset + place.size_bytes
        try:
            (body_bytes,), (stored,) = _LENGTH.unpack_from(view, offset), _CRC.unpack_from(view, end - _CRC_BYTES)
        except _BEYOND:
            raise self._damaged(index, f"its place ends at byte {end} of {view.nbytes}") from None
        if body_bytes + layout.ENTRY_OVERHEAD_BYTES != place.size_bytes:
            raise self._damaged(index, f"its length says {body_bytes} bytes")
        actual = crc32(view[offset + _LENGTH_BYTES : end - _CRC_BYTES])
        if actual != stored:
            raise self._damaged(index, f"CRC-32 is {actual:#010x}: the entry says {stored:#010x}")

    def is_lost(self, index: int) -> bool:
        """Whether the bundle holds nothing; no bundle of a log is so."""
        return False

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, checked before as `check` does; see `SegmentReader.bundle`."""
        self.check(index)
        return self.decode(index, slots)

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id; see `SegmentReader.decode`. `check` proves the bundle before."""
        return {slot[0]: self._batch(index, slot) for slot in self._slots(index) if slots is None or slot[0] in slots}

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        return tuple(slot[0] for slot in self._slots(index))

    def is_compressed(self, index: int) -> bool:
        """Whether a buffer of the bundle is compressed: nothing bounds what it becomes. Raises FormatError."""
        view = self._entries.view
        for _, start, end, _ in self._slots(index):
            messages = walk_stream(view, start, end)
            spans = [(span.offset, span.metadata_bytes) for span in messages.dictionaries]
            for offset, metadata_bytes in [*spans, (messages.batch.offset, messages.batch.metadata_bytes)]:
                at = start + offset
                if has_compressed_body(view[at : at + metadata_bytes]):
                    return True
        return False

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds, None where unknown."""
        count = self._place(index).item_count
        return None if count < 0 else count

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's entry."""
        return self._place(index).size_bytes

    def schema_messages(self, index: int) -> dict[int, bytes]:
        """The Arrow message with the schema of each slot of a bundle; `check` proves the bundle before."""
        view = self._entries.view
        return {
            slot_id: bytes(view[start : min(start + _PREFIX_BYTES + metadata_bytes, end)])
            for slot_id, start, end, metadata_bytes in self._slots(index)
        }

    def sequence(self, index: int) -> int | None:
        """Log sequence of the bundle."""
        sequence: int = self._head(index)[3]
        return sequence

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds."""
        ingestion_ts: int = self._head(index)[2]
        return ingestion_ts

    def _head(self, index: int) -> tuple[int, ...]:
        try:
            return layout.ENTRY_HEAD.unpack_from(self._entries.view, self._place(index).offset)
        except _BEYOND:
            raise self._outside(index) from None

    def _place(self, index: int) -> Place:
        place = self._places.get(index)
        if place is None:
            raise IndexError(f"bundle {index} of segment {self._segment_seq} is none of those whose places are known")
        return place

    def _slots(self, index: int) -> list[_Slot]:
        offset, size_bytes, _ = self._places.get(index) or self._place(index)
        view = self._entries.view
        at, end = offset + _HEAD_BYTES, offset + size_bytes - _CRC_BYTES
        if at > end or end > self._entries.size_bytes - _CRC_BYTES:
            raise self._outside(index)
        (bitmap,) = _BITMAP.unpack_from(view, offset)
        found: list[_Slot] = []
        for _ in range(bitmap.bit_count()):
            if at + _SLOT_START.size > end:
                raise InvalidFormat(f"segment {self._segment_seq}: the slots of bundle {index} end behind it")
            slot_id, payload_bytes, metadata_bytes = _SLOT_START.unpack_from(view, at)
            at += _SLOT_HEAD_BYTES
            if payload_bytes > end - at:
                raise InvalidFormat(f"segment {self._segment_seq}: slot {slot_id} of bundle {index} ends behind it")
            found.append((slot_id, at, at + payload_bytes, metadata_bytes))
            at += payload_bytes
        return found

    def _batch(self, index: int, slot: _Slot) -> pa.RecordBatch:
        slot_id, start, end, metadata_bytes = slot
        entries, behind_schema = self._entries, start + _PREFIX_BYTES + metadata_bytes
        try:
            if behind_schema > end:
                raise ValueError("its schema ends behind it")
            message = entries.view[start:behind_schema].tobytes()
            schema, has_dictionaries = entries.schemas.get(message) or entries.add_schema(message)
            if has_dictionaries:
                return pa.ipc.open_stream(entries.buffer.slice(start, end - start)).read_next_batch()
            return _read_record_batch(entries.buffer.slice(behind_schema, end - behind_schema), schema)
        except _UNREADABLE as error:
            walk_stream(entries.view, start, end)  # says better what is wrong, where it is the framing
            raise ArrowError(
                f"segment {self._segment_seq}: slot {slot_id} of bundle {index} cannot be decoded: {error}"
            ) from error

    def _outside(self, index: int) -> FormatError:
        return InvalidFormat(f"segment {self._segment_seq}: bundle {index} ends behind its place, or behind its file")

    def _damaged(self, index: int, reason: str) -> FormatError:
        error = ChecksumMismatch(f"segment {self._segment_seq}: bundle {index} of the open log is damaged: {reason}")
        self._tell_damage(str(error), index)
        return error


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))
