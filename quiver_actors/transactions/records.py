"""The two small files of transactions in an engine's directory. Pure codec.

`staged/<16 digits>.prepared`: one prepared stage. Its name makes the stage durable: without it the parts of the stage are nothing.
`quiver.transactions`: what the engine has to remember of stages that are no longer there, and of those that it is publishing.

Both are one frame:

    0     8   magic QUIVSTG\\0 or QUIVTXN\\0
    8     2   u16 version = 1
    10    2   u16 header_size = 16; a reader skips what it does not know
    12    4   u32 body bytes
    16        body: one msgpack map, keys as the fields below; unknown ones are skipped
    end-4 4   u32 CRC-32 of all before

The parts of a stage are log files (`wal.layout`) with entries of type 2, `staged/<16 digits>.<4 digits>.stage`, under segment number 0.
An entry of type 2 says its place in its file instead of a sequence: 0, 1, 2, ... So publishing only has to write a new header, and no
byte of an entry is ever written twice. Bundle i of the published segment has the sequence `first_sequence + i`, as everywhere.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from quiver_actors.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, Truncated, UnsupportedVersion

STAGE_MAGIC = b"QUIVSTG\0"
JOURNAL_MAGIC = b"QUIVTXN\0"
RECORD_VERSION = 1
DROPPED_MAX = 10_000
"""How many dropped stages are remembered one by one."""
_HEADER = struct.Struct("<8sHHI")
_CRC = struct.Struct("<I")


class StageOrder(msgspec.Struct, frozen=True):
    """What a stage was begun for."""

    txn_id: str
    epoch: int
    partition: int
    attempt: int
    decisions: str
    """Where its decision is made; empty: in the node's own log."""
    ttl_ns: int


class PartRecord(msgspec.Struct, frozen=True):
    """One file of a stage, complete."""

    bundles: int
    rows: int
    size_bytes: int
    """Behind the last entry; what follows is not of the stage."""
    crc32: int
    """Of all entries; the header in front of them is written anew when the part is published."""
    item_counts: bytes = b""
    """i64 array, -1 where unknown; empty if none is known."""


class PreparedRecord(msgspec.Struct, frozen=True):
    """One prepared stage."""

    number: int
    order: StageOrder
    incarnation: bytes
    cfg_hash: bytes
    """`segment_cfg_hash` of the topic when it was staged."""
    parts: list[PartRecord]
    prepared_unix_ns: int
    expires_unix_ns: int


class PublishingRecord(msgspec.Struct, frozen=True):
    """Where one part of a stage becomes visible. Once it is durable, the part does."""

    number: int
    part: int
    segment_seq: int
    first_sequence: int
    position_start: int


class DroppedRecord(msgspec.Struct, frozen=True):
    """A stage that was prepared and will never be visible."""

    number: int
    txn_id: str
    epoch: int
    reason: str
    dropped_unix_ns: int


class JournalRecord(msgspec.Struct, frozen=True):
    """`quiver.transactions`. A number below `next_number` that is neither prepared nor dropped was published."""

    next_number: int = 1
    publishing: list[PublishingRecord] = []
    dropped: list[DroppedRecord] = []
    """The newest ones, rising."""
    dropped_floor: int = 0
    """Below it dropped stages are not remembered any more."""


R = TypeVar("R", PreparedRecord, JournalRecord)


def encode_prepared(record: PreparedRecord) -> bytes:
    return encode_frame(STAGE_MAGIC, record)


def decode_prepared(data: bytes) -> PreparedRecord:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    return _decode(STAGE_MAGIC, data, PreparedRecord)


def encode_journal(record: JournalRecord) -> bytes:
    return encode_frame(JOURNAL_MAGIC, record)


def decode_journal(data: bytes) -> JournalRecord:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    return _decode(JOURNAL_MAGIC, data, JournalRecord)


def encode_frame(magic: bytes, content: object) -> bytes:
    """A frame as drawn above around any content that msgpack can hold."""
    body = msgspec.msgpack.encode(content)
    framed = _HEADER.pack(magic, RECORD_VERSION, _HEADER.size, len(body)) + body
    return framed + _CRC.pack(crc32(framed))


def decode_frame(magic: bytes, data: bytes, name: str) -> bytes:
    """The content of a frame, as msgpack. Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    if len(data) < _HEADER.size + _CRC.size:
        raise Truncated(f"{name}: {len(data)} bytes, expected at least {_HEADER.size + _CRC.size}")
    found, version, header_bytes, body_bytes = _HEADER.unpack_from(data)
    if found != magic:
        raise InvalidFormat(f"{name}: magic {found!r}, expected {magic!r}")
    end = header_bytes + body_bytes
    whole = _HEADER.size <= header_bytes and end + _CRC.size <= len(data)
    if not whole or _CRC.unpack_from(data, end)[0] != crc32(data[:end]):
        raise ChecksumMismatch(f"{name}: CRC does not match")
    if version != RECORD_VERSION:
        raise UnsupportedVersion(f"{name}: version {version}, this program reads {RECORD_VERSION}")
    return data[header_bytes:end]


def _decode(magic: bytes, data: bytes, kind: type[R]) -> R:
    try:
        return msgspec.msgpack.decode(decode_frame(magic, data, kind.__name__), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(f"{kind.__name__}: {error}") from error
