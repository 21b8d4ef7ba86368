"""Whether all that was stored between two positions of a core is still to be had, told by log positions. Pure.

A subscriber keeps only what has not been acknowledged under its name. Where another query acknowledges under the same name, or where the
query was started from a copied or an older checkpoint, bundles that it has not read may be deleted, and there is no gap notice of them.

Numbers do not tell that: a crash makes them jump. But each log begins at the log position where the one before it ended. So offsets keep
the log position of the place where the query stands, and where the first segment behind it begins farther on, something was stored in
between and is gone. The same holds between two segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.flight.contract import CoreContents
from quiver_actors.spark import offsets
from quiver_actors.spark.offsets import Place

_KEPT_FOR_EACH = 8
_FAR_AHEAD = 1 << 52
"""Log positions that are so far apart say nothing: a node that was restored from its archive begins far ahead (`archive.restoring`), and
tells itself what was not archived."""


class LogPositions:
    """The log positions of the last places where a query stood, as far as they are known."""

    def __init__(self) -> None:
        self._known: dict[Place, dict[int, int]] = {}

    def note(self, place: Place, position: int, log_position: int) -> None:
        """Keep what an offset says; the oldest of a core is forgotten."""
        known = self._known.setdefault(place, {})
        known[position] = log_position
        if len(known) > _KEPT_FOR_EACH:
            del known[next(iter(known))]

    def at(self, place: Place, position: int, core: CoreContents | None) -> int | None:
        """The log position there as it was noted, else as the contents of the core tell it; None: nobody knows it."""
        found = self._known.get(place, {}).get(position)
        if found is None and core is not None:
            found = log_position(core, position)
        return found

    def of(self, positions: offsets.Offsets, cores: Mapping[Place, CoreContents]) -> dict[Place, int]:
        """The log positions of all places of an offset that are known. They are kept: what the offset is of may be deleted."""
        found: dict[Place, int] = {}
        for place, position in positions.items():
            log_at = self.at(place, position, cores.get(place))
            if log_at is not None:
                found[place] = log_at
                self.note(place, position, log_at)
        return found


def log_position(core: CoreContents, position: int) -> int | None:
    """Where the log stood at a position of a core; None: not known.

    In the middle of a segment it is the log position of its start: as long as the query stands there, that segment has to be there. In
    front of everything it is the start of what there is.
    """
    if core.is_retired:
        return None
    if not position:
        return _first_of(core)
    segment_seq, index = offsets.bundle_of(position)
    here = next((info for info in core.readable if info.segment_seq == segment_seq), None)
    if here is not None:
        return _end_of(here) if 0 < index == here.bundle_count else _start_of(here)
    if index:
        return None
    if core.unsealed_from is not None and core.unsealed_from[0] == segment_seq:
        return core.unsealed_from[1]
    return _end_in_front(core, segment_seq)


def _end_in_front(core: CoreContents, segment_seq: int) -> int | None:
    """Where the last segment in front of a number ended that was not used, or of which nothing is shown yet."""
    before = next((info for info in reversed(core.readable) if info.segment_seq < segment_seq), None)
    if before is None or any(before.segment_seq <= coming < segment_seq for coming in core.unsettled):
        return None
    # More may come to the last one that is not sealed.
    return _end_of(before) if before.row_count >= 0 or before is not core.readable[-1] else None


def _first_of(core: CoreContents) -> int | None:
    """The log position at which begins what there is of a core, or what comes next."""
    first = next(iter(core.readable), None)
    if first is not None:
        return _start_of(first)
    if core.unsealed_from is None or any(segment_seq < core.unsealed_from[0] for segment_seq in core.unsettled):
        return None
    return core.unsealed_from[1]


def deleted_between(
    core: CoreContents, begin: int, end: int, log_begin: int | None, log_end: int | None
) -> Iterator[range]:
    """Yield the segment numbers among which something was stored that can be had nowhere any more and that no gap notice speaks of.

    Args:
        begin, end: the positions of a micro-batch; everything between them is settled.
        log_begin, log_end: the log positions there; None: not known.
    """
    for numbers in _holes(core, begin, end, log_begin, log_end):
        if not any(gap.segment_seq in numbers for gap in core.gaps):
            yield numbers


def _holes(core: CoreContents, begin: int, end: int, log_begin: int | None, log_end: int | None) -> Iterator[range]:
    number, reached = offsets.bundle_of(begin)[0], log_begin
    for info in core.readable:
        if info.segment_seq < number or offsets.position(info.segment_seq, 0) >= end:
            continue
        if number < info.segment_seq and info.position_end and _is_behind(info.position_start, reached):
            yield range(number, info.segment_seq)
        number, reached = info.segment_seq + 1, _end_of(info)
    last, index = offsets.bundle_of(end)
    stop = last + (index > 0)
    if number < stop and begin < end:
        if _is_behind(log_end, reached):
            yield range(number, stop)
        elif index:
            # Whatever came before it: bundles in front of that one were planned.
            yield range(last, stop)


def past_deleted(core: CoreContents, head: int, log_head: int | None, settled: int) -> int:
    """Behind what was deleted behind a position, if nothing that can be read lies there: then no bundle would make a micro-batch of it.

    Args:
        log_head: the log position at `head`; None: not known.
        settled: how far everything is known.
    """
    if core.unsealed_from is None or core.is_retired:
        return head
    segment_seq, next_log = core.unsealed_from
    behind = min(offsets.position(segment_seq, 0), settled)
    is_last = all(offsets.position(info.segment_seq, info.bundle_count) <= head for info in core.readable)
    return behind if is_last and behind > head and _is_behind(next_log, log_head) else head


def _is_behind(found: int | None, reached: int | None) -> bool:
    return found is not None and reached is not None and 0 < found - reached < _FAR_AHEAD


def _end_of(info: SegmentInfo) -> int | None:
    """Where the log went on behind a segment; None: not known. One that was rescued may have ended anywhere."""
    return info.position_end if info.position_end and not info.lost_count else None


def _start_of(info: SegmentInfo) -> int | None:
    return info.position_start if info.position_end else None
