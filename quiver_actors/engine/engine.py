"""The engine: its parts put together, and the whole of what its worker sees.

A state machine over a disk and a clock, with no sockets and no threads. Owner: its worker's loop thread. Blocking work leaves
as jobs (`next_commit` for the sync thread, `next_background` for the seal thread) and comes back through `finish`.

Guarantees
- A bundle that `acknowledges` covers with SYNCED is in a synced log under a durable name.
- A failed write, sync or rename is sticky: the engine is FAILED, its files are left alone, recovery decides at the next open.
  Running out of space where it was looked for (allocation, the tail of a seal, progress) is not a failure: it is tried again.
- A segment file is unlinked only after progress that needs none of it is durable for every subscriber.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quiver_actors import jobs
from quiver_actors.ballast import Ballast
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import DirectoryLock, Disk, write_atomically
from quiver_actors.engine.condition import Condition, EngineState
from quiver_actors.engine.group_commit import GroupCommit
from quiver_actors.engine.intake import Intake
from quiver_actors.engine.log_queue import LogQueue
from quiver_actors.engine.mending import Mending
from quiver_actors.engine.numbers import Numbers
from quiver_actors.engine.producers import Producers, ProducersJob, without_first
from quiver_actors.engine.progress import Progress
from quiver_actors.engine.retention import Retention
from quiver_actors.engine.schedule import Line, Schedule
from quiver_actors.engine.shelf import Shelf
from quiver_actors.engine.stages import Stages
from quiver_actors.engine.subscriber_side import SubscriberSide
from quiver_actors.engine_figures import EngineFigures
from quiver_actors.errors import AlreadyRunning, NotStored, QuiverError, UsageError
from quiver_actors.events import Claimable, Event, Resumed
from quiver_actors.footprint import MeasureJob
from quiver_actors.jobs import Job
from quiver_actors.model import Durability
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import AckRun, KeyedPush, Push, SegmentInfo
from quiver_actors.recovery import Recovered, recover, segment_cfg_hash
from quiver_actors.rescue import RescueJob
from quiver_actors.retention.losses import Losses
from quiver_actors.sealing import write_cursor
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.transactions.jobs import JournalJob, PrepareJob, PublishJob, StageAllocateJob, StageDropJob
from quiver_actors.units import SECOND_NS
from quiver_actors.upkeep import ScrubJob, SlicedJob, Upkeep
from quiver_actors.wal.codec import encode_header

_RETRY_BALLAST_NS = 1 * SECOND_NS
_RETRY_RESCUE_NS = 10 * SECOND_NS
"""A rescue writes a whole segment before it can find that there is no room for it."""


class Engine(SubscriberSide):
    """See the module."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        core: int,
        clock: Clock,
        lock: DirectoryLock,
        recovered: Recovered,
    ) -> None:
        """Use `open`."""
        condition, numbers = Condition(), Numbers(disk, paths, recovered)
        logs = LogQueue(disk, paths, settings, clock, condition, numbers)
        progress = Progress(disk, paths, settings, clock, condition, recovered.registry)
        free_bytes_min, compacts = settings.retention.min_free_bytes, settings.segment.compaction == "auto"
        upkeep = Upkeep(disk, paths, clock, compacts=compacts, free_bytes_min=free_bytes_min)
        shelf = Shelf(disk, paths, recovered, progress, upkeep)
        super().__init__(core, clock, logs, progress, shelf)
        self.topic = settings.name
        self.settings = settings
        self.incarnation = numbers.incarnation
        self.recovery_notes = list(recovered.notes)
        self._place = f"topic {self.topic!r} on core {core}"
        self._disk = disk
        self._paths = paths
        self._lock = lock
        self._condition = condition
        self._numbers = numbers
        self._upkeep = upkeep
        self.retention = Retention(disk, paths, settings, clock, progress, logs, shelf)
        shelf.spool = self.retention.spool
        self.releases_spare = False
        """Give the spare log file up while nothing is pushed."""
        self.defers_upkeep = False
        """Leave compaction and scrub for later."""
        self._intake = Intake(self._place, clock, condition, numbers, logs)
        self._group_commit = GroupCommit(disk, paths, settings, clock, condition, numbers, logs)
        self._mending = Mending(disk, paths, settings, recovered, progress, shelf, upkeep)
        self._ballast = Ballast(disk, paths.ballast, free_bytes_min)
        self.stages = Stages(disk, paths, settings, clock, condition, numbers, logs, shelf, recovered.stages)
        self._producers = Producers(disk, paths, recovered.windows)
        self._schedule = Schedule(clock, condition, self._ballast, self._lines())
        self._mending.give_up_missing(recovered.missing)
        if progress.is_dirty:
            progress.changed()

    def _lines(self) -> list[Line[Any]]:
        """The background work, the most important first."""
        numbers, logs, mending, retention = self._numbers, self._logs, self._mending, self.retention
        return [
            Line(jobs.ReserveJob, numbers.reserve_job, numbers.finish_reserve, spends_ballast=True),
            Line(jobs.AllocateJob, logs.allocate_job, logs.finish_allocate, no_room=logs.no_room_for_spare),
            Line(
                jobs.ProgressJob,
                lambda: self._progress.flush_job(self._oldest_unannounced),
                self._progress.finish_flush,
                in_drain=True,
                spends_ballast=True,
                no_room=self._progress.no_room_to_flush,
                due_ns=lambda: self._progress.due_ns,
            ),
            *self._stage_lines(),
            Line(
                ProducersJob,
                lambda: self._producers.save_job(self._logs.sealed_next),
                self._producers.finish_save,
                in_drain=True,
                spends_ballast=True,
            ),
            Line(jobs.SealJob, self._seal_job, self._finish_seal, in_drain=True, spends_ballast=True),
            Line(jobs.QuarantineJob, mending.quarantine_job, mending.finish_quarantine, in_drain=True),
            Line(
                jobs.DeleteJob,
                lambda: self._shelf.delete_job(mending.suspects),
                self._finish_delete,
                spends_ballast=True,
            ),
            Line(
                RescueJob,
                mending.rescue_job,
                mending.finish_rescue,
                no_room=mending.no_room_to_rescue,
                retry_ns=_RETRY_RESCUE_NS,
            ),
            Line(jobs.VerifyJob, mending.verify_job, mending.finish_verify),
            Line(jobs.BallastJob, self._ballast_job, self._finish_ballast),
            Line(jobs.UnlinkJob, self._release_spare_job, logs.finish_release_spare),
            Line(SlicedJob, self._upkeep_job, mending.finish_upkeep, due_ns=self._upkeep_due_ns),
            Line(MeasureJob, retention.measure_job, retention.finish_measure, due_ns=retention.measure_due_ns),
        ]

    def _stage_lines(self) -> list[Line[Any]]:
        stages = self.stages
        return [
            Line(JournalJob, stages.journal_job, stages.finish_journal, in_drain=True, spends_ballast=True),
            Line(PublishJob, stages.publish_job, stages.finish_publish, in_drain=True, spends_ballast=True),
            Line(PrepareJob, stages.prepare_job, stages.finish_prepare, in_drain=True),
            Line(StageDropJob, stages.drop_job, stages.finish_drop, in_drain=True, spends_ballast=True),
            Line(StageAllocateJob, stages.allocate_job, stages.finish_allocate, no_room=stages.no_room),
        ]

    def __repr__(self) -> str:
        return f"<Engine {self.topic}/core_{self.core} {self.state.name} next_sequence={self._numbers.next_sequence}>"

    @property
    def state(self) -> EngineState:
        return self._condition.state

    @property
    def failure(self) -> str | None:
        """What failed it, None while it has not."""
        return self._condition.failure

    # --- opening and closing -----------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, disk: Disk, directory: str, settings: TopicSettings, core: int, clock: Clock) -> Engine:
        """Lock and recover the directory. Blocking.

        Raises:
            AlreadyRunning: another process has it open.
            UnsupportedVersion, ConfigMismatch: nothing was changed.
            DiskError: recovery could not finish; it can be tried again.
        """
        paths = EnginePaths(directory)
        disk.make_directory(directory)
        lock = disk.lock(paths.lock)
        if lock is None:
            raise AlreadyRunning(f"{directory} is open in another process: two can never write one directory")
        try:
            return cls(disk, paths, settings, core, clock, lock, recover(disk, paths, settings, core))
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Give the directory back. After a drain the shutdown is recorded as clean; otherwise recovery will have work."""
        if self.state is EngineState.CLOSED:
            return
        clean = self.is_drained
        self._upkeep.close()
        self._logs.close()
        self.stages.close()
        try:
            if clean:
                self._write_clean_shutdown()
        finally:
            self._condition.state = EngineState.CLOSED
            self._lock.release()

    def _write_clean_shutdown(self) -> None:
        """Leave exact numbers and an empty log that holds the position; derived files only, so no sync rule depends on it."""
        self._logs.unlink_spare()
        numbers = self._numbers
        header = encode_header(segment_cfg_hash(self.settings), numbers.position, numbers.identity())
        write_atomically(self._disk, self._paths.active, header)
        write_cursor(self._disk, self._paths, numbers.position)
        jobs.write_core(self._disk, self._paths, numbers.exact())

    def change_settings(self, settings: TopicSettings) -> None:
        """Live by other settings from now on. Name and slots are part of what the engine is: they stay as they were.

        Raises:
            UsageError: they differ.
        """
        if (settings.name, settings.slots) != (self.topic, self.settings.slots):
            raise UsageError(f"{self._place}: name and slots of an open engine cannot be changed")
        self.settings = settings
        self._logs.change_settings(settings)
        self._group_commit.change_settings(settings)
        self._progress.change_settings(settings)
        self.stages.change_settings(settings)
        self.retention.settings = settings.retention
        self._ballast.change_reserve(settings.retention.min_free_bytes)
        self._upkeep.change_limits(
            compacts=settings.segment.compaction == "auto", free_bytes_min=settings.retention.min_free_bytes
        )

    def drain(self) -> None:
        """Take no more bundles; what is there is sealed and progress is flushed by the jobs that follow."""
        if self._condition.takes_bundles:
            self._condition.state = EngineState.DRAINING
            self._logs.close_active()
            self.stages.drain()
            self._progress.drain()

    @property
    def is_drained(self) -> bool:
        """Everything is in sealed segments and all progress is durable."""
        idle = not len(self._logs) and self._group_commit.is_idle and self._schedule.is_idle
        return self._condition.is_draining and idle and self.stages.is_settled and not self._progress.is_dirty

    # --- ingest ------------------------------------------------------------------------------------------------------------

    def can_stage(self, span_bytes: int) -> bool:
        """Whether `stage` of a push of that size can go on now; if not, ask again after any `finish` or `tick`."""
        return self._intake.can_stage(span_bytes)

    def refusal(self) -> QuiverError | None:
        """Why no push can be taken, None if it only has to wait. StorageFull is for pushes that have waited long enough."""
        return self._intake.refusal()

    def stage(self, span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]) -> list[AckRun]:
        """Check a push, give its bundles their numbers, complete them in place and queue them for `write`.

        Args:
            span: private, writable copy of the arena bytes; untouched by others until `write`.
            schemas: what the connection declared, by handle.

        Raises:
            ProtocolError: the push is broken; nothing was staged.
            EngineFailed: as for `refusal`; or a dictionary that an earlier bundle brought, and that has to be compared, cannot be read
                back: the engine has failed by it, and nothing of the push is ever written.
            Draining, StorageFull: see `refusal`.
        """
        if isinstance(push, KeyedPush):
            return self._stage_keyed(span, push, schemas)
        return self._intake.stage(span, push, schemas)

    def _stage_keyed(self, span: memoryview, push: KeyedPush, schemas: Mapping[int, StreamSchema]) -> list[AckRun]:
        """Stage what was not stored before. Raises SequenceGap and SequenceTooOld, too."""
        known = self._producers.stored(push)
        count = sum(run.count for run in known)
        if known and count == push.entry_count:
            return known
        rest, left = without_first(push, span, count)
        runs = self._intake.stage(left, rest, schemas)
        self._producers.note(push, count, runs[0])
        return [*known, *runs]

    def write(self) -> list[Event]:
        """Write everything staged; nothing after a failure."""
        if self._condition.is_over:
            return []
        try:
            self._logs.write()
        except QuiverError as error:
            return self._condition.fail(error)
        return []

    def note_refused(self) -> None:
        """Count a push that the worker refused on this engine's behalf."""
        self._intake.refused += 1

    @property
    def acknowledges(self) -> tuple[int, Durability]:
        """Pushes below that sequence may be acknowledged now, and what that means for them."""
        return self._group_commit.acknowledges

    @property
    def sequence_written(self) -> int:
        """Every bundle below it is written to its log."""
        return self._logs.sequence_written

    @property
    def sequence_durable(self) -> int:
        """Every bundle below it is covered by a sync."""
        return self._group_commit.sequence_durable

    @property
    def progress_durable(self) -> int:
        """Changes of progress up to that ticket are on disk."""
        return self._progress.durable

    def seal_now(self) -> int | None:
        """Seal the open segment. Returns the newest segment that is on its way to be sealed, None if there is none."""
        return self._logs.seal_now()

    # --- work for threads --------------------------------------------------------------------------------------------------

    def next_commit(self) -> Job | None:
        """The next group commit, for the sync thread; None if there is nothing to make durable or one is out."""
        return self._group_commit.next()

    def next_background(self) -> Job | None:
        """The next piece of background work, for the seal thread; None if there is none or one is out."""
        return self._schedule.next()

    def finish(self, job: Job) -> list[Event]:
        """Take a finished job back and say what became true by it."""
        if isinstance(job, jobs.CommitJob):
            return self._group_commit.finish(job)
        if not isinstance(job, MeasureJob | ScrubJob | jobs.VerifyJob):
            self.retention.touched()
        return self._schedule.finish(job)

    def _seal_job(self) -> jobs.SealJob | None:
        if self._producers.holds_back(self._logs.sealed_next):
            return None
        return self._logs.seal_job(before=self.stages.first_publishing)

    def _finish_seal(self, job: jobs.SealJob) -> list[Event]:
        assert job.info is not None
        self._logs.finish_seal(job)
        return [Resumed(), *self._shelf.put(job.info, job.cursor_owed)]

    def _finish_delete(self, job: jobs.DeleteJob) -> list[Event]:
        self._mending.forget(job.segment_seqs)
        return self._shelf.finish_delete(job.segment_seqs)

    def _ballast_job(self) -> jobs.BallastJob | None:
        return None if self._ballast.is_held or self._is_bare else jobs.BallastJob(self._ballast)

    @property
    def _is_bare(self) -> bool:
        """Nothing was ever put in, and nobody waits for anything: nothing that a full disk could hold up."""
        return not (
            len(self._logs) or self._shelf.segments or len(self._progress.registry) or any(True for _ in self.stages)
        )

    def _finish_ballast(self, _: jobs.BallastJob) -> list[Event]:
        if not self._ballast.is_held:
            self._schedule.postpone(jobs.BallastJob, _RETRY_BALLAST_NS)
        return []

    def _release_spare_job(self) -> jobs.UnlinkJob | None:
        return self._logs.release_spare_job() if self.releases_spare else None

    def _upkeep_job(self) -> SlicedJob | None:
        if self.defers_upkeep:
            return None
        is_idle = self.state is EngineState.READY and self._group_commit.is_idle and not self._logs.has_staged
        return self._upkeep.next_job(is_idle=is_idle)

    def _upkeep_due_ns(self) -> int | None:
        may_run = self._schedule.is_idle and self._condition.takes_bundles and not self.defers_upkeep
        return self._upkeep.next_due_ns() if may_run else None

    def _oldest_unannounced(self) -> int:
        """The lowest segment number that subscribers have not been told of yet."""
        waiting = [*self._shelf.waiting, *self._mending.damaged, *self._logs.bundle_counts()]
        publishing = self.stages.first_publishing
        return min([*waiting, *([] if publishing is None else [publishing])], default=self._numbers.next_segment_seq)

    # --- time --------------------------------------------------------------------------------------------------------------

    def tick(self) -> list[Event]:
        """Do what time alone asks for: seal an old open segment, end delays of deferred bundles, let go what is too old."""
        self._logs.tick()
        expired = self.retention.tick()
        due = [Claimable(subscriber) for subscriber in self._progress.registry.due(self._clock.monotonic_ns())]
        if due:
            self._progress.note_given_back()
        return [*expired, *self._progress.take_events(), *due]

    def next_deadline_ns(self) -> int | None:
        """When `tick`, `next_commit` and `next_background` should be called even if nothing else happens."""
        deadlines = [*self._logs.deadlines_ns(), *self._schedule.deadlines_ns()]
        delays_ns = self._progress.registry.next_due_ns()
        expiry_ns = self.retention.deadline_ns()
        deadlines += [at for at in (delays_ns, expiry_ns) if at is not None]
        if self._progress.has_events:
            deadlines.append(self._clock.monotonic_ns())
        return min(deadlines, default=None)

    # --- segments ----------------------------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """All sealed segments, oldest first."""
        waiting = set(self._shelf.waiting)
        if not waiting:
            return list(self._shelf)
        return [
            msgspec.structs.replace(info, is_checked=False) if info.segment_seq in waiting else info
            for info in self._shelf
        ]

    def open_segment(self, segment_seq: int) -> tuple[int, int]:
        """A read-only descriptor of a sealed segment, which the caller closes, and the file's size.

        Raises:
            NotStored: no such segment here (any more).
        """
        if segment_seq not in self._shelf.segments:
            raise NotStored(f"{self._place} has no sealed segment {segment_seq} (any more)")
        return self._shelf.open(segment_seq)

    @property
    def disk_bytes(self) -> int:
        """Everything in its directory, as `du` counts it, with what is being allocated."""
        return self.retention.used_bytes + self.stages.disk_bytes

    def share_room(self, room: Callable[[int], bool]) -> None:
        """From now on no log file is made without leave.

        Args:
            room: says whether the engine's worker may take so many bytes more of the disk.
        """
        self._logs.room = self.stages.room = room

    @property
    def wanted_bytes(self) -> int:
        """What it was refused leave for; asked again with every `next_background`."""
        return self._logs.wanted_bytes + self.stages.refused_bytes

    @property
    def is_throttled(self) -> bool:
        """A push waits for that leave."""
        return self._logs.is_throttled

    @property
    def step_bytes(self) -> int:
        """What it takes at once of the disk."""
        return self._logs.next_capacity_bytes

    @property
    def seals_early(self) -> bool:
        """Its topic lets open segments be sealed near the cap."""
        return self.retention.settings.early_seal

    @property
    def has_open_bundles(self) -> bool:
        return self._logs.active is not None and not self._logs.active.is_empty

    @property
    def sealing_lag(self) -> float:
        """How much of what may wait for its seal does, 0 to 1."""
        return min(1.0, max(0, len(self._logs) - 1) / self.settings.wal.max_rotated_files)

    @property
    def sync_ns(self) -> int:
        """How long the last group commit took."""
        return self._group_commit.sync_ns_last

    @property
    def is_taking(self) -> bool:
        """Something is in a log."""
        return len(self._logs) > 0

    @property
    def losses(self) -> Losses:
        """What was deleted and lost since the engine was opened."""
        return self._shelf.losses

    def check_segment(self, segment_seq: int, reason: str) -> None:
        """Somebody could not read it: look at the whole file in the background, quarantine it if it is damaged."""
        self._mending.suspect(segment_seq, reason)

    # --- figures -----------------------------------------------------------------------------------------------------------

    def figures(self) -> EngineFigures:
        """A snapshot for the counters page."""
        logs, shelf, active = self._logs, self._shelf, self._logs.active
        is_checked = not shelf.waiting and not self._mending.damaged
        return EngineFigures(
            state=self.state,
            bundles_in=self._intake.bundles_in,
            rows_in=self._intake.rows_in,
            bytes_in=self._intake.bytes_in,
            wal_bytes=logs.entry_bytes,
            open_segment_bytes=active.entry_bytes if active else 0,
            open_segment_bundles=active.builder.bundle_count if active else 0,
            segments=len(shelf.segments),
            segment_bytes=shelf.size_bytes,
            segment_bundles=shelf.bundle_count,
            syncs=self._group_commit.syncs,
            seals=logs.seals,
            sync_ns_last=self._group_commit.sync_ns_last,
            seal_ns_last=logs.seal_ns_last,
            sequence_written=self.sequence_written,
            sequence_durable=self.sequence_durable,
            refused=self._intake.refused,
            disk_bytes=self.disk_bytes,
            segments_deleted=shelf.deleted,
            quarantined=self._mending.quarantined,
            compactions=self._upkeep.compactions,
            compacted_bytes_saved=self._upkeep.saved_bytes,
            last_scrub_unix_ns=self._upkeep.oldest_check_unix_ns if is_checked else 0,
            scrubbed_bytes=self._upkeep.scrubbed_bytes,
        )
