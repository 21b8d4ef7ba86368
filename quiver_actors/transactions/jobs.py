"""The blocking work of staged bundles, for the seal thread. Each job may be cut off anywhere; `transactions.recovery` goes on from there.

Order of effects
- prepare: the parts are synced; then the record appears, whole, under its name. Without the record the parts are nothing.
- publish: `quiver.transactions` says where each part becomes visible, durably; only then a part changes. Records are deleted last.
- drop of a prepared stage: `quiver.transactions` says so, durably; only then its record is deleted, and its parts after it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from quiver_actors.disk.protocol import NO_SPACE_ERRNOS, Disk, write_atomically
from quiver_actors.errors import DiskError
from quiver_actors.jobs import Job
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.sealing import seal_file, write_cursor
from quiver_actors.transactions.loading import load_stage
from quiver_actors.transactions.records import JournalRecord, PreparedRecord, encode_journal, encode_prepared
from quiver_actors.transactions.stage import Stage
from quiver_actors.wal.log import Log


class StageAllocateJob(Job):
    """Make the next part of a stage, or enlarge the last one. `failure`: why the stage cannot go on; other stages can."""

    def __init__(self, disk: Disk, paths: EnginePaths, stage: Stage, capacity_bytes: int, free_bytes_min: int) -> None:
        super().__init__()
        self._disk = disk
        self._directory = paths.staged
        self._path = paths.stage_part(stage.number, len(stage.parts))
        self._growing = stage.growing
        self._free_bytes_min = free_bytes_min
        self._capacity_bytes = capacity_bytes
        self.stage = stage
        self.part: Log | None = None
        """The new one."""
        self.failure = ""

    def work(self) -> None:
        try:
            self._check_low_water_mark()
            if self._growing is not None:
                self._growing.file.allocate(self._capacity_bytes)
                self._growing.capacity_bytes = self._capacity_bytes
            else:
                self.part = self._create()
        except DiskError as error:
            if error.errno in NO_SPACE_ERRNOS:
                raise
            self.failure = str(error)

    def _create(self) -> Log:
        self._disk.make_directory(self._directory)
        file = self._disk.create(self._path)
        try:
            file.allocate(self._capacity_bytes)
        except DiskError:
            file.close()
            self._disk.unlink(self._path)
            raise
        return Log(file, self._path, self._capacity_bytes)

    def _check_low_water_mark(self) -> None:
        wanted_bytes = self._capacity_bytes - (self._growing.capacity_bytes if self._growing else 0)
        free_bytes = self._disk.free_bytes(self._directory.rpartition("/")[0])
        if free_bytes < wanted_bytes + self._free_bytes_min:
            left = f"{free_bytes} bytes are free, {self._free_bytes_min} of them are not for staged bundles"
            raise DiskError("fallocate", self._path, errno.ENOSPC, left)


class PrepareJob(Job):
    """Make a stage durable. `failure`: why it is not; then it is to be dropped as if it were."""

    def __init__(
        self, disk: Disk, paths: EnginePaths, stage: Stage, record: PreparedRecord, unused: Log | None = None
    ) -> None:
        """
        Args:
            unused: a file of the stage that nothing was written to. It goes.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._unused = unused
        self.stage = stage
        self.record = record
        self.failure = ""

    def work(self) -> None:
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
    write_atomically(disk, paths.transactions, encode_journal(journal))
    disk.sync_directory(paths.root)


def delete_stage(disk: Disk, paths: EnginePaths, number: int, parts: Sequence[str]) -> None:
    """Its record first: what is left then is nothing. Files that are not there are none."""
    for path in [paths.prepared(number), *parts]:
        disk.unlink(path)
