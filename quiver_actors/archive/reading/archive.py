"""`quiver_actors.open_archive`: what a node has put into an object store, read without any node."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import StreamRef
from quiver_actors.archive.reading.columns import columns_in
from quiver_actors.archive.reading.contents import NodeContents, StreamContents, nodes_in
from quiver_actors.archive.reading.pieces import Numbered, Piece, numbered_in, pieces_of
from quiver_actors.archive.reading.querying import QueryingArchive
from quiver_actors.archive.reading.segment_files import SegmentFiles
from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.base.protocol.messages import SegmentInfo, TopicInfo
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.units import GIB
from quiver_actors.client.archived_reader import ArchivedReader, ArchivedSegment
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.projection import EVERYTHING, Asked, Projection
from quiver_actors.client.ranges import SegmentPart
from quiver_actors.client.read_ahead import BackgroundFetches, RangePart, ReadAhead
from quiver_actors.client.segments import MappedSegment, ReadableSegments
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.statistics import statistics_in
from quiver_actors.errors import NotStored, UsageError
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import TIMEOUT_SECONDS, open_existing
from quiver_actors.store.segment.ranged import RangedReader

if TYPE_CHECKING:
    from quiver_actors.query.snapshot import Snapshot, SnapshotPart
    from quiver_actors.query.span import Span

_URL = "the archive's URL"
_HAS_NONE = "has no archive: expected the `archive.url` of a node that has archived something"


def open_archive(
    url: str,
    *,
    node: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = GIB,
    timeout: float = TIMEOUT_SECONDS,
) -> Archive:
    """Open the archive of a node for reading. Nothing is ever written to it, and no node needs to run.

    Args:
        url: where the archive is, as in the setting `archive.url`. Credentials are looked for where the provider's own tools look.
        node: whose archive; None: that of the only node that has one there.
        cache_dir: where blocks that were fetched are kept, in files without a name; None: the directory of temporary files.
        cache_bytes: how much of them is kept.
        timeout: seconds that a request to the store may take.

    Raises:
        UsageError: there is no such archive, or it has several nodes and none was named.
        ConfigError: the URL names no store, or the extra `archive` is not installed.
        ArchiveError: the store cannot be read.
        FormatError: the manifest is damaged, or newer than this program.
    """
    store = open_existing(url, timeout_seconds=timeout, name=_URL)
    try:
        contents = NodeContents(store, _chosen(store, node))
        return Archive(store, contents, os.fspath(cache_dir or tempfile.gettempdir()), cache_bytes)
    except BaseException:
        store.close()
        raise


def nodes_at(url: str) -> list[str]:
    """The names of the nodes that have an archive at a URL, sorted.

    Raises:
        UsageError: none has.
        ConfigError, ArchiveError: as `open_archive`.
    """
    store = open_existing(url, name=_URL)
    try:
        found = nodes_in(store)
    finally:
        store.close()
    if not found:
        raise UsageError(f"{url} {_HAS_NONE}")
    return found


def _chosen(store: ObjectStore, node: str | None) -> str:
    if node is not None:
        return node
    found = nodes_in(store)
    if len(found) != 1:
        what = f"has the archives of several nodes ({', '.join(found)}): say which" if found else _HAS_NONE
        raise UsageError(f"{store.url} {what}")
    return found[0]


class Archive(QueryingArchive):
    """See `open_archive`. It shows one state of the archive; `refresh` looks at it anew. A context manager; any thread may read.

    The methods are those by which a `Client` reads what is stored, and return the same values.
    """

    def __init__(self, store: ObjectStore, contents: NodeContents, cache_dir: str, cache_bytes: int) -> None:
        self._store = store
        self._contents = contents
        self._files = SegmentFiles(store, contents.node, cache_dir, cache_bytes)
        self._fetches = BackgroundFetches()

    @property
    def url(self) -> str:
        """Where the archive is."""
        return self._store.url

    @property
    def node(self) -> str:
        """The node whose archive it is."""
        return self._contents.node

    def nodes(self) -> list[str]:
        """The names of all nodes that have an archive at the URL. Raises ArchiveError."""
        return nodes_in(self._store)

    def refresh(self) -> None:
        """Look at what is archived by now. Raises as `open_archive`."""
        self._contents.refresh()

    def topics(self) -> dict[str, TopicInfo]:
        """The archived topics by name. Durability and sync interval are not archived."""
        return {
            each.topic: TopicInfo(each.topic, dict(each.slots or {}), "", 0, event_time=each.event_time or "")
            for each in self._contents.streams
        }

    def incarnations(self, topic: str, core: int) -> list[str]:
        """The incarnations of the directory of a topic on one core; each has segments from number 0 on. Raises UnknownTopic."""
        self._check_topic(topic)
        return [each.incarnation for each in self._contents.streams if (each.topic, each.core) == (topic, core)]

    def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """The archived segments of a topic, oldest first, by core, of the incarnation that was written to last.

        Those of which nothing is archived are among them, with 0 bytes.

        Raises:
            UnknownTopic: the archive has no such topic.
            And as `open_archive`.
        """
        self._check_topic(topic)
        cores = sorted({each.core for each in self._contents.streams if each.topic == topic})
        return {
            core: [numbered.info for numbered in numbered_in(self._stream_contents(topic, core)).values()]
            for core in cores
        }

    def readable(self, topic: str = DEFAULT_TOPIC) -> dict[int, ReadableSegments]:
        """The same as a `Client` says it: all of it is sealed. Raises as `segments`."""
        return {core: ReadableSegments(infos, [], True) for core, infos in self.segments(topic).items()}

    def gaps(self, topic: str = DEFAULT_TOPIC) -> list[GapNotice]:
        """The bundles of a topic that the archive will never have, and why. Raises as `segments`."""
        return [
            GapNotice(
                topic,
                core,
                hole.segment_seq,
                hole.first_bundle,
                hole.first_bundle + max(1, hole.bundle_count) - 1,
                hole.bundle_count or None,
                None if hole.row_count < 0 else hole.row_count,
                hole.reason,
            )
            for core in self.segments(topic)
            for numbered in numbered_in(self._stream_contents(topic, core)).values()
            for hole in numbered.holes
        ]

    def read(
        self,
        topic: str,
        core: int,
        start: BundleId | None = None,
        end: BundleId | None = None,
        *,
        slots: Iterable[str | int] | None = None,
        columns: Mapping[str | int, Iterable[str]] | None = None,
        incarnation: str | None = None,
    ) -> Iterator[StoredBundle]:
        """Read archived bundles of one core in order, from `start` up to and not including `end`.

        The range is fixed by this call; of the segments only the wanted slots and columns are fetched, as the iterator comes to them. A
        bundle that is known to be lost is among those of the range: it raises DataLost, which says why, when anything is asked of it. Of
        a segment that is lost whole one such bundle comes if nobody knows how many there were.

        Args:
            start: None: the first that the archive knows of.
            end: None: up to the last.
            slots, columns: as of `Client.subscribe`.
            incarnation: one of `incarnations`; None: the one that was written to last.

        Raises:
            NotStored: a bundle of the range is not archived.
            UnknownTopic, UnknownSlot, UsageError: the call is wrong.
            ChecksumMismatch: by the iterator's bundles: what is archived is damaged, and there is no other copy.
            ArchiveError: the store cannot be read.
        """
        topic_slots = TopicSlots(self._check_topic(topic))
        projection = Asked.parse(slots, columns).resolve(topic_slots)
        contents = self._stream_contents(topic, core, incarnation)
        return self._read(contents, pieces_of(contents, start, end), topic_slots, projection)

    def read_segment(
        self, core: int, topic: str, segment_seq: int, *, verify_checksums: bool | None = None
    ) -> ArchivedReader:
        """A reader of one archived segment. Checksums are always verified.

        Raises:
            NotStored: the archive has no such segment.
        """
        contents = self._stream_contents(topic, core)
        found = numbered_in(contents).get(segment_seq)
        if found is None:
            raise NotStored(f"segment {segment_seq} of topic {topic!r}, core {core}, is not in the archive")
        return self._reader(contents.key, found)

    def read_part(
        self,
        core: int,
        topic: str,
        segment_seq: int,
        first: int,
        end: int,
        *,
        verify_checksums: bool | None = None,
        projection: Projection = EVERYTHING,
    ) -> ArchivedReader:
        """A reader of the bundles `[first, end)` of one archived segment.

        Args:
            verify_checksums: they always are, as of `read_segment`.
            projection: what is fetched of each bundle.

        Raises:
            NotStored: the archive does not know them.
        """
        contents = self._stream_contents(topic, core)
        bounds = (BundleId(topic, core, segment_seq, first), BundleId(topic, core, segment_seq, end))
        for piece in pieces_of(contents, *bounds):
            return self._reader(contents.key, piece.numbered, projection, end)
        raise NotStored(f"segment {segment_seq} of topic {topic!r}, core {core}, is not in the archive")

    def close(self) -> None:
        """Forget what was fetched, and close connections. Bundles that were read stay readable. Idempotent."""
        self._fetches.close()
        self._files.close()
        self._store.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Archive {self.url} node={self.node}>"

    # --- private -------------------------------------------------------------------------------------------------------------

    def _check_topic(self, topic: str) -> TopicInfo:
        topics = self.topics()
        if topic not in topics:
            raise unknown_topic(topic, topics)
        return topics[topic]

    def _stream_contents(self, topic: str, core: int, incarnation: str | None = None) -> StreamContents:
        stream: StreamRef | None = self._contents.stream(topic, core, incarnation)
        if stream is None:
            self._check_topic(topic)
            what = f"core {core}" if incarnation is None else f"core {core} and incarnation {incarnation}"
            raise UsageError(f"the archive of node {self.node!r} has nothing of topic {topic!r} for {what}")
        return self._contents.contents(stream.key)

    def _snapshot(self, topic: str, span: Span) -> Snapshot:
        from quiver_actors.query.snapshot import SEGMENTS_MAX, Snapshot

        info = self._check_topic(topic)
        slots = TopicSlots(info)
        parts = [part for core in self.segments(topic) for part in self._parts(slots, core, span)]
        if len(parts) > SEGMENTS_MAX:
            raise UsageError(
                f"topic {topic!r} has {len(parts):,} archived segments in that span, and a dataset holds {SEGMENTS_MAX:,}: "
                "give start= or end="
            )
        return Snapshot(topic, slots.table, tuple(parts), is_complete=True, event_time=info.event_time)

    def _parts(self, slots: TopicSlots, core: int, span: Span) -> Iterator[SnapshotPart]:
        from quiver_actors.client.archived_snapshots import archived_parts

        contents = self._stream_contents(slots.topic, core)
        known = numbered_in(contents)

        def opened(part: SegmentPart, projection: Projection) -> MappedSegment:
            reader = self._reader(contents.key, known[part.segment_seq], projection, part.end)
            return MappedSegment(partial(_itself, reader), part.segment_seq, slots, core, projection)

        statistics = statistics_in(columns_in(contents, contents.segments))
        return archived_parts(core, [numbered.info for numbered in known.values()], span, opened, statistics)

    def _read(
        self, contents: StreamContents, pieces: list[Piece], slots: TopicSlots, projection: Projection
    ) -> Iterator[StoredBundle]:
        ahead = ReadAhead(partial(self._range_parts, contents.key, pieces, projection), self._fetches)
        for part in ahead:
            segment = MappedSegment(
                partial(_itself, part.reader), part.segment_seq, slots, contents.key.core, projection
            )
            for index in range(part.first, part.end):
                yield StoredBundle(segment, index)

    def _range_parts(
        self, key: StreamKey, pieces: list[Piece], projection: Projection, note_read: Callable[[], None]
    ) -> Iterator[RangePart]:
        for numbered, first, end in pieces:
            size_bytes = numbered.info.size_bytes * (end - first) // max(1, numbered.bundle_count)
            is_all_wanted = projection is EVERYTHING and (first, end) == (0, numbered.bundle_count)
            reader = self._reader(key, numbered, projection, end, note_read, is_all_wanted=is_all_wanted)
            yield RangePart(numbered.segment_seq, first, end, size_bytes, reader)

    def _reader(
        self,
        key: StreamKey,
        numbered: Numbered,
        projection: Projection = EVERYTHING,
        end: int | None = None,
        note_read: Callable[[], None] | None = None,
        *,
        is_all_wanted: bool = False,
    ) -> ArchivedReader:
        return ArchivedReader(
            ArchivedSegment(
                f"segment {numbered.segment_seq} of topic {key.topic!r}, core {key.core}",
                numbered.bundle_count,
                numbered.info.row_count,
                numbered.segment is not None,
                numbered.loss_reason,
                (numbered.info.first_ingestion_ts_nanos, numbered.info.last_ingestion_ts_nanos),
            ),
            partial(self._open_copy, key, numbered, projection, end, is_all_wanted),
            note_read,
        )

    def _open_copy(
        self,
        key: StreamKey,
        numbered: Numbered,
        projection: Projection,
        end: int | None,
        is_all_wanted: bool,
        copy: int,
    ) -> RangedReader:
        return RangedReader(
            self._files.file(key, numbered, copy),
            segment_seq=numbered.segment_seq,
            slots=projection.slots,
            columns=projection.columns,
            end=end,
            is_all_wanted=is_all_wanted,
        )


def _itself(reader: ArchivedReader) -> ArchivedReader:
    return reader
