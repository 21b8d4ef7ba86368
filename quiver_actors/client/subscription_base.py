"""The common part of subscriptions for threads (`subscription`) and asyncio (`aio`)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from quiver_actors.client.consumer import Consumer
from quiver_actors.client.delivery import ClaimedBundle
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.subscribe_request import NotDelivered, SubscribeRequest

D = TypeVar("D", bound=ClaimedBundle[Any])
X = TypeVar("X", bound=Exchange)
E = TypeVar("E")


class SubscriptionBase(Generic[D, X, E]):
    """`D` is a delivery, `E` what comes out: deliveries, or deliveries and gap notices."""

    def __init__(
        self, exchange: X, consumer: Consumer[D, X], wanted: SubscribeRequest, not_delivered: tuple[NotDelivered, ...]
    ) -> None:
        self._exchange = exchange
        self._consumer = consumer
        self._wanted = wanted
        self._not_delivered = not_delivered
        self._kept: object = None

    def keep(self, kept: object) -> None:
        """Keep an object in memory as long as the subscription is."""
        self._kept = kept

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._wanted.topic

    @property
    def subscriber(self) -> str:
        """Name of the durable subscriber."""
        return self._wanted.subscriber

    @property
    def order(self) -> str:
        """The order in which this consumer gets bundles: `oldest`, `newest` or `newest_backfill`."""
        return self._wanted.terms.order

    @property
    def not_delivered(self) -> tuple[NotDelivered, ...]:
        """What lies behind the start of a new subscriber and does not come: archived bundles of cores that the node does not have any more,
        by rising core. They are not lost: `client.read` has them. Empty where the subscriber was known before."""
        return self._not_delivered

    @property
    def claims_lost(self) -> int:
        """Bundles that were resolved too late, because the worker was lost meanwhile, or not given out, because their lease was over: they
        are delivered again."""
        return self._consumer.claims_lost

    @property
    def refused_count(self) -> int:
        """Resolutions that workers refused, as the claim was gone; `Ticket.wait` says which ones and why."""
        return sum(channel.refusals.count for channel in self._consumer.channels.opened())

    @property
    def gap_count(self) -> int:
        """Gap notices that were handed over."""
        return self._consumer.gap_count

    def __repr__(self) -> str:
        state = "closed" if self._exchange.is_closed else f"waiting={self._consumer.inbox.waiting}"
        return f"<{type(self).__name__} {self.subscriber} topic={self.topic} {state}>"

    def _event(self, delivery: D) -> E:
        raise NotImplementedError

    def _gap_event(self, notice: GapNotice) -> E | None:
        """Return what `get` returns for a gap notice that was delivered; None: nothing."""
        return None
