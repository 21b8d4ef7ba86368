"""Reading stored bundles by range, without claiming anything: the same range gives the same bytes as long as they are stored.

What a subscriber has not resolved is not deleted, so a consumer that replays ranges keeps a subscriber, reads, and calls `ack_through` when
a range is never needed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quiver_actors.errors import NotStored, UsageError
from quiver_actors.model import BundleId
from quiver_actors.protocol.messages import SegmentInfo


class SegmentPart(NamedTuple):
    """Bundles `[first, end)` of one segment."""

    segment_seq: int
    first: int
    end: int


def parts_of(
    segments: Sequence[SegmentInfo], start: BundleId | None, end: BundleId | None, topic: str, core: int
) -> list[SegmentPart]:
    """The parts of sealed segments that make up `[start, end)`; None: from the first, up to the last stored bundle.

    Raises:
        UsageError: a bound is of another topic or core.
        NotStored: a bundle of the range is not stored any more, or not sealed yet.
    """
    for bound in (start, end):
        if bound is not None and (bound.topic, bound.core) != (topic, core):
            raise UsageError(f"{bound} is not of topic {topic!r} and core {core}")
    stored = {info.segment_seq: info for info in sorted(segments, key=_segment_seq_of)}
    first_seq, first_index = (min(stored, default=0), 0) if start is None else start[2:]
    if end is None:
        last_seq, last_end = (max(stored, default=-1), None)
    else:
        last_seq, last_end = end[2:]
        if last_end == 0:
            last_seq, last_end = last_seq - 1, None
    return list(_parts(stored, (first_seq, first_index), (last_seq, last_end)))


def _parts(
    stored: dict[int, SegmentInfo], first: tuple[int, int], last: tuple[int, int | None]
) -> Iterator[SegmentPart]:
    for segment_seq in range(first[0], last[0] + 1):
        info = stored.get(segment_seq)
        if info is None:
            state = "sealed yet: flush the topic" if not stored or segment_seq > max(stored) else "stored any more"
            raise NotStored(f"segment {segment_seq} of the range is not {state}")
        start = first[1] if segment_seq == first[0] else 0
        end = last[1] if segment_seq == last[0] and last[1] is not None else info.bundle_count
        if end > info.bundle_count:
            raise NotStored(f"segment {segment_seq} ends at bundle {info.bundle_count}: the range goes to {end}")
        if start < end:
            yield SegmentPart(segment_seq, start, end)


def _segment_seq_of(info: SegmentInfo) -> int:
    return info.segment_seq
