"""A node that seals nothing by itself, and what its tests ask about topics."""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Delivery
from quiver_actors.client.bundle import StoredBundle
from tests.integration.client_node import first_id, numbers

LIVE = """
[segment]
max_open_duration = "1h"
[topics.other]
[topics.travel]
slots = { flights = 3, weather = 7 }
"""


def push_all(client: Client, ids: range, topic: str = "default") -> Sequence[BundleId]:
    return [receipt.bundle_id for receipt in client.push_many([numbers(n) for n in ids], topic=topic)]


def sealed_counts(client: Client, topic: str = "default") -> list[int]:
    return [info.bundle_count for infos in client.segments(topic).values() for info in infos]


def ids_of(deliveries: Sequence[Delivery]) -> list[int]:
    return [first_id(delivery) for delivery in deliveries]


def ids_read(
    client: Client, start: BundleId | None = None, end: BundleId | None = None, topic: str = "default"
) -> list[int]:
    return [first_of(bundle) for bundle in client.read(topic, 0, start, end)]


def first_of(bundle: StoredBundle) -> int:
    return int(bundle.batch.column("id")[0].as_py())
