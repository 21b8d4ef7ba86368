"""Status documents made by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from quiver_actors.store.status.status_document import (
    EngineView,
    LatencyView,
    NodeView,
    SharedMemoryView,
    StatusView,
    SubscriberView,
    WorkerView,
)


def filled(view: type[msgspec.Struct], base: int, **known: object) -> Any:
    """A view whose number fields count up from `base`."""
    fields: dict[str, object] = {}
    for offset, field in enumerate(msgspec.structs.fields(view)):
        fields[field.name] = known.get(field.name, base + offset)
    return view(**fields)


def node_view(state: str = "ready", problems: list[str] | None = None) -> NodeView:
    healthy = not problems
    return NodeView(
        state=state,
        running=state != "dead",
        ready=state == "ready",
        healthy=healthy,
        problems=problems or [],
        pid=4711,
        data_dir="data",
        run_dir="run",
        topics=["default"],
        started_unix_ns=1,
        uptime_ns=5_000_000_000,
        figures_age_ns=1,
    )


def document(
    *, unix_ns: int = 1_000_000_000, base: int = 100, pid: int = 7, latencies: list[LatencyView] | None = None
) -> StatusView:
    """One worker, one engine, one subscriber."""
    return StatusView(
        taken_unix_ns=unix_ns,
        node=node_view(),
        workers=[filled(WorkerView, base, core=0, state="ready", pid=pid, process_state="S", last_exit=None)],
        engines=[filled(EngineView, base, topic="default", core=0, state="full")],
        subscribers=[filled(SubscriberView, base, topic="default", subscriber="exporter", core=0)],
        errors=[],
        shared_memory=SharedMemoryView(arena_bytes=1, arena_used_bytes=1, counters_bytes=2, total_bytes=3),
        latencies=latencies or [],
    )
