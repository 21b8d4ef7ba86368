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

from collections.abc import Iterable, Sequence

import msgspec

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.homes import STANDING_ALONE, ProducerHomes
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import AlreadyRunning, NotStored, QuiverError, UsageError
from quiver_actors.store.disk.protocol import DirectoryLock, Disk, write_atomically
from quiver_actors.store.engine.claims import Claims
from quiver_actors.store.engine.condition import EngineState
from quiver_actors.store.engine.engine_figures import EngineFigures
from quiver_actors.store.engine.events import Claimable, Event
from quiver_actors.store.engine.figures import figures_of
from quiver_actors.store.engine.owed import Owed
from quiver_actors.store.engine.parts import assemble
from quiver_actors.store.engine.registrations import Registrations
from quiver_actors.store.engine.storage import Storage
from quiver_actors.store.engine.work import Work
from quiver_actors.store.files.cold_directory import ColdDisks, posix_cold_disk
from quiver_actors.store.files.own_directory import check_still_there
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold import ColdJob
from quiver_actors.store.jobs.commits import CommitJob, EmptyLogJob
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.records import write_core
from quiver_actors.store.jobs.sealing import write_cursor
from quiver_actors.store.recovery import Recovered, recover
from quiver_actors.store.recovery.cold import ColdPlace
from quiver_actors.store.wal.codec import encode_header
from quiver_actors.store.wal.contract import segment_cfg_hash


