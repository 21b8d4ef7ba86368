"""What a new subscriber says of the archive when it begins there; a part of `subscriber_messages.Register`."""

from __future__ import annotations

import msgspec

ARCHIVED_SEGMENTS_MAX = 16_384
"""Archived segments that one subscriber gets of one core: each flush of its progress writes an entry for each."""
GAP_REASONS = ("damaged", "evicted", "expired", "dropped")
"""The reasons that a `Gap` gives."""


class ArchivedSegment(msgspec.Struct, array_like=True, frozen=True):
    """A segment that has left the disk, as the archive knows it."""

    segment_seq: int
    bundle_count: int
    """0: nobody knows how many it had; then `lost` says why it is gone."""
    size_bytes: int
    skipped: list[tuple[int, int]] = []
    """Bundles before the subscriber's start, as (first, how many)."""
    lost: list[tuple[int, int, str]] = []
    """Bundles that the archive will never have, as (first, how many, reason of a `Gap`); 0: nobody knows how many."""


class ArchivedStart(msgspec.Struct, array_like=True, frozen=True):
    """What of one core a new subscriber is to get from the archive. The disk was looked at first, then the archive."""

    segments: list[ArchivedSegment]
    """Rising by number, from the subscriber's start on. Those that are on the disk are among them, and are delivered from there."""
    on_disk: list[int]
    """Segments that were on the disk and are not listed: if one of them is there no more, the request is refused (`not_stored`)."""
    next_segment_seq: int
    """No segment had this number or a higher one when the disk was looked at."""
