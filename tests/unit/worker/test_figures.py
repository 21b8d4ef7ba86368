"""What a worker shows on the counters page besides its engines (those are seen in the integration tests)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from quiver_actors.clock import SystemClock
from quiver_actors.metrics.figures import ErrorFigure, RowKind, WorkerFigure, WorkerState
from quiver_actors.shm.counters import CountersPage, RowSnapshot
from quiver_actors.shm.names import new_name
from quiver_actors.worker.figures import FigurePublisher, LoopFigures, tell_supervisor
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.loop import PHASE_TRANSITIONS, Phase

LOOP = LoopFigures(sessions=3, arena_bytes=1 << 20, arena_used_bytes=64, loop_gap_ns_max=5, turns=7)


@pytest.fixture
def page() -> Iterator[CountersPage]:
    page = CountersPage.create(new_name(), 2, 2)
    page.writer(1).begin(os.getpid(), 1)
    yield page
    page.unlink()
    page.close()


def publisher_on(page: CountersPage, journal: Journal) -> FigurePublisher:
    return FigurePublisher(page.writer(1), 4, SystemClock(), journal)


def rows(page: CountersPage, kind: RowKind) -> list[RowSnapshot]:
    return [row for row in page.read_region(1).rows if row.kind == kind]


def test_state_and_heartbeat_are_shown_at_once(page: CountersPage) -> None:
    publisher = publisher_on(page, Journal(4))
    before = SystemClock().monotonic_ns()
    publisher.set_state(WorkerState.READY)
    region = page.read_region(1)
    assert region.state == WorkerState.READY
    assert region.heartbeat_ns >= before


def test_worker_row_shows_what_the_loop_knows(page: CountersPage) -> None:
    publisher = publisher_on(page, Journal(4))
    publisher.publish(LOOP, {})
    (row,) = rows(page, RowKind.WORKER)
    assert row.label == "core_4"
    shown = [row.values[figure] for figure in (WorkerFigure.SESSIONS, WorkerFigure.ARENA_BYTES, WorkerFigure.TURNS)]
    assert shown == [3, 1 << 20, 7]
    assert row.values[WorkerFigure.CPU_NS] > 0


def test_last_error_replaces_the_one_before(page: CountersPage) -> None:
    journal = Journal(4)
    publisher = publisher_on(page, journal)
    journal.error("test.failed", "the first")
    publisher.publish(LOOP, {})
    journal.error("test.failed", "the second", topic="default")
    publisher.set_state(WorkerState.FAILED)
    (row,) = rows(page, RowKind.ERROR)
    assert row.label == "the second"
    assert row.values[ErrorFigure.COUNT] == 2
    assert row.values[ErrorFigure.UNIX_NS] > 0


def test_supervisor_is_told_through_a_full_or_closed_pipe_without_waiting() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    tell_supervisor(writer)
    assert os.read(reader, 10) == b"\0"
    while True:
        try:
            os.write(writer, bytes(4096))
        except BlockingIOError:
            break
    tell_supervisor(writer)
    os.close(reader)
    tell_supervisor(writer)
    os.close(writer)


def test_every_phase_has_its_transitions_and_all_lead_to_leaving() -> None:
    assert set(PHASE_TRANSITIONS) == set(Phase)
    for phase in Phase:
        reached, pending = set[Phase](), [phase]
        while pending:
            for following in PHASE_TRANSITIONS[pending.pop()] - reached:
                reached.add(following)
                pending.append(following)
        assert phase is Phase.LEAVING or Phase.LEAVING in reached
        assert phase not in reached
