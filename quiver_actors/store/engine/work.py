"""The background work of one engine as a table: the most important work first.

Owner: the engine, on the loop thread.
"""

from __future__ import annotations

from typing import Any

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.engine.carrying import CarryJob
from quiver_actors.store.engine.condition import EngineState
from quiver_actors.store.engine.events import Event, Resumed
from quiver_actors.store.engine.held_files import HeldFilesJob
from quiver_actors.store.engine.parts import Parts
from quiver_actors.store.engine.producers import ProducersJob
from quiver_actors.store.engine.schedule import Line, RetryTimes, Schedule
from quiver_actors.store.files.ballast import BALLAST_BYTES
from quiver_actors.store.files.footprint import MeasureJob
from quiver_actors.store.jobs.checking import LogCheckJob, LossJob, VerifyJob
from quiver_actors.store.jobs.cold import ColdFlipJob
from quiver_actors.store.jobs.commits import SealJob
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.records import ProgressJob, ReserveJob
from quiver_actors.store.jobs.removal import DeleteJob, QuarantineJob, TrimJob, UnlinkJob
from quiver_actors.store.jobs.rescue import RescueJob, SwapJob
from quiver_actors.store.jobs.room import AllocateJob, BallastJob, GrowJob
from quiver_actors.store.jobs.statistics import StatisticsJob
from quiver_actors.store.jobs.summaries import SaveSummariesJob, SummaryJob
from quiver_actors.store.jobs.upkeep import ScrubJob, SlicedJob
from quiver_actors.store.segment.stored_schemas import schemas_of
from quiver_actors.store.staged.jobs import (
    JournalJob,
    PrepareJob,
    PublishJob,
    StageAllocateJob,
    StageDropJob,
    StageReadJob,
)

_RETRY_BALLAST_NS = 1 * SECOND_NS
_RETRY_RESCUE_NS = 10 * SECOND_NS
"""How long no rescue is tried after one found no room: a rescue writes a whole segment before it can find that."""
_CHANGES_NO_SIZE = (MeasureJob, ScrubJob, LossJob, VerifyJob, StageReadJob, SummaryJob, StatisticsJob)


class Work:
    """The background work of one engine: a table of tasks and its schedule. Attributes: `tasks`, with the switches that the worker sets."""

    def __init__(self, parts: Parts) -> None:
        retry_ns: RetryTimes = {}
        self.tasks = Tasks(parts, retry_ns)
        self._parts = parts
        self._schedule = Schedule(parts.clock, parts.condition, parts.ballast, self.tasks.lines(), retry_ns)

    @property
    def is_idle(self) -> bool:
        """Whether no job is under way."""
        return self._schedule.is_idle

    def next(self) -> Job | None:
        """The next job, None if there is nothing to do or one is under way."""
        job = self._schedule.next()
        if job is not None and job.strays:
            self._parts.disk_account.watch(job.strays)
        return job

    def finish(self, job: Job) -> list[Event]:
        """Take back a job that was run."""
        if not isinstance(job, _CHANGES_NO_SIZE):
            self._parts.disk_account.touched()
        if job.kept:
            self._parts.disk_account.held_files.take(job)
        return self._schedule.finish(job)

    def deadlines_ns(self) -> list[int]:
        """When `next` should be asked even if nothing else happens."""
        return self._schedule.deadlines_ns()


