"""Pure encoding and decoding of what `layout` draws. Nothing here touches a file.

Decoders check everything that they return and raise `Truncated`, `InvalidFormat`, `UnsupportedVersion` or
`ChecksumMismatch`; they never allocate by a length that they have not compared with what is there.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import SLOTS_MAX
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, Truncated, UnsupportedVersion
from quiver_actors.store.format.framing import CRC, Framing, Place
from quiver_actors.store.wal import layout

CURSOR = Framing("cursor", layout.CURSOR_TABLE, Place.SIZE, reads_newer=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that only our own log files have; they make them sealable in place under their own number."""

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
    header = bytearray(
        layout.HEADER_TABLE.pack(
            segment_cfg_hash=cfg_hash, wal_position_start=position_start, crc32=0, **asdict(identity)
        )
    )
    CRC.pack_into(header, layout.HEADER_CRC_OFFSET, crc32(header[: layout.HEADER_CRC_OFFSET]))
    return bytes(header)


def encode_empty_header(cfg_hash: bytes, position_start: int) -> bytes:
    """The header of a log that becomes no segment: it stands ready for another writer, and says nothing of numbers."""
    header = encode_header(cfg_hash, position_start, Identity(0, 0, bytes(16)))
    return header[: layout.HEADER_EXTENSION_OFFSET].ljust(len(header), b"\0")


def decode_header(data: bytes) -> LogHeader:
    """Read a header from the first bytes of a log file (121 are enough for any)."""
    if len(data) < layout.HEADER_BYTES_V1:
        raise Truncated(f"log header: {len(data)} bytes, expected at least {layout.HEADER_BYTES_V1}")
    magic, version, header_bytes, cfg_hash, position_start = layout.HEADER.unpack_from(data)
    if magic != layout.WAL_MAGIC:
        raise InvalidFormat(f"log header: magic {magic!r}, expected {layout.WAL_MAGIC!r}")
    if (version, header_bytes) != (layout.WAL_VERSION, layout.HEADER_BYTES) and restored_header(
        data, "version", "header_size"
    ):
        raise ChecksumMismatch(f"log header: version {version}, header_size {header_bytes}: damaged, the CRC says so")
    if version != layout.WAL_VERSION:
        raise UnsupportedVersion(f"log header: version {version}, this program reads {layout.WAL_VERSION}")
    if header_bytes < layout.HEADER_BYTES_V1:
        raise InvalidFormat(f"log header: header_size {header_bytes}, expected at least {layout.HEADER_BYTES_V1}")
    if header_bytes != layout.HEADER_BYTES or len(data) < layout.HEADER_BYTES:
        return LogHeader(header_bytes, cfg_hash, position_start)
    return LogHeader(header_bytes, cfg_hash, position_start, _decode_identity(data))


def restored_header(data: bytes, *names: str) -> bytes | None:
    """A header of ours with the constants of that name put right (all if none is named), where its CRC proves that nothing else is wrong.
    A flipped bit must not look like a file of a newer program, or of another writer whose entries begin elsewhere."""
    end = layout.HEADER_CRC_OFFSET
    if len(data) < layout.HEADER_BYTES or not any(data[layout.HEADER_EXTENSION_OFFSET : end]):
        return None
    restored = layout.HEADER_TABLE.restored(data, *names)
    return restored if crc32(restored[:end]) == CRC.unpack_from(data, end)[0] else None


def _decode_identity(data: bytes) -> Identity | None:
    """What our own headers say more; None when another aligning writer left it zero."""
    start, end = layout.HEADER_EXTENSION_OFFSET, layout.HEADER_CRC_OFFSET
    if not any(data[start : end + CRC.size]):
        return None
    if CRC.unpack_from(data, end)[0] != crc32(data[:end]):
        raise ChecksumMismatch("log header: CRC does not match")
    values = layout.HEADER_TABLE.unpack(data)
    return Identity(values["segment_seq"], values["first_sequence"], values["incarnation"])


def encode_cursor(position: int) -> bytes:
    """Return the content of the cursor file, 24 bytes, for a log position."""
    return CURSOR.pack(wal_position=position)


def decode_cursor(data: bytes) -> int:
    """The position in a cursor sidecar. Raises as `Framing.open`; a newer version is read by the fields that it keeps."""
    CURSOR.open(data)
    return int(layout.CURSOR_TABLE.unpack(data)["wal_position"])


def plausible_entry_length(length: int, available: int) -> bool:
    """Whether a length field can be that of an entry with `available` bytes behind the field (CRC included)."""
    return (
        layout.ENTRY_HEADER.size <= length <= layout.ENTRY_BYTES_MAX - layout.ENTRY_OVERHEAD_BYTES
        and length + layout.ENTRY_CRC.size <= available
    )


def decode_entry_header(body: bytes | memoryview) -> EntryHeader:
    """Return the fixed fields of an entry body, without its length and slots.

    Raises:
        Truncated: the body is shorter than the fields.
    """
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
        raise InvalidFormat(f"entry: the slot heads do not fit into the body of {len(body)} bytes") from error
    if seen != slot_bitmap or at != len(body):
        raise InvalidFormat(f"entry: slots {seen:#x} against bitmap {slot_bitmap:#x}, {len(body) - at} bytes left over")
    return blocks
