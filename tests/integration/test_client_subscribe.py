"""Subscribing to a real node, on its host and from another one: delivery, resolution, sharing, and what survives whom."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
import pytest

from quiver_actors.client import Client, Subscription
from quiver_actors.errors import InvalidId, NotClaimed, UnknownSubscriber, UnknownTopic
from quiver_actors.flight.client import connect_remote
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from tests.integration.client_node import (
    ClientNode,
    client_fixture,
    client_node,
    consume_until,
    first_id,
    numbers,
    take,
)


@pytest.fixture(scope="module", params=["local", "remote"])
def surface(request: pytest.FixtureRequest) -> str:
    """How the tests reach their node. Each has a node of its own."""
    return str(request.param)


@pytest.fixture(scope="module")
def node(surface: str) -> Iterator[ClientNode]:
    with client_node(cores=2) as started:
        yield started


local = client_fixture()


@pytest.fixture(scope="module")
def client(surface: str, local: Client) -> Iterator[Client]:
    if surface == "local":
        yield local
        return
    with (
        NodeServer(LocalNode("node-a", lambda: local), "grpc://127.0.0.1:0") as server,
        connect_remote(f"grpc://127.0.0.1:{server.port}") as connected,
    ):
        yield cast(Client, connected)


def rest(subscription: Subscription, count: int) -> list[int]:
    """The first ids of the last so many bundles, behind which nothing comes; they are given back."""
    found = [first_id(delivery) for delivery in take(subscription, count)]
    assert subscription.get(0.2) is None
    return found


def test_pushed_bundles_are_delivered_equal_and_in_order(client: Client) -> None:
    bundles = [{"flights": numbers(n), "weather": numbers(-n, 2)} for n in range(500)]
    with client.subscribe("exporter", topic="travel") as subscription:
        receipts = client.push_many(bundles, topic="travel", key="k", item_counts=range(500))
        for bundle, receipt, delivery in zip(bundles, receipts, take(subscription, 500), strict=True):
            with delivery:
                assert delivery.bundle_id == receipt.bundle_id
                assert delivery["flights"].equals(bundle["flights"])
                assert delivery[7].equals(bundle["weather"])
                assert delivery.row_count == 5
                assert delivery.item_count == receipt.sequence - receipts[0].sequence
        subscription.flush()
        assert subscription.get(0.2) is None


def test_delivered_batches_are_not_copied(local: Client) -> None:
    with local.subscribe("zero-copy") as subscription:
        local.push(pa.record_batch({"n": pa.array(range(100_000))}))
        (delivery,) = take(subscription, 1)
        allocated = pa.total_allocated_bytes()
        batch = delivery.batch
        assert pa.total_allocated_bytes() == allocated
    assert batch.column(0)[99_999].as_py() == 99_999


def test_new_subscriber_starts_where_it_is_told(client: Client) -> None:
    client.push_many([numbers(n) for n in range(10)], topic="other")
    client.flush("other")
    # The earliest one first: what no subscriber wants is deleted.
    with (
        client.subscribe("early", topic="other", start="earliest") as early,
        client.subscribe("late", topic="other") as late,
    ):
        client.push(numbers(77), topic="other")
        assert [first_id(delivery) for delivery in take(late, 1)] == [77]
        assert sorted(first_id(delivery) for delivery in take(early, 11)) == [*range(10), 77]


def test_known_subscriber_resumes_after_what_it_acknowledged(client: Client) -> None:
    with client.subscribe("resumer") as subscription:
        client.push_many([numbers(n) for n in range(100)])
        for delivery in take(subscription, 100)[:60]:
            delivery.ack()
    with client.subscribe("resumer", start="latest") as subscription:
        assert rest(subscription, 40) == list(range(60, 100))


def test_subscribers_do_not_notice_each_other(client: Client) -> None:
    with client.subscribe("one") as one, client.subscribe("two") as two:
        client.push_many([numbers(n) for n in range(50)])
        for delivery in take(one, 50):
            delivery.ack()
        assert [first_id(delivery) for delivery in take(two, 50)] == list(range(50))


def test_consumers_of_one_subscriber_share_its_bundles(client: Client) -> None:
    with client.subscribe("shared", prefetch=4) as first, client.subscribe("shared", prefetch=4) as second:
        client.push_many([numbers(n) for n in range(100)])
        found: list[int] = []
        counts = [0, 0]
        while len(found) < 100:
            for index, subscription in enumerate((first, second)):
                delivery = subscription.get(0.1)
                if delivery is not None:
                    with delivery:
                        found.append(first_id(delivery))
                        counts[index] += 1
        assert sorted(found) == list(range(100))
        assert min(counts) > 0


def test_reject_is_final_and_defer_is_not(client: Client) -> None:
    with client.subscribe("resolver") as subscription:
        client.push_many([numbers(n) for n in range(4)])
        one, two, three, four = take(subscription, 4)
        one.ack()
        two.reject()
        three.defer()
        four.defer(0.1)
        assert [first_id(delivery) for delivery in take(subscription, 2)] == [2, 3]
        with pytest.raises(NotClaimed):
            three.ack()
    with client.subscribe("resolver") as subscription:
        assert rest(subscription, 2) == [2, 3]


def test_deferred_bundle_does_not_hold_up_newer_ones(client: Client) -> None:
    with client.subscribe("patient", prefetch=1) as subscription:
        client.push_many([numbers(n) for n in range(20)])
        (first,) = take(subscription, 1)
        first.defer(3600)
        assert [first_id(delivery) for delivery in take(subscription, 19)] == list(range(1, 20))


def test_failed_block_gives_its_bundle_back(client: Client) -> None:
    with client.subscribe("failing") as subscription:
        client.push(numbers(5))
        (delivery,) = take(subscription, 1)
        with pytest.raises(LookupError), delivery:
            raise LookupError
        (again,) = take(subscription, 1)
        assert again.bundle_id == delivery.bundle_id
        again.ack()


def test_closing_returns_what_was_not_resolved_at_once(client: Client) -> None:
    with client.subscribe("returner") as subscription:
        client.push_many([numbers(n) for n in range(10)])
        taken = take(subscription, 10)
        with client.subscribe("returner") as other:
            assert other.get(0.2) is None
            for delivery in taken[:4]:
                delivery.ack()
            subscription.close()
            assert sorted(first_id(delivery) for delivery in take(other, 6)) == list(range(4, 10))


def test_what_was_never_looked_at_does_not_count_as_delivered(client: Client) -> None:
    with client.subscribe("counter", max_deliveries=1, exhausted="drop", prefetch=1) as subscription:
        client.push_many([numbers(n) for n in range(40)])
        client.flush()
        for _ in range(5):
            with client.subscribe("counter", max_deliveries=1, exhausted="drop", prefetch=40) as visitor:
                take(visitor, 1)[0].ack()
        assert {delivery.delivery_count for delivery in take(subscription, 35)} == {1}


def test_killed_consumer_loses_its_claims_at_once(local: Client) -> None:
    with local.subscribe("mortal"):
        pass
    local.push_many([numbers(n) for n in range(10)])
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            taken = take(local.subscribe("mortal"), 10)
            taken[0].ack()
            os.write(tell, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.read(ready, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(tell)
    with local.subscribe("mortal") as subscription:
        found = [first_id(delivery) for delivery in take(subscription, 9)]
        assert set(range(1, 10)) <= set(found) <= set(range(10))


def test_unsubscribed_is_forgotten(client: Client, local: Client) -> None:
    with client.subscribe("gone"):
        client.push(numbers(1))
    local.unsubscribe("gone")
    with pytest.raises(UnknownSubscriber):
        local.unsubscribe("gone")
    with client.subscribe("gone") as subscription:
        assert subscription.get(0.2) is None


def test_whoever_consumes_for_a_subscriber_that_is_dropped_is_told(client: Client, local: Client) -> None:
    """Regression: such a consumer waited for ever."""
    with client.subscribe("dropped") as subscription:
        local.unsubscribe("dropped")
        with pytest.raises(UnknownSubscriber, match="'dropped' was dropped while it was consumed"):
            subscription.get(60)


@pytest.mark.parametrize("subscriber", ["", "a b", "a/b", "con", "x" * 65])
def test_impossible_ids_are_refused(client: Client, subscriber: str) -> None:
    with pytest.raises(InvalidId):
        client.subscribe(subscriber)


def test_unknown_topic_is_refused(client: Client) -> None:
    with pytest.raises(UnknownTopic, match="default"):
        client.subscribe("exporter", topic="nosuch")


def test_many_small_bundles_flow_through(client: Client) -> None:
    with client.subscribe("flow", prefetch=256) as subscription:
        client.push_many(numbers(n) for n in range(20_000))
        found = consume_until(subscription, {0, 19_999})
        found += consume_until(subscription, set(range(20_000)) - set(found))
        assert sorted(found) == list(range(20_000))
