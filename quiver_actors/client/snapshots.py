"""Takes a snapshot of a topic: lists what can be read of it, and maps all of that. Nothing is sealed or claimed for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.exchange import Flow, side_by_side
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.ranges import SegmentPart
from quiver_actors.client.requests import Requests, WantedRange, check_obstacle
from quiver_actors.client.segments import MappedSegment, ReadableSegments
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.statistics import SegmentStatistics
from quiver_actors.errors import NotStored, StorageUnavailable, UsageError
from quiver_actors.query.material import Mentions
from quiver_actors.query.snapshot import SEGMENTS_MAX, Snapshot, SnapshotPart
from quiver_actors.query.span import Span

_READABLE_NS = 60 * SECOND_NS
"""How long to wait for a worker that has just started: it looks at what it has before it shows any of it."""
_LOOKS_MAX = 5
"""How often to begin again where everything that was listed had been deleted before any of it was mapped."""
_PINS_AT_ONCE = 32
"""Segments that are asked for before the first of them is there."""


class CoreOnDisk(NamedTuple):
    """What one core had of a topic while a snapshot was taken."""

    segments: list[SegmentInfo]
    """Those that were there all the time, also outside of the span."""
    newest_segment_seq: int
    """The highest number that there was at the beginning; -1: there was nothing."""
    incarnation: str
    next_log: SegmentInfo | None = None
    """The log behind them, as of `ReadableSegments`."""


class Taken(NamedTuple):
    """A snapshot of the disk, and what says where the archive goes on (`client.archived_snapshots`)."""

    snapshot: Snapshot
    slots: TopicSlots
    on_disk: Mapping[int, CoreOnDisk]


class Gathered(NamedTuple):
    """What a statement may be about; see `query.material.Material`."""

    topics: Mapping[str, TopicInfo]
    taken: Mapping[str, Taken]
    segments: Mapping[str, Mapping[int, list[SegmentInfo]]]
    subscribers: Mapping[str, Mapping[int, list[SubscriberInfo]]]
    span: Span


def taking_snapshot(requests: Requests, topic: str, span: Span, *, verifies_checksums: bool) -> Flow[Taken]:
    """Map everything of a topic that is on the disk, can be read, and lies in the span. What is deleted meanwhile is not in the snapshot.

    Raises:
        UsageError: these are more segments than one process can map.
        StorageUnavailable: a segment could not be read for a long time, or segments are deleted faster than they are looked at.
        UnknownTopic, WorkerUnavailable, FormatError: see `quiver_actors.errors`.
    """
    for _ in range(_LOOKS_MAX):
        taken, is_overtaken = yield from _taking_once(requests, topic, span, verifies_checksums=verifies_checksums)
        if not is_overtaken:
            return taken
    raise StorageUnavailable(
        f"topic {topic!r}: {_LOOKS_MAX} times everything that was listed had been deleted before any of it could be read: "
        "segments go faster than they are looked at. Try again, or let the topic keep more (retention.keep_for, a larger size cap)"
    )


def _taking_once(requests: Requests, topic: str, span: Span, *, verifies_checksums: bool) -> Flow[tuple[Taken, bool]]:
    """Returns a snapshot, and whether everything that was listed for it is deleted, so that a newer list may have more."""
    found = yield from requests.readable(topic)
    for core, readable in found.items():
        if span.end_ns is None and core not in span.ends:
            check_obstacle(topic, core, readable.obstacle)
    info = yield from _info(requests, topic)
    slots = TopicSlots(info)
    statistics = yield from requests.statistics(topic)
    wanted = _wanted(found, span)
    if len(wanted) > SEGMENTS_MAX:
        raise UsageError(
            f"topic {topic!r} has {len(wanted):,} segments in that span, and a dataset holds {SEGMENTS_MAX:,}: give start= or end="
        )
    pins = (_pinned(requests, slots, *each, verifies_checksums=verifies_checksums) for each in wanted)
    all_pinned = yield from side_by_side(pins, _PINS_AT_ONCE)
    parts = [
        _part(*each, pinned, statistics.get(each[0], {}).get(each[1].segment_seq))
        for each, pinned in zip(wanted, all_pinned, strict=True)
        if pinned is not None
    ]
    gone = {
        (core, info.segment_seq) for (core, info, _), pinned in zip(wanted, all_pinned, strict=True) if pinned is None
    }
    stored = _numbers(found)
    if gone:
        # Some were deleted, and perhaps older ones behind them that are pinned already: what is left now is one moment's.
        # A worker still lists a segment whose file it has just deleted: that one is not on the disk any more.
        stored = _numbers((yield from requests.readable(topic))) - gone
        parts = [part for part in parts if (part.core, part.segment_seq) in stored]
    if (yield from _info(requests, topic)).incarnation != info.incarnation:
        # Numbers of a topic's segments are used again by one that is made in its place: what is known may be of either.
        parts = [part._replace(statistics=None) for part in parts]
    is_complete = all(each.is_complete for each in found.values())
    snapshot = Snapshot(
        topic, slots.table, tuple(parts), is_complete, info.event_time, requests.teller_of_pruned(topic)
    )
    taken = Taken(snapshot, slots, {core: _on_disk(core, each, stored) for core, each in found.items()})
    return taken, bool(wanted and not parts)


def _on_disk(core: int, found: ReadableSegments, stored: set[tuple[int, int]]) -> CoreOnDisk:
    return CoreOnDisk(
        [info for info in found.infos if (core, info.segment_seq) in stored],
        max((info.segment_seq for info in found.infos), default=-1),
        found.incarnation,
        found.next_log,
    )


def _info(requests: Requests, topic: str) -> Flow[TopicInfo]:
    topics = yield from requests.topics()
    if topic not in topics:
        raise unknown_topic(topic, topics)
    return topics[topic]


def _part(
    core: int, segment: SegmentInfo, bundles: range, pinned: MappedSegment, known: SegmentStatistics | None
) -> SnapshotPart:
    oldest_ns, newest_ns = sorted((segment.first_ingestion_ts_nanos, segment.last_ingestion_ts_nanos))
    streams = None if known is None else known.streams
    size_bytes = size_of(segment, bundles)
    return SnapshotPart(
        core, segment.segment_seq, bundles.start, bundles.stop, oldest_ns, newest_ns, pinned, streams, size_bytes
    )


def size_of(segment: SegmentInfo, bundles: range) -> int:
    """Return about how many bytes of a segment some of its bundles are."""
    return segment.size_bytes * len(bundles) // max(1, segment.bundle_count)


def _numbers(found: Mapping[int, ReadableSegments]) -> set[tuple[int, int]]:
    """Core and number of each segment."""
    return {(core, info.segment_seq) for core, each in found.items() for info in each.infos}


def _wanted(found: Mapping[int, ReadableSegments], span: Span) -> list[tuple[int, SegmentInfo, range]]:
    """Core, segment and bundles of what lies in the span, core by core, oldest first."""
    segments = [
        (core, info)
        for core, each in sorted(found.items())
        for info in sorted(each.infos, key=lambda info: info.segment_seq)
    ]
    spans = [(core, info, span.bundles_of(core, info)) for core, info in segments]
    return [each for each in spans if each[2]]


def _pinned(
    requests: Requests, slots: TopicSlots, core: int, info: SegmentInfo, bundles: range, *, verifies_checksums: bool
) -> Flow[MappedSegment | None]:
    """Map some bundles of a segment; None: it is not stored any more."""
    part = SegmentPart(info.segment_seq, bundles.start, bundles.stop)
    wanted = WantedRange([part], core, slots, EVERYTHING)
    try:
        mapping = requests.mapped_part(wanted, part, verifies_checksums=verifies_checksums, patience_ns=_READABLE_NS)
        return (yield from mapping)
    except NotStored:
        return None


def gathering_material(
    requests: Requests, statement: str, only: Collection[str] | None, span: Span, *, verifies_checksums: bool
) -> Flow[Gathered]:
    """Take what a SQL statement may be about: snapshots of the topics that it names, and what it asks of the node. Raises as above.

    Args:
        only: there are no topics but these; None: there are all.
        span: what is wanted of each topic.
    """
    mentions, known = Mentions(statement), (yield from requests.topics())
    topics = {topic: info for topic, info in known.items() if only is None or topic in only}
    taken = {}
    for topic in mentions.topics(topics):
        taken[topic] = yield from taking_snapshot(requests, topic, span, verifies_checksums=verifies_checksums)
    segments: dict[str, dict[int, list[SegmentInfo]]] = {}
    subscribers: dict[str, dict[int, list[SubscriberInfo]]] = {}
    for topic in topics:
        if mentions.asks_about("segments"):
            found = yield from requests.readable(topic)
            segments[topic] = {core: each.infos for core, each in found.items()}
        if mentions.asks_about("subscribers") or mentions.asks_about("gaps"):
            subscribers[topic] = yield from requests.subscribers(topic)
    return Gathered(topics, taken, segments, subscribers, span)
