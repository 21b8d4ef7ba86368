"""A durable subscriber's consumer on another host than the node: the surface of `client.Subscription`, through the node's Flight server.

Guarantees, as of a local one
- Every bundle is delivered at least once, to one of the consumers that share the subscriber id, or named in a gap notice.
- What this consumer holds goes back when it is closed, and at the latest half a minute after its process or its host is gone.
- Any number of threads may call `get` and resolve deliveries.

Bundles ahead of `get` are copies in memory here. They count as delivered; with `max_deliveries`, where that has consequences, none is
sent ahead.
"""

from __future__ import annotations

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
from quiver_actors.client.ranges import check_bundle_id
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
from quiver_actors.flight.subscription_state import KnownSubscription, SubscriptionState, portion_of


class RemoteSubscription(KnownSubscription):
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
        wanted = SubscribeRequest.parse(topic, subscriber, gaps, options)
        request = rc.Subscribe(rc.REMOTE_VERSION, topic, subscriber, _travelling(options, wanted))
        self._link = link = ConsumerLink(connection, request, timeout_seconds)
        super().__init__(SubscriptionState(wanted, link, RemoteInbox(link, wanted, kind)))
        # Also at the end of the program, and where nobody closes it.
        self._ending = weakref.finalize(self, self._link.close)

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
            if due := self.state.inbox.due():
                self.state.inbox.extend(due)
            item = self.state.inbox.take()
            if item is None:
                if not self.state.inbox.fill(deadline_ns):
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
            item = self.state.inbox.take(only_bundles=True)
            if item is None:
                break
            found.append(item)
        return found

    def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> Any:
        """Claim one bundle by its id, also one that is deferred or blocked. Raises as `Subscription.claim`."""
        check_bundle_id(bundle_id)
        if bundle_id.topic != self.topic:
            raise UsageError(f"{bundle_id} is not of topic {self.topic!r}")
        ticket = rc.ClaimTicket("", *bundle_id[1:], round(timeout * SECOND_NS))
        (delivery,) = self.state.inbox.items(self._link.read(ticket, timeout))
        assert not isinstance(delivery, GapNotice)
        return delivery

    def run(self) -> int:
        """Call `on_bundle` with each delivery, until the subscription is closed or nothing came for its `idle_timeout`; see
        `Subscription.run`."""
        return called_with_each(self, self.state.wanted.on_bundle, lambda: self._link.is_closed)

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

        gathering = Gathering(max_rows, max_wait, self.state.wanted.idle_timeout, make)
        take_back = self.state.inbox.take_back
        return gathered(
            gathering,
            self._portion,
            lambda parts, tables: RemoteBatch(link, parts, tables),
            lambda left: take_back(left, make),
        )

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
        return events_of(self.get, self.state.wanted.idle_timeout)

    def __enter__(self) -> RemoteSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- private -------------------------------------------------------------------------------------------------------------

    def _standing(self, timeout: float) -> rc.Standing:
        self._link.send()
        return self._link.ask(rc.AskStanding(round(timeout * SECOND_NS)), rc.Standing, timeout)

    def _portion(self, bundles_max: int, timeout: float | None) -> Portion | GapNotice | None:
        """The next bundle, or the next notice that `get` would return; None when nothing came in time. Raises as `get`."""
        found: Portion | GapNotice | None = portion_of(self.get(timeout))
        return found

    def _tell(self, notice: GapNotice) -> bool:
        """Pass a notice to `on_gap`; returns whether `get` returns it."""
        if self.state.wanted.on_gap is not None:
            try:
                self.state.wanted.on_gap(notice)
            except BaseException:
                self.state.inbox.put_back(notice)
                raise
        return self.state.note_told(notice)


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
