"""Pure encoding and decoding of what `layout` draws. Nothing here touches a file.

Decoders check everything that they return and raise `Truncated`, `InvalidFormat`, `UnsupportedVersion` or
`ChecksumMismatch`; they never allocate by a length that they have not compared with what is there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver_actors.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, Truncated, UnsupportedVersion
from quiver_actors.model import SLOTS_MAX
from quiver_actors.wal import layout


@dataclass(frozen=True, slots=True)
class Identity:
    """What only our own log files say of themselves; it makes them sealable in place under their own number."""

    segment_seq: int
    first_sequence: int
    incarnation: bytes


@dataclass(frozen=True, slots=True)
class LogHeader:
    """Header of one log file. `identity` is None where another writer made the file."""

    header_bytes: int
    cfg_hash: bytes
    position_start: int
    identity: Identity | None = None


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The 25 bytes behind an entry's length, see `layout`."""

    entry_type: int
    ingestion_ts_nanos: int
    sequence: int
    slot_bitmap: int


@dataclass(frozen=True, slots=True)
class SlotBlock:
    """One slot of an entry; `payload_offset` is relative to the body's start."""

    slot_id: int
    fingerprint: bytes
    row_count: int
    payload_offset: int
    payload_bytes: int


def encode_header(cfg_hash: bytes, position_start: int, identity: Identity) -> bytes:
    """The 121 bytes that our log files start with."""
    header = bytearray(layout.HEADER_BYTES)
    layout.HEADER.pack_into(
        header, 0, layout.WAL_MAGIC, layout.WAL_VERSION, layout.HEADER_BYTES, cfg_hash, position_start
    )
    header[layout.ARROW_OFFSET : layout.ARROW_OFFSET + 8] = layout.ARROW_MAGIC
    at = layout.HEADER_EXTENSION_OFFSET
    layout.HEADER_EXTENSION.pack_into(header, at, identity.segment_seq, identity.first_sequence, identity.incarnation)
    at += layout.HEADER_EXTENSION.size
    layout.ENTRY_CRC.pack_into(header, at, crc32(header[:at]))
    return bytes(header)


def decode_header(data: bytes) -> LogHeader:
    """Read a header from the first bytes of a log file (121 are enough for any)."""
    if len(data) < layout.HEADER_BYTES_V1:
        raise Truncated(f"log header: {len(data)} bytes, expected at least {layout.HEADER_BYTES_V1}")
    magic, version, header_bytes, cfg_hash, position_start = layout.HEADER.unpack_from(data)
    if magic != layout.WAL_MAGIC:
        raise InvalidFormat(f"log header: magic {magic!r}, expected {layout.WAL_MAGIC!r}")
    if (version, header_bytes) != (layout.WAL_VERSION, layout.HEADER_BYTES) and _was_ours(data):
        raise ChecksumMismatch(f"log header: version {version}, header_size {header_bytes}: damaged, the CRC says so")
    if version != layout.WAL_VERSION:
        raise UnsupportedVersion(f"log header: version {version}, this program reads {layout.WAL_VERSION}")
    if header_bytes < layout.HEADER_BYTES_V1:
        raise InvalidFormat(f"log header: header_size {header_bytes}, expected at least {layout.HEADER_BYTES_V1}")
    if header_bytes != layout.HEADER_BYTES or len(data) < layout.HEADER_BYTES:
        return LogHeader(header_bytes, cfg_hash, position_start)
    return LogHeader(header_bytes, cfg_hash, position_start, _decode_identity(data))


def _was_ours(data: bytes) -> bool:
    """Whether only version or header_size are damaged: a flipped bit must not look like a file of a newer program, or of another
    writer whose entries begin elsewhere."""
    end = layout.HEADER_EXTENSION_OFFSET + layout.HEADER_EXTENSION.size
    if len(data) < end + layout.ENTRY_CRC.size:
        return False
    restored = data[:10] + struct.pack("<HH", layout.WAL_VERSION, layout.HEADER_BYTES) + data[14:end]
    return bool(crc32(restored) == layout.ENTRY_CRC.unpack_from(data, end)[0])


