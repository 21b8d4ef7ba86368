"""The messages about sealed segments: which there are, and their descriptors."""

from __future__ import annotations

import msgspec

from quiver_actors.protocol.base import Message

# --- client to worker --------------------------------------------------------------------------------------------------


class ListSegments(Message, tag=6, frozen=True):
    tag: int
    topic: str


class OpenSegment(Message, tag=7, frozen=True):
    """Ask for one sealed segment's descriptor; answered by SegmentOpened."""

    tag: int
    topic: str
    segment_seq: int


class BundleTime(Message, tag=20, frozen=True):
    """Ask when a bundle was ingested: Done, whose `value` is UNIX nanoseconds, 0 where that is not known (any more)."""

    tag: int
    topic: str
    segment_seq: int
    bundle_index: int


# --- worker to client --------------------------------------------------------------------------------------------------


class SegmentInfo(msgspec.Struct, array_like=True, frozen=True):
    segment_seq: int
    bundle_count: int
    row_count: int
    size_bytes: int
    first_ingestion_ts_nanos: int
    last_ingestion_ts_nanos: int
    is_checked: bool = True
    """False: it was found at the worker's start and not been read through yet, or one before it was not: subscribers do not get it yet."""
    position_start: int = 0
    position_end: int = 0
    """Log positions: where one segment ends and the next begins at the same, nothing was stored in between, whatever their numbers are.
    Both 0: unknown."""


class SegmentList(Message, tag=69, frozen=True):
    tag: int
    segments: list[SegmentInfo]
    unlisted: tuple[int, ...] = ()
    """Numbers that are to come into this list, or into notices: logs that are not sealed, what is being published, damage to be rescued."""
    next_segment_seq: int = -1
    """No segment has had this number or a higher one; -1: not said."""
    incarnation: str = ""
    """Of the directory that they are in: numbers of another one are of other segments. Empty: not said."""


class SegmentOpened(Message, tag=70, frozen=True):
    """Carries the segment file's descriptor, read-only. `tag` is 0 when it precedes the first Deliver of that segment."""

    tag: int
    topic: str
    segment_seq: int
    size_bytes: int
