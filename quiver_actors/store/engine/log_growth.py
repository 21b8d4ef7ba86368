"""Blocks of the log that takes entries: they are reserved in steps, each ahead of need.

Owner: the engine's `LogQueue`, on the loop thread. A log that gets no more blocks ends where its blocks end, and pushes go on in the next
one, so that a full disk or cap is met where a log file is made.
"""

from __future__ import annotations

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Event, Resumed
from quiver_actors.store.engine.spare_log import GROWTH
from quiver_actors.store.jobs.room import GrowJob
from quiver_actors.store.retention.account import block_bytes
from quiver_actors.store.retention.limits import ROOM, Allowance
from quiver_actors.store.wal.log import Log


class LogGrowth:
    """Reserves blocks for the active log of one engine.

    Attributes:
        wanted_bytes: capacity of the active log that a push waits for; 0 if none does.
    """

    def __init__(self, disk: Disk, allowance: Allowance) -> None:
        self.wanted_bytes = 0
        self._disk = disk
        self._allowance = allowance
        self._job: GrowJob | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of disk that are being reserved for a log, beside those that it has."""
        job = self._job
        return block_bytes(job.capacity_bytes) - block_bytes(job.log.capacity_bytes) if job is not None else 0

    def job(self, log: Log | None, free_bytes_min: int) -> GrowJob | None:
        """The next step of the active log, once half of its blocks are used or a push waits for more; None if it is not due, or there is
        no room for it.

        Args:
            free_bytes_min: what must be left on the disk for everything else.
        """
        if log is None or max(2 * log.end, self.wanted_bytes) <= log.capacity_bytes or not log.may_grow:
            return None
        capacity_bytes = min(log.length_bytes, max(GROWTH * log.capacity_bytes, self.wanted_bytes))
        limit_met = ROOM
        if not self._allowance.admits(capacity_bytes - log.capacity_bytes):
            if self.wanted_bytes <= log.capacity_bytes:
                return None
            # The job then only ends the log: the push that waits is told by its end, and goes on in the next log.
            limit_met = self._allowance.which_limit()
        job = GrowJob(self._disk, log, capacity_bytes, free_bytes_min, limit_met)
        self._job = job if limit_met is ROOM else None
        return job

    def finish(self, job: GrowJob) -> list[Event]:
        """Let entries into the blocks that the job has reserved."""
        self._job = None
        job.log.capacity_bytes = job.capacity_bytes
        return [Resumed()]

    def no_room(self, job: GrowJob) -> list[Event]:
        """End the log where its blocks end."""
        self._job = None
        job.log.length_bytes = job.log.capacity_bytes
        return [Resumed()]
