"""Where a subscriber stands: what is resolved of which segment, which segments are complete, and what of that is durable.

Owner: one `SubscriberState`. Pure: `snapshot` is what the engine makes durable.

Complete are the segments below `_floor` and those in `_complete`. All other sealed ones are in `segments`. `_awaited` is progress that
was loaded (or set by `start_at`, `pass_unsealed`) for segments that have not been added yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from quiver_actors.errors import UsageError
from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.bundle_states import BundleStates
from quiver_actors.subscriber.progress import SegmentProgress, SubscriberProgress

Position = tuple[int, int]
"""(segment_seq, bundle index)."""
Runs = list[tuple[int, int]]
"""Bundles of one segment as (first index, count), ascending."""

_NOTHING = SegmentProgress(0, b"")


class Standing:
    """See the module.

    Attributes:
        version: rises with every change that a flush must make durable; whoever keeps account of changes hears of each.
        flushed_version: the highest version known to be durable.
        segments: the sealed segments with something unresolved; always the same dict.
        unresolved_count: bundles of those that are not resolved.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self.flushed_version = version
        self.segments: dict[int, BundleStates] = {}
        self.unresolved_count = 0
        self._begun_version = version
        self._floor = 0
        self._incomplete: list[int] = []  # heap of the keys of segments, and of some that have left it
        self._touched: set[int] = set()  # keys of segments with something resolved
        self._complete: dict[int, int] = {}  # bundle counts; 0 where no progress entry is needed
        self._awaited: dict[int, SegmentProgress] = {}
        self._completed: list[int] = []
        self._unflushed: dict[int, int] = {}  # completed segments and the version that makes it durable

    def __repr__(self) -> str:
        return (
            f"<Standing floor={self._floor} incomplete={len(self.segments)} "
            f"unresolved={self.unresolved_count} version={self.version}>"
        )

    @property
    def version(self) -> int:
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self._note_change()

    def _note_change(self) -> None:
        """Something is to be made durable."""

    # --- the start: only before any segment was added ----------------------------------------------------------------------

    def load(self, progress: SubscriberProgress) -> None:
        """Take over what a progress file says."""
        self._floor = progress.watermark
        self._awaited = dict(progress.entries)

    def load_lost(self, segment_seq: int, first: int, count: int) -> None:
        """A notice is durable before the progress that goes with it: nobody may be given those bundles in between. Count 0: all
        of the segment from that bundle on, nobody knows how many; those before it are owed as ever."""
        if not count and first:
            return
        if not count:
            self._complete[segment_seq] = 0
            self._awaited.pop(segment_seq, None)
        elif not self.is_complete(segment_seq):
            self._await(segment_seq, first + count, ((1 << count) - 1) << first)

    def _await(self, segment_seq: int, bundle_count: int, bits: int) -> None:
        known = self._awaited.get(segment_seq, _NOTHING)
        count = max(bundle_count, known.bundle_count)
        bits |= int.from_bytes(known.bitmap, "little")
        self._awaited[segment_seq] = SegmentProgress(count, bits.to_bytes(bitmaps.word_count(count) * 8, "little"))

    def start_at(self, segment_seq: int, bundle_index: int) -> None:
        """All before that bundle counts as resolved."""
        self._floor = segment_seq
        if bundle_index:
            self._awaited[segment_seq] = SegmentProgress(bundle_index, bitmaps.full(bundle_index))
        self.version += 1

    def start_with(self, progress: Mapping[int, SegmentProgress]) -> None:
        """These bundles count as resolved."""
        self._awaited = dict(progress)
        self.version += 1

    def begin(self) -> None:
        """Segments follow. What was said of them until now is as good as unsaid before it is flushed."""
        self._begun_version = self.version

    # --- segments ----------------------------------------------------------------------------------------------------------

    def add(self, segment_seq: int, bundle_count: int, size_bytes: int) -> BundleStates | None:
        """A segment is sealed. Returns its bundles if it is new and something of it is unresolved.

        Raises:
            UsageError: the segment was added with another bundle count.
        """
        if self.is_complete(segment_seq):
            return None
        known = self.segments.get(segment_seq)
        if known is not None:
            if known.bundle_count != bundle_count:
                raise UsageError(
                    f"segment {segment_seq} was added with {known.bundle_count} bundles, not {bundle_count}"
                )
            return None
        progress = self._awaited.pop(segment_seq, None)
        states = BundleStates(bundle_count, progress.bitmap if progress else b"", size_bytes // max(1, bundle_count))
        if states.is_complete:
            self._complete[segment_seq] = bundle_count
            if self.is_dirty:
                self._unflushed[segment_seq] = self.version
            return None
        self.segments[segment_seq] = states
        self.unresolved_count += bundle_count - states.resolved_count
        if states.resolved_count:
            self._touched.add(segment_seq)
        heapq.heappush(self._incomplete, segment_seq)
        return states

    def note(self, segment_seq: int, states: BundleStates, count: int) -> None:
        """So many bundles of the segment were resolved."""
        self.unresolved_count -= count
        self.version += 1
        if states.is_complete:
            self._set_complete(segment_seq, states.bundle_count)
        else:
            self._touched.add(segment_seq)

    def _set_complete(self, segment_seq: int, bundle_count: int) -> None:
        self.segments.pop(segment_seq, None)
        self._touched.discard(segment_seq)
        self._complete[segment_seq] = bundle_count
        self._completed.append(segment_seq)
        self._unflushed[segment_seq] = self.version

    def give_up_awaited(self, segment_seq: int) -> Runs:
        """A segment that was not added will never be. Returns what was unresolved of it, as far as anybody knows."""
        progress = self._awaited.pop(segment_seq, _NOTHING)
        self.version += 1
        self._set_complete(segment_seq, progress.bundle_count)
        return bitmaps.unresolved_runs(progress.bitmap, progress.bundle_count)

    def unresolved_of_awaited(self, segment_seq: int, bundle_count: int) -> Runs:
        """What is unresolved of a segment that was not added, of so many bundles; of 0, with all that nobody knows of."""
        known = self._awaited.get(segment_seq, _NOTHING)
        count = max(known.bundle_count, bundle_count)
        runs: Runs = bitmaps.unresolved_runs(known.bitmap, count)
        return runs if bundle_count else [*runs, (count, 0)]

    def file_is_gone(self, segment_seq: int) -> None:
        """No restart can find the file of that complete segment again: it needs no progress entry."""
        if segment_seq in self._complete:
            self._complete[segment_seq] = 0

    def pass_unsealed(self, segment_seq: int, bundle_count: int) -> int:
        """The first so many bundles of a segment that was not added count as resolved. Returns how many were not before."""
        new = self.unresolved_in_unsealed(segment_seq, bundle_count)
        if new:
            self._await(segment_seq, bundle_count, (1 << bundle_count) - 1)
            self.version += 1
        return new

    def is_complete(self, segment_seq: int) -> bool:
        """Whether the subscriber will never need that segment again."""
        return segment_seq < self._floor or segment_seq in self._complete

    def durably_complete(self, segment_seqs: Sequence[int]) -> list[int]:
        """Those of the segments that are complete and of which a flush has said so: only their files may go.

        For a subscriber that is behind all of them that costs what it has completed, not what there is.
        """
        if not segment_seqs or self.flushed_version < self._begun_version:
            return []
        complete, unflushed, floor = self._complete, self._unflushed, self._floor
        if len(complete) < len(segment_seqs) and floor <= min(segment_seqs):
            asked = set(segment_seqs) if complete else set()
            return [seq for seq in sorted(complete) if seq in asked and seq not in unflushed]
        return [seq for seq in segment_seqs if (seq < floor or seq in complete) and seq not in unflushed]

    @property
    def floor(self) -> int:
        """Everything below is complete."""
        return self._floor

    def completed_since(self) -> list[int]:
        """Segments that became complete since the last call, in that order."""
        completed, self._completed = self._completed, []
        return completed

    # --- segments that were not added --------------------------------------------------------------------------------------

    def awaits_complete(self, segment_seq: int) -> bool:
        """Whether the progress says that a segment which was not added is all resolved."""
        progress = self._awaited.get(segment_seq)
        return progress is not None and progress.is_complete

    def awaited_segments(self) -> list[int]:
        """Segments that the progress names and that were not added, ascending.

        After recovery has added all sealed segments, such a one below the open segment does not exist any more: it must be
        forgotten (with a gap notice if that names bundles), or it holds the watermark for ever.
        """
        return sorted(self._awaited)

    def known_bundle_count(self, segment_seq: int) -> int:
        """How many bundles a segment that was not added has at least, by the progress that was loaded; 0 if it has none."""
        return self._awaited.get(segment_seq, _NOTHING).bundle_count

    def unresolved_in_unsealed(self, segment_seq: int, bundle_count: int) -> int:
        """How many of the `bundle_count` bundles of a segment that was not added yet this subscriber will be owed."""
        if self.is_complete(segment_seq):
            return 0
        progress = self._awaited.get(segment_seq, _NOTHING)
        return bundle_count - bitmaps.resolved_count(bitmaps.resized(progress.bitmap, bundle_count))

    # --- what is unresolved ------------------------------------------------------------------------------------------------

    def resolved_bitmap(self, segment_seq: int, bundle_count: int) -> bytes:
        """What is resolved of a segment, added or not, of so many bundles."""
        if self.is_complete(segment_seq):
            return bitmaps.full(bundle_count)
        states = self.segments.get(segment_seq)
        known = self._awaited.get(segment_seq, _NOTHING).bitmap if states is None else states.bitmap()
        return bitmaps.resized(known, bundle_count)

    def unresolved_between(self, start: Position, end: Position | None) -> int:
        """Unresolved bundles of sealed segments from `start` up to and without `end` (None: no end)."""
        count = 0
        for seq, states in self.segments.items():
            if seq < start[0] or (end is not None and seq > end[0]):
                continue
            first = start[1] if seq == start[0] else 0
            stop = end[1] if end is not None and seq == end[0] else states.bundle_count
            count += states.unresolved_in(first, stop)
        return count

    def oldest_unresolved(self) -> Position | None:
        """(segment_seq, bundle index) of the oldest bundle of a sealed segment that is not resolved."""
        segment_seq = self._oldest_incomplete()
        return None if segment_seq is None else (segment_seq, self.segments[segment_seq].first_unresolved())

    def _oldest_incomplete(self) -> int | None:
        while self._incomplete and self._incomplete[0] not in self.segments:
            heapq.heappop(self._incomplete)
        return self._incomplete[0] if self._incomplete else None

    # --- durable progress --------------------------------------------------------------------------------------------------

    def watermark(self, next_segment_seq: int) -> int:
        """The oldest incomplete segment; `next_segment_seq` if there is none. It never falls.

        Args:
            next_segment_seq: the oldest segment that is not sealed yet: the open one, or a rotated one whose seal is under
                way. All sealed segments below it must have been added.
        """
        oldest = next_segment_seq
        for segment_seq, progress in self._awaited.items():
            if segment_seq < oldest and not progress.is_complete:
                oldest = segment_seq
        incomplete = self._oldest_incomplete()
        return max(self._floor, oldest if incomplete is None else min(oldest, incomplete))

    def snapshot(self, next_segment_seq: int) -> SubscriberProgress:
        """What a progress file must say at `version`; immutable, so that another thread may encode and write it.

        Args:
            next_segment_seq: as for `watermark`.
        """
        self._floor = self.watermark(next_segment_seq)
        self._complete = {seq: count for seq, count in self._complete.items() if seq >= self._floor}
        entries = {seq: progress for seq, progress in self._awaited.items() if seq >= self._floor}
        for segment_seq, bundle_count in self._complete.items():
            if bundle_count:
                entries[segment_seq] = SegmentProgress(bundle_count, bitmaps.full(bundle_count))
        for segment_seq in self._touched:
            entries[segment_seq] = self._entry(segment_seq)
        oldest = self._oldest_incomplete()
        if oldest is not None:
            # Also with nothing resolved: Rust reads the watermark from the lowest entry.
            entries[oldest] = self._entry(oldest)
        return SubscriberProgress(oldest_incomplete_seg=self._floor, entries=entries, trusted_watermark=True)

    def _entry(self, segment_seq: int) -> SegmentProgress:
        states = self.segments[segment_seq]
        entry = SegmentProgress(states.bundle_count, states.bitmap())
        states.rest()
        return entry

    def mark_flushed(self, version: int) -> list[int] | None:
        """A snapshot that was taken at `version` is durable.

        Returns:
            The segments that `durably_complete` may name by it and did not name before; None: it may be any.
        """
        is_first = self.flushed_version < self._begun_version
        self.flushed_version = max(self.flushed_version, version)
        settled = [seq for seq, at in self._unflushed.items() if at <= self.flushed_version]
        for segment_seq in settled:
            del self._unflushed[segment_seq]
        return None if is_first else settled

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed that no flush has made durable."""
        return self.version > self.flushed_version

    def highest_segment_seq(self) -> int:
        """The highest segment number that this subscriber has heard of, -1 for none."""
        return max(self._floor - 1, *self._awaited, *self.segments, *self._complete, -1)
