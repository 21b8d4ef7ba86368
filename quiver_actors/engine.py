"""One engine: one topic on one core. Log, open segment, sealed segments, subscribers, and the numbers that never repeat.

A state machine over a disk and a clock, with no sockets and no threads. Owner: its worker's loop thread. Blocking work leaves
as jobs (`next_commit` for the sync thread, `next_background` for the seal thread) and comes back through `finish`.

Guarantees
- A bundle that `acknowledges` covers with SYNCED is in a synced log under a durable name.
- A failed write, sync or rename is sticky: the engine is FAILED, its files are left alone, recovery decides at the next open.
  Running out of space where it was looked for (allocation, the tail of a seal, progress) is not a failure: it is tried again.
- A segment file is unlinked only after progress that needs none of it is durable for every subscriber.
"""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from quiver_actors import jobs
from quiver_actors.ballast import Ballast
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.core_file import SEGMENT_SEQ_BLOCK, SEQUENCE_BLOCK, CoreFile
from quiver_actors.disk.protocol import DirectoryLock, Disk, write_atomically
from quiver_actors.engine_figures import EngineFigures, PendingCounts, SubscriberFigures
from quiver_actors.errors import (
    AlreadyRunning,
    Draining,
    EngineFailed,
    InvalidFormat,
    ProtocolError,
    QuiverError,
    StorageFull,
    UsageError,
)
from quiver_actors.events import (
    Claimable,
    Durable,
    Event,
    Failed,
    GapFound,
    ProgressDurable,
    Replaced,
    Resumed,
    Retired,
    Sealed,
)
from quiver_actors.jobs import Job
from quiver_actors.model import SEGMENT_BUNDLES_MAX, Durability, check_id
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import AckRun, Push, SegmentInfo
from quiver_actors.recovery import Recovered, recover, segment_cfg_hash
from quiver_actors.rescue import RescueJob
from quiver_actors.sealing import write_cursor
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.segment.codec import decode_manifest
from quiver_actors.segment.reader import read_footer
from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.claims import OLDEST, SubscriberState
from quiver_actors.subscriber.gaps import GapNotice, gaps_file_name
from quiver_actors.subscriber.grants import Grant
from quiver_actors.subscriber.progress import SegmentProgress, encode_progress, progress_file_name
from quiver_actors.subscriber.starts import parse_start, resolved_before
from quiver_actors.units import KIB, MIB, MILLISECOND_NS, SECOND_NS
from quiver_actors.upkeep import CompactJob, SlicedJob, Upkeep
from quiver_actors.wal import layout
from quiver_actors.wal.admission import PUSH_ENTRIES_MAX, check_push
from quiver_actors.wal.codec import Identity, encode_header
from quiver_actors.wal.log import Log

_TAIL_SLACK_BYTES = 1 * MIB
"""Allocated beyond the target, so that the last push and the tail of the seal usually fit; a small target needs less."""
_TAIL_SLACK_BYTES_MIN = 64 * KIB
_RETRY_SPACE_NS = 250 * MILLISECOND_NS
_RETRY_RESCUE_NS = 10 * SECOND_NS
"""A rescue writes a whole segment before it can find that there is no room for it."""


class EngineState(enum.IntEnum):
    RECOVERING = 1
    READY = 2
    FULL = 3
    """No room for the next log file; acks, progress, deletes and reads go on, ingest resumes by itself."""
    DRAINING = 4
    FAILED = 5
    CLOSED = 6


