"""The segments that a start found and that wait for their check, and how far each subscriber may claim past them.

Owner: `SealedSegments`. A subscriber that has resolved all of them gets what is pushed now at once; one that is still owed some of them
gets nothing behind the first of those, so that it has its bundles in order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.progress_state import Position


class Unchecked:
    """Segment numbers, lowest first; none comes back.

    Attributes:
        segment_seqs: the numbers; nobody else changes them.

    Args:
        segment_seqs: the segments that the start found.
        bundle_count: says how many bundles a segment has, as its footer says; 0 if nobody knows.
    """

    def __init__(self, segment_seqs: Iterable[int], bundle_count: Callable[[int], int]) -> None:
        self.segment_seqs = dict.fromkeys(sorted(segment_seqs))
        self._bundle_count = bundle_count
        self._first_owed: dict[str, tuple[SubscriberState, int | None]] = {}
        """The lowest unchecked segment that each subscriber is owed, None for none. It only rises for the same state."""

    def __len__(self) -> int:
        return len(self.segment_seqs)

    def __iter__(self) -> Iterator[int]:
        return iter(self.segment_seqs)

    def __contains__(self, segment_seq: object) -> bool:
        return segment_seq in self.segment_seqs

    def remove(self, segment_seq: int) -> None:
        """Take a segment out: it is checked, it is gone, or nobody waits for it any longer."""
        self.segment_seqs.pop(segment_seq, None)
        if not self.segment_seqs:
            self._first_owed.clear()

    def limit(self, state: SubscriberState) -> Position | None:
        """Return the position before which the subscriber may claim now; None: everything."""
        first = self.first_owed(state)
        return None if first is None else (first, 0)

    def first_owed(self, state: SubscriberState) -> int | None:
        """Return the lowest unchecked segment that the subscriber is owed, as far as anybody knows."""
        if not self.segment_seqs:
            return None
        known, first = self._first_owed.get(state.subscriber, (None, -1))
        if known is not state:
            first = -1
        if first is not None and not (first in self.segment_seqs and self._is_owed(state, first)):
            first = next((seq for seq in self.segment_seqs if self._is_owed(state, seq)), None)
            self._first_owed[state.subscriber] = state, first
        return first

    def next_to_check(self, states: Iterable[SubscriberState], under_rescue: Container[int]) -> int | None:
        """Return the segment to check next: the lowest that a subscriber is owed, else the lowest; None while all are under rescue."""
        owed = {self.first_owed(state) for state in states} - {None}
        first = min((seq for seq in owed if seq is not None and seq not in under_rescue), default=None)
        if first is not None:
            return first
        return next((seq for seq in self.segment_seqs if seq not in under_rescue), None)

    def _is_owed(self, state: SubscriberState, segment_seq: int) -> bool:
        progress = state.progress
        if progress.is_complete(segment_seq):
            return False
        resolves_all = progress.awaited.is_complete(segment_seq)
        return not (resolves_all and progress.awaited.bundle_count(segment_seq) >= self._bundle_count(segment_seq) > 0)
