"""The stored bundles that one micro-batch takes. Limits are soft by one bundle: a bundle is never cut, and one is always taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.flight.contract import AskWeights, CoreContents, Weights
from quiver_actors.spark import offsets
from quiver_actors.spark.nodes import NodeSet
from quiver_actors.spark.offsets import Place

_SEGMENTS_KNOWN_MAX = 256


@dataclass
class Budget:
    """Rows and bytes that a micro-batch may still take; None: no limit. The first bundle is always taken."""

    rows: int | None
    size_bytes: int | None
    is_used: bool = False

    def has_room(self, rows: int, size_bytes: int) -> bool:
        """Whether so many rows and stored bytes still fit into the micro-batch."""
        return (self.rows is None or rows <= self.rows) and (self.size_bytes is None or size_bytes <= self.size_bytes)

    @property
    def is_spent(self) -> bool:
        """Whether nothing more fits into the micro-batch."""
        return self.rows == 0 or self.size_bytes == 0

    def take(self, rows: int, size_bytes: int) -> None:
        """Subtract rows and stored bytes; a bundle larger than the rest leaves 0."""
        self.is_used = True
        self.rows = None if self.rows is None else max(0, self.rows - rows)
        self.size_bytes = None if self.size_bytes is None else max(0, self.size_bytes - size_bytes)


class Weigher:
    """Asks nodes what the bundles of segments weigh, once a bundle."""

    def __init__(self, nodes: NodeSet, topic: str, slots: list[int] | None) -> None:
        self._nodes = nodes
        self._topic = topic
        self._slots = slots
        self._known: dict[tuple[Place, int], Weights] = {}

    def of_segment(self, place: Place, info: SegmentInfo) -> Weights:
        """Return what the bundles of a segment weigh, as far as they can be read."""
        known = self._known.pop((place, info.segment_seq), None) or Weights([], [], [])
        if len(known.rows) < info.bundle_count:
            found = self._ask(place, info, len(known.rows))
            known.rows.extend(found.rows)
            known.size_bytes.extend(found.size_bytes)
            known.ingestion_unix_ns.extend(found.ingestion_unix_ns)
        self._known[place, info.segment_seq] = known
        if len(self._known) > _SEGMENTS_KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        return known

    def _ask(self, place: Place, info: SegmentInfo, first: int) -> Weights:
        request = AskWeights(self._topic, place.core, info.segment_seq, self._slots, first, info.bundle_count)
        return self._nodes.get(place.node).weights(request)


def admitted(
    cores: Mapping[Place, CoreContents],
    start: Mapping[Place, int],
    heads: Mapping[Place, int],
    budget: Budget,
    weigher: Weigher,
) -> dict[Place, int]:
    """How far each worker is read: the workers take turns, a segment each, until the budget is used up."""
    ends = {place: start.get(place, 0) for place in cores}
    waiting = {place: _ahead(core, ends[place], heads[place]) for place, core in sorted(cores.items())}
    cut = dict.fromkeys(waiting, False)
    while any(waiting.values()) and not budget.is_spent:
        for place, segments in waiting.items():
            if not segments:
                continue
            info = segments.pop(0)
            end = _taken(place, info, (ends[place], heads[place]), budget, weigher)
            if end < offsets.position(info.segment_seq, info.bundle_count):
                segments.clear()
                cut[place] = True
            ends[place] = max(ends[place], end)
            if budget.is_spent:
                break
    for place, segments in waiting.items():
        if not segments and not cut[place]:
            # What is left up to there is lost bundles.
            ends[place] = max(ends[place], heads[place])
    return ends


def _ahead(core: CoreContents, start: int, head: int) -> list[SegmentInfo]:
    """Segments with bundles from `start` on, before `head`."""
    return [
        info
        for info in core.readable
        if offsets.position(info.segment_seq, info.bundle_count) > start
        and offsets.position(info.segment_seq, 0) < head
    ]


def _taken(place: Place, info: SegmentInfo, between: tuple[int, int], budget: Budget, weigher: Weigher) -> int:
    """The position up to which the bundles of a segment fit into the budget that lie between two positions."""
    begin = offsets.position(info.segment_seq, 0)
    first, stop = max(0, between[0] - begin), min(info.bundle_count, between[1] - begin)
    is_sealed = info.row_count >= 0
    if is_sealed and first == 0 and stop == info.bundle_count and budget.has_room(info.row_count, info.size_bytes):
        budget.take(info.row_count, info.size_bytes)
        return offsets.position(info.segment_seq + 1, 0)
    weights = weigher.of_segment(place, info)
    index = first
    while index < stop:
        rows, size_bytes = weights.rows[index], weights.size_bytes[index]
        if budget.is_used and not budget.has_room(rows, size_bytes):
            break
        budget.take(rows, size_bytes)
        index += 1
    # More may come to a segment that is not sealed: what is behind its last bundle is not behind the segment.
    return offsets.position(info.segment_seq, index, info.bundle_count if is_sealed else None)
