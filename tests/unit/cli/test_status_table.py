from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quiver_actors.cli.status_table import render
from quiver_actors.cli.status_view import (
    ENGINE_STATES,
    WORST_FIRST,
    EngineView,
    ErrorView,
    NodeView,
    SharedMemoryView,
    StatusView,
    SubscriberView,
    WorkerView,
    severity,
    worst,
)
from quiver_actors.metrics.figures import EngineFigure, SubscriberFigure, WorkerFigure, WorkerState

LARGE = 10**10
COLUMNS_MAX = 120


def view(state: str = "ready", *, count: int = 2, running: bool = True) -> StatusView:
    """A node with large figures everywhere."""
    engine: dict[str, Any] = dict.fromkeys(EngineView.__struct_fields__, LARGE)
    subscriber: dict[str, Any] = dict.fromkeys(SubscriberView.__struct_fields__, LARGE)
    return StatusView(
        taken_unix_ns=LARGE,
        node=NodeView(
            state=state,
            running=running,
            ready=running,
            healthy=running,
            problems=[],
            pid=4_000_000,
            data_dir="/var/lib/quiver",
            run_dir="/run/quiver",
            topics=["default"],
            started_unix_ns=LARGE,
            uptime_ns=LARGE,
            figures_age_ns=12_000_000_000,
        ),
        workers=[
            WorkerView(core=core, state=state, process_state="S", pid=4_000_000 + core, cpu=core)
            for core in range(count)
        ],
        engines=[EngineView(**{**engine, "topic": "default", "core": core, "state": state}) for core in range(count)],
        subscribers=[
            SubscriberView(**{**subscriber, "topic": "default", "subscriber": "exporter", "core": core})
            for core in range(count)
        ],
        errors=[ErrorView(core=0, message="x" * 216, count=3, unix_ns=LARGE, age_ns=LARGE)] if count else [],
        shared_memory=SharedMemoryView(arena_bytes=LARGE, arena_used_bytes=1, counters_bytes=1, total_bytes=LARGE),
    )


def test_render_fits_into_a_terminal() -> None:
    assert max(len(line) for line in render(view("recovering"), colour=False).splitlines()) <= COLUMNS_MAX


def test_render_aligns_numbers_to_the_right_under_their_heading() -> None:
    lines = render(view(), colour=False).splitlines()
    heading = next(line for line in lines if line.startswith("WORKER"))
    row = next(line for line in lines if line.startswith("core_1"))
    end = heading.index("PID") + len("PID")
    assert row[:end].endswith("4000001")


@pytest.mark.parametrize(
    ("state", "paint"), [("ready", "\x1b[32m"), ("failed", "\x1b[31m"), ("recovering", "\x1b[33m")]
)
def test_render_in_colour_paints_states_only(state: str, paint: str) -> None:
    text = render(view(state), colour=True)
    assert text.count(paint) == 5
    assert text.replace(paint, "").replace("\x1b[0m", "") == render(view(state), colour=False)


def test_render_without_topics_or_errors_leaves_their_tables_out() -> None:
    status = msgspec.structs.replace(view(count=0), engines=[])
    text = render(status, colour=False)
    assert "WORKER" in text
    assert "TOPIC" not in text
    assert "ERROR" not in text


def test_render_dead_node_says_how_old_its_figures_are() -> None:
    assert "what it said last, 12.0s ago" in render(view("dead", running=False), colour=False)


def test_every_state_has_a_place_in_the_order_of_severity() -> None:
    named = [*ENGINE_STATES.values(), *[state.name.lower() for state in WorkerState]]
    assert {severity(state) for state in named} <= set(range(len(WORST_FIRST)))
    assert worst(["ready", "stopped", "recovering"]) == "stopped"
    assert worst([]) == "ready"


def test_engine_states_are_the_engine_s() -> None:
    engine = pytest.importorskip("quiver_actors.engine")
    assert {state.value: state.name.lower() for state in engine.EngineState} == ENGINE_STATES


@pytest.mark.parametrize(("figures", "shown"), [(EngineFigure, EngineView), (SubscriberFigure, SubscriberView)])
def test_every_figure_is_in_the_document(figures: type[EngineFigure], shown: type[msgspec.Struct]) -> None:
    assert {figure.name.lower() for figure in figures} - {"state"} <= set(shown.__struct_fields__)


def test_every_worker_figure_but_its_turns_is_in_the_document() -> None:
    assert {figure.name.lower() for figure in WorkerFigure} - {"turns"} <= set(WorkerView.__struct_fields__)
