"""The write-ahead log's bytes: header, entries, cursor. Little-endian everywhere.

Source: docs/formats.md section 2, "The log becomes the segment", and section 3.1, "Log header, bytes 72 to 108".

A log file is a header and entries; a length of zero ends them. The first entry of ours stands at 121 = 57 mod 64, so that every payload
starts on a 64-byte offset; the size of an entry is a multiple of 64, so the next one starts at 57 mod 64 too.

An entry is an entry head; for each slot, ascending, a slot head and a payload, padded to 22 mod 64 if another slot follows, else to 53;
and the CRC-32 of the body, which is everything behind the length field.
"""

from __future__ import annotations

import struct

from quiver_actors.base.model import ENTRY_BODY_BYTES_MAX
from quiver_actors.store.format.fields import Field, FieldTable, at_least

WAL_MAGIC = b"QUIVER\0WAL"
WAL_VERSION = 1
HEADER_BYTES = 121
ARROW_MAGIC = b"ARROW1\0\0"
DEFAULT_CFG_HASH = b"QUIVER_SEGCFG\0\0\0"

FOREIGN_HEADER_TABLE = FieldTable(
    "log header",
    Field("magic", "10s", constant=WAL_MAGIC),
    Field("version", "H", constant=WAL_VERSION),
    Field("header_size", "H", "38 in Rust's files, 121 in ours", HEADER_BYTES, at_least(38)),
    Field("segment_cfg_hash", "16s", "hash of what log and reader must agree on"),
    Field("wal_position_start", "Q", "log position of the first entry"),
)
HEADER_TABLE = FieldTable(
    "log header",
    *(field._replace(check=None) for field in FOREIGN_HEADER_TABLE.fields),
    Field("zeroes", "26x", since="1+"),
    Field("arrow_magic", "8s", "where every stream of the sealed file starts", ARROW_MAGIC, since="1+"),
    Field("segment_seq", "Q", "number of the segment that this file becomes", since="1+"),
    Field("first_sequence", "Q", "sequence of the first entry", since="1+"),
    Field("incarnation", "16s", "incarnation of the engine's directory", since="1+"),
    Field("crc32", "I", "CRC-32 of all before", since="1+"),
    Field("zeroes_behind", "13x", since="1+"),
)
HEADER = FOREIGN_HEADER_TABLE.struct
HEADER_BYTES_V1 = HEADER.size
ARROW_OFFSET = HEADER_TABLE.offsets["arrow_magic"]
HEADER_EXTENSION_OFFSET = HEADER_TABLE.offsets["segment_seq"]
HEADER_CRC_OFFSET = HEADER_TABLE.offsets["crc32"]

ALIGNMENT = 64
ENTRY_START_MOD = HEADER_BYTES % ALIGNMENT
ENTRY_LENGTH_BYTES = 4
ENTRY_TABLE = FieldTable(
    "log entry",
    Field("entry_len", "I", "bytes of the body; 0: end of the written part"),
    Field("entry_type", "B", "0: bundle, 2: staged bundle"),
    Field("ingestion_ts_nanos", "q", "UNIX time of the push"),
    Field("sequence", "Q", "of a staged bundle its index in the file"),
    Field("slot_bitmap", "Q", "bit n: slot n is there"),
)
SLOT_TABLE = FieldTable(
    "slot of a log entry",
    Field("slot_id", "H", "0 to 63"),
    Field("schema_fingerprint", "32s", "of the Arrow schema"),
    Field("row_count", "I"),
    Field("payload_len", "I", "bytes of the payload behind it, padding included"),
)
ENTRY_HEAD = ENTRY_TABLE.struct
"""entry_len and the 25-byte entry header together."""
ENTRY_HEADER = FieldTable("entry header", *ENTRY_TABLE.fields[1:]).struct
ENTRY_CRC = struct.Struct("<I")
ENTRY_OVERHEAD_BYTES = ENTRY_LENGTH_BYTES + ENTRY_CRC.size
ENTRY_TYPE_BUNDLE = 0
ENTRY_TYPE_STAGED = 2
"""A bundle of a transaction: its sequence field counts from 0 in each file (`store.staged.records`)."""
SLOT_HEAD = SLOT_TABLE.struct
END_MARK_BYTES = 4

CURSOR_TABLE = FieldTable(
    "cursor",
    Field("magic", "8s", constant=b"QUIVER\0T"),
    Field("version", "H", constant=1, check=at_least(1)),
    Field("size", "H", "bytes of the file", 24, at_least(24)),
    Field("wal_position", "Q", "entries before it are in segments"),
    Field("crc32", "I", "CRC-32 of all before; at the end of a longer file of a newer version"),
)

ACTIVE_NAME = "quiver.wal"
CURSOR_NAME = "quiver.wal.cursor"
ENTRY_BYTES_MAX = ENTRY_BODY_BYTES_MAX + ENTRY_OVERHEAD_BYTES

# The relations that the layout rests on, proved at import.
assert HEADER_BYTES_V1 == 38
assert HEADER_BYTES_V1 <= ARROW_OFFSET
assert ARROW_OFFSET + len(ARROW_MAGIC) == HEADER_EXTENSION_OFFSET
assert HEADER_TABLE.size == HEADER_BYTES
assert CURSOR_TABLE.size == CURSOR_TABLE.constants["size"]
assert (ENTRY_START_MOD + ENTRY_HEAD.size + SLOT_HEAD.size) % ALIGNMENT == 0
assert (22 + SLOT_HEAD.size) % ALIGNMENT == 0
assert (53 + ENTRY_CRC.size) % ALIGNMENT == ENTRY_START_MOD


def rotated_name(number: int) -> str:
    """File name of the retired log with this number."""
    return f"{ACTIVE_NAME}.{number}"


def rotation_number(name: str) -> int | None:
    """The N of `quiver.wal.<N>`, None for any other name."""
    prefix, _, digits = name.rpartition(".")
    return int(digits) if prefix == ACTIVE_NAME and digits.isascii() and digits.isdigit() else None
