"""Archives for tests: real segments of an embedded store, put into a real store under a real manifest, without an archiver."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import quiver_actors
from quiver_actors.archive.blocks import encode_sums, sums_of
from quiver_actors.archive.descriptions import Wanted, describe
from quiver_actors.archive.keys import StreamKey, crc_key, segment_key
from quiver_actors.archive.manifest import Hole, Owner, Segment
from quiver_actors.archive.manifest_store import Addition, ManifestWriter
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from quiver_actors.store.segment.reader import SegmentReader

NODE = "node-a"
INCARNATION = "0123456789abcdef"
UPLOADED_UNIX_NS = 1_700_000_000_000_000_000


def sealed_segments(directory: Path, bundles: Iterable[Sequence[Mapping[str | int, pa.RecordBatch]]]) -> list[bytes]:
    """The files of one sealed segment for each sequence of bundles, pushed to a store in that directory."""
    with quiver_actors.open(directory) as store:
        for of_segment in bundles:
            store.push_many(of_segment)
            store.flush()
    return [path.read_bytes() for path in sorted((directory / "default" / "core_0" / "segments").iterdir())]


class ArchiveWriter:
    """Writes the archive of one stream as an archiver does, segment by segment."""

    def __init__(
        self,
        url: str,
        node: str = NODE,
        topic: str = "default",
        core: int = 0,
        incarnation: str = INCARNATION,
        wanted: Wanted | None = None,
    ) -> None:
        """`wanted`: what the manifest says of the columns of segments; None: nothing, as by an older program."""
        self.store: ObjectStore = open_store(url)
        self.node = node
        self.slots: Mapping[str, int] | None = None
        self.wanted = wanted
        self.schemas: dict[str, bytes] = {}
        self.stream = StreamKey(topic, incarnation, core)
        owner = Owner(epoch=1, directory=os.urandom(4).hex(), start=os.urandom(4).hex(), since_unix_ns=UPLOADED_UNIX_NS)
        self.manifest = ManifestWriter.own(self.store, node, owner, None)

    def key(self, segment_seq: int, generation: int = 0) -> str:
        return segment_key(self.node, self.stream, segment_seq, generation)

    def upload(self, segment_seq: int, content: bytes, generation: int = 0) -> Segment:
        """Put the objects of a segment, which are not in the manifest yet."""
        sums, reader = sums_of(content), SegmentReader(content)
        self.store.create(crc_key(self.key(segment_seq, generation)), encode_sums(sums))
        etag = self.store.put(self.key(segment_seq, generation), [content], len(content))
        extension = reader.footer.extension
        assert extension is not None
        segment = Segment(
            segment_seq=segment_seq,
            generation=generation,
            bundle_count=reader.bundle_count,
            row_count=reader.row_count,
            size_bytes=len(content),
            crc32=sums.crc32,
            etag=etag,
            created_unix_ns=UPLOADED_UNIX_NS,
            first_ingestion_unix_ns=extension.first_ingestion_ts_nanos,
            last_ingestion_unix_ns=extension.last_ingestion_ts_nanos,
            position_start=extension.wal_position_start,
            position_end=extension.wal_position_end,
            digest=sums.digest.hex(),
        )
        if self.wanted is None:
            return segment
        described = describe(segment, memoryview(content), self.wanted)
        self.schemas |= described.schemas
        return described.segment

    def record(self, through: int, segments: Sequence[Segment] = (), holes: Sequence[Hole] = ()) -> None:
        """Put segments and holes into the manifest."""
        event_time = None if self.wanted is None else self.wanted.event_time
        self.manifest.commit({self.stream: Addition(segments, holes, through, self.slots, event_time, self.schemas)})

    def archive(self, segments: Mapping[int, bytes], holes: Sequence[Hole] = ()) -> None:
        """Upload and record segments by their numbers, and holes, all that there are."""
        uploaded = [self.upload(seq, content) for seq, content in segments.items()]
        self.record(max([*segments, *(hole.segment_seq for hole in holes)]), uploaded, holes)


def hole(segment_seq: int, first_bundle: int = 0, bundle_count: int = 0, reason: str = "evicted") -> Hole:
    return Hole(
        segment_seq=segment_seq,
        first_bundle=first_bundle,
        bundle_count=bundle_count,
        row_count=-1,
        reason=reason,
        noted_unix_ns=UPLOADED_UNIX_NS,
    )
