"""The version of the catalogue that each worker follows, from the counters page."""

from __future__ import annotations

from quiver_actors.base.metrics.figures import RowKind, WorkerFigure
from quiver_actors.shm.counters import CountersPage
from quiver_actors.supervisor.figures import CHILD_ROW, SUPERVISOR_REGION, ChildFigure, region_of


def topic_versions(page: CountersPage, cores: int) -> dict[str, int | None]:
    """The version of the catalogue that each worker has, by its name; None for one without a process."""
    own = page.read_region(SUPERVISOR_REGION).rows
    children = {row.label: row.values[ChildFigure.PID] for row in own if row.kind == CHILD_ROW}
    found: dict[str, int | None] = {}
    for core in range(cores):
        name, region = f"core_{core}", page.read_region(region_of(core))
        rows = [row for row in region.rows if row.kind == RowKind.WORKER]
        version = rows[0].values[WorkerFigure.TOPICS_VERSION] if rows and region.pid == children.get(name) else 0
        found[name] = version if children.get(name) else None
    return found
