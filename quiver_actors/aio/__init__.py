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

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from quiver_actors.aio.client import Client, connect
from quiver_actors.aio.delivery import BatchTicket, Delivery, DeliveryBatch, Ticket
from quiver_actors.aio.subscription import GapSubscription, Subscription
from quiver_actors.client.gaps import GapNotice
from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    from quiver_actors.aio.embedded import Store, open
    from quiver_actors.aio.remote import RemoteClient, connect_remote


__all__ = [
    "BatchTicket",
    "Client",
    "Delivery",
    "DeliveryBatch",
    "GapNotice",
    "GapSubscription",
    "RemoteClient",
    "Store",
    "Subscription",
    "Ticket",
    "connect",
    "connect_remote",
    "open",
    "open_archive",
]


def open_archive(*arguments: Any, **options: Any) -> NoReturn:
    """Refuse: an archive that is read without a node has no asynchronous form.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "aio.open_archive does not exist, because an archive waits for its object store: call quiver_actors.open_archive and what it "
        "returns in a thread (asyncio.to_thread), or read through a node with the client of aio"
    )


def __getattr__(name: str) -> Any:
    """Load what opens a store, or connects to other hosts, when it is first asked for: clients of a node need nothing of it."""
    if name in ("Store", "open"):
        from quiver_actors.aio import embedded

        return getattr(embedded, name)
    if name in ("RemoteClient", "connect_remote"):
        from quiver_actors.aio import remote

        return getattr(remote, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
