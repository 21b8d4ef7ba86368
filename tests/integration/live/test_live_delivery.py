"""Bundles of segments that are not sealed, at a real node that seals nothing by itself: everything that a subscriber can do with them, and
what the deaths of processes leave."""

from __future__ import annotations

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client
from quiver_actors.errors import AlreadyResolved, NotStored
from tests.integration.client_node import ClientNode, client_node, first_id, numbers, take
from tests.integration.consumer_process import ConsumerProcess
from tests.integration.live_node import LIVE, first_of, ids_of, ids_read, push_all, sealed_counts
from tests.unit.node.worker.harness import until

# --- processes ---------------------------------------------------------------------------------------------------------------


def test_another_process_gets_a_push_without_a_seal(node: ClientNode, client: Client, topic: str) -> None:
    consumer = ConsumerProcess(str(node.directories.run), "reader", 30.0, topic)
    try:
        for number in range(20):
            client.push(numbers(number), topic=topic)
            consumer.wait_acked({number})
    finally:
        consumer.end()
    assert consumer.acked == [(number, 1) for number in range(20)]
    assert sealed_counts(client, topic) == []


def test_two_processes_share_unsealed_bundles(node: ClientNode, client: Client, topic: str) -> None:
    first, second = (ConsumerProcess(str(node.directories.run), "shared", 30.0, topic) for _ in range(2))
    try:
        push_all(client, range(500), topic)
        until(lambda: _resolved(client, topic, "shared") == 500, "all bundles to be acknowledged")
    finally:
        first.end()
        second.end()
    assert first.acked
    assert second.acked
    assert sorted(first.acked + second.acked) == [(number, 1) for number in range(500)]
    assert sealed_counts(client, topic) == []


def _resolved(client: Client, topic: str, subscriber: str) -> int:
    return sum(
        info.acked for infos in client.subscribers(topic).values() for info in infos if info.subscriber == subscriber
    )


def test_a_stopped_consumer_holds_up_nobody(node: ClientNode, client: Client, topic: str) -> None:
    """Another subscriber goes on; a consumer of the same one gets what the stopped one held when its lease is over."""
    run_dir = str(node.directories.run)
    stopped = ConsumerProcess(run_dir, "both", 1.0, topic)
    try:
        with client.subscribe("alone", topic=topic) as alone, client.subscribe("both", topic=topic, lease=1.0) as both:
            stopped.stop()
            push_all(client, range(200), topic)
            assert ids_of(take(alone, 200)) == list(range(200))
            found: list[int] = []
            while len(found) < 200:
                (delivery,) = take(both, 1)
                delivery.ack().wait()
                found.append(first_id(delivery))
            assert sorted(found) == list(range(200))
    finally:
        stopped.end()
    assert sealed_counts(client, topic) == []


@pytest.mark.crash
def test_acknowledgements_survive_killed_workers_and_nodes() -> None:
    """What was acknowledged durably never comes again, everything else does, and nothing is sealed but by the restarts."""
    with client_node(config=LIVE) as node:
        acknowledged: set[int] = set()
        pushed = 0
        with node.connect() as client:
            client.subscribe("keeper").close()
        for round_number in range(6):
            with node.connect() as client, client.subscribe("s", start="earliest", prefetch=16) as subscription:
                push_all(client, range(pushed, pushed + 50))
                pushed += 50
                found = take(subscription, 50)
                assert not acknowledged & set(ids_of(found))
                for delivery in found[::2]:
                    delivery.ack()
                assert subscription.flush() == []
                acknowledged |= set(ids_of(found[::2]))
                for delivery in found[1::2]:
                    delivery.defer(3600)
                if round_number % 2:
                    node.kill_worker(0)
                else:
                    node.kill_supervisor()
            if not round_number % 2:
                node.restart()
        with node.connect() as client, client.subscribe("s") as subscription:
            left = ids_of(take(subscription, pushed - len(acknowledged)))
            assert left == sorted(set(range(pushed)) - acknowledged)
            assert subscription.get(0.2) is None
            assert ids_read(client) == list(range(pushed))


# --- what can be done with a bundle ----------------------------------------------------------------------------------------------


def test_reject_defer_claim_and_ack_through(client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic, prefetch=4) as subscription:
        places = push_all(client, range(10), topic)
        zero, one, two = take(subscription, 3)
        zero.reject()
        one.defer(3600)
        two.ack().wait()
        seven = subscription.claim(places[7])
        assert first_id(seven) == 7
        seven.ack().wait()
        assert subscription.oldest_incomplete() == {0: places[1]}
        assert subscription.pending_in_range(places[0], places[8]) == 5
        assert not subscription.all_drained()
        again = subscription.claim(places[1])
        assert (first_id(again), again.delivery_count) == (1, 2)
        again.ack().wait()
        subscription.ack_through(places[8])
        with pytest.raises(AlreadyResolved):
            subscription.claim(places[8])
        (nine,) = take(subscription, 1)
        assert first_id(nine) == 9
        nine.ack().wait()
        assert subscription.get(0.1) is None
        assert (subscription.pending_count(), subscription.all_drained()) == (0, True)
    assert sealed_counts(client, topic) == []
    client.flush(topic)
    until(lambda: sealed_counts(client, topic) == [], "the segment to be deleted, as all of it is resolved")


