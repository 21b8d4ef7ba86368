"""The archived part of snapshots: older bundles of a topic, in front of those that are on the disk.

Guarantee: a segment that is on the disk is read there, and every other one in the archive; none is left out in between, and nothing comes
that was pushed after the snapshot of the disk was taken. The disk was looked at first: what left it afterwards was archived before.

Waits for the archiver: asyncio calls it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.ranges import SegmentPart, parts_of
from quiver_actors.client.segments import BundleReader, MappedSegment
from quiver_actors.client.snapshots import CoreOnDisk, Gathered, Taken, size_of
from quiver_actors.client.statistics import SegmentStatistics, statistics_in
from quiver_actors.errors import UsageError
from quiver_actors.query.material import Material
from quiver_actors.query.snapshot import SEGMENTS_MAX, Snapshot, SnapshotPart
from quiver_actors.query.span import Span

OpenSegment = Callable[[SegmentPart, Projection], MappedSegment]
"""Makes a reader of some archived bundles, and of what is wanted of them. Nothing is fetched yet."""


class ArchivedBundles:
    """Bundles of one archived segment, as a snapshot has them. What is fetched is let go of with what `narrowed` has returned."""

    __slots__ = ("_near_ns", "_open", "_segment")

    def __init__(
        self, open_segment: Callable[[Projection], MappedSegment], near_ns: int, segment: MappedSegment | None = None
    ) -> None:
        """
        Args:
            near_ns: an ingestion time for bundles that are lost: that of their neighbours.
            segment: what is read; None: a reader of its own for each question.
        """
        self._open = open_segment
        self._near_ns = near_ns
        self._segment = segment

    @property
    def reader(self) -> BundleReader:
        """The reader of the segment, which is opened when it is first asked for."""
        return self._opened().reader

    @property
    def is_mapped(self) -> bool:
        """Whether they are here already, which they are not: they are fetched when they are read."""
        return False

    def narrowed(self, slot_id: int, columns: Sequence[str] | None) -> ArchivedBundles:
        """The bundles for one scan: only these columns of the slot are fetched; None: all."""
        projection = Projection(frozenset({slot_id}), {} if columns is None else {slot_id: tuple(columns)})
        return ArchivedBundles(self._open, self._near_ns, self._open(projection))

    def check(self, index: int) -> None:
        """Fetch and prove a bundle. Raises as `ArchivedReader.check`."""
        self._opened().check(index)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        return self._opened().slot_ids(index)

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle, after `check`."""
        return self._opened().batch(index, slot_id)

    def ingestion_ts_nanos(self, index: int) -> int | None:
        """Return when a bundle was ingested; of a lost one, about when."""
        return self._opened().ingestion_ts_nanos(index) or self._near_ns or None

    def _opened(self) -> MappedSegment:
        return self._open(EVERYTHING) if self._segment is None else self._segment


def archived_parts(
    core: int,
    infos: Iterable[SegmentInfo],
    span: Span,
    open_segment: OpenSegment,
    statistics: Mapping[int, SegmentStatistics],
) -> Iterator[SnapshotPart]:
    """Yield what archived segments have in a span, oldest first, lost bundles included.

    Args:
        infos: segments in the order of their numbers; those of which nothing is archived have no times.
        statistics: of those segments of which the manifest has them, by number.
    """
    for info in _timed(list(infos)):
        bundles = span.bundles_of(core, info)
        if bundles:
            part = SegmentPart(info.segment_seq, bundles.start, bundles.stop)
            oldest_ns, newest_ns = sorted((info.first_ingestion_ts_nanos, info.last_ingestion_ts_nanos))
            pinned = ArchivedBundles(partial(open_segment, part), oldest_ns)
            known = statistics.get(info.segment_seq)
            streams, size_bytes = None if known is None else known.streams, size_of(info, bundles)
            yield SnapshotPart(core, *part, oldest_ns, newest_ns, pinned, streams, size_bytes)


