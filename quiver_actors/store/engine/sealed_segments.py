"""The sealed segments of one engine: which there are, which may be claimed, and which nobody needs any more.

Owner: the engine, on the loop thread. Segments become claimable once they were found whole: those sealed since the engine was opened
are, those found at open are checked first. A subscriber waits for the check of what it is owed, not for that of the rest (`unchecked`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from quiver_actors.base.clock import Clock
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.ranges import Runs
from quiver_actors.errors import DiskError, NotStored, StorageUnavailable
from quiver_actors.store.disk.held import lock_for_reader, unlock_for_guest
from quiver_actors.store.disk.protocol import Disk, DiskFile
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from quiver_actors.store.engine.cold_segments import ColdSegments
from quiver_actors.store.engine.deletions import Deletions
from quiver_actors.store.engine.events import Claimable, Event, GapFound, LeftDisk, Resumed, Sealed
from quiver_actors.store.engine.foreign_segments import ForeignSegments
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.engine.summaries import Summaries
from quiver_actors.store.engine.unchecked import Unchecked
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.summaries import StoredSchemas
from quiver_actors.store.jobs.upkeep import Upkeep
from quiver_actors.store.recovery import Recovered
from quiver_actors.store.retention.losses import Losses
from quiver_actors.store.segment.layout import TRAILER
from quiver_actors.store.segment.stored_manifest import ingestion_times_of
from quiver_actors.store.subscriber import archiving


class SealedSegments:
    """The sealed segments of one engine, from their seal, or the start, to their deletion.

    Attributes:
        segments: by number, with what they amount to.
        waiting: segments that a start found and that subscribers have not been told of yet; also damaged ones.
        begun_ns: of new segments: when the first bundle came, on the monotonic clock, where that was since the engine was opened.
        losses: why segments were deleted, and what was lost, since the engine was opened.
        deletions: which of them are on their way out.
        summaries: the schemas that they have.
        suspect: told of a segment whose file could not be opened or read; until `close`.
        foreign: which of them are of another writer.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        clock: Clock,
        recovered: Recovered,
        progress: Progress,
        upkeep: Upkeep,
        segments: SegmentTable,
        cold: ColdSegments,
    ) -> None:
        self.segments = segments
        # Cold ones were compared with their checksums when they were moved: a start does not read the cold disk.
        unchecked = [seq for seq in recovered.segments if seq not in segments.cold]
        self.waiting = Unchecked([*unchecked, *recovered.damaged], self.segments.known_bundle_count)
        self.new: list[int] = list(recovered.segments)
        self.begun_ns: dict[int, int] = {}
        self.losses = Losses()
        self.suspect: Callable[[int], None] = _unheard
        self.foreign = ForeignSegments(recovered.foreign)
        self.summaries = Summaries(disk, paths, clock, self.segments, self.waiting, recovered.foreign.segments)
        self.deletions = Deletions(disk, paths, progress, self.segments, self.foreign, self.losses, cold)
        self._cold = cold
        self._disk = disk
        self._paths = paths
        self._progress = progress
        self._upkeep = upkeep
        self._put_off: set[int] = set()
        """Damaged segments that those behind them no longer wait for: there is no room to rescue them."""

    def close(self) -> None:
        """Stop reporting suspects: the callback refers to this object, and that circle would keep it in memory."""
        self.suspect = _unheard

    def __iter__(self) -> Iterator[SegmentInfo]:
        """All segments, oldest first."""
        return (self.segments[segment_seq] for segment_seq in sorted(self.segments))

    # --- segments come -----------------------------------------------------------------------------------------------------

    def put(
        self, info: SegmentInfo, cursor_owed: int | None, begun_ns: int, streams: StoredSchemas | None = None
    ) -> list[Event]:
        """Add a segment that was sealed; its cursor still has to be written where there was no room for it. `begun_ns` 0: not known.

        Args:
            streams: its schemas, where they are known already.
        """
        self.deletions.cursor_owed = cursor_owed
        if begun_ns:
            self.begun_ns[info.segment_seq] = begun_ns
        self.segments[info.segment_seq] = info
        if streams is not None:
            self.summaries.sealed(info.segment_seq, streams)
        return self.approve(info.segment_seq, [])

    def approve(self, segment_seq: int, lost: Runs) -> list[Event]:
        """Make a segment claimable that is whole, but for the bundles that it records as lost."""
        self.new.append(segment_seq)
        self._upkeep.checked(segment_seq)
        self.waiting.remove(segment_seq)
        offered = self.offer(self.segments[segment_seq], lost)
        return [offered, *self._progress.retired(), *self._progress.take_events()]

    def offer_cold(self) -> None:
        """Let subscribers claim what a start found on the cold disk."""
        for segment_seq in sorted(self.segments.cold):
            entry = self._cold.entry_of(segment_seq)
            self.offer(self.segments[segment_seq], list(entry.lost) if entry is not None else [])

    def pass_over(self, segment_seq: int) -> None:
        """Let nobody wait for a waiting segment any longer."""
        self._put_off.discard(segment_seq)
        self.waiting.remove(segment_seq)

    def put_off(self, segment_seq: int) -> list[Event]:
        """Let nobody wait for a waiting segment any longer; subscribers are told of it later."""
        if segment_seq not in self.waiting:
            return []
        self.waiting.remove(segment_seq)
        self._put_off.add(segment_seq)
        return [Claimable(state.subscriber) for state in self._progress.registry if state.claimable_count]

    def _note_lost(self, segment_seq: int, lost: Runs) -> None:
        self.segments.note_lost(segment_seq, sum(count for _, count in lost))

    def offer(self, info: SegmentInfo, lost: Runs) -> Event:
        """Let subscribers claim the segment from now on, but for what is lost of it."""
        self._note_lost(info.segment_seq, lost)
        self._lose_behind(info)
        self._progress.registry.add_segment(info.segment_seq, info.bundle_count, info.size_bytes)
        if self._progress.is_dirty and self._progress.due_ns is None:
            self._progress.changed()
        if info.segment_seq in self._put_off:
            self._put_off.remove(info.segment_seq)
            self.new.append(info.segment_seq)  # its age is known now
        if lost:
            self.follow(info, lost)
            self.give_up(info.segment_seq, info, "damaged", lost)
        # A start offers thousands in turn: only for one that may go at once are all looked at again.
        if self._progress.registry.deletable([info.segment_seq]):
            self.deletions.search_again()
        return Sealed(info.segment_seq, info.bundle_count)

    def _lose_behind(self, info: SegmentInfo) -> None:
        """Tell of bundles that subscribers were shown and that the segment does not have any more."""
        lost = self._progress.registry.lose_behind(info.segment_seq, info.bundle_count)
        if not lost:
            return
        runs = sorted({(first, count) for _, first, count in lost})
        self.losses.note("damaged", runs, info.bundle_count, 0, 0)
        for subscriber, first, count in lost:
            self._progress.tell(GapFound(subscriber, info.segment_seq, first, count, "damaged"))
        self._progress.changed()
        self._progress.hurry()

    def waiting_counts(self) -> dict[int, int]:
        """Bundle counts of what subscribers have not been told of yet, where they are known."""
        return {seq: self.segments[seq].bundle_count for seq in (*self.waiting, *self._put_off) if seq in self.segments}

    def uncounted(self) -> list[int]:
        """Waiting and postponed segments that are damaged and do not say how many bundles they have."""
        return [seq for seq in (*self.waiting, *self._put_off) if seq not in self.segments]

    # --- segments go -------------------------------------------------------------------------------------------------------

    def take_out(self, segment_seq: int) -> SegmentInfo | None:
        """Remove a segment, whatever had been decided about it, and return what was known of it. Its file is not deleted here."""
        self.deletions.forget(segment_seq)
        return self.segments.pop(segment_seq, None)

    def drop(self, segment_seq: int, reason: str) -> None:
        """Let a sealed segment go. Who has not resolved it gets it from the archive, or loses it; its file goes by itself once that is
        durable."""
        info = self.segments.get(segment_seq)
        if info is None or segment_seq in self.waiting or segment_seq in self.deletions.going:
            return
        self.follow(info)
        self.give_up(segment_seq, info, reason)
        self.deletions.drop(segment_seq, reason)

    def follow(self, info: SegmentInfo, lost: Runs | None = None) -> list[str]:
        """Let subscribers get a segment from the archive that could lose bundles of it otherwise; see `archiving.follow`. Whoever calls
        gives the bundles up next, for all others, and thereby has this made durable."""
        registry = self._progress.registry
        following = archiving.follow(registry, registry.archive, info, lost)
        for subscriber in following:
            self._progress.tell(LeftDisk(subscriber, info.segment_seq))
        return following

    def take_new(self) -> list[int]:
        """Take the segments that have come since the last call; some may be gone again."""
        new, self.new = self.new, []
        return new

    def droppable(self) -> list[int]:
        """Segments that could be let go now: whole, announced, and not on their way out."""
        waiting, going = set(self.waiting), self.deletions.going
        return [seq for seq in self.segments if seq not in waiting and seq not in going]

    def give_up(self, segment_seq: int, info: SegmentInfo, reason: str, lost: Runs | None = None) -> None:
        """Record the `lost` bundles (None: the whole segment) as lost for every subscriber that has not resolved them; each is told why."""

        def rows(first: int, count: int) -> int:
            whole = lost is None and count == info.bundle_count and info.row_count
            return info.row_count if whole else -1

        given_up = self._progress.registry.give_up(segment_seq, info.bundle_count, reason, rows, lost)
        runs = [(notice.bundle_index_first, notice.bundle_count) for _, notice in given_up]
        if not len(self._progress.registry):
            runs = [(0, info.bundle_count)]  # nobody was done with anything
        if runs:
            self.losses.note(reason, runs, info.bundle_count, info.row_count, info.size_bytes)
        for subscriber, notice in given_up:
            position = (segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._progress.tell(GapFound(subscriber, *position, reason))
        self._progress.note_resolved()
        self._progress.hurry()

    def finish_delete(self, segment_seqs: Sequence[int]) -> list[Event]:
        """Take back the deletion of segments: forget them, and return the events that name them."""
        self.deletions.finish(segment_seqs)
        for segment_seq in segment_seqs:
            self.pass_over(segment_seq)
            self._upkeep.forget(segment_seq)
            self._progress.registry.forget_segment(segment_seq, file_is_gone=True)
        return [Resumed()]

    # --- reading -----------------------------------------------------------------------------------------------------------

    def open(self, segment_seq: int, *, for_guest: bool = False) -> tuple[int, int]:
        """See `Engine.open_segment`; the segment is here."""
        if segment_seq in self.segments.cold:
            return self._cold.files.take(segment_seq)
        file = self._open(segment_seq)
        try:
            # Its own size: a compaction may have put another file there, and not be finished here yet.
            size_bytes = file.size()
            if size_bytes < TRAILER.size:
                self.suspect(segment_seq)
                raise StorageUnavailable(
                    f"segment {segment_seq} has {size_bytes} bytes, somebody has cut it off; it is being checked: try again"
                )
            descriptor = os.dup(file.fileno())
            if for_guest:
                unlock_for_guest(descriptor)
            else:
                lock_for_reader(descriptor)
            return descriptor, size_bytes
        except OSError as error:
            raise DiskError("dup", self._paths.segment(segment_seq), error.errno or 0) from error
        finally:
            file.close()

    def _open(self, segment_seq: int) -> DiskFile:
        """
        Raises:
            NotStored: it is being deleted.
            ColdStorageUnavailable: it has just been moved to the cold disk; `ColdOpened` tells when it can be opened there.
            StorageUnavailable: its file cannot be opened now; that is looked into.
        """
        try:
            return self._disk.open_read(self._paths.segment(segment_seq))
        except DiskError as error:
            if error.errno == errno.ENOENT and segment_seq in self.deletions.going:
                raise NotStored(f"segment {segment_seq} is being deleted: every subscriber has resolved it") from error
            if error.errno == errno.ENOENT and self._cold.is_moving(segment_seq):
                # Nobody has deleted it: the job that moves it has, and was not taken back yet.
                raise ColdStorageUnavailable(
                    f"segment {segment_seq} is being moved to the cold disk: try again", is_coming=True
                ) from error
            self.suspect(segment_seq)
            raise StorageUnavailable(
                f"segment {segment_seq} cannot be opened now, it is being checked: {error}; try again"
            ) from error

    def ingestion_times(self, segment_seq: int) -> npt.NDArray[np.int64]:
        """UNIX nanoseconds of its bundles, from its manifest only; 0 where it does not say. A cold segment is not read for that: all of
        its bundles count as ingested when its last one was, so that what is asked for from some time on begins with its first bundle."""
        try:
            if segment_seq in self.segments.cold:
                raise ColdStorageUnavailable("it is not read")
            file = self._open(segment_seq)
        except ColdStorageUnavailable:
            info = self.segments[segment_seq]
            return np.full(info.bundle_count, info.last_ingestion_ts_nanos, np.int64)
        try:
            return ingestion_times_of(file)
        finally:
            file.close()


def _unheard(segment_seq: int) -> None:
    """Do nothing: nobody is told."""
