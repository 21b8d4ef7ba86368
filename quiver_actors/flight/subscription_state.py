"""What a consumer on another host knows of its own subscription without asking the server; the asynchronous form shares it."""

from __future__ import annotations

import logging
from typing import Any

from quiver_actors.client import GapNotice
from quiver_actors.client.subscribe_request import NotDelivered, SubscribeRequest
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.remote_inbox import RemoteInbox

logger = logging.getLogger("quiver.client")


class SubscriptionState:
    """The request, the line to the server, and what has come over it.

    Attributes:
        gap_count: gap notices that were handed over.
    """

    def __init__(self, wanted: SubscribeRequest, link: ConsumerLink, inbox: RemoteInbox[Any]) -> None:
        self.wanted = wanted
        self.link = link
        self.inbox = inbox
        self.gap_count = 0

    def note_told(self, notice: GapNotice) -> bool:
        """Note that a notice was handed over; returns whether `get` returns it."""
        logger.warning("quiver.subscription.gap subscriber=%s %s", self.wanted.subscriber, notice)
        self.gap_count += 1
        self.inbox.was_told()
        return self.wanted.are_gaps_delivered


class KnownSubscription:
    """The properties of a subscription that need no answer of the server."""

    def __init__(self, state: SubscriptionState) -> None:
        self.state = state

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.state.wanted.topic

    @property
    def subscriber(self) -> str:
        """Name of the durable subscriber."""
        return self.state.wanted.subscriber

    @property
    def not_delivered(self) -> tuple[NotDelivered, ...]:
        """What lies behind the start of a new subscriber and does not come: archived bundles of cores that the node does not have any more,
        by rising core. They are not lost: `RemoteClient.read` has them. Empty where the subscriber was known before."""
        return self.state.link.not_delivered

    @property
    def order(self) -> str:
        """The order in which this consumer gets bundles: `oldest`, `newest` or `newest_backfill`."""
        return self.state.wanted.terms.order

    @property
    def claims_lost(self) -> int:
        """Bundles that were resolved too late, or not given out, because the server or their lease was lost: they are delivered again."""
        return self.state.link.late_count + self.state.inbox.lost_count

    @property
    def refused_count(self) -> int:
        """Resolutions that workers refused, as the claim was gone, as far as it was heard of."""
        return self.state.link.refused_count

    @property
    def gap_count(self) -> int:
        """Gap notices that were handed over."""
        return self.state.gap_count

    def __repr__(self) -> str:
        state = "closed" if self.state.link.is_closed else f"waiting={len(self.state.inbox)}"
        return f"<RemoteSubscription {self.subscriber} topic={self.topic} {state}>"


def portion_of(event: Any) -> Any:
    """Return the bundle of a delivery; a gap notice or None as it is."""
    return event if event is None or isinstance(event, GapNotice) else event.portion