def whole_snapshot(reads: ArchivedReads, taken: Taken, span: Span) -> Snapshot:
    """Return the snapshot with what the archive has of older bundles, if the span begins before the disk does, and of what the disk has
    lost in between.

    Raises:
        NotStored: something between its start and the disk is neither here nor there.
        UsageError: it has too many segments.
        NotAllowed, StorageUnavailable, WorkerUnavailable: the archiver cannot tell.
    """
    snapshot = taken.snapshot
    _have_second_copies(reads, taken)
    cores = {**taken.on_disk, **_retired(reads, taken, span)}
    older = [part for core, on_disk in cores.items() for part in _older(reads, taken, core, on_disk, span)]
    if not older:
        return snapshot
    numbers = {(part.core, part.segment_seq) for part in older}
    on_disk = [part for part in snapshot.parts if (part.core, part.segment_seq) not in numbers]
    parts = sorted([*older, *on_disk], key=lambda part: (part.core, part.segment_seq))
    if len(parts) > SEGMENTS_MAX:
        raise UsageError(
            f"topic {snapshot.topic!r} has {len(parts):,} segments in that span, archived ones included, and a dataset holds "
            f"{SEGMENTS_MAX:,}: give another start= or end="
        )
    return snapshot._replace(parts=tuple(parts))


def whole_material(reads: ArchivedReads, gathered: Gathered) -> Material:
    """Return what a statement is about, with archived bundles as in `whole_snapshot`. Raises as that."""
    snapshots = {topic: whole_snapshot(reads, taken, gathered.span) for topic, taken in gathered.taken.items()}
    return Material(gathered.topics, snapshots, gathered.segments, gathered.subscribers, gathered.span)


def _retired(reads: ArchivedReads, taken: Taken, span: Span) -> dict[int, CoreOnDisk]:
    """The cores that the node does not have any more and of which the span has something: nothing of them is on the disk."""
    if span.start_ns is None and span.starts.keys() <= taken.on_disk.keys():
        return {}
    found = reads.retired(taken.snapshot.topic, taken.on_disk, None if span.start_ns is not None else span.starts)
    return {each.core: CoreOnDisk([], -1, each.incarnation) for each in found}


def _older(reads: ArchivedReads, taken: Taken, core: int, on_disk: CoreOnDisk, span: Span) -> Iterator[SnapshotPart]:
    topic = taken.snapshot.topic
    start = _start(topic, core, on_disk, span)
    bounded = [*on_disk.segments, *filter(None, [on_disk.next_log])]
    stream = reads.before(
        topic,
        core,
        start,
        bounded,
        on_disk.incarnation,
        newest_segment_seq=on_disk.newest_segment_seq,
        with_columns=True,
    )
    infos = [stream.segments[seq] for seq in sorted(stream.gone)]
    oldest = min((info.segment_seq for info in on_disk.segments), default=-1)
    is_older = start is not None and not 0 <= oldest <= start.segment_seq
    if not is_older:
        # What is missing in between may have been deleted since nobody needed it: it is had if it is there.
        infos = [info for info in infos if info.size_bytes]
    if not infos:
        return
    if is_older:
        first = start if span.start_ns is None else None
        parts_of([*infos, *bounded], first, None, topic, core, stream.through)

    def opened(part: SegmentPart, projection: Projection) -> MappedSegment:
        return reads.segment(stream, part, taken.slots, projection)

    statistics = {} if stream.columns is None else statistics_in(stream.columns)
    yield from archived_parts(core, infos, span, opened, statistics)


def _have_second_copies(reads: ArchivedReads, taken: Taken) -> None:
    """Let scans read in the archive what they find damaged on the disk."""
    for each in taken.snapshot.parts:
        if isinstance(each.bundles, MappedSegment):
            stream = ArchivedStream(taken.snapshot.topic, each.core, taken.on_disk[each.core].incarnation)
            part = SegmentPart(each.segment_seq, each.first, each.end)
            each.bundles.have_second_copy(reads.second_copy(stream, part))


def _start(topic: str, core: int, on_disk: CoreOnDisk, span: Span) -> BundleId | None:
    """The first bundle of a core that the archive is asked for; None: the disk has all that is wanted."""
    if core in span.starts:
        return BundleId(topic, core, *span.starts[core])
    if span.start_ns is None:
        return None
    oldest_ns = min((info.first_ingestion_ts_nanos for info in on_disk.segments), default=0)
    return None if 0 < oldest_ns <= span.start_ns else BundleId(topic, core, 0, 0)


def _timed(infos: list[SegmentInfo]) -> Iterator[SegmentInfo]:
    """The segments, those of which nothing is archived with the times of what is archived before or behind them."""
    near_ns = next((info.first_ingestion_ts_nanos for info in infos if info.size_bytes), 0)
    for info in infos:
        if info.size_bytes:
            near_ns = info.last_ingestion_ts_nanos
            yield info
        else:
            yield msgspec.structs.replace(info, first_ingestion_ts_nanos=near_ns, last_ingestion_ts_nanos=near_ns)
