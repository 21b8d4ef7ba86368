"""Gathers the state of a node without asking a process: from `node.json`, the supervisor's lock, the counters page and /proc.

Everything here works while workers are stopped, hang or are dead, and while the supervisor is. Figures carry their age: a process
that does not run does not update them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from quiver_actors.base.metrics.figures import (
    EngineFigure,
    ErrorFigure,
    RowKind,
    SubscriberFigure,
    WorkerFigure,
    WorkerState,
)
from quiver_actors.base.metrics.latency import BUCKETS, SUM_WORD
from quiver_actors.shm.counters import CountersPage, RegionSnapshot, RowSnapshot
from quiver_actors.store.status.advice import advice_on, problems_of_topics
from quiver_actors.store.status.archive_view import archive_of
from quiver_actors.store.status.node_page import find_node
from quiver_actors.store.status.room import LIMIT_NAMES, advice_on_room, quarantined, waiting_for_room
from quiver_actors.store.status.status_document import (
    EngineView,
    ErrorView,
    LatencyView,
    NodeView,
    SharedMemoryView,
    StatusView,
    SubscriberView,
    WorkerView,
    severity,
    worst,
)
from quiver_actors.store.status.status_storage import (
    cores_of,
    losses_of,
    place_of,
    retention_of,
    shares_of,
    storage_of,
)
from quiver_actors.supervisor.exitcodes import describe_wait_status
from quiver_actors.supervisor.figures import CHILD_ROW, SUPERVISOR_REGION, ChildFigure, NodeState, region_of
from quiver_actors.supervisor.process import STOPPED_STATES, process_state
from quiver_actors.supervisor.state import ChildState

FRESH_NS = 3_000_000_000
"""Older figures of a process that is said to run mean that it does not get to publish them: it is called silent."""

_ENGINE_WORDS = ("recovering", "ready", "full", "draining", "failed", "closed", "degraded", "throttled")
ENGINE_STATES = dict(enumerate(_ENGINE_WORDS, 1))
"""Names of `engine.EngineState`, which cannot be imported here: engines load pyarrow."""

_WORKER_STATES = {state.value: state.name.lower() for state in WorkerState} | {WorkerState.STOPPED.value: "ended"}
_NODE_STATES = {state.value: state.name.lower() for state in NodeState} | {NodeState.STOPPED.value: "ended"}
_SUPERVISED_STATES = {
    ChildState.BACKOFF.value: "restarting",
    ChildState.HUNG.value: "hung",
    ChildState.FAILED.value: "failed",
    ChildState.STOPPED.value: "ended",
}
"""Where the supervisor's word goes before the worker's own; in the other states the worker's is the more exact one."""


def take_status(run_dir: str) -> StatusView:
    """Look at the node that `run_dir` belongs to.

    Raises:
        NotRunning: no node has been started there, or nothing is left of it.
    """
    record, running, page = find_node(run_dir)
    try:
        regions = page.read()
        return _View(run_dir, record, regions, running, page.size_bytes).whole()
    finally:
        page.close()


def status_from(place: str, record: dict[str, Any], regions: list[RegionSnapshot]) -> StatusView:
    """The document of figures that were read at one time; `record` is like `node.json`."""
    return _View(place, record, regions, True, 0).whole()


def attach_page(run_dir: str) -> CountersPage:
    """The node's counters page, to be looked at also after the node has ended. The caller closes it.

    Raises:
        NotRunning: there is none.
    """
    return find_node(run_dir)[2]


def worker_exits(page: CountersPage) -> dict[str, str]:
    """How the last process of each worker ended, by the worker's name; those that never ended are left out."""
    rows = _rows(page.read_region(SUPERVISOR_REGION), CHILD_ROW)
    exits = {row.label: _last_exit(row.values[ChildFigure.LAST_EXIT]) for row in rows}
    return {name: how for name, how in exits.items() if how is not None}


