"""Which archived bundles make up a range, in order, each once: those of segments, and those that are known to be lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quiver_actors.archive.manifest import Hole, Segment
from quiver_actors.archive.reading.contents import StreamContents
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.gaps import ARCHIVE_EXPIRED, NEVER_ARCHIVED
from quiver_actors.client.ranges import check_bounds
from quiver_actors.errors import NotStored


class Numbered(NamedTuple):
    """All that the archive knows of one segment number."""

    segment_seq: int
    segment: Segment | None
    """None: nothing of it is archived."""
    holes: tuple[Hole, ...]

    @property
    def bundle_count(self) -> int:
        """Number of bundles, lost ones included. Where nobody knows how many a lost segment had, one stands for all of them."""
        if self.segment is not None:
            return self.segment.bundle_count
        return max(hole.first_bundle + max(1, hole.bundle_count) for hole in self.holes)

    def loss_reason(self, index: int) -> str:
        """Why a bundle of which nothing is stored is lost."""
        for hole in self.holes:
            if hole.bundle_count == 0 or 0 <= index - hole.first_bundle < hole.bundle_count:
                return hole.reason
        return "damaged"

    @property
    def info(self) -> SegmentInfo:
        """The segment in the form in which a worker lists segments. If nothing of it is archived, it has no bytes and no rows."""
        found = self.segment
        if found is None:
            return SegmentInfo(self.segment_seq, self.bundle_count, 0, 0, 0, 0)
        return SegmentInfo(
            self.segment_seq,
            found.bundle_count,
            found.row_count,
            found.size_bytes,
            found.first_ingestion_unix_ns,
            found.last_ingestion_unix_ns,
            True,
            found.position_start,
            found.position_end,
        )


class Piece(NamedTuple):
    """Bundles `[first, end)` of one segment number."""

    numbered: Numbered
    first: int
    end: int


def numbered_in(contents: StreamContents, first_segment_seq: int | None = None) -> dict[int, Numbered]:
    """All that the archive knows, by segment number, rising.

    Where numbers are missing, something may have been stored under them that was gone before the archiver came to it, or that has expired
    in the archive. Unless the log positions prove that nothing was, the first of such numbers stands for all of them, as a hole.

    Args:
        first_segment_seq: what is asked for begins there; None: with the first segment that the archive knows.
    """
    segments = {segment.segment_seq: segment for segment in contents.segments}
    holes: dict[int, list[Hole]] = {}
    for hole in contents.holes:
        holes.setdefault(hole.segment_seq, []).append(hole)
    numbers = sorted(segments.keys() | holes.keys())
    known = [Numbered(seq, segments.get(seq), tuple(holes.get(seq, ()))) for seq in numbers]
    found: dict[int, Numbered] = {}
    before = None if first_segment_seq is None else Numbered(first_segment_seq - 1, None, ())
    for each in known:
        if (
            before is not None
            and before.segment_seq + 1 < each.segment_seq
            and not _adjoin(before.segment, each.segment)
        ):
            missing = max(before.segment_seq + 1, first_segment_seq or 0)
            if missing < each.segment_seq:
                is_expired = missing <= contents.expired_through
                found[missing] = _without_record(missing, ARCHIVE_EXPIRED if is_expired else NEVER_ARCHIVED)
        found[each.segment_seq] = before = each
    if not known and first_segment_seq is not None and first_segment_seq <= contents.expired_through:
        found[first_segment_seq] = _without_record(first_segment_seq, ARCHIVE_EXPIRED)
    return found


def _adjoin(before: Segment | None, behind: Segment | None) -> bool:
    """Whether the log went on with one segment where it stopped with the other; None in front: whether the log begins with it."""
    if behind is None or not behind.position_end:
        return False
    return behind.position_start == (0 if before is None else before.position_end)


def _without_record(segment_seq: int, reason: str) -> Numbered:
    hole = Hole(segment_seq=segment_seq, first_bundle=0, bundle_count=0, row_count=-1, reason=reason, noted_unix_ns=0)
    return Numbered(segment_seq, None, (hole,))


def pieces_of(contents: StreamContents, start: BundleId | None, end: BundleId | None) -> list[Piece]:
    """The pieces of `[start, end)`; None: from the first bundle that the archive knows of, up to its last.

    Raises:
        UsageError: as `check_bounds`.
        NotStored: some of the range is not archived.
    """
    key = contents.key
    check_bounds(key.topic, key.core, start, end)
    first = (0, 0) if start is None else start[2:]
    stop = (contents.archived_through + 1, 0) if end is None else end[2:]
    if first >= stop:
        return []
    last = stop[0] if stop[1] else stop[0] - 1
    if last > contents.archived_through:
        raise NotStored(
            f"segment {last} of topic {key.topic!r}, core {key.core}, is not archived yet: the archive ends with segment "
            f"{contents.archived_through}"
        )
    return list(_pieces(numbered_in(contents, None if start is None else first[0]), first, stop))


def _pieces(known: dict[int, Numbered], first: tuple[int, int], stop: tuple[int, int]) -> Iterator[Piece]:
    for seq, numbered in known.items():
        start = first[1] if seq == first[0] else 0
        end = stop[1] if seq == stop[0] else numbered.bundle_count
        if _is_of_unknown_length(numbered) and (seq, start) < stop:
            end = start + 1
        if not first[0] <= seq <= stop[0] or start >= end:
            continue
        if end > numbered.bundle_count and not _is_of_unknown_length(numbered):
            raise NotStored(f"segment {seq} ends at bundle {numbered.bundle_count}: the range goes to {end}")
        yield Piece(numbered, start, end)


def _is_of_unknown_length(numbered: Numbered) -> bool:
    return numbered.segment is None and any(hole.bundle_count == 0 for hole in numbered.holes)
