"""What the archive of a node has of a topic on one core that its disk has not, and what neither of them has. Pure.

A core's segments lie on its disk, in the archive, or in both; a range of them is read from the disk where that has them. So what is asked
of the archive is named by what the disk lacks: the numbers in front of its first segment, those that are missing between two others, and
those of which bundles were lost there. A segment of the last kind is read from the archive if that has more of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from quiver_actors.base.protocol.archive_messages import ArchivedHole, RetiredCore
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.archived_reads import has_more_of
from quiver_actors.client.gaps import ARCHIVE_EXPIRED, NEVER_ARCHIVED

Place = tuple[int, int]
"""(segment, bundle)."""
EARLIEST: Place = (0, 0)
NOT_STORED = "neither on the disk nor in the archive"
"""Why bundles are lost of which nobody has kept a record."""


class ArchiveTerms(msgspec.Struct, frozen=True):
    """What the asker wants of a topic that may have left the disk, so that the archive is to be asked for it."""

    starts: dict[int, Place] = {}
    """The first (segment, bundle) by core; other cores begin with the earliest that there is."""
    since_unix_ns: int = 0
    """Nothing that was ingested before is wanted; 0: everything is."""

    def start(self, core: int) -> Place:
        """Where the wanted part of a core begins."""
        return self.starts.get(core, EARLIEST)


class ArchivedNames(msgspec.Struct, frozen=True):
    """Archived segments of one core, as somebody names them who has planned a read of them."""

    incarnation: str
    """Incarnation of the core's directory, under which the archive has them."""
    bundle_counts: dict[int, int]
    """Number of bundles in the whole segment, by its number."""


class ArchivedPart(msgspec.Struct, frozen=True):
    """What the archive has from a segment on. A segment that is on the disk is named only if the archive has more of it."""

    segments: list[SegmentInfo] = []
    """Oldest first. Something of each is archived."""
    holes: list[ArchivedHole] = []
    """Bundles that neither the disk nor the archive has, in the order of their segments, and why."""
    through: int = -1
    """Every segment up to this number is on the disk, archived, or a hole, or there never was one."""

    def accounts_for(self, segment_seq: int) -> bool:
        """Whether the archive has a segment that has left the disk, or tells itself what is lost of it."""
        return any(info.segment_seq == segment_seq for info in self.segments) or any(
            hole.segment_seq == segment_seq for hole in self.holes
        )


class Loss(NamedTuple):
    """Bundles that nobody has any more."""

    segment_seq: int
    first_bundle: int
    bundle_count: int
    """0: nobody knows how many."""
    reason: str

    def __str__(self) -> str:
        count = f"{self.bundle_count} bundles" if self.bundle_count else "all bundles"
        return f"{count} of segment {self.segment_seq} from bundle {self.first_bundle}: {self.reason}"


class DiskNumbers:
    """The segment numbers that a core's disk accounts for. Not changed once it is made."""

    __slots__ = ("_coming", "first", "infos", "numbers", "stop")

    def __init__(self, infos: Sequence[SegmentInfo], coming: Collection[int], next_segment_seq: int) -> None:
        """
        Args:
            infos: segments that can be read, oldest first.
            coming: segments that will still come, or be announced as lost.
            next_segment_seq: what is stored later has this number or a higher one; -1: not known.
        """
        self._coming = coming
        self.infos = infos
        """Segments that can be read, oldest first."""
        self.numbers = sorted({*(info.segment_seq for info in infos), *coming})
        """All numbers, rising."""
        self.stop = max(next_segment_seq, self.numbers[-1] + 1 if self.numbers else -1)
        """The number behind everything that was there when the disk was looked at; -1: not known."""
        self.first = self.numbers[0] if self.numbers else self.stop
        """The oldest number; where there is none, the one behind everything that ever was, or -1: not known."""

    def damaged(self, start: Place) -> list[int]:
        """The numbers from a start on of segments of which bundles are lost here, rising."""
        return [info.segment_seq for info in self.infos if info.lost_count and info.segment_seq >= start[0]]

    def missing(self, start: Place) -> list[range]:
        """The numbers from a start on that the disk does not have, though something may have been stored under them.

        Behind a segment that is still to come nobody reads yet, and not all that is there is shown.
        """
        if self.first < 0:
            return [range(start[0], start[0] + 1)]
        infos = {info.segment_seq: info for info in self.infos}
        found = [range(start[0], self.first)]
        for one, other in itertools.pairwise(self.numbers):
            if other > one + 1 and not adjoin(infos.get(one), infos.get(other)):
                found.append(range(max(one + 1, start[0]), other))
        if self.numbers:
            found.append(range(max(self.numbers[-1] + 1, start[0]), self.stop))
        coming = min((number for number in self._coming if number >= start[0]), default=None)
        return [gap for gap in found if gap and (coming is None or gap.start < coming)]


def adjoin(before: SegmentInfo | None, behind: SegmentInfo | None) -> bool:
    """Whether the log went on with one segment where it stopped with the other: then numbers in between were never used."""
    if before is None or behind is None or not before.position_end:
        return False
    return before.position_end == behind.position_start