class Tasks:
    """The table: what is to be done and what becomes of it. The schedule refers to it and it does not refer to the schedule, so that
    an engine that is dropped goes at once, and not with the next full garbage collection.

    Attributes:
        releases_spare: delete the spare log file while nothing is pushed.
        defers_upkeep: postpone compaction and scrub.
    """

    def __init__(self, parts: Parts, retry_ns: RetryTimes) -> None:
        """
        Args:
            retry_ns: the schedule's; written here when a task is to wait.
        """
        self.releases_spare = False
        self.defers_upkeep = False
        self._parts = parts
        self._retry_ns = retry_ns

    def lines(self) -> list[Line[Any]]:
        """All lines, the most important one first."""
        return [*self._lines_of_logs(), *self._lines_of_segments(), *self._lines_of_care()]

    def _lines_of_logs(self) -> list[Line[Any]]:
        """The lines of what bundles and acknowledgements wait for."""
        numbers, logs, progress = self._parts.numbers, self._parts.logs, self._parts.progress
        spare, growth = logs.spare, logs.growth
        return [
            Line(ReserveJob, numbers.reserve_job, numbers.finish_reserve, spends_ballast=True),
            # One try for each log: the log ends with it, and the push that waits goes on at once.
            Line(
                GrowJob,
                lambda: growth.job(logs.active, logs.settings.retention.min_free_bytes),
                growth.finish,
                no_room=growth.no_room,
                retry_ns=0,
            ),
            Line(
                AllocateJob,
                lambda: spare.allocate_job(logs.active),
                spare.finish_allocate,
                no_room=spare.no_room,
            ),
            Line(
                ProgressJob,
                lambda: progress.flush_job(self._parts.oldest_unannounced),
                progress.finish_flush,
                in_drain=True,
                spends_ballast=True,
                no_room=progress.no_room_to_flush,
                due_ns=lambda: min(
                    (at for at in (progress.due_ns, progress.bring_up_due_ns()) if at is not None), default=None
                ),
            ),
            *self._lines_of_stages(),
        ]

    def _lines_of_stages(self) -> list[Line[Any]]:
        """The lines of what transactions wait for."""
        stages = self._parts.stage_jobs
        lines: list[Line[Any]] = [
            Line(JournalJob, stages.journal_job, stages.finish_journal, in_drain=True, spends_ballast=True),
            Line(PublishJob, stages.publish_job, stages.finish_publish, in_drain=True, spends_ballast=True),
            Line(PrepareJob, stages.prepare_job, stages.finish_prepare, in_drain=True),
            Line(StageDropJob, stages.drop_job, stages.finish_drop, in_drain=True, spends_ballast=True),
            Line(StageReadJob, stages.read_job, stages.finish_read),
            Line(StageAllocateJob, stages.allocate_job, stages.finish_allocate, no_room=stages.no_room),
        ]
        return [line._replace(among=self._parts.stages.table.by_number) for line in lines]

    def _lines_of_segments(self) -> list[Line[Any]]:
        """The lines by which segments come and go."""
        logs, producers, repair = self._parts.logs, self._parts.producers, self._parts.repair
        quarantine = self._parts.quarantine
        return [
            Line(
                ProducersJob,
                lambda: producers.save_job(logs.sealed_next),
                producers.finish_save,
                in_drain=True,
                spends_ballast=True,
            ),
            Line(CarryJob, producers.carry_job, producers.finish_carry, spends_ballast=True),
            Line(SealJob, self._seal_job, self._finish_seal, in_drain=True, spends_ballast=True),
            # Before anything else takes a segment away that the list may name.
            Line(
                ColdFlipJob,
                self._parts.relocation.flip_job,
                self._parts.relocation.finish_flip,
                no_room=self._owe_cold_list,
            ),
            Line(QuarantineJob, quarantine.move_job, quarantine.finish_move, in_drain=True),
            Line(
                DeleteJob,
                lambda: self._parts.sealed_segments.deletions.job(repair.suspects, self._parts.retention.spool),
                self._finish_delete,
                spends_ballast=True,
                no_room=self._owe_cold_list,
            ),
        ]

    def _lines_of_care(self) -> list[Line[Any]]:
        """The lines of what can wait for all others."""
        logs, repair, disk_account = self._parts.logs, self._parts.repair, self._parts.disk_account
        held_files, open_checks = self._parts.disk_account.held_files, self._parts.open_checks
        summaries = self._parts.sealed_segments.summaries
        return [
            Line(
                RescueJob,
                repair.rescue_job,
                repair.finish_rescue,
                no_room=repair.no_room_to_rescue,
                retry_ns=_RETRY_RESCUE_NS,
            ),
            Line(SwapJob, repair.swap_job, repair.finish_swap, in_drain=True, retry_ns=_RETRY_RESCUE_NS),
            Line(TrimJob, self._parts.quarantine.trim_job, self._parts.quarantine.finish_trim),
            Line(LossJob, repair.loss_job, repair.finish_loss),
            Line(LogCheckJob, open_checks.job, open_checks.finish, due_ns=open_checks.due_ns),
            Line(VerifyJob, repair.verify_job, repair.finish_verify, due_ns=repair.verify_due_ns),
            Line(SummaryJob, summaries.look_job, summaries.finish_look),
            Line(
                StatisticsJob,
                self._statistics_job,
                summaries.finish_statistics,
                due_ns=self._statistics_due_ns,
            ),
            Line(SaveSummariesJob, summaries.save_job, summaries.finish_save),
            Line(BallastJob, self._ballast_job, self._finish_ballast),
            Line(UnlinkJob, self._release_spare_job, logs.spare.finish_release),
            Line(SlicedJob, self._upkeep_job, repair.finish_upkeep, due_ns=self._upkeep_due_ns),
            Line(HeldFilesJob, self._held_files_job, held_files.finish, due_ns=held_files.due_ns),
            Line(MeasureJob, disk_account.measure_job, disk_account.finish_measure, due_ns=disk_account.measure_due_ns),
        ]

    # --- where several parts meet ------------------------------------------------------------------------------------------

    def _seal_job(self) -> SealJob | None:
        sealed_next = self._parts.logs.sealed_next
        if sealed_next is None or self._parts.producers.holds_back(sealed_next):
            return None
        if not self._parts.group_commit.has_log_behind:
            return None
        return self._parts.logs.seal_job(before=self._parts.stage_jobs.first_publishing)

    def _finish_seal(self, job: SealJob) -> list[Event]:
        assert job.info is not None
        self._parts.logs.finish_seal(job)
        self._parts.readable_end.sealed(job.info.segment_seq)
        streams = schemas_of(job.log.builder.streams)
        return [
            Resumed(),
            *self._parts.sealed_segments.put(job.info, job.cursor_owed, job.log.first_append_ns, streams),
        ]

    def _finish_delete(self, job: DeleteJob) -> list[Event]:
        self._parts.repair.forget(job.segment_seqs)
        return self._parts.sealed_segments.finish_delete(job.segment_seqs)

    def _owe_cold_list(self, _: Job) -> list[Event]:
        self._parts.cold.owe_list()
        return []

    def _held_files_job(self) -> HeldFilesJob | None:
        is_short = self._parts.logs.spare.is_throttled or self._parts.stage_jobs.refused_bytes > 0
        return self._parts.disk_account.held_files.job(is_short=is_short)

    def _ballast_job(self) -> BallastJob | None:
        ballast = self._parts.ballast
        if self.releases_spare:
            # Near the cap others wait for room: the ballast is for a full disk.
            return BallastJob(ballast, is_wanted=False) if ballast.counted_bytes else None
        if ballast.is_held or self._parts.is_bare:
            return None
        if not self._parts.allowance.admits(BALLAST_BYTES):
            # Room under the cap is for bundles first.
            self._postpone_ballast()
            return None
        ballast.claim()
        return BallastJob(ballast, is_wanted=True)

    def _finish_ballast(self, _: BallastJob) -> list[Event]:
        if not self._parts.ballast.is_held:
            self._postpone_ballast()
        return []

    def _postpone_ballast(self) -> None:
        self._retry_ns[BallastJob] = self._parts.clock.monotonic_ns() + _RETRY_BALLAST_NS

    def _release_spare_job(self) -> UnlinkJob | None:
        logs = self._parts.logs
        is_in_the_way = self.releases_spare and logs.active is None
        return logs.spare.release_job() if is_in_the_way or logs.spare.is_oversized(logs.active) else None

    def _statistics_job(self) -> StatisticsJob | None:
        return None if self.defers_upkeep else self._parts.sealed_segments.summaries.statistics_job()

    def _statistics_due_ns(self) -> int | None:
        may_run = self._parts.condition.takes_bundles and not self.defers_upkeep
        return self._parts.sealed_segments.summaries.statistics_due_ns() if may_run else None

    def _upkeep_job(self) -> SlicedJob | None:
        if self.defers_upkeep:
            return None
        is_ready = self._parts.condition.state is EngineState.READY
        is_idle = is_ready and self._parts.group_commit.is_idle and not any(log.has_staged for log in self._parts.logs)
        return self._parts.upkeep.next_job(is_idle=is_idle)

    def _upkeep_due_ns(self) -> int | None:
        may_run = self._parts.condition.takes_bundles and not self.defers_upkeep
        return self._parts.upkeep.next_due_ns() if may_run else None
