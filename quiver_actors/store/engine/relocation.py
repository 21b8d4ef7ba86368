"""The work of one engine on the cold disk: which segments move there, and what else is done there, one job at a time.

Owner: the engine, on the loop thread; the jobs run on the thread for the cold disk. Files that somebody waits for are opened first. A copy
is made in pieces with rests between them, so that it takes half of the time at most. The oldest segments move; one that is to be deleted,
checked or rescued stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.base.clock import Clock
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_segments import ColdSegments
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.events import ColdOpened, Event, Replaced
from quiver_actors.store.engine.repair import Repair
from quiver_actors.store.engine.retention import Retention
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold import (
    ColdCheckJob,
    ColdCopyJob,
    ColdFlipJob,
    ColdJob,
    ColdOpenJob,
)
from quiver_actors.store.jobs.cold_claim import ColdClaimJob
from quiver_actors.store.jobs.cold_removal import ColdDeleteJob
from quiver_actors.store.jobs.upkeep import Upkeep

COPY_REST = 1
"""Pause after a piece of a copy, in durations of that piece."""
FULL_NS = SECOND_NS
"""How long nothing is copied after the cold disk was found full."""
SPARED_NS = 60 * SECOND_NS
"""How long a segment that turned out to be damaged, or another writer's, is not copied again."""


