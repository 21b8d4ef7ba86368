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

from quiver_actors.base.model import BundleId, Durability, Receipt

if TYPE_CHECKING:
    from quiver_actors.archive.reading.archive import Archive, open_archive
    from quiver_actors.client import Client, Delivery, Subscription, connect
    from quiver_actors.embedded import Store, open
    from quiver_actors.flight.client import RemoteClient, connect_remote

__version__ = "0.1.0"

__all__ = [
    "Archive",
    "BundleId",
    "Client",
    "Delivery",
    "Durability",
    "Receipt",
    "RemoteClient",
    "Store",
    "Subscription",
    "__version__",
    "connect",
    "connect_remote",
    "open",
    "open_archive",
]

_FROM_ARCHIVE = frozenset(["Archive", "open_archive"])
_FROM_CLIENT = frozenset(["Client", "Delivery", "Subscription", "connect"])
_FROM_FLIGHT = frozenset(["RemoteClient", "connect_remote"])
_FROM_EMBEDDED = frozenset(["Store", "open"])


def __getattr__(name: str) -> Any:
    if name in _FROM_ARCHIVE:
        from quiver_actors.archive.reading import archive

        return getattr(archive, name)
    if name in _FROM_CLIENT:
        from quiver_actors import client

        return getattr(client, name)
    if name in _FROM_FLIGHT:
        from quiver_actors.flight import client as remote

        return getattr(remote, name)
    if name in _FROM_EMBEDDED:
        from quiver_actors import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All names of the package, those of the client included, which are imported when they are first used."""
    return sorted(set(globals()) | set(__all__))
