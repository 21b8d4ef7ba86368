"""How far a streaming query may read a core: readable ends, losses, and segments that are still to come. Pure."""

from __future__ import annotations

from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.flight.contract import CoreContents
from quiver_actors.spark import offsets
from quiver_actors.spark.reader import END, head_of


def head_behind(core: CoreContents, known: int, settled: int) -> int:
    """The position behind all that can be read, and behind what is lost next; not past `settled`.

    Where nothing has come since `known` it is that: behind the last bundle of a segment is the same place before and after its seal, and
    to Spark another number would be another micro-batch.
    """
    reached = min(max(known, head_of(core)), settled)
    head = past_gaps(core, reached)
    is_new = any(
        max(known, offsets.position(info.segment_seq, 0)) < min(head, _end_of_segment(info)) for info in core.readable
    )
    return head if is_new or head != reached or head < known else known


def past_gaps(core: CoreContents, head: int) -> int:
    """Behind what is lost next after a position: nothing that is stored, or may be, lies between."""
    ends = [*map(_end_of_segment, core.readable), *(offsets.position(seq + 1, 0) for seq in core.unsettled)]
    for gap in sorted(core.gaps, key=lambda gap: (gap.segment_seq, gap.bundle_index_first)):
        behind = offsets.position(gap.segment_seq + 1, 0)
        if behind > head and not any(head < end <= behind for end in ends):
            head = behind
    return head


def _end_of_segment(info: SegmentInfo) -> int:
    """The position behind the last bundle of a segment that can be read."""
    return offsets.position(info.segment_seq, info.bundle_count)


def end_of(gap: Gap) -> int:
    """The position behind what is lost."""
    if not gap.bundle_count:
        return offsets.position(gap.segment_seq + 1, 0)
    return offsets.position(gap.segment_seq, gap.bundle_index_last) + 1


def settled_until(core: CoreContents, start: int) -> int:
    """How far everything from a position on is known: readable and found whole, gone, or lost with a notice."""
    shown = {info.segment_seq: info.bundle_count for info in core.unsealed}
    ahead = (offsets.position(seq, shown.get(seq, 0)) for seq in core.unsettled if offsets.position(seq + 1, 0) > start)
    return max(start, min(ahead, default=offsets.position(*END)))


def lies_in(begin: offsets.Offsets, end: offsets.Offsets, first: offsets.Offsets, head: offsets.Offsets) -> bool:
    """Whether a micro-batch from `begin` to `end` is in what was looked at, from `first` to `head`."""
    is_behind = all(first.get(place, 0) <= begin.get(place, 0) for place in first)
    return is_behind and all(position <= head.get(place, 0) for place, position in end.items())


def is_in_archive(core: CoreContents, position: int) -> bool:
    """Whether a query that stands there has still to read what has left the disk."""
    return core.archived is not None and 0 < position < offsets.position(max(0, core.disk.first), 0)


def first_unread(core: CoreContents, end: int) -> int:
    """The position from which on the subscriber of a query has acknowledged nothing, lost bundles included; `end` if there is none."""
    lost = [offsets.position(gap.segment_seq, gap.bundle_index_first) for gap in core.gaps]
    return min([*lost, end if core.oldest is None else offsets.position(*core.oldest)])
