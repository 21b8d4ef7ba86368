"""Where a new subscriber begins that asks for bundles which have left the disk: what of the archive each worker is to be told.

The disk is looked at first, then the archive, so each segment is in one of the two. The worker compares that with its disk when it
registers the subscriber, and refuses where a segment has left it meanwhile and is not listed: then both are looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.archived_start import (
    ARCHIVED_SEGMENTS_MAX,
    ArchivedSegment,
    ArchivedStart,
)
from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo
from quiver_actors.base.ranges import Runs, runs_of
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.exchange import Flow
from quiver_actors.client.gaps import gap_reason
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.ranges import SegmentPart
from quiver_actors.client.requests import Requests
from quiver_actors.client.segments import ReadableSegments
from quiver_actors.client.subscribe_request import NotDelivered, Start, StartPoints, SubscribeRequest, start_text
from quiver_actors.errors import NotAllowed, StorageUnavailable, UsageError, WorkerUnavailable

logger = logging.getLogger("quiver.client")

_ON_DISK_MAX = 1000
"""Archived segments that are on the disk and may leave it before the subscriber is registered: so many are listed, too."""


class Looked(NamedTuple):
    """What the disk has of a topic where a new subscriber begins."""

    found: Mapping[int, ReadableSegments] = {}
    """What each core has, without those on which the subscriber is known, and so has begun already."""
    served: Collection[int] = ()
    """All cores that the node has."""


def names_a_place(wanted: SubscribeRequest) -> bool:
    """Whether the start is a time or a bundle, which may lie before all that is on the disk."""
    return wanted.start not in ("latest", "earliest")


def looking(requests: Requests, wanted: SubscribeRequest) -> Flow[Looked]:
    """Return what the disk has of the topic."""
    subscribers: Mapping[int, Sequence[SubscriberInfo]] = yield from requests.subscribers(wanted.topic)
    known = {core for core, infos in subscribers.items() if any(info.subscriber == wanted.subscriber for info in infos)}
    found = yield from requests.readable(wanted.topic)
    return Looked({core: on_disk for core, on_disk in found.items() if core not in known}, list(found))


def with_archive(reads: ArchivedReads, wanted: SubscribeRequest, starts: StartPoints, looked: Looked) -> StartPoints:
    """The start points of a new subscriber, with what each core's worker is to be told of the archive. Waits for the archiver.

    Raises:
        NotAllowed, StorageUnavailable, WorkerUnavailable: the archiver cannot tell, and the start may lie in the archive.
        UsageError: more segments lie there than a subscriber can get.
    """
    looks = {core: _Look.at(reads, wanted, core, each) for core, each in looked.found.items()}
    bundle = wanted.start
    if isinstance(bundle, BundleId) and bundle.core in looks:
        unix_ns = looks[bundle.core].time_of(reads, bundle)
        if unix_ns:
            starts = starts._replace(others=f"time:{unix_ns}")
    archived = {}
    for core, look in looks.items():
        start = look.start(reads, starts.on(core))
        if len(start.segments) > ARCHIVED_SEGMENTS_MAX + _ON_DISK_MAX:
            raise UsageError(
                f"subscriber {wanted.subscriber!r} of topic {wanted.topic!r} would get {len(start.segments):,} archived segments of core "
                f"{core}: {ARCHIVED_SEGMENTS_MAX:,} are possible. Begin later, or read what is older with client.read"
            )
        if start.segments:
            archived[core] = start
    starts = starts._replace(archived=archived)
    return starts._replace(not_delivered=tuple(_not_delivered(reads, wanted, starts, looked)))


def _not_delivered(
    reads: ArchivedReads, wanted: SubscribeRequest, starts: StartPoints, looked: Looked
) -> Iterator[NotDelivered]:
    """What lies behind the start on cores that the node does not have any more: nobody could keep the subscriber's progress there."""
    if len(looked.found) < len(looked.served):
        return  # it is known, and had what it was owed of former cores before these went
    for retired in reads.retired(wanted.topic, looked.served):
        on_disk = ReadableSegments([], [], True, retired.incarnation, retired.next_segment_seq)
        start = _Look.at(reads, wanted, retired.core, on_disk).start(reads, starts.on(retired.core))
        there = [each for each in start.segments if _count_there(each)]
        if there:
            skipped = sum(count for first, count in there[0].skipped if first == 0)
            first_id = BundleId(wanted.topic, retired.core, there[0].segment_seq, skipped)
            yield NotDelivered(wanted.topic, retired.core, first_id, len(there), sum(map(_count_there, there)))


def _count_there(segment: ArchivedSegment) -> int:
    """Bundles of an archived segment that lie behind the start and can be read."""
    skipped, lost = sum(count for _, count in segment.skipped), sum(count for _, count, _ in segment.lost)
    return max(0, segment.bundle_count - skipped - lost)


def warn_of(subscriber: str, not_delivered: Iterable[NotDelivered]) -> None:
    """Log what a new subscriber does not get."""
    for each in not_delivered:
        logger.warning(
            "quiver.subscription.not_delivered subscriber=%s topic=%s core=%d bundles=%d first=%s: the node does not have this core any "
            "more; read them with client.read(%r, %d, first)",
            subscriber,
            each.topic,
            each.core,
            each.bundle_count,
            each.first,
            each.topic,
            each.core,
        )


