"""The client for asyncio: `connect`, then `Client.push` and `Client.subscribe`, with nothing that blocks the event loop and no threads.

    async with connect() as client:
        await client.push(batch)
        async with await client.subscribe("exporter") as deliveries:
            async for delivery in deliveries:
                with delivery:
                    await write(delivery.batch)

Guarantees and errors are those of `quiver_actors.client`, whose connections and flows it drives. Everything belongs to the event loop in
which it was made; it does not survive a fork.
"""

from quiver_actors.aio.client import Client, connect
from quiver_actors.aio.delivery import Delivery, Ticket
from quiver_actors.aio.subscription import GapSubscription, Subscription
from quiver_actors.client.gaps import GapNotice

__all__ = ["Client", "Delivery", "GapNotice", "GapSubscription", "Subscription", "Ticket", "connect"]
