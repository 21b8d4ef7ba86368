"""Work on the cold disk of one engine, and the records of it on the hot disk. Blocking.

A segment moves in two steps. `ColdCopyJob` copies its file on the thread for the cold disk, a piece a run, synced, read back and compared
with its checksum. `ColdFlipJob` then writes the list of cold segments on the seal thread, and only after that is durable deletes the file
in `segments/`. So there is a whole file at every moment: cut off before the list is durable, the hot one counts and the copy is a leftover;
cut off after it, both are whole and the hot one still counts.

No job of the cold disk ends an engine: what goes wrong there is a `fault`, and is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from quiver_actors.base.ranges import runs_of
from quiver_actors.errors import ChecksumMismatch, DiskError, FormatError, QuiverError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, DiskFile, write_atomically
from quiver_actors.store.files.cold_directory import ColdDirectory
from quiver_actors.store.files.cold_list import ColdEntry
from quiver_actors.store.files.cold_owner import ColdTaken, read_hot_owner
from quiver_actors.store.files.held_names import put_back, set_aside
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.segment.check import STEP_BYTES, empty_bundles, run_to_end, verify_steps
from quiver_actors.store.segment.codec import decode_trailer
from quiver_actors.store.segment.layout import TRAILER
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.supervisor.log import log_event

COPY_BYTES_A_RUN = 4 << 20
"""Bytes that one run of a copy moves: whoever waits for a cold file to be opened does not wait longer than that."""


class ColdJob(Job):
    """Root of what is done on the cold disk.

    Attributes:
        fault: after `run`: empty, or why it could not be done now.
        is_taken: whether that is because the directory is another data directory's.
    """

    def __init__(self, directory: ColdDirectory) -> None:
        super().__init__()
        self.directory = directory
        self.fault = ""
        self.is_taken = False

    def run(self) -> None:
        """Do the work; errors of either disk become the `fault`."""
        super().run()
        if self.error is not None:
            self.is_taken = isinstance(self.error, ColdTaken)
            self.fault, self.error = str(self.error), None


class ColdReadJob(ColdJob):
    """Root of what is read of one cold segment. A file that is gone, or is not the segment, is so for the owner of the directory alone:
    to anybody else that is a fault, as the owner may have deleted or replaced it."""

    def __init__(
        self, disk: Disk, paths: EnginePaths, directory: ColdDirectory, segment_seq: int, entry: ColdEntry
    ) -> None:
        """
        Args:
            disk: the hot disk.
            entry: what the list says of the segment.
        """
        super().__init__(directory)
        self.segment_seq = segment_seq
        self._disk = disk
        self._paths = paths
        self._entry = entry

    def _prove_own(self, cold: Disk) -> None:
        directory = self.directory
        directory.prove_own(cold, read_hot_owner(self._disk, self._paths.cold_owner, directory.cold_id))

    def _is_ours(self, file: DiskFile) -> bool:
        """Whether a file ends as the segment does: with its length, its numbers and its checksum."""
        size_bytes, end, _ = self._entry
        try:
            return file.size() == size_bytes and file.read(len(end), size_bytes - len(end)) == end
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            return False


class ColdOpenJob(ColdReadJob):
    """Open a cold segment for a reader.

    Attributes:
        file: the open file, which is whoever's who takes the job back; None after a fault, or where `is_gone` or `is_doubtful`.
        is_gone: somebody has deleted the file; the rest of the directory is there.
        is_doubtful: the file does not end as the segment does, or the disk does not give its end back: it is to be checked.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, directory: ColdDirectory, segment_seq: int, entry: ColdEntry
    ) -> None:
        """Take what `ColdReadJob` takes."""
        super().__init__(disk, paths, directory, segment_seq, entry)
        self.file: DiskFile | None = None
        self.is_gone = False
        self.is_doubtful = False

    def work(self) -> None:
        """Open the file, and see that it ends as it did."""
        with self.directory.opened() as cold:
            self.file = self.directory.open_segment(cold, self.segment_seq)
            self.is_gone = self.file is None
            try:
                self.is_doubtful = self.file is not None and not self._is_ours(self.file)
                if self.is_gone or self.is_doubtful:
                    self._prove_own(cold)
            except DiskError:
                self._let_go()
                raise
            if self.is_doubtful:
                self._let_go()

    def _let_go(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


class ColdCopyJob(ColdJob):
    """Copy a segment to the cold disk, a piece a run, until `is_done`.

    Attributes:
        entry: what the list says of it; set when the copy is durable and compared.
        damage: what is wrong with the copy or with the file in `segments/`, which is to be checked then; empty if nothing is.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, directory: ColdDirectory, segment_seq: int) -> None:
        super().__init__(directory)
        self.segment_seq = segment_seq
        self.entry: ColdEntry | None = None
        self.damage = ""
        self.is_done = False
        self._disk = disk
        self._path = paths.segment(segment_seq)
        self._offset = 0

    def run(self) -> None:
        """Do one piece of the work; a fault ends it."""
        super().run()
        self.is_done |= bool(self.fault)

    def work(self) -> None:
        """Copy the next bytes; behind the last ones sync, compare, and give the copy its name."""
        with self.directory.owned() as cold:
            try:
                source = self._disk.open_read(self._path)
            except DiskError as error:
                self.damage, self.is_done = str(error), True
                return
            try:
                self.is_done = self._copy(source, cold)
                if self.is_done and not self.damage:
                    self._finish(cold)
            finally:
                source.close()

    def _copy(self, source: DiskFile, cold: Disk) -> bool:
        """Copy some bytes; returns whether there is nothing more to copy."""
        path = self.directory.segment(self.segment_seq) + TEMPORARY_SUFFIX
        if not self._offset:
            cold.create(path).close()
        target = cold.open_write(path)
        try:
            end = min(source.size(), self._offset + COPY_BYTES_A_RUN)
            while self._offset < end:
                try:
                    piece = source.read(min(STEP_BYTES, end - self._offset), self._offset)
                except DiskError as error:
                    self.damage = str(error)
                    return True
                target.write([piece], self._offset)
                self._offset += len(piece)
            if end < source.size():
                return False
            target.fsync()
            return True
        finally:
            target.close()

    def _finish(self, cold: Disk) -> None:
        path = self.directory.segment(self.segment_seq)
        copy = cold.open_read(path + TEMPORARY_SUFFIX)
        try:
            entry = _entry_of(copy)
        except FormatError as error:
            self.damage = str(error)
            return
        finally:
            copy.close()
        cold.rename(path + TEMPORARY_SUFFIX, path)
        self.directory.sync(cold)
        self.entry = entry


def _entry_of(file: DiskFile) -> ColdEntry:
    """What the list says of a file that is whole. Raises FormatError: it is not."""
    run_to_end(verify_steps(file.read, file.size()))
    return read_entry(file)


def read_entry(file: DiskFile) -> ColdEntry:
    """What the list says of a file, whose checksum is not looked at. Raises FormatError: its end cannot be read."""
    size_bytes = file.size()
    footer = read_footer(file.read, size_bytes)
    if footer.extension is None:
        raise ChecksumMismatch("another writer's segment stays where it is")
    length = decode_trailer(file.read(TRAILER.size, size_bytes - TRAILER.size), size_bytes) + TRAILER.size
    lost = runs_of(empty_bundles(file.read, footer))
    return ColdEntry(size_bytes, file.read(length, size_bytes - length), tuple(lost))


class ColdCheckJob(ColdReadJob):
    """Check a cold segment that somebody could not read. A damaged one is copied back as it is, to be rescued as any other; a whole one
    that is another segment is set aside, as nothing of it may be delivered.

    Attributes:
        damage: what is wrong with it, empty if nothing is; then a copy lies beside the hot segments, under a temporary name.
        is_gone: somebody has deleted it, or put another file in its place.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, directory: ColdDirectory, segment_seq: int, entry: ColdEntry
    ) -> None:
        """Take what `ColdReadJob` takes."""
        super().__init__(disk, paths, directory, segment_seq, entry)
        self.damage = ""
        self.is_gone = False
        self._temporary = paths.segment(segment_seq) + TEMPORARY_SUFFIX

    def work(self) -> None:
        """Read the whole file, a second time where the first one finds damage."""
        with self.directory.opened() as cold:
            file = self.directory.open_segment(cold, self.segment_seq)
            if file is None:
                self._prove_own(cold)
                self.is_gone = True
                return
            try:
                damage = _damage(file) and _damage(file)
                is_ours = self._is_ours(file)
                if damage:
                    self._prove_own(cold)
                    self._bring_back(file)
                    self.damage = damage
            finally:
                file.close()
        if not damage and not is_ours:
            self._set_aside()

    def _set_aside(self) -> None:
        with self.directory.owned() as cold:
            path = self.directory.set_aside(cold, self.segment_seq)
        self.is_gone = True
        log_stray(
            path,
            f"it is whole, and not the segment {self.segment_seq} that was moved there: nothing of it is delivered",
        )

    def _bring_back(self, file: DiskFile) -> None:
        target, size_bytes = self._disk.create(self._temporary), file.size()
        try:
            for offset in range(0, size_bytes, STEP_BYTES):
                target.write([file.read(min(STEP_BYTES, size_bytes - offset), offset)], offset)
            target.fsync()
        finally:
            target.close()


