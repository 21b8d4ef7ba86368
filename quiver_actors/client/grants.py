"""What a worker has given a connection: claims under fencing tokens, and the bundles of each Deliver as they wait to be taken."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from quiver_actors.client.segments import MappedSegment
from quiver_actors.protocol.messages import Deliver

if TYPE_CHECKING:
    from quiver_actors.client.subscriber_channel import SubscriberChannel


class Grant:
    """The claims under one fencing token of one connection."""

    __slots__ = ("asked_at_ns", "lease_until_ns", "token", "unresolved", "waiting")

    def __init__(self, token: int, lease_until_ns: int, now_ns: int) -> None:
        self.token = token
        self.lease_until_ns = lease_until_ns
        """Monotonic; 0 = no lease."""
        self.asked_at_ns = now_ns
        """When its lease was last given or asked to be extended."""
        self.waiting = 0
        """Bundles that nobody has taken yet."""
        self.unresolved = 0
        """Bundles that are held, waiting ones included."""

    def is_over(self, now_ns: int) -> bool:
        """Whether others may have its bundles."""
        return 0 < self.lease_until_ns <= now_ns


class Parcel:
    """The bundles of one Deliver. Those before `position` have been taken."""

    __slots__ = ("channel", "counts", "generation", "grant", "indexes", "laid_out", "position", "segment")

    def __init__(self, channel: SubscriberChannel, grant: Grant, segment: MappedSegment, message: Deliver) -> None:
        self.channel = channel
        self.generation = channel.generation
        """Of the channel: another one now means that the claims are gone."""
        self.grant = grant
        self.segment = segment
        self.indexes = array("I", message.bundle_indexes)
        self.counts = array("H", message.delivery_counts)
        self.position = 0
        self.laid_out = 0
        """The inbox's own note: deliveries of those before it were made."""
        grant.waiting += len(self.indexes)
        grant.unresolved += len(self.indexes)

    @property
    def is_current(self) -> bool:
        """Whether the connection that its claims belong to still stands."""
        return self.generation == self.channel.generation

    @property
    def waiting(self) -> int:
        """Bundles that were not taken."""
        return len(self.indexes) - self.position

    def is_of(self, channel: SubscriberChannel, segment_seq: int) -> bool:
        """Whether it came by that channel's connection of now, with bundles of that segment."""
        return self.channel is channel and self.is_current and self.segment.segment_seq == segment_seq

    def is_held(self, now_ns: int) -> bool:
        """Whether its claims can still be this consumer's; the worker has the last word."""
        return self.generation == self.channel.generation and not 0 < self.grant.lease_until_ns <= now_ns

    def take(self, bundles: int) -> None:
        """The next ones were taken."""
        self.position += bundles
        self.laid_out = max(self.laid_out, self.position)
        self.grant.waiting -= bundles
