"""What has arrived for a consumer and was not handed over yet: bundles and gap notices, in their order.

Used under the lock of the consumer's exchange. Deliveries are made in portions of one parcel, so that handing one over costs next to
nothing; what was handed over is counted when a portion is used up, or when `count_taken` is called.

Invariant: what is laid out is the end of `parcel.indexes[: parcel.laid_out]`, of the one parcel `_source`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.grants import Parcel

if TYPE_CHECKING:
    from quiver_actors.client.subscriber_channel import SubscriberChannel

PORTION_MAX = 64

D = TypeVar("D")


class Inbox(Generic[D]):
    """See the module."""

    def __init__(self, make: Callable[[Parcel, int, int], D], prefetch: int) -> None:
        """
        Args:
            make: a delivery of a parcel, by bundle index and delivery count.
            prefetch: of the subscription; a portion is at most a quarter of it, as credit is only given for what was counted.
        """
        self.lost_count = 0
        """Bundles that were not handed over because their claim had ended."""
        self._make = make
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
        self._items.append(item)

    def put_back(self, gap: WaitingGap) -> None:
        """It comes next again."""
        self._recall()
        self._items.appendleft(gap)

    def take(self, now_ns: int) -> D | WaitingGap | None:
        """What comes next, if it is there."""
        parcel, laid_out = self._source, self._laid_out
        # The last one of a portion is for `_take_next`, so that it is counted at once.
        if parcel is not None and len(laid_out) > 1 and parcel.is_held(now_ns):
            return laid_out.popleft()
        return self._take_next(now_ns)

    def count_taken(self) -> None:
        """Account for what was handed over: its leases are the caller's, and others may be sent in its place."""
        parcel = self._source
        if parcel is None:
            return
        taken = parcel.laid_out - len(self._laid_out) - parcel.position
        if taken:
            parcel.take(taken)
            if parcel.is_current:
                parcel.channel.take(taken)

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

    def withdraw(self, channel: SubscriberChannel, segment_seq: int) -> None:
        """What waits of a segment is not owed any more: it is not handed over. Counts as taken."""
        gone = [item for item in self._items if isinstance(item, Parcel) and item.is_of(channel, segment_seq)]
        if not any(parcel.waiting for parcel in gone):
            return
        self._recall()
        for parcel in gone:
            waiting = parcel.waiting
            parcel.take(waiting)
            channel.take(waiting)
            channel.release(parcel.grant, waiting)

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._laid_out.clear()
        self._source = None

    def _take_next(self, now_ns: int) -> D | WaitingGap | None:
        while self._items:
            head = self._items[0]
            if isinstance(head, WaitingGap):
                self._items.popleft()
                if head.is_current:
                    return head
            elif head.waiting and head.is_held(now_ns):
                if not self._laid_out:
                    self._lay_out(head)
                bundle = self._laid_out.popleft()
                if not self._laid_out:
                    self._recall()
                    if not head.waiting:
                        self._items.popleft()
                return bundle
            else:
                self._recall()
                self._items.popleft()
                self._lose(head)
        return None

    def _lay_out(self, parcel: Parcel) -> None:
        make, first = self._make, parcel.position
        parcel.laid_out = min(first + self._portion, len(parcel.indexes))
        indexes, counts = parcel.indexes[first : parcel.laid_out], parcel.counts[first : parcel.laid_out]
        self._laid_out.extend([make(parcel, index, count) for index, count in zip(indexes, counts, strict=True)])
        self._source = parcel

    def _recall(self) -> None:
        """Take back what is laid out: it will be laid out anew."""
        self.count_taken()
        if self._source is not None:
            self._source.laid_out = self._source.position
        self._laid_out.clear()
        self._source = None

    def _lose(self, parcel: Parcel) -> None:
        """What waits in a parcel, if anything, is not held any more."""
        waiting = parcel.waiting
        if waiting and parcel.is_current:
            self.lost_count += waiting
            parcel.channel.take(waiting)
            parcel.channel.release(parcel.grant, waiting)
            parcel.take(waiting)
