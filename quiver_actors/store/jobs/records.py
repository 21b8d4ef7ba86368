"""Jobs that write the small files of an engine: progress and its journal, reserved numbers, the record of other writers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.files.core_file import CoreFile, encode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.job import Job


@dataclass(frozen=True, slots=True)
class ProgressWrite:
    """One file of a subscriber: its new content, or None to delete it."""

    path: str
    content: bytes | None
    subscriber: str
    version: int
    is_gaps: bool = False
    """Whether the file holds the subscriber's gap notices, and not its progress."""
    ownership: Ownership = OF_TOPICS_OWNER
    """The owner that the progress file names."""


class ProgressJob(Job):
    """Make `writes` durable, which are the changes up to `ticket`. Root of the jobs that do so."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, writes: Sequence[ProgressWrite], ticket: int) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.writes = writes
        self.ticket = ticket


class FilesJob(ProgressJob):
    """Write the files of all subscribers that changed, gap notices before the progress that goes with them, then sync their
    directory. The journal has nothing of these subscribers.
    """

    def work(self) -> None:
        """Write or delete the progress and gap files of subscribers, then sync their directory."""
        for write in self.writes:
            if write.content is None:
                self._disk.unlink(write.path)
            else:
                write_atomically(self._disk, write.path, write.content)
            if write.is_gaps:
                self._disk.sync_directory(self._paths.root)
        self._disk.sync_directory(self._paths.root)


class JournalJob(ProgressJob):
    """Append one frame with the progress of all subscribers that changed to the journal. After a failure the next job writes files: what
    a failed sync has left of the journal is read at a start only.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        writes: Sequence[ProgressWrite],
        ticket: int,
        content: bytes,
        offset: int,
    ) -> None:
        """
        Args:
            content: what comes to the journal.
            offset: where the journal ends; 0: there is none, and the content begins with its header.
        """
        super().__init__(disk, paths, writes, ticket)
        self.content = content
        self.offset = offset

    def work(self) -> None:
        """Append to the journal, or make it; durable on return."""
        if not self.content:
            return
        path = self._paths.progress_journal
        if not self.offset:
            write_atomically(self._disk, path, self.content)
            self._disk.sync_directory(self._paths.root)
            return
        file = self._disk.open_write(path)
        try:
            file.write([self.content], self.offset)
            file.fdatasync()
        finally:
            file.close()

    def _work_without_ballast(self) -> None:
        assert self.error is not None
        raise self.error  # the job that writes files takes the ballast's room


class BringUpJob(ProgressJob):
    """Write what the journal says into the progress files, and delete it."""

    def work(self) -> None:
        """Write the files, make them durable, and delete the journal."""
        contents = ((write.path, write.content) for write in self.writes if write.content is not None)
        bring_up(self._disk, self._paths, contents)


def bring_up(disk: Disk, paths: EnginePaths, contents: Iterable[tuple[str, bytes]]) -> None:
    """Write progress files, as (path, content), and delete the journal that says the same; durable on return.

    A crash in between leaves files that are no longer those from which the journal's records go on: the files count then.
    """
    for path, content in contents:
        write_atomically(disk, path, content)
    disk.sync_directory(paths.root)
    disk.unlink(paths.progress_journal)
    # Before anything else may be written under these names: what a record goes on from could come back with it.
    disk.sync_directory(paths.root)


class ReserveJob(Job):
    """Raise the numbers that are reserved ahead of use."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, core: CoreFile) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.core = core

    def work(self) -> None:
        """Write the core file with the raised numbers durably."""
        write_core(self._disk, self._paths, self.core)


def write_foreign(disk: Disk, paths: EnginePaths, content: bytes | None) -> None:
    """Replace the record of other writers' segments, if there is anything new in it."""
    if content is not None:
        write_atomically(disk, paths.foreign, content)
        disk.sync_directory(paths.root)


def write_core(disk: Disk, paths: EnginePaths, core: CoreFile) -> None:
    """Write `quiver.core` atomically; durable on return."""
    write_atomically(disk, paths.core, encode_core(core))
    disk.sync_directory(paths.root)
