"""Bundles that nobody can claim for now: deferred ones until their delay has passed, those that were delivered too often, and those
that their consumers could not read.

Owner: one `SubscriberState`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from quiver_actors.store.subscriber.bundle_runs import Resolved
from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.outcomes import BLOCKED, DEFERRED, EXHAUSTED, EXHAUSTED_TARGETS
from quiver_actors.store.subscriber.progress_state import Position


class SetAside:
    """The bundles of one subscriber that nobody can claim for now, and what becomes of them.

    Attributes:
        waiting_count: deferred bundles whose delay has not passed.
        blocked_count: bundles that were delivered too often and are not resolved.
        exhausted: (segment_seq, bundle index) of bundles that wait for a dead letter; a hint, the state of the bundle is the truth.
        max_deliveries: how often a bundle may be delivered, 0 = as often as it takes.
        target: the state that a bundle gets which was delivered as often as that.
    """

    def __init__(self, segments: Mapping[int, BundleStates]) -> None:
        self.waiting_count = 0
        self.blocked_count = 0
        self.exhausted: deque[Position] = deque()
        self.max_deliveries = 0
        self.target = EXHAUSTED_TARGETS["dead_letter"]
        self._segments = segments
        self._deferred: list[tuple[int, int, int, list[int]]] = []  # heap of (due_ns, segment, token, indexes)

    def defer(self, segment_seq: int, states: BundleStates, token: int, indexes: Sequence[int], due_ns: int) -> None:
        """Postpone bundles that were claimed under that token until `due_ns`."""
        states.set_claimed(indexes, DEFERRED)
        self.waiting_count += len(indexes)
        if indexes:
            heapq.heappush(self._deferred, (due_ns, segment_seq, token, list(indexes)))

    def end_delays(self, now_ns: int) -> Iterator[tuple[int, int, int, int]]:
        """End the delays that have passed: (segment, start, end, how many bundles in it are pending again)."""
        while self._deferred and self._deferred[0][0] <= now_ns:
            _, segment_seq, token, indexes = heapq.heappop(self._deferred)
            states = self._segments.get(segment_seq)
            if states is not None:
                woken = states.end_delay(indexes, token)
                self.waiting_count -= woken
                yield segment_seq, min(indexes), max(indexes) + 1, woken

    def next_due_ns(self) -> int | None:
        """When the next delay has passed."""
        return self._deferred[0][0] if self._deferred else None

    def block(self, segment_seq: int, indexes: Sequence[int]) -> None:
        """Count bundles that were taken to `target`, which is not a resolved state."""
        self.blocked_count += len(indexes)
        if self.target == EXHAUSTED:
            self.exhausted.extend((segment_seq, index) for index in indexes)

    def set_aside(self, segment_seq: int, states: BundleStates, indexes: Sequence[int]) -> Sequence[int]:
        """Make dead letters of claimed bundles where the terms want these, else block the bundles. Returns those that come again: none."""
        states.set_claimed(indexes, EXHAUSTED if self.wants_letters else BLOCKED)
        self.blocked_count += len(indexes)
        if self.wants_letters:
            self.exhausted.extend((segment_seq, index) for index in indexes)
        return ()

    @property
    def wants_letters(self) -> bool:
        """Whether bundles that were delivered too often become dead letters."""
        return self.max_deliveries > 0 and self.target == EXHAUSTED

    def move_exhausted(self, states: BundleStates, bundle_index: int, target: int) -> bool:
        """See `BundleStates.move_exhausted`."""
        blocked = states.blocked_count
        moved = states.move_exhausted(bundle_index, target)
        self.blocked_count += states.blocked_count - blocked
        return moved

    def note_resolved(self, ended: Resolved) -> None:
        """Take bundles off the counts that were resolved while they were set aside."""
        self.waiting_count -= ended.deferred
        self.blocked_count -= ended.blocked

    def claim_one(self, states: BundleStates, bundle_index: int, token: int) -> bool:
        """Claim one bundle, also one that was set aside; False if it cannot be claimed."""
        deferred, blocked = states.deferred_count, states.blocked_count
        if states.claim_one(bundle_index, token) is None:
            return False
        self.waiting_count += states.deferred_count - deferred
        self.blocked_count += states.blocked_count - blocked
        return True
