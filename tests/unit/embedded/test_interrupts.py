"""An interrupt at each place of a call: acknowledgements that returned count, or somebody is told that they do not."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.client.delivery import Delivery
from quiver_actors.embedded import Store
from quiver_actors.errors import WorkerUnavailable
from tests.unit.embedded.batches import PATIENCE_SECONDS, numbered
from tests.unit.embedded.interrupts import Interruption

BUNDLES, ACKNOWLEDGED = 5, 3
QUICK = {"progress_flush_interval": "1ms"}
Resolve = Callable[[Delivery], object]


def is_resolved_or_told(store: Store, subscriber: str, resolve: Resolve, interruption: Interruption) -> bool:
    """Whether everything that was acknowledged before the interrupt is durable, or the flush behind it says that it is not."""
    with store.subscribe(subscriber, start="earliest", prefetch=BUNDLES) as subscription:
        deliveries = [subscription.get(timeout=PATIENCE_SECONDS) for _ in range(BUNDLES)]
        held = [delivery for delivery in deliveries if delivery is not None]
        for delivery in held[:ACKNOWLEDGED]:
            delivery.ack()
        # As if 20 ms had passed: the next resolution takes with it what waits.
        subscription._consumer.resolutions._sent_at_ns = 0
        interruption.run(lambda: resolve(held[ACKNOWLEDGED]))
        try:
            subscription.flush(PATIENCE_SECONDS)
        except WorkerUnavailable:
            return True
        return subscription.pending_count(PATIENCE_SECONDS) <= BUNDLES - ACKNOWLEDGED


@pytest.mark.parametrize("resolve", [Delivery.ack, Delivery.defer])
def test_acknowledgements_are_not_forgotten_where_a_later_one_is_interrupted(tmp_path: Path, resolve: Resolve) -> None:
    """Regression: an interrupt as they were sent took them along, and `flush` said that all was durable."""
    with quiver_actors.open(tmp_path / "data", settings=QUICK) as store:
        store.push_many(map(numbered, range(BUNDLES)))
        forgotten = []
        for at in itertools.count(1):
            interruption = Interruption(at)
            if not is_resolved_or_told(store, f"s-{at}", resolve, interruption):
                forgotten.append(interruption.came_at)
            if not interruption.came_at:
                break
        assert at > 20, "the call has many places"
        assert forgotten == []


def test_an_acknowledgement_that_was_interrupted_can_be_repeated(tmp_path: Path) -> None:
    """Regression: the delivery took itself for acknowledged, so that nothing was sent the second time."""
    with quiver_actors.open(tmp_path / "data", settings=QUICK) as store:
        store.push(numbered(0))
        for at in itertools.count(1):
            with store.subscribe(f"s-{at}", start="earliest") as subscription:
                delivery = subscription.get(timeout=PATIENCE_SECONDS)
                assert delivery is not None
                interruption = Interruption(at)
                interruption.run(delivery.ack)
                delivery.ack()
                with contextlib.suppress(WorkerUnavailable):
                    subscription.flush(PATIENCE_SECONDS)
                    assert subscription.pending_count(PATIENCE_SECONDS) == 0, interruption.came_at
            if not interruption.came_at:
                break
