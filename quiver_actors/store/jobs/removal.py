"""Jobs that delete files or move them into quarantine."""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.held_names import put_back, set_aside
from quiver_actors.store.files.paths import EnginePaths, names_beside
from quiver_actors.store.files.quarantine import move_to_quarantine, trim_quarantine
from quiver_actors.store.jobs.cold import write_cold_list
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.records import write_foreign
from quiver_actors.store.jobs.sealing import write_cursor


class UnlinkJob(Job):
    """Remove a file that holds nothing. Its name may come back after a crash; the next open removes it again."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = path

    def work(self) -> None:
        """Delete one file; nothing happens if there is none."""
        self._disk.unlink(self._path)


class DeleteJob(Job):
    """Remove segments that nobody needs. Only made after the progress that says so is durable.

    A cursor that still has to be written is written first, and so is the record of other writers' segments. Behind a cursor that stands
    before them, deleted segments look like logs that are gone (`store.recovery.missing_logs`). Where there is no room for these files,
    not even in the ballast's place, the older segments go first to make room. The newest one goes last: nothing else may be left that
    says up to where log positions have been used.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        segment_seqs: Sequence[int],
        cursor_owed: int | None = None,
        foreign: bytes | None = None,
        cold: bytes | None = None,
    ) -> None:
        """
        Args:
            foreign: the record of other writers' segments without those that go; None if none of them is one. It is written first: the
                next segment of that number is another one.
            cold: the list of cold segments without those that go; None if it names none of them.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._cursor_owed = cursor_owed
        self._foreign = foreign
        self._cold = cold
        self.segment_seqs = segment_seqs

    def run(self) -> None:
        """Delete the segments; without room for the records, delete all but the newest first to make room."""
        super().run()
        if self.no_space and any(each is not None for each in (self._cursor_owed, self._foreign, self._cold)):
            self._attempt(self._make_room)

    def work(self) -> None:
        """Write the record of other writers and the cursor, delete the segments, and sync their directory."""
        write_foreign(self._disk, self._paths, self._foreign)
        write_cold_list(self._disk, self._paths, self._cold)
        self._write_cursor()
        self._unlink(sorted(self.segment_seqs))
        self._disk.sync_directory(self._paths.segments)

    def _make_room(self) -> None:
        self._unlink(sorted(self.segment_seqs)[:-1])
        self.work()

    def _unlink(self, segment_seqs: Sequence[int]) -> None:
        for segment_seq in segment_seqs:
            path = self._paths.segment(segment_seq)
            held = set_aside(self._disk, self._paths, path)
            try:
                self._disk.unlink(path)
            except DiskError:
                put_back(self._disk, held)
                raise
            self.keep(held)

    def _write_cursor(self) -> None:
        if self._cursor_owed is not None:
            write_cursor(self._disk, self._paths, self._cursor_owed)
            self._cursor_owed = None


class QuarantineJob(Job):
    """Move a damaged segment aside. Only made after the gap notices of it are durable."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int, foreign: bytes | None = None) -> None:
        """
        Args:
            foreign: as for `DeleteJob`.
        """
        super().__init__()
        self._foreign = foreign
        self.strays = names_beside(segment_seq)
        self._disk = disk
        self._paths = paths
        self.segment_seq = segment_seq

    def work(self) -> None:
        """Move the segment to quarantine, after the record of other writers."""
        write_foreign(self._disk, self._paths, self._foreign)
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
        """Delete the oldest files of `quarantine/` until it is below its cap."""
        trim_quarantine(self._disk, self._paths, self._cap_bytes, self.keep)
