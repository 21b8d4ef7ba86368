"""The part of the status document about durations: one histogram for each topic, core and kind of work."""

from __future__ import annotations

from collections.abc import Iterable

from quiver_actors.base.metrics.figures import RowKind
from quiver_actors.base.metrics.latency import BUCKETS, SUM_WORD
from quiver_actors.shm.counters import RegionSnapshot
from quiver_actors.store.status.status_document import LatencyView
from quiver_actors.store.status.status_storage import place_of


def latencies_of(cores: Iterable[tuple[int, RegionSnapshot]]) -> list[LatencyView]:
    """The histograms of all workers, by core and region of the counters page."""
    return [
        _latency(row.label, core, row.values)
        for core, region in cores
        for row in region.rows
        if row.kind == RowKind.LATENCY
    ]


def _latency(label: str, core: int, values: tuple[int, ...]) -> LatencyView:
    place, _, of = label.rpartition("/")
    topic, core = place_of(place, core)
    return LatencyView(topic=topic, core=core, of=of, counts=list(values[:BUCKETS]), sum_ns=values[SUM_WORD])