class _View:
    """A look at the node: the regions that were read at one time, and the document made of them."""

    def __init__(
        self, run_dir: str, record: dict[str, Any], regions: list[RegionSnapshot], running: bool, page_bytes: int
    ) -> None:
        self._run_dir = run_dir
        self._record = record
        self._regions = regions
        self._running = running
        self._page_bytes = page_bytes
        self._unix_ns = time.time_ns()
        self._monotonic_ns = time.monotonic_ns()

    def whole(self) -> StatusView:
        workers = sorted(self._workers(), key=lambda worker: (severity(worker.state), worker.core))
        engines = sorted(self._engines(workers), key=lambda engine: (severity(engine.state), engine.topic, engine.core))
        archiver = archive_of(self._run_dir, self._unix_ns)
        status = StatusView(
            taken_unix_ns=self._unix_ns,
            node=self._node(workers, engines),
            workers=workers,
            engines=engines,
            subscribers=sorted(
                self._subscribers(), key=lambda each: (-each.lag_bundles, each.topic, each.subscriber, each.core)
            ),
            errors=sorted(self._errors(), key=lambda error: error.age_ns),
            shared_memory=self._shared_memory(workers),
            latencies=sorted(_latencies_of(self._cores()), key=lambda each: (each.topic, each.core, each.of)),
            storage=storage_of(self._regions[SUPERVISOR_REGION]),
            cores=sorted(cores_of(self._regions), key=lambda each: (-each.pressure, each.core)),
            retention=sorted(retention_of(self._regions), key=lambda each: (each.topic, each.core)),
            losses=sorted(losses_of(self._regions), key=lambda each: (each.topic, each.core, each.reason)),
            shares=shares_of(self._regions),
            archives=archiver.archives,
            archive_streams=archiver.archive_streams,
        )
        if status.node.running:
            status.node.warnings = [*waiting_for_room(status), *quarantined(status), *archiver.warnings()]
            status.node.advice += advice_on_room(status)
        return status

    # --- the node --------------------------------------------------------------------------------------------------------

    def _node(self, workers: list[WorkerView], engines: list[EngineView]) -> NodeView:
        region = self._regions[SUPERVISOR_REGION]
        state = self._node_state(region)
        problems = self._problems(state, workers, engines)
        if state == "ready" and problems:
            state = "degraded"
        states = [*(each.state for each in workers), *(each.state for each in engines)]
        serving = any(worker.state in ("ready", "degraded") for worker in workers)
        was_ready = region.state in (NodeState.READY, NodeState.DEGRADED)
        return NodeView(
            state=state,
            running=self._running,
            ready=self._running and was_ready and serving,
            healthy=self._running and not problems,
            problems=problems,
            pid=region.pid,
            data_dir=str(self._record.get("data_dir", "")),
            run_dir=self._run_dir,
            topics=[str(topic) for topic in self._record.get("topics", [])],
            started_unix_ns=region.started_unix_ns,
            uptime_ns=self._since(region.started_unix_ns) if self._running else None,
            figures_age_ns=self._age(region),
            advice=advice_on(states if state == "degraded" else [state]),
        )

    def _node_state(self, region: RegionSnapshot) -> str:
        if not self._running:
            return "dead"
        if process_state(region.pid) in STOPPED_STATES:
            return "stopped"
        return "silent" if self._is_old(region) else _NODE_STATES.get(region.state, "unknown")

    def _problems(self, state: str, workers: list[WorkerView], engines: list[EngineView]) -> list[str]:
        found = [] if state in ("ready", "degraded") else [f"the supervisor is {state}"]
        found += [f"worker core_{worker.core} is {worker.state}" for worker in workers if worker.state != "ready"]
        return found + problems_of_topics(engines)

    # --- workers ---------------------------------------------------------------------------------------------------------

    def _workers(self) -> list[WorkerView]:
        rows = {row.label: row for row in _rows(self._regions[SUPERVISOR_REGION], CHILD_ROW)}
        return [self._worker(core, rows.get(f"core_{core}")) for core in range(len(self._regions) - 1)]

    def _worker(self, core: int, row: RowSnapshot | None) -> WorkerView:
        region = self._regions[region_of(core)]
        values = row.values if row else (0,) * len(ChildFigure)
        pid = values[ChildFigure.PID]
        kernel_state = process_state(pid) if pid and self._running else None
        worker = WorkerView(
            core=core,
            state=self._worker_state(values, region, kernel_state),
            process_state=kernel_state,
            pid=pid or None,
            cpu=values[ChildFigure.CPU] - 1 if values[ChildFigure.CPU] else None,
            restarts=values[ChildFigure.RESTARTS],
            last_exit=_last_exit(values[ChildFigure.LAST_EXIT]),
            figures_age_ns=self._age(region),
        )
        if pid and region.pid == pid:
            worker.started_unix_ns = region.started_unix_ns
            worker.uptime_ns = self._since(region.started_unix_ns) if self._running else None
        self._add_own_figures(worker, region)
        return worker

    def _worker_state(self, supervised: tuple[int, ...], region: RegionSnapshot, kernel_state: str | None) -> str:
        if not self._running:
            return "dead"
        told = _SUPERVISED_STATES.get(supervised[ChildFigure.STATE])
        if told is not None:
            return told
        if kernel_state in STOPPED_STATES:
            return "stopped"
        if region.pid != supervised[ChildFigure.PID] or not region.state:
            return "starting"
        if region.state in (WorkerState.READY, WorkerState.DEGRADED) and self._is_old(region):
            return "silent"
        return _WORKER_STATES.get(region.state, "unknown")

    def _add_own_figures(self, worker: WorkerView, region: RegionSnapshot) -> None:
        for row in _rows(region, RowKind.WORKER):
            worker.cpu_ns = row.values[WorkerFigure.CPU_NS]
            worker.sessions = row.values[WorkerFigure.SESSIONS]
            worker.pushes_waiting = row.values[WorkerFigure.PUSHES_WAITING]
            worker.arena_bytes = row.values[WorkerFigure.ARENA_BYTES]
            worker.arena_used_bytes = row.values[WorkerFigure.ARENA_USED_BYTES]
            worker.loop_gap_ns_max = row.values[WorkerFigure.LOOP_GAP_NS_MAX]
            worker.intake_stopped = row.values[WorkerFigure.INTAKE_STOPPED] == 1
            worker.topics_version = row.values[WorkerFigure.TOPICS_VERSION]
            worker.segments_pruned = row.values[WorkerFigure.SEGMENTS_PRUNED]
            if worker.intake_stopped and worker.state in ("ready", "degraded"):
                worker.state = "draining"
        published_ns = (worker.uptime_ns or 0) - (worker.figures_age_ns or 0)
        if published_ns > 0:
            worker.cpu_percent = round(100 * worker.cpu_ns / published_ns, 1)

    # --- what the workers keep -------------------------------------------------------------------------------------------

    def _engines(self, workers: list[WorkerView]) -> list[EngineView]:
        state_of = {worker.core: worker.state for worker in workers}
        return [
            self._engine(core, region, row, state_of[core])
            for core, region in self._cores()
            for row in _rows(region, RowKind.ENGINE)
        ]

    def _engine(self, core: int, region: RegionSnapshot, row: RowSnapshot, worker_state: str) -> EngineView:
        own = ENGINE_STATES.get(row.values[EngineFigure.STATE], "unknown")
        # What a worker said of its engine before it died or stopped no longer holds.
        gone = worker_state in ("dead", "failed", "hung", "silent", "stopped", "restarting")
        topic, core = place_of(row.label, core)
        return EngineView(
            topic=topic,
            core=core,
            state=worst([own, worker_state]) if gone else own,
            stored_bytes=row.values[EngineFigure.SEGMENT_BYTES] + row.values[EngineFigure.WAL_BYTES],
            in_since_unix_ns=region.started_unix_ns,
            cold_moved=row.values[EngineFigure.COLD_WORK] // 2,
            cold_away=row.values[EngineFigure.COLD_WORK] % 2,
            limit_name=LIMIT_NAMES.get(row.values[EngineFigure.LIMIT], "unknown"),
            figures_age_ns=self._age(region),
            last_scrub_age_ns=self._since(row.values[EngineFigure.LAST_SCRUB_UNIX_NS]),
            oldest_prepared_age_ns=self._since(row.values[EngineFigure.OLDEST_PREPARED_UNIX_NS]),
            **_figures(row, EngineFigure, EngineView),
        )

    def _subscribers(self) -> list[SubscriberView]:
        return [
            self._subscriber(core, region, row)
            for core, region in self._cores()
            for row in _rows(region, RowKind.SUBSCRIBER)
        ]

    def _subscriber(self, core: int, region: RegionSnapshot, row: RowSnapshot) -> SubscriberView:
        label, _, subscriber = row.label.partition("/")
        topic, core = place_of(label, core)
        oldest_unix_ns = row.values[SubscriberFigure.OLDEST_UNIX_NS]
        return SubscriberView(
            topic=topic,
            subscriber=subscriber,
            core=core,
            figures_age_ns=self._age(region),
            oldest_age_ns=self._since(oldest_unix_ns),
            detached_ns=self._since(row.values[SubscriberFigure.DETACHED_SINCE_UNIX_NS]),
            **_figures(row, SubscriberFigure, SubscriberView),
        )

    def _errors(self) -> list[ErrorView]:
        return [
            ErrorView(
                core=core,
                message=row.label,
                count=row.values[ErrorFigure.COUNT],
                unix_ns=row.values[ErrorFigure.UNIX_NS],
                age_ns=self._since(row.values[ErrorFigure.UNIX_NS]) or 0,
            )
            for core, region in self._cores()
            for row in _rows(region, RowKind.ERROR)
        ]

    def _shared_memory(self, workers: list[WorkerView]) -> SharedMemoryView:
        # A dead node's arenas went with its workers, whatever the page still says.
        arena_bytes = sum(worker.arena_bytes for worker in workers) if self._running else 0
        return SharedMemoryView(
            arena_bytes=arena_bytes,
            arena_used_bytes=sum(worker.arena_used_bytes for worker in workers) if self._running else 0,
            counters_bytes=self._page_bytes,
            total_bytes=arena_bytes + self._page_bytes,
        )

    # --- times -----------------------------------------------------------------------------------------------------------

    def _cores(self) -> list[tuple[int, RegionSnapshot]]:
        return list(enumerate(self._regions[region_of(0) :]))

    def _age(self, region: RegionSnapshot) -> int | None:
        return max(0, self._monotonic_ns - region.heartbeat_ns) if region.heartbeat_ns else None

    def _is_old(self, region: RegionSnapshot) -> bool:
        return (self._age(region) or 0) > FRESH_NS

    def _since(self, unix_ns: int) -> int | None:
        return max(0, self._unix_ns - unix_ns) if unix_ns else None


_Figure = TypeVar("_Figure", EngineFigure, SubscriberFigure)


def _figures(row: RowSnapshot, figures: type[_Figure], view: type[msgspec.Struct]) -> dict[str, Any]:
    """The values of a row for which `view` has a field, by the names of the figures."""
    named = {figure.name.lower(): row.values[figure] for figure in figures if figure.name != "STATE"}
    return {name: value for name, value in named.items() if name in view.__struct_fields__}


def _last_exit(figure: int) -> str | None:
    return describe_wait_status(figure - 1) if figure else None


def _rows(region: RegionSnapshot, kind: int) -> list[RowSnapshot]:
    return [row for row in region.rows if row.kind == kind]


def _latencies_of(cores: Iterable[tuple[int, RegionSnapshot]]) -> list[LatencyView]:
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
