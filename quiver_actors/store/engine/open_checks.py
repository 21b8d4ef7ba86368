"""Checks of bundles of open logs that somebody could not read: what is damaged is announced as lost, and stays so after the seal.

Owner: the engine, on the loop thread; the checks themselves are jobs. A job reads only the entries that were named.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver_actors.base.clock import Clock
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Event
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.quarantine import Quarantine
from quiver_actors.store.engine.readable_end import ReadableEnd
from quiver_actors.store.engine.repair import CHECK_REST, Repair
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.checking import LogCheckJob
from quiver_actors.store.wal.entry_reader import Place

CHECKED_MAX = 64
"""Most bundles that one job looks at; the others wait for the next one."""


class OpenChecks:
    """Has bundles of the logs of one engine checked."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        clock: Clock,
        progress: Progress,
        readable_end: ReadableEnd,
        sealed_segments: SealedSegments,
        quarantine: Quarantine,
        repair: Repair,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._progress = progress
        self._readable_end = readable_end
        self._sealed_segments = sealed_segments
        self._quarantine = quarantine
        self._repair = repair
        self._suspects: dict[int, dict[int, None]] = {}
        """Bundles of logs that somebody could not read and that are to be checked, by segment number."""
        self._from_ns = 0
        """Monotonic time before which nothing is checked."""

    def suspect(self, segment_seq: int, bundles: Iterable[int]) -> bool:
        """Have these bundles of a log checked. Returns whether the segment is a log."""
        shown_count = self._readable_end.shown_count(segment_seq)
        if not shown_count:
            return False
        named = {index: None for index in bundles if 0 <= index < shown_count}
        if named:
            self._suspects.setdefault(segment_seq, {}).update(named)
        return True

    def job(self) -> LogCheckJob | None:
        """The next check; None if there is none, or it is too early."""
        if not self._suspects or self._clock.monotonic_ns() < self._from_ns:
            return None
        for segment_seq, bundles in list(self._suspects.items()):
            if not self._readable_end.shown_count(segment_seq):
                # It was sealed meanwhile: that is checked as a whole.
                del self._suspects[segment_seq]
                self._repair.suspect(segment_seq, bundles)
                continue
            named = list(bundles)[:CHECKED_MAX]
            found = map(Place._make, PLACE.iter_unpack(self._readable_end.places(segment_seq, named)))
            path, file = self._readable_end.file_of(segment_seq)
            return LogCheckJob(self._disk, self._paths, path, file, segment_seq, dict(zip(named, found, strict=True)))
        return None

    def due_ns(self) -> int | None:
        """When `job` has something to do, as far as only time decides about it."""
        return self._from_ns if self._suspects else None

    def finish(self, job: LogCheckJob) -> list[Event]:
        """Take back a check: announce what is damaged to all subscribers."""
        self._from_ns = self._clock.monotonic_ns() + CHECK_REST * job.took_ns
        left = self._suspects.pop(job.segment_seq, {})
        for index in job.places:
            left.pop(index, None)
        if left:
            self._suspects[job.segment_seq] = left
        for _ in range(job.kept_count):
            self._quarantine.note_kept()
        self._repair.failures.note_decodable(job.segment_seq, job.decodable)
        if job.damaged:
            info = SegmentInfo(job.segment_seq, self._readable_end.shown_count(job.segment_seq), 0, 0, 0, 0)
            self._sealed_segments.give_up(
                job.segment_seq, info, "damaged", [(index, 1) for index in sorted(job.damaged)]
            )
        return self._progress.take_events()
