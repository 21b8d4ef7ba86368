"""A durable subscriber's consumer on another host than the node: the surface of `client.Subscription`, through the node's Flight server.

Guarantees, as of a local one
- Every bundle is delivered at least once, to one of the consumers that share the subscriber id, or named in a gap notice.
- What this consumer holds goes back when it is closed, and at the latest half a minute after its process or its host is gone.
- Any number of threads may call `get` and resolve deliveries.

Bundles ahead of `get` are copies in memory here. They count as delivered; with `max_deliveries`, where that has consequences, none is
sent ahead.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn, cast

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import Refused
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client import Delivery, GapNotice, RefusedResolution, Subscription
from quiver_actors.client.calls import refusal_error
from quiver_actors.client.delivery import Ticket
from quiver_actors.client.exchange import deadline_after
from quiver_actors.client.grants import Grant, Parcel
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.client.subscribe_request import SubscribeOptions, SubscribeRequest, start_text
from quiver_actors.errors import AlreadyResolved, ClosedError, LeaseExpired, UsageError, WorkerUnavailable
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FlightConnection, backoffs
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.contract import Done
from quiver_actors.flight.frames import Frame, unframed
from quiver_actors.flight.not_remote import not_there
from quiver_actors.flight.received import received
from quiver_actors.flight.received_parcel import ReceivedParcel

logger = logging.getLogger("quiver.client")
_FACTS = rc.DeliveredFacts | rc.NoticeFacts
_TENDED_EVERY_NS = 200 * MILLISECOND_NS


class RemoteTicket(Ticket):
    """The receipt of a resolution: ask it whether the worker has it for good."""

    __slots__ = ("_link", "_parcel")

    def __init__(self, resolutions: Any, delivery: Any) -> None:
        super().__init__(resolutions, delivery)
        self._link: ConsumerLink = resolutions
        self._parcel: ReceivedParcel = delivery.parcel

    def wait(self, timeout: float = 10.0) -> None:
        """Return when the resolution is durable. Raises as `Ticket.wait`."""
        self._link.settle(self._parcel, timeout)


class RemoteDelivery(Delivery):
    """A bundle that is claimed for this consumer; see `Delivery`. Its batches are copies in memory, which stay as long as they are used."""

    __slots__ = ()

    _ticket_type = RemoteTicket

    @property
    def parcel(self) -> ReceivedParcel:
        """Claim of the bundle; not for callers."""
        return cast(ReceivedParcel, self._parcel)

    def extend(self, timeout: float = 10.0) -> None:
        """Begin the lease anew, of this bundle and of those that were claimed with it. Raises as `Delivery.extend`."""
        if self.is_resolved:
            raise AlreadyResolved(f"{self!r} is not held any more")
        if cast(ConsumerLink, self._resolutions).extend([self.parcel], timeout):
            raise LeaseExpired(f"{self!r}: its lease was over, or its consumer lost; it may be with another consumer")


class RemoteSubscription:
    """Deliveries of one subscriber: iterate, or call `get`. Made by `RemoteClient.subscribe`. With gaps="deliver" `get` returns gap notices
    too, in the places of the lost bundles. A method of `Subscription` that is not here refuses by its name."""

    def __init__(
        self,
        connection: FlightConnection,
        subscriber: str,
        topic: str,
        gaps: str,
        options: SubscribeOptions,
        timeout_seconds: float,
    ) -> None:
        """Attaches to the subscriber. Raises as `RemoteClient.subscribe`."""
        self._wanted = SubscribeRequest.parse(topic, subscriber, gaps, options)
        request = rc.Subscribe(rc.REMOTE_VERSION, topic, subscriber, _travelling(options, self._wanted))
        self._link = ConsumerLink(connection, request, timeout_seconds)
        self._waiting: deque[RemoteDelivery | GapNotice] = deque()
        self._taking = threading.Lock()
        self._lock = threading.Lock()
        self._take_number = 0
        self._generation = self._link.generation
        self._tended_ns = time.monotonic_ns()
        self._lost_count = 0
        self._gap_count = 0
        # Also at the end of the program, and where nobody closes it.
        self._ending = weakref.finalize(self, self._link.close)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._wanted.topic

    @property
    def subscriber(self) -> str:
        """Name of the durable subscriber."""
        return self._wanted.subscriber

    @property
    def claims_lost(self) -> int:
        """Bundles that were resolved too late, or not given out, because the server or their lease was lost: they are delivered again."""
        return self._link.late_count + self._lost_count

    @property
    def refused_count(self) -> int:
        """Resolutions that workers refused, as the claim was gone, as far as it was heard of."""
        return self._link.refused_count

    @property
    def gap_count(self) -> int:
        """Gap notices that were handed over."""
        return self._gap_count

    def get(self, timeout: float | None = None) -> Any:
        """The next bundle, a `Delivery`; None when none came within `timeout` seconds (None: wait for ever, 0: do not wait).

        While the server is away it is tried again and again. With gaps="deliver" it may be a `GapNotice`.

        Raises:
            WorkerUnavailable: the server was away when the timeout was over.
            QuiverError: the node refuses this subscriber now, such as UnknownSubscriber after it was dropped.
            ClosedError: the subscription was closed.
        """
        deadline_ns = deadline_after(timeout)
        while True:
            item = self._taken() or self._fetched(deadline_ns)
            if item is None:
                return None
            if isinstance(item, RemoteDelivery) or self._tell(item):
                return item

    def get_many(self, bundles_max: int, timeout: float | None = None) -> list[Any]:
        """The next bundles, at least one and at most `bundles_max`, as they are there; empty when none came in time. Raises as `get`.

        With gaps="deliver" a notice ends the list early, so that it stays in its place.
        """
        if bundles_max < 1:
            raise UsageError(f"bundles_max {bundles_max} is not possible: expected at least 1")
        found = [first] if (first := self.get(timeout)) is not None else []
        while 0 < len(found) < bundles_max and isinstance(found[-1], RemoteDelivery):
            item = self._taken(only_bundles=True)
            if item is None:
                break
            found.append(item)
        return found

    def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> Delivery:
        """Claim one bundle by its id, also one that is deferred or blocked. Raises as `Subscription.claim`."""
        if bundle_id.topic != self.topic:
            raise UsageError(f"{bundle_id} is not of topic {self.topic!r}")
        ticket = rc.ClaimTicket("", *bundle_id[1:], round(timeout * SECOND_NS))
        (batch,) = self._link.read(ticket, timeout)
        (frame,) = unframed(batch, _FACTS)
        delivery = self._item(frame)
        assert isinstance(delivery, RemoteDelivery)
        return delivery

    def run(self) -> int:
        """Call `on_bundle` with each delivery, until the subscription is closed or nothing came for its `idle_timeout`; see
        `Subscription.run`."""
        if self._wanted.on_bundle is None:
            raise UsageError("run needs a callback: subscribe with on_bundle=")
        count = 0
        for event in self:
            if isinstance(event, Delivery):
                try:
                    with event:
                        self._wanted.on_bundle(event)
                except ClosedError:
                    if not self._link.is_closed:
                        raise
                count += 1
        return count

    def flush(self, timeout: float = 10.0) -> list[RefusedResolution]:
        """Return when everything acknowledged or rejected so far is durable; see `Subscription.flush`.

        Raises:
            WorkerUnavailable: the server or a worker was lost before some of it was known to be durable: it may be delivered again.
        """
        refusals = self._link.flush(timeout).refusals
        return [
            RefusedResolution(
                BundleId(self.topic, each.core, each.segment_seq, each.bundle_index),
                each.token,
                refusal_error(Refused(0, each.code, each.message)),
            )
            for each in refusals
        ]

    def ack_through(self, bundle_id: BundleId, timeout: float = 10.0) -> None:
        """Resolve everything of that bundle's core up to and including it; durable on return. Raises as `Subscription.ack_through`."""
        self._link.ask(rc.AckThrough(*bundle_id[1:], round(timeout * SECOND_NS)), Done, timeout)

    def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> list[Delivery]:
        """Begin the leases of deliveries anew; returns those that are not held any more. Raises WorkerUnavailable."""
        given = [each for each in deliveries if isinstance(each, RemoteDelivery)]
        lost = self._link.extend([each.parcel for each in given], timeout)
        return [each for each in given if each.parcel.number in lost]

    def pending_count(self, timeout: float = 10.0) -> int:
        """Bundles on all workers that the subscriber has not resolved."""
        return self._standing(timeout).pending_count

    def oldest_incomplete(self, timeout: float = 10.0) -> dict[int, BundleId]:
        """The oldest bundle that is not resolved, of each core that has one."""
        return {core: BundleId(self.topic, core, *at) for core, at in self._standing(timeout).oldest.items()}

    def all_drained(self, timeout: float = 10.0) -> bool:
        """Whether nothing is owed on any worker: no bundle, sealed or not, and no gap notice."""
        return self._standing(timeout).is_drained

    def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        """Unresolved bundles from `start` up to and not including `end`, both of one core."""
        if (start.topic, start.core) != (end.topic, end.core):
            raise UsageError(f"{start} and {end} are not of one core")
        act = rc.AskRange(start.core, start[2:], end[2:], round(timeout * SECOND_NS))
        self._link.send()
        return self._link.ask(act, rc.Count, timeout).count

    def close(self) -> None:
        """Send and flush what was resolved, give everything else back, and end. Idempotent."""
        self._ending()

    def __getattr__(self, name: str) -> NoReturn:
        raise not_there("remote subscription", Subscription, name)

    def __iter__(self) -> Iterator[Any]:
        """Yield what `get` returns, until the subscription is closed, or until nothing came for its `idle_timeout`."""
        while True:
            try:
                event = self.get(self._wanted.idle_timeout)
            except ClosedError:
                return
            if event is None:
                return
            yield event

    def __enter__(self) -> RemoteSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._link.is_closed else f"waiting={len(self._waiting)}"
        return f"<RemoteSubscription {self.subscriber} topic={self.topic} {state}>"

    # --- private -------------------------------------------------------------------------------------------------------------

    def _standing(self, timeout: float) -> rc.Standing:
        self._link.send()
        return self._link.ask(rc.AskStanding(round(timeout * SECOND_NS)), rc.Standing, timeout)

    def _taken(self, *, only_bundles: bool = False) -> RemoteDelivery | GapNotice | None:
        """The next item that is here; bundles whose claim is gone are left out. Raises ClosedError."""
        self._tend()
        with self._lock:
            self._check_open()
            while self._waiting and not (only_bundles and isinstance(self._waiting[0], GapNotice)):
                item = self._waiting.popleft()
                if isinstance(item, GapNotice):
                    return item
                self._note_taken()
                if self._is_held(item):
                    return item
                self._lost_count += 1
        return None

    def _note_taken(self) -> None:
        """Have the notices of the last answer confirmed, once all of it was handed over."""
        if not self._waiting and self._generation == self._link.generation:
            self._link.taken = self._take_number

    def _is_held(self, delivery: RemoteDelivery) -> bool:
        parcel = delivery.parcel
        return parcel.generation == self._link.generation and not parcel.grant.is_over(time.monotonic_ns())

    def _tend(self) -> None:
        """Extend the leases of what waits here, before half of them is over."""
        now_ns = time.monotonic_ns()
        with self._lock:
            lease_ns = self._wanted.terms.lease_ns
            waiting = [each.parcel for each in self._waiting if isinstance(each, RemoteDelivery)]
            if not waiting or not lease_ns or now_ns < self._tended_ns + _TENDED_EVERY_NS:
                return
            self._tended_ns = now_ns
            due = [parcel for parcel in waiting if parcel.grant.lease_until_ns < now_ns + lease_ns // 2]
        if due:
            try:
                self._link.extend(due, 1.0)
            except WorkerUnavailable as error:
                logger.warning("quiver.subscription.extend subscriber=%s error=%s", self.subscriber, error)

    def _fetched(self, deadline_ns: int) -> RemoteDelivery | GapNotice | None:
        """The next item, from the server; None when none came in time."""
        for backoff_seconds in backoffs():
            try:
                # By one thread at a time: the others find what it has brought.
                if not self._taking.acquire(timeout=_seconds_until(deadline_ns)):
                    return None
                try:
                    while (item := self._taken()) is None:
                        is_over = time.monotonic_ns() >= deadline_ns
                        self._fetch(deadline_ns)
                        if is_over:
                            return self._taken()
                    return item
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
            found = self._link.read(rc.TakeTicket("", number, self._wanted.prefetch, wait_ns), wait_ns / SECOND_NS)
        except ClosedError:
            # The server has lost the consumer, unless this side was closed.
            self._link.renew(self._generation)
            return
        items = [self._item(frame) for batch in found for frame in unframed(batch, _FACTS)]
        with self._lock:
            self._waiting.extend(items)
            self._take_number = number
            if not items:
                self._note_taken()

    def _check_open(self) -> None:
        if self._link.is_closed:
            raise ClosedError("it was closed: subscribe again")

    def _item(self, frame: Frame) -> RemoteDelivery | GapNotice:
        facts, link = frame.facts, self._link
        if isinstance(facts, rc.NoticeFacts):
            return GapNotice(self.topic, *(getattr(facts, name) for name in GapNotice._fields[1:]))
        projection = self._wanted.asked.resolve(link.slots)
        segment, index = received(facts.stored, frame.batches, link.slots, projection)
        now_ns = time.monotonic_ns()
        until_ns = now_ns + facts.lease_left_ns if facts.lease_left_ns else 0
        grant = Grant(facts.token, until_ns, now_ns, facts.stored.segment_seq)
        parcel = ReceivedParcel(segment, grant, facts.number, self._generation)
        return RemoteDelivery(cast("Resolutions[Any]", link), cast(Parcel, parcel), index, facts.delivery_count)

    def _tell(self, notice: GapNotice) -> bool:
        """Pass a notice to `on_gap`; returns whether `get` returns it."""
        logger.warning("quiver.subscription.gap subscriber=%s %s", self.subscriber, notice)
        if self._wanted.on_gap is not None:
            try:
                self._wanted.on_gap(notice)
            except BaseException:
                with self._lock:
                    self._waiting.appendleft(notice)
                raise
        with self._lock:
            self._gap_count += 1
            self._note_taken()
        return self._wanted.are_gaps_delivered


def _seconds_until(deadline_ns: int) -> float:
    return min(max(deadline_ns - time.monotonic_ns(), 0) / SECOND_NS, threading.TIMEOUT_MAX)


def _travelling(options: SubscribeOptions, wanted: SubscribeRequest) -> dict[str, Any]:
    """The options that the server is to have, as JSON can say them."""
    sent = {name: value for name, value in options.items() if name not in ("idle_timeout", "on_bundle", "on_gap")}
    if isinstance(wanted.start, BundleId):
        sent["start"] = list(wanted.start)
    elif "start" in sent:
        text = start_text(wanted.start)
        sent["start"] = int(text.removeprefix("time:")) if text.startswith("time:") else text
    if wanted.asked.slots is not None:
        sent["slots"] = list(wanted.asked.slots)
    if options.get("columns") is not None:
        sent["columns"] = [(slot, list(names)) for slot, names in wanted.asked.columns.items()]
    return sent
