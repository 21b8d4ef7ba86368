"""The bundles that have arrived at a remote consumer and that nobody has taken.

More are fetched when none is left. Their leases are extended while they wait, as long as `get` is called.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

import pyarrow as pa

from quiver_actors.base.locks import new_lock
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client import GapNotice
from quiver_actors.client.grants import Grant, Parcel, Portion
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.client.subscribe_request import SubscribeRequest
from quiver_actors.errors import ClosedError, WorkerUnavailable
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import backoffs
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.frames import Frame, unframed
from quiver_actors.flight.received import received
from quiver_actors.flight.received_delivery import ReceivedDelivery
from quiver_actors.flight.received_parcel import ReceivedParcel

D = TypeVar("D", bound=ReceivedDelivery[Any])

logger = logging.getLogger("quiver.client")
_FACTS = rc.DeliveredFacts | rc.NoticeFacts
_TENDED_EVERY_NS = 200 * MILLISECOND_NS


class RemoteInbox(Generic[D]):
    """The bundles and notices of one subscription. Any number of threads may call its methods."""

    def __init__(self, link: ConsumerLink, wanted: SubscribeRequest, kind: type[D]) -> None:
        """`kind`: class of the deliveries."""
        self.lost_count = 0
        """Bundles that were not given out, because their claim was gone."""
        self._link = link
        self._wanted = wanted
        self._kind = kind
        self._waiting: deque[D | GapNotice] = deque()
        self._taking = new_lock()
        self._lock = new_lock()
        self._take_number = 0
        self._generation = link.generation
        self._tended_ns = time.monotonic_ns()

    def __len__(self) -> int:
        return len(self._waiting)

    def put_back(self, notice: GapNotice) -> None:
        """A notice could not be handed over: it comes next again."""
        with self._lock:
            self._waiting.appendleft(notice)

    def take_back(self, left: Sequence[Portion | GapNotice], make: Callable[[Parcel, int, int], D]) -> None:
        """What was taken and not handed over comes next again, in its order. `make` makes the delivery of a bundle. Takes no lock: an
        iterator may be collected while this thread holds it."""
        for item in reversed(left):
            if isinstance(item, GapNotice):
                self._waiting.appendleft(item)
            else:
                (index,), (count,) = item.indexes, item.counts
                self._waiting.appendleft(make(item.parcel, index, count))

    def was_told(self) -> None:
        """A notice was handed over."""
        with self._lock:
            self._note_taken()

    def items(self, batches: Iterable[pa.RecordBatch]) -> list[D | GapNotice]:
        """What an answer of the server holds."""
        return [self._item(frame) for batch in batches for frame in unframed(batch, _FACTS)]

    def take(self, *, only_bundles: bool = False) -> D | GapNotice | None:
        """The next item that is here; bundles whose claim is gone are left out. Raises ClosedError."""
        with self._lock:
            self._check_open()
            while self._waiting and not (only_bundles and isinstance(self._waiting[0], GapNotice)):
                item = self._waiting.popleft()
                if isinstance(item, GapNotice):
                    return item
                self._note_taken()
                if self._is_held(item):
                    return item
                self.lost_count += 1
        return None

    def _note_taken(self) -> None:
        """Have the notices of the last answer confirmed, once all of it was handed over. Called with the lock held."""
        if not self._waiting and self._generation == self._link.generation:
            self._link.taken = self._take_number

    def _is_held(self, delivery: D) -> bool:
        parcel = delivery.parcel
        return parcel.generation == self._link.generation and not parcel.grant.is_over(time.monotonic_ns())

    def due(self) -> list[ReceivedParcel]:
        """What waits here and should have its lease extended now, before half of it is over; empty most times."""
        now_ns = time.monotonic_ns()
        with self._lock:
            lease_ns = self._wanted.terms.lease_ns
            waiting = [each.parcel for each in self._waiting if not isinstance(each, GapNotice)]
            if not waiting or not lease_ns or now_ns < self._tended_ns + _TENDED_EVERY_NS:
                return []
            self._tended_ns = now_ns
            return [parcel for parcel in waiting if parcel.grant.lease_until_ns < now_ns + lease_ns // 2]

    def extend(self, due: list[ReceivedParcel]) -> None:
        """Extend the leases of what waits here; logs what fails."""
        try:
            self._link.extend(due, 1.0)
        except WorkerUnavailable as error:
            logger.warning("quiver.subscription.extend subscriber=%s error=%s", self._wanted.subscriber, error)

    def fill(self, deadline_ns: int) -> bool:
        """Wait until something is here, and return whether there is. It is not taken by that.

        Raises:
            WorkerUnavailable: the server was away when the time was over.
            ClosedError: the subscription was closed.
        """
        for backoff_seconds in backoffs():
            try:
                # By one thread at a time: the others find what it has brought.
                if not self._taking.acquire(timeout=_seconds_until(deadline_ns)):
                    return False
                try:
                    while not self._waiting:
                        is_over = time.monotonic_ns() >= deadline_ns
                        self._fetch(deadline_ns)
                        if is_over:
                            break
                    return bool(self._waiting)
                finally:
                    self._taking.release()
            except ClosedError:
                self._check_open()
            except WorkerUnavailable:
                self._check_open()
                if time.monotonic_ns() + backoff_seconds * SECOND_NS >= deadline_ns:
                    raise
                time.sleep(backoff_seconds)
        raise AssertionError("the row of waiting times has no end")

    def _fetch(self, deadline_ns: int) -> None:
        """Bring the next bundles here, as many as the server has, up to `prefetch`."""
        wait_ns = min(max(deadline_ns - time.monotonic_ns(), 0), rc.WAIT_NS_MAX)
        if self._generation != self._link.generation:
            with self._lock:
                self._generation, self._take_number = self._link.generation, 0
        number = self._take_number + 1
        try:
            ticket = rc.TakeTicket("", number, self._wanted.prefetch, wait_ns)
            found = self._link.read(ticket, wait_ns / SECOND_NS, self._generation)
        except ClosedError:
            # The server has lost the consumer, unless this side was closed.
            self._link.renew(self._generation)
            return
        items = self.items(found)
        with self._lock:
            self._waiting.extend(items)
            self._take_number = number
            if not items:
                self._note_taken()

    def _check_open(self) -> None:
        if self._link.is_closed:
            raise ClosedError("it was closed: subscribe again")

    def _item(self, frame: Frame) -> D | GapNotice:
        facts, link = frame.facts, self._link
        if isinstance(facts, rc.NoticeFacts):
            return GapNotice(self._wanted.topic, *(getattr(facts, name) for name in GapNotice._fields[1:]))
        projection = self._wanted.asked.resolve(link.slots)
        segment, index = received(facts.stored, frame.batches, link.slots, projection)
        now_ns = time.monotonic_ns()
        until_ns = now_ns + facts.lease_left_ns if facts.lease_left_ns else 0
        grant = Grant(facts.token, until_ns, now_ns, facts.stored.segment_seq)
        parcel = ReceivedParcel(segment, grant, facts.number, self._generation)
        return self._kind(cast("Resolutions[Any]", link), cast(Parcel, parcel), index, facts.delivery_count)


def _seconds_until(deadline_ns: int) -> float:
    return min(max(deadline_ns - time.monotonic_ns(), 0) / SECOND_NS, threading.TIMEOUT_MAX)
