"""What a worker shows on the counters page besides its engines (those are seen in the integration tests)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from quiver_actors.base.clock import SystemClock
from quiver_actors.base.metrics.figures import ErrorFigure, RowKind, SubscriberFigure, WorkerFigure, WorkerState
from quiver_actors.node.worker.figures import FigurePublisher, LoopFigures, tell_supervisor
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.lifecycle import PHASE_TRANSITIONS, Phase
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.shm.counters import CountersPage, RowSnapshot
from quiver_actors.shm.names import new_name
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

LOOP = LoopFigures(sessions=3, arena_bytes=1 << 20, arena_used_bytes=64, loop_gap_ns_max=5, turns=7)


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Iterator[CountersPage]:
    page = CountersPage.create(new_name(), 2, getattr(request, "param", 2))
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


def host_with(names: Iterable[str]) -> tuple[EngineDriver, EngineHost]:
    """A host with these subscribers."""
    driver = EngineDriver(SimDisk())
    for name in names:
        driver.engine.registrations.register(name, "earliest")
    host = EngineHost(
        driver.engine,
        commit=lambda *_: None,
        commit_lone=lambda *_: None,
        background=lambda *_: None,
        ask=lambda *_: None,
        cold=lambda *_: None,
        own_log="decisions",
        journal=Journal(0),
        run_queue=RunQueue(),
    )
    return driver, host


def lags_on(page: CountersPage) -> list[int]:
    return [row.values[SubscriberFigure.LAG_BUNDLES] for row in rows(page, RowKind.SUBSCRIBER)]


def is_intake_shown_as_stopped(page: CountersPage) -> bool:
    (row,) = rows(page, RowKind.WORKER)
    return row.values[WorkerFigure.INTAKE_STOPPED] == 1


@pytest.mark.parametrize("page", [128], indirect=True)
def test_who_is_told_that_intake_has_stopped_sees_how_all_subscribers_stand(page: CountersPage) -> None:
    """Regression: figures of subscribers without a consumer were up to a second old, so `quiver drain` could end the node before it saw
    what those subscribers were owed."""
    driver, host = host_with(f"s{number:02}" for number in range(100))
    publisher = publisher_on(page, Journal(4))
    publisher.publish(LOOP, {"default": host}, {host})
    driver.push_numbered(0, 3)
    publisher.publish(replace(LOOP, intake_stopped=True), {"default": host}, {host})
    assert is_intake_shown_as_stopped(page)
    assert lags_on(page) == [3] * 100


@pytest.mark.parametrize("page", [20], indirect=True)
def test_figures_without_a_row_keep_no_others_from_being_shown_and_drain_from_trusting_them(page: CountersPage) -> None:
    """Regression: figures behind the first one without a row stood still, whatever happened."""
    driver, host = host_with(f"s{number:02}" for number in range(30))
    other_driver, other = host_with(["only"])
    hosts = {"other": other, "default": host}
    journal = Journal(4)
    publisher = publisher_on(page, journal)
    publisher.publish(LOOP, {"other": other}, {other})
    for _ in range(2):
        publisher.publish(LOOP, hosts, {host, other})
    assert journal.error_count == 1
    for each in (driver, other_driver):
        each.push_numbered(0, 3)
    for _ in range(10):
        publisher.publish(replace(LOOP, intake_stopped=True), hosts, {host, other})
    assert len(lags_on(page)) > 10
    assert set(lags_on(page)) == {3}
    assert not is_intake_shown_as_stopped(page)


@pytest.mark.parametrize("page", [3], indirect=True)
def test_rows_of_a_deleted_topic_go_also_from_a_full_table(page: CountersPage) -> None:
    """Regression: the rows stayed as long as there were more topics than rows, and later topics had none."""
    hosts = {name: host_with([])[1] for name in ("a", "b", "c")}
    publisher = publisher_on(page, Journal(4))
    publisher.publish(LOOP, hosts, set(hosts.values()))

    def shown() -> set[str]:
        return {row.label for row in rows(page, RowKind.ENGINE)}

    ((gone, *more),) = [sorted(shown())]
    assert not more
    del hosts[gone]
    for _ in range(2):
        publisher.publish(LOOP, hosts, set(hosts.values()))
    assert shown() < hosts.keys()
    assert len(shown()) == 1


@pytest.mark.parametrize("page", [128], indirect=True)
def test_many_subscribers_are_shown_in_turn_and_all_of_them_within_a_second(page: CountersPage) -> None:
    names = {f"s{number:02}" for number in range(100)}
    driver, host = host_with(names)
    publisher = publisher_on(page, Journal(4))

    def lags() -> list[int]:
        return lags_on(page)

    publisher.publish(LOOP, {"default": host}, {host})
    assert {row.label for row in rows(page, RowKind.SUBSCRIBER)} == {f"default/{name}" for name in names}
    driver.push_numbered(0, 3)
    publisher.publish(LOOP, {"default": host}, {host})
    assert sum(lag == 3 for lag in lags()) == 10
    for _ in range(9):
        publisher.publish(LOOP, {"default": host})
    assert lags() == [3] * 100, "also when nothing has happened since"
    for name in sorted(names)[1:]:
        driver.engine.registrations.unregister(name)
    publisher.publish(LOOP, {"default": host}, {host})
    assert [row.label for row in rows(page, RowKind.SUBSCRIBER)] == ["default/s00"]