def log_stray(path: str, reason: str) -> None:
    """Log that a file on the cold disk, which nobody here knows, has got that path."""
    log_event("cold.stray", {"path": path, "reason": reason}, logging.ERROR)


def _damage(file: DiskFile) -> str:
    try:
        run_to_end(verify_steps(file.read, file.size()))
    except FormatError as error:
        return str(error)
    return ""


class ColdFlipJob(Job):
    """Write the list of cold segments, then delete the hot files of those that it names for the first time. Runs on the seal thread.

    A segment that is brought back gets its name in `segments/` before the list forgets it.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        content: bytes,
        flipped: Sequence[int],
        returned: Sequence[int],
    ) -> None:
        super().__init__()
        self.flipped = flipped
        self.returned = returned
        self._disk = disk
        self._paths = paths
        self._content = content

    def work(self) -> None:
        """Name what was copied back, write the list, and delete the hot copies; durable on return, in this order."""
        for segment_seq in self.returned:
            path = self._paths.segment(segment_seq)
            if self._disk.exists(path + TEMPORARY_SUFFIX):
                self._disk.rename(path + TEMPORARY_SUFFIX, path)
        if self.returned:
            self._disk.sync_directory(self._paths.segments)
        write_cold_list(self._disk, self._paths, self._content)
        for segment_seq in self.flipped:
            self._unlink(self._paths.segment(segment_seq))
        if self.flipped:
            self._disk.sync_directory(self._paths.segments)

    def _unlink(self, path: str) -> None:
        held = set_aside(self._disk, self._paths, path)
        try:
            self._disk.unlink(path)
        except QuiverError:
            put_back(self._disk, held)
            raise
        self.keep(held)


def write_cold_list(disk: Disk, paths: EnginePaths, content: bytes | None) -> None:
    """Replace the list of cold segments, if there is anything new in it. Durable on return."""
    if content is not None:
        write_atomically(disk, paths.cold, content)
        disk.sync_directory(paths.root)
