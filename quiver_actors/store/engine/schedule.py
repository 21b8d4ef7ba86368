"""The background work of one engine: one job at a time, which is next, and who takes it back.

Owner: the engine, on the loop thread; the jobs run on the seal thread. Each kind of work is one `Line` of a table, the most
important first. A job that only found no room is made again after a while; any other error fails the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from quiver_actors.base.clock import Clock
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.events import Event
from quiver_actors.store.files.ballast import Ballast
from quiver_actors.store.jobs.job import Job

RETRY_SPACE_NS = 250 * MILLISECOND_NS

J = TypeVar("J", bound=Job)
RetryTimes: TypeAlias = dict[type[Job], int]


class Line(NamedTuple, Generic[J]):
    """One kind of background work."""

    kind: type[J]
    make: Callable[[], J | None]
    """The next job of that kind, None if there is nothing to do."""
    finish: Callable[[J], list[Event]]
    """Takes a job back that was done."""
    in_drain: bool = False
    """The work goes on while the engine is draining."""
    spends_ballast: bool = False
    """The work must go on also on a full disk."""
    no_room: Callable[[J], list[Event]] | None = None
    """Takes a job back that found no room on the disk."""
    retry_ns: int = RETRY_SPACE_NS
    """How long a job of that kind that found no room is not tried again, in nanoseconds."""
    due_ns: Callable[[], int | None] | None = None
    """When there will be something to do, as far as only time decides about it."""
    among: Sized | None = None
    """There is nothing to do while this is empty."""


class Schedule:
    """Chooses the next background job of one engine by a table of lines, and returns finished jobs to their lines."""

    def __init__(
        self,
        clock: Clock,
        condition: Condition,
        ballast: Ballast,
        lines: Sequence[Line[Any]],
        retry_ns: RetryTimes | None = None,
    ) -> None:
        """
        Args:
            lines: the most important one first.
            retry_ns: the time before which no job of a kind is made, by kind; `lines` may write it too.
        """
        self._clock = clock
        self._condition = condition
        self._ballast = ballast
        self._lines = lines
        self._job: Job | None = None
        self._retry_ns: RetryTimes = {} if retry_ns is None else retry_ns

    @property
    def is_idle(self) -> bool:
        """Whether no job is under way."""
        return self._job is None

    def next(self) -> Job | None:
        """The next job, None if there is nothing to do or one is under way."""
        if self._job is not None or self._condition.is_over:
            return None
        # Asked many times a second: what is the same for all lines is looked at once.
        now_ns, retry_ns, is_draining = self._clock.monotonic_ns(), self._retry_ns, self._condition.is_draining
        for line in self._lines:
            if (is_draining and not line.in_drain) or (retry_ns and now_ns < retry_ns.get(line.kind, 0)):
                continue
            if line.among is not None and not line.among:
                continue
            job: Job | None = line.make()
            if job is not None:
                job.ballast = self._ballast if line.spends_ballast else None
                self._job = job
                return job
        return None

    def finish(self, job: Job) -> list[Event]:
        """Take back a job that was run."""
        self._job = None
        line = next(line for line in self._lines if isinstance(job, line.kind))
        if job.error is None:
            return line.finish(job)
        if not job.no_space:
            return self._condition.fail(job.error)
        self.postpone(line.kind, line.retry_ns)
        return line.no_room(job) if line.no_room else []

    def postpone(self, kind: type[Job], wait_ns: int) -> None:
        """Try no job of that kind for so long."""
        self._retry_ns[kind] = self._clock.monotonic_ns() + wait_ns

    def deadlines_ns(self) -> list[int]:
        """When `next` should be asked even if nothing else happens."""
        now_ns = self._clock.monotonic_ns()
        deadlines = [at for at in self._retry_ns.values() if at > now_ns]
        # While a job is out no other is made: what is due then is looked at when it comes back.
        for line in self._lines if self._job is None else ():
            due_ns = line.due_ns() if line.due_ns else None
            if due_ns is not None:
                deadlines.append(max(due_ns, self._retry_ns.get(line.kind, 0)))
        return deadlines
