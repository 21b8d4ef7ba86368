"""The blocking work of one engine on its way to the threads and back.

Owner: the engine's host, on the loop thread. Commits go to one thread, work on the cold disk to a second one, and everything else to a
third, so that no sync waits for a seal, and nothing of both for the cold disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from quiver_actors.base.metrics.latency import Histogram, Latency
from quiver_actors.node.worker.easing import Easing
from quiver_actors.node.worker.threads import Submit
from quiver_actors.store.engine import Engine
from quiver_actors.store.jobs.commits import CommitJob, LoneCommit, SealJob
from quiver_actors.store.jobs.job import Job


class EngineJobs:
    """Starts the jobs that one engine asks for, and takes them back."""

    def __init__(
        self,
        engine: Engine,
        *,
        commit: Submit,
        background: Submit,
        cold: Submit,
        finished: Callable[[Job], None],
        easing: Easing,
        oldest_push_ns: Callable[[], int],
        latencies: Mapping[Latency, Histogram],
    ) -> None:
        """
        Args:
            finished: called on the loop thread with a job that is done.
            easing: says whether a commit waits for more pushes.
            oldest_push_ns: arrival time (monotonic ns) of the oldest push that is not acknowledged; 0 if there is none.
        """
        self._engine = engine
        self._commit = commit
        self._background = background
        self._cold = cold
        self._finished = finished
        self.finished_lone: Callable[[LoneCommit], None] = finished
        """The same as `finished` for the commit of a lone push that is done well, without pressure on the worker."""
        self._easing = easing
        self._oldest_push_ns = oldest_push_ns
        self._sync_latency, self._seal_latency = latencies[Latency.SYNC], latencies[Latency.SEAL]
        self._in_flight = 0
        """Number of jobs that the threads have."""
        self._has_ended = False
        self._lone: LoneCommit | None = None
        self._when_idle: Callable[[], None] | None = None

    def start_commit(self) -> None:
        """Hand what was written since the last commit to the disk, unless one is out or the next one waits for more pushes."""
        easing = self._easing
        if self._has_ended or (easing.pressure.steps and easing.delays_commit(self._oldest_push_ns())):
            return
        if (commit := self._engine.next_commit()) is not None:
            self._in_flight += 1
            self._commit(commit, partial(self._back, commit))

    def begin_lone(self, commit: LoneCommit) -> Callable[[], None]:
        """Note that the commit of a lone push is under way; the caller has it carried out, and calls what is returned when it is done."""
        self._in_flight += 1
        self._lone = commit
        return self.finish_lone

    def finish_lone(self) -> None:
        """Take back the commit of a lone push."""
        commit = self._lone
        assert commit is not None, "it is under way"
        if self._has_ended or commit.error is not None or self._easing.pressure.steps:
            self._back(commit)
            return
        self._in_flight -= 1
        self._sync_latency.observe(commit.took_ns)
        self.finished_lone(commit)

    def start(self) -> None:
        """Hand everything that the engine asks for to the threads."""
        self.start_commit()
        while (job := self._engine.next_background()) is not None:
            self._in_flight += 1
            self._background(job, partial(self._back, job))
        # Not counted as under way: the cold disk may never answer, and an engine is closed without waiting for it.
        if not self._has_ended and (job := self._engine.storage.next_cold()) is not None:
            self._cold(job, partial(self._cold_back, job))

    def end(self, when_idle: Callable[[], None]) -> None:
        """Start no more commits, and forget what is under way.

        Args:
            when_idle: called once no job is under way any more.
        """
        self._has_ended, self._when_idle = True, when_idle
        self._finished = self.finished_lone = _nothing
        self._tell_if_idle()

    def remove_cold(self) -> None:
        """Have everything deleted that the engine has on the cold disk: its topic is deleted, and nobody waits for that."""
        if (job := self._engine.storage.remove_cold()) is not None:
            self._cold(job, partial(_nothing, job))

    def _cold_back(self, job: Job) -> None:
        if not self._has_ended:
            self._finished(job)

    def _back(self, job: Job) -> None:
        self._in_flight -= 1
        if self._has_ended:
            self._tell_if_idle()
            return
        if job.error is None and isinstance(job, (CommitJob, SealJob)):
            (self._sync_latency if isinstance(job, CommitJob) else self._seal_latency).observe(job.took_ns)
        self._finished(job)

    def _tell_if_idle(self) -> None:
        if self._when_idle is not None and not self._in_flight:
            when_idle, self._when_idle = self._when_idle, None
            when_idle()


def _nothing(_: Job) -> None:
    """Stand in for the host, whose topic is deleted."""
