"""One bundle as a subscriber has it, in asyncio: resolving it does not wait, so it needs no `await`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quiver_actors.client.delivery import ClaimedBundle

if TYPE_CHECKING:
    from quiver_actors.aio.exchange import LoopExchange
    from quiver_actors.client.consumer import Consumer


class Ticket:
    """The receipt of a resolution: ask it whether the worker has it for good."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    async def wait(self, timeout: float = 10.0) -> None:
        """Return when the resolution is durable; raises as `quiver_actors.client.Ticket.wait`."""
        consumer = self._delivery._consumer
        await consumer.exchange.complete(consumer.confirming(self._delivery, timeout))


class Delivery(ClaimedBundle[Ticket]):
    """See `quiver_actors.client.Delivery`. Used as `with delivery:`, also around code that awaits."""

    __slots__ = ()

    _consumer: Consumer[Delivery, LoopExchange]
    _ticket_type = Ticket

    async def extend(self, timeout: float = 10.0) -> None:
        """Begin the lease anew; raises as `quiver_actors.client.Delivery.extend`."""
        await self._consumer.exchange.complete(self._consumer.extending_one(self, timeout))
