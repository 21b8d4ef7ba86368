"""How much of what is there one micro-batch takes. Limits are soft by one bundle: a bundle is never cut, and one always goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from quiver_actors.flight.contract import AskWeights, CoreContents, Weights
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.spark import offsets
from quiver_actors.spark.nodes import NodeSet
from quiver_actors.spark.offsets import Place


@dataclass
class Budget:
    """What is left of a micro-batch; None: no limit. The first bundle is always taken."""

    rows: int | None
    size_bytes: int | None
    is_used: bool = False

    def has_room(self, rows: int, size_bytes: int) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.size_bytes is None or size_bytes <= self.size_bytes)

    @property
    def is_spent(self) -> bool:
        return self.rows == 0 or self.size_bytes == 0

    def take(self, rows: int, size_bytes: int) -> None:
        self.is_used = True
        self.rows = None if self.rows is None else max(0, self.rows - rows)
        self.size_bytes = None if self.size_bytes is None else max(0, self.size_bytes - size_bytes)


class Weigher:
    """Asks nodes what the bundles of a segment weigh, once a segment."""

    def __init__(self, nodes: NodeSet, topic: str, slots: list[int] | None) -> None:
        self._nodes = nodes
        self._topic = topic
        self._slots = slots
        self.of_segment = lru_cache(maxsize=256)(self._ask)

    def _ask(self, place: Place, segment_seq: int) -> Weights:
        request = AskWeights(self._topic, place.core, segment_seq, self._slots)
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
            end = _taken(place, info, ends[place], budget, weigher)
            if end < offsets.position(info.segment_seq + 1, 0):
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
        for info in sorted(core.segments, key=lambda info: info.segment_seq)
        if offsets.position(info.segment_seq + 1, 0) > start and offsets.position(info.segment_seq, 0) < head
    ]


def _taken(place: Place, info: SegmentInfo, start: int, budget: Budget, weigher: Weigher) -> int:
    """The position up to which a segment fits into the budget."""
    begin = offsets.position(info.segment_seq, 0)
    first = max(0, start - begin)
    if first == 0 and budget.has_room(info.row_count, info.size_bytes):
        budget.take(info.row_count, info.size_bytes)
        return offsets.position(info.segment_seq + 1, 0)
    weights = weigher.of_segment(place, info.segment_seq)
    index = first
    while index < info.bundle_count:
        rows, size_bytes = weights.rows[index], weights.size_bytes[index]
        if budget.is_used and not budget.has_room(rows, size_bytes):
            break
        budget.take(rows, size_bytes)
        index += 1
    return offsets.position(info.segment_seq, index, info.bundle_count)
