"""The values that the supervisor gives a worker at its fork."""

from __future__ import annotations

import dataclasses

from quiver_actors.base.config import NodeSettings
from quiver_actors.shm.counters import CountersPage, RegionWriter


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerContext:
    """Input of a worker process: `quiver_actors.node.worker.entry.main(context)` is its whole life."""

    core: int
    cores: int
    """Number of workers of the node."""
    settings: NodeSettings
    data_dir: str
    """Absolute; exists and is locked by the node."""
    run_dir: str
    """Absolute; `core_<n>.sock` goes here."""
    region: RegionWriter
    """Begun; the worker keeps state, heartbeat and rows up to date."""
    wakeup_fd: int
    """One byte makes the supervisor look at the region's state at once."""
    generation: int = 0
    """Generation of the data directory; see `core_generation`."""
    archiver_bell: int = -1
    """An event descriptor that wakes the node's archiver; -1: there is none."""
    page: CountersPage | None = None
    """Where the supervisor says how much of the disk the worker may have; None: as much as there is."""
