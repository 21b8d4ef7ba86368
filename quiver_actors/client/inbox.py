"""The queue of bundles and gap notices that have arrived for a consumer and wait to be taken, in their order.

Used under the lock of the consumer's exchange. Deliveries are made in portions of one parcel, so that handing one over costs next to
nothing; what was handed over is counted when a portion is used up, or when `count_taken` is called.

Invariant: what is laid out is the end of `parcel.indexes[: parcel.laid_out]`, of the one parcel `_source`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.grants import Grant, Parcel, Portion

PORTION_MAX = 64

D = TypeVar("D")


class Inbox(Generic[D]):
    """Bundles and gap notices that arrived for one consumer and were not delivered to the caller yet, in their order."""

    def __init__(self, prefetch: int, make: Callable[[Parcel, int, int], D] | None = None) -> None:
        """
        Args:
            prefetch: of the subscription; a portion is at most a quarter of it, as credit is only given for what was counted.
            make: makes the delivery of a parcel's bundle, from its index and delivery count; None: it is set before anything arrives.
        """
        self.lost_count = 0
        """Bundles that were not handed over because their claim had ended."""
        self.make = make
        self._portion = max(1, min(PORTION_MAX, prefetch // 4))
        self._items: deque[Parcel | WaitingGap] = deque()
        self._laid_out: deque[D] = deque()
        self._source: Parcel | None = None

    @property
    def waiting(self) -> int:
        """Bundles that could be taken now, at most."""
        parcels = [item for item in self._items if isinstance(item, Parcel)]
        return len(self._laid_out) + sum(len(parcel.indexes) - parcel.laid_out for parcel in parcels)

    @property
    def is_at_gap(self) -> bool:
        """Whether a notice comes next."""
        return not self._laid_out and bool(self._items) and isinstance(self._items[0], WaitingGap)

    def append(self, item: Parcel | WaitingGap) -> None:
        """Add a parcel of bundles or a gap notice behind everything that waits."""
        self._items.append(item)

    def put_back(self, item: Portion | WaitingGap) -> None:
        """Put back a gap notice, or bundles that nobody was handed: they come next again."""
        self._recall()
        if isinstance(item, WaitingGap):
            self._items.appendleft(item)
        elif item.parcel.is_current:
            parcel = item.parcel.again(item)
            parcel.channel.take(-parcel.waiting)
            self._items.appendleft(parcel)

    def take(self, now_ns: int) -> D | WaitingGap | None:
        """Return the next bundle or gap notice, if there is one."""
        parcel, laid_out = self._source, self._laid_out
        # The last one of a portion is for `_take_next`, so that it is counted at once.
        if parcel is not None and len(laid_out) > 1 and parcel.is_held(now_ns):
            return laid_out.popleft()
        return self._take_next(now_ns)

    def take_portion(self, now_ns: int, bundles_max: int) -> Portion | WaitingGap | None:
        """Return the next bundles, all of one parcel, or the next gap notice, if there is one."""
        self._recall()
        item = self._next(now_ns)
        if not isinstance(item, Parcel):
            return item
        first = item.position
        stop = min(first + bundles_max, len(item.indexes))
        item.take(stop - first)
        item.channel.take(stop - first)
        self._drop_used_up(item)
        return Portion(item, item.indexes[first:stop], item.counts[first:stop])

    def count_taken(self) -> None:
        """Account for delivered bundles: the caller now tends their leases, and the worker may send others in their place."""
        parcel = self._source
        if parcel is None:
            return
        taken = parcel.laid_out - len(self._laid_out) - parcel.position
        if taken:
            first = parcel.position
            parcel.take(taken)
            if parcel.is_current:
                channel = parcel.channel
                channel.take(taken)
                if channel.handed.is_told:
                    channel.send([channel.handed.message(parcel.grant, parcel.indexes[first : parcel.position])])

    def give_back(self) -> int:
        """Return everything without counting it as a delivery; returns how many parcels had something left."""
        self._recall()
        count = 0
        for item in self._items:
            if isinstance(item, Parcel) and item.is_current and item.waiting:
                item.channel.give_back(item)
                count += 1
        self.clear()
        return count

    def withdraw(self, grant: Grant, gone: set[int], *, is_lost: bool = True) -> int:
        """Drop waiting bundles of a grant that are not held any more. Returns how many waited.

        Args:
            is_lost: they count in `lost_count`.
        """
        parcels = [item for item in self._items if isinstance(item, Parcel) and item.grant is grant]
        if not any(parcel.waiting for parcel in parcels):
            return 0
        self._recall()
        dropped = sum(parcel.drop(gone) for parcel in parcels)
        self.lost_count += dropped if is_lost else 0
        return dropped

    def waiting_of(self, grant: Grant) -> set[int]:
        """Return the indexes of the bundles of a grant that wait."""
        self._recall()
        parcels = [item for item in self._items if isinstance(item, Parcel) and item.grant is grant]
        return {index for parcel in parcels for index in parcel.indexes[parcel.position :]}

    def end(self) -> None:
        """Forget everything, for ever: also who makes deliveries, as that is the consumer which refers to this inbox."""
        self.clear()
        self.make = None

    def clear(self) -> None:
        """Forget all bundles and notices that wait."""
        self._items.clear()
        self._laid_out.clear()
        self._source = None

    def _next(self, now_ns: int) -> Parcel | WaitingGap | None:
        """Return the parcel that the next bundle is of, or take the gap notice that comes next."""
        while self._items:
            head = self._items[0]
            if isinstance(head, WaitingGap):
                self._items.popleft()
                if head.is_held(now_ns):
                    return head
            elif not head.waiting or not head.is_current:
                self._recall()
                self._items.popleft()
            elif head.is_held(now_ns):
                return head
            else:
                # The clock says that its lease is over. The worker knows: terms that others have set since may have made it longer.
                head.channel.ask(head.grant, now_ns)
                return None
        return None

    def _take_next(self, now_ns: int) -> D | WaitingGap | None:
        item = self._next(now_ns)
        if not isinstance(item, Parcel):
            return item
        if not self._laid_out:
            self._lay_out(item)
        bundle = self._laid_out.popleft()
        if not self._laid_out:
            self._recall()
            self._drop_used_up(item)
        return bundle

    def _drop_used_up(self, head: Parcel) -> None:
        if not head.waiting:
            self._items.popleft()

    def _lay_out(self, parcel: Parcel) -> None:
        make, first = self.make, parcel.position
        assert make is not None, "nothing is taken of an inbox that has ended"
        # Whatever is told as taken is told before it is handed over: one at a time.
        portion = 1 if parcel.channel.handed.is_told else self._portion
        parcel.laid_out = min(first + portion, len(parcel.indexes))
        indexes, counts = parcel.indexes[first : parcel.laid_out], parcel.counts[first : parcel.laid_out]
        self._laid_out.extend([make(parcel, index, count) for index, count in zip(indexes, counts, strict=True)])
        self._source = parcel

    def _recall(self) -> None:
        """Take back the deliveries that were made and not taken: they will be made anew."""
        self.count_taken()
        if self._source is not None:
            self._source.laid_out = self._source.position
        self._laid_out.clear()
        self._source = None
