"""Quiver: a durable Arrow buffer for every Spark worker node.

    import quiver_actors

    with quiver_actors.connect() as client:
        receipt = client.push({"flights": flights, "weather": weather}, topic="travel")
        with client.subscribe("exporter", topic="travel") as deliveries:
            for delivery in deliveries:
                with delivery:
                    write(delivery["flights"])

Importing this package loads neither pyarrow nor numpy: the supervisor and the status command depend on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiver_actors.model import BundleId, Durability, Receipt

if TYPE_CHECKING:
    from quiver_actors.client import Client, Delivery, Subscription, connect

__version__ = "0.1.0"

__all__ = ["BundleId", "Client", "Delivery", "Durability", "Receipt", "Subscription", "__version__", "connect"]

_FROM_CLIENT = frozenset(["Client", "Delivery", "Subscription", "connect"])


def __getattr__(name: str) -> Any:
    if name in _FROM_CLIENT:
        from quiver_actors import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
