"""The rows that a manifest has of segments, made of the segments themselves and their checksums; and of those that are lost.

A row has all but the description of the columns, which a reader may do without, and the number of the segment, which the name of its
object says, or the span of its pack.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator

from quiver_actors.archive.blocks import decode_sums, sums_bytes
from quiver_actors.archive.manifest import Hole, Packed, Segment
from quiver_actors.archive.uploads import sparse_index
from quiver_actors.store.objects.object_store import ObjectInfo
from quiver_actors.store.segment.reader import SegmentReader

HOLES_MAX = 10_000
"""Numbers that follow each other and become a hole each; of more, the first and the last one tell of all."""


def holes_of(first: int, last: int, found: Container[int] = ()) -> Iterator[Hole]:
    """Yield holes of reason `damaged` for segments of which nothing is left: those from `first` to `last` that were not found."""
    span = range(first, last + 1)
    for number in span if len(span) <= HOLES_MAX else (first, last):
        if number not in found:
            yield Hole(
                segment_seq=number,
                first_bundle=0,
                bundle_count=0,
                row_count=-1,
                reason="damaged",
                noted_unix_ns=time.time_ns(),
            )


def rows_of_pack(info: ObjectInfo, first: int, content: memoryview) -> Iterator[Segment]:
    """Yield the rows of the segments in a pack, which follow each other from number `first` on. Raises FormatError."""
    offset, number = 0, first
    while offset < content.nbytes:
        begin = offset + sums_bytes(content[offset:])
        sums = bytes(content[offset:begin])
        end = begin + decode_sums(sums).size_bytes
        packed = Packed(key=info.key, sums_offset=offset, offset=begin)
        yield row_of(number, 0, info, sums, content[begin:end], packed)
        offset, number = end, number + 1


def row_of(
    number: int,
    generation: int,
    info: ObjectInfo,
    encoded_sums: bytes,
    content: memoryview,
    packed: Packed | None = None,
) -> Segment:
    """Describe a segment that has its checksums. Raises FormatError: it has not, or it is no segment."""
    sums, reader = decode_sums(encoded_sums), SegmentReader(content, segment_seq=number)
    sums.check(0, content)
    extension = reader.footer.extension
    return Segment(
        segment_seq=number,
        generation=generation,
        bundle_count=reader.bundle_count,
        row_count=reader.row_count,
        size_bytes=sums.size_bytes,
        crc32=sums.crc32,
        etag=info.etag,
        created_unix_ns=info.modified_unix_ns or time.time_ns(),
        first_ingestion_unix_ns=0 if extension is None else extension.first_ingestion_ts_nanos,
        last_ingestion_unix_ns=0 if extension is None else extension.last_ingestion_ts_nanos,
        position_start=0 if extension is None else extension.wal_position_start,
        position_end=0 if extension is None else extension.wal_position_end,
        index=sparse_index(content),
        digest=sums.digest.hex(),
        pack=packed,
    )


def bundles_of(row: Segment) -> tuple[int, int, int]:
    """What two generations of one segment have in common: compaction changes their bytes alone."""
    return row.bundle_count, row.first_ingestion_unix_ns, row.last_ingestion_unix_ns
