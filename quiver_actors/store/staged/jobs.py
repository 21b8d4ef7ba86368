"""The blocking work of staged bundles, for the seal thread. Each job may be cut off anywhere; `store.staged.recovery` goes on from there.

Order of effects
- prepare: the parts are synced; then the record appears, whole, under its name. Without the record the parts are nothing.
- publish: `quiver.transactions` says where each part becomes visible, durably; only then a part changes. Records are deleted last.
- drop of a prepared stage: `quiver.transactions` says so, durably; only then its record is deleted, and its parts after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk, write_atomically
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.room import RoomJob
from quiver_actors.store.jobs.sealing import seal_file, write_cursor
from quiver_actors.store.retention.limits import ROOM
from quiver_actors.store.staged.loading import load_stage
from quiver_actors.store.staged.records import JournalRecord, PreparedRecord, encode_journal, encode_prepared
from quiver_actors.store.staged.stage import Stage
from quiver_actors.store.wal.log import Log


class StageAllocateJob(RoomJob):
    """Make the next part of a stage, or enlarge the last one. `failure`: why the stage cannot go on; other stages can."""

    def __init__(self, disk: Disk, paths: EnginePaths, stage: Stage, capacity_bytes: int, free_bytes_min: int) -> None:
        super().__init__(disk, free_bytes_min)
        self._directory = paths.staged
        self._path = paths.stage_part(stage.number, len(stage.parts))
        self._growing = stage.growing
        self._capacity_bytes = capacity_bytes
        self.stage = stage
        self.part: Log | None = None
        """The part that was made."""
        self.failure = ""

    def work(self) -> None:
        """Reserve room for the stage's next part, or grow its last one; the limit that it met goes into `limit_met`."""
        try:
            wanted_bytes = self._capacity_bytes - (self._growing.capacity_bytes if self._growing else 0)
            self._look_for_room(self._directory.rpartition("/")[0], self._path, wanted_bytes)
            if self._growing is not None:
                self._growing.file.allocate(self._capacity_bytes)
                self._growing.capacity_bytes = self._capacity_bytes
            else:
                self.part = self._create()
            self.limit_met = ROOM
        except DiskError as error:
            if error.errno in NO_SPACE_ERRNOS:
                raise
            self.failure = str(error)

    def _create(self) -> Log:
        self._disk.make_directory(self._directory, needs_parent=True)
        file = self._disk.create(self._path)
        try:
            file.allocate(self._capacity_bytes)
        except DiskError:
            file.close()
            self._disk.unlink(self._path)
            raise
        return Log(file, self._path, self._capacity_bytes)


class PrepareJob(Job):
    """Make a stage durable. `failure`: why it is not; then the stage is to be dropped as a durable one is."""

    def __init__(
        self, disk: Disk, paths: EnginePaths, stage: Stage, record: PreparedRecord, unused: Log | None = None
    ) -> None:
        """
        Args:
            unused: a file of the stage that nothing was written to, and that is deleted.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._unused = unused
        self.stage = stage
        self.record = record
        self.failure = ""

    def work(self) -> None:
        """Cut and sync the parts, then write the stage's record durably."""
        try:
            if self._unused is not None:
                self._unused.file.close()
                self._disk.unlink(self._unused.path)
            for part in self.stage.parts:
                part.file.truncate(part.written_end)
                part.capacity_bytes = part.written_end
                part.file.fsync()
                part.file.close()
            write_atomically(self._disk, self._paths.prepared(self.stage.number), encode_prepared(self.record))
            self._disk.sync_directory(self._paths.staged)
        except DiskError as error:
            self.failure = str(error)


class JournalJob(Job):
    """Write `quiver.transactions`."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, journal: JournalRecord) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.journal = journal

    def work(self) -> None:
        """Write the record of publishes and drops durably."""
        write_journal(self._disk, self._paths, self.journal)


class StageDropJob(Job):
    """Delete stages; `journal` is written before, where one of them was prepared."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, stages: Sequence[Stage], journal: JournalRecord | None) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.stages = stages
        self.journal = journal

    def work(self) -> None:
        """Record the drops where a stage was prepared, then delete the stages' files."""
        if self.journal is not None:
            write_journal(self._disk, self._paths, self.journal)
        for stage in self.stages:
            stage.close_files()
            parts = [self._paths.stage_part(stage.number, index) for index in range(stage.part_count)]
            delete_stage(self._disk, self._paths, stage.number, parts)


class StageReadJob(Job):
    """Read back the parts of a prepared stage that could not be read before. `problem`: why they still are not there."""

    def __init__(self, disk: Disk, paths: EnginePaths, stage: Stage, record: PreparedRecord) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._record = record
        self.stage = stage
        self.parts: list[Log] = []
        self.problem = ""

    def work(self) -> None:
        """Read a prepared stage back from its files; sets `parts`, or `problem` if that is impossible now."""
        try:
            found, _, self.problem = load_stage(self._disk, self._paths, self._record)
            self.parts = found.parts
        except DiskError as error:
            self.problem = str(error)


class PublishJob(Job):
    """Turn numbered parts into segments. After ENOSPC another one goes on with what is left."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        stages: Sequence[Stage],
        incarnation: bytes,
        infos: dict[int, SegmentInfo],
    ) -> None:
        """
        Args:
            infos: what earlier attempts have sealed, by segment number; goes on growing.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._stages = stages
        self._incarnation = incarnation
        self.infos = infos

    def work(self) -> None:
        """Turn the parts into segments; `infos` describes each segment that is complete."""
        publish_parts(self._disk, self._paths, self._stages, self._incarnation, self.infos)


def publish_parts(
    disk: Disk, paths: EnginePaths, stages: Sequence[Stage], incarnation: bytes, infos: dict[int, SegmentInfo]
) -> None:
    """Seal every part that `infos` does not have yet, then forget the stages.

    Raises:
        DiskError: the same call may be made again if only space was missing.
    """
    for part in [part for stage in stages for part in stage.parts]:
        if part.segment_seq not in infos:
            infos[part.segment_seq] = _publish_part(disk, paths, part, incarnation)
    for stage in stages:
        disk.unlink(paths.prepared(stage.number))
    disk.sync_directory(paths.staged)
    ends = [part.position_end for stage in stages for part in stage.parts]
    if ends:
        write_cursor(disk, paths, max(ends))


def _publish_part(disk: Disk, paths: EnginePaths, part: Log, incarnation: bytes) -> SegmentInfo:
    part.file = disk.open_write(part.path)
    try:
        part.file.write([part.header], 0)
        return seal_file(disk, paths, part, incarnation)
    finally:
        part.file.close()


def write_journal(disk: Disk, paths: EnginePaths, journal: JournalRecord) -> None:
    """Write `quiver.transactions` atomically; durable on return."""
    write_atomically(disk, paths.transactions, encode_journal(journal))
    disk.sync_directory(paths.root)


def delete_stage(disk: Disk, paths: EnginePaths, number: int, parts: Sequence[str]) -> None:
    """Delete a stage's record, and then its parts, which mean nothing without it. Files that are not there are passed over."""
    for path in [paths.prepared(number), *parts]:
        disk.unlink(path)
