"""Pushing bundles to a node and reading them back: `connect`, then `Client.push` and `Client.subscribe`."""

from quiver_actors.client.archived import NotArchived
from quiver_actors.client.archiving import StoredNotArchived
from quiver_actors.client.batches import BatchTicket, DeliveryBatch
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.client import Client, connect
from quiver_actors.client.delivery import Delivery, Ticket
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.refused import RefusedResolution
from quiver_actors.client.subscription import GapSubscription, Subscription

__all__ = [
    "BatchTicket",
    "Client",
    "Delivery",
    "DeliveryBatch",
    "GapNotice",
    "GapSubscription",
    "NotArchived",
    "Receipts",
    "RefusedResolution",
    "StoredBundle",
    "StoredNotArchived",
    "Subscription",
    "Ticket",
    "connect",
]
