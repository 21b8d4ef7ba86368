"""The load of a node, from the counters page alone: each worker's pressure and disk, and the node's cap."""

from __future__ import annotations

import msgspec

from quiver_actors.store.status.status_view import attach_page
from quiver_actors.supervisor.figures import (
    NO_LIMIT,
    NODE_STORAGE_ROW,
    STORAGE_ROW,
    SUPERVISOR_REGION,
    NodeStorageFigure,
    StorageFigure,
    region_of,
)


class WorkerLoad(msgspec.Struct, kw_only=True):
    """Pressure and disk space of one worker."""

    core: int
    pressure: float
    """0 to 1."""
    used_bytes: int
    grant_bytes: int | None
    """Disk space granted to the worker; None: no limit."""


class NodeLoad(msgspec.Struct, kw_only=True):
    """Pressure and disk space of a node and its workers."""

    workers: list[WorkerLoad]
    used_bytes: int
    cap_bytes: int
    """0 = no cap."""


def take_load(run_dir: str) -> NodeLoad:
    """The load of a node, read from its counters page. Raises NotRunning."""
    page = attach_page(run_dir)
    try:
        workers = []
        for core in range(page.regions - 1):
            for row in page.read_region(region_of(core)).rows:
                if row.kind == STORAGE_ROW:
                    quota = row.values[StorageFigure.QUOTA_SEEN_BYTES]
                    workers.append(
                        WorkerLoad(
                            core=core,
                            pressure=row.values[StorageFigure.PRESSURE_PERMILLE] / 1000,
                            used_bytes=row.values[StorageFigure.USED_BYTES],
                            grant_bytes=None if quota >= NO_LIMIT else quota,
                        )
                    )
        node = [row.values for row in page.read_region(SUPERVISOR_REGION).rows if row.kind == NODE_STORAGE_ROW]
        counted = node[0][NodeStorageFigure.USED_BYTES] if node else 0
        used = counted or sum(worker.used_bytes for worker in workers)
        return NodeLoad(workers=workers, used_bytes=used, cap_bytes=node[0][NodeStorageFigure.CAP_BYTES] if node else 0)
    finally:
        page.close()
