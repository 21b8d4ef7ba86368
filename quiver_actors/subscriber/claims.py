"""One durable subscriber on one engine: what it is owed, who holds what, what is done.

Owner: the engine of its worker, on the loop thread. Pure: time is passed in, nothing is written here; `snapshot` is what the
engine makes durable.

How the next pending bundle is found: `_candidates` is a heap of spans (segment, start, end) in which pending bundles may lie. A
sealed segment enters as one span, a claim consumes the lowest from its start, and what is given back enters as a span again. The
state bytes are the truth and the spans are hints that may overlap, so nothing is ever searched twice for the same reason: a
claim costs the same whether nothing or a hundred thousand bundles are held. Every pending bundle lies in at least one span.

Which segments are complete: those below `_floor`, and those in `_complete`. All other sealed ones are in `_segments`. `_awaited`
is progress that was loaded (or set by `start_at`) for segments that have not been added yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from quiver_actors.errors import UsageError
from quiver_actors.subscriber import bitmap as bitmaps
from quiver_actors.subscriber.bundle_states import BundleStates
from quiver_actors.subscriber.progress import SegmentProgress, SubscriberProgress
from quiver_actors.subscriber.transitions import BundleEvent, BundleState, advance

# Plain ints, as in bundle_states.
_OUTCOMES = {
    "ack": int(advance(BundleState.CLAIMED, BundleEvent.ACK)),
    "reject": int(advance(BundleState.CLAIMED, BundleEvent.REJECT)),
    "defer": int(advance(BundleState.CLAIMED, BundleEvent.DEFER)),
}
_AFTER_RELEASE = int(advance(BundleState.CLAIMED, BundleEvent.RELEASE))
_ACKED = int(BundleState.ACKED)
_DEFERRED = int(BundleState.DEFERRED)


class _Holder:
    """One owner's claims: its number in the holder arrays, and how many it holds in each segment."""

    __slots__ = ("held", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.held: dict[int, int] = {}


class SubscriberState:
    """Progress and claims of one subscriber.

    Attributes:
        subscriber: its id.
        version: rises with every change that a flush must make durable.
        flushed_version: the highest version known to be durable.
        claimed_count: bundles held by owners now.
        waiting_count: deferred bundles whose delay has not passed.
        delivered, acked, rejected, deferred: claims granted and outcomes since this object exists; `deferred` counts each time.
        dropped: bundles resolved because their segment was forgotten.
    """

    def __init__(self, subscriber: str, *, version: int = 0) -> None:
        self.subscriber = subscriber
        self.version = version
        self.flushed_version = version
        self.claimed_count = 0
        self.waiting_count = 0
        self.delivered = self.acked = self.rejected = self.deferred = self.dropped = 0
        self._floor = 0
        self._segments: dict[int, BundleStates] = {}
        self._incomplete: list[int] = []  # heap of the keys of _segments, and of some that have left it
        self._touched: set[int] = set()  # keys of _segments with something resolved
        self._complete: dict[int, int] = {}  # bundle counts; 0 where no progress entry is needed
        self._awaited: dict[int, SegmentProgress] = {}
        self._candidates: list[tuple[int, int, int]] = []
        self._deferred: list[tuple[int, int, list[int]]] = []  # heap of (due_ns, segment, indexes)
        self._holders: dict[object, _Holder] = {}
        self._holder_number = 0
        self._unresolved_count = 0
        self._completed: list[int] = []
        self._unflushed: dict[int, int] = {}  # completed segments and the version that makes it durable

    def __repr__(self) -> str:
        return (
            f"<SubscriberState {self.subscriber} floor={self._floor} incomplete={len(self._segments)} "
            f"unresolved={self._unresolved_count} claimed={self.claimed_count} version={self.version}>"
        )

    # --- where it stands at the start ------------------------------------------------------------------------------------

    def load(self, progress: SubscriberProgress) -> None:
        """Take over what a progress file says. Only before any segment was added."""
        self._floor = progress.watermark
        self._awaited = dict(progress.entries)

    def start_at(self, segment_seq: int, bundle_index: int) -> None:
        """Begin at that bundle: all before it counts as resolved. Only before any segment was added.

        The segment may be open still; its first `bundle_index` bundles are then known as resolved when it is added.
        """
        self._floor = segment_seq
        if bundle_index:
            self._awaited[segment_seq] = SegmentProgress(bundle_index, bitmaps.full(bundle_index))
        self.version += 1

    # --- segments --------------------------------------------------------------------------------------------------------

    def add_segment(self, segment_seq: int, bundle_count: int) -> None:
        """A segment is sealed and readable: what is not known as resolved of it becomes claimable.

        Known progress is applied; where it covers fewer bundles the rest is pending, where it covers more the surplus is
        ignored. Adding a segment again changes nothing.

        Raises:
            UsageError: the segment was added with another bundle count.
        """
        if self.is_complete(segment_seq):
            return
        known = self._segments.get(segment_seq)
        if known is not None:
            if known.bundle_count != bundle_count:
                raise UsageError(
                    f"segment {segment_seq} was added with {known.bundle_count} bundles, not {bundle_count}"
                )
            return
        progress = self._awaited.pop(segment_seq, None)
        states = BundleStates(bundle_count, progress.bitmap if progress else b"")
        if states.is_complete:
            self._complete[segment_seq] = bundle_count
            return
        self._segments[segment_seq] = states
        self._unresolved_count += bundle_count - states.resolved_count
        if states.resolved_count:
            self._touched.add(segment_seq)
        heapq.heappush(self._incomplete, segment_seq)
        heapq.heappush(self._candidates, (segment_seq, states.first_unresolved(), bundle_count))

    def forget_segment(self, segment_seq: int, *, file_is_gone: bool = False) -> list[tuple[int, int]]:
        """The segment was deleted, or cannot be read: what was unresolved of it is resolved as dropped.

        Args:
            file_is_gone: its unlink is durable, so that no restart can find the file again and it needs no progress entry.
                Without that the entry stays until the watermark has passed it.

        Returns:
            The dropped bundles as (first index, count), ascending: what a gap notice must name. Empty for a complete one.
        """
        if self.is_complete(segment_seq):
            if file_is_gone and segment_seq in self._complete:
                self._complete[segment_seq] = 0
            return []
        progress = self._awaited.pop(segment_seq, SegmentProgress(0, b""))
        states = self._segments.get(segment_seq)
        if states is not None:
            progress = SegmentProgress(states.bundle_count, states.bitmap())
            self._drop_claims(segment_seq, states)
        runs = bitmaps.unresolved_runs(progress.bitmap, progress.bundle_count)
        self.dropped += sum(count for _, count in runs)
        self.version += 1
        self._set_complete(segment_seq, 0 if file_is_gone else progress.bundle_count)
        return runs

    def _drop_claims(self, segment_seq: int, states: BundleStates) -> None:
        for holder in self._holders.values():
            holder.held.pop(segment_seq, None)
        self.claimed_count -= states.claimed_count
        self.waiting_count -= states.deferred_count
        self._unresolved_count -= states.bundle_count - states.resolved_count

    def _set_complete(self, segment_seq: int, bundle_count: int) -> None:
        self._segments.pop(segment_seq, None)
        self._touched.discard(segment_seq)
        self._complete[segment_seq] = bundle_count
        self._completed.append(segment_seq)
        self._unflushed[segment_seq] = self.version

    def is_complete(self, segment_seq: int) -> bool:
        """Whether this subscriber will never need that segment again."""
        return segment_seq < self._floor or segment_seq in self._complete

    def is_durably_complete(self, segment_seq: int) -> bool:
        """Whether it is complete and a flush has said so: only then may the file go."""
        return self.is_complete(segment_seq) and segment_seq not in self._unflushed

    def completed_since(self) -> list[int]:
        """Segments that became complete since the last call, in that order."""
        completed, self._completed = self._completed, []
        return completed

    def awaited_segments(self) -> list[int]:
        """Segments that the progress names and that were not added, ascending.

        After recovery has added all sealed segments, such a one below the open segment does not exist any more: it must be
        forgotten (with a gap notice if `forget_segment` names bundles), or it holds the watermark for ever.
        """
        return sorted(self._awaited)

    def known_bundle_count(self, segment_seq: int) -> int:
        """How many bundles a segment that was not added has at least, by the progress that was loaded; 0 if it has none."""
        progress = self._awaited.get(segment_seq)
        return progress.bundle_count if progress else 0

    # --- claims ----------------------------------------------------------------------------------------------------------

    def claim(self, owner: object, bundles: int) -> list[tuple[int, list[int]]]:
        """Give at most that many pending bundles to `owner` (hashable), oldest first.

        Returns:
            (segment_seq, bundle indexes) with rising segments and rising indexes; empty when nothing is pending.
        """
        granted: list[tuple[int, list[int]]] = []
        missing = bundles
        while missing > 0 and self._candidates:
            segment_seq, start, end = self._candidates[0]
            states = self._segments.get(segment_seq)
            if states is None:  # completed or forgotten since
                heapq.heappop(self._candidates)
                continue
            holder = self._holders.get(owner) or self._new_holder(owner)
            run = states.claim(start, end, missing, holder.number)
            if run.stop < end:
                heapq.heapreplace(self._candidates, (segment_seq, run.stop, end))
            else:
                heapq.heappop(self._candidates)
            if run:
                holder.held[segment_seq] = holder.held.get(segment_seq, 0) + len(run)
                missing -= len(run)
                _grant(granted, segment_seq, run)
        self.claimed_count += bundles - missing
        self.delivered += bundles - missing
        return granted

    def _new_holder(self, owner: object) -> _Holder:
        # Numbers are never used again: a released owner cannot be taken for a new one.
        self._holder_number += 1
        return self._holders.setdefault(owner, _Holder(self._holder_number))

    def resolve(
        self, owner: object, segment_seq: int, outcome: str, indexes: Sequence[int], delay_ns: int, now_ns: int
    ) -> list[int]:
        """Finish claims of one segment: `ack`, `reject`, or `defer` for `delay_ns` from `now_ns` (0 = pending at once).

        Returns:
            The indexes that `owner` does not hold; the others are done.

        Raises:
            UsageError: unknown outcome; nothing was changed.
        """
        target = _OUTCOMES.get(outcome)
        if target is None:
            raise UsageError(f"outcome {outcome!r} is unknown: expected one of {', '.join(_OUTCOMES)}")
        if target == _DEFERRED and delay_ns <= 0:
            target = _AFTER_RELEASE
        states = self._segments.get(segment_seq)
        holder = self._holders.get(owner)
        if states is None or holder is None:
            return list(indexes)
        moved, refused = states.move(indexes, holder.number, target)
        if not moved:
            return refused
        self._count_off(holder, segment_seq, len(moved))
        if target >= _ACKED:
            self._note_resolved(segment_seq, states, target, len(moved))
        else:
            self._note_given_back(segment_seq, target, moved, now_ns + delay_ns)
        return refused

    def _count_off(self, holder: _Holder, segment_seq: int, count: int) -> None:
        self.claimed_count -= count
        holder.held[segment_seq] -= count
        if not holder.held[segment_seq]:
            del holder.held[segment_seq]

    def _note_resolved(self, segment_seq: int, states: BundleStates, target: int, count: int) -> None:
        self.version += 1
        self._unresolved_count -= count
        if target == _ACKED:
            self.acked += count
        else:
            self.rejected += count
        if states.is_complete:
            self._set_complete(segment_seq, states.bundle_count)
        else:
            self._touched.add(segment_seq)

    def _note_given_back(self, segment_seq: int, target: int, moved: Sequence[int], due_ns: int) -> None:
        self.deferred += len(moved)
        if target == _AFTER_RELEASE:
            heapq.heappush(self._candidates, (segment_seq, min(moved), max(moved) + 1))
        else:
            self.waiting_count += len(moved)
            heapq.heappush(self._deferred, (due_ns, segment_seq, list(moved)))

    def release(self, owner: object) -> int:
        """Make all claims of an owner that is gone pending again at once; returns how many there were."""
        holder = self._holders.pop(owner, None)
        if holder is None:
            return 0
        for segment_seq in holder.held:
            span = self._segments[segment_seq].release(holder.number)
            heapq.heappush(self._candidates, (segment_seq, span.start, span.stop))
        count = sum(holder.held.values())
        self.claimed_count -= count
        return count

    def due(self, now_ns: int) -> bool:
        """Make deferred bundles whose delay has passed pending again; returns whether there were any."""
        woken = 0
        while self._deferred and self._deferred[0][0] <= now_ns:
            _, segment_seq, indexes = heapq.heappop(self._deferred)
            states = self._segments.get(segment_seq)
            if states is not None:
                woken += states.end_delay(indexes)
                states.rest()
                heapq.heappush(self._candidates, (segment_seq, min(indexes), max(indexes) + 1))
        self.waiting_count -= woken
        return woken > 0

    def next_due_ns(self) -> int | None:
        """When `due` should be called next, on the clock of `now_ns`; None if nothing is deferred."""
        return self._deferred[0][0] if self._deferred else None

    # --- figures ---------------------------------------------------------------------------------------------------------

    @property
    def unresolved_count(self) -> int:
        """Bundles of sealed segments that are not resolved: pending, deferred or claimed."""
        return self._unresolved_count

    def pending_count(self) -> int:
        """Bundles of sealed segments that nobody holds and that are not resolved, deferred ones included."""
        return self._unresolved_count - self.claimed_count

    @property
    def claimable_count(self) -> int:
        """Bundles that `claim` could give out now."""
        return self._unresolved_count - self.claimed_count - self.waiting_count

    def unresolved_in_unsealed(self, segment_seq: int, bundle_count: int) -> int:
        """How many of the `bundle_count` bundles of a segment that was not added yet this subscriber will be owed."""
        if self.is_complete(segment_seq):
            return 0
        progress = self._awaited.get(segment_seq, SegmentProgress(0, b""))
        return bundle_count - bitmaps.resolved_count(bitmaps.resized(progress.bitmap, bundle_count))

    def oldest_unresolved(self) -> tuple[int, int] | None:
        """(segment_seq, bundle index) of the oldest bundle of a sealed segment that is not resolved."""
        segment_seq = self._oldest_incomplete()
        return None if segment_seq is None else (segment_seq, self._segments[segment_seq].first_unresolved())

    def _oldest_incomplete(self) -> int | None:
        while self._incomplete and self._incomplete[0] not in self._segments:
            heapq.heappop(self._incomplete)
        return self._incomplete[0] if self._incomplete else None

    # --- durable progress ------------------------------------------------------------------------------------------------

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
        states = self._segments[segment_seq]
        entry = SegmentProgress(states.bundle_count, states.bitmap())
        states.rest()
        return entry

    def mark_flushed(self, version: int) -> None:
        """A snapshot that was taken at `version` is durable."""
        self.flushed_version = max(self.flushed_version, version)
        self._unflushed = {seq: at for seq, at in self._unflushed.items() if at > self.flushed_version}

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed that no flush has made durable."""
        return self.version > self.flushed_version

    def highest_segment_seq(self) -> int:
        """The highest segment number that this subscriber has heard of, -1 for none."""
        return max(self._floor - 1, *self._awaited, *self._segments, *self._complete, -1)


def _grant(granted: list[tuple[int, list[int]]], segment_seq: int, run: range) -> None:
    if granted and granted[-1][0] == segment_seq:
        granted[-1][1].extend(run)
    else:
        granted.append((segment_seq, list(run)))
