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

from collections.abc import Mapping

import msgspec

from quiver_actors import jobs
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import DirectoryLock, Disk, write_atomically
from quiver_actors.engine.condition import EngineState
from quiver_actors.engine.figures import figures_of
from quiver_actors.engine.parts import assemble
from quiver_actors.engine.storage_side import StorageSide
from quiver_actors.engine.subscriber_side import SubscriberSide
from quiver_actors.engine.work import Work
from quiver_actors.engine_figures import EngineFigures
from quiver_actors.errors import AlreadyRunning, NotStored, QuiverError, UsageError
from quiver_actors.events import Claimable, Event
from quiver_actors.jobs import Job
from quiver_actors.model import Durability
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import AckRun, Push, SegmentInfo
from quiver_actors.recovery import Recovered, recover
from quiver_actors.sealing import write_cursor
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.wal.codec import encode_header
from quiver_actors.wal.contract import segment_cfg_hash


class Engine(SubscriberSide, StorageSide):
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
        parts = assemble(disk, paths, settings, core, clock, recovered)
        SubscriberSide.__init__(self, core, clock, parts.logs, parts.progress, parts.shelf, parts.unannounced)
        StorageSide.__init__(self, settings, parts, Work(parts))
        self.topic = settings.name
        self.incarnation = parts.numbers.incarnation
        self.recovery_notes = list(recovered.notes)
        self._place = f"topic {self.topic!r} on core {core}"
        self._disk = disk
        self._paths = paths
        self._lock = lock
        self._condition = parts.condition
        parts.mending.give_up_missing(recovered.missing)
        parts.mending.count_missing_logs(recovered.missing_logs)
        if parts.progress.is_dirty:
            parts.progress.changed()

    def __repr__(self) -> str:
        return f"<Engine {self.topic}/core_{self.core} {self.state.name} next_sequence={self._parts.numbers.next_sequence}>"

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
        self._parts.upkeep.close()
        self._logs.close()
        self.stages.close()
        try:
            if clean:
                self._write_clean_shutdown()
        finally:
            self._condition.enter(EngineState.CLOSED)
            self._lock.release()

    def _write_clean_shutdown(self) -> None:
        """Leave exact numbers and an empty log that holds the position; derived files only, so no sync rule depends on it."""
        self._logs.unlink_spare()
        numbers = self._parts.numbers
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
        self._parts.change_settings(settings)

    def drain(self) -> None:
        """Take no more bundles; what is there is sealed and progress is flushed by the jobs that follow."""
        if self._condition.takes_bundles:
            self._condition.enter(EngineState.DRAINING)
            self._logs.close_active()
            self.stages.drain()
            self._progress.drain()

    @property
    def is_drained(self) -> bool:
        """Everything is in sealed segments and all progress is durable."""
        idle = not len(self._logs) and self._parts.group_commit.is_idle and self._work.is_idle
        return self._condition.is_draining and idle and self.stages.is_settled and not self._progress.is_dirty

    # --- ingest ------------------------------------------------------------------------------------------------------------

    def can_stage(self, span_bytes: int) -> bool:
        """Whether `stage` of a push of that size can go on now; if not, ask again after any `finish` or `tick`."""
        return self._parts.intake.can_stage(span_bytes)

    def refusal(self) -> QuiverError | None:
        """Why no push can be taken, None if it only has to wait. StorageFull is for pushes that have waited long enough."""
        return self._parts.intake.refusal()

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
        return self._parts.intake.stage(span, push, schemas)

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
        self._parts.intake.refused += 1

    @property
    def acknowledges(self) -> tuple[int, Durability]:
        """Pushes below that sequence may be acknowledged now, and what that means for them."""
        return self._parts.group_commit.acknowledges

    @property
    def sequence_written(self) -> int:
        """Every bundle below it is written to its log."""
        return self._logs.sequence_written

    @property
    def sequence_durable(self) -> int:
        """Every bundle below it is covered by a sync."""
        return self._parts.group_commit.sequence_durable

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
        return self._parts.group_commit.next()

    def next_background(self) -> Job | None:
        """The next piece of background work, for the seal thread; None if there is none or one is out."""
        return self._work.next()

    def finish(self, job: Job) -> list[Event]:
        """Take a finished job back and say what became true by it."""
        if isinstance(job, jobs.CommitJob):
            return self._parts.group_commit.finish(job)
        return self._work.finish(job)

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
        deadlines = [*self._logs.deadlines_ns(), *self._work.deadlines_ns()]
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

    def unlisted_segments(self) -> list[int]:
        """Numbers of those that are no sealed segments yet, or damaged ones of which nothing is known before their rescue."""
        return sorted(self._parts.unlisted())

    @property
    def next_segment_seq(self) -> int:
        """The number that the next log gets: no segment has had it or a higher one."""
        return self._parts.numbers.next_segment_seq

    def open_segment(self, segment_seq: int) -> tuple[int, int]:
        """A read-only descriptor of a sealed segment, which the caller closes, and the file's size.

        Raises:
            NotStored: no such segment here (any more).
        """
        if segment_seq not in self._shelf.segments:
            raise NotStored(f"{self._place} has no sealed segment {segment_seq} (any more)")
        return self._shelf.open(segment_seq)

    def check_segment(self, segment_seq: int, reason: str) -> None:
        """Somebody could not read it: look at the whole file in the background, quarantine it if it is damaged."""
        self._parts.mending.suspect(segment_seq, reason)

    # --- figures -----------------------------------------------------------------------------------------------------------

    def figures(self) -> EngineFigures:
        """A snapshot for the counters page."""
        return figures_of(self._parts, self.disk_bytes)
