"""What one engine does in the background, as a table: the most important work first.

Owner: the engine, on the loop thread.
"""

from __future__ import annotations

from typing import Any

from quiver_actors import jobs
from quiver_actors.ballast import BALLAST_BYTES
from quiver_actors.engine.condition import EngineState
from quiver_actors.engine.parts import Parts
from quiver_actors.engine.producers import ProducersJob
from quiver_actors.engine.schedule import Line, Schedule
from quiver_actors.events import Event, Resumed
from quiver_actors.footprint import MeasureJob
from quiver_actors.jobs import Job
from quiver_actors.rescue import RescueJob, SwapJob
from quiver_actors.transactions.jobs import (
    JournalJob,
    PrepareJob,
    PublishJob,
    StageAllocateJob,
    StageDropJob,
    StageReadJob,
)
from quiver_actors.units import SECOND_NS
from quiver_actors.upkeep import ScrubJob, SlicedJob

_RETRY_BALLAST_NS = 1 * SECOND_NS
_RETRY_RESCUE_NS = 10 * SECOND_NS
"""A rescue writes a whole segment before it can find that there is no room for it."""
_CHANGES_NO_SIZE = (MeasureJob, ScrubJob, jobs.VerifyJob, StageReadJob)


class Work:
    """See the module.

    Attributes:
        releases_spare: give the spare log file up while nothing is pushed.
        defers_upkeep: leave compaction and scrub for later.
    """

    def __init__(self, parts: Parts) -> None:
        self.releases_spare = False
        self.defers_upkeep = False
        self._parts = parts
        self._schedule = Schedule(parts.clock, parts.condition, parts.ballast, self._lines())

    @property
    def is_idle(self) -> bool:
        """No job is out."""
        return self._schedule.is_idle

    def next(self) -> Job | None:
        """The next job, None if there is nothing to do or one is out."""
        job = self._schedule.next()
        if job is not None and job.strays:
            self._parts.retention.watch(job.strays)
        return job

    def finish(self, job: Job) -> list[Event]:
        """A job comes back."""
        if not isinstance(job, _CHANGES_NO_SIZE):
            self._parts.retention.touched()
        return self._schedule.finish(job)

    def deadlines_ns(self) -> list[int]:
        """When `next` should be asked even if nothing else happens."""
        return self._schedule.deadlines_ns()

    # --- the table ---------------------------------------------------------------------------------------------------------

    def _lines(self) -> list[Line[Any]]:
        return [*self._lines_of_logs(), *self._lines_of_segments(), *self._lines_of_care()]

    def _lines_of_logs(self) -> list[Line[Any]]:
        """What bundles and acknowledgements wait for."""
        numbers, logs, progress = self._parts.numbers, self._parts.logs, self._parts.progress
        return [
            Line(jobs.ReserveJob, numbers.reserve_job, numbers.finish_reserve, spends_ballast=True),
            Line(jobs.AllocateJob, logs.allocate_job, logs.finish_allocate, no_room=logs.no_room_for_spare),
            Line(
                jobs.ProgressJob,
                lambda: progress.flush_job(self._parts.oldest_unannounced),
                progress.finish_flush,
                in_drain=True,
                spends_ballast=True,
                no_room=progress.no_room_to_flush,
                due_ns=lambda: progress.due_ns,
            ),
            *self._lines_of_stages(),
        ]

    def _lines_of_stages(self) -> list[Line[Any]]:
        """What transactions wait for."""
        stages = self._parts.stages
        lines: list[Line[Any]] = [
            Line(JournalJob, stages.journal_job, stages.finish_journal, in_drain=True, spends_ballast=True),
            Line(PublishJob, stages.publish_job, stages.finish_publish, in_drain=True, spends_ballast=True),
            Line(PrepareJob, stages.prepare_job, stages.finish_prepare, in_drain=True),
            Line(StageDropJob, stages.drop_job, stages.finish_drop, in_drain=True, spends_ballast=True),
            Line(StageReadJob, stages.read_job, stages.finish_read),
            Line(StageAllocateJob, stages.allocate_job, stages.finish_allocate, no_room=stages.no_room),
        ]
        return [line._replace(among=stages.by_number) for line in lines]

    def _lines_of_segments(self) -> list[Line[Any]]:
        """Segments come and go."""
        logs, producers, mending = self._parts.logs, self._parts.producers, self._parts.mending
        return [
            Line(
                ProducersJob,
                lambda: producers.save_job(logs.sealed_next),
                producers.finish_save,
                in_drain=True,
                spends_ballast=True,
            ),
            Line(jobs.SealJob, self._seal_job, self._finish_seal, in_drain=True, spends_ballast=True),
            Line(jobs.QuarantineJob, mending.quarantine_job, mending.finish_quarantine, in_drain=True),
            Line(
                jobs.DeleteJob,
                lambda: self._parts.shelf.delete_job(mending.suspects),
                self._finish_delete,
                spends_ballast=True,
            ),
        ]

    def _lines_of_care(self) -> list[Line[Any]]:
        """What can wait for all that."""
        logs, mending, retention = self._parts.logs, self._parts.mending, self._parts.retention
        return [
            Line(
                RescueJob,
                mending.rescue_job,
                mending.finish_rescue,
                no_room=mending.no_room_to_rescue,
                retry_ns=_RETRY_RESCUE_NS,
            ),
            Line(SwapJob, mending.swap_job, mending.finish_swap, in_drain=True, retry_ns=_RETRY_RESCUE_NS),
            Line(jobs.TrimJob, mending.trim_job, mending.finish_trim),
            Line(jobs.VerifyJob, mending.verify_job, mending.finish_verify),
            Line(jobs.BallastJob, self._ballast_job, self._finish_ballast),
            Line(jobs.UnlinkJob, self._release_spare_job, logs.finish_release_spare),
            Line(SlicedJob, self._upkeep_job, mending.finish_upkeep, due_ns=self._upkeep_due_ns),
            Line(MeasureJob, retention.measure_job, retention.finish_measure, due_ns=retention.measure_due_ns),
        ]

    # --- where several parts meet ------------------------------------------------------------------------------------------

    def _seal_job(self) -> jobs.SealJob | None:
        if self._parts.producers.holds_back(self._parts.logs.sealed_next):
            return None
        return self._parts.logs.seal_job(before=self._parts.stages.first_publishing)

    def _finish_seal(self, job: jobs.SealJob) -> list[Event]:
        assert job.info is not None
        self._parts.logs.finish_seal(job)
        return [Resumed(), *self._parts.shelf.put(job.info, job.cursor_owed, job.log.first_append_ns)]

    def _finish_delete(self, job: jobs.DeleteJob) -> list[Event]:
        self._parts.mending.forget(job.segment_seqs)
        return self._parts.shelf.finish_delete(job.segment_seqs)

    def _ballast_job(self) -> jobs.BallastJob | None:
        ballast = self._parts.ballast
        if self.releases_spare:
            # Near the cap, where others wait for room: this one is for a full disk.
            return jobs.BallastJob(ballast, is_wanted=False) if ballast.counted_bytes else None
        if ballast.is_held or self._parts.is_bare:
            return None
        if not self._parts.logs.room(BALLAST_BYTES):
            # Room under the cap is for bundles first.
            self._schedule.postpone(jobs.BallastJob, _RETRY_BALLAST_NS)
            return None
        ballast.claim()
        return jobs.BallastJob(ballast, is_wanted=True)

    def _finish_ballast(self, _: jobs.BallastJob) -> list[Event]:
        if not self._parts.ballast.is_held:
            self._schedule.postpone(jobs.BallastJob, _RETRY_BALLAST_NS)
        return []

    def _release_spare_job(self) -> jobs.UnlinkJob | None:
        return self._parts.logs.release_spare_job() if self.releases_spare else None

    def _upkeep_job(self) -> SlicedJob | None:
        if self.defers_upkeep:
            return None
        is_ready = self._parts.condition.state is EngineState.READY
        is_idle = is_ready and self._parts.group_commit.is_idle and not self._parts.logs.has_staged
        return self._parts.upkeep.next_job(is_idle=is_idle)

    def _upkeep_due_ns(self) -> int | None:
        may_run = self._schedule.is_idle and self._parts.condition.takes_bundles and not self.defers_upkeep
        return self._parts.upkeep.next_due_ns() if may_run else None
