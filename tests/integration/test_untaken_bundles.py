"""What nobody has looked at does not count as delivered, whatever becomes of the consumer in whose prefetch it waits.

Else a bundle that blocks or kills its consumers would take those behind it along: to the dead letters, or with `exhausted="drop"` away.
"""

from __future__ import annotations

import itertools
import select
import signal
import subprocess
import time

import pytest

from quiver_actors.base.protocol.messages import SubscriberInfo
from quiver_actors.client import Client, Subscription
from quiver_actors.client.subscribe_request import SubscribeOptions
from tests.integration.client_node import ClientNode, client_fixture, first_id, node_fixture, numbers, take
from tests.integration.dying_consumer import DELIVERIES_MAX, OPTIONS, PREFETCH
from tests.integration.node_process import ROOT, command_line

DEADLINE_SECONDS = 60.0
_names = itertools.count()


node = node_fixture()
client = client_fixture(scope="function")


@pytest.fixture
def subscriber(client: Client) -> str:
    """A subscriber that is owed as many bundles as its consumers prefetch."""
    name = f"s{next(_names)}"
    client.subscribe(name, topic="other", start="latest").close()
    client.push_many([numbers(number, 1) for number in range(PREFETCH)], topic="other")
    return name


def info_of(client: Client, name: str) -> SubscriberInfo:
    (infos,) = client.subscribers("other").values()
    return next(info for info in infos if info.subscriber == name)


def wait_for(client: Client, name: str, *, claimed: int) -> SubscriberInfo:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (info := info_of(client, name)).claimed != claimed:
        assert time.monotonic() < deadline, info
        select.select([], [], [], 0.01)
    return info


def read_all(subscription: Subscription, count: int) -> list[tuple[int, int]]:
    """The next bundles, as (number, how often it was delivered)."""
    found = []
    for delivery in take(subscription, count):
        with delivery:
            found.append((first_id(delivery), delivery.delivery_count))
    subscription.flush()
    return found


@pytest.mark.parametrize("way", ["get", "get_many", "batches", "aio", "aio_batches"])
def test_a_bundle_that_kills_its_consumers_takes_no_other_along(
    node: ClientNode, client: Client, subscriber: str, way: str
) -> None:
    command = command_line("tests.integration.dying_consumer", str(node.directories.run), subscriber, "other", way)
    for _ in range(DELIVERIES_MAX):
        process = subprocess.run(command, cwd=ROOT, timeout=DEADLINE_SECONDS, check=False)
        assert process.returncode == -signal.SIGKILL
        wait_for(client, subscriber, claimed=0)
    with client.subscribe(subscriber, topic="other", **OPTIONS) as healthy:
        assert read_all(healthy, PREFETCH - 1) == [(number, 1) for number in range(1, PREFETCH)]
    info = info_of(client, subscriber)
    assert (info.rejected, info.acked, info.pending) == (1, PREFETCH - 1, 0)


def test_a_bundle_that_blocks_its_consumer_takes_no_other_along(client: Client, subscriber: str) -> None:
    once: SubscribeOptions = {**OPTIONS, "lease": 0.5, "max_deliveries": 1}
    blocked = client.subscribe(subscriber, topic="other", **once)
    assert [first_id(delivery) for delivery in take(blocked, 1)] == [0]
    wait_for(client, subscriber, claimed=PREFETCH)
    with client.subscribe(subscriber, topic="other", **once) as other:
        assert read_all(other, PREFETCH - 1) == [(number, 1) for number in range(1, PREFETCH)]
    assert info_of(client, subscriber).rejected == 1, "only what was looked at"
    blocked.abort()


def test_what_was_looked_at_before_another_consumer_set_a_limit_counts(client: Client, subscriber: str) -> None:
    first = client.subscribe(subscriber, topic="other", prefetch=PREFETCH)
    assert [first_id(delivery) for delivery in take(first, 3)] == [0, 1, 2]
    wait_for(client, subscriber, claimed=PREFETCH)
    once: SubscribeOptions = {**OPTIONS, "max_deliveries": 1}
    with client.subscribe(subscriber, topic="other", **once) as second:
        # The first one is told of the limit, and tells what it has handed over.
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not first._consumer.channels.channel(0).claims.terms.max_deliveries:
            assert time.monotonic() < deadline
            with first._exchange.lock:
                first._exchange.look()
        first.abort()
        assert read_all(second, PREFETCH - 3) == [(number, 1) for number in range(3, PREFETCH)]
    assert info_of(client, subscriber).rejected == 3


def test_after_a_seek_the_same_holds(client: Client, subscriber: str) -> None:
    once: SubscribeOptions = {**OPTIONS, "max_deliveries": 1}
    reader = client.subscribe(subscriber, topic="other", **once)
    (delivery,) = take(reader, 1)
    client.seek(subscriber, delivery.bundle_id, topic="other")
    assert [first_id(delivery) for delivery in take(reader, 1)] == [0]
    wait_for(client, subscriber, claimed=PREFETCH)
    reader.abort()
    with client.subscribe(subscriber, topic="other", **once) as other:
        assert read_all(other, PREFETCH - 1) == [(number, 1) for number in range(1, PREFETCH)]