class Relocation:
    """Makes the jobs of the cold disk and takes them back. Attributes: `cold`, the segments there."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        clock: Clock,
        condition: Condition,
        cold: ColdSegments,
        sealed_segments: SealedSegments,
        repair: Repair,
        retention: Retention,
        upkeep: Upkeep,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._condition = condition
        self.cold = cold
        self._sealed_segments = sealed_segments
        self._repair = repair
        self._retention = retention
        self._upkeep = upkeep
        self._job: ColdJob | None = None
        self._copy: tuple[ColdCopyJob, SegmentInfo] | None = None
        self._copies_from_ns = 0
        self._spared_until_ns: dict[int, int] = {}

    # --- jobs of the cold disk -----------------------------------------------------------------------------------------------

    def next(self) -> ColdJob | None:
        """The next job for the thread of the cold disk; None if there is nothing to do, or one is under way."""
        if self._job is not None or self._condition.is_over or self.cold.faults.is_waiting:
            return None
        self.cold.files.drop_stale()
        readers: tuple[Callable[[], ColdJob | None], ...] = (self._open_job, self._check_job)
        writers: tuple[Callable[[], ColdJob | None], ...] = (self.cold.delete_job, self._copy_job)
        for make in readers if self.cold.write_faults.is_waiting else (self._claim_job, *readers, *writers):
            self._job = make()
            if self._job is not None:
                return self._job
        return None

    def due_ns(self) -> int | None:
        """When `next` has something to do, as far as only time decides about it."""
        if self._job is not None or self._condition.is_over:
            return None
        if self.cold.faults.is_waiting:
            return self.cold.faults.resumes_ns
        # Where the list has to name the directory first, the job that writes it comes back before.
        copies = self._copy is not None or (not self.cold.awaits_list and self._next_to_copy() is not None)
        copies_ns = self._copies_from_ns if copies else None
        if self.cold.write_faults.is_waiting:
            copies_ns = self.cold.write_faults.resumes_ns
        wanted = [at for at in (self.cold.files.stale_ns, copies_ns) if at is not None]
        return min(wanted, default=None)

    def finish(self, job: ColdJob) -> list[Event]:
        """Take back a job of the cold disk."""
        self._job = None
        is_writing = isinstance(job, ColdClaimJob | ColdCopyJob | ColdDeleteJob)
        if job.is_taken:
            self.cold.tenure.note_taken()
        if job.fault:
            self._give_up_copy()
            if isinstance(job, ColdOpenJob):
                self.cold.files.put_off(job.segment_seq)
            return self.cold.note_fault(job.fault, is_writing=is_writing)
        events = self.cold.note_sight(is_writing=is_writing)
        if isinstance(job, ColdOpenJob):
            return [*events, *self._finish_open(job)]
        if isinstance(job, ColdCheckJob):
            return [*events, *self._finish_check(job)]
        if isinstance(job, ColdClaimJob):
            self.cold.tenure.finish_claim(job)
        if isinstance(job, ColdDeleteJob):
            self.cold.finish_delete(job)
        if isinstance(job, ColdCopyJob):
            self._finish_copy(job)
        return events

    def _claim_job(self) -> ColdClaimJob | None:
        """The first of all jobs after a start, where anything lies there. An empty directory is taken over with the first copy."""
        return None if self.cold.is_bare else self.cold.claim_job()

    def _open_job(self) -> ColdOpenJob | None:
        return self.cold.files.open_job(lambda seq: seq in self._repair.cold_suspects or self.cold.is_moving(seq))

    def _finish_open(self, job: ColdOpenJob) -> list[Event]:
        if job.is_doubtful:
            # Whoever wants it waits until it was checked.
            if self.cold.entry_of(job.segment_seq) is not None:
                self._repair.suspect(job.segment_seq)
            return []
        if job.is_gone and self.cold.entry_of(job.segment_seq) is not None:
            return [*self.cold.files.finish_open(job), *self._repair.give_up_deleted(job.segment_seq)]
        return self.cold.files.finish_open(job)

    def _check_job(self) -> ColdCheckJob | None:
        directory = self.cold.directory
        for segment_seq in self._repair.cold_suspects:
            entry = self.cold.entry_of(segment_seq)
            if directory is not None and entry is not None and not self.cold.is_moving(segment_seq):
                return ColdCheckJob(self._disk, self._paths, directory, segment_seq, entry)
        return None

    def _finish_check(self, job: ColdCheckJob) -> list[Event]:
        if job.is_gone:
            return self._repair.give_up_deleted(job.segment_seq)
        if not job.damage:
            bundles = self._repair.cold_suspects.pop(job.segment_seq, {})
            self._repair.failures.note_decodable(job.segment_seq, list(bundles))
        elif self.cold.entry_of(job.segment_seq) is not None:
            self.cold.returned(job.segment_seq, job.damage)
        return []

    # --- which segments move -------------------------------------------------------------------------------------------------

    def _copy_job(self) -> ColdJob | None:
        if self._clock.monotonic_ns() < self._copies_from_ns:
            return None
        if self._copy is not None:
            return self._copy[0]
        segment_seq = self._next_to_copy()
        if segment_seq is None:
            return None
        size_bytes = self._sealed_segments.segments[segment_seq].size_bytes
        if self._is_full(size_bytes):
            self._make_room(size_bytes)
            return None
        self.cold.name_directory()
        directory = self.cold.directory
        if directory is None or self.cold.awaits_list:
            return None
        if not directory.token:
            return self.cold.claim_job()
        self._upkeep.forget(segment_seq)  # nothing else may give the segment another file meanwhile
        job = ColdCopyJob(self._disk, self._paths, directory, segment_seq)
        self._copy = job, self._sealed_segments.segments[segment_seq]
        return job

    def _next_to_copy(self) -> int | None:
        """The oldest segment that is to move."""
        settings = self.cold.settings
        if not settings.cold_dir or self._condition.is_draining:
            return None
        segments, left_bytes = self._sealed_segments.segments, settings.keep_hot_bytes
        hot = sorted(segments.hot, reverse=True)
        kept = settings.keep_hot_segments
        if settings.keep_hot_bytes:
            for count, segment_seq in enumerate(hot[:kept]):
                left_bytes -= segments[segment_seq].size_bytes
                if left_bytes < 0:
                    kept = count
                    break
        return next((seq for seq in reversed(hot[kept:]) if not self._stays(seq)), None)

    def _stays(self, segment_seq: int) -> bool:
        """Whether the segment is to stay where it is now."""
        sealed_segments, until_ns = self._sealed_segments, self._spared_until_ns.get(segment_seq, 0)
        return (
            segment_seq in sealed_segments.waiting
            or segment_seq in sealed_segments.deletions.going
            or segment_seq in sealed_segments.foreign
            or segment_seq in self._repair.under_rescue
            or segment_seq in self._repair.suspects
            or self.cold.is_moving(segment_seq)
            or self._clock.monotonic_ns() < until_ns
        )

    def _is_full(self, size_bytes: int) -> bool:
        """Whether a segment has no room below `tier.cold_cap`."""
        cap_bytes, segments = self.cold.settings.cold_cap_bytes, self._sealed_segments.segments
        return bool(cap_bytes) and segments.cold_bytes + size_bytes > cap_bytes

    def _make_room(self, size_bytes: int) -> None:
        """Let the oldest cold segments go by the topic's policy. Where it keeps them, segments stay hot."""
        segments, cap_bytes = self._sealed_segments.segments, self.cold.settings.cold_cap_bytes
        self._copies_from_ns = self._clock.monotonic_ns() + FULL_NS
        if size_bytes <= cap_bytes:
            self._retention.evict_cold(segments.cold_bytes + size_bytes - cap_bytes)

    def _finish_copy(self, job: ColdCopyJob) -> None:
        now_ns = self._clock.monotonic_ns()
        self._copies_from_ns = now_ns + COPY_REST * job.took_ns
        if not job.is_done or self._copy is None:
            return
        _, info = self._copy
        is_same = self._sealed_segments.segments.get(job.segment_seq) is info
        if is_same and job.entry is not None:
            self._copy = None
            self.cold.copied(job.segment_seq, job.entry)
            return
        self._give_up_copy()
        if job.damage and job.segment_seq in self._sealed_segments.segments:
            self._spared_until_ns[job.segment_seq] = now_ns + SPARED_NS
            self._repair.suspect(job.segment_seq)

    def _give_up_copy(self) -> None:
        """Let the copy that is under way be none: its segment was deleted or has another file by now, or a disk has a fault."""
        if self._copy is not None:
            self.cold.left_over(self._copy[0].segment_seq)
            self._copy = None

    # --- the list, on the seal thread ----------------------------------------------------------------------------------------

    def flip_job(self) -> ColdFlipJob | None:
        """Return the job that writes the list of cold segments; None if there is nothing new in it."""
        going = self._sealed_segments.deletions.going
        busy = {*going, *self._repair.under_rescue, *self._repair.suspects, *self._sealed_segments.waiting}
        return self.cold.flip_job(busy)

    def finish_flip(self, job: ColdFlipJob) -> list[Event]:
        """Take back the job that wrote the list: segments are read from where they are now, and whoever has waited for that asks again."""
        returned = self.cold.finish_flip(job)
        self._repair.moved_to_cold(job.flipped)
        for segment_seq, damage in returned.items():  # rescued like any other
            self._repair.cold_suspects.pop(segment_seq, None)
            self._repair.damaged[segment_seq] = damage
        replaced = [Replaced(segment_seq) for segment_seq in (*job.flipped, *returned)]
        return [*replaced, *(ColdOpened(segment_seq) for segment_seq in job.flipped)]