def first_wanted(disk: DiskNumbers, terms: ArchiveTerms, core: int, lost: Collection[int]) -> int | None:
    """The segment from which on the archive is to be asked; None: the disk has all that is wanted.

    Args:
        lost: numbers of segments that were announced as lost.
    """
    start = terms.start(core)
    missing = disk.missing(start)
    if terms.since_unix_ns:
        oldest_ns = next((info.first_ingestion_ts_nanos for info in disk.infos), 0)
        # What is in front of the oldest segment was ingested before it.
        missing = [gap for gap in missing if gap.start > disk.first or not 0 < oldest_ns <= terms.since_unix_ns]
    gone = [number for number in {*lost}.difference(disk.numbers) if number >= start[0]]
    return min([*(gap.start for gap in missing), *gone, *disk.damaged(start)], default=None)


def part_in_front(
    disk: DiskNumbers, segments: Collection[SegmentInfo], holes: Collection[ArchivedHole], through: int
) -> ArchivedPart:
    """What counts of a list of the archive, which was made after the disk was looked at: nothing that came in between."""
    stop = disk.stop
    lossy = {info.segment_seq: info for info in disk.infos if info.lost_count}
    better = {
        info.segment_seq
        for info in segments
        if info.segment_seq in lossy and has_more_of(info, holes, lossy[info.segment_seq])
    }
    here = {*disk.numbers} - better

    def counts(segment_seq: int) -> bool:
        return segment_seq not in here and (stop < 0 or segment_seq < stop)

    archived = sorted((info for info in segments if info.size_bytes and counts(info.segment_seq)), key=_number_of)
    return ArchivedPart(archived, [hole for hole in holes if counts(hole.segment_seq)], through)


def end_of_retired(core: RetiredCore, part: ArchivedPart | None) -> int:
    """The number behind every segment of a core that the node does not have any more; -1: neither it nor the archive tells.

    Args:
        part: what the archive has of it from where somebody begins; None: nothing, or it was not asked.
    """
    if part is None or part.through < 0:
        return core.next_segment_seq
    last = part.segments[-1].position_end if part.segments else 0
    # A number that was reserved and never used is none that is missing.
    is_whole = core.next_segment_seq < 0 or 0 < last == core.position_end
    return part.through + 1 if is_whole else core.next_segment_seq


def begins_behind(disk: DiskNumbers, archived: ArchivedPart, start: Place) -> bool:
    """Whether what is asked for begins with bundles that may have been stored, and that nobody has or has kept a record of."""
    if start == EARLIEST or start[0] in disk.numbers or not start[0] < disk.first:
        return False
    if any(start[0] - 1 <= info.segment_seq <= start[0] for info in archived.segments):
        return False
    return not any(hole.segment_seq == start[0] and _is_recorded(hole) for hole in archived.holes)


def losses_in(disk: DiskNumbers, archived: ArchivedPart, start: Place, end: Place) -> Iterator[Loss]:
    """Yield what is lost from `start` up to and not including `end`, as far as disk and archive tell.

    What is lost in front of the earliest that there is was deleted as any old bundle: it is no loss to who asks for the earliest. What
    is lost right where the asker stands, and of which there is no record, is told by `begins_behind`: he may have had it.
    """
    earliest = min((info.segment_seq for info in (*archived.segments, *disk.infos)), default=disk.stop)
    here = {*disk.numbers}
    gone = (info.segment_seq for info in archived.segments if info.segment_seq not in here)
    oldest_archived = min(gone, default=disk.stop)
    for hole in archived.holes:
        behind = (hole.segment_seq, hole.first_bundle + hole.bundle_count)
        if not hole.bundle_count:
            behind = (hole.segment_seq + 1, 0)
        if behind <= start or (hole.segment_seq, hole.first_bundle) >= end:
            continue
        is_recorded = _is_recorded(hole) and start != EARLIEST
        if is_recorded or hole.segment_seq > (earliest if _is_recorded(hole) else oldest_archived):
            yield Loss(hole.segment_seq, hole.first_bundle, hole.bundle_count, hole.reason)
    unrecorded = _unrecorded(disk, archived, start)
    if unrecorded and (unrecorded.start, 0) < end:
        yield Loss(unrecorded.start, 0, 0, NOT_STORED)


def _unrecorded(disk: DiskNumbers, archived: ArchivedPart, start: Place) -> range:
    """The numbers between the archive's last segment and the disk's first that neither accounts for; empty: there are none."""
    in_front = [info for info in archived.segments if info.segment_seq < disk.first]
    behind = disk.infos[0] if disk.infos and disk.infos[0].segment_seq == disk.first else None
    if not in_front or adjoin(in_front[-1], behind):
        return range(0)
    return range(max(start[0], archived.through + 1), max(0, disk.first))


def _is_recorded(hole: ArchivedHole) -> bool:
    """Whether somebody noted that these bundles are lost; if not, a hole stands for all numbers up to the next known one."""
    return bool(hole.bundle_count) or hole.reason not in (NEVER_ARCHIVED, ARCHIVE_EXPIRED)


def _number_of(info: SegmentInfo) -> int:
    return info.segment_seq
