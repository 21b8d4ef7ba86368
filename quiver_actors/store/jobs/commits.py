"""Commits and the ends of logs: group commit with rotation, an empty log for other writers, the seal of a log."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.sealing import drop_witness, make_witness, seal_file, write_cursor, write_empty_log
from quiver_actors.store.wal.log import Log


class CommitStep(NamedTuple):
    """The part of a commit that concerns one log. `sync_end`, `sequence_end`: how far it was written when the step was made."""

    log: Log
    sync_end: int
    sequence_end: int
    sync: bool
    publish: bool
    retire_as: str | None
    """The path that the log is renamed to when it is retired, None while it stays active."""


# Without the constructor's Python code.
new_step: Callable[[tuple[object, ...]], CommitStep] = partial(tuple.__new__, CommitStep)


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
        """Whether a log ends with this commit or gets its name, so that more follows than acknowledgements."""
        for step in steps:
            if step.publish or step.retire_as is not None:
                self.rotates = True

    def work(self) -> None:
        """Sync the logs, oldest first, rename those that take over, and sync the directory."""
        for step in self.steps:
            if step.sync:
                file = step.log.file
                file.fdatasync()
                if not file.has_name():
                    raise _removed(step.log)
            target = step.retire_as or (self._paths.active if step.publish else None)
            if target is not None:
                self._disk.rename(step.log.path, target)
                step.log.path = target
                self._disk.sync_directory(self._paths.wal)


class LoneCommit(CommitJob):
    """A commit that only syncs one log, for a push that travels alone. Made once, and used again when it has come back: its one step is set
    then."""

    def __init__(self, disk: Disk, paths: EnginePaths) -> None:
        super().__init__(disk, paths, ())

    def run(self) -> None:
        """Sync, and measure `took_ns`. Errors go into `error`."""
        started = time.monotonic_ns()
        log = self.steps[0][0]
        file = log.file
        try:
            file.fdatasync()
            if not file.has_name():
                raise _removed(log)
        except QuiverError as error:
            # Without the error's frames: they refer to the job, which would so refer to itself.
            self.error = error.with_traceback(None)
        self.took_ns = time.monotonic_ns() - started


def _removed(log: Log) -> DiskError:
    """The error of a log to which no name leads any more: a sync of a file that somebody has removed makes nothing durable."""
    removed = "somebody removed the log while the node ran, so nothing in it can be acknowledged; leave wal/ alone"
    return DiskError("fdatasync", log.path, errno.ENOENT, removed)


class EmptyLogJob(Job):
    """Leave an empty `quiver.wal` behind the last log: another writer that finds none begins at log position 0, and a start that finds none
    takes it for lost. Runs in the place of a commit, as only commits give that name to logs."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, header: bytes, position: int) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._header = header
        self.position = position

    def run(self) -> None:
        """Write the empty log. Where there is no room for it, say so by deleting what says that there is always a log."""
        super().run()
        if self.no_space:
            self._attempt(lambda: drop_witness(self._disk, self._paths))

    def work(self) -> None:
        """Write the empty log that stands ready for another writer."""
        write_empty_log(self._disk, self._paths, self._header)
        if not self._disk.exists(self._paths.witness):
            make_witness(self._disk, self._paths)
            self._disk.sync_directory(self._paths.root)


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
        """Seal the log; a full disk after the seal leaves only the cursor to be written."""
        super().run()
        if self.no_space and self.info is not None:
            # The segment is whole under its name. The cursor is derived, and the next seal writes a newer one.
            self.error = None
            self.cursor_owed = self.log.position_end

    def work(self) -> None:
        """Append the tail, rename the log into `segments/`, and write the cursor."""
        if self.info is None:
            self.info = seal_file(self._disk, self._paths, self.log, self._incarnation)
        write_cursor(self._disk, self._paths, self.log.position_end)

    @property
    def no_space(self) -> bool:
        """Whether the disk or the limit had no room for the tail or the cursor."""
        cursor_sync = (
            self.info is not None and isinstance(self.error, DiskError) and self.error.errno in NO_SPACE_ERRNOS
        )
        return super().no_space or cursor_sync
