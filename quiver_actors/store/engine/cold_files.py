"""The files of one engine's cold segments, opened away from the loop for whoever reads them.

Owner: the engine's `ColdSegments`, on the loop thread, which never touches the cold disk.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

from quiver_actors.base.clock import Clock
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError, StorageUnavailable
from quiver_actors.store.disk.protocol import Disk, DiskFile
from quiver_actors.store.engine.events import ColdOpened, Event
from quiver_actors.store.engine.faults import Faults
from quiver_actors.store.files.cold_directory import ColdDirectory
from quiver_actors.store.files.cold_list import ColdEntry
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold import ColdOpenJob

READY_NS = 10 * SECOND_NS
"""How long an opened file waits for whoever wanted it."""


class ColdStorageUnavailable(StorageUnavailable):
    """The segment lies on the cold disk, and its file is not open yet, or cannot be opened now. Clients see a StorageUnavailable.

    Attributes:
        is_coming: it is being opened; no error is known.
    """

    def __init__(self, message: str, *, is_coming: bool = False) -> None:
        super().__init__(message)
        self.is_coming = is_coming


class Entries(Protocol):
    """The list of cold segments, as far as their files need it."""

    faults: Faults

    @property
    def directory(self) -> ColdDirectory | None:
        """The directory on the cold disk."""

    def entry_of(self, segment_seq: int) -> ColdEntry | None:
        """Return what is known of one; None if it is none."""


class ColdFiles:
    """The cold files that somebody wants, and those that are open."""

    def __init__(self, entries: Entries, disk: Disk, paths: EnginePaths, clock: Clock) -> None:
        """
        Args:
            disk: the hot disk.
        """
        self._entries = entries
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._events: list[Event] = []
        self._wanted: dict[int, None] = {}
        self._ready: dict[int, deque[tuple[DiskFile, int]]] = {}
        """Opened files, each with the time until which it waits."""

    def close(self) -> None:
        """Close what was opened for readers that did not come."""
        for files in self._ready.values():
            for file, _ in files:
                file.close()
        self._ready.clear()
        self._wanted.clear()

    def take(self, segment_seq: int) -> tuple[int, int]:
        """A descriptor of the file of a cold segment, which the caller closes, and the file's size. Touches no disk.

        Raises:
            ColdStorageUnavailable: it is being opened, and `ColdOpened` tells when it is; or it cannot be opened now.
        """
        waiting, entry = self._ready.get(segment_seq), self._entries.entry_of(segment_seq)
        if waiting and entry is not None:
            file, _ = waiting.popleft()
            if not waiting:
                del self._ready[segment_seq]
            try:
                return os.dup(file.fileno()), entry.size_bytes
            except OSError as error:
                raise DiskError("dup", self._paths.segment(segment_seq), error.errno or 0) from error
            finally:
                file.close()
        self._wanted[segment_seq] = None
        where, fault = (
            f"segment {segment_seq} is on the cold disk, in {self._entries.directory}",
            self._entries.faults.fault,
        )
        if fault:
            raise ColdStorageUnavailable(f"{where}, which cannot be read now: {fault}; it is tried again")
        raise ColdStorageUnavailable(f"{where}, and is being opened: try again", is_coming=True)

    def open_job(self, is_doubtful: Callable[[int], bool]) -> ColdOpenJob | None:
        """Return the job that opens the next file that somebody wants; None if nobody wants any.

        Args:
            is_doubtful: which segments to leave until they were checked, or are hot again.
        """
        for segment_seq in list(self._wanted):
            entry, directory = self._entries.entry_of(segment_seq), self._entries.directory
            if entry is None or directory is None:
                self.let_wait_no_longer(segment_seq)
            elif not is_doubtful(segment_seq):
                return ColdOpenJob(self._disk, self._paths, directory, segment_seq, entry)
        return None

    def put_off(self, segment_seq: int) -> None:
        """Have a file that could not be opened tried again behind the others that are wanted: it may be the only one."""
        if self._wanted.pop(segment_seq, self) is None:
            self._wanted[segment_seq] = None

    def let_wait_no_longer(self, segment_seq: int) -> None:
        """Have those ask again who wait for a segment that was deleted, or is hot again."""
        if self._wanted.pop(segment_seq, self) is None:
            self._events.append(ColdOpened(segment_seq))

    def take_events(self) -> list[Event]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        return events

    def finish_open(self, job: ColdOpenJob) -> list[Event]:
        """Take back a job that opened a file, which did not fail."""
        self._wanted.pop(job.segment_seq, None)
        if job.file is not None:
            until_ns = self._clock.monotonic_ns() + READY_NS
            self._ready.setdefault(job.segment_seq, deque()).append((job.file, until_ns))
        return [ColdOpened(job.segment_seq)]

    def drop_stale(self) -> None:
        """Close opened files that nobody came for."""
        now_ns = self._clock.monotonic_ns()
        for segment_seq in list(self._ready):
            files, is_known = self._ready[segment_seq], self._entries.entry_of(segment_seq) is not None
            while files and (files[0][1] <= now_ns or not is_known):
                files.popleft()[0].close()
            if not files:
                del self._ready[segment_seq]

    @property
    def stale_ns(self) -> int | None:
        """When `drop_stale` has something to do; None: nothing is open."""
        return min((files[0][1] for files in self._ready.values()), default=None)
