"""The table of background work: which job is next, when one is tried again, and what an error does."""

from __future__ import annotations

import errno
from typing import Any, TypeVar

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.engine.condition import Condition, EngineState
from quiver_actors.store.engine.events import Event, Failed, Resumed
from quiver_actors.store.engine.schedule import RETRY_SPACE_NS, Line, Schedule
from quiver_actors.store.files.ballast import Ballast
from quiver_actors.store.jobs.job import Job
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import ManualClock


class Errand(Job):
    """Succeeds, or fails with an errno."""

    code = 0

    def work(self) -> None:
        if self.code:
            raise DiskError("write", "somewhere", self.code)


class First(Errand): ...


Kind = TypeVar("Kind", bound=Errand)


class Second(Errand): ...


class Third(Errand): ...


class Bench:
    """A schedule of three kinds of work; `wanted` says of which there is something to do."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.condition = Condition()
        self.wanted: list[type[Errand]] = []
        self.done: list[Job] = []
        self.put_back: list[Job] = []
        self.due_ns: int | None = None
        self.ballast = Ballast(SimDisk(), "quiver.ballast", 0)
        lines: list[Line[Any]] = [
            Line(First, lambda: self.make(First), self.finish, spends_ballast=True, due_ns=lambda: self.due_ns),
            Line(Second, lambda: self.make(Second), self.finish, in_drain=True, no_room=self.no_room, retry_ns=7),
            Line(Third, lambda: self.make(Third), self.finish, in_drain=True),
        ]
        self.schedule = Schedule(self.clock, self.condition, self.ballast, lines)

    def make(self, kind: type[Kind]) -> Kind | None:
        return kind() if kind in self.wanted else None

    def finish(self, job: Job) -> list[Event]:
        self.done.append(job)
        return [Resumed()]

    def no_room(self, job: Job) -> list[Event]:
        self.put_back.append(job)
        return []

    def run(self, code: int = 0) -> tuple[Job, list[Event]]:
        job = self.schedule.next()
        assert isinstance(job, Errand)
        job.code = code
        job.run()
        return job, self.schedule.finish(job)


def test_the_first_line_with_work_is_next_and_one_job_is_out_at_a_time() -> None:
    bench = Bench()
    assert bench.schedule.next() is None
    bench.wanted = [Third, Second]
    job = bench.schedule.next()
    assert isinstance(job, Second)
    assert bench.schedule.next() is None
    assert not bench.schedule.is_idle
    bench.wanted = [Third, First]
    assert bench.schedule.finish(job) == [Resumed()]
    assert bench.done == [job]
    assert isinstance(bench.run()[0], First)


def test_while_draining_only_lines_that_bring_the_drain_about_go_on() -> None:
    bench = Bench()
    bench.wanted = [First, Third]
    bench.condition.enter(EngineState.DRAINING)
    assert isinstance(bench.run()[0], Third)


@pytest.mark.parametrize("state", [EngineState.FAILED, EngineState.CLOSED])
def test_nothing_is_done_once_it_is_over(state: EngineState) -> None:
    bench = Bench()
    bench.wanted = [First, Second, Third]
    bench.condition.enter(state)
    assert bench.schedule.next() is None


def test_only_work_that_must_go_on_may_spend_the_ballast() -> None:
    bench = Bench()
    bench.wanted = [First]
    assert bench.run()[0].ballast is bench.ballast
    bench.wanted = [Second]
    assert bench.run()[0].ballast is None


def test_work_that_found_no_room_is_put_back_and_waits_while_other_work_goes_on() -> None:
    bench = Bench()
    bench.wanted = [Second, Third]
    job, events = bench.run(errno.ENOSPC)
    assert events == []
    assert bench.put_back == [job]
    assert bench.condition.state is EngineState.READY
    assert bench.schedule.deadlines_ns() == [bench.clock.now_ns + 7]
    assert isinstance(bench.run()[0], Third)
    bench.clock.advance(7)
    assert isinstance(bench.run()[0], Second)
    assert bench.schedule.deadlines_ns() == []


def test_work_without_a_wish_of_its_own_waits_the_usual_time_for_room() -> None:
    bench = Bench()
    bench.wanted = [Third]
    bench.run(errno.EDQUOT)
    assert bench.schedule.next() is None
    bench.clock.advance(RETRY_SPACE_NS - 1)
    assert bench.schedule.next() is None
    bench.clock.advance(1)
    assert isinstance(bench.run()[0], Third)


def test_any_other_error_fails_the_engine_for_good() -> None:
    bench = Bench()
    bench.wanted = [Second]
    _, events = bench.run(errno.EIO)
    assert isinstance(events[0], Failed)
    assert "somewhere" in events[0].reason
    assert bench.condition.state is EngineState.FAILED
    assert bench.condition.failure == events[0].reason
    assert not bench.put_back
    assert not bench.done
    bench.clock.advance(RETRY_SPACE_NS)
    assert bench.schedule.next() is None


def test_a_line_that_knows_when_it_is_due_says_so_but_not_before_it_may_be_tried_again() -> None:
    bench = Bench()
    bench.due_ns = bench.clock.now_ns + 5
    assert bench.schedule.deadlines_ns() == [bench.due_ns]
    bench.wanted = [First]
    bench.run(errno.ENOSPC)
    assert set(bench.schedule.deadlines_ns()) == {bench.clock.now_ns + RETRY_SPACE_NS}
    bench.schedule.postpone(First, 3)
    assert bench.due_ns in bench.schedule.deadlines_ns()
