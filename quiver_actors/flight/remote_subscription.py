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
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn, cast

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import Refused
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import GapNotice, RefusedResolution, Subscription
from quiver_actors.client.batches import ROWS_MAX_DEFAULT, WAIT_SECONDS_DEFAULT
from quiver_actors.client.calls import refusal_error
from quiver_actors.client.consuming import called_with_each, check_bundles_max, events_of, gathered
from quiver_actors.client.exchange import deadline_after
from quiver_actors.client.gathering import Gathering
from quiver_actors.client.grants import Parcel, Portion
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.client.subscribe_request import SubscribeOptions, SubscribeRequest, start_text
from quiver_actors.errors import UsageError
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FlightConnection
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.contract import Done
from quiver_actors.flight.not_remote import not_there
from quiver_actors.flight.received_delivery import ReceivedDelivery
from quiver_actors.flight.remote_delivery import RemoteBatch, RemoteDelivery
from quiver_actors.flight.remote_inbox import RemoteInbox

logger = logging.getLogger("quiver.client")


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
        kind: type[ReceivedDelivery[Any]] = RemoteDelivery,
    ) -> None:
        """Attaches to the subscriber. `kind`: class of the deliveries. Raises as `RemoteClient.subscribe`."""
        self.wanted = SubscribeRequest.parse(topic, subscriber, gaps, options)
        request = rc.Subscribe(rc.REMOTE_VERSION, topic, subscriber, _travelling(options, self.wanted))
        self._link = ConsumerLink(connection, request, timeout_seconds)
        self.inbox = RemoteInbox(self._link, self.wanted, kind)
        self._gap_count = 0
        # Also at the end of the program, and where nobody closes it.
        self._ending = weakref.finalize(self, self._link.close)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.wanted.topic

    @property
    def subscriber(self) -> str:
        """Name of the durable subscriber."""
        return self.wanted.subscriber

    @property
    def order(self) -> str:
        """The order in which this consumer gets bundles: `oldest`, `newest` or `newest_backfill`."""
        return self.wanted.terms.order

    @property
    def claims_lost(self) -> int:
        """Bundles that were resolved too late, or not given out, because the server or their lease was lost: they are delivered again."""
        return self._link.late_count + self.inbox.lost_count

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
            if due := self.inbox.due():
                self.inbox.extend(due)
            item = self.inbox.take()
            if item is None:
                if not self.inbox.fill(deadline_ns):
                    return None
            elif not isinstance(item, GapNotice) or self._tell(item):
                return item

    def get_many(self, bundles_max: int, timeout: float | None = None) -> list[Any]:
        """The next bundles, at least one and at most `bundles_max`, as they are there; empty when none came in time. Raises as `get`.

        With gaps="deliver" a notice ends the list early, so that it stays in its place.
        """
        check_bundles_max(bundles_max)
        found = [first] if (first := self.get(timeout)) is not None else []
        while 0 < len(found) < bundles_max and not isinstance(found[-1], GapNotice):
            item = self.inbox.take(only_bundles=True)
            if item is None:
                break
            found.append(item)
        return found

    def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> Any:
        """Claim one bundle by its id, also one that is deferred or blocked. Raises as `Subscription.claim`."""
        if bundle_id.topic != self.topic:
            raise UsageError(f"{bundle_id} is not of topic {self.topic!r}")
        ticket = rc.ClaimTicket("", *bundle_id[1:], round(timeout * SECOND_NS))
        (delivery,) = self.inbox.items(self._link.read(ticket, timeout))
        assert not isinstance(delivery, GapNotice)
        return delivery

    def run(self) -> int:
        """Call `on_bundle` with each delivery, until the subscription is closed or nothing came for its `idle_timeout`; see
        `Subscription.run`."""
        return called_with_each(self, self.wanted.on_bundle, lambda: self.is_closed)

    def batches(self, max_rows: int = ROWS_MAX_DEFAULT, max_wait: float = WAIT_SECONDS_DEFAULT) -> Iterator[Any]:
        """Yield many bundles at a time, with their rows as one Arrow table for each slot; see `Subscription.batches`.

        With gaps="deliver" notices come between the batches. Each bundle is a chunk of its own in the tables.

        Raises:
            UsageError: `max_rows` is less than 1, or `max_wait` is no number of seconds.
            QuiverError: as `get`.
        """
        link = cast("Resolutions[Any]", self._link)

        def make(parcel: Parcel, index: int, delivery_count: int) -> RemoteDelivery:
            return RemoteDelivery(link, parcel, index, delivery_count)

        gathering = Gathering(max_rows, max_wait, self.wanted.idle_timeout, make)
        return gathered(gathering, self._portion, lambda parts, tables: RemoteBatch(link, parts, tables))

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

    def extend(self, deliveries: Iterable[Any], timeout: float = 10.0) -> list[Any]:
        """Begin the leases of deliveries anew; returns those that are not held any more. Raises WorkerUnavailable."""
        given = [each for each in deliveries if isinstance(each, ReceivedDelivery)]
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
        return events_of(self.get, self.wanted.idle_timeout)

    def __enter__(self) -> RemoteSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._link.is_closed else f"waiting={len(self.inbox)}"
        return f"<RemoteSubscription {self.subscriber} topic={self.topic} {state}>"

    # --- for the asynchronous form -------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._link.is_closed

    @property
    def link(self) -> ConsumerLink:
        """The line to the server."""
        return self._link

    def note_told(self, notice: GapNotice) -> bool:
        """Note that a notice was handed over; returns whether `get` returns it."""
        logger.warning("quiver.subscription.gap subscriber=%s %s", self.subscriber, notice)
        self._gap_count += 1
        self.inbox.was_told()
        return self.wanted.are_gaps_delivered

    # --- private -------------------------------------------------------------------------------------------------------------

    def _standing(self, timeout: float) -> rc.Standing:
        self._link.send()
        return self._link.ask(rc.AskStanding(round(timeout * SECOND_NS)), rc.Standing, timeout)

    def _portion(self, bundles_max: int, timeout: float | None) -> Portion | GapNotice | None:
        """The next bundle, or the next notice that `get` would return; None when nothing came in time. Raises as `get`."""
        event = self.get(timeout)
        return event.portion if isinstance(event, RemoteDelivery) else event

    def _tell(self, notice: GapNotice) -> bool:
        """Pass a notice to `on_gap`; returns whether `get` returns it."""
        if self.wanted.on_gap is not None:
            try:
                self.wanted.on_gap(notice)
            except BaseException:
                self.inbox.put_back(notice)
                raise
        return self.note_told(notice)


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