class Engine:
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
        self.topic = settings.name
        self.core = core
        self.settings = settings
        self.state = EngineState.READY
        self.failure: str | None = None
        self.incarnation = recovered.core.incarnation
        self.recovery_notes = list(recovered.notes)
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._lock = lock
        self._cfg_hash = segment_cfg_hash(settings)
        # numbers
        self._core_file = recovered.core
        self._next_segment_seq = recovered.next_segment_seq
        self._next_sequence = recovered.next_sequence
        self._next_rotation = recovered.next_rotation
        self._next_spare = 0
        self._position = recovered.position
        # logs, oldest first: retired or closed ones wait for their seal, the last one may be active
        self._logs: deque[Log] = deque()
        self._active: Log | None = None
        self._spare: Log | None = None
        self._wanted_capacity = 0
        self._staged: list[Log] = []
        # segments
        self._segments: dict[int, SegmentInfo] = recovered.segments
        self._unverified: deque[int] = deque(sorted([*recovered.segments, *recovered.damaged]))
        self._announceable: dict[int, int] = {}
        self._registry = recovered.registry
        self._damaged: dict[int, str] = recovered.damaged
        """Segments that are to be rescued, and what is wrong with them."""
        self._lost: dict[int, list[tuple[int, int]]] = {}
        """Bundles that a segment records as lost, until it is announced."""
        self._suspects: dict[int, str] = {}
        """Segments that somebody could not read, to be checked."""
        self._condemned: dict[int, int] = {}
        """Damaged segments and the ticket of the progress that must be durable before they are moved aside."""
        self._removed: set[str] = set()
        self._events: list[Event] = []
        # sequences
        self.sequence_written = self._next_sequence
        self.sequence_durable = self._next_sequence
        # progress
        self._progress_ticket = 0
        self.progress_durable = 0
        self._progress_due_ns: int | None = None
        self._begin_bookkeeping(recovered.quarantined)
        # disk space and care of sealed segments
        free_bytes_min = settings.retention.min_free_bytes
        self._ballast = Ballast(disk, paths.ballast, free_bytes_min)
        compacts = settings.segment.compaction == "auto"
        self._upkeep = Upkeep(disk, paths, clock, compacts=compacts, free_bytes_min=free_bytes_min)
        for segment_seq in recovered.missing:
            self._give_up(segment_seq, _nothing_known_of(segment_seq), "damaged")
        if self._progress_dirty:
            self._progress_changed()

    def _begin_bookkeeping(self, quarantined: int) -> None:
        """What is under way, and what has been counted: nothing yet."""
        # jobs and time
        self._commit: jobs.CommitJob | None = None
        self._background: Job | None = None
        self._retry_ns: dict[type[Job], int] = {}
        self._cursor_owed: int | None = None
        self._doomed: set[int] = set()
        # figures
        self._bundles_in = self._rows_in = self._bytes_in = 0
        self._syncs = self._seals = self._refused = self._segments_deleted = 0
        self._sync_ns_last = self._seal_ns_last = 0
        self._quarantined = quarantined

    def __repr__(self) -> str:
        return f"<Engine {self.topic}/core_{self.core} {self.state.name} next_sequence={self._next_sequence}>"

    # --- opening and closing ------------------------------------------------------------------------------------------------

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
            recovered = recover(disk, paths, settings, core)
        except BaseException:
            lock.release()
            raise
        return cls(disk, paths, settings, core, clock, lock, recovered)

    def close(self) -> None:
        """Give the directory back. After a drain the shutdown is recorded as clean; otherwise recovery will have work."""
        if self.state is EngineState.CLOSED:
            return
        clean = self.is_drained
        self._upkeep.close()
        for log in [*self._logs, *([self._spare] if self._spare else [])]:
            log.file.close()
        try:
            if clean:
                self._write_clean_shutdown()
        finally:
            self.state = EngineState.CLOSED
            self._lock.release()

    def _write_clean_shutdown(self) -> None:
        """Leave exact numbers and an empty log that holds the position; derived files only, so no sync rule depends on it."""
        if self._spare is not None:
            self._disk.unlink(self._spare.path)
        identity = Identity(self._next_segment_seq, self._next_sequence, self.incarnation)
        header = encode_header(self._cfg_hash, self._position, identity)
        write_atomically(self._disk, self._paths.active, header)
        write_cursor(self._disk, self._paths, self._position)
        core = CoreFile(self.incarnation, self.core, self._next_segment_seq, self._next_sequence, clean_shutdown=True)
        jobs.write_core(self._disk, self._paths, core)

    def drain(self) -> None:
        """Take no more bundles; what is there is sealed and progress is flushed by the jobs that follow."""
        if self.state in (EngineState.READY, EngineState.FULL):
            self.state = EngineState.DRAINING
            self._close_active()
            self._progress_due_ns = self._clock.monotonic_ns() if self._progress_dirty else None

    @property
    def is_drained(self) -> bool:
        """Everything is in sealed segments and all progress is durable."""
        idle = not self._logs and not self._staged and self._commit is None and self._background is None
        return self.state is EngineState.DRAINING and idle and not self._progress_dirty

    def _fail(self, error: QuiverError) -> list[Event]:
        if self.state is EngineState.FAILED:
            return []
        self.state = EngineState.FAILED
        self.failure = str(error)
        return [Failed(self.failure)]

    # --- ingest -------------------------------------------------------------------------------------------------------------

    def can_stage(self, span_bytes: int) -> bool:
        """Whether `stage` of a push of that size can go on now; if not, ask again after any `finish` or `tick`."""
        if self.state not in (EngineState.READY, EngineState.FULL):
            return False
        if self._next_sequence + PUSH_ENTRIES_MAX > self._core_file.next_sequence_reserved:
            return False
        if self._active is not None and self._fits(self._active, span_bytes):
            return True
        needed = layout.HEADER_BYTES + span_bytes + layout.END_MARK_BYTES
        self._wanted_capacity = max(self._wanted_capacity, needed)
        if len(self._logs) > self.settings.wal.max_rotated_files:
            return False
        if self._next_segment_seq >= self._core_file.next_segment_seq_reserved:
            return False
        return self._spare is not None and self._spare.capacity_bytes >= needed

    def _fits(self, log: Log, span_bytes: int) -> bool:
        """A push stays in one log: it fits if the log is below its target with it, or empty and large enough."""
        if log.closed or log.end + span_bytes + layout.END_MARK_BYTES > log.capacity_bytes:
            return False
        if log.is_empty:
            return True
        full = log.entry_bytes + span_bytes > self.settings.segment.target_size_bytes
        return not full and log.builder.bundle_count + PUSH_ENTRIES_MAX <= SEGMENT_BUNDLES_MAX

    def refusal(self) -> QuiverError | None:
        """Why no push can be taken, None if it only has to wait. StorageFull is for pushes that have waited long enough."""
        if self.state is EngineState.FAILED:
            return EngineFailed(
                f"topic {self.topic!r} on core {self.core} has failed ({self.failure}); its worker is being restarted"
            )
        if self.state in (EngineState.DRAINING, EngineState.CLOSED):
            return Draining(f"topic {self.topic!r} on core {self.core} is shutting down; push to another core or later")
        if self.state is EngineState.FULL:
            return StorageFull(
                f"topic {self.topic!r} on core {self.core}: no room for a log file of {self._capacity_for_next()} bytes; "
                "free space or acknowledge more, pushes go on by themselves"
            )
        return None

    def stage(self, span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]) -> list[AckRun]:
        """Check a push, give its bundles their numbers, complete them in place and queue them for `write`.

        Args:
            span: private, writable copy of the arena bytes; untouched by others until `write`.
            schemas: what the connection declared, by handle.

        Raises:
            ProtocolError: the push is broken; nothing was staged.
            EngineFailed, Draining, StorageFull: see `refusal`.
        """
        if not self.can_stage(len(span)):
            raise self.refusal() or ProtocolError("stage was called although can_stage is false")
        active = self._active
        start_new = active is None or not self._fits(active, len(span))
        at = layout.HEADER_BYTES if start_new or active is None else active.end
        entries, row_count = check_push(span, at, push, schemas)
        log = self._activate_spare() if start_new or active is None else active
        bundle_index, sequence = log.builder.bundle_count, log.sequence_end
        log.stage(span, entries, self._clock.unix_ns(), self._clock.monotonic_ns())
        self._next_sequence = log.sequence_end
        self._position = log.position_end
        if log not in self._staged:
            self._staged.append(log)
        self._bundles_in += len(entries)
        self._rows_in += row_count
        self._bytes_in += len(span)
        return [AckRun(push.tag, log.segment_seq, bundle_index, sequence, len(entries))]

    def _activate_spare(self) -> Log:
        self._close_active()
        log, self._spare = self._spare, None
        assert log is not None, "can_stage promised a spare log"
        log.activate(
            self._cfg_hash, self._position, Identity(self._next_segment_seq, self._next_sequence, self.incarnation)
        )
        self._next_segment_seq += 1
        self._wanted_capacity = 0
        self._logs.append(log)
        self._active = log
        return log

    def _close_active(self) -> None:
        if self._active is not None and not self._active.is_empty:
            self._active.closed = True
            self._active = None

    def write(self) -> list[Event]:
        """Write everything staged, one call per log (there is one, except in the turn of a rotation)."""
        staged, self._staged = self._staged, []
        try:
            for log in staged:
                log.write()
        except QuiverError as error:
            return self._fail(error)
        self.sequence_written = self._next_sequence
        self._close_if_full()
        return []

    def _close_if_full(self) -> None:
        log, limits = self._active, self.settings.segment
        if log is None or log.is_empty:
            return
        builder = log.builder
        if (
            log.entry_bytes >= limits.target_size_bytes
            or builder.bundle_count >= limits.max_bundle_count
            or builder.stream_count >= limits.max_stream_count
        ):
            self._close_active()

    def note_refused(self) -> None:
        """Count a push that the worker refused on this engine's behalf."""
        self._refused += 1

    @property
    def acknowledges(self) -> tuple[int, Durability]:
        """Pushes below that sequence may be acknowledged now, and what that means for them."""
        if self._syncs_each_commit:
            return self.sequence_durable, Durability.SYNCED
        # Not before the log has its name: a file under a temporary name does not survive even a killed process.
        unpublished = [log.identity.first_sequence for log in self._logs if not log.published]
        reached = min([self.sequence_written, *unpublished])
        if self.settings.durability == "segment_only":
            return reached, Durability.OPEN_SEGMENT
        return reached, Durability.WRITTEN

    @property
    def _syncs_each_commit(self) -> bool:
        return self.settings.durability == "wal" and self.settings.wal.flush_interval_ns == 0

    def seal_now(self) -> int | None:
        """Seal the open segment. Returns the newest segment that is on its way to be sealed, None if there is none."""
        self._close_active()
        closed = [log.segment_seq for log in self._logs if log.closed]
        return closed[-1] if closed else None

    # --- the sync thread's work -----------------------------------------------------------------------------------------------

    def next_commit(self) -> Job | None:
        """The next group commit, None if there is nothing to make durable or one is out."""
        if self._commit is not None or self.state is EngineState.FAILED or self.state is EngineState.CLOSED:
            return None
        steps = []
        for log in self._logs:
            if log.has_staged:
                break
            step = self._commit_step(log)
            if step is not None:
                steps.append(step)
        if not steps:
            return None
        self._commit = jobs.CommitJob(self._disk, self._paths, steps)
        return self._commit

    def _commit_step(self, log: Log) -> jobs.CommitStep | None:
        if log.retired or log.written_end == 0:
            return None
        retire_as = None
        if log.closed:
            retire_as = self._paths.rotated(self._rotation_number(log))
        publish = not log.published
        dirty = log.written_end > log.synced_end
        sync = dirty and (publish or log.closed or self._sync_is_due(log))
        if not (sync or publish or retire_as):
            return None
        return jobs.CommitStep(log, log.written_end, log.sequence_end, sync, publish, retire_as)

    def _rotation_number(self, log: Log) -> int:
        self._next_rotation = max(self._next_rotation, log.segment_seq + 1) + 1
        return self._next_rotation - 1

    def _sync_is_due(self, log: Log) -> bool:
        if self._syncs_each_commit or self.state is EngineState.DRAINING:
            return True
        if self.settings.durability == "segment_only":
            return False
        return self._clock.monotonic_ns() - log.dirty_since_ns >= self.settings.wal.flush_interval_ns

    def _finish_commit(self, job: jobs.CommitJob) -> list[Event]:
        self._commit = None
        if job.error is not None:
            return self._fail(job.error)
        self._syncs += 1
        self._sync_ns_last = job.took_ns
        for step in job.steps:
            log = step.log
            if step.sync:
                log.synced_end, log.synced_sequence = step.sync_end, step.sequence_end
                log.dirty_since_ns = self._clock.monotonic_ns()
            log.published = True
            log.retired = log.retired or step.retire_as is not None
        return self._advance_sequences()

    def _advance_sequences(self) -> list[Event]:
        """What is durable ends at the first log that is behind."""
        behind = (log.synced_sequence for log in self._logs if log.synced_sequence < log.sequence_end)
        durable = min(behind, default=self._next_sequence)
        if durable <= self.sequence_durable:
            return []
        self.sequence_durable = durable
        return [Durable(durable)]

    # --- the seal thread's work -------------------------------------------------------------------------------------------------

    def next_background(self) -> Job | None:
        """The next piece of background work, None if there is none or one is out."""
        if self._background is not None or self.state in (EngineState.FAILED, EngineState.CLOSED):
            return None
        self._background = (
            self._reserve_job()
            or self._allocate_job()
            or self._progress_job()
            or self._seal_job()
            or self._quarantine_job()
            or self._delete_job()
            or self._rescue_job()
            or self._verify_job()
            or self._ballast_job()
            or self._upkeep_job()
        )
        if isinstance(self._background, (jobs.ReserveJob, jobs.ProgressJob, jobs.SealJob, jobs.DeleteJob)):
            self._background.ballast = self._ballast
        return self._background

    def _may_try(self, kind: type[Job]) -> bool:
        return self._clock.monotonic_ns() >= self._retry_ns.get(kind, 0)

    def _reserve_job(self) -> Job | None:
        core = self._core_file
        low = (
            self._next_sequence + SEQUENCE_BLOCK // 2 > core.next_sequence_reserved
            or self._next_segment_seq + SEGMENT_SEQ_BLOCK // 2 > core.next_segment_seq_reserved
        )
        if not low or self.state is EngineState.DRAINING or not self._may_try(jobs.ReserveJob):
            return None
        raised = CoreFile(
            self.incarnation,
            self.core,
            self._next_segment_seq + SEGMENT_SEQ_BLOCK,
            self._next_sequence + SEQUENCE_BLOCK,
            clean_shutdown=False,
        )
        return jobs.ReserveJob(self._disk, self._paths, raised)

    def _capacity_for_next(self) -> int:
        target = self.settings.segment.target_size_bytes
        usual = layout.HEADER_BYTES + target + min(_TAIL_SLACK_BYTES, max(_TAIL_SLACK_BYTES_MIN, target))
        return max(usual, self._wanted_capacity)

    def _allocate_job(self) -> Job | None:
        """A spare is made when one is asked for, and kept ready while the engine takes bundles."""
        if self.state is EngineState.DRAINING or not self._may_try(jobs.AllocateJob):
            return None
        spare, capacity = self._spare, self._capacity_for_next()
        if spare is not None:
            if spare.capacity_bytes >= self._wanted_capacity:
                return None
            self._spare = None  # the job has it until it comes back
            return self._allocation(spare.path, capacity, spare)
        if self._active is None and not self._wanted_capacity and self.state is not EngineState.FULL:
            return None
        self._next_spare += 1
        return self._allocation(self._paths.spare(self._next_spare), capacity, None)

    def _allocation(self, path: str, capacity_bytes: int, grow: Log | None) -> Job:
        free_bytes_min = self.settings.retention.min_free_bytes
        return jobs.AllocateJob(self._disk, path, capacity_bytes, grow, free_bytes_min=free_bytes_min)

    def _progress_job(self) -> Job | None:
        due = self._progress_due_ns
        if due is None or self._clock.monotonic_ns() < due or not self._may_try(jobs.ProgressJob):
            return None
        writes = []
        for name in sorted(self._removed - set(self.subscribers())):
            writes.append(jobs.ProgressWrite(self._progress_path(name), None, name, 0))
            writes.append(jobs.ProgressWrite(self._gaps_path(name), None, name, 0))
        writes += self._gap_writes()
        for subscriber, version, progress in self._registry.dirty(self._oldest_unannounced()):
            content = encode_progress(progress)
            writes.append(jobs.ProgressWrite(self._progress_path(subscriber), content, subscriber, version))
        self._progress_due_ns = None
        return jobs.ProgressJob(self._disk, self._paths, writes, self._progress_ticket)

    def _gap_writes(self) -> list[jobs.ProgressWrite]:
        writes = []
        for state in self._registry:
            gaps = state.gaps
            # One that was unregistered and came back at once must not inherit the old notices.
            if gaps.is_dirty or state.subscriber in self._removed:
                content = gaps.encode(state.flushed_version)
                path = self._gaps_path(state.subscriber)
                writes.append(jobs.ProgressWrite(path, content, state.subscriber, gaps.version, is_gaps=True))
        return writes

    def _gaps_path(self, subscriber: str) -> str:
        return self._paths.in_root(gaps_file_name(subscriber))

    def _progress_path(self, subscriber: str) -> str:
        return self._paths.in_root(progress_file_name(subscriber))

    def _oldest_unannounced(self) -> int:
        """The lowest segment number that subscribers have not been told of yet."""
        waiting = [*self._unverified, *self._damaged, *(log.segment_seq for log in self._logs)]
        return min(waiting, default=self._next_segment_seq)

    def _seal_job(self) -> Job | None:
        if not self._logs or not self._logs[0].retired or not self._may_try(jobs.SealJob):
            return None
        return jobs.SealJob(self._disk, self._paths, self._logs[0], self.incarnation)

    def _verify_job(self) -> Job | None:
        """Segments found at open are checked oldest first; those sealed since wait in line behind them."""
        if self.state is EngineState.DRAINING or not self._may_try(jobs.VerifyJob):
            return None
        if self._unverified:
            if self._unverified[0] in self._damaged:
                return None
            return jobs.VerifyJob(self._disk, self._paths, self._unverified[0])
        suspect = next(iter(self._suspects), None)
        return None if suspect is None else jobs.VerifyJob(self._disk, self._paths, suspect, is_suspect=True)

    def _quarantine_job(self) -> Job | None:
        due = (seq for seq, ticket in self._condemned.items() if ticket <= self.progress_durable)
        segment_seq = next(due, None)
        if segment_seq is None or not self._may_try(jobs.QuarantineJob):
            return None
        return jobs.QuarantineJob(self._disk, self._paths, segment_seq)

    def _delete_job(self) -> Job | None:
        if self.state is EngineState.DRAINING or not self._may_try(jobs.DeleteJob):
            return None
        deletable = [seq for seq in self._registry.deletable(self._segments) if seq not in self._suspects]
        self._doomed.update(deletable)
        return jobs.DeleteJob(self._disk, self._paths, deletable, self._cursor_owed) if deletable else None

    def _rescue_job(self) -> Job | None:
        if not self._damaged or self.state is EngineState.DRAINING or not self._may_try(RescueJob):
            return None
        segment_seq = min(self._damaged)
        info = self._segments.get(segment_seq)
        count = info.bundle_count if info else self._registry.known_bundle_count(segment_seq)
        return RescueJob(
            self._disk,
            self._paths,
            segment_seq,
            self._damaged[segment_seq],
            count,
            self._cfg_hash,
            is_count_known=info is not None,
            keeps_unprovable=True,
        )

    def _ballast_job(self) -> Job | None:
        if self._ballast.is_held or self.state is EngineState.DRAINING or not self._may_try(jobs.BallastJob):
            return None
        return jobs.BallastJob(self._ballast)

    def _upkeep_job(self) -> Job | None:
        if self.state not in (EngineState.READY, EngineState.FULL):
            return None
        is_idle = self.state is EngineState.READY and self._commit is None and not self._staged
        return self._upkeep.next_job(is_idle=is_idle)

    # --- jobs come back ---------------------------------------------------------------------------------------------------------

    def finish(self, job: Job) -> list[Event]:
        """Take a finished job back and say what became true by it."""
        if isinstance(job, jobs.CommitJob):
            return self._finish_commit(job)
        self._background = None
        if job.error is not None:
            return self._background_error(job)
        if isinstance(job, jobs.ReserveJob):
            self._core_file = job.core
            return [Resumed()]
        if isinstance(job, jobs.AllocateJob):
            return self._finish_allocate(job)
        if isinstance(job, jobs.ProgressJob):
            return self._finish_progress(job)
        if isinstance(job, jobs.SealJob):
            return self._finish_seal(job)
        if isinstance(job, jobs.VerifyJob):
            return self._finish_verify(job)
        if isinstance(job, RescueJob):
            return self._finish_rescue(job)
        if isinstance(job, jobs.BallastJob):
            return self._finish_ballast()
        if isinstance(job, SlicedJob):
            return self._finish_upkeep(job)
        if isinstance(job, jobs.QuarantineJob):
            del self._condemned[job.segment_seq]
            return []
        assert isinstance(job, jobs.DeleteJob)
        return self._finish_delete(job)

    def _background_error(self, job: Job) -> list[Event]:
        assert job.error is not None
        if not job.no_space:
            return self._fail(job.error)
        self._retry_ns[type(job)] = self._clock.monotonic_ns() + _RETRY_SPACE_NS
        if isinstance(job, jobs.ProgressJob):
            self._progress_due_ns = self._retry_ns[type(job)]
        if isinstance(job, jobs.AllocateJob):
            self._spare = job.spare
            if self.state is EngineState.READY:
                self.state = EngineState.FULL
        if isinstance(job, RescueJob):
            return self._postpone_rescue(job.segment_seq)
        return []

    def _finish_allocate(self, job: jobs.AllocateJob) -> list[Event]:
        self._spare = job.spare
        if self.state is EngineState.FULL:
            self.state = EngineState.READY
        return [Resumed()]

    def _finish_progress(self, job: jobs.ProgressJob) -> list[Event]:
        for write in job.writes:
            if write.content is None:
                self._removed.discard(write.subscriber)
            elif write.is_gaps:
                self._removed.discard(write.subscriber)
                self._registry.mark_gaps_flushed(write.subscriber, write.version)
            else:
                self._registry.mark_flushed(write.subscriber, write.version)
        self.progress_durable = job.ticket
        if self._progress_dirty and self._progress_due_ns is None:
            self._schedule_progress()
        return [ProgressDurable(job.ticket)]

    def _finish_seal(self, job: jobs.SealJob) -> list[Event]:
        assert job.info is not None
        log = self._logs.popleft()
        assert log is job.log
        self._seals += 1
        self._seal_ns_last = job.took_ns
        self._cursor_owed = job.cursor_owed
        info = job.info
        self._segments[info.segment_seq] = info
        self._announceable[info.segment_seq] = info.bundle_count
        self._unverified.append(info.segment_seq)
        self._upkeep.checked(info.segment_seq)
        return [Resumed(), *self._announce()]

    def _announce(self) -> list[Event]:
        """Make verified segments claimable, strictly in order."""
        events: list[Event] = []
        while self._unverified and self._unverified[0] in self._announceable:
            segment_seq = self._unverified.popleft()
            bundle_count = self._announceable.pop(segment_seq)
            info = self._segments[segment_seq]
            self._registry.add_segment(segment_seq, bundle_count, info.size_bytes)
            if lost := self._lost.pop(segment_seq, None):
                self._give_up(segment_seq, info, "damaged", lost)
            events.append(Sealed(segment_seq, bundle_count))
        return [*events, *self._retired_events(), *self._take_events()]

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _finish_verify(self, job: jobs.VerifyJob) -> list[Event]:
        segment_seq = job.segment_seq
        is_suspect = self._suspects.pop(segment_seq, None) is not None
        if is_suspect and job.damage is None:
            return self._take_events()
        if job.damage is not None:
            self._damaged[segment_seq] = job.damage
            return []
        if job.lost:
            self._lost[segment_seq] = _runs(job.lost)
        self._announceable[segment_seq] = self._segments[segment_seq].bundle_count
        self._upkeep.checked(segment_seq)
        return self._announce()

    def _postpone_rescue(self, segment_seq: int) -> list[Event]:
        """No room to rebuild it now: those behind it are delivered first, which may make room."""
        self._retry_ns[RescueJob] = self._clock.monotonic_ns() + _RETRY_RESCUE_NS
        if segment_seq in self._unverified:
            self._unverified.remove(segment_seq)
        return self._announce()

    def _finish_rescue(self, job: RescueJob) -> list[Event]:
        assert job.rescued is not None
        segment_seq, rescued = job.segment_seq, job.rescued
        del self._damaged[segment_seq]
        self._upkeep.forget(segment_seq)
        waits = segment_seq in self._unverified
        if rescued.info is None:
            if waits:
                self._unverified.remove(segment_seq)
            known = self._segments.pop(segment_seq, _nothing_known_of(segment_seq))
            count = max(known.bundle_count, rescued.bundle_count)
            rows = 0 if waits else known.row_count  # what an unchecked footer says of its rows is not to be believed
            self._condemn(segment_seq, msgspec.structs.replace(known, bundle_count=count, row_count=rows))
            return [*self._take_events(), *self._announce()]
        self._quarantined += 1
        self._segments[segment_seq] = rescued.info
        self._upkeep.checked(segment_seq)
        lost = _runs(rescued.lost)
        if not rescued.is_end_known:
            lost.append((rescued.bundle_count, 0))
        if waits:
            self._lost[segment_seq] = lost
            self._announceable[segment_seq] = rescued.bundle_count
            return [Replaced(segment_seq), *self._announce()]
        self._registry.add_segment(segment_seq, rescued.bundle_count, rescued.info.size_bytes)
        if lost:
            self._give_up(segment_seq, rescued.info, "damaged", lost)
        return [Sealed(segment_seq, rescued.bundle_count), Replaced(segment_seq), *self._take_events()]

    def _finish_ballast(self) -> list[Event]:
        if not self._ballast.is_held:
            self._retry_ns[jobs.BallastJob] = self._clock.monotonic_ns() + SECOND_NS
        return []

    def _finish_upkeep(self, job: SlicedJob) -> list[Event]:
        self._upkeep.finish(job)
        info = self._segments.get(job.segment_seq)
        if info is not None and job.damage is not None:
            self._damaged[job.segment_seq] = job.damage
        elif info is not None and isinstance(job, CompactJob) and job.new_size_bytes is not None:
            self._segments[job.segment_seq] = msgspec.structs.replace(info, size_bytes=job.new_size_bytes)
            return [Replaced(job.segment_seq)]
        return []

    def _condemn(self, segment_seq: int, info: SegmentInfo) -> None:
        """Nobody can read that segment: note what everybody loses; once that is durable the file is moved aside."""
        self._quarantined += 1
        self._give_up(segment_seq, info, "damaged")
        self._progress_due_ns = self._clock.monotonic_ns()
        self._condemned[segment_seq] = self._progress_ticket

    def _finish_delete(self, job: jobs.DeleteJob) -> list[Event]:
        self._cursor_owed = None
        self._doomed.difference_update(job.segment_seqs)
        for segment_seq in job.segment_seqs:
            del self._segments[segment_seq]
            self._lost.pop(segment_seq, None)
            self._damaged.pop(segment_seq, None)
            self._suspects.pop(segment_seq, None)
            self._upkeep.forget(segment_seq)
            self._registry.forget_segment(segment_seq, file_is_gone=True)
            if segment_seq in self._unverified:
                self._unverified.remove(segment_seq)
                self._announceable.pop(segment_seq, None)
        self._segments_deleted += len(job.segment_seqs)
        return [Resumed()]

    # --- time ---------------------------------------------------------------------------------------------------------------

    def tick(self) -> list[Event]:
        """Do what time alone asks for: seal an old open segment, end delays of deferred bundles."""
        now_ns = self._clock.monotonic_ns()
        active = self._active
        if active is not None and not active.is_empty:
            age_ns = now_ns - active.first_append_ns
            if age_ns >= self.settings.segment.max_open_duration_ns and not active.has_staged:
                self._close_active()
        due = [Claimable(subscriber) for subscriber in self._registry.due(now_ns)]
        if due:
            self._note_dropped()
        return [*self._take_events(), *due]

    def next_deadline_ns(self) -> int | None:
        """When `tick`, `next_commit` and `next_background` should be called even if nothing else happens."""
        deadlines = [due for due in (self._progress_deadline_ns(), self._registry.next_due_ns()) if due is not None]
        active = self._active
        if self._events:
            deadlines.append(self._clock.monotonic_ns())
        if active is not None and not active.is_empty:
            deadlines.append(active.first_append_ns + self.settings.segment.max_open_duration_ns)
            if active.written_end > active.synced_end and self.settings.wal.flush_interval_ns:
                deadlines.append(active.dirty_since_ns + self.settings.wal.flush_interval_ns)
        now_ns = self._clock.monotonic_ns()
        deadlines += [at for at in self._retry_ns.values() if at > now_ns]
        upkeep_ns = self._upkeep.next_due_ns() if self._background is None else None
        if upkeep_ns is not None and self.state in (EngineState.READY, EngineState.FULL):
            deadlines.append(upkeep_ns)
        return min(deadlines, default=None)

    def _progress_deadline_ns(self) -> int | None:
        due_ns = self._progress_due_ns
        return None if due_ns is None else max(due_ns, self._retry_ns.get(jobs.ProgressJob, 0))

    # --- subscribers --------------------------------------------------------------------------------------------------------

    def register(self, subscriber: str, start: str) -> int:
        """Make a subscriber known, or resume it. Durable once `progress_durable` reaches the returned ticket.

        Args:
            start: see `protocol.messages.Register`; only used when the subscriber is new.

        Raises:
            InvalidId, UsageError: bad id or start.
            DiskError, FormatError: the times of old bundles could not be read.
        """
        begin = parse_start(start)
        if subscriber in self._registry:
            return self.progress_ticket()
        check_id("subscriber", subscriber)
        end = self._end()
        if begin.kind == "latest":
            state = self._registry.register_at(subscriber, end)
        elif begin.kind == "bundle" and begin.core == self.core:
            state = self._registry.register_at(subscriber, min(end, (begin.segment_seq, begin.bundle_index)))
        elif begin.kind == "time":
            state = self._registry.register_with(subscriber, self._resolved_before(begin.unix_ns))
        else:
            state = self._registry.register_at(subscriber, (0, 0))
        for segment_seq in sorted(self._doomed):
            state.forget_segment(segment_seq)  # its file may be gone at any moment: nobody new gets it
        self._progress_changed()
        return self.flush_progress()

    def _end(self) -> tuple[int, int]:
        """Position behind everything appended so far."""
        active = self._active
        return (active.segment_seq, active.builder.bundle_count) if active else (self._next_segment_seq, 0)

    def _resolved_before(self, unix_ns: int) -> dict[int, SegmentProgress]:
        """What of everything appended so far was ingested before that time."""
        found = {}
        for seq, info in self._segments.items():
            if info.last_ingestion_ts_nanos and info.last_ingestion_ts_nanos < unix_ns:
                found[seq] = SegmentProgress(info.bundle_count, bitmaps.full(info.bundle_count))
            elif info.first_ingestion_ts_nanos < unix_ns:
                found[seq] = resolved_before(self._ingestion_times(seq), unix_ns)
        for log in self._logs:
            times = log.builder.bundle_summaries().ingestion_ts_nanos
            if len(times):
                found[log.segment_seq] = resolved_before(times, unix_ns)
        return found

    def _ingestion_times(self, segment_seq: int) -> npt.NDArray[np.int64]:
        """Of a sealed segment, from its manifest only; 0 where it does not say."""
        file = self._disk.open_read(self._paths.segment(segment_seq))
        try:
            footer = read_footer(file.read, file.size())
            manifest = decode_manifest(file.read(footer.manifest_length, footer.manifest_offset))
        finally:
            file.close()
        times = manifest.ingestion_ts_nanos
        return np.array([time or 0 for time in times] if times else [0] * manifest.bundle_count, dtype=np.int64)

    def bundle_time(self, segment_seq: int, bundle_index: int) -> int:
        """When a bundle was ingested, UNIX nanoseconds; 0 where that is not known (any more)."""
        log = next((log for log in self._logs if log.segment_seq == segment_seq), None)
        if log is not None:
            times = log.builder.bundle_summaries().ingestion_ts_nanos
        elif segment_seq in self._segments:
            times = self._ingestion_times(segment_seq)
        else:
            return 0
        return int(times[bundle_index]) if 0 <= bundle_index < len(times) else 0

    def set_terms(self, subscriber: str, *, lease_ns: int, max_deliveries: int, exhausted: str) -> None:
        """
        Raises:
            UnknownSubscriber, UsageError: nothing was changed.
        """
        self._registry.get(subscriber).set_terms(
            lease_ns=lease_ns, max_deliveries=max_deliveries, exhausted=exhausted, now_ns=self._clock.monotonic_ns()
        )

    def unregister(self, subscriber: str) -> tuple[int, int]:
        """Forget a subscriber and what it is owed.

        Returns:
            The ticket (durable once `progress_durable` reaches it) and how many bundles it was owed.

        Raises:
            UnknownSubscriber: it is not known.
        """
        owed = self._unsealed_of(self._registry.get(subscriber)) + self._registry.unregister(subscriber)
        self._removed.add(subscriber)
        self._progress_changed()
        return self.flush_progress(), owed

    def progress_ticket(self) -> int:
        """The ticket that covers every change of progress so far."""
        return self._progress_ticket

    @property
    def _progress_dirty(self) -> bool:
        return bool(self._removed) or self._registry.is_dirty

    def _progress_changed(self) -> None:
        self._progress_ticket += 1
        self._schedule_progress()

    def _schedule_progress(self) -> None:
        if self._progress_due_ns is None:
            now_ns = self._clock.monotonic_ns()
            wait_ns = 0 if self.state is EngineState.DRAINING else self.settings.progress_flush_interval_ns
            self._progress_due_ns = now_ns + wait_ns

    def flush_progress(self) -> int:
        """Flush with the next background job instead of after the interval. Returns the ticket to wait for."""
        if self._progress_dirty:
            self._progress_due_ns = self._clock.monotonic_ns()
        return self._progress_ticket

    # --- claims ---------------------------------------------------------------------------------------------------------------

    def claim(
        self,
        subscriber: str,
        owner: object,
        bundles: int,
        *,
        order: str = OLDEST,
        backfill_ratio: int = 0,
        size_limit_bytes: int | None = None,
    ) -> list[Grant]:
        """Give at most that many sealed bundles to `owner`; see `SubscriberState.claim`.

        Oldest first stops where a gap notice has to be told first: take it with `take_gap` and claim again.
        """
        state = self._registry.get(subscriber)
        notice = state.gaps.next_untold() if order == OLDEST else None
        return state.claim(
            owner,
            bundles,
            self._clock.monotonic_ns(),
            order=order,
            backfill_ratio=backfill_ratio,
            before=notice.position if notice else None,
            size_limit_bytes=size_limit_bytes,
        )

    def claim_ref(self, subscriber: str, owner: object, segment_seq: int, bundle_index: int) -> Grant:
        """Raises UnknownSubscriber, AlreadyResolved or NotClaimed; see `SubscriberState.claim_ref`."""
        now_ns = self._clock.monotonic_ns()
        return self._registry.get(subscriber).claim_ref(owner, segment_seq, bundle_index, now_ns)

    def resolve(
        self,
        subscriber: str,
        owner: object,
        segment_seq: int,
        token: int,
        outcome: str,
        indexes: Sequence[int],
        delay_ns: int,
    ) -> list[tuple[str, list[int]]]:
        """Finish claims; see `SubscriberState.resolve`.

        Raises:
            UsageError: unknown outcome or subscriber; nothing was changed.
        """
        state = self._registry.get(subscriber)
        version = state.version
        refused = state.resolve(owner, segment_seq, token, outcome, indexes, delay_ns, self._clock.monotonic_ns())
        if state.version != version:
            self._note_resolved()
        return refused

    def ack_through(self, subscriber: str, segment_seq: int, bundle_index: int) -> int:
        """Resolve everything up to and including that bundle; returns the ticket that makes it durable.

        Raises:
            UnknownSubscriber: it is not known.
            UsageError: no such bundle was appended yet.
        """
        state = self._registry.get(subscriber)
        end = self._end()
        if (segment_seq, bundle_index) >= end or bundle_index < 0 or segment_seq < 0:
            raise UsageError(
                f"bundle {segment_seq}/{bundle_index} does not exist on core {self.core}: the next one is {end[0]}/{end[1]}"
            )
        counts = {seq: self._segments[seq].bundle_count for seq in self._unverified if seq in self._segments}
        counts.update((log.segment_seq, log.builder.bundle_count) for log in self._logs)
        version = state.version
        state.ack_through(segment_seq, bundle_index, {seq: n for seq, n in counts.items() if seq <= segment_seq})
        if state.version != version:
            self._note_resolved()
        return self.flush_progress()

    def _note_resolved(self) -> None:
        self._progress_changed()
        self._events += self._retired_events()

    def extend(self, subscriber: str, owner: object, tokens: Iterable[int]) -> tuple[int, list[int]]:
        """Start leases anew; see `SubscriberState.extend`."""
        return self._registry.get(subscriber).extend(owner, tokens, self._clock.monotonic_ns())

    def held(self, subscriber: str, owner: object) -> tuple[int, int]:
        """(bundles, bytes) of that subscriber that `owner` holds."""
        return self._registry.get(subscriber).held(owner)

    def claimable_count(self, subscriber: str) -> int:
        return self._registry.get(subscriber).claimable_count

    def subscribers(self) -> list[str]:
        return [state.subscriber for state in self._registry]

    def _retired_events(self) -> list[Event]:
        return [Retired(subscriber, segment_seq) for subscriber, segment_seq in self._registry.completed_since()]

    def release(self, owner: object) -> list[Event]:
        """A connection is gone: its claims are pending again at once."""
        released: list[Event] = [Claimable(subscriber) for subscriber in self._registry.release(owner)]
        self._note_dropped()
        return released

    def _note_dropped(self) -> None:
        """Giving bundles back may have resolved some: delivered too often."""
        if self._registry.is_dirty:
            self._note_resolved()

    # --- losses -----------------------------------------------------------------------------------------------------------------

    def take_gap(self, subscriber: str, owner: object, *, in_order: bool = True) -> GapNotice | None:
        """The notice that `owner` is to be told now, if it is durable; with `in_order` only once no older bundle is pending.

        It stays with that owner until `ack_gap`, its `release`, or the end of a lease.
        """
        state = self._registry.get(subscriber)
        notice = state.gaps.next_untold()
        if notice is None or not state.gaps.is_durable(notice):
            return None
        oldest = state.oldest_pending() if in_order else None
        if oldest is not None and oldest < notice.position:
            return None
        lease_ns = state.lease_ns
        state.gaps.give(notice, owner, self._clock.monotonic_ns() + lease_ns if lease_ns else 0)
        return notice

    def ack_gap(self, subscriber: str, notice: int) -> int:
        """A consumer has been told. Returns the ticket that makes it durable."""
        self._registry.get(subscriber).gaps.ack(notice)
        if self._registry.is_dirty:
            self._progress_changed()
        return self.flush_progress()

    def drop_segment(self, segment_seq: int, reason: str) -> int:
        """Give a sealed segment up for everybody who has not resolved it (`evicted`, `expired`, `dropped`). Its file can go once
        `progress_durable` reaches the returned ticket, and goes by itself.
        """
        info = self._segments.get(segment_seq)
        if info is not None and segment_seq not in self._unverified:
            self._give_up(segment_seq, info, reason)
        return self.flush_progress()

    def check_segment(self, segment_seq: int, reason: str) -> None:
        """Somebody could not read it: look at the whole file in the background, quarantine it if it is damaged."""
        if segment_seq in self._segments and segment_seq not in self._unverified:
            self._suspects.setdefault(segment_seq, reason)

    def _give_up(
        self, segment_seq: int, info: SegmentInfo, reason: str, lost: list[tuple[int, int]] | None = None
    ) -> None:
        def rows(first: int, count: int) -> int:
            whole = lost is None and count == info.bundle_count and info.row_count
            return info.row_count if whole else -1

        for subscriber, notice in self._registry.give_up(segment_seq, info.bundle_count, reason, rows, lost):
            position = (segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._events.append(GapFound(subscriber, *position, reason))
        self._note_resolved()
        self._progress_due_ns = self._clock.monotonic_ns()

    # --- dead letters -------------------------------------------------------------------------------------------------------------

    def exhausted(self, subscriber: str) -> tuple[int, int] | None:
        """The next bundle that waits for its dead letter, now the caller's to bury; None if there is none."""
        state = self._registry.get(subscriber)
        while state.exhausted:
            position = state.exhausted.popleft()
            if state.is_exhausted(*position):
                return position
        return None

    def exhausted_again(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """Its dead letter could not be written: try it later."""
        if subscriber in self._registry:
            self._registry.get(subscriber).exhausted.append((segment_seq, bundle_index))

    def delivery_count(self, subscriber: str, segment_seq: int, bundle_index: int) -> int:
        return self._registry.get(subscriber).delivery_count(segment_seq, bundle_index)

    def bury(self, subscriber: str, segment_seq: int, bundle_index: int) -> None:
        """The dead letter of that bundle is durable. Ignored if the subscriber is gone."""
        if subscriber in self._registry and self._registry.get(subscriber).bury(segment_seq, bundle_index):
            self._note_resolved()

    # --- what is owed ---------------------------------------------------------------------------------------------------------------

    def pending(
        self, subscriber: str, start: tuple[int, int] = (0, 0), end: tuple[int, int] | None = None
    ) -> PendingCounts:
        """What the subscriber is owed, and how much of it lies in `start..end`."""
        state = self._registry.get(subscriber)
        unsealed = self._unsealed_of(state)
        in_range = state.unresolved_between(start, end)
        for seq, count in self._unannounced().items():
            first = 0 if seq > start[0] else start[1] if seq == start[0] else count
            stop = count if end is None or seq < end[0] else end[1] if seq == end[0] else 0
            stop = min(stop, count)
            if first < stop:
                in_range += state.unresolved_in_unsealed(seq, stop) - state.unresolved_in_unsealed(seq, first)
        return PendingCounts(
            pending=state.claimable_count,
            claimed=state.claimed_count,
            deferred=state.waiting_count,
            blocked=state.blocked_count,
            unsealed=unsealed,
            gaps=state.gaps.untold_count,
            oldest=state.oldest_unresolved(),
            in_range=in_range,
            drained=state.needs_nothing and not unsealed,
        )

    def _unannounced(self) -> dict[int, int]:
        """Bundle counts of what subscribers have not been told of: unsealed logs, and segments that wait for their check."""
        counts = {seq: self._segments[seq].bundle_count for seq in self._unverified if seq in self._segments}
        counts.update((log.segment_seq, log.builder.bundle_count) for log in self._logs)
        return counts

    def _unsealed_of(self, state: SubscriberState) -> int:
        return sum(state.unresolved_in_unsealed(seq, count) for seq, count in self._unannounced().items())

    # --- reading ------------------------------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """All sealed segments, oldest first."""
        return [self._segments[segment_seq] for segment_seq in sorted(self._segments)]

    def open_segment(self, segment_seq: int) -> tuple[int, int]:
        """A read-only descriptor of a sealed segment, which the caller closes, and the file's size.

        Raises:
            InvalidFormat: no such segment here (any more).
        """
        info = self._segments.get(segment_seq)
        if info is None:
            raise InvalidFormat(f"topic {self.topic!r} on core {self.core} has no sealed segment {segment_seq}")
        file = self._disk.open_read(self._paths.segment(segment_seq))
        try:
            # Its own size: a compaction may have put another file there, and not be finished here yet.
            return os.dup(file.fileno()), file.size()
        finally:
            file.close()

    # --- figures ------------------------------------------------------------------------------------------------------------

    def figures(self) -> EngineFigures:
        """A snapshot for the counters page."""
        active = self._active
        segment_bytes = sum(info.size_bytes for info in self._segments.values())
        logs = [*self._logs, *([self._spare] if self._spare else [])]
        return EngineFigures(
            state=self.state,
            bundles_in=self._bundles_in,
            rows_in=self._rows_in,
            bytes_in=self._bytes_in,
            wal_bytes=sum(log.entry_bytes for log in self._logs),
            open_segment_bytes=active.entry_bytes if active else 0,
            open_segment_bundles=active.builder.bundle_count if active else 0,
            segments=len(self._segments),
            segment_bytes=segment_bytes,
            segment_bundles=sum(info.bundle_count for info in self._segments.values()),
            syncs=self._syncs,
            seals=self._seals,
            sync_ns_last=self._sync_ns_last,
            seal_ns_last=self._seal_ns_last,
            sequence_written=self.sequence_written,
            sequence_durable=self.sequence_durable,
            refused=self._refused,
            disk_bytes=segment_bytes + sum(log.capacity_bytes for log in logs),
            segments_deleted=self._segments_deleted,
            quarantined=self._quarantined,
            compactions=self._upkeep.compactions,
            compacted_bytes_saved=self._upkeep.saved_bytes,
            last_scrub_unix_ns=0 if self._unverified or self._damaged else self._upkeep.oldest_check_unix_ns,
            scrubbed_bytes=self._upkeep.scrubbed_bytes,
        )

    def subscriber_figures(self) -> dict[str, SubscriberFigures]:
        """A snapshot per subscriber."""
        return {subscriber: self.figures_of(subscriber) for subscriber in self.subscribers()}

    def figures_of(self, subscriber: str) -> SubscriberFigures:
        """A snapshot of one subscriber. Raises UnknownSubscriber."""
        state = self._registry.get(subscriber)
        lag = state.unresolved_count + self._unsealed_of(state)
        return SubscriberFigures(
            lag_bundles=lag,
            oldest_unix_ns=self._oldest_unix_ns(state.oldest_unresolved()) if lag else 0,
            claimed=state.claimed_count,
            acked=state.acked,
            rejected=state.rejected,
            deferred=state.deferred,
            delivered=state.delivered,
            pending=state.claimable_count,
            waiting=state.waiting_count,
            blocked=state.blocked_count,
            gaps=state.gaps.untold_count,
            redelivered=state.redelivered,
            expired=state.expired,
            dead_lettered=state.dead_lettered,
            dropped=state.dropped,
        )

    def _oldest_unix_ns(self, oldest: tuple[int, int] | None) -> int:
        """Ingestion time of the segment in which the oldest unresolved bundle is: exact to one segment."""
        info = self._segments.get(oldest[0]) if oldest else None
        if info is not None:
            return info.first_ingestion_ts_nanos
        return next((log.builder.first_ingestion_ts_nanos for log in self._logs if not log.is_empty), 0)


def _nothing_known_of(segment_seq: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, 0, 0, 0, 0, 0)


def _runs(indexes: Sequence[int]) -> list[tuple[int, int]]:
    """Rising indexes as (first, count)."""
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs
