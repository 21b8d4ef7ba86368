"""The bytes of a segment file behind its streams: sizes, field order, limits. No logic, no Arrow.

    stream 0, stream 1, ...      Arrow IPC files (contiguous), or their footers only (sealed in place: the former log is above)
    stream directory             Arrow IPC file, one batch                                    codec.DIRECTORY_SCHEMA
    batch manifest               Arrow IPC file, one batch                                    codec.manifest_schema
    footer                       34 bytes in version 1, then the extension
    trailer                      16 bytes

All integers are little-endian. Source: docs/formats.md section 3, "Additions that version 1 readers skip".
"""

from __future__ import annotations

import struct

from quiver_actors.store.format.fields import Field, FieldTable, at_least, at_most
from quiver_actors.store.wal import layout as wal_layout

Part = bytes | bytearray | memoryview
"""A piece of the bytes of a file; its length is its size in bytes."""

SEGMENT_MAGIC = b"QUIVER\0S"
SEGMENT_VERSION = 1
STREAMS_MAX = 100_000
CHUNKS_MAX = 10_000_000

FOOTER_TABLE = FieldTable(
    "segment footer",
    Field("version", "H", constant=SEGMENT_VERSION),
    Field("stream_count", "I", check=at_most(STREAMS_MAX)),
    Field("bundle_count", "I"),
    Field("directory_offset", "Q", "where the stream directory begins in the file"),
    Field("directory_length", "I"),
    Field("manifest_offset", "Q", "where the batch manifest begins in the file"),
    Field("manifest_length", "I"),
)
EXTENSION_TABLE = FieldTable(
    "segment footer extension",
    Field("extension_size", "H", "bytes of the extension, this field included", 74, at_least(74), since="1+"),
    Field("wal_position_start", "Q", "log position of the first entry", since="1+"),
    Field("wal_position_end", "Q", "log position behind the last entry", since="1+"),
    Field("first_sequence", "Q", since="1+"),
    Field("last_sequence", "Q", since="1+"),
    Field("first_ingestion_ts_nanos", "q", "UNIX time of the first push", since="1+"),
    Field("last_ingestion_ts_nanos", "q", "UNIX time of the last push", since="1+"),
    Field("row_count", "Q", "rows of all slots of all bundles", since="1+"),
    Field("incarnation", "16s", "incarnation of the engine's directory", since="1+"),
)
TRAILER_TABLE = FieldTable(
    "segment trailer",
    Field("footer_size", "I", "bytes of the footer, extension included", check=at_least(FOOTER_TABLE.size)),
    Field("magic", "8s", constant=SEGMENT_MAGIC),
    Field("crc32", "I", "CRC-32 of everything before it in the file"),
)
FOOTER = FOOTER_TABLE.struct
EXTENSION = EXTENSION_TABLE.struct
TRAILER = TRAILER_TABLE.struct
TRAILER_HEAD = FieldTable("trailer without its CRC", *TRAILER_TABLE.fields[:2]).struct
CRC = struct.Struct("<I")

STREAM_ALIGNMENT = 64
IN_PLACE_STREAM_OFFSET = wal_layout.ARROW_OFFSET
"""Where `ARROW1` stands in a log file of ours, and so the `byte_offset` of every stream of a segment sealed in place."""

LOG_HEADER_BYTES = wal_layout.HEADER_BYTES
"""Size of the header of the log that a file sealed in place once was (`store.wal.layout`): its first entry stands behind it."""

END_MARK = bytes(4)
"""An entry length of zero: a scan of the sealed file as a log stops here."""

INCARNATION_BYTES = 16
FINGERPRINT_BYTES = 32

assert EXTENSION.size == EXTENSION_TABLE.constants["extension_size"]
