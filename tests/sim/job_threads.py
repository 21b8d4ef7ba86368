"""The two threads of a run that work for its engine: one commits, one does everything else; both go on call by call, when they are let."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiver_actors.store.jobs.commits import LoneCommit
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.records import ProgressJob
from quiver_actors.store.jobs.removal import DeleteJob
from quiver_actors.store.jobs.upkeep import SlicedJob
from tests.sim.ledger import Deletion
from tests.sim.turns import Turn

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass(slots=True)
class _Work:
    """A job in its thread."""

    job: Job
    turn: Turn


class JobThreads:
    """Owner: the run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._commit: _Work | None = None
        self._background: _Work | None = None

    @property
    def writes_progress(self) -> bool:
        """Whether progress is being written."""
        return self._background is not None and isinstance(self._background.job, ProgressJob)

    def let_run(self) -> None:
        for _ in range(self._world.random.choice((1, 3, 10, 40))):
            self.start()
            running = [work for work in (self._commit, self._background) if work is not None]
            if not running:
                return
            self._step(self._world.random.choice(running))

    def _step(self, work: _Work) -> None:
        work.turn.step()
        if not work.turn.is_done:
            return
        if work is self._commit:
            self._commit = None
        else:
            self._background = None
        work.job.took_ns = 0
        self._note_finished(work.job)
        if isinstance(work.job, LoneCommit) and work.job.error is None:
            self._world.observe(self._world.subscribing.finish_lone(work.job))
        else:
            self._world.observe(self._world.engine.finish(work.job))

    def start(self) -> None:
        if self._commit is None and (job := self._world.engine.next_commit()) is not None:
            self._commit = _Work(job, Turn(job.run))
        if self._background is None and (job := self._world.engine.next_background()) is not None:
            self._world.staging.note_places()
            if isinstance(job, DeleteJob):
                self._world.ledger.condemn(job.segment_seqs)
                self._world.ledger.check_kept(
                    job.segment_seqs, self._world.clock.unix_ns(), self._world.profile.settings.retention.keep_for_ns
                )
                for segment_seq in job.segment_seqs:
                    self._world.ledger.deletions.setdefault(segment_seq, Deletion(self._world.calls))
                self._world.doomed.update(job.segment_seqs)
            if isinstance(job, SlicedJob):
                job.slice_ns = 0
            self._background = _Work(job, Turn(job.run))

    def take_commit(self, job: Job) -> None:
        """Carry out a commit that the engine has begun outside of `next_commit`."""
        assert self._commit is None
        self._commit = _Work(job, Turn(job.run))

    def finish_commits(self) -> None:
        """Let the commit finish that is out, and those that follow from it."""
        self.start()
        while self._commit is not None:
            self._step(self._commit)
            self.start()

    def finish(self) -> None:
        """Let the jobs finish that are out, and those that follow from them."""
        while work := self._commit or self._background:
            self._step(work)
            self.start()

    def finish_all(self) -> None:
        """The same, with what time asks for."""
        self._world.observe(self._world.engine.tick())
        self.start()
        while work := self._commit or self._background:
            self._step(work)
            self._world.observe(self._world.engine.tick())
            self.start()

    def abandon(self) -> None:
        """The threads end where they are."""
        if hasattr(self._world, "engine"):
            self._world.staging.sync()
        for work in (self._commit, self._background):
            if work is not None:
                work.turn.abandon()
        self._commit = self._background = None

    def pause(self) -> None:
        for work in (self._commit, self._background):
            if work is not None and work.turn.is_current:
                work.turn.pause()

    def _note_finished(self, job: Job) -> None:
        if isinstance(job, DeleteJob) and job.error is None:
            for segment_seq in job.segment_seqs:
                self._world.ledger.deletions[segment_seq].done_at = self._world.calls
            self._world.doomed.clear()
