"""The order in which a subscriber's pending bundles are found: oldest first, newest first.

Owner: one `SubscriberState`. `_oldest` is a heap of spans (segment, start, end) in which pending bundles may lie. A sealed segment
enters as one span, a claim consumes the lowest from its start, and what is given back enters as a span again. The state bytes are the
truth and the spans are hints that may overlap, so nothing is ever searched twice for the same reason: a claim costs the same whether
nothing or a hundred thousand bundles are held. Every pending bundle lies in at least one span. `_newest` is the same the other way
round, kept from the first claim of newest bundles on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

from quiver_actors.store.subscriber.bundle_states import BundleStates
from quiver_actors.store.subscriber.claim_room import Room
from quiver_actors.store.subscriber.grants import Live, TokenSource
from quiver_actors.store.subscriber.progress_state import Position
from quiver_actors.store.subscriber.sizes import BundleSizes

OLDEST, NEWEST, NEWEST_BACKFILL = "oldest", "newest", "newest_backfill"
ORDERS = (OLDEST, NEWEST, NEWEST_BACKFILL)

SizesOf = Callable[[int], BundleSizes | None]

_SPANS_SLACK = 1024


class ClaimOrder:
    """Finds the pending bundles of one subscriber in the order in which they are to be claimed.

    Args:
        segments: the bundles of the incomplete segments, as their owner keeps them.
        tokens: each grant takes one.
        sizes_of: the exact sizes of a segment's bundles, None where they are not known.
    """

    def __init__(self, segments: Mapping[int, BundleStates], tokens: TokenSource, sizes_of: SizesOf) -> None:
        self._segments = segments
        self._tokens = tokens
        self._sizes_of = sizes_of
        self._oldest: list[tuple[int, int, int]] = []
        self._newest: list[tuple[int, int, int]] | None = None  # (-segment, -end, start)

    def __len__(self) -> int:
        """How many spans are kept."""
        return len(self._oldest) + len(self._newest or ())

    def offer(self, segment_seq: int, start: int, end: int) -> None:
        """Note that bundles of that span may be pending."""
        # Whichever order nobody asks for would only grow.
        limit = 2 * len(self._segments) + _SPANS_SLACK
        heapq.heappush(self._oldest, (segment_seq, start, end))
        if len(self._oldest) > limit:
            self._oldest = [(seq, 0, states.bundle_count) for seq, states in self._segments.items()]
            heapq.heapify(self._oldest)
        if self._newest is not None:
            heapq.heappush(self._newest, (-segment_seq, -end, start))
            if len(self._newest) > limit:
                self._newest = None

    def take_oldest(self, room: Room, before: Position | None) -> list[Live]:
        """Claim pending bundles from the oldest on, as far as there is room; only before that position.

        Returns:
            What was claimed of each segment, under a token each.
        """
        found: list[Live] = []
        while room.bundles > 0 and self._oldest:
            segment_seq, start, end = self._oldest[0]
            if before is not None and (segment_seq, start) >= before:
                break
            states = self._segments.get(segment_seq)
            if states is None:  # completed or forgotten since
                heapq.heappop(self._oldest)
                continue
            grant = self._grant(found, segment_seq, states, room)
            last = end if before is None or before[0] != segment_seq else min(end, before[1])
            run = states.claim(start, last, room, grant.token)
            if not run and run.stop < last:
                break  # the next one is too large
            if run.stop < end:
                heapq.heapreplace(self._oldest, (segment_seq, run.stop, end))
            else:
                heapq.heappop(self._oldest)
            grant.add(run, room)
        return found

    def take_newest(self, room: Room) -> list[Live]:
        """Claim pending bundles from the newest on, as far as there is room; returns what `take_oldest` does."""
        if self._newest is None:
            self._newest = [(-seq, -states.bundle_count, 0) for seq, states in self._segments.items()]
            heapq.heapify(self._newest)
        found: list[Live] = []
        while room.bundles > 0 and self._newest:
            segment_seq, end, start = -self._newest[0][0], -self._newest[0][1], self._newest[0][2]
            states = self._segments.get(segment_seq)
            if states is None:
                heapq.heappop(self._newest)
                continue
            grant = self._grant(found, segment_seq, states, room)
            run = states.claim_newest(start, end, room, grant.token)
            if not run and run.start > start:
                break
            if run.start > start:
                heapq.heapreplace(self._newest, (-segment_seq, -run.start, start))
            else:
                heapq.heappop(self._newest)
            grant.add(run[::-1], room)
        return found

    def _grant(self, found: list[Live], segment_seq: int, states: BundleStates, room: Room) -> Live:
        """The grant that collects what is being claimed of that segment now."""
        if not found or found[-1].segment_seq != segment_seq:
            if room.bytes is not None and not states.sizes.are_exact:
                states.sizes = self._sizes_of(segment_seq) or states.sizes
            found.append(Live(self._tokens.take(), segment_seq, states))
        return found[-1]

    def oldest(self) -> Position | None:
        """Position of the bundle that `take_oldest` would give next."""
        while self._oldest:
            segment_seq, start, end = self._oldest[0]
            states = self._segments.get(segment_seq)
            first = states.first_pending(start) if states else end
            if states is not None and first < end:
                if first > start:
                    heapq.heapreplace(self._oldest, (segment_seq, first, end))
                return segment_seq, first
            heapq.heappop(self._oldest)
        return None
