"""What one connection tells its worker of the bundles that the consumer's caller was handed, where only such bundles count as delivered.

Used under the lock of the consumer's exchange. A bundle is told before it is handed over: its caller may not live to say more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from quiver_actors.base.protocol.messages import GroupTerms, Message, Taken
from quiver_actors.base.protocol.subscriber_messages import HEARS_TAKEN
from quiver_actors.client.grants import Grant
from quiver_actors.client.held_claims import HeldClaims
from quiver_actors.client.inbox import Inbox


class HandedOver:
    """Makes the messages by which a worker learns what the caller was handed."""

    def __init__(self, topic: str, subscriber: str, claims: HeldClaims) -> None:
        self._topic = topic
        self._subscriber = subscriber
        self._claims = claims
        self.is_heard = False
        """Whether the worker of the present connection understands these messages."""

    @property
    def is_told(self) -> bool:
        """Whether the worker is told: it understands that, and the terms in force end bundles by a count of deliveries."""
        return self.is_heard and self._claims.terms.max_deliveries > 0

    def welcomed(self, features: int) -> bool:
        """Note the features of the worker that has welcomed this client. Returns `is_heard`."""
        self.is_heard = bool(features & HEARS_TAKEN)
        return self.is_heard

    def message(self, grant: Grant, bundle_indexes: Sequence[int]) -> Message:
        """Return the message that the caller is about to be handed bundles of a grant."""
        packed = array("I", bundle_indexes).tobytes()
        return Taken(self._topic, self._subscriber, grant.segment_seq, grant.token, packed)

    def take_over(self, message: GroupTerms, inbox: Inbox[object]) -> list[Message]:
        """Take over the terms of another consumer.

        Returns:
            What the worker is to be told of bundles that were handed over before, if they count from now on.
        """
        told_before = self.is_told
        inbox.count_taken()
        self._claims.take_over(message.terms, message.lease_until_ns)
        if told_before or not self.is_told:
            return []
        return [self.message(grant, indexes) for grant, indexes in self._claims.taken()]
