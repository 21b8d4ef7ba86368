"""Group commit: what the sync thread makes durable next, and how far pushes may be acknowledged.

Owner: the engine, on the loop thread. One commit is out at a time; what was written meanwhile rides on the next.
"""

from __future__ import annotations

from itertools import islice

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.model import Durability
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.events import Durable, Event
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.commits import CommitJob, CommitStep, EmptyLogJob, LoneCommit, new_step
from quiver_actors.store.wal.codec import encode_empty_header
from quiver_actors.store.wal.contract import segment_cfg_hash
from quiver_actors.store.wal.log import Log

_SYNCED = Durability.SYNCED
"""Looked up once: each push asks for it, and a member of an enum takes longer to look up."""


class GroupCommit:
    """Makes the jobs that sync the logs of one engine, and says how far pushes may be acknowledged.

    Attributes:
        sequence_durable: bundles with a lower sequence are covered by a sync.
        archives_as: incarnation under which the archive has what pushes wait for, as in `Acked`.
        syncs, sync_ns_last: how many commits were done, and how long the last of them took.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
        logs: LogQueue,
    ) -> None:
        self.sequence_durable = numbers.next_sequence
        self.syncs = self.sync_ns_last = 0
        self._disk = disk
        self._paths = paths
        self._numbers = numbers
        self.change_settings(settings)
        self._clock = clock
        self._condition = condition
        self._logs = logs
        self._commit: CommitJob | EmptyLogJob | None = None
        self._lone = LoneCommit(disk, paths)
        self._is_sync_wanted = False
        self._empty_at = numbers.position
        """Log position of the empty log that stands ready for any writer, or for which there was no room."""

    def begin_lone(self, log: Log, size_bytes: int) -> LoneCommit | None:
        """Begin the commit of another bundle of that size, which is about to be written behind others that are all durable. It comes back
        by `finish_lone` or `finish`. None: a commit is under way, or a sync is not what pushes wait for."""
        if self._commit is not None or not self._may_be_lone or self.sequence_durable != log.sequence_end:
            return None
        commit = self._commit = self._lone
        commit.error = None
        commit.steps = (new_step((log, log.end + size_bytes, log.sequence_end + 1, True, False, None)),)
        return commit

    def finish_lone(self) -> None:
        """Take back the commit of a lone push, which succeeded: `finish`, where all in front of that push was durable before."""
        job = self._lone
        log, sync_end, sequence_end = job.steps[0][:3]
        job.steps = ()  # it stays, and would keep the books of its log in memory
        self._commit = None
        self.syncs += 1
        self.sync_ns_last = job.took_ns
        log.synced_end, log.synced_sequence = sync_end, sequence_end
        log.dirty_since_ns = self._clock.monotonic_ns()
        self.sequence_durable = sequence_end

    def change_settings(self, settings: TopicSettings) -> None:
        """Use these settings from now on: pushes that are not acknowledged yet are acknowledged by the new rule."""
        self._settings = settings
        self._syncs_each_commit = settings.is_synced and settings.wal.flush_interval_ns == 0
        self._may_be_lone = self._syncs_each_commit and not settings.is_archived
        self.archives_as = self._numbers.incarnation.hex() if settings.is_archived else ""

    @property
    def is_idle(self) -> bool:
        """Whether no commit is under way."""
        return self._commit is None

    @property
    def acknowledges(self) -> tuple[int, Durability]:
        """Pushes below that sequence may be acknowledged now, and what that means for them."""
        if self._syncs_each_commit:
            return self.sequence_durable, _SYNCED
        # Not before the log has its name: a file under a temporary name does not survive even a killed process.
        unpublished = [log.identity.first_sequence for log in self._logs if not log.published]
        reached = min([self._logs.sequence_written, *unpublished])
        if self._settings.durability == "segment_only":
            return reached, Durability.OPEN_SEGMENT
        return reached, Durability.WRITTEN

    @property
    def readable_unsealed(self) -> int:
        """Pushes below that sequence are acknowledged, and readers get them before their seal: all but those in the open log of a topic
        that syncs at the seal."""
        sequence = self.acknowledges[0]
        if self._settings.durability != "segment_only":
            return sequence
        return min([sequence, *(log.identity.first_sequence for log in self._logs if not log.closed)])

    def want_sync(self) -> None:
        """Have the next commit sync what is written, where the topic would wait for its flush interval: a reader waits for it."""
        self._is_sync_wanted = True

    def next(self) -> CommitJob | EmptyLogJob | None:
        """The next commit, None if nothing is to be made durable or one is under way. Where all logs are on their way to segments, an empty
        one is left behind them."""
        if self._commit is not None or self._condition.is_over:
            return None
        steps = []
        for log in self._logs:
            if log.has_staged:
                break
            step = self._step(log)
            if step is not None:
                steps.append(step)
        self._is_sync_wanted = False
        # Where a log takes bundles there is one that is not retired, so no empty one is wanted.
        if steps:
            self._commit = CommitJob(self._disk, self._paths, steps)
        elif self._logs.active is None:
            self._commit = self._empty_log_job()
        return self._commit

    def _empty_log_job(self) -> EmptyLogJob | None:
        position = self._numbers.position
        is_wanted = self._empty_at != position and all(log.retired for log in self._logs)
        if not is_wanted:
            return None
        header = encode_empty_header(segment_cfg_hash(self._settings), position)
        return EmptyLogJob(self._disk, self._paths, header, position)

    @property
    def has_log_behind(self) -> bool:
        """Whether `wal/` keeps a log when the oldest one becomes a segment: a start takes a directory without any for one that has lost its
        newest log."""
        return self._empty_at == self._numbers.position or any(log.published for log in islice(self._logs, 1, None))

    def finish_empty_log(self, job: EmptyLogJob) -> list[Event]:
        """Take back the job that wrote the empty log; a full disk is no failure of the engine."""
        self._commit = None
        if job.error is not None and not job.no_space:
            return self._condition.fail(job.error)
        self._empty_at = job.position
        return []

    def _step(self, log: Log) -> CommitStep | None:
        written_end = log.written_end
        if log.retired or written_end == 0:
            return None
        retire_as = None
        if log.closed:
            retire_as = self._paths.rotated(self._numbers.take_rotation(log.segment_seq))
        publish = not log.published
        dirty = written_end > log.synced_end
        sync = dirty and (self._syncs_each_commit or publish or log.closed or self._sync_is_due(log))
        if not (sync or publish or retire_as):
            return None
        return CommitStep(log, written_end, log.sequence_end, sync, publish, retire_as)

    def _sync_is_due(self, log: Log) -> bool:
        if self._condition.is_draining:
            return True
        if self._settings.durability == "segment_only":
            return False
        waited_ns = self._clock.monotonic_ns() - log.dirty_since_ns
        return self._is_sync_wanted or waited_ns >= self._settings.wal.flush_interval_ns

    def finish(self, job: CommitJob) -> list[Event]:
        """Take back a commit: return the events of what is durable now, or fail the engine if the job failed."""
        self._commit = None
        if job.error is not None:
            return self._condition.fail(job.error)
        self.syncs += 1
        self.sync_ns_last = job.took_ns
        for step in job.steps:
            log = step.log
            if step.sync:
                log.synced_end, log.synced_sequence = step.sync_end, step.sequence_end
                log.dirty_since_ns = self._clock.monotonic_ns()
            log.published = True
            log.retired = log.retired or step.retire_as is not None
        if job is self._lone:
            job.steps = ()  # it stays, and would keep the books of its log in memory
        return self._advance()

    def _advance(self) -> list[Event]:
        """Move `sequence_durable` up to the first log that has bundles without a sync, and report it if it rose."""
        durable = self._numbers.next_sequence
        for log in self._logs:
            if log.synced_sequence < log.sequence_end:
                durable = log.synced_sequence
                break
        if durable <= self.sequence_durable:
            return []
        self.sequence_durable = durable
        return [Durable(durable)]
