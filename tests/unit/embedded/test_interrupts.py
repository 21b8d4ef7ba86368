"""An interrupt at each place of a call: what was acknowledged counts, or somebody is told that it does not; the store goes on, and its
directory is given back."""

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
from tests.unit.embedded.batches import PATIENCE_SECONDS, numbered, stored
from tests.unit.embedded.interrupts import Interruption

BUNDLES, ACKNOWLEDGED = 5, 3
RECOVERY_SECONDS_MAX = 9.0
"""A recovery takes milliseconds; one that waits for threads which do not end takes ten seconds."""
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
        for at in itertools.count(1, 2):
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
        for at in itertools.count(1, 3):
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


def test_a_lone_push_that_is_interrupted_loses_nothing_and_holds_up_nobody(tmp_path: Path) -> None:
    """Regression: a commit that the interrupted thread had taken and not begun was waited for, for ten seconds."""
    acknowledged = [0, 1]
    with quiver_actors.open(tmp_path / "data") as store:
        for number in acknowledged:
            store.push(numbered(number))
        # From where it has begun to write.
        for at in itertools.count(41, 8):
            interruption = Interruption(at)
            interruption.run(lambda: store.push(numbered(-at)))  # noqa: B023 - called at once
            store.push(numbered(1000 + at), timeout=RECOVERY_SECONDS_MAX)
            acknowledged.append(1000 + at)
            if not interruption.came_at:
                break
        assert at > 50, "the call has many places"
    with quiver_actors.open(tmp_path / "data") as store:
        found = stored(store)
    assert [number for number in found if number >= 0] == acknowledged
    assert len(set(found)) == len(found)


def test_an_interrupted_close_gives_the_directory_back_with_all_that_was_stored(tmp_path: Path) -> None:
    """Regression: the store was neither open nor closed then, and its directory in use until the process ended."""
    for at in itertools.count(1, 25):
        path = tmp_path / str(at)
        store = quiver_actors.open(path)
        store.push(numbered(at))
        interruption = Interruption(at)
        interruption.run(store.close)
        with quiver_actors.open(path) as again:
            assert stored(again) == [at], interruption.came_at
        if not interruption.came_at:
            break
    assert at > 20, "the call has many places"


# Where an interrupt comes in a callback of the collector, Python reports it and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupted_open_leaves_the_directory_free(tmp_path: Path) -> None:
    """Regression: a store that was open by then, and of which nobody had heard, kept its directory until the process ended."""
    counted = Interruption(1 << 40)
    counted.run(lambda: quiver_actors.open(tmp_path / "first").close())
    for at in range(1, counted.passed, max(1, counted.passed // 4)):
        Interruption(at).run(lambda: quiver_actors.open(tmp_path / "data"))
        quiver_actors.open(tmp_path / "data").close()
