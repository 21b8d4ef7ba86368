"""Damaged and deleted segments of one engine: how they are found, rescued, or recorded as lost.

Owner: the engine, on the loop thread. A segment found at open is checked before its first bundle is delivered, any other one when
somebody reports that it cannot be read. A damaged segment is rescued; where nothing of it can be saved, every subscriber that
was owed it gets a durable notice before the file is moved aside. A segment whose file somebody else has deleted is recorded as lost at
once. A file that cannot be looked at now is a fault that may pass: the file is looked at again, and nothing is recorded as lost for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.ranges import runs_of
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Claimable, Event, Replaced
from quiver_actors.store.engine.faults import Faults
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.quarantine import Quarantine
from quiver_actors.store.engine.read_failures import ReadFailures
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.files.own_directory import OwnDirectory
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.checking import LossJob, VerifyJob
from quiver_actors.store.jobs.rescue import Rescued, RescueJob, SwapJob
from quiver_actors.store.jobs.upkeep import CompactJob, SlicedJob, Upkeep
from quiver_actors.store.recovery import Recovered
from quiver_actors.store.recovery.missing_logs import MissingLog
from quiver_actors.store.wal.contract import segment_cfg_hash

CHECK_REST = 9
"""Pause after the check of a suspect, in durations of that check, because any consumer can ask for checks."""
LOST_MAX = 64
"""How many segments one job looks for at most, and how many losses one turn of the loop reports."""
BUNDLES_DECODED_MAX = 64
"""How many bundles of one segment one check decodes at most."""


class Repair:
    """Finds the damaged and deleted segments of one engine, and has them checked, rescued, replaced or moved aside.

    Attributes:
        damaged: segments that are to be rescued, and what is wrong with them.
        deleted_count: segments whose files somebody else has deleted since the engine was opened.
        faults: whether segments can be looked at now.
        failures: what consumers could not read although nothing is wrong with it here.
        upkeep: compaction and scrub.
        cold_suspects: suspects on the cold disk, which are checked by another thread.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        recovered: Recovered,
        progress: Progress,
        sealed_segments: SealedSegments,
        quarantine: Quarantine,
        upkeep: Upkeep,
        clock: Clock,
    ) -> None:
        self.damaged: dict[int, str] = recovered.damaged
        self.deleted_count = 0
        self.faults = Faults(clock)
        self.failures = ReadFailures()
        self._clock = clock
        self._own = OwnDirectory(disk, paths)
        self._suspects_from_ns = 0
        """Monotonic time before which no suspect is checked."""
        self._disk = disk
        self._paths = paths
        self._cfg_hash = segment_cfg_hash(settings)
        self._progress = progress
        self._sealed_segments = sealed_segments
        self._quarantine = quarantine
        self.upkeep = upkeep
        self._suspects: dict[int, dict[int, None]] = {}
        """Segments to check because a reader failed in them, with the bundles that the reader could not read."""
        self.cold_suspects: dict[int, dict[int, None]] = {}
        self._missing: dict[int, None] = {}
        """Segments that a listing of their directory did not name."""
        self._open_ended: dict[int, tuple[int, Rescued]] = {}
        """Rebuilt segments of which nobody knows how many bundles they had, and the ticket of the progress that says so to everybody:
        it must be durable before they take the places of the damaged files."""
        sealed_segments.suspect = self.suspect

    def give_up_missing(self, segment_seqs: Sequence[int]) -> None:
        """Record segments as lost that progress names and whose files are gone.

        A segment that was deleted because everybody was done with it may be among them: a subscriber whose progress was written since
        does not name it any more, and nobody has lost anything.
        """
        registry = self._progress.registry
        for segment_seq in segment_seqs:
            if registry.is_done_with_unsealed(segment_seq):
                registry.forget_segment(segment_seq, file_is_gone=True)
            else:
                self._sealed_segments.give_up(segment_seq, _nothing_known_of(segment_seq), "damaged")

    def count_missing_logs(self, missing: Sequence[MissingLog]) -> None:
        """Add the bundles of missing logs to the losses. Subscribers were told of them when recovery found that the logs are missing."""
        for each in missing:
            self._sealed_segments.losses.note("damaged", [(0, each.bundle_count)], each.bundle_count, 0, 0)

    # --- checks ------------------------------------------------------------------------------------------------------------

    def suspect(self, segment_seq: int, bundles: Iterable[int] = ()) -> None:
        """See `Engine.check_segment`."""
        if segment_seq in self._sealed_segments.segments.cold:
            self.cold_suspects.setdefault(segment_seq, {}).update(dict.fromkeys(bundles))
        elif segment_seq in self._sealed_segments.segments and segment_seq not in self._sealed_segments.waiting:
            self._suspects.setdefault(segment_seq, {}).update(dict.fromkeys(bundles))

    def moved_to_cold(self, segment_seqs: Iterable[int]) -> None:
        """Have those suspects checked where they are now: in their former place they would count as deleted by somebody."""
        for segment_seq in segment_seqs:
            bundles = self._suspects.pop(segment_seq, None)
            if bundles is not None:
                self.suspect(segment_seq, bundles)

    @property
    def suspects(self) -> Collection[int]:
        """Segments that are not to be deleted before they were checked."""
        return self._suspects

    @property
    def under_rescue(self) -> set[int]:
        """Damaged segments whose rescued files are not in their places yet."""
        return {*self.damaged, *self._open_ended}

    def verify_job(self) -> VerifyJob | None:
        """The next check: segments found at open first, those before the others that a subscriber is owed, then suspects."""
        if self.faults.is_waiting:
            return None
        waiting = self._sealed_segments.waiting
        if waiting:
            wanted = waiting.next_to_check(self._progress.registry, self.under_rescue)
            return None if wanted is None else VerifyJob(self._disk, self._paths, self._own, wanted)
        suspect = next(iter(self._suspects), None)
        if suspect is None or self._clock.monotonic_ns() < self._suspects_from_ns:
            return None
        bundles = list(self._suspects[suspect])[:BUNDLES_DECODED_MAX]
        return VerifyJob(self._disk, self._paths, self._own, suspect, bundles)

    def verify_due_ns(self) -> int | None:
        """When `verify_job` has something to do, as far as only time decides about it."""
        if self.faults.is_waiting:
            return self.faults.resumes_ns
        return self._suspects_from_ns if self._suspects and not self._sealed_segments.waiting else None

    def miss(self, segment_seqs: Iterable[int]) -> None:
        """Note segments that a listing of their directory has not named."""
        self._missing.update(dict.fromkeys(segment_seqs))

    def loss_job(self) -> LossJob | None:
        """Return the job that proves which missing segments were deleted; None if nothing is missing or it is too early."""
        if not self._missing:
            return None
        missing = [seq for seq in self._missing if seq in self._sealed_segments.segments.hot]
        self._missing = dict.fromkeys(missing)
        if not missing or self.faults.is_waiting:
            return None
        return LossJob(self._paths, self._own, missing[:LOST_MAX])

    def finish_loss(self, job: LossJob) -> list[Event]:
        """Take back the proof: announce the segments that were deleted, or note that nothing could be looked at."""
        if job.fault:
            return self.faults.note_fault(job.fault)
        events = self.faults.note_sight()
        for segment_seq in job.segment_seqs:
            self._missing.pop(segment_seq, None)
        for segment_seq in job.lost:
            events += self.give_up_deleted(segment_seq)
        return events

    def finish_verify(self, job: VerifyJob) -> list[Event]:
        """Take back the check of a segment: let subscribers have it, or have it rescued."""
        if job.fault:
            return self.faults.note_fault(job.fault)
        passed = self.faults.note_sight()
        is_waiting = job.segment_seq in self._sealed_segments.waiting
        asked = self._suspects.pop(job.segment_seq, {})
        self._sealed_segments.deletions.search_again()  # a suspect is no longer spared
        if job.is_lost:
            return [*passed, *self.give_up_deleted(job.segment_seq)]
        if job.damage is not None:
            self.damaged[job.segment_seq] = job.damage
            return passed
        if is_waiting:
            return [*passed, *self._sealed_segments.approve(job.segment_seq, runs_of(job.lost))]
        self._suspects_from_ns = self._clock.monotonic_ns() + CHECK_REST * job.took_ns
        for index in (*job.decodable, *job.undecodable):
            asked.pop(index, None)
        if asked:  # more than one check decodes, or named while this one was made
            self._suspects[job.segment_seq] = asked
        return [*passed, *self._judge(job)]

    def _judge(self, job: VerifyJob) -> list[Event]:
        """Act on what a check found about bundles that somebody could not read."""
        info = self._sealed_segments.segments.get(job.segment_seq)
        if info is not None and job.undecodable:
            if job.is_kept:
                self._quarantine.note_kept()
            self._sealed_segments.give_up(job.segment_seq, info, "damaged", runs_of(sorted(job.undecodable)))
        self.failures.note_decodable(job.segment_seq, job.decodable)
        return self._progress.take_events()

    def give_up_deleted(self, segment_seq: int) -> list[Event]:
        """Record a segment as lost whose file somebody has deleted: each subscriber is told at once what it loses."""
        self.deleted_count += 1
        self.damaged.pop(segment_seq, None)
        self.upkeep.forget(segment_seq)
        return self._condemn(segment_seq, self._progress.registry.known_bundle_count(segment_seq))

    def finish_upkeep(self, job: SlicedJob) -> list[Event]:
        """Take back a job of compaction or scrub, which reads whole segments and so may find damage."""
        self.upkeep.finish(job)
        if job.fault:
            self.suspect(job.segment_seq)
            return []
        info = self._sealed_segments.segments.get(job.segment_seq)
        if info is not None and job.damage is not None:
            self.damaged[job.segment_seq] = job.damage
        elif info is not None and isinstance(job, CompactJob) and job.new_size_bytes is not None:
            self._sealed_segments.segments[job.segment_seq] = msgspec.structs.replace(
                info, size_bytes=job.new_size_bytes
            )
            return [Replaced(job.segment_seq)]
        return []

    # --- rescues -----------------------------------------------------------------------------------------------------------

    def rescue_job(self) -> RescueJob | None:
        """Return the job that rescues the oldest damaged segment; None if there is none or it is too early."""
        if not self.damaged or self.faults.is_waiting:
            return None
        segment_seq = min(self.damaged)
        info = self._sealed_segments.segments.get(segment_seq)
        count = info.bundle_count if info else self._progress.registry.known_bundle_count(segment_seq)
        return RescueJob(
            self._disk,
            self._paths,
            segment_seq,
            self.damaged[segment_seq],
            count,
            self._cfg_hash,
            is_count_known=info is not None,
            keeps_unprovable=True,
            own=self._own,
        )

    def no_room_to_rescue(self, job: RescueJob) -> list[Event]:
        """Postpone the segment: those behind it are delivered first, which may make room."""
        return self._sealed_segments.put_off(job.segment_seq)

    def finish_rescue(self, job: RescueJob) -> list[Event]:
        """Take back a rescue: use the rebuilt segment, and announce the bundles that are lost."""
        if job.fault:
            return self.faults.note_fault(job.fault)
        segment_seq, rescued = job.segment_seq, job.rescued
        if rescued is None:
            return self.give_up_deleted(segment_seq)
        del self.damaged[segment_seq]
        self.upkeep.forget(segment_seq)
        if rescued.info is None:
            self._quarantine.note_kept()
            return self._condemn(segment_seq, rescued.bundle_count, is_count_proven=rescued.is_count_proven)
        if rescued.is_in_place:
            return self._put_back(segment_seq, rescued.info, rescued.lost)
        self._sealed_segments.give_up(segment_seq, rescued.info, "damaged", [(rescued.bundle_count, 0)])
        self._open_ended[segment_seq] = (self._progress.settle(), rescued)
        return self._progress.take_events()

    def swap_job(self) -> SwapJob | None:
        """Return the job that puts a rescued segment in its place, once the notices of its lost bundles are durable."""
        for segment_seq, (ticket, rescued) in self._open_ended.items():
            if ticket <= self._progress.filed:
                return SwapJob(self._disk, self._paths, segment_seq, rescued)
        return None

    def finish_swap(self, job: SwapJob) -> list[Event]:
        """Take back a swap: the rescued segment can be read from now on."""
        del self._open_ended[job.segment_seq]
        assert job.rescued.info is not None
        return self._put_back(job.segment_seq, job.rescued.info, job.rescued.lost)

    def _put_back(self, segment_seq: int, info: SegmentInfo, indexes: Sequence[int]) -> list[Event]:
        """Note that the rebuilt file is in its place."""
        self._quarantine.note_kept()
        self.failures.forget(segment_seq)
        self._sealed_segments.segments[segment_seq] = info
        lost = runs_of(indexes)
        if segment_seq in self._sealed_segments.waiting:
            return [Replaced(segment_seq), *self._sealed_segments.approve(segment_seq, lost)]
        self.upkeep.checked(segment_seq)
        return [self._sealed_segments.offer(info, lost), Replaced(segment_seq), *self._progress.take_events()]

    def _condemn(self, segment_seq: int, bundle_count: int, *, is_count_proven: bool = False) -> list[Event]:
        """Record a segment as lost that nobody can read. Once that is durable the file, if there is one, is moved aside."""
        was_waiting = segment_seq in self._sealed_segments.waiting
        # Whoever looks for the file from now on would say that somebody has deleted it.
        for looked_for in (self._missing, self._suspects, self.cold_suspects):
            looked_for.pop(segment_seq, None)
        self._sealed_segments.pass_over(segment_seq)
        self.failures.forget(segment_seq)
        known = self._sealed_segments.take_out(segment_seq) or _nothing_known_of(segment_seq)
        count = max(known.bundle_count, bundle_count)
        rows = 0 if was_waiting else known.row_count  # what an unchecked footer says of its rows is not to be believed
        info = msgspec.structs.replace(known, bundle_count=count, row_count=rows)
        following: list[str] = []
        if 0 < count == (bundle_count if is_count_proven else known.bundle_count):
            # Else nobody knows how many bundles it had, and those that are not counted would be missing without a word.
            self._progress.registry.add_segment(segment_seq, count, info.size_bytes)
            following = self._sealed_segments.follow(info)
        self._sealed_segments.give_up(segment_seq, info, "damaged")
        self._quarantine.condemn(segment_seq)
        return [*self._progress.retired(), *self._progress.take_events(), *map(Claimable, following)]

    def forget(self, segment_seqs: Sequence[int]) -> None:
        """Forget these segments: their files are deleted."""
        for segment_seq in segment_seqs:
            self.damaged.pop(segment_seq, None)
            self._open_ended.pop(segment_seq, None)
            self._suspects.pop(segment_seq, None)
            self.cold_suspects.pop(segment_seq, None)
            self.failures.forget(segment_seq)


def _nothing_known_of(segment_seq: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, 0, 0, 0, 0, 0)
