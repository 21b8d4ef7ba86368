"""Damaged segments of one engine: how they are found, rescued, and given up.

Owner: the engine, on the loop thread. A segment found at open is checked before its first bundle is delivered, one that somebody could not
read when he says so. What is damaged is rescued; where nothing of it can be, everybody who was owed it gets a durable notice before the
file is moved aside.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from quiver_actors import jobs
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.progress import Progress
from quiver_actors.engine.shelf import Runs, Shelf
from quiver_actors.events import Event, Replaced
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.recovery import Recovered
from quiver_actors.recovery.missing_logs import MissingLog
from quiver_actors.rescue import Rescued, RescueJob, SwapJob
from quiver_actors.upkeep import CompactJob, SlicedJob, Upkeep
from quiver_actors.wal.contract import segment_cfg_hash


class Mending:
    """See the module.

    Attributes:
        damaged: segments that are to be rescued, and what is wrong with them.
        quarantined: how many files were moved aside.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        recovered: Recovered,
        progress: Progress,
        shelf: Shelf,
        upkeep: Upkeep,
    ) -> None:
        self.damaged: dict[int, str] = recovered.damaged
        self.quarantined = recovered.quarantined
        self._disk = disk
        self._paths = paths
        self._cfg_hash = segment_cfg_hash(settings)
        self._cap_bytes = settings.retention.quarantine_cap_bytes
        self._is_trimmed = not recovered.has_quarantine
        """Nothing was moved aside since the quarantine was held to its cap."""
        self._progress = progress
        self._shelf = shelf
        self._upkeep = upkeep
        self._suspects: dict[int, str] = {}
        """Segments that somebody could not read, to be checked."""
        self._condemned: dict[int, int] = {}
        """Damaged segments and the ticket of the progress that must be durable before they are moved aside."""
        self._open_ended: dict[int, tuple[int, Rescued]] = {}
        """Rebuilt segments of which nobody knows how many bundles they had, and the ticket of the progress that says so to everybody:
        it must be durable before they take the places of the damaged files."""

    def give_up_missing(self, segment_seqs: Sequence[int]) -> None:
        """Segments that progress names and whose files are gone.

        One that was deleted because everybody was done with it may be among them: whose progress was written since does not name it
        any more, and nobody has lost anything.
        """
        registry = self._progress.registry
        for segment_seq in segment_seqs:
            if registry.is_done_with_unsealed(segment_seq):
                registry.forget_segment(segment_seq, file_is_gone=True)
            else:
                self._shelf.give_up(segment_seq, _nothing_known_of(segment_seq), "damaged")

    def count_missing_logs(self, missing: Sequence[MissingLog]) -> None:
        """Of these everybody was told when they were found."""
        for each in missing:
            self._shelf.losses.note("damaged", [(0, each.bundle_count)], each.bundle_count, 0, 0)

    # --- checks ------------------------------------------------------------------------------------------------------------

    def suspect(self, segment_seq: int, reason: str) -> None:
        """See `Engine.check_segment`."""
        if segment_seq in self._shelf.segments and segment_seq not in self._shelf.waiting:
            self._suspects.setdefault(segment_seq, reason)

    @property
    def suspects(self) -> Container[int]:
        """Segments that are not to be deleted before they were checked."""
        return self._suspects

    @property
    def under_rescue(self) -> set[int]:
        """Damaged segments, up to the time when what is left of them is in their places."""
        return {*self.damaged, *self._open_ended}

    def verify_job(self) -> jobs.VerifyJob | None:
        """Segments found at open are checked oldest first; those sealed since wait in line behind them."""
        waiting = self._shelf.waiting
        if waiting:
            if waiting[0] in self.damaged or waiting[0] in self._open_ended:
                return None
            return jobs.VerifyJob(self._disk, self._paths, waiting[0])
        suspect = next(iter(self._suspects), None)
        return None if suspect is None else jobs.VerifyJob(self._disk, self._paths, suspect, is_suspect=True)

    def finish_verify(self, job: jobs.VerifyJob) -> list[Event]:
        is_suspect = self._suspects.pop(job.segment_seq, None) is not None
        if is_suspect:
            self._shelf.search_again()  # no longer spared
        if job.damage is not None:
            self.damaged[job.segment_seq] = job.damage
            return []
        if is_suspect:
            return self._progress.take_events()
        return self._shelf.approve(job.segment_seq, _runs(job.lost))

    def finish_upkeep(self, job: SlicedJob) -> list[Event]:
        """Compaction and scrub read whole segments too."""
        self._upkeep.finish(job)
        info = self._shelf.segments.get(job.segment_seq)
        if info is not None and job.damage is not None:
            self.damaged[job.segment_seq] = job.damage
        elif info is not None and isinstance(job, CompactJob) and job.new_size_bytes is not None:
            self._shelf.segments[job.segment_seq] = msgspec.structs.replace(info, size_bytes=job.new_size_bytes)
            return [Replaced(job.segment_seq)]
        return []

    # --- rescues -----------------------------------------------------------------------------------------------------------

    def rescue_job(self) -> RescueJob | None:
        if not self.damaged:
            return None
        segment_seq = min(self.damaged)
        info = self._shelf.segments.get(segment_seq)
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
        )

    def no_room_to_rescue(self, job: RescueJob) -> list[Event]:
        """Those behind it are delivered first, which may make room."""
        self._shelf.put_off(job.segment_seq)
        return self._shelf.announce()

    def finish_rescue(self, job: RescueJob) -> list[Event]:
        assert job.rescued is not None
        segment_seq, rescued = job.segment_seq, job.rescued
        del self.damaged[segment_seq]
        self._upkeep.forget(segment_seq)
        if rescued.info is None:
            return self._condemn(segment_seq, rescued.bundle_count)
        if rescued.is_in_place:
            return self._put_back(segment_seq, rescued.info, rescued.lost)
        self._shelf.give_up(segment_seq, rescued.info, "damaged", [(rescued.bundle_count, 0)])
        self._open_ended[segment_seq] = (self._progress.ticket, rescued)
        return self._progress.take_events()

    def swap_job(self) -> SwapJob | None:
        for segment_seq, (ticket, rescued) in self._open_ended.items():
            if ticket <= self._progress.durable:
                return SwapJob(self._disk, self._paths, segment_seq, rescued)
        return None

    def finish_swap(self, job: SwapJob) -> list[Event]:
        del self._open_ended[job.segment_seq]
        assert job.rescued.info is not None
        return self._put_back(job.segment_seq, job.rescued.info, job.rescued.lost)

    def _put_back(self, segment_seq: int, info: SegmentInfo, indexes: Sequence[int]) -> list[Event]:
        """The rebuilt file is in its place."""
        self._count_quarantined()
        self._shelf.segments[segment_seq] = info
        lost = _runs(indexes)
        if segment_seq in self._shelf.waiting:
            return [Replaced(segment_seq), *self._shelf.approve(segment_seq, lost)]
        self._upkeep.checked(segment_seq)
        return [self._shelf.offer(info, lost), Replaced(segment_seq), *self._progress.take_events()]

    def _condemn(self, segment_seq: int, bundle_count: int) -> list[Event]:
        """Nobody can read that segment: note what everybody loses; once that is durable the file is moved aside."""
        was_waiting = segment_seq in self._shelf.waiting
        self._shelf.pass_over(segment_seq)
        known = self._shelf.take_out(segment_seq) or _nothing_known_of(segment_seq)
        count = max(known.bundle_count, bundle_count)
        rows = 0 if was_waiting else known.row_count  # what an unchecked footer says of its rows is not to be believed
        self._count_quarantined()
        info = msgspec.structs.replace(known, bundle_count=count, row_count=rows)
        self._shelf.give_up(segment_seq, info, "damaged")
        self._condemned[segment_seq] = self._progress.ticket
        return [*self._progress.take_events(), *self._shelf.announce()]

    # --- quarantine --------------------------------------------------------------------------------------------------------

    def quarantine_job(self) -> jobs.QuarantineJob | None:
        due = (seq for seq, ticket in self._condemned.items() if ticket <= self._progress.durable)
        segment_seq = next(due, None)
        return None if segment_seq is None else jobs.QuarantineJob(self._disk, self._paths, segment_seq)

    def finish_quarantine(self, job: jobs.QuarantineJob) -> list[Event]:
        del self._condemned[job.segment_seq]
        self._is_trimmed = False
        return []

    def _count_quarantined(self) -> None:
        self.quarantined += 1
        self._is_trimmed = False

    def change_settings(self, settings: TopicSettings) -> None:
        """The cap holds at once."""
        self._cap_bytes = settings.retention.quarantine_cap_bytes
        self._is_trimmed = False

    def trim_job(self) -> jobs.TrimJob | None:
        return None if self._is_trimmed else jobs.TrimJob(self._disk, self._paths, self._cap_bytes)

    def finish_trim(self, _: jobs.TrimJob) -> list[Event]:
        self._is_trimmed = True
        return []

    def forget(self, segment_seqs: Sequence[int]) -> None:
        """Their files are deleted."""
        for segment_seq in segment_seqs:
            self.damaged.pop(segment_seq, None)
            self._open_ended.pop(segment_seq, None)
            self._suspects.pop(segment_seq, None)


def _nothing_known_of(segment_seq: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, 0, 0, 0, 0, 0)


def _runs(indexes: Sequence[int]) -> Runs:
    """Rising indexes as (first, count)."""
    runs: Runs = []
    for index in indexes:
        if runs and sum(runs[-1]) == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs
