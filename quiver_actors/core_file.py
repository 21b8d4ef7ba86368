"""`quiver.core`: what one engine's directory remembers about itself. FORMATS section 7. Pure codec.

    0     8   magic QUIVER\\0C
    8     2   u16 version = 1
    10    2   u16 size = 53
    12   16   incarnation
    28    4   u32 core_id
    32    8   u64 next_segment_seq_reserved
    40    8   u64 next_sequence_reserved
    48    1   u8 clean_shutdown
    49    4   u32 CRC-32 of all before

The two reserved numbers are raised ahead of use, so that no segment number and no sequence is ever used twice, also after
every file that bore it is gone. After a clean shutdown they are exact.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quiver_actors.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, Truncated, UnsupportedVersion

CORE_NAME = "quiver.core"
CORE_MAGIC = b"QUIVER\0C"
CORE_VERSION = 1
_CORE = struct.Struct("<8sHH16sIQQB")
_CRC = struct.Struct("<I")
CORE_BYTES = _CORE.size + _CRC.size

SEGMENT_SEQ_BLOCK = 1024
SEQUENCE_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class CoreFile:
    """What the file says. Numbers below those reserved may have been used, those from them on never were."""

    incarnation: bytes
    core_id: int
    next_segment_seq_reserved: int
    next_sequence_reserved: int
    clean_shutdown: bool


def encode_core(core: CoreFile) -> bytes:
    body = _CORE.pack(
        CORE_MAGIC,
        CORE_VERSION,
        CORE_BYTES,
        core.incarnation,
        core.core_id,
        core.next_segment_seq_reserved,
        core.next_sequence_reserved,
        core.clean_shutdown,
    )
    return body + _CRC.pack(crc32(body))


def decode_core(data: bytes) -> CoreFile:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    if len(data) < CORE_BYTES:
        raise Truncated(f"{CORE_NAME}: {len(data)} bytes, expected {CORE_BYTES}")
    magic, version, size, incarnation, core_id, segment_seq, sequence, clean = _CORE.unpack_from(data)
    if magic != CORE_MAGIC:
        raise InvalidFormat(f"{CORE_NAME}: magic {magic!r}, expected {CORE_MAGIC!r}")
    if version != CORE_VERSION:
        if _is_ours_but_for_its_version(data):
            raise ChecksumMismatch(f"{CORE_NAME}: version {version} is a damaged {CORE_VERSION}: the CRC says so")
        raise UnsupportedVersion(f"{CORE_NAME}: version {version}, this program reads {CORE_VERSION}")
    if not CORE_BYTES <= size <= len(data):
        raise InvalidFormat(f"{CORE_NAME}: size {size}, expected {CORE_BYTES}..{len(data)}")
    (stored,) = _CRC.unpack_from(data, size - _CRC.size)
    if stored != crc32(data[: size - _CRC.size]):
        raise ChecksumMismatch(f"{CORE_NAME}: CRC does not match")
    return CoreFile(incarnation, core_id, segment_seq, sequence, bool(clean))


def _is_ours_but_for_its_version(data: bytes) -> bool:
    """Whether only the version field was damaged: a flipped bit must not look like a newer program's file."""
    restored = data[:8] + CORE_VERSION.to_bytes(2, "little") + data[10 : CORE_BYTES - _CRC.size]
    return bool(crc32(restored) == _CRC.unpack_from(data, CORE_BYTES - _CRC.size)[0])
