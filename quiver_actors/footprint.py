"""What the small files of one engine take on disk: everything in its directory but the logs and segments that it knows. Blocking.

They are few (two a subscriber, the core's own, what lies in quarantine), so they are counted whole, by their blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from quiver_actors.disk.protocol import Disk
from quiver_actors.errors import DiskError
from quiver_actors.jobs import Job
from quiver_actors.paths import BALLAST_NAME, SEGMENT_SUFFIX, STAGE_SUFFIX, EnginePaths, segment_seq_of
from quiver_actors.retention.account import SmallFiles
from quiver_actors.subscriber.gaps import FILE_PREFIX as GAPS_PREFIX
from quiver_actors.subscriber.progress import FILE_PREFIX as PROGRESS_PREFIX
from quiver_actors.supervisor.log import log_event
from quiver_actors.wal.layout import ACTIVE_NAME, CURSOR_NAME


class MeasureJob(Job):
    """Count them again; `small` is what was found."""

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seqs: Collection[int]) -> None:
        """
        Args:
            segment_seqs: those that the engine knows and counts itself.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._segment_seqs = segment_seqs
        self.small = SmallFiles()
        self.is_failed = False

    def work(self) -> None:
        self.small = measure_small_files(self._disk, self._paths, self._segment_seqs)

    def run(self) -> None:
        super().run()
        if isinstance(self.error, DiskError):
            # Counted again soon: what cannot be looked at now is no reason to fail an engine.
            fields: dict[str, object] = {"path": self._paths.root, "reason": str(self.error)}
            log_event("retention.unmeasured", fields, logging.WARNING)
            self.error, self.is_failed = None, True


def measure_small_files(disk: Disk, paths: EnginePaths, segment_seqs: Collection[int]) -> SmallFiles:
    """Raises DiskError: a directory cannot be listed."""
    counted = dict.fromkeys(
        ("compaction_bytes", "progress_bytes", "gaps_bytes", "quarantine_bytes", "ballast_bytes", "other_bytes"), 0
    )
    directories = (paths.root, paths.wal, paths.segments, paths.quarantine, paths.staged)
    for directory in directories:
        counted["other_bytes"] += disk.allocated_bytes(directory)
        for name in disk.list_directory(directory):
            kind = None if segment_seq_of(name) in segment_seqs else _kind_of(directory, name, paths)
            if kind is not None and f"{directory}/{name}" not in directories:
                counted[kind] += disk.allocated_bytes(f"{directory}/{name}")
    return SmallFiles(**counted)


def _kind_of(directory: str, name: str, paths: EnginePaths) -> str | None:
    """The field that a file counts for; None for logs and parts of stages."""
    if directory == paths.segments:
        return "quarantine_bytes" if name.endswith(SEGMENT_SUFFIX) else "compaction_bytes"
    if directory == paths.wal:
        return None if name.startswith(ACTIVE_NAME) and not name.startswith(CURSOR_NAME) else "other_bytes"
    if directory == paths.staged:
        return None if name.endswith(STAGE_SUFFIX) else "other_bytes"
    if directory == paths.quarantine:
        return "quarantine_bytes"
    if name == BALLAST_NAME:
        return "ballast_bytes"
    prefixes = {PROGRESS_PREFIX: "progress_bytes", GAPS_PREFIX: "gaps_bytes"}
    return next((kind for prefix, kind in prefixes.items() if name.startswith(prefix)), "other_bytes")
