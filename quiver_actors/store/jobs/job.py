"""An engine's blocking work, packaged for a thread.

A job is made by the engine in its loop, `run()` in a thread (it never raises and touches nothing but the disk and what it
was given), and handed back with `engine.finish(job)` in the loop. At most one job of each thread is under way per engine, so the
order of effects on disk is the order in which jobs were made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import ClassVar

from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.store.disk.held import HeldFile
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS
from quiver_actors.store.files.ballast import Ballast

_SYNC_OPERATIONS = ("fsync", "fdatasync", "sync_directory")


class Job:
    """Root of all jobs. After `run`: `error` is None or what went wrong, `took_ns` how long it took."""

    writes_anew: ClassVar[bool] = False
    """Each attempt writes new files, so that even a sync that found no room may be followed by another attempt."""
    strays: Collection[str] = ()
    """Names beside the segments under which the job may leave a file that the engine does not know as a segment."""

    def __init__(self) -> None:
        self.error: QuiverError | None = None
        self.took_ns = 0
        self.kept: list[HeldFile] = []
        """Files that have lost their name by this job and that somebody has open."""
        self.ballast: Ballast | None = None
        """The ballast to delete for room, for work that must go on also on a full disk; else None."""

    def run(self) -> None:
        """Do the work and measure `took_ns`; without room, release the ballast and try again. Errors go into `error`."""
        started = time.monotonic_ns()
        self._attempt(self.work)
        if self.no_space and self.ballast is not None:
            self._attempt(self._work_without_ballast)
        self.took_ns = time.monotonic_ns() - started

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
            self.error = None
        except QuiverError as error:
            # Without the error's frames: they refer to the job, which would so refer to itself.
            self.error = error.with_traceback(None)

    def _work_without_ballast(self) -> None:
        assert self.ballast is not None
        assert self.error is not None
        if not self.ballast.release():
            raise self.error
        self.work()

    def work(self) -> None:
        """Do the blocking part of the job; raises DiskError or FormatError. Each kind of job provides it."""
        raise NotImplementedError

    def keep(self, held: HeldFile | None) -> None:
        """Hand a file that somebody has open, and that has lost its name, over to whoever takes the job back. Takes ownership."""
        if held is not None:
            self.kept.append(held)

    @property
    def no_space(self) -> bool:
        """Whether the only error is that the file system has no room, so that the same may be tried again."""
        error = self.error
        if not isinstance(error, DiskError) or error.errno not in NO_SPACE_ERRNOS:
            return False
        return error.operation not in _SYNC_OPERATIONS or (self.writes_anew and error.operation == "fdatasync")
