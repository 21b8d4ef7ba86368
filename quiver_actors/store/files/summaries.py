"""`quiver.summaries`: of each sealed segment its schemas and how many rows each of them has. Pure codec.

A derived file: it says nothing that the segments do not say, and is there so that a start need not look at all of them. One that is
missing, damaged or newer is made anew; a row that does not fit its segment is passed over. It is never evidence for or against a bundle.

A header, the distinct schemas (each with its message behind it), the segments (each with its streams and its statistics behind it), and the
CRC-32 of all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import InvalidFormat
from quiver_actors.store.format.fields import Field, FieldTable
from quiver_actors.store.format.framing import Framing, Place

SUMMARIES_NAME = "quiver.summaries"
SUMMARIES_BYTES_MAX = 256 << 20
"""A longer file is not read: it is damaged."""
SUMMARIES_TABLE = FieldTable(
    "summaries of segments",
    Field("magic", "8s", constant=b"QUIVSUM\0"),
    Field("version", "H", constant=1),
    Field("header_size", "H", "a reader skips what it does not know", 20),
    Field("schema_count", "I"),
    Field("segment_count", "I"),
)
SCHEMA_TABLE = FieldTable(
    "schema of summaries",
    Field("slot_id", "I"),
    Field("message_bytes", "I", "bytes of the Arrow schema message behind it"),
)
SEGMENT_TABLE = FieldTable(
    "summary of a segment",
    Field("segment_seq", "Q"),
    Field("identity", "8s", "BLAKE2b of numbers in the segment's footer and of its size"),
    Field("stream_count", "I"),
    Field("statistics_bytes", "I", "bytes of its statistics behind the streams; 0: they are not made yet"),
)
STREAM_TABLE = FieldTable(
    "stream of a summary",
    Field("schema", "I", "which of the schemas"),
    Field("row_count", "Q"),
)
SUMMARIES = Framing(SUMMARIES_NAME, SUMMARIES_TABLE, Place.FILE)


class StoredSchema(msgspec.Struct, frozen=True, gc=False):
    """A schema that bundles of one slot have."""

    slot_id: int
    message: bytes
    """The encapsulated Arrow schema message."""


StoredSchemas: TypeAlias = tuple[tuple[StoredSchema, int], ...]
"""The schemas of a segment, each once, and the rows of each."""


class Summary(msgspec.Struct, frozen=True, gc=False):
    """The schemas and the statistics of one segment."""

    identity: bytes
    """What `identity_of` says of the segment that was looked at."""
    streams: StoredSchemas
    statistics: bytes = b""
    """Statistics of its columns, as `store.segment.statistics` encodes them; empty: not made yet."""


_IDENTITY_NUMBERS = 9
"""The first so many fields of `SegmentInfo` make up an identity."""


def identity_of(info: SegmentInfo) -> bytes:
    """Eight bytes that differ for two files which ever have the same number: they hold the time of their bundles in nanoseconds."""
    # The count of lost bundles is no property of the file, and it came later.
    numbers = msgspec.structs.astuple(msgspec.structs.replace(info, is_checked=True))[:_IDENTITY_NUMBERS]
    return hashlib.blake2b(msgspec.msgpack.encode(numbers), digest_size=8).digest()


def encode_summaries(summaries: Mapping[int, Summary]) -> bytes:
    """Lay the file out, segments by rising number."""
    schemas = {schema: 0 for summary in summaries.values() for schema, _ in summary.streams}
    schemas = {schema: number for number, schema in enumerate(schemas)}
    parts = [SUMMARIES_TABLE.pack(schema_count=len(schemas), segment_count=len(summaries))]
    for schema in schemas:
        parts += [SCHEMA_TABLE.struct.pack(schema.slot_id, len(schema.message)), schema.message]
    for segment_seq in sorted(summaries):
        summary = summaries[segment_seq]
        counts = len(summary.streams), len(summary.statistics)
        parts.append(SEGMENT_TABLE.struct.pack(segment_seq, summary.identity, *counts))
        parts += [STREAM_TABLE.struct.pack(schemas[schema], rows) for schema, rows in summary.streams]
        parts.append(summary.statistics)
    return SUMMARIES.seal(b"".join(parts))


def decode_summaries(data: bytes) -> dict[int, Summary]:
    """The summaries by segment number. Raises as `Framing.open`."""
    body = SUMMARIES.open(data)
    header = SUMMARIES_TABLE.unpack(data)
    at = header["header_size"]
    try:
        schemas, at = _read_schemas(body, at, header["schema_count"])
        return _read_segments(body, at, header["segment_count"], schemas)
    except (struct.error, IndexError) as error:
        raise InvalidFormat(f"{SUMMARIES_NAME}: its counts do not fit its {len(data)} bytes") from error


def _read_schemas(body: memoryview, at: int, count: int) -> tuple[list[StoredSchema], int]:
    found = []
    for _ in range(count):
        slot_id, message_bytes = SCHEMA_TABLE.struct.unpack_from(body, at)
        at += SCHEMA_TABLE.size
        found.append(StoredSchema(slot_id, bytes(body[at : at + message_bytes])))
        at += message_bytes
    return found, at


def _read_segments(body: memoryview, at: int, count: int, schemas: list[StoredSchema]) -> dict[int, Summary]:
    found = {}
    for _ in range(count):
        segment_seq, identity, stream_count, statistics_bytes = SEGMENT_TABLE.struct.unpack_from(body, at)
        rows = STREAM_TABLE.rows(body, at + SEGMENT_TABLE.size, stream_count)
        at += SEGMENT_TABLE.size + STREAM_TABLE.size * stream_count + statistics_bytes
        if at > len(body):
            raise IndexError
        streams = tuple((schemas[number], row_count) for number, row_count in rows)
        found[segment_seq] = Summary(identity, streams, bytes(body[at - statistics_bytes : at]))
    return found