def _decode_identity(data: bytes) -> Identity | None:
    """The extension of our own headers; None when another aligning writer left it zero."""
    at = layout.HEADER_EXTENSION_OFFSET
    end = at + layout.HEADER_EXTENSION.size
    if not any(data[at : end + 4]):
        return None
    (stored,) = layout.ENTRY_CRC.unpack_from(data, end)
    if stored != crc32(data[:end]):
        raise ChecksumMismatch("log header: CRC does not match")
    return Identity(*layout.HEADER_EXTENSION.unpack_from(data, at))


def encode_cursor(position: int) -> bytes:
    body = layout.CURSOR.pack(layout.CURSOR_MAGIC, layout.CURSOR_VERSION, layout.CURSOR_BYTES, position)
    return body + layout.ENTRY_CRC.pack(crc32(body))


def decode_cursor(data: bytes) -> int:
    """The position in a cursor sidecar; newer versions are readable as long as they keep the first fields."""
    if len(data) < layout.CURSOR_BYTES:
        raise Truncated(f"cursor: {len(data)} bytes, expected {layout.CURSOR_BYTES}")
    magic, version, size, position = layout.CURSOR.unpack_from(data)
    if magic != layout.CURSOR_MAGIC:
        raise InvalidFormat(f"cursor: magic {magic!r}, expected {layout.CURSOR_MAGIC!r}")
    if version < 1 or size < layout.CURSOR_BYTES or (version == 1 and size != layout.CURSOR_BYTES):
        raise InvalidFormat(f"cursor: version {version} with size {size}, expected version 1 with size 24 or newer")
    if len(data) < size:
        raise Truncated(f"cursor: {len(data)} bytes, its size field says {size}")
    (stored,) = layout.ENTRY_CRC.unpack_from(data, size - 4)
    if stored != crc32(data[: size - 4]):
        raise ChecksumMismatch("cursor: CRC does not match")
    return int(position)


def plausible_entry_length(length: int, available: int) -> bool:
    """Whether a length field can be that of an entry with `available` bytes behind the field (CRC included)."""
    return (
        layout.ENTRY_HEADER.size <= length <= layout.ENTRY_BYTES_MAX - layout.ENTRY_OVERHEAD_BYTES
        and length + layout.ENTRY_CRC.size <= available
    )


def decode_entry_header(body: bytes | memoryview) -> EntryHeader:
    if len(body) < layout.ENTRY_HEADER.size:
        raise Truncated(f"entry: body of {len(body)} bytes, expected at least {layout.ENTRY_HEADER.size}")
    return EntryHeader(*layout.ENTRY_HEADER.unpack_from(body))


def decode_slots(body: bytes | memoryview, slot_bitmap: int) -> list[SlotBlock]:
    """The slot blocks of a bundle entry, in the order in which they stand.

    Raises:
        InvalidFormat: ids and bitmap disagree as sets, a block leaves the body, or bytes are left over.
    """
    blocks: list[SlotBlock] = []
    at, seen = layout.ENTRY_HEADER.size, 0
    try:
        for _ in range(slot_bitmap.bit_count()):
            slot_id, fingerprint, row_count, payload_bytes = layout.SLOT_HEAD.unpack_from(body, at)
            at += layout.SLOT_HEAD.size
            blocks.append(SlotBlock(slot_id, fingerprint, row_count, at, payload_bytes))
            at += payload_bytes
            if slot_id >= SLOTS_MAX or at > len(body):
                raise InvalidFormat(f"entry: slot {slot_id} with {payload_bytes} payload bytes does not fit its body")
            seen |= 1 << slot_id
    except struct.error as error:
        raise InvalidFormat(f"entry: slot heads end behind the body of {len(body)} bytes") from error
    if seen != slot_bitmap or at != len(body):
        raise InvalidFormat(f"entry: slots {seen:#x} against bitmap {slot_bitmap:#x}, {len(body) - at} bytes left over")
    return blocks