class _Look(NamedTuple):
    """What the disk and the archive have of one core."""

    on_disk: ReadableSegments
    stream: ArchivedStream

    @classmethod
    def at(cls, reads: ArchivedReads, wanted: SubscribeRequest, core: int, on_disk: ReadableSegments) -> _Look:
        """Ask the archiver; one that cannot tell is passed over where the disk has all that is asked for."""
        first = wanted.start.segment_seq if isinstance(wanted.start, BundleId) and wanted.start.core == core else 0
        stream = ArchivedStream(wanted.topic, core, on_disk.incarnation)
        try:
            return cls(on_disk, reads.since(stream, first, on_disk.infos))
        except (NotAllowed, StorageUnavailable, WorkerUnavailable) as error:
            if not _has_start(on_disk.infos, wanted.start, core):
                raise
            logger.warning(
                "quiver.subscription.archive_not_asked subscriber=%s topic=%s error=%s",
                wanted.subscriber,
                wanted.topic,
                error,
            )
            return cls(on_disk, stream)

    def time_of(self, reads: ArchivedReads, bundle: BundleId) -> int:
        """When an archived bundle was ingested, or the first segment behind it that is stored; 0 if it is on the disk."""
        if bundle.segment_seq not in self.stream.gone:
            return 0
        info = self.stream.segments[bundle.segment_seq]
        if info.size_bytes and bundle.bundle_index < info.bundle_count:
            return self._times(reads, info)[bundle.bundle_index]
        behind = [each for seq, each in sorted(self.stream.segments.items()) if seq > bundle.segment_seq]
        times = (each.first_ingestion_ts_nanos for each in [*behind, *self.on_disk.infos])
        return next((unix_ns for unix_ns in times if unix_ns), 0)

    def start(self, reads: ArchivedReads, text: str) -> ArchivedStart:
        """What the worker is to be told, for a start as of `Register.start`."""
        listed = list(self._wanted(reads, text))
        numbers = {each.segment_seq for each in listed}
        left = sorted({info.segment_seq for info in self.on_disk.infos} - numbers)
        return ArchivedStart(listed, left, self.on_disk.next_segment_seq)

    def _wanted(self, reads: ArchivedReads, text: str) -> Iterator[ArchivedSegment]:
        kind, _, rest = text.partition(":")
        first = tuple(map(int, rest.split("/")))[1:] if kind == "bundle" else (0, 0)
        since_ns = int(rest) if kind == "time" else 0
        infos = [info for seq, info in sorted(self.stream.segments.items()) if seq >= first[0]]
        here = [info.segment_seq for info in infos if info.segment_seq not in self.stream.gone]
        unlisted = set(here[_ON_DISK_MAX:])
        if kind == "earliest":
            return
        for place, info in enumerate(infos):
            is_gone = info.segment_seq in self.stream.gone
            if info.segment_seq in unlisted or _ends_before(infos[place:], since_ns):
                continue
            is_cut = 0 < info.first_ingestion_ts_nanos < since_ns
            if is_cut and not is_gone:
                # Its times are known where it lies: should it leave, the worker says so.
                continue
            skipped: Runs = [(0, first[1])] if info.segment_seq == first[0] and first[1] else []
            if is_cut:
                times = self._times(reads, info)
                skipped = runs_of(index for index, unix_ns in enumerate(times) if 0 < unix_ns < since_ns)
            yield self._segment(info, skipped)

    def _segment(self, info: SegmentInfo, skipped: Runs) -> ArchivedSegment:
        seq, is_unknown = info.segment_seq, self.stream.is_of_unknown_length(info.segment_seq) and not info.size_bytes
        holes = [hole for hole in self.stream.holes if hole.segment_seq == seq]
        if is_unknown:
            return ArchivedSegment(seq, 0, 0, lost=[(0, 0, gap_reason(holes[0].reason))])
        lost = [(hole.first_bundle, hole.bundle_count, gap_reason(hole.reason)) for hole in holes if hole.bundle_count]
        if not info.size_bytes:
            # Whatever no hole names of it is lost all the same.
            lost.append((0, info.bundle_count, "damaged"))
        return ArchivedSegment(seq, info.bundle_count, info.size_bytes, skipped, lost)

    def _times(self, reads: ArchivedReads, info: SegmentInfo) -> list[int]:
        reader = reads.reader(self.stream, SegmentPart(info.segment_seq, 0, info.bundle_count), EVERYTHING)
        return [reader.ingestion_ts(index) or 0 for index in range(info.bundle_count)]


def _has_start(on_disk: Sequence[SegmentInfo], start: Start, core: int) -> bool:
    """Whether the disk has what a start asks for, as far as the disk can tell."""
    if isinstance(start, BundleId):
        oldest = min((info.segment_seq for info in on_disk), default=start.segment_seq + 1)
        return start.core == core and start.segment_seq >= oldest
    oldest_ns = min((info.first_ingestion_ts_nanos for info in on_disk), default=0)
    return 0 < oldest_ns <= int(start_text(start).removeprefix("time:"))


def _ends_before(infos: Sequence[SegmentInfo], since_ns: int) -> bool:
    """Whether the first of these segments was written before a time; one of which nothing is archived, if the next one began before."""
    if infos[0].last_ingestion_ts_nanos:
        return infos[0].last_ingestion_ts_nanos < since_ns
    return any(info.first_ingestion_ts_nanos and info.first_ingestion_ts_nanos < since_ns for info in infos)
