"""Reads that go on where the disk ends: what a node has archived, through its archiver.

Guarantee: the segments of a stream that are whole on the disk are read there, and all others from the archive; no number is in both. So is
one of which bundles were lost on the disk, if the archive has more of it. The disk is looked at first: what leaves it afterwards was
archived before, and is found in the archive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.archive_messages import ArchivedHole, OpenArchived, RetiredCore
from quiver_actors.base.protocol.messages import SegmentInfo, StatisticsList
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.archived_bundles import ArchivedBundles
from quiver_actors.client.archived_reader import ArchivedReader, ArchivedSegment
from quiver_actors.client.gaps import NEVER_ARCHIVED
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.ranges import SegmentPart, first_missing
from quiver_actors.client.read_ahead import BackgroundFetches, RangePart, ReadAhead
from quiver_actors.client.segments import BundleReader, SecondCopy
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.two_copies import TwoCopies
from quiver_actors.errors import NotStored, StorageUnavailable
from quiver_actors.store.segment.ranged import RangedReader

_RANGE_DOORS = 3
"""Connections to the archiver over which one client reads ranges: so many segments are fetched at a time."""


def has_more_of(archived: SegmentInfo, holes: Iterable[ArchivedHole], on_disk: SegmentInfo) -> bool:
    """Whether fewer bundles of a segment are lost in the archive than on the disk. `holes`: those of this segment, and any others."""
    if not archived.size_bytes or archived.bundle_count < on_disk.bundle_count:
        return False
    counts = [hole.bundle_count for hole in holes if hole.segment_seq == on_disk.segment_seq]
    # A rescue may have found less of it than it had. What is not sealed here has grown since.
    lost_count = on_disk.lost_count + (archived.bundle_count - on_disk.bundle_count if on_disk.row_count >= 0 else 0)
    return all(counts) and sum(counts) < lost_count


class ArchivedStream(NamedTuple):
    """The archived bundles of a topic on one core, as far as somebody has asked."""

    topic: str
    core: int
    incarnation: str
    segments: Mapping[int, SegmentInfo] = {}
    holes: Sequence[ArchivedHole] = ()
    through: int = -1
    """All segments up to this number are among those of the disk and of the archive; -1: nobody has asked."""
    gone: frozenset[int] = frozenset()
    """The numbers that are not on the disk, or of which bundles are lost there that are archived."""
    columns: StatisticsList | None = None
    """The columns of its segments, as far as they are recorded; None: nobody has asked."""

    def and_disk(self, on_disk: Sequence[SegmentInfo]) -> list[SegmentInfo]:
        """All segments, each once: those that are read on the disk as they are there."""
        here = {info.segment_seq: info for info in on_disk if info.segment_seq not in self.gone}
        return list({**self.segments, **here}.values())

    def up_to(self, segment_seq: int) -> ArchivedStream:
        """The segments up to that number."""
        return self._replace(
            segments={seq: info for seq, info in self.segments.items() if seq <= segment_seq},
            gone=frozenset(seq for seq in self.gone if seq <= segment_seq),
        )

    def has_more_of(self, info: SegmentInfo) -> bool:
        """Whether fewer bundles of a segment are lost here than on the disk."""
        archived = self.segments.get(info.segment_seq)
        return archived is not None and has_more_of(archived, self.holes, info)

    def is_of_unknown_length(self, segment_seq: int) -> bool:
        """Whether nobody knows how many bundles a lost segment had."""
        return any(hole.segment_seq == segment_seq and hole.bundle_count == 0 for hole in self.holes)

    def was_never_archived(self, segment_seq: int) -> bool:
        """Whether the archive has other segments alone, and nothing that tells of this one."""
        return any(hole.segment_seq == segment_seq and hole.reason == NEVER_ARCHIVED for hole in self.holes)

    def loss_reason(self, segment_seq: int, index: int) -> str:
        """Why a bundle of which nothing is stored is lost."""
        for hole in self.holes:
            if hole.segment_seq == segment_seq and (
                hole.bundle_count == 0 or 0 <= index - hole.first_bundle < hole.bundle_count
            ):
                return hole.reason
        return "damaged"


class ArchivedReads:
    """The archived part of what a client reads. Any thread may ask."""

    def __init__(self, door: ArchiveDoor) -> None:
        self._door = door
        self._range_doors = [door, *(door.another() for _ in range(_RANGE_DOORS - 1))]
        """The segments of a range take these in turn: so one is fetched while another is read."""
        self._fetches = BackgroundFetches()
        self._lists: dict[tuple[str, int, str], ArchivedStream] = {}
        """What was listed last because a segment had left the disk, by topic, core and incarnation."""

    @property
    def has_archiver(self) -> bool:
        """Whether the node has an archiver, though it may be away just now. Does not wait."""
        return self._door.is_there

    def another_door(self) -> ArchiveDoor:
        """A connection of its own to the archiver, which is made when it is used first; for the caller to close."""
        return self._door.another()

    def retired(self, topic: str, served: Collection[int], wanted: Collection[int] | None = None) -> list[RetiredCore]:
        """The cores of a topic that the node does not have any more, by rising number: what is left of their bundles is archived.

        Args:
            served: the cores that the node has.
            wanted: only these; None: all.

        Raises:
            NotRunning: there is no node. And as `before`.
        """
        if wanted is not None and all(core in served for core in wanted):
            return []
        found = self._door.retired(topic)
        return [each for each in found if each.core not in served and (wanted is None or each.core in wanted)]

    def before(
        self,
        topic: str,
        core: int,
        start: BundleId | None,
        on_disk: Sequence[SegmentInfo],
        incarnation: str,
        *,
        end: BundleId | None = None,
        newest_segment_seq: int = -1,
        with_columns: bool = False,
    ) -> ArchivedStream:
        """Ask for what is archived of a range, if the disk does not have all of it; else nothing is asked.

        Nothing is named behind what the disk had: what lay open there may be whole in the archive by now, and behind it comes more.

        Args:
            start, end: None: where the disk begins and ends.
            on_disk: with the log behind them, where it is known.
            newest_segment_seq: the highest number that the disk had, if that is not among `on_disk` any more.
            incarnation: that of the core's directory; empty: not known, and nothing is asked.
            with_columns: whether the columns of the segments are wanted, too.

        Raises:
            NotAllowed, StorageUnavailable, WorkerUnavailable: the archiver cannot tell.
        """
        stream = ArchivedStream(topic, core, incarnation)
        first_seq = first_missing(on_disk, start, end) if incarnation else None
        if first_seq is None:
            return stream
        numbers = {info.segment_seq for info in on_disk}
        found = self._listed(stream, first_seq, numbers, with_columns=with_columns)
        newest = max(newest_segment_seq, *numbers, -1)
        found = found if newest < 0 else found.up_to(newest)
        more = frozenset(info.segment_seq for info in on_disk if found.has_more_of(info))
        found = found._replace(gone=found.gone | more)
        first = None if start is None else found.segments.get(start.segment_seq)
        if start is None or first is None or first.size_bytes or not found.is_of_unknown_length(start.segment_seq):
            return found
        # The bundle that stands for all of them is the one that is asked for.
        longer = msgspec.structs.replace(first, bundle_count=start.bundle_index + 1)
        return found._replace(segments={**found.segments, start.segment_seq: longer})

    def gone(self, topic: str, core: int, on_disk: Sequence[SegmentInfo], incarnation: str) -> list[SegmentInfo]:
        """The archived segments that are not on the disk, oldest first. Raises as `before`."""
        stream = self.before(topic, core, BundleId(topic, core, 0, 0), on_disk, incarnation)
        here = {info.segment_seq for info in on_disk}
        newest = max(here, default=max(stream.gone, default=-1))
        return [stream.segments[seq] for seq in sorted(stream.gone - here) if seq <= newest]

    def since(
        self,
        stream: ArchivedStream,
        first_segment_seq: int,
        on_disk: Sequence[SegmentInfo],
        *,
        with_columns: bool = False,
    ) -> ArchivedStream:
        """All that is archived of a stream from a segment on, whatever is on the disk. Raises as `before`."""
        if not stream.incarnation:
            return stream
        numbers = {info.segment_seq for info in on_disk}
        return self._listed(stream, first_segment_seq, numbers, with_columns=with_columns)

    def again(self, stream: ArchivedStream, segment_seq: int) -> ArchivedStream:
        """Look for a segment that has left the disk since it was listed. One list names many: it serves those that are looked for next.

        Raises:
            NotStored: it is not in the archive either.
            And as `before`.
        """
        key = stream.topic, stream.core, stream.incarnation
        known = self._lists.get(key)
        info = None if known is None else known.segments.get(segment_seq)
        if known is not None and info is not None and info.size_bytes:
            return known
        found = self._listed(stream, segment_seq, set())
        if segment_seq not in found.segments:
            raise NotStored(
                f"segment {segment_seq} of topic {stream.topic!r}, core {stream.core}, is not stored any more"
            )
        self._lists[key] = found
        return found

    def reader(
        self,
        stream: ArchivedStream,
        part: SegmentPart,
        projection: Projection,
        door: ArchiveDoor | None = None,
        note_read: Callable[[], None] | None = None,
    ) -> ArchivedReader:
        """A reader of one archived segment, which fetches what is wanted of the part.

        Args:
            door: where it asks; None: where everything else is asked, too.
            note_read: called for each bundle that was proven; must not raise.
        """
        info = stream.segments[part.segment_seq]
        segment = ArchivedSegment(
            f"segment {info.segment_seq} of topic {stream.topic!r}, core {stream.core}",
            info.bundle_count,
            info.row_count,
            info.size_bytes > 0,
            partial(stream.loss_reason, info.segment_seq),
            (info.first_ingestion_ts_nanos, info.last_ingestion_ts_nanos),
        )
        return ArchivedReader(
            segment, partial(self._open_copy, stream, part, projection, door or self._door), note_read
        )

    def second_copy(self, stream: ArchivedStream, part: SegmentPart, projection: Projection = EVERYTHING) -> SecondCopy:
        """What reads a part of a segment of the disk here too, should bundles of it be lost or damaged there. Nothing is asked yet."""

        def opened(here: BundleReader | None) -> BundleReader:
            archived = self.reader(self.again(stream, part.segment_seq), part, projection)
            return archived if here is None else TwoCopies(here, archived)

        return opened

    def segment(
        self, stream: ArchivedStream, part: SegmentPart, slots: TopicSlots, projection: Projection
    ) -> ArchivedBundles:
        """Some bundles of one archived segment, of which what is wanted is fetched when it is asked for."""
        reader = self.reader(stream, part, projection)
        return ArchivedBundles(lambda: reader, part.segment_seq, slots, stream.core, projection)

    def segments(
        self, stream: ArchivedStream, parts: Sequence[SegmentPart], slots: TopicSlots, projection: Projection
    ) -> Iterator[ArchivedBundles]:
        """The archived segments of a range, one for each part. While a program reads one, threads fetch those that follow."""
        for part in ReadAhead(partial(self._range_parts, stream, parts, projection), self._fetches):
            opened = partial(_itself, part.reader)
            yield ArchivedBundles(opened, part.segment_seq, slots, stream.core, projection)

    def _range_parts(
        self,
        stream: ArchivedStream,
        parts: Sequence[SegmentPart],
        projection: Projection,
        note_read: Callable[[], None],
    ) -> Iterator[RangePart]:
        for number, part in enumerate(parts):
            info = stream.segments[part.segment_seq]
            size_bytes = info.size_bytes * (part.end - part.first) // max(1, info.bundle_count)
            reader = self.reader(stream, part, projection, self._range_doors[number % _RANGE_DOORS], note_read)
            yield RangePart(part.segment_seq, part.first, part.end, size_bytes, reader)

    def later(
        self, stream: ArchivedStream, segment_seq: int, slots: TopicSlots, projection: Projection
    ) -> ArchivedBundles:
        """An archived segment that is looked for when something of it is first asked for; raises then, as `again`. Does not wait."""

        def opened() -> ArchivedReader:
            found = self._found(stream, segment_seq)
            return self.reader(found, SegmentPart(segment_seq, 0, found.segments[segment_seq].bundle_count), projection)

        return ArchivedBundles(opened, segment_seq, slots, stream.core, projection)

    def _found(self, stream: ArchivedStream, segment_seq: int) -> ArchivedStream:
        """The list that has a segment: the one of before, as one list names many.

        Raises:
            StorageUnavailable: the archive does not know the segment. It did when the segment left the disk, and it tells of what has
                expired: so nothing says that the segment is lost.
        """
        key = stream.topic, stream.core, stream.incarnation
        listed = self._lists.get(key)
        if listed is None or segment_seq not in listed.segments:
            if not self.has_archiver:
                # It is not gone for that: with an archiver again it can be had.
                raise StorageUnavailable(
                    f"segment {segment_seq} of topic {stream.topic!r}, core {stream.core}, has left the disk and is in the archive, and "
                    "the node has no archiver: set archive.url again"
                )
            with contextlib.suppress(NotStored):
                listed = self.again(stream, segment_seq)
        if listed is None or segment_seq not in listed.segments or listed.was_never_archived(segment_seq):
            raise StorageUnavailable(
                f"segment {segment_seq} of topic {stream.topic!r}, core {stream.core}, was in the archive when it left the disk, and the "
                "node's archive does not know it: are archive.url and the node's name what they were?"
            )
        return listed

    def close(self) -> None:
        """Close the connections to the archiver, and fetch nothing ahead any more. Does not wait; idempotent."""
        self._fetches.stop()
        for door in self._range_doors:
            door.close()

    def _listed(
        self, stream: ArchivedStream, first_segment_seq: int, on_disk: set[int], *, with_columns: bool = False
    ) -> ArchivedStream:
        listed = self._door.listed(
            stream.topic, stream.core, stream.incarnation, first_segment_seq, with_columns=with_columns
        )
        if listed is None:
            return stream
        segments = {info.segment_seq: info for info in listed.segments}
        return stream._replace(
            segments=segments,
            holes=listed.holes,
            through=listed.archived_through,
            gone=frozenset(segments.keys() - on_disk),
            columns=StatisticsList(0, list(listed.schemas), list(listed.columns)) if with_columns else None,
        )

    def _open_copy(
        self, stream: ArchivedStream, part: SegmentPart, projection: Projection, door: ArchiveDoor, copy: int
    ) -> RangedReader:
        request = OpenArchived(stream.topic, stream.core, stream.incarnation, part.segment_seq, copy)
        return RangedReader(
            door.opened(request),
            segment_seq=part.segment_seq,
            slots=projection.slots,
            columns=projection.columns,
            end=part.end,
        )


def _itself(reader: ArchivedReader) -> ArchivedReader:
    return reader
