"""The messages about segments, sealed or open: which there are, and their descriptors."""

from __future__ import annotations

import msgspec

from quiver_actors.base.protocol.base import Message

# --- client to worker --------------------------------------------------------------------------------------------------


class ListSegments(Message, tag=6, frozen=True):
    """Ask for the segments of a topic on this core. Answer: `SegmentList`."""

    tag: int
    topic: str
    patience_ms: int = 0
    """How long the answer may wait until everything can be read that was acknowledged before and need not be sealed for it; 0: the answer
    comes at once."""


class OpenSegment(Message, tag=7, frozen=True):
    """Ask for one segment's descriptor; answered by SegmentOpened."""

    tag: int
    topic: str
    segment_seq: int
    first: int = 0
    stop: int = 0
    """The bundles whose places are wanted if the segment is not sealed; `stop` is not included."""


class BundleTime(Message, tag=20, frozen=True):
    """Ask when a bundle was ingested: Done, whose `value` is UNIX nanoseconds, 0 where that is not known (any more)."""

    tag: int
    topic: str
    segment_seq: int
    bundle_index: int


class CheckSegment(Message, tag=24, frozen=True):
    """A reader without a claim found the file of a segment damaged: the worker is to check it, as after Unreadable. Done, at once."""

    tag: int
    topic: str
    segment_seq: int
    reason: str
    bundle_index: int = -1
    """The bundle that is damaged; needed where the segment is not sealed. -1: not said."""


class ListSchemas(Message, tag=26, frozen=True):
    """Ask for the schemas of everything that a topic has on this core, sealed or not. Answer: `SchemaList`."""

    tag: int
    topic: str


class ListStatistics(Message, tag=27, frozen=True):
    """Ask what is known of the columns of a topic's sealed segments, from segment `first` on. Answer: `StatisticsList`."""

    tag: int
    topic: str
    first: int = 0


class CountPruned(Message, tag=39, frozen=True):
    """A reader left out so many sealed segments of a topic on this core, by their statistics: the worker adds them up. Done, at once."""

    tag: int
    topic: str
    segment_count: int


# --- worker to client --------------------------------------------------------------------------------------------------


class SegmentInfo(msgspec.Struct, array_like=True, frozen=True):
    """One sealed segment: its counts, its size on disk, and the ingestion times of its first and last bundle, UNIX nanoseconds."""

    segment_seq: int
    bundle_count: int
    row_count: int
    size_bytes: int
    first_ingestion_ts_nanos: int
    last_ingestion_ts_nanos: int
    is_checked: bool = True
    """False: the segment, or an earlier one, dates from before the worker's start and is not checked yet; subscribers do not get it."""
    position_start: int = 0
    position_end: int = 0
    """Log positions: where one segment ends and the next begins at the same, nothing was stored in between, whatever their numbers are.
    Both 0: unknown."""
    lost_count: int = 0
    """Bundles of it that were lost on the disk, as far as a worker has said so; an older one says nothing. An archive may have them."""


class SegmentList(Message, tag=69, frozen=True):
    """Answer to `ListSegments`: the sealed segments of a topic on this core, oldest first."""

    tag: int
    segments: list[SegmentInfo]
    unlisted: tuple[int, ...] = ()
    """Segment numbers still to appear in this list or in gap notices: unsealed logs, publishes under way, damage not rescued yet."""
    next_segment_seq: int = -1
    """No segment has had this number or a higher one; -1: not said."""
    incarnation: str = ""
    """Incarnation of the directory that holds these segments; equal numbers in another one are other segments. Empty: not said."""
    open_segments: tuple[SegmentInfo, ...] = ()
    """The segments that are not sealed, oldest first, as far as they can be read: bundles, bytes of their entries, and ingestion times of
    the first and the last of these. Their rows are not counted: `row_count` is -1."""
    is_complete: bool = False
    """Everything that had been acknowledged when the request came is in one of the two lists. False: some of it can be read only once it
    is synced or sealed, or a publish in front of it is done; or not said."""
    obstacle: str = ""
    """Why some of what was acknowledged cannot be read after all the patience of the request, where no seal is waited for by design."""
    unsealed_from: tuple[int, int] | None = None
    """Segment number and log position of the oldest log that is not sealed, or of the next one: where the newest sealed segment ends at
    another position, something behind it is missing. None: not said."""


class SchemaInfo(msgspec.Struct, array_like=True, frozen=True):
    """One schema of a slot, and the segments that have it."""

    slot_id: int
    message: bytes
    """The encapsulated Arrow schema message."""
    segment_count: int
    """Sealed segments that have it."""
    some_segments: tuple[int, ...] = ()
    """The numbers of a few of them."""
    open_segments: tuple[int, ...] = ()
    """Segments that have it and are not sealed."""


class SchemaList(Message, tag=81, frozen=True):
    """Answer to `ListSchemas`: each distinct schema once."""

    tag: int
    schemas: list[SchemaInfo]
    unknown: tuple[int, ...] = ()
    """Sealed segments whose schemas the worker does not know yet, or that are too many for one message: look at these."""


class SegmentColumns(msgspec.Struct, array_like=True, frozen=True):
    """The schemas and rows of one sealed segment, and the statistics of its columns."""

    segment_seq: int
    streams: list[tuple[int, int]]
    """Its schemas: the place of each in `StatisticsList.schemas`, and the rows of it."""
    statistics: bytes
    """Statistics of the columns of these streams, encoded by `store.segment.statistics`; empty: there are none, or none yet."""


class StatisticsList(Message, tag=82, frozen=True):
    """Answer to `ListStatistics`. Segments that are not named are not known yet."""

    tag: int
    schemas: list[tuple[int, bytes]]
    """Slot and encapsulated Arrow schema message of each schema that the segments have."""
    segments: list[SegmentColumns]
    next_segment_seq: int = -1
    """Where to go on: the message has an end; -1: these were all."""


class SegmentArchived(Message, tag=83, frozen=True):
    """Precedes the first Deliver of a segment that is not on the disk: the consumer reads it through the archiver of the node."""

    topic: str
    segment_seq: int
    incarnation: str
    """Incarnation of the core's directory, under which the archive has the segment."""


class SegmentOpened(Message, tag=70, frozen=True):
    """Carries the segment file's descriptor, read-only. `tag` is 0 when it precedes the first Deliver of that segment."""

    tag: int
    topic: str
    segment_seq: int
    size_bytes: int
    is_sealed: bool = True
    """False: the file is a log that becomes the segment. It grows; only bundles whose places were said may be read, and nothing behind
    them: what is reserved there goes with the seal."""
    places: bytes = b""
    """A `base.protocol.places.PLACE` for each bundle that was asked for, if the segment is not sealed."""
