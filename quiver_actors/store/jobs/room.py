"""Jobs that take blocks of the disk ahead of need: the next log file, more of the present one, and the ballast that is deleted on a full
disk."""

from __future__ import annotations

import errno

from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.ballast import Ballast
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.retention.limits import ROOM, Limit, NoRoom, below_min_free
from quiver_actors.store.wal.log import Log


class RoomJob(Job):
    """A job that takes blocks of the disk and leaves `min_free_bytes` of it free.

    Attributes:
        limit_met: the limit that was met, where the job ended without space; `ROOM` else.
    """

    def __init__(self, disk: Disk, min_free_bytes: int) -> None:
        super().__init__()
        self._disk = disk
        self._min_free_bytes = min_free_bytes
        self.limit_met = ROOM

    def _look_for_room(self, directory: str, path: str, wanted_bytes: int) -> None:
        """Note the limit that an allocation meets, if it meets one.

        Raises:
            DiskError: less than the low-water mark would be left.
        """
        free_bytes = self._disk.free_bytes(directory)
        self.limit_met = below_min_free(free_bytes, wanted_bytes, self._min_free_bytes)
        if self.limit_met is not ROOM:
            raise DiskError("fallocate", path, errno.ENOSPC, str(self.limit_met))
        # What the file system says it has and does not give is found out by the allocation itself.
        self.limit_met = NoRoom(Limit.DISK, 0, free_bytes)


class AllocateJob(RoomJob):
    """Make the next log file ahead of need, with its first blocks reserved: running out of space is met here, not at a write."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        capacity_bytes: int,
        grow: Log | None = None,
        *,
        length_bytes: int = 0,
        free_bytes_min: int = 0,
    ) -> None:
        """
        Args:
            length_bytes: the file's length from the beginning, so that no sync has to write another one; 0: that of the blocks.
            free_bytes_min: the low-water mark: what must be left on the disk for everything else.
        """
        super().__init__(disk, free_bytes_min)
        self._path = path
        self._length_bytes = max(length_bytes, capacity_bytes)
        self.capacity_bytes = capacity_bytes
        self.spare = grow

    def work(self) -> None:
        """Reserve blocks for the spare log; sets `spare`, or the limit that was met."""
        wanted_bytes = self.capacity_bytes - (self.spare.capacity_bytes if self.spare else 0)
        self._look_for_room(self._path.rpartition("/")[0], self._path, wanted_bytes)
        self._allocate()
        self.limit_met = ROOM

    def _allocate(self) -> None:
        if self.spare is not None:
            self.spare.file.allocate(self.capacity_bytes)
            self.spare.file.fsync()
            self.spare.capacity_bytes = self.capacity_bytes
            self.spare.length_bytes = max(self.spare.length_bytes, self.capacity_bytes)
            return
        file = self._disk.create(self._path)
        try:
            file.allocate(self.capacity_bytes, length_bytes=self._length_bytes)
            file.fsync()
        except QuiverError:
            file.close()
            self._disk.unlink(self._path)
            raise
        self.spare = Log(file, self._path, self.capacity_bytes, self._length_bytes)


class GrowJob(RoomJob):
    """Reserve more blocks for a log that takes entries, behind all that it may hold so far. The log may be written and synced meanwhile.

    It does not sync: a sync by this thread would take the report of a failed one away from the commit. What is written into the new blocks
    is acknowledged by a sync of its own.
    """

    def __init__(
        self, disk: Disk, log: Log, capacity_bytes: int, free_bytes_min: int, limit_met: NoRoom = ROOM
    ) -> None:
        """
        Args:
            limit_met: a limit that leaves no room, as known before; the job then reserves nothing.
        """
        super().__init__(disk, free_bytes_min)
        self.limit_met = limit_met
        self.log = log
        self._start = log.capacity_bytes
        self.capacity_bytes = capacity_bytes

    def work(self) -> None:
        """Reserve the blocks."""
        path, file = self.log.path, self.log.file
        if self.limit_met is not ROOM:
            raise DiskError("fallocate", path, errno.ENOSPC, str(self.limit_met))
        self._look_for_room(path.rpartition("/")[0], path, self.capacity_bytes - self._start)
        file.allocate(self.capacity_bytes, self._start)
        self.limit_met = ROOM


class BallastJob(Job):
    """Make the ballast file again, if there is room for it, or delete it."""

    def __init__(self, ballast: Ballast, *, is_wanted: bool) -> None:
        super().__init__()
        self._ballast = ballast
        self._is_wanted = is_wanted

    def work(self) -> None:
        """Make the ballast file, or delete it."""
        if self._is_wanted:
            self._ballast.hold()
        else:
            self._ballast.release()
