"""Deletes from the archive what is over age: first from the manifest, and an hour later from the store, so that no reader meets a hole."""

from __future__ import annotations

import msgspec

from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest import Segment, StreamRef, key_of
from quiver_actors.archive.manifest_store import ManifestWriter, read_part
from quiver_actors.archive.object_store import Metadata


def expire_stream(store: Metadata, writer: ManifestWriter, stream: StreamRef, before_unix_ns: int) -> int:
    """Take the oldest segments of a stream out of the manifest, up to the first one that is not over age. Returns how many.

    Args:
        before_unix_ns: segments whose newest bundle was ingested before this time go.

    Raises:
        ArchiveError: the manifest was not changed, or not for all parts.
    """
    count = 0
    for ref in stream.parts:
        part = read_part(store, ref)
        going: list[Segment] = []
        for segment in part.segments:
            if segment.last_ingestion_unix_ns >= before_unix_ns:
                break
            going.append(segment)
        count += len(going)
        left = part.segments[len(going) :]
        if going:
            through = going[-1].segment_seq
            holes = tuple(hole for hole in part.holes if hole.segment_seq > through)
            keys = [key_of(writer.head.node, stream.key, segment) for segment in going]
            new = msgspec.structs.replace(part, segments=left, holes=holes) if left or holes else None
            writer.expire(stream.key, [ref], new, through, [*keys, *map(crc_key, keys)])
        if left:
            break
    return count
