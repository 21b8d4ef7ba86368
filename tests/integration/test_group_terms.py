"""Consumers that join one subscriber with different terms: both sides see the same claims, whoever sets the lease, moves or resolves."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Any

import pytest

from quiver_actors import aio
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, Subscription
from quiver_actors.errors import AlreadyResolved, Fenced, LeaseExpired
from tests.integration.client_node import ClientNode, client_fixture, first_id, node_fixture, numbers, take
from tests.unit.client.clock import MODULES, ClientClock

DEADLINE_SECONDS = 60.0


node = node_fixture()
client = client_fixture(scope="function")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def claimed(client: Client, name: str) -> int:
    """Bundles that the workers count as claimed."""
    return sum(
        info.claimed for infos in client.subscribers("other").values() for info in infos if info.subscriber == name
    )


def known(*subscriptions: Subscription) -> int:
    """Number of claims that the consumers know of."""
    return sum(channel.claims.bundle_count for each in subscriptions for channel in each._consumer.channels.opened())


def joined(client: Client, name: str, **options: Any) -> Subscription:
    return client.subscribe(name, topic="other", **{"start": "latest", "prefetch": 20, **options})


def with_prefetch(client: Client, name: str, **options: Any) -> Subscription:
    """A consumer of a new subscriber that holds twenty bundles, of which it has looked at one."""
    consumer = joined(client, name, **options)
    client.push_many([numbers(number) for number in range(20)], topic="other")
    assert first_id(take(consumer, 1)[0]) == 0
    until(lambda: claimed(client, name) == 20)
    return consumer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ClientClock:
    """The clock of this process's consumers; the workers have their own."""
    made = ClientClock()
    for module in MODULES:
        monkeypatch.setattr(f"{module}.time", made)
    return made


def test_a_busy_consumer_keeps_what_another_ones_lease_lets_it_keep(client: Client, clock: ClientClock) -> None:
    """Regression: the consumer dropped nineteen bundles when its own lease was over, and they stayed claimed until it closed."""
    with with_prefetch(client, "busy", lease=30) as busy, joined(client, "busy", lease=None) as other:
        clock.ahead_ns += 40 * SECOND_NS
        assert [first_id(each) for each in take(busy, 19)] == list(range(1, 20))
        assert known(busy, other) == claimed(client, "busy") == 20
        assert busy.claims_lost == 0
        assert other.get(timeout=0) is None


def test_a_shorter_lease_of_another_one_holds_for_all(client: Client) -> None:
    """A consumer that said nothing loses its bundles by it. What another one has resolved for good then is not handed over."""
    with with_prefetch(client, "silent", lease=None) as silent, joined(client, "silent", lease=0.2) as other:
        for delivery in take(other, 20):
            delivery.ack()
        assert other.flush() == []
        assert silent.get(timeout=0) is None
        assert known(silent, other) == claimed(client, "silent") == 0
        assert silent.claims_lost == 19


def test_what_is_acknowledged_through_leaves_the_prefetch_of_others(client: Client) -> None:
    with with_prefetch(client, "through", lease=None) as consumer:
        first, second = take(consumer, 2)
        eighth = second.bundle_id._replace(bundle_index=second.bundle_id.bundle_index + 5)
        client.ack_through(eighth, subscriber="through")
        assert first_id(take(consumer, 1)[0]) == 8
        until(lambda: known(consumer) == claimed(client, "through"))
        first.reject()
        (refused,) = consumer.flush()
        assert (refused.bundle_id, refused.token) == (first.bundle_id, first.token)
        assert isinstance(refused.error, AlreadyResolved | Fenced)
        assert consumer.flush() == []


def test_a_subscriber_that_was_moved_holds_nothing(client: Client) -> None:
    with with_prefetch(client, "moved", lease=None) as consumer:
        client.seek("moved", "latest", topic="other")
        assert consumer.get(timeout=0) is None
        assert known(consumer) == claimed(client, "moved") == 0


def test_flush_names_acknowledgements_that_came_too_late(client: Client) -> None:
    with with_prefetch(client, "late", lease=0.1, max_in_flight=20) as consumer:
        (held,) = take(consumer, 1)
        until(lambda: claimed(client, "late") == 0)
        held.ack()
        (refused,) = consumer.flush()
        assert refused.bundle_id == held.bundle_id
        assert isinstance(refused.error, LeaseExpired | Fenced)


def test_the_same_in_asyncio(node: ClientNode) -> None:
    async def main() -> None:
        async with aio.connect(node.directories.run, timeout=60) as client:
            first = await client.subscribe("pair", topic="other", start="latest", lease=None, prefetch=8)
            await client.push_many([numbers(number) for number in range(8)], topic="other")
            held = await first.get(timeout=60)
            assert held is not None
            await client.seek("pair", "latest", topic="other")
            held.ack()
            refused = await first.flush()
            assert [each.bundle_id for each in refused] == [held.bundle_id]
            assert await first.flush() == []
            await first.close()

    asyncio.run(main())
