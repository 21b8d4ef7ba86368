"""Deleted segments that somebody still has open or mapped: what they take of the disk, and when their blocks are taken back.

Owner: the engine, on the loop thread. A file counts as used space until nobody has it any more. One that only processes of other users have
is emptied `GRACE_NS` after it lost its name, or at once while a push waits for room: they read zeroes in it, which a check of the
bundle's CRC finds, and none of them faults. One that a reader of the own user has is never emptied.

Each has a name in `held/` while somebody has it: a worker that starts anew finds there what it must count.
"""

from __future__ import annotations

import logging

from quiver_actors.base.clock import Clock
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import GRACE_NS, HeldFile
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Event
from quiver_actors.store.files.held_names import find_held, is_given_back
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.job import Job
from quiver_actors.supervisor.log import log_event

LOOK_INTERVAL_NS = 2 * SECOND_NS


class HeldFilesJob(Job):
    """Find out who has each file, and empty the overdue ones that only other users have. `left`: files that somebody still has."""

    def __init__(self, disk: Disk, files: dict[HeldFile, int], overdue: frozenset[HeldFile]) -> None:
        """
        Args:
            files: each with the monotonic time in nanoseconds at which it lost its name; `left` has the same form.
        """
        super().__init__()
        self._disk = disk
        self._files = files
        self._overdue = overdue
        self.left: dict[HeldFile, int] = {}

    def work(self) -> None:
        """Look which deleted files are still in use, and empty those whose time is over; the others go into `left`."""
        for file, since_ns in self._files.items():
            if not (is_given_back(file, is_overdue=file in self._overdue) and self._loses_name(file)):
                self.left[file] = since_ns

    def _loses_name(self, file: HeldFile) -> bool:
        try:
            if file.path is not None:
                self._disk.unlink(file.path)
        except DiskError as error:
            log_event("segment.not_unlinked", {"reason": str(error)}, logging.WARNING)
            return False
        return True


class HeldFiles:
    """The deleted segments of one engine whose blocks are not free yet, because a process has them open or mapped.

    Attributes:
        size_bytes: bytes of disk that they take, as of the last look at each.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, clock: Clock) -> None:
        """Blocking: looks for files that somebody has had since before this start. Their grace begins anew."""
        self.size_bytes = 0
        self._disk = disk
        self._clock = clock
        self._look_due_ns = now_ns = clock.monotonic_ns()
        self._files: dict[HeldFile, int] = dict.fromkeys(find_held(disk, paths), now_ns)
        """Each file with the monotonic time in nanoseconds at which it lost its name."""
        self._count()

    def take(self, job: Job) -> None:
        """Take over the files that have lost their name by a job."""
        kept, job.kept = job.kept, []
        now_ns = self._clock.monotonic_ns()
        self._files.update(dict.fromkeys(kept, now_ns))
        if kept:
            self._look_due_ns = now_ns + LOOK_INTERVAL_NS
            self._count()

    def job(self, *, is_short: bool) -> HeldFilesJob | None:
        """The next look, if it is due.

        Args:
            is_short: a push waits for room.
        """
        now_ns = self._clock.monotonic_ns()
        if not self._files or now_ns < self._look_due_ns:
            return None
        self._look_due_ns = now_ns + LOOK_INTERVAL_NS
        overdue = frozenset(file for file, since_ns in self._files.items() if is_short or now_ns - since_ns >= GRACE_NS)
        return HeldFilesJob(self._disk, dict(self._files), overdue)

    def finish(self, job: HeldFilesJob) -> list[Event]:
        """Close the files that nobody else has any more, and keep watching the others."""
        for file in self._files.keys() - job.left.keys():
            file.close()
        self._files = job.left
        self._count()
        return []

    def due_ns(self) -> int | None:
        """Monotonic time of the next look; None while no file is watched."""
        return self._look_due_ns if self._files else None

    def close(self) -> None:
        """Close the descriptors and leave the names to the next start. Idempotent."""
        for file in self._files:
            file.close()
        self._files = {}
        self.size_bytes = 0

    def _count(self) -> None:
        self.size_bytes = sum(file.size_bytes for file in self._files)
