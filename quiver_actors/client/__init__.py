"""Pushing bundles to a node and reading them back: `connect`, then `Client.push` and `Client.subscribe`."""

from quiver_actors.client.client import Client, connect
from quiver_actors.client.delivery import Delivery, GapNotice
from quiver_actors.client.subscription import Subscription

__all__ = ["Client", "Delivery", "GapNotice", "Subscription", "connect"]
