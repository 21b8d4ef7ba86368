"""Measures the small files of one engine: everything in its directory but the logs and segments that it knows. Blocking.

They are few (two a subscriber, the core's own, what lies in quarantine), so they are counted one by one, by their blocks. Segments may be
many: their directory is not listed each time, only its `strays` are looked at, which are names that the engine's own jobs may have left
there. The whole of it is listed now and then, for what somebody else has put there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import (
    BALLAST_NAME,
    HELD_NAME,
    QUARANTINE_NAME,
    SEGMENT_SUFFIX,
    SEGMENTS_NAME,
    STAGE_SUFFIX,
    STAGED_NAME,
    WAL_NAME,
    EnginePaths,
    segment_name,
)
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.retention.account import SmallFiles
from quiver_actors.store.subscriber.gaps import FILE_PREFIX as GAPS_PREFIX
from quiver_actors.store.subscriber.progress import FILE_PREFIX as PROGRESS_PREFIX
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME
from quiver_actors.store.wal.layout import ACTIVE_NAME, CURSOR_NAME
from quiver_actors.supervisor.log import log_event

_DIRECTORIES = frozenset([WAL_NAME, SEGMENTS_NAME, QUARANTINE_NAME, STAGED_NAME, HELD_NAME])


@dataclass(frozen=True, slots=True)
class Footprint:
    """The result of a measurement."""

    small: SmallFiles
    strays: frozenset[str]
    """Names beside the segments that take room there."""


class MeasureJob(Job):
    """Measure the small files again; `found` is None where a directory could not be looked at."""

    def __init__(
        self, disk: Disk, paths: EnginePaths, strays: frozenset[str], segment_seqs: Collection[int] | None = None
    ) -> None:
        """
        Args:
            strays: names that may be beside the segments.
            segment_seqs: the segments that the engine knows and counts itself; given, all names beside them are looked at.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self.strays_watched = strays
        self._segment_seqs = segment_seqs
        self.found: Footprint | None = None
        self.missing: list[int] = []
        """Segments that the engine knows, and that have no name in their directory."""

    def work(self) -> None:
        """Measure the small files, and, if asked, list the segments that have lost their name."""
        strays: Collection[str] = self.strays_watched
        if self._segment_seqs is not None:
            names = set(self._disk.list_directory(self._paths.segments))
            self.missing = sorted(seq for seq in self._segment_seqs if segment_name(seq) not in names)
            strays = names.difference(map(segment_name, self._segment_seqs))
        self.found = measure_small_files(self._disk, self._paths, strays)

    def run(self) -> None:
        """Run the job; a disk error is logged and leaves `found` None instead of failing the engine."""
        super().run()
        if isinstance(self.error, DiskError):
            # Counted again soon: what cannot be looked at now is no reason to fail an engine.
            fields: dict[str, object] = {"path": self._paths.root, "reason": str(self.error)}
            log_event("retention.unmeasured", fields, logging.WARNING)
            self.error = self.found = None
            self.missing = []


def list_strays(disk: Disk, paths: EnginePaths, segment_seqs: Collection[int]) -> set[str]:
    """Names in the segments' directory that are none of those segments. Raises DiskError: it cannot be listed."""
    return set(disk.list_directory(paths.segments)).difference(map(segment_name, segment_seqs))


def measure_small_files(disk: Disk, paths: EnginePaths, strays: Collection[str]) -> Footprint:
    """Measure the small files and these strays. Raises DiskError: a directory cannot be listed."""
    counted = dict.fromkeys(
        ("compaction_bytes", "progress_bytes", "gaps_bytes", "quarantine_bytes", "ballast_bytes", "other_bytes"), 0
    )
    for directory in (paths.root, paths.wal, paths.segments, paths.quarantine, paths.staged, paths.held):
        counted["other_bytes"] += disk.allocated_bytes(directory)
    for kind, path in _small_files(disk, paths):
        counted[kind] += disk.allocated_bytes(path)
    present = set()
    for name in strays:
        size_bytes = disk.allocated_bytes(f"{paths.segments}/{name}")
        counted["quarantine_bytes" if name.endswith(SEGMENT_SUFFIX) else "compaction_bytes"] += size_bytes
        present.update([name] if size_bytes else [])
    return Footprint(SmallFiles(**counted), frozenset(present))


def _small_files(disk: Disk, paths: EnginePaths) -> Iterator[tuple[str, str]]:
    """All files that are not beside the segments, as (the field that each counts for, path); without logs and parts of stages."""
    kinds = (
        (paths.root, _kind_in_root),
        (paths.wal, _kind_of_log),
        (paths.quarantine, lambda _: "quarantine_bytes"),
        (paths.staged, lambda name: None if name.endswith(STAGE_SUFFIX) else "other_bytes"),
    )
    for directory, kind_of in kinds:
        for name in disk.list_directory(directory):
            kind = kind_of(name)
            if kind is not None:
                yield kind, f"{directory}/{name}"


def _kind_in_root(name: str) -> str | None:
    if name in _DIRECTORIES:
        return None
    if name == BALLAST_NAME:
        return "ballast_bytes"
    if name.startswith((PROGRESS_PREFIX, JOURNAL_NAME)):
        return "progress_bytes"
    return "gaps_bytes" if name.startswith(GAPS_PREFIX) else "other_bytes"


def _kind_of_log(name: str) -> str | None:
    return None if name.startswith(ACTIVE_NAME) and not name.startswith(CURSOR_NAME) else "other_bytes"