class Engine:
    """The store of one topic on one core: its state, its jobs and its time. What else it does is done by its parts.

    Attributes:
        topic, core, incarnation: what the engine is.
        settings: the topic's.
        recovery_notes: what recovery has found and done, for an operator.
        intake: takes pushes.
        group_commit: says how far pushes may be acknowledged.
        registrations: the subscribers.
        claims: gives bundles to consumers and takes back what became of them.
        owed: says what subscribers are owed.
        progress: says how far the subscribers' progress is durable.
        stages: the staged bundles.
        readable_end: how far bundles of logs are shown.
        retention: decides what the engine keeps and what goes.
        disk_account: what the directory takes of the disk.
        storage: room on the disk, and load.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        core: int,
        clock: Clock,
        lock: DirectoryLock,
        recovered: Recovered,
        homes: ProducerHomes,
        cold_disks: ColdDisks,
    ) -> None:
        """Call `open` instead, which locks and recovers the directory first."""
        parts = assemble(disk, paths, settings, core, clock, recovered, homes, cold_disks)
        logs, progress, sealed_segments = parts.logs, parts.progress, parts.sealed_segments
        self.core = core
        self.settings = settings
        self.intake = parts.intake
        self.group_commit = parts.group_commit
        self.progress = progress
        self.owed = Owed(logs, progress, sealed_segments)
        self.registrations = Registrations(
            core,
            clock,
            logs,
            progress,
            sealed_segments,
            parts.readable_end,
            self.owed,
            parts.unannounced,
            lambda: parts.numbers.next_segment_seq,
        )
        self.claims = Claims(core, clock, logs, progress, sealed_segments.waiting, self.owed)
        self.stages = parts.stages
        self.readable_end = parts.readable_end
        self.retention = parts.retention
        self.disk_account = parts.disk_account
        self._parts = parts
        self._work = Work(parts)
        self.storage = Storage(parts, self._work.tasks)
        self.incarnation = parts.numbers.incarnation
        self.recovery_notes = list(recovered.notes)
        self._disk = disk
        self._paths = paths
        self._lock = lock
        sealed_segments.offer_cold()
        parts.repair.give_up_missing(recovered.missing)
        parts.repair.count_missing_logs(recovered.missing_logs)
        if parts.progress.is_dirty:
            parts.progress.changed()

    def __repr__(self) -> str:
        return f"<Engine {self.topic}/core_{self.core} {self.state.name} next_sequence={self._parts.numbers.next_sequence}>"

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.settings.name

    @property
    def state(self) -> EngineState:
        """Whether the engine takes bundles, is full, draining, failed or closed."""
        return self._parts.condition.state

    @property
    def failure(self) -> str | None:
        """The error that made the engine fail; None while it has not failed."""
        return self._parts.condition.failure

    # --- opening and closing -----------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        settings: TopicSettings,
        core: int,
        clock: Clock,
        homes: ProducerHomes = STANDING_ALONE,
        *,
        was_open: bool = False,
        cold_disks: ColdDisks = posix_cold_disk,
    ) -> Engine:
        """Lock and recover the directory. Blocking.

        Args:
            homes: says to which of the node's workers each idempotent producer pushes.
            was_open: this node has had the directory open before, so it is not made anew.
            cold_disks: open the disk that is to be found at a cold directory.

        Raises:
            AlreadyRunning: another process has it open.
            DirectoryGone: it was open before, and is not there now.
            UnsupportedVersion, ConfigMismatch: nothing was changed.
            DiskError: recovery could not finish; it can be tried again.
        """
        paths = EnginePaths(directory)
        if was_open:
            check_still_there(disk, paths)
        else:
            disk.make_directory(directory)
        lock = disk.lock(paths.lock)
        if lock is None:
            raise AlreadyRunning(
                f"{directory} is open in another process: stop it first, because only one process may write a directory"
            )
        try:
            if was_open:  # it may have gone before it was locked
                check_still_there(disk, paths)
            cold = ColdPlace(cold_disks, settings.tier.cold_dir)
            recovered = recover(disk, paths, settings, core, homes.generation, cold)
            return cls(disk, paths, settings, core, clock, lock, recovered, homes, cold_disks)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Give the directory back. After a drain the shutdown is recorded as clean; otherwise recovery will have work."""
        if self.state is EngineState.CLOSED:
            return
        clean = self.is_drained
        self.storage.share_room(_refuse_room)  # the worker's refers to this engine, which would keep itself in memory
        self._parts.sealed_segments.close()
        self._parts.cold.files.close()
        self.readable_end.close()
        self._parts.disk_account.held_files.close()
        self._parts.upkeep.close()
        self._parts.logs.close()
        self.stages.close()
        try:
            if clean:
                self._write_clean_shutdown()
        finally:
            self._parts.condition.enter(EngineState.CLOSED)
            self._lock.release()

    def _write_clean_shutdown(self) -> None:
        """Leave exact numbers and an empty log that holds the position; derived files only, so no sync rule depends on it."""
        self._parts.logs.spare.unlink()
        self._parts.sealed_segments.summaries.save()
        numbers = self._parts.numbers
        header = encode_header(segment_cfg_hash(self.settings), numbers.position, numbers.identity())
        write_atomically(self._disk, self._paths.active, header)
        write_cursor(self._disk, self._paths, numbers.position)
        write_core(self._disk, self._paths, numbers.exact())

    def change_settings(self, settings: TopicSettings) -> None:
        """Live by other settings from now on. Name and slots are part of what the engine is: they stay as they were.

        Raises:
            UsageError: they differ.
        """
        if (settings.name, settings.slots) != (self.topic, self.settings.slots):
            raise UsageError(
                f"topic {self.topic!r} on core {self.core}: name and slots of an open engine cannot be changed"
            )
        self.settings = settings
        self._parts.change_settings(settings)

    def drain(self) -> None:
        """Take no more bundles; what is there is sealed and progress is flushed by the jobs that follow."""
        if self._parts.condition.takes_bundles:
            self._parts.condition.enter(EngineState.DRAINING)
            self._parts.logs.close_active()
            self.stages.drain()
            self.progress.drain()

    @property
    def is_drained(self) -> bool:
        """Whether everything is in sealed segments and all progress is durable."""
        idle = not len(self._parts.logs) and self.group_commit.is_idle and self._work.is_idle
        return self._parts.condition.is_draining and idle and self.stages.table.is_settled and self.progress.is_settled

    # --- ingest ------------------------------------------------------------------------------------------------------------

    def write(self) -> list[Event]:
        """Write everything staged; nothing after a failure."""
        if self._parts.condition.is_over:
            return []
        try:
            self._parts.logs.write()
        except QuiverError as error:
            return self._parts.condition.fail(error)
        return []

    def seal_now(self) -> int | None:
        """Seal the open segment. Returns the newest segment that is on its way to be sealed, None if there is none."""
        return self._parts.logs.seal_now()

    # --- work for threads --------------------------------------------------------------------------------------------------

    def next_commit(self) -> Job | None:
        """The next group commit, for the sync thread; None if there is nothing to make durable or one is under way."""
        return self.group_commit.next()

    def next_background(self) -> Job | None:
        """The next background job, for the seal thread; None if there is nothing to do or one is under way."""
        return self._work.next()

    def finish(self, job: Job) -> list[Event]:
        """Take a finished job back and say what became true by it."""
        if isinstance(job, ColdJob):
            return [*self._parts.relocation.finish(job), *self._parts.cold.files.take_events()]
        if isinstance(job, CommitJob):
            steps = job.steps if job.rotates else ()
            happened = self.group_commit.finish(job)
            if steps:
                self.readable_end.retired([step.log for step in steps if step.retire_as is not None])
        elif isinstance(job, EmptyLogJob):
            return self.group_commit.finish_empty_log(job)
        else:
            happened = self._work.finish(job)
        return [*happened, *self._parts.cold.files.take_events(), *self.readable_end.advance()]

    # --- time --------------------------------------------------------------------------------------------------------------

    def tick(self) -> list[Event]:
        """Do what time alone asks for: seal an old open segment, end delays of deferred bundles, let go what is too old."""
        self._parts.logs.tick()
        shown = self.readable_end.advance()
        expired = self.retention.tick()
        due = [Claimable(subscriber) for subscriber in self.progress.registry.due(self._parts.clock.monotonic_ns())]
        if due:
            self.progress.note_given_back()
        return [*shown, *expired, *self.progress.take_events(), *self._parts.cold.files.take_events(), *due]

    def next_deadline_ns(self) -> int | None:
        """When `tick`, `next_commit` and `next_background` should be called even if nothing else happens."""
        deadlines = [*self._parts.logs.deadlines_ns(), *self._work.deadlines_ns()]
        delays_ns = self.progress.registry.attention.next_due_ns()
        waits = delays_ns, self.retention.deadline_ns(), self._parts.relocation.due_ns()
        deadlines += [at for at in waits if at is not None]
        if self.progress.has_events:
            deadlines.append(self._parts.clock.monotonic_ns())
        return min(deadlines, default=None)

    # --- segments ----------------------------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """All sealed segments, oldest first."""
        sealed = self._parts.sealed_segments
        waiting, lost = sealed.waiting, sealed.segments.lost
        if not (waiting or lost):
            return list(sealed)
        return [
            msgspec.structs.replace(
                info, is_checked=info.segment_seq not in waiting, lost_count=lost.get(info.segment_seq, 0)
            )
            if info.segment_seq in waiting or info.segment_seq in lost
            else info
            for info in sealed
        ]

    def unlisted_segments(self) -> list[int]:
        """Numbers of segments that `segments` lacks: not sealed yet, or damaged with nothing known of them before their rescue."""
        return sorted(self._parts.unlisted())

    @property
    def next_segment_seq(self) -> int:
        """The number that the next log gets: no segment has had it or a higher one."""
        return self._parts.numbers.next_segment_seq

    def open_segment(self, segment_seq: int, *, for_guest: bool = False) -> tuple[int, int]:
        """A read-only descriptor of a sealed segment, which the caller closes, and the file's size.

        Args:
            for_guest: it goes to another user: once the segment is deleted, that descriptor keeps its blocks for a while only.

        Raises:
            NotStored: no such segment here (any more).
            StorageUnavailable: its file cannot be opened now, as while it is being replaced by what could be saved of it.
            ColdStorageUnavailable: it is on the cold disk, and is being opened; `ColdOpened` tells when it is.
        """
        if segment_seq not in self._parts.sealed_segments.segments:
            raise NotStored(f"topic {self.topic!r} on core {self.core} has no sealed segment {segment_seq} (any more)")
        return self._parts.sealed_segments.open(segment_seq, for_guest=for_guest)

    def check_segment(self, segment_seq: int, bundles: Iterable[int] = ()) -> None:
        """Check a segment that somebody could not read, in the background: the whole file, and these bundles of it; of a log these bundles
        alone. A damaged file is rescued or quarantined; whoever loses bundles is told, also where the file was deleted, or a bundle cannot
        be decoded."""
        if not self._parts.open_checks.suspect(segment_seq, bundles):
            self._parts.repair.suspect(segment_seq, bundles)

    def cannot_read(
        self, subscriber: str, owner: object, segment_seq: int, token: int, indexes: Sequence[int], delay_ns: int
    ) -> tuple[list[tuple[str, list[int]]], list[int]]:
        """Take back claimed bundles that a consumer could not read, and look at them. They come again after the delay, and that counts
        as no delivery: a file that is being rescued must not cost a subscriber with `max_deliveries` bundles that are whole. Those that
        came often enough, and can be decoded here, are set aside for this subscriber alone.

        Returns:
            What was refused, as of `resolve`; and the bundles that were set aside.

        Raises:
            UsageError: unknown subscriber; nothing was changed.
        """
        failures = self._parts.repair.failures
        is_archived = self.registrations.is_archived(subscriber, segment_seq)
        if is_archived:
            # Nothing of it is here to be looked at: whoever reads it has compared it with the checksums of the archive.
            failures.note(subscriber, segment_seq, ())
            failures.note_decodable(segment_seq, indexes)
        last = failures.last_tries(subscriber, segment_seq, indexes)
        again = [index for index in indexes if index not in last] if last else indexes
        refused = self.claims.resolve(subscriber, owner, segment_seq, token, "set_aside", last, 0) if last else []
        refused += (
            self.claims.resolve(subscriber, owner, segment_seq, token, "return", again, delay_ns) if again else []
        )
        not_held = {index for _, some in refused for index in some}
        held = [index for index in indexes if index not in not_held]
        failures.note(subscriber, segment_seq, held)
        if not is_archived:
            self.check_segment(segment_seq, held)
        return refused, [index for index in last if index not in not_held]

    # --- figures -----------------------------------------------------------------------------------------------------------

    def figures(self) -> EngineFigures:
        """A snapshot for the counters page."""
        return figures_of(self._parts, self.storage.disk_bytes)


def _refuse_room(_: int) -> bool:
    return False
