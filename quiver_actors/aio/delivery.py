"""One bundle as a subscriber has it, in asyncio: resolving it does not wait, so it needs no `await`."""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.client.archived_bundles import ArchivedBundles
from quiver_actors.client.batches import BaseBatch
from quiver_actors.client.delivery import ClaimedBundle
from quiver_actors.client.grants import Bundles
from quiver_actors.client.leases import extending_one
from quiver_actors.client.resolutions import Resolutions


class Ticket:
    """The receipt of a resolution: ask it whether the worker has it for good."""

    __slots__ = ("_delivery", "_resolutions")

    def __init__(self, resolutions: Resolutions[LoopExchange], delivery: Delivery) -> None:
        self._resolutions = resolutions
        self._delivery = delivery

    async def wait(self, timeout: float = 10.0) -> None:
        """Return when the resolution is durable; raises as `quiver_actors.client.Ticket.wait`."""
        resolutions, delivery = self._resolutions, self._delivery
        await resolutions.exchange.complete(resolutions.confirming(delivery.claim, delivery, timeout))


class Delivery(ClaimedBundle[Ticket]):
    """See `quiver_actors.client.Delivery`. Used as `with delivery:`, also around code that awaits."""

    __slots__ = ()

    _resolutions: Resolutions[LoopExchange]
    _ticket_type = Ticket

    @property
    def is_archived(self) -> bool:
        """Whether the bundle has left the disk and is read from the archive."""
        return isinstance(self._segment, ArchivedBundles)

    async def extend(self, timeout: float = 10.0) -> None:
        """Begin the lease anew; raises as `quiver_actors.client.Delivery.extend`."""
        await self._resolutions.exchange.complete(extending_one(self, timeout))


class BatchTicket:
    """The receipt of a batch's acknowledgement."""

    __slots__ = ("_bundles", "_number", "_resolutions")

    def __init__(self, resolutions: Resolutions[LoopExchange], bundles: Sequence[Bundles], number: int) -> None:
        self._resolutions = resolutions
        self._bundles = bundles
        self._number = number

    async def wait(self, timeout: float = 10.0) -> None:
        """Return when the acknowledgement of every bundle is durable; raises as `quiver_actors.client.BatchTicket.wait`."""
        resolutions = self._resolutions
        await resolutions.exchange.complete(resolutions.confirming_many(self._bundles, self._number, timeout))


class DeliveryBatch(BaseBatch[Delivery, BatchTicket]):
    """See `quiver_actors.client.DeliveryBatch`. Used as `with batch:`, also around code that awaits."""

    _delivery_type = Delivery
    _ticket_type = BatchTicket
