"""The account of what the directory of one engine takes of the disk, and the measurements that it needs.

Owner: the engine, on the loop thread. Logs, segments and the ballast are known at every moment; small files, and what others have put
beside the segments or deleted, are measured by a job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from quiver_actors.base.clock import Clock
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Event
from quiver_actors.store.engine.held_files import HeldFiles
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.files.ballast import Ballast
from quiver_actors.store.files.footprint import Footprint, MeasureJob, list_strays, measure_small_files
from quiver_actors.store.files.paths import EnginePaths, segment_seq_of
from quiver_actors.store.retention.account import DiskUse, block_bytes

MEASURE_INTERVAL_NS = 2 * SECOND_NS
LIST_INTERVAL_NS = 10 * SECOND_NS
"""How often the directory of the segments is listed, to find files that somebody else has put there, or deleted."""


class DiskAccount:
    """Measures and sums what the directory of one engine takes of the disk.

    Attributes:
        held_files: deleted files that readers keep.
        miss: told of segments whose files are not where they should be.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        clock: Clock,
        logs: LogQueue,
        segments: SegmentTable,
        ballast: Ballast,
        held_files: HeldFiles,
    ) -> None:
        self.miss: Callable[[Collection[int]], None] = lambda segment_seqs: None
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._logs = logs
        self._segments = segments
        self._ballast = ballast
        self.held_files = held_files
        self._strays: set[str] = set()
        self._take(measure_small_files(disk, paths, list_strays(disk, paths, segments)))
        self._is_measured = True
        self._measure_due_ns = clock.monotonic_ns() + MEASURE_INTERVAL_NS
        self._list_due_ns = clock.monotonic_ns() + LIST_INTERVAL_NS

    def touched(self) -> None:
        """Note that small files may have changed."""
        self._is_measured = False

    def look_again(self) -> bool:
        """Have the directory of the segments listed if the last listing is long ago; returns whether it is. Called also in quiet times."""
        is_due = bool(self._segments) and self._clock.monotonic_ns() >= self._list_due_ns
        if is_due:
            self.touched()
        return is_due

    def list_due_ns(self) -> int | None:
        """When the directory is to be listed next; None if there is nothing to list."""
        return self._list_due_ns if self._segments else None

    def watch(self, strays: Collection[str]) -> None:
        """Note that work is begun that may leave files of these names beside the segments."""
        self._strays.update(strays)

    def measure_job(self) -> MeasureJob | None:
        """Return the job that measures small files, once a minute with a listing of the segments; None if it is not due."""
        now_ns = self._clock.monotonic_ns()
        if self._is_measured or now_ns < self._measure_due_ns:
            return None
        self._is_measured = True
        self._measure_due_ns = now_ns + MEASURE_INTERVAL_NS
        segments, lists_all = self._segments, now_ns >= self._list_due_ns
        if lists_all:
            self._list_due_ns = now_ns + LIST_INTERVAL_NS
        self._strays = {name for name in self._strays if segment_seq_of(name) not in segments}
        known = frozenset(segments.hot) if lists_all else None
        return MeasureJob(self._disk, self._paths, frozenset(self._strays), known)

    def measure_due_ns(self) -> int | None:
        """Monotonic time of the next measurement; None while one is under way."""
        return None if self._is_measured else self._measure_due_ns

    def finish_measure(self, job: MeasureJob) -> list[Event]:
        """Take back a measurement: use its sizes, and have missing segments looked at."""
        self.miss(job.missing)
        if job.found is None:
            self._is_measured = False
        else:
            self._strays -= job.strays_watched
            self._take(job.found)
        return []

    def _take(self, found: Footprint) -> None:
        self._small = replace(found.small, ballast_bytes=0)
        self._small_bytes = self._small.total_bytes
        """Bytes of the small files without the ballast, which is known at every moment."""
        self._strays.update(found.strays)

    def disk_use(self) -> DiskUse:
        """The bytes of disk that everything in the directory takes now."""
        return DiskUse(
            log_bytes=self._logs_bytes(is_closed=False) + self._logs.spare.block_bytes + self._logs.growth.block_bytes,
            sealing_bytes=self._logs_bytes(is_closed=True),
            segment_bytes=self._segments.block_bytes,
            small=replace(self._small, ballast_bytes=self._ballast.counted_bytes),
            held_bytes=self.held_files.size_bytes,
        )

    def _logs_bytes(self, *, is_closed: bool) -> int:
        """Bytes of disk that the logs take, as reserved, which are closed for further bundles or are not."""
        return sum(block_bytes(log.capacity_bytes) for log in self._logs if log.closed == is_closed)

    @property
    def used_bytes(self) -> int:
        """The total of `disk_use`."""
        segments_bytes = self._segments.block_bytes
        others_bytes = self._small_bytes + self._ballast.counted_bytes + self.held_files.size_bytes
        logs_bytes = sum(block_bytes(log.capacity_bytes) for log in self._logs)
        return logs_bytes + self._logs.spare.block_bytes + self._logs.growth.block_bytes + segments_bytes + others_bytes
