"""Group commit: what the sync thread makes durable next, and how far pushes may be acknowledged.

Owner: the engine, on the loop thread. One commit is out at a time; what was written meanwhile rides on the next.
"""

from __future__ import annotations

from quiver_actors import jobs
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.condition import Condition
from quiver_actors.engine.log_queue import LogQueue
from quiver_actors.engine.numbers import Numbers
from quiver_actors.events import Durable, Event
from quiver_actors.model import Durability
from quiver_actors.paths import EnginePaths
from quiver_actors.wal.log import Log

_SYNCED = Durability.SYNCED
"""Asked for at each push: a member of an enum takes longer to look up."""


class GroupCommit:
    """See the module.

    Attributes:
        sequence_durable: bundles below it are covered by a sync.
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
        self.change_settings(settings)
        self._clock = clock
        self._condition = condition
        self._numbers = numbers
        self._logs = logs
        self._commit: jobs.CommitJob | None = None

    def change_settings(self, settings: TopicSettings) -> None:
        """What was acknowledged stays; what was not is acknowledged by the new rule."""
        self._settings = settings
        self._syncs_each_commit = settings.durability == "wal" and settings.wal.flush_interval_ns == 0

    @property
    def is_idle(self) -> bool:
        """No commit is out."""
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

    def next(self) -> jobs.CommitJob | None:
        """The next commit, None if there is nothing to make durable or one is out."""
        if self._commit is not None or self._condition.is_over:
            return None
        steps = []
        for log in self._logs:
            if log.has_staged:
                break
            step = self._step(log)
            if step is not None:
                steps.append(step)
        if not steps:
            return None
        self._commit = jobs.CommitJob(self._disk, self._paths, steps)
        return self._commit

    def _step(self, log: Log) -> jobs.CommitStep | None:
        if log.retired or log.written_end == 0:
            return None
        retire_as = None
        if log.closed:
            retire_as = self._paths.rotated(self._numbers.take_rotation(log.segment_seq))
        publish = not log.published
        dirty = log.written_end > log.synced_end
        sync = dirty and (self._syncs_each_commit or publish or log.closed or self._sync_is_due(log))
        if not (sync or publish or retire_as):
            return None
        return jobs.CommitStep(log, log.written_end, log.sequence_end, sync, publish, retire_as)

    def _sync_is_due(self, log: Log) -> bool:
        if self._condition.is_draining:
            return True
        if self._settings.durability == "segment_only":
            return False
        return self._clock.monotonic_ns() - log.dirty_since_ns >= self._settings.wal.flush_interval_ns

    def finish(self, job: jobs.CommitJob) -> list[Event]:
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
        return self._advance()

    def _advance(self) -> list[Event]:
        """What is durable ends at the first log that is behind."""
        durable = self._numbers.next_sequence
        for log in self._logs:
            if log.synced_sequence < log.sequence_end:
                durable = log.synced_sequence
                break
        if durable <= self.sequence_durable:
            return []
        self.sequence_durable = durable
        return [Durable(durable)]
