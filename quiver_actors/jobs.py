"""An engine's blocking work, packaged for a thread.

A job is made by the engine in its loop, `run()` in a thread (it never raises and touches nothing but the disk and what it
was given), and handed back with `engine.finish(job)` in the loop. At most one job of each thread is out per engine, so the
order of effects on disk is the order in which jobs were made.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quiver_actors.core_file import CoreFile, encode_core
from quiver_actors.disk.protocol import Disk, write_atomically
from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.sealing import seal_log
from quiver_actors.segment.reader import SegmentReader
from quiver_actors.wal.log import Log

_log = logging.getLogger(__name__)

NO_SPACE_ERRNOS = frozenset([errno.ENOSPC, errno.EDQUOT])


class Job:
    """Root of all jobs. After `run`: `error` is None or what went wrong, `took_ns` how long it took."""

    def __init__(self) -> None:
        self.error: QuiverError | None = None
        self.took_ns = 0

    def run(self) -> None:
        started = time.monotonic_ns()
        try:
            self.work()
        except QuiverError as error:
            self.error = error
        self.took_ns = time.monotonic_ns() - started

    def work(self) -> None:
        raise NotImplementedError

    @property
    def no_space(self) -> bool:
        """The error is only that the file system has no room."""
        return isinstance(self.error, DiskError) and self.error.errno in NO_SPACE_ERRNOS


@dataclass(frozen=True, slots=True)
class CommitStep:
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

    def __init__(self, disk: Disk, path: str, capacity_bytes: int, grow: Log | None = None) -> None:
        super().__init__()
        self._disk = disk
        self._path = path
        self.capacity_bytes = capacity_bytes
        self.spare = grow

    def work(self) -> None:
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


class SealJob(Job):
    def __init__(self, disk: Disk, paths: EnginePaths, log: Log, incarnation: bytes) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._incarnation = incarnation
        self.log = log
        self.info: SegmentInfo | None = None

    def work(self) -> None:
        self.info = seal_log(self._disk, self._paths, self.log, self._incarnation)


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
    """Remove segments that nobody needs. Only made after the progress that says so is durable."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seqs: Sequence[int]) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.segment_seqs = segment_seqs

    def work(self) -> None:
        for segment_seq in self.segment_seqs:
            self._disk.unlink(self._paths.segment(segment_seq))
        self._disk.sync_directory(self._paths.segments)


class ReserveJob(Job):
    """Raise the numbers that are reserved ahead of use."""

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

    A damaged one stays where it is until everybody's gap notice is durable (`QuarantineJob`). `lost` are the bundles that the
    segment itself records as lost.
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
            _log.warning("event=quiver.segment.unchecked path=%s error=%s", path, error)
            return
        try:
            reader = SegmentReader(file.read(file.size(), 0), segment_seq=self.segment_seq)
            reader.verify_checksum()
            self.lost = reader.bundles_without_slots()
        except DiskError as error:
            if error.errno != errno.EIO:
                raise
            self.damage = str(error)
        except QuiverError as error:
            self.damage = str(error)
        finally:
            file.close()


class QuarantineJob(Job):
    """Move a damaged segment aside. Only made after the gap notices of it are durable."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.segment_seq = segment_seq

    def work(self) -> None:
        path = self._paths.segment(self.segment_seq)
        if self._disk.exists(path):
            move_to_quarantine(self._disk, self._paths, path)


def move_to_quarantine(disk: Disk, paths: EnginePaths, path: str) -> str:
    """Move a file aside under a name that is free there. Returns the new path."""
    disk.make_directory(paths.quarantine)
    name = path.rpartition("/")[2]
    taken = set(disk.list_directory(paths.quarantine))
    number = next(n for n in range(len(taken) + 1) if f"{name}.{n}" not in taken)
    target = f"{paths.quarantine}/{name}.{number}"
    disk.rename(path, target)
    disk.sync_directory(paths.quarantine)
    disk.sync_directory(path.rpartition("/")[0])
    return target
