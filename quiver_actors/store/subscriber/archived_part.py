"""The archived part of a subscriber's bundles: segments that have left the disk, and that it gets from the archive. Pure.

A new subscriber that begins in the archive is told which segments lie there before what is on the disk. Segments that leave the disk before
a subscriber has resolved them follow, if the archive has them and its consumers read the archive. They are segments of its progress
like all others, so their bundles are claimed, leased, resolved and made durable in the same way. Only their files are elsewhere: they are
written down as archived with the progress, so that a start does not take them for lost, and what becomes of files on the disk does not
concern them.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.base.protocol.archived_start import ARCHIVED_SEGMENTS_MAX, GAP_REASONS, ArchivedStart
from quiver_actors.base.ranges import Runs, runs_of
from quiver_actors.errors import NotStored, UsageError
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.progress import ARCHIVED_RUNS_MAX, ArchivedSegments, SegmentProgress

BUNDLES_MAX = 1 << 24
"""Bundles in the archived segments of one subscriber on one core: each flush of its progress writes a bit for each."""
_NONE = ArchivedSegments()


class ArchivedPart(NamedTuple):
    """What a new subscriber is to get from the archive."""

    progress: Mapping[int, SegmentProgress] = {}
    """The segments; as resolved counts what lies before its start."""
    mean_bytes: int = 0
    lost: Sequence[tuple[int, int, int, str]] = ()
    """What the archive will never have, as (segment, first bundle, count, reason); count 0: nobody knows how many."""


class Archived:
    """Which segments of one subscriber are archived ones.

    Attributes:
        numbers: their segment numbers.
        mean_bytes: bytes of one of their bundles, on average.
        is_read: whether its consumers read the archive, as far as they have said: what leaves the disk may follow.
    """

    def __init__(self, segments: ArchivedSegments = _NONE, entries: Mapping[int, SegmentProgress] = {}) -> None:
        """`entries`: those of the progress file that names the segments."""
        self.is_read = segments.is_read
        self.numbers: set[int] = set()
        self.mean_bytes = segments.mean_bytes
        self._run_count = self._bundle_count = 0
        for segment_seq, entry in entries.items():
            if not entry.is_complete and segments.has(segment_seq):
                self._add(segment_seq, entry.bundle_count)

    def begin(self, part: ArchivedPart, awaited: dict[int, SegmentProgress]) -> None:
        """Let a new subscriber get that part. Its segments are `awaited` until they are added."""
        awaited.update(part.progress)
        for segment_seq, progress in part.progress.items():
            self._add(segment_seq, progress.bundle_count)
        self.mean_bytes = part.mean_bytes
        self.is_read = True

    def follow(self, segment_seq: int, bundle_count: int, size_bytes: int, owed: Collection[int] = ()) -> bool:
        """A segment leaves the disk: get it from the archive from now on. Returns whether the subscriber does: it may be too much.

        Args:
            owed: numbers of all segments that the subscriber has not resolved.
        """
        before, after = self._bundle_count, self._bundle_count + bundle_count
        run_count = self._run_count + 1 - self._adjacent(segment_seq)
        if run_count > ARCHIVED_RUNS_MAX:
            numbers = self.numbers | {segment_seq}
            run_count = len(_runs_between(sorted(numbers), set(owed) - numbers))
        is_too_much = len(self.numbers) >= ARCHIVED_SEGMENTS_MAX or after > BUNDLES_MAX or run_count > ARCHIVED_RUNS_MAX
        if is_too_much or not self.is_read:
            return False
        self.mean_bytes = (self.mean_bytes * before + size_bytes) // max(1, after)
        self._add(segment_seq, bundle_count)
        return True

    def finish(self, segment_seq: int, bundle_count: int) -> None:
        """Forget a segment, if it is one of them: nothing of it is wanted any more."""
        if segment_seq in self.numbers:
            self.numbers.remove(segment_seq)
            self._run_count -= 1 - self._adjacent(segment_seq)
            self._bundle_count -= bundle_count

    def _add(self, segment_seq: int, bundle_count: int) -> None:
        self._run_count += 1 - self._adjacent(segment_seq)
        self._bundle_count += bundle_count
        self.numbers.add(segment_seq)

    def _adjacent(self, segment_seq: int) -> int:
        return (segment_seq - 1 in self.numbers) + (segment_seq + 1 in self.numbers)

    def __contains__(self, segment_seq: int) -> bool:
        return segment_seq in self.numbers

    def among(self, known: Collection[int]) -> list[int]:
        """The archived segments that are among those, ascending."""
        return sorted(self.numbers.intersection(known)) if self.numbers else []

    def segments_of(self, numbers: Iterable[int], entries: Mapping[int, SegmentProgress]) -> ArchivedSegments:
        """Return the archived segments of these rising numbers, as a progress file with these entries names them.

        Runs reach over numbers that have no entry, or a complete one: so there are never more of them than at the beginning, in whatever
        order segments are resolved.
        """
        archived = list(numbers)
        others = {seq for seq, entry in entries.items() if not entry.is_complete}.difference(archived)
        return ArchivedSegments(tuple(_runs_between(archived, others)), self.mean_bytes, self.is_read)


def _runs_between(numbers: Iterable[int], others: Iterable[int]) -> Runs:
    """Runs of these rising numbers that reach over all numbers but the others, none of which is among them."""
    bounds = sorted(others)
    runs: Runs = []
    for number in numbers:
        first = runs[-1][0] if runs else number
        is_near = bool(runs) and number - sum(runs[-1]) < ARCHIVED_SEGMENTS_MAX
        if is_near and bisect.bisect(bounds, first) == bisect.bisect(bounds, number):
            runs[-1] = first, number - first + 1
        else:
            runs.append((number, 1))
    return runs


def plan_archived(start: ArchivedStart, here: Collection[int], next_segment_seq: int) -> ArchivedPart:
    """What of a list of archived segments is to be read from the archive.

    Args:
        here: the segments that the subscriber gets from the disk.
        next_segment_seq: no segment has this number or a higher one.

    Raises:
        NotStored: segments have left the disk since the archive was looked at; it has to be looked at again.
        UsageError: the list is none, or too long.
    """
    _check(start)
    since = range(max(0, start.next_segment_seq), next_segment_seq)
    if len(since) > ARCHIVED_SEGMENTS_MAX or any(seq not in here for seq in (*start.on_disk, *since)):
        raise NotStored("segments have left the disk since the archive was looked at: look again")
    wanted = [segment for segment in start.segments if segment.segment_seq not in here]
    bundle_count = sum(segment.bundle_count for segment in wanted)
    if len(wanted) > ARCHIVED_SEGMENTS_MAX or bundle_count > BUNDLES_MAX:
        raise UsageError(
            f"{len(wanted)} archived segments with {bundle_count} bundles are too many for a subscriber: "
            f"{ARCHIVED_SEGMENTS_MAX} with {BUNDLES_MAX} are possible on a core. Begin with a later start=, or read what is older with "
            "client.read or client.dataset"
        )
    kept = [segment for segment in wanted if segment.bundle_count]
    numbers = [segment.segment_seq for segment in kept]
    if len(runs_of(numbers)) > ARCHIVED_RUNS_MAX:
        raise UsageError("the archived segments have too many gaps between their numbers: begin with a later start=")
    return ArchivedPart(
        {segment.segment_seq: _progress(segment.bundle_count, segment.skipped) for segment in kept},
        sum(segment.size_bytes for segment in kept) // max(1, bundle_count),
        [(segment.segment_seq, *lost) for segment in wanted for lost in segment.lost],
    )


def _check(start: ArchivedStart) -> None:
    """Refuse a list that makes no sense: a client may send anything."""
    last = -1
    for segment in start.segments:
        runs = [*segment.skipped, *((first, count) for first, count, _ in segment.lost)]
        is_valid = (
            last < segment.segment_seq < 1 << 63
            and 0 <= segment.bundle_count <= SEGMENT_BUNDLES_MAX
            and 0 <= segment.size_bytes < 1 << 63
            and len(runs) <= SEGMENT_BUNDLES_MAX
            and all(first >= 0 and count >= 0 and first + count <= SEGMENT_BUNDLES_MAX for first, count in runs)
            and all(reason in GAP_REASONS for _, _, reason in segment.lost)
        )
        if not is_valid:
            raise UsageError(f"archived segment {segment.segment_seq}: its number, counts or bundles are not possible")
        last = segment.segment_seq


def _progress(bundle_count: int, skipped: Runs) -> SegmentProgress:
    bits = 0
    for first, count in skipped:
        bits |= ((1 << count) - 1) << first
    return SegmentProgress(bundle_count, bitmaps.bitmap_of(bits & ((1 << bundle_count) - 1), bundle_count))
