"""An engine's blocking work, packaged for a thread.

A job is made by the engine in its loop, `run()` in a thread (it never raises and touches nothing but the disk and what it
was given), and handed back with `engine.finish(job)` in the loop. At most one job of each thread is out per engine, so the
order of effects on disk is the order in which jobs were made.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from quiver_actors.ballast import Ballast
from quiver_actors.core_file import CoreFile, encode_core
from quiver_actors.disk.protocol import (
    NO_SPACE_ERRNOS,
    UNREADABLE_ERRNOS,
    Disk,
    DiskFile,
    write_atomically,
)
from quiver_actors.errors import DiskError, FormatError, QuiverError
from quiver_actors.paths import EnginePaths, names_beside
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.quarantine import move_to_quarantine, trim_quarantine
from quiver_actors.sealing import seal_file, write_cursor
from quiver_actors.segment.check import empty_bundles, run_to_end, verify_steps
from quiver_actors.supervisor.log import log_event
from quiver_actors.wal.log import Log

_SYNC_OPERATIONS = ("fsync", "fdatasync", "sync_directory")


class Job:
    """Root of all jobs. After `run`: `error` is None or what went wrong, `took_ns` how long it took."""

    writes_anew: ClassVar[bool] = False
    """Each attempt writes new files, so that even a sync that found no room may be followed by another attempt."""
    strays: Collection[str] = ()
    """Names beside the segments under which it may leave a file that the engine does not know as one of them."""

    def __init__(self) -> None:
        self.error: QuiverError | None = None
        self.took_ns = 0
        self.ballast: Ballast | None = None
        """What to give up for room, for work that must go on also on a full disk."""

    def run(self) -> None:
        started = time.monotonic_ns()
        self._attempt(self.work)
        if self.no_space and self.ballast is not None:
            self._attempt(self._work_without_ballast)
        self.took_ns = time.monotonic_ns() - started

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
            self.error = None
        except QuiverError as error:
            self.error = error

    def _work_without_ballast(self) -> None:
        assert self.ballast is not None
        assert self.error is not None
        if not self.ballast.release():
            raise self.error
        self.work()

    def work(self) -> None:
        raise NotImplementedError

    @property
    def no_space(self) -> bool:
        """The error is only that the file system has no room, and the same may be tried again."""
        error = self.error
        if not isinstance(error, DiskError) or error.errno not in NO_SPACE_ERRNOS:
            return False
        return error.operation not in _SYNC_OPERATIONS or (self.writes_anew and error.operation == "fdatasync")


class CommitStep(NamedTuple):
    """What one log needs in a commit. `sync_end`, `sequence_end`: how far it was written when the step was made."""

    log: Log
    sync_end: int
    sequence_end: int
    sync: bool
    publish: bool
    retire_as: str | None
    """Path of its rotated name, None while it stays active."""


class CommitJob(Job):
    """Group commit and rotation, oldest log first: sync, then the renames, each made durable before the next log's.

    A log is synced before it is renamed, a name is durable before the next file takes the old one, and nothing in a log is
    acknowledged before its own name is.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, steps: Sequence[CommitStep]) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.steps = steps
        self.rotates = False
        """A log ends with it, or gets its name: more follows than acknowledgements."""
        for step in steps:
            if step.publish or step.retire_as is not None:
                self.rotates = True

    def work(self) -> None:
        for step in self.steps:
            if step.sync:
                step.log.file.fdatasync()
            target = step.retire_as or (self._paths.active if step.publish else None)
            if target is not None:
                self._disk.rename(step.log.path, target)
                step.log.path = target
                self._disk.sync_directory(self._paths.wal)


class AllocateJob(Job):
    """Make the next log file ahead of need, with its blocks reserved: running out of space is met here, not at a write."""

    def __init__(
        self, disk: Disk, path: str, capacity_bytes: int, grow: Log | None = None, *, free_bytes_min: int = 0
    ) -> None:
        """
        Args:
            free_bytes_min: the low-water mark: what must be left on the disk for everything else.
        """
        super().__init__()
        self._disk = disk
        self._path = path
        self._free_bytes_min = free_bytes_min
        self.capacity_bytes = capacity_bytes
        self.spare = grow

    def work(self) -> None:
        self._check_low_water_mark()
        if self.spare is not None:
            self.spare.file.allocate(self.capacity_bytes)
            self.spare.file.fsync()
            self.spare.capacity_bytes = self.capacity_bytes
            return
        file = self._disk.create(self._path)
        try:
            file.allocate(self.capacity_bytes)
            file.fsync()
        except QuiverError:
            file.close()
            self._disk.unlink(self._path)
            raise
        self.spare = Log(file, self._path, self.capacity_bytes)

    def _check_low_water_mark(self) -> None:
        wanted_bytes = self.capacity_bytes - (self.spare.capacity_bytes if self.spare else 0)
        free_bytes = self._disk.free_bytes(self._path.rpartition("/")[0])
        if free_bytes < wanted_bytes + self._free_bytes_min:
            left = f"{free_bytes} bytes are free, {self._free_bytes_min} of them are not for logs"
            raise DiskError("fallocate", self._path, errno.ENOSPC, left)


