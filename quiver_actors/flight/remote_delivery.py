"""A bundle that a remote consumer has claimed, and the receipt of its resolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from quiver_actors.client import Delivery
from quiver_actors.client.batches import BaseBatch
from quiver_actors.client.delivery import Ticket
from quiver_actors.client.grants import Bundles
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.received_delivery import ReceivedDelivery
from quiver_actors.flight.received_parcel import ReceivedParcel


class RemoteTicket(Ticket):
    """The receipt of a resolution: ask it whether the worker has it for good."""

    __slots__ = ("_link", "_parcel")

    def __init__(self, resolutions: Any, delivery: Any) -> None:
        super().__init__(resolutions, delivery)
        self._link: ConsumerLink = resolutions
        self._parcel: ReceivedParcel = delivery.parcel

    def wait(self, timeout: float = 10.0) -> None:
        """Return when the resolution is durable. Raises as `Ticket.wait`."""
        self._link.settle([self._parcel], timeout)


class RemoteDelivery(ReceivedDelivery[Ticket], Delivery):
    """A bundle that is claimed for this consumer; see `Delivery`."""

    __slots__ = ()

    _ticket_type = RemoteTicket

    def extend(self, timeout: float = 10.0) -> None:
        """Begin the lease anew, of this bundle and of those that were claimed with it. Raises as `Delivery.extend`."""
        self.extend_lease(timeout)


class RemoteBatchTicket:
    """The receipt of a batch's acknowledgement."""

    def __init__(self, resolutions: Any, bundles: Sequence[Bundles], number: int) -> None:
        self._link: ConsumerLink = resolutions
        self._parcels = [cast(ReceivedParcel, parcel) for parcel, _ in bundles]

    def wait(self, timeout: float = 10.0) -> None:
        """Return when the acknowledgement of every bundle is durable. Raises as `Ticket.wait`, for the first that is refused."""
        self._link.settle(self._parcels, timeout)


class RemoteBatch(BaseBatch[RemoteDelivery, RemoteBatchTicket]):
    """Bundles that are claimed for a remote consumer; see `DeliveryBatch`. Made by `RemoteSubscription.batches`."""

    _delivery_type = RemoteDelivery
    _ticket_type = RemoteBatchTicket
