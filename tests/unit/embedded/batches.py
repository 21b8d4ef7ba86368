"""Bundles of the embedded store's tests, told apart by their number."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

import pyarrow as pa

from quiver_actors.client import Client

PATIENCE_SECONDS = 60.0


def numbered(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number], pa.int64()), "text": [f"bundle {number}"]})


def number_of(bundle: object) -> int:
    return int(bundle.batch.column("number")[0].as_py())  # type: ignore[attr-defined]


def stored(client: Client, topic: str = "default", core: int = 0) -> list[int]:
    """The numbers of all stored bundles of one core, in order."""
    return [number_of(bundle) for bundle in client.read(topic, core)]


def delivered(client: Client, subscriber: str, count: int, topic: str = "default") -> list[int]:
    """Take and acknowledge so many bundles; fails when they do not come."""
    found: list[int] = []
    with client.subscribe(subscriber, topic=topic, start="earliest") as subscription:
        while len(found) < count:
            delivery = subscription.get(timeout=PATIENCE_SECONDS)
            assert delivery is not None, f"{found} and no more"
            with delivery:
                found.append(number_of(delivery))
        subscription.flush(PATIENCE_SECONDS)
    return found


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition that another thread or process brings about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        Event().wait(0.005)