class UnlinkJob(Job):
    """Remove a file that holds nothing. Its name may come back after a crash; the next open removes it again."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = path

    def work(self) -> None:
        self._disk.unlink(self._path)


class BallastJob(Job):
    """Make the ballast file again, if there is room for it; or give its room back."""

    def __init__(self, ballast: Ballast, *, is_wanted: bool) -> None:
        super().__init__()
        self._ballast = ballast
        self._is_wanted = is_wanted

    def work(self) -> None:
        if self._is_wanted:
            self._ballast.hold()
        else:
            self._ballast.release()


class SealJob(Job):
    """Turn a retired log into a segment."""

    def __init__(self, disk: Disk, paths: EnginePaths, log: Log, incarnation: bytes) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._incarnation = incarnation
        self.log = log
        self.info: SegmentInfo | None = None
        self.cursor_owed: int | None = None
        """The cursor's position, if there was no room to write it."""

    def run(self) -> None:
        super().run()
        if self.no_space and self.info is not None:
            # The segment is whole under its name. The cursor is derived, and the next seal writes a newer one.
            self.error = None
            self.cursor_owed = self.log.position_end

    def work(self) -> None:
        if self.info is None:
            self.info = seal_file(self._disk, self._paths, self.log, self._incarnation)
        write_cursor(self._disk, self._paths, self.log.position_end)

    @property
    def no_space(self) -> bool:
        cursor_sync = (
            self.info is not None and isinstance(self.error, DiskError) and self.error.errno in NO_SPACE_ERRNOS
        )
        return super().no_space or cursor_sync


@dataclass(frozen=True, slots=True)
class ProgressWrite:
    """One file of a subscriber: its new content, or None to delete it."""

    path: str
    content: bytes | None
    subscriber: str
    version: int
    is_gaps: bool = False
    """Its notices, not its progress."""


class ProgressJob(Job):
    """Write the files of all subscribers that changed, gap notices before the progress that goes with them, then sync their
    directory.
    """

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, writes: Sequence[ProgressWrite], ticket: int) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.writes = writes
        self.ticket = ticket

    def work(self) -> None:
        for write in self.writes:
            if write.content is None:
                self._disk.unlink(write.path)
            else:
                write_atomically(self._disk, write.path, write.content)
            if write.is_gaps:
                self._disk.sync_directory(self._paths.root)
        self._disk.sync_directory(self._paths.root)


class DeleteJob(Job):
    """Remove segments that nobody needs. Only made after the progress that says so is durable.

    A cursor that is owed is written before the newest of them goes: nothing else may be left that says up to where log positions
    have been used.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, segment_seqs: Sequence[int], cursor_owed: int | None = None
    ) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._cursor_owed = cursor_owed
        self.segment_seqs = segment_seqs

    def work(self) -> None:
        *older, newest = sorted(self.segment_seqs)
        for segment_seq in older:
            self._disk.unlink(self._paths.segment(segment_seq))
        if self._cursor_owed is not None:
            write_cursor(self._disk, self._paths, self._cursor_owed)
        self._disk.unlink(self._paths.segment(newest))
        self._disk.sync_directory(self._paths.segments)


class ReserveJob(Job):
    """Raise the numbers that are reserved ahead of use."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, core: CoreFile) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.core = core

    def work(self) -> None:
        write_core(self._disk, self._paths, self.core)


def write_core(disk: Disk, paths: EnginePaths, core: CoreFile) -> None:
    write_atomically(disk, paths.core, encode_core(core))
    disk.sync_directory(paths.root)


class VerifyJob(Job):
    """Check a segment that was found at open, once, before its first bundle is delivered.

    `damage` says what is wrong with it, None if nothing is; the file is left as it is. `lost` are the bundles that the segment itself
    records as lost.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int, *, is_suspect: bool = False) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._is_suspect = is_suspect
        self.segment_seq = segment_seq
        self.damage: str | None = None
        self.lost: tuple[int, ...] = ()

    def work(self) -> None:
        path = self._paths.segment(self.segment_seq)
        try:
            file = self._disk.open_read(path)
        except DiskError as error:
            if not self._is_suspect:
                raise
            # Says nothing about what is in it: whoever wants it tries again.
            log_event("segment.unchecked", {"path": path, "reason": str(error)}, logging.WARNING)
            return
        try:
            # Looked at twice: what the disk gives back at the second try is not damaged.
            self.damage = self._damage(file) and self._damage(file)
        finally:
            file.close()

    def _damage(self, file: DiskFile) -> str | None:
        try:
            footer = run_to_end(verify_steps(file.read, file.size()))
            self.lost = empty_bundles(file.read, footer)
        except FormatError as error:
            return str(error)
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            return str(error)
        return None


class QuarantineJob(Job):
    """Move a damaged segment aside. Only made after the gap notices of it are durable."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int) -> None:
        super().__init__()
        self.strays = names_beside(segment_seq)
        self._disk = disk
        self._paths = paths
        self.segment_seq = segment_seq

    def work(self) -> None:
        path = self._paths.segment(self.segment_seq)
        if self._disk.exists(path):
            move_to_quarantine(self._disk, self._paths, path)


class TrimJob(Job):
    """Keep the quarantine below its cap."""

    def __init__(self, disk: Disk, paths: EnginePaths, cap_bytes: int) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._cap_bytes = cap_bytes

    def work(self) -> None:
        trim_quarantine(self._disk, self._paths, self._cap_bytes)
