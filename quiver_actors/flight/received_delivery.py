"""A bundle that a remote consumer has claimed: what its forms for threads and for asyncio have in common."""

from __future__ import annotations

from array import array
from typing import TypeVar, cast

from quiver_actors.client.delivery import ClaimedBundle
from quiver_actors.client.grants import Portion
from quiver_actors.errors import AlreadyResolved, LeaseExpired
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.received_parcel import ReceivedParcel

K = TypeVar("K")


class ReceivedDelivery(ClaimedBundle[K]):
    """See `ClaimedBundle`. Its batches are copies in memory, which stay as long as they are used."""

    __slots__ = ()

    @property
    def parcel(self) -> ReceivedParcel:
        """Claim of the bundle; not for callers."""
        return cast(ReceivedParcel, self._parcel)

    @property
    def link(self) -> ConsumerLink:
        """The line to the server; not for callers."""
        return cast(ConsumerLink, self._resolutions)

    @property
    def portion(self) -> Portion:
        """The bundle as batches are gathered of it; not for callers."""
        return Portion(self._parcel, array("I", [self._bundle_index]), array("H", [self.delivery_count]))

    def extend_lease(self, timeout: float) -> None:
        """Begin the lease anew. Raises as `Delivery.extend`."""
        if self.is_resolved:
            raise AlreadyResolved(f"{self!r} is not held any more")
        if self.link.extend([self.parcel], timeout):
            raise LeaseExpired(f"{self!r}: its lease was over, or its consumer lost; it may be with another consumer")
