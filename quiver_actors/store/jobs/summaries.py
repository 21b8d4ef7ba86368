"""Jobs that look at segments for their summaries, and write the file of these.

Whatever fails in them fails nothing else: the file is derived, and readers do without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths
from quiver_actors.store.files.summaries import StoredSchemas, Summary, encode_summaries
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.segment.stored_schemas import read_schemas
from quiver_actors.supervisor.log import log_event


class SummaryJob(Job):
    """Read which schemas a segment has. `streams` is None if the segment cannot be read."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int, identity: bytes) -> None:
        """
        Args:
            identity: of the segment as the engine knows it.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.segment_seq = segment_seq
        self.identity = identity
        self.streams: StoredSchemas | None = None

    def work(self) -> None:
        """Read the ends of the segment's streams."""
        try:
            file = self._disk.open_read(self._paths.segment(self.segment_seq))
            try:
                self.streams = read_schemas(file.read, file.size())
            finally:
                file.close()
        except (DiskError, FormatError) as error:
            fields: dict[str, object] = {"path": self._paths.segment(self.segment_seq), "reason": str(error)}
            log_event("summary.unread", fields, logging.DEBUG)


class SaveSummariesJob(Job):
    """Write the file of summaries."""

    def __init__(self, disk: Disk, paths: EnginePaths, summaries: Mapping[int, Summary]) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._summaries = summaries

    def work(self) -> None:
        """Replace the file. Its name need not be durable: a former file that comes back says less, and nothing wrong."""
        path = self._paths.summaries
        try:
            file = self._disk.create(path + TEMPORARY_SUFFIX)
            try:
                file.write([encode_summaries(self._summaries)], 0)
                file.fdatasync()
            finally:
                file.close()
            self._disk.rename(path + TEMPORARY_SUFFIX, path)
        except DiskError as error:
            log_event("summaries.unsaved", {"path": path, "reason": str(error)}, logging.WARNING)
