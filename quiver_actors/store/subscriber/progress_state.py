"""The progress of a subscriber: what is resolved of which segment, which segments are complete, and what of that is durable.

Owner: one `SubscriberState`. Pure: `snapshot` is what the engine makes durable.

Sealed segments are in `completed` or in `segments`. `awaited` is progress that was loaded (or set by `start_at`, `pass_unsealed`) for
segments that have not been added yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from quiver_actors.base.ranges import Runs
from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.archived_part import Archived
from quiver_actors.store.subscriber.awaited import Awaited
from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.changes import Changes, tell_nobody
from quiver_actors.store.subscriber.completed import Completed
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress

Position = tuple[int, int]
"""A place in the store, as (segment_seq, bundle index)."""


class ProgressState:
    """The bundles that one subscriber has resolved, and how much of that is durable.

    Attributes:
        changes: what a flush must make durable of it.
        segments: the sealed segments with something unresolved, and open ones; always the same dict.
        completed: the segments of which it needs nothing any more.
        awaited: the progress of segments that were not added yet.
        archived: which segments are read from the archive.
        unresolved_count: how many bundles of `segments` are not resolved.
        ownership: who owns the subscriber and who shares it; durable with its progress.
    """

    def __init__(
        self,
        version: int = 0,
        on_change: Callable[[], object] = tell_nobody,
        on_complete: Callable[[], object] = tell_nobody,
    ) -> None:
        """
        Args:
            version: above those of all files that the subscriber had before.
            on_change, on_complete: called with every change, and with every segment that is completed. They must not refer to this object.
        """
        self.changes = Changes(version, on_change)
        self.segments: dict[int, BundleStates] = {}
        self.completed = Completed(self.changes, on_complete)
        self.awaited = Awaited({})
        self.archived = Archived()
        self.unresolved_count = 0
        self.ownership = OF_TOPICS_OWNER
        self._incomplete: list[int] = []  # heap of the keys of segments, and of some that have left it
        self._touched: set[int] = set()  # keys of segments with something resolved

    def __repr__(self) -> str:
        return (
            f"<ProgressState floor={self.completed.floor} incomplete={len(self.segments)} "
            f"unresolved={self.unresolved_count} version={self.changes.version}>"
        )

    # --- the start: only before any segment was added ----------------------------------------------------------------------

    def load(self, progress: SubscriberProgress) -> None:
        """Take over what a progress file says."""
        self.completed.floor = progress.watermark
        self.awaited = Awaited(progress.entries)
        self.archived = Archived(progress.archived, progress.entries)
        self.ownership = progress.ownership

    def load_lost(self, segment_seq: int, first: int, count: int) -> None:
        """A notice is durable before the progress that goes with it: nobody may be given those bundles in between. Count 0: all
        of the segment from that bundle on, nobody knows how many; those before it are owed as ever."""
        if not count and first:
            return
        if not count:
            self.completed.counts[segment_seq] = 0
            self.awaited.pop(segment_seq)
        elif not self.is_complete(segment_seq):
            self.awaited.add(segment_seq, first + count, ((1 << count) - 1) << first)

    def renumber(self, segment_seq: int, new_segment_seq: int, bundle_count: int) -> None:
        """A segment that the progress speaks of has another number now: what is resolved of it stays resolved."""
        if self.is_complete(segment_seq):
            self.awaited.entries[new_segment_seq] = SegmentProgress(bundle_count, bitmaps.full(bundle_count))
            self.completed.counts.pop(segment_seq, None)
        elif segment_seq in self.awaited.entries:
            self.awaited.entries[new_segment_seq] = self.awaited.pop(segment_seq)
        else:
            return
        self.changes.note()

    def start_at(self, segment_seq: int, bundle_index: int) -> None:
        """Count everything before that bundle as resolved."""
        self.completed.floor = segment_seq
        if bundle_index:
            self.awaited.entries[segment_seq] = SegmentProgress(bundle_index, bitmaps.full(bundle_index))
        self.changes.note()

    def start_with(self, progress: Mapping[int, SegmentProgress]) -> None:
        """Count these bundles as resolved."""
        self.awaited = Awaited(progress)
        self.changes.note()

    def belong(self, ownership: Ownership) -> None:
        """Set who owns the subscriber, and with whom it is shared."""
        if ownership != self.ownership:
            self.ownership = ownership
            self.changes.note()

    # --- segments ----------------------------------------------------------------------------------------------------------

    def add(self, segment_seq: int, bundle_count: int, size_bytes: int) -> BundleStates | None:
        """A segment is sealed. Returns its bundles if it is new and something of it is unresolved.

        Raises:
            UsageError: the segment was added with another bundle count.
        """
        if self.is_complete(segment_seq):
            return None
        known = self.segments.get(segment_seq)
        if known is not None and known.is_open:
            return self._seal(segment_seq, known, bundle_count, size_bytes)
        if known is not None:
            if known.bundle_count != bundle_count:
                raise UsageError(
                    f"segment {segment_seq} was added with {known.bundle_count} bundles, not {bundle_count}"
                )
            return None
        found = self.awaited.pop(segment_seq)
        if 0 < found.bundle_count < bundle_count:
            # As in `_seal`: the file was written while the segment was open.
            self.changes.note()
        states = BundleStates(bundle_count, found.bitmap, size_bytes // max(1, bundle_count))
        if states.is_complete:
            self.completed.find(segment_seq, bundle_count)
            self.archived.finish(segment_seq, bundle_count)
            return None
        self.segments[segment_seq] = states
        self.unresolved_count += bundle_count - states.resolved_count
        if states.resolved_count:
            self._touched.add(segment_seq)
        heapq.heappush(self._incomplete, segment_seq)
        return states

    def grow(self, segment_seq: int, bundle_count: int) -> BundleStates | None:
        """The first so many bundles of a segment that is not sealed can be read. Returns its bundles; None if it is complete."""
        if self.is_complete(segment_seq):
            return None
        states = self.segments.get(segment_seq)
        if states is None:
            states = self.segments[segment_seq] = BundleStates(0)
            states.is_open = True
            heapq.heappush(self._incomplete, segment_seq)
        # What was resolved of it before it could be read stays in `awaited` until the count has reached it.
        resolved = bitmaps.bits_of(self.awaited.bitmap(segment_seq)) >> states.bundle_count
        self.unresolved_count += states.grow(bundle_count, resolved)
        if self.awaited.bundle_count(segment_seq) <= bundle_count:
            self.awaited.pop(segment_seq)
        if states.resolved_count:
            self._touched.add(segment_seq)
        return states

    def _seal(self, segment_seq: int, states: BundleStates, bundle_count: int, size_bytes: int) -> BundleStates | None:
        """No other bundles will come to an open segment. Returns its bundles if something of it is unresolved."""
        if states.bundle_count > bundle_count:
            raise UsageError(
                f"segment {segment_seq} has {bundle_count} bundles: {states.bundle_count} of it were announced"
            )
        if states.bundle_count < bundle_count:
            self.grow(segment_seq, bundle_count)
        states.seal(size_bytes)
        if not states.is_complete:
            if segment_seq in self._touched:
                # The progress file may name fewer bundles, from when the segment was open. It is to name all of them: should somebody
                # delete the segment's file, it says how many are lost.
                self.changes.note()
            return states
        del self.segments[segment_seq]
        self._touched.discard(segment_seq)
        # Unless something has changed since, the file says that all of it is resolved.
        self.completed.add(segment_seq, bundle_count, is_flushed=self.changes.is_filed)
        return None

    def note(self, segment_seq: int, states: BundleStates, count: int) -> None:
        """Note that so many bundles of the segment were resolved."""
        self.unresolved_count -= count
        self.changes.note()
        if states.is_complete:
            self.segments.pop(segment_seq, None)
            self._touched.discard(segment_seq)
            self.completed.add(segment_seq, states.bundle_count)
            self.archived.finish(segment_seq, states.bundle_count)
        else:
            self._touched.add(segment_seq)

    def give_up_awaited(self, segment_seq: int) -> Runs:
        """Forget a segment that was not added and never will be. Returns what was unresolved of it, as far as anybody knows."""
        progress = self.awaited.pop(segment_seq)
        self.changes.note()
        self.completed.add(segment_seq, progress.bundle_count)
        return bitmaps.unresolved_runs(progress.bitmap, progress.bundle_count)

    def file_is_gone(self, segment_seq: int) -> None:
        """No restart can find the file of that complete segment again: it needs no progress entry, unless the progress file would name no
        segment at all without it. Such a file says that nothing behind its watermark was ever done (`store.recovery.missing_segments`)."""
        if segment_seq in self.completed.counts and self.segments:
            self.completed.counts[segment_seq] = 0

    def pass_unsealed(self, segment_seq: int, bundle_count: int) -> int:
        """Count the first so many bundles of a segment that was not added as resolved. Returns how many of them were not before."""
        new = self.unresolved_in_unsealed(segment_seq, bundle_count)
        if new:
            self.awaited.add(segment_seq, bundle_count, (1 << bundle_count) - 1)
            self.changes.note()
        return new

    def is_complete(self, segment_seq: int) -> bool:
        """Whether the subscriber will never need that segment again."""
        return segment_seq in self.completed

    def unresolved_in_unsealed(self, segment_seq: int, bundle_count: int) -> int:
        """How many of the `bundle_count` bundles of a segment that is not sealed this subscriber will be owed, without those that it can
        claim already."""
        if self.is_complete(segment_seq):
            return 0
        states = self.segments.get(segment_seq)
        first = 0 if states is None else min(states.bundle_count, bundle_count)
        return self.awaited.unresolved_count(segment_seq, first, bundle_count)

    # --- what is unresolved ------------------------------------------------------------------------------------------------

    def resolved_bitmap(self, segment_seq: int, bundle_count: int) -> bytes:
        """The resolved bundles of a segment of so many bundles, added or not, as a bitmap."""
        if self.is_complete(segment_seq):
            return bitmaps.full(bundle_count)
        states = self.segments.get(segment_seq)
        is_sealed = states is not None and not states.is_open
        known = states.bitmap() if states and is_sealed else self.awaited.behind(segment_seq, states).bitmap
        return bitmaps.resized(known, bundle_count)

    def unresolved_between(self, start: Position, end: Position | None) -> int:
        """Unresolved bundles of sealed segments from `start` up to and without `end` (None: no end)."""
        count = 0
        for seq, states in self.segments.items():
            if seq < start[0] or (end is not None and seq > end[0]):
                continue
            first = start[1] if seq == start[0] else 0
            stop = end[1] if end is not None and seq == end[0] else states.bundle_count
            count += bitmaps.unresolved_in(states.bitmap(), first, min(stop, states.bundle_count))
        return count

    def oldest_unresolved(self) -> Position | None:
        """The position of the oldest bundle of a sealed segment that is not resolved."""
        segment_seq = self._oldest_incomplete()
        if segment_seq is None:
            return None
        if self.segments[segment_seq].resolved_count < self.segments[segment_seq].bundle_count:
            return segment_seq, self.segments[segment_seq].first_unresolved()
        # Only an open segment can have nothing unresolved.
        behind = (
            seq for seq in sorted(self.segments) if self.segments[seq].resolved_count < self.segments[seq].bundle_count
        )
        return next(((seq, self.segments[seq].first_unresolved()) for seq in behind), None)

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
        for segment_seq, progress in self.awaited.entries.items():
            if segment_seq < oldest and not progress.is_complete:
                oldest = segment_seq
        incomplete = self._oldest_incomplete()
        return max(self.completed.floor, oldest if incomplete is None else min(oldest, incomplete))

    def snapshot(self, next_segment_seq: int) -> SubscriberProgress:
        """Content of a progress file at `version`; immutable, so that another thread may encode and write it.

        Args:
            next_segment_seq: as for `watermark`.
        """
        floor = self.watermark(next_segment_seq)
        self.completed.raise_floor(floor)
        entries = {seq: progress for seq, progress in self.awaited.entries.items() if seq >= floor}
        for segment_seq, bundle_count in self.completed.counts.items():
            if bundle_count:
                entries[segment_seq] = SegmentProgress(bundle_count, bitmaps.full(bundle_count))
        for segment_seq in self._touched:
            entries[segment_seq] = self._entry(segment_seq)
        # Also of untouched ones: no file on the disk says how many bundles they have.
        archived = self.archived.among(self.segments)
        entries.update((seq, self._entry(seq)) for seq in archived if seq not in entries)
        oldest = self._oldest_incomplete()
        if oldest is not None:
            # Also with nothing resolved: Rust reads the watermark from the lowest entry.
            entries[oldest] = self._entry(oldest)
        return SubscriberProgress(
            oldest_incomplete_seg=floor,
            entries=entries,
            trusted_watermark=True,
            ownership=self.ownership,
            archived=self.archived.segments_of(archived, entries),
        )

    def _entry(self, segment_seq: int) -> SegmentProgress:
        states = self.segments[segment_seq]
        if states.is_open:
            return self.awaited.behind(segment_seq, states)
        entry = SegmentProgress(states.bundle_count, states.bitmap())
        states.rest()
        return entry

    def highest_segment_seq(self) -> int:
        """The highest segment number that this subscriber has heard of, -1 for none."""
        return max(self.completed.floor - 1, *self.awaited.entries, *self.segments, *self.completed.counts, -1)
