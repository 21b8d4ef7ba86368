"""The write-ahead log's bytes: header, entries, cursor. FORMATS section 2. Little-endian everywhere.

Log file:

    0        10   magic QUIVER\\0WAL
    10        2   u16 version = 1
    12        2   u16 header_size: 38 in Rust's files, 121 in ours
    14       16   segment_cfg_hash
    30        8   u64 wal_position_start
    -- ours; version 1 readers skip it by header_size --
    38       26   zero
    64        8   ARROW1\\0\\0: where every stream of the sealed file starts
    72        8   u64 segment_seq of the segment that this file becomes
    80        8   u64 first_sequence: its first entry has it, so a lost first entry can be counted
    88       16   incarnation of the engine's directory
    104       4   u32 CRC-32 of bytes 0..104
    108      13   zero
    121           first entry: 121 = 57 mod 64, so that every payload starts on a 64-byte offset

Entry (size a multiple of 64, so the next one starts at 57 mod 64 too):

    0         4   u32 entry_len: body bytes; zero = end of the written part
    4         1   u8 entry_type: 0 = record bundle, 2 = staged bundle
    5         8   i64 ingestion_ts_nanos
    13        8   u64 sequence; of a staged bundle its index in the file
    21        8   u64 slot_bitmap
    29            per slot, ascending: head (42) and payload, padded to 22 mod 64 if another slot follows, else to 53
    end-4     4   u32 CRC-32 of the body

Slot head:

    0         2   u16 slot_id
    2        32   schema_fingerprint
    34        4   u32 row_count
    38        4   u32 payload_len, padding included

Cursor sidecar, 24 bytes: QUIVER\\0T | u16 version = 1 | u16 size = 24 | u64 wal_position | u32 CRC-32 of all before.
"""

from __future__ import annotations

import struct

from quiver_actors.model import ENTRY_BODY_BYTES_MAX

WAL_MAGIC = b"QUIVER\0WAL"
WAL_VERSION = 1
HEADER = struct.Struct("<10sHH16sQ")
HEADER_EXTENSION = struct.Struct("<QQ16s")
HEADER_EXTENSION_OFFSET = 72
HEADER_BYTES_V1 = HEADER.size
HEADER_BYTES = 121
ARROW_MAGIC = b"ARROW1\0\0"
ARROW_OFFSET = 64
DEFAULT_CFG_HASH = b"QUIVER_SEGCFG\0\0\0"

ALIGNMENT = 64
ENTRY_START_MOD = HEADER_BYTES % ALIGNMENT
ENTRY_LENGTH_BYTES = 4
ENTRY_HEAD = struct.Struct("<IBqQQ")
"""entry_len and the 25-byte entry header together."""
ENTRY_HEADER = struct.Struct("<BqQQ")
ENTRY_CRC = struct.Struct("<I")
ENTRY_OVERHEAD_BYTES = ENTRY_LENGTH_BYTES + ENTRY_CRC.size
ENTRY_TYPE_BUNDLE = 0
ENTRY_TYPE_STAGED = 2
"""A bundle of a transaction: its sequence field counts from 0 in each file (`transactions.records`)."""
SLOT_HEAD = struct.Struct("<H32sII")
END_MARK_BYTES = 4

CURSOR_MAGIC = b"QUIVER\0T"
CURSOR = struct.Struct("<8sHHQ")
CURSOR_BYTES = CURSOR.size + 4
CURSOR_VERSION = 1

ACTIVE_NAME = "quiver.wal"
CURSOR_NAME = "quiver.wal.cursor"
ENTRY_BYTES_MAX = ENTRY_BODY_BYTES_MAX + ENTRY_OVERHEAD_BYTES

# The relations that the layout rests on, proved at import.
assert HEADER_BYTES_V1 == 38
assert HEADER_BYTES_V1 <= ARROW_OFFSET
assert ARROW_OFFSET + len(ARROW_MAGIC) == HEADER_EXTENSION_OFFSET
assert HEADER_EXTENSION_OFFSET + HEADER_EXTENSION.size + 4 <= HEADER_BYTES
assert (ENTRY_START_MOD + ENTRY_HEAD.size + SLOT_HEAD.size) % ALIGNMENT == 0
assert (22 + SLOT_HEAD.size) % ALIGNMENT == 0
assert (53 + ENTRY_CRC.size) % ALIGNMENT == ENTRY_START_MOD


def rotated_name(number: int) -> str:
    return f"{ACTIVE_NAME}.{number}"


def rotation_number(name: str) -> int | None:
    """The N of `quiver.wal.<N>`, None for any other name."""
    prefix, _, digits = name.rpartition(".")
    return int(digits) if prefix == ACTIVE_NAME and digits.isascii() and digits.isdigit() else None
