"""The bytes of a segment file behind its streams: sizes, field order, limits. No logic, no Arrow.

    stream 0, stream 1, ...      Arrow IPC files (contiguous), or their footers only (sealed in place: the former log is above)
    stream directory             Arrow IPC file, one batch                                    codec.DIRECTORY_SCHEMA
    batch manifest               Arrow IPC file, one batch                                    codec.manifest_schema
    footer                       34 bytes in version 1, then the extension
    trailer                      16 bytes

Footer                                              Extension (ours, behind the footer; other readers skip it)
     0   u16  version = 1                                0   u16  extension_size, itself included
     2   u32  stream_count                               2   u64  wal_position_start
     6   u32  bundle_count                              10   u64  wal_position_end
    10   u64  directory_offset                          18   u64  first_sequence
    18   u32  directory_length                          26   u64  last_sequence
    22   u64  manifest_offset                           34   i64  first_ingestion_ts_nanos
    30   u32  manifest_length                           42   i64  last_ingestion_ts_nanos
    34                                                  50   u64  row_count
                                                        58   16   incarnation
Trailer                                                 74
     0   u32  footer_size, extension included
     4   8    magic `QUIVER\\0S`
    12   u32  CRC-32 of everything before these four bytes

All integers are little-endian. Source: FORMATS section 3.
"""

from __future__ import annotations

import struct

Part = bytes | bytearray | memoryview
"""Of the bytes of a file; its length is its size."""

SEGMENT_MAGIC = b"QUIVER\0S"
SEGMENT_VERSION = 1

FOOTER = struct.Struct("<HIIQIQI")
EXTENSION = struct.Struct("<HQQQQqqQ16s")
TRAILER = struct.Struct("<I8sI")
TRAILER_HEAD = struct.Struct("<I8s")
CRC = struct.Struct("<I")

STREAM_ALIGNMENT = 64
IN_PLACE_STREAM_OFFSET = 64
"""Where `ARROW1` stands in a log file of ours, and so the `byte_offset` of every stream of a segment sealed in place."""

END_MARK = bytes(4)
"""An entry length of zero: a scan of the sealed file as a log stops here."""

STREAMS_MAX = 100_000
CHUNKS_MAX = 10_000_000
INCARNATION_BYTES = 16
FINGERPRINT_BYTES = 32