def test_a_deferred_bundle_comes_again(client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic) as subscription:
        push_all(client, range(2), topic)
        zero, one = take(subscription, 2)
        zero.defer(0.05)
        one.ack()
        (again,) = take(subscription, 1)
        assert (first_id(again), again.delivery_count) == (0, 2)
    assert sealed_counts(client, topic) == []


def test_dead_letters_of_unsealed_bundles_are_delivered_unsealed(node: ClientNode, topic: str) -> None:
    dead = f"{topic}-dead"
    with node.connect() as client:
        client.create_topic(dead)
        with (
            client.subscribe("picky", topic=topic, max_deliveries=1, dead_letter_topic=dead) as subscription,
            client.subscribe("undertaker", topic=dead) as letters,
        ):
            places = push_all(client, range(3), topic)
            found = take(subscription, 3)
            found[1].defer()
            (letter,) = take(letters, 1)
            assert letter[0].equals(numbers(1))
            origin = letter[63].to_pylist()[0]
            assert (origin["dead_letter.segment_seq"], origin["dead_letter.bundle_index"]) == places[1][2:]
            found[0].ack()
            found[2].ack().wait()
            assert subscription.get(0.1) is None
            until(subscription.all_drained, "the original to be resolved")
        assert sealed_counts(client, topic) == sealed_counts(client, dead) == []


def test_newest_first(client: Client, topic: str) -> None:
    client.subscribe("s", topic=topic).close()
    push_all(client, range(10), topic)
    client.flush(topic)
    push_all(client, range(10, 20), topic)
    with client.subscribe("s", topic=topic, order="newest", prefetch=1) as subscription:
        assert ids_of(take(subscription, 20)) == list(range(19, -1, -1))


def test_a_window_in_bytes(client: Client, topic: str) -> None:
    """It counts what is held of open logs exactly, and goes on counting it over the seal."""
    with client.subscribe("s", topic=topic, max_in_flight_bytes=2500) as subscription:
        push_all(client, range(20), topic)
        held = [subscription.get(20)]
        while (delivery := subscription.get(0.3)) is not None:
            held.append(delivery)
        assert 1 < len(held) < 20
        client.flush(topic)
        assert subscription.get(0.2) is None, "the window is full after the seal, too"
        found = [first_id(delivery) for delivery in held if delivery is not None]
        for delivery in held:
            assert delivery is not None
            delivery.ack()
        while len(found) < 20:
            (delivery,) = take(subscription, 1)
            delivery.ack()
            found.append(first_id(delivery))
        assert found == list(range(20))


# --- reading without a claim ----------------------------------------------------------------------------------------------------


def test_ranges_over_sealed_and_open_segments(client: Client, topic: str) -> None:
    client.subscribe("keeper", topic=topic).close()
    places: list[BundleId] = []
    for first in (0, 10, 20):
        places += push_all(client, range(first, first + 10), topic)
        if first < 20:
            client.flush(topic)
    assert sealed_counts(client, topic) == [10, 10]
    assert ids_read(client, topic=topic) == list(range(30))
    assert ids_read(client, places[5], places[25], topic) == list(range(5, 25))
    assert ids_read(client, places[22], places[29], topic) == list(range(22, 29))
    with pytest.raises(NotStored):
        client.read(topic, 0, places[0], places[29]._replace(bundle_index=11))
    reading = client.read(topic, 0, places[15])
    assert [first_of(next(reading)) for _ in range(2)] == [15, 16]
    client.flush(topic)
    assert [first_of(bundle) for bundle in reading] == list(range(17, 30)), (
        "a range that is being read goes over a seal"
    )


@pytest.mark.crash
def test_unsealed_bundles_of_a_core_that_is_gone_keep_their_acknowledgements() -> None:
    with client_node(cores=2, config=LIVE) as node:
        with node.connect() as client, client.subscribe("s", start="earliest") as subscription:
            for number in range(40):
                client.push(numbers(number), key=str(number))
            found = take(subscription, 40)
            assert {delivery.bundle_id.core for delivery in found} == {0, 1}
            acknowledged = set(ids_of(found[::2]))
            for delivery in found[::2]:
                delivery.ack()
            assert subscription.flush() == []
            node.kill_supervisor()
        node.restart(cores=1)
        with node.connect() as client, client.subscribe("s") as subscription:
            assert set(ids_of(take(subscription, 20))) == set(range(40)) - acknowledged
            assert subscription.get(0.2) is None


def test_a_topic_that_is_deleted_takes_its_unsealed_bundles_along(node: ClientNode, client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic) as subscription:
        push_all(client, range(5), topic)
        held = take(subscription, 5)
        batch = held[0].batch
        client.delete_topic(topic)
        assert batch.equals(numbers(0)), "batches point into the file, which lives as long as they do"
    client.create_topic(topic)
    with node.connect() as again, again.subscribe("s", topic=topic, start="earliest") as subscription:
        assert subscription.get(0.2) is None
        push_all(again, range(7, 8), topic)
        assert ids_of(take(subscription, 1)) == [7]
