"""Reading stored bundles by range, without claiming anything: the same range gives the same bytes as long as they are stored.

What a subscriber has not resolved is not deleted, so a consumer that replays ranges keeps a subscriber, reads, and calls `ack_through` when
a range is never needed again.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.protocol.places import PLACES_MAX
from quiver_actors.errors import NotStored, UsageError


class SegmentPart(NamedTuple):
    """Bundles `[first, end)` of one segment."""

    segment_seq: int
    first: int
    end: int


def check_bundle_id(given: object) -> None:
    """Raise UsageError: it is not the id of a bundle."""
    if not isinstance(given, BundleId):
        raise UsageError(
            f"{given!r} is no bundle: expected a BundleId, such as `delivery.bundle_id` or `receipt.bundle_id`"
        )


def check_bounds(topic: str, core: int, *bounds: BundleId | None) -> None:
    """Check the ends of a range of stored bundles. Raises UsageError: one is no bundle id, or one of another topic or core."""
    for bound in bounds:
        if bound is None:
            continue
        if not isinstance(bound, BundleId):
            raise UsageError(
                f"a range cannot begin or end at {bound!r}: expected a BundleId, such as `receipt.bundle_id`, or None; `subscribe` and "
                "`dataset` take times"
            )
        if (bound.topic, bound.core) != (topic, core):
            raise UsageError(f"{bound} is not of topic {topic!r} and core {core}")


def parts_of(
    segments: Sequence[SegmentInfo],
    start: BundleId | None,
    end: BundleId | None,
    topic: str,
    core: int,
    known_through: int = -1,
) -> list[SegmentPart]:
    """The parts of segments that make up `[start, end)`; None: from the first, up to the last bundle that can be read.

    Args:
        known_through: all segments up to this number that there ever were are among `segments`.

    Raises:
        UsageError: as `check_bounds`.
        NotStored: a bundle of the range is not stored any more, or cannot be read yet.
    """
    check_bounds(topic, core, start, end)
    stored = {info.segment_seq: info for info in sorted(segments, key=_segment_seq_of)}
    first_seq, first_index = (min(stored, default=0), 0) if start is None else start[2:]
    if end is None:
        last_seq, last_end = (max(stored, default=-1), None)
    else:
        last_seq, last_end = end[2:]
        if last_end == 0:
            last_seq, last_end = last_seq - 1, None
    return list(_parts(stored, (first_seq, first_index), (last_seq, last_end), known_through))


def first_missing(segments: Sequence[SegmentInfo], start: BundleId | None, end: BundleId | None = None) -> int | None:
    """The lowest segment of a range `[start, end)` that these segments lack, or of which bundles are lost there; None: nothing says so.

    Args:
        start: None: the range begins with the first of these segments.
    """
    infos = sorted(segments, key=_segment_seq_of)
    if start is not None and (not infos or start.segment_seq < infos[0].segment_seq):
        return start.segment_seq
    first_seq = 0 if start is None else start.segment_seq
    for before, info in itertools.pairwise([None, *infos]):
        assert info is not None
        if before is not None and before.segment_seq + 1 < info.segment_seq > first_seq and not _follows(before, info):
            found = max(first_seq, before.segment_seq + 1)
        elif before is not None and first_seq <= before.segment_seq and _ends_early(before, info):
            found = before.segment_seq
        elif info.lost_count and info.segment_seq >= first_seq:
            found = info.segment_seq
        else:
            continue
        return found if end is None or found <= end.segment_seq else None
    return None


def _ends_early(before: SegmentInfo, behind: SegmentInfo) -> bool:
    """Whether bundles at the end of a segment are missing: of a rescued one nobody may know how many there were."""
    return before.segment_seq + 1 == behind.segment_seq and 0 < before.position_end < behind.position_start


def _follows(before: SegmentInfo, behind: SegmentInfo) -> bool:
    """Whether nothing was ever stored between two segments: a crash makes numbers jump."""
    return bool(before.position_end) and before.position_end == behind.position_start


def _parts(
    stored: dict[int, SegmentInfo], first: tuple[int, int], last: tuple[int, int | None], known_through: int
) -> Iterator[SegmentPart]:
    numbers = list(stored)
    segment_seq = first[0]
    if segment_seq <= last[0] and last[1] is not None and last[0] not in stored:
        raise _not_stored(stored, last[0])
    while segment_seq <= last[0]:
        info = stored.get(segment_seq)
        if info is None and segment_seq <= known_through:
            # Numbers may be left out by the billion, as a restore does.
            at = bisect.bisect_left(numbers, segment_seq)
            segment_seq = min(numbers[at] if at < len(numbers) else known_through + 1, known_through + 1)
            continue
        if info is None:
            segment_seq = _behind_unused(stored, numbers, segment_seq)
            continue
        start = first[1] if segment_seq == first[0] else 0
        end = last[1] if segment_seq == last[0] and last[1] is not None else info.bundle_count
        if end > info.bundle_count:
            raise NotStored(f"segment {segment_seq} ends at bundle {info.bundle_count}: the range goes to {end}")
        yield from _pieces(SegmentPart(segment_seq, start, end), is_open=info.row_count < 0)
        segment_seq += 1


def _pieces(part: SegmentPart, *, is_open: bool) -> Iterator[SegmentPart]:
    """The part, if it has bundles; of an open segment in pieces whose places fit one message."""
    if is_open:
        for first in range(part.first, part.end, PLACES_MAX):
            yield SegmentPart(part.segment_seq, first, min(part.end, first + PLACES_MAX))
    elif part.first < part.end:
        yield part


def _behind_unused(stored: dict[int, SegmentInfo], numbers: Sequence[int], segment_seq: int) -> int:
    """The next stored segment, if nothing ever had the numbers from `segment_seq` up to it.

    Raises:
        NotStored: something may have had them.
    """
    place = bisect.bisect_left(numbers, segment_seq)
    if not 0 < place < len(numbers):
        raise _not_stored(stored, segment_seq)
    before, behind = stored[numbers[place - 1]], stored[numbers[place]]
    if not _follows(before, behind):
        raise _not_stored(stored, segment_seq)
    return behind.segment_seq


def _not_stored(stored: dict[int, SegmentInfo], segment_seq: int) -> NotStored:
    if not stored or segment_seq > max(stored):
        return NotStored(f"segment {segment_seq} of the range is not to be read yet: nothing of it is durable")
    return NotStored(
        f"segment {segment_seq} of the range is not stored any more: it was deleted or lost; read what is in front of it with `end`, and "
        "what is behind it with `start`"
    )


def _segment_seq_of(info: SegmentInfo) -> int:
    return info.segment_seq
