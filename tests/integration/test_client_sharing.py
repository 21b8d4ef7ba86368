"""Consumers that share a subscriber while they are killed and stopped; crashes of the worker; consumers that stall."""

from __future__ import annotations

import os
import random
import select
import time
from collections import Counter

import pytest

from quiver_actors.base.protocol.messages import SubscriberInfo
from quiver_actors.client import Client, Delivery
from quiver_actors.errors import NotClaimed
from tests.integration.client_node import ClientNode, client_fixture, client_node, node_fixture, numbers, take
from tests.integration.consumer_process import DEADLINE_SECONDS, ConsumerProcess

LEASE_SECONDS = 1.0


node = node_fixture()
client = client_fixture()


class Consumers:
    """Eight consumers of one subscriber, and those that were killed."""

    def __init__(self, run_dir: str, subscriber: str) -> None:
        self._start = lambda: ConsumerProcess(run_dir, subscriber, LEASE_SECONDS)
        self.running = [self._start() for _ in range(8)]
        self.killed: list[ConsumerProcess] = []
        self.stop_count = 0

    def read(self) -> None:
        ready, _, _ = select.select([consumer.fd for consumer in self.running], [], [], 0.05)
        for consumer in self.running:
            if consumer.fd in ready:
                consumer.read()

    def disturb(self, chance: random.Random) -> None:
        """Kill one, and stop another one or let it go on."""
        self.killed.append(self.running.pop(chance.randrange(8)))
        self.killed[-1].kill()
        self.running.append(self._start())
        other = chance.choice(self.running)
        if other.is_stopped:
            other.resume()
        else:
            other.stop()
            self.stop_count += 1

    def end(self) -> list[tuple[int, int]]:
        """End all of them; what they had acknowledged."""
        for consumer in self.running:
            consumer.end()
        return [pair for consumer in self.running + self.killed for pair in consumer.acked]


@pytest.mark.crash
def test_eight_consumers_that_are_killed_and_stopped_lose_nothing(node: ClientNode, client: Client) -> None:
    rounds, bundles_of_round = 8, 1500
    chance = random.Random(7)
    client.subscribe("eight").close()
    consumers = Consumers(str(node.directories.run), "eight")
    try:
        for number in range(rounds):
            first = number * bundles_of_round
            client.push_many([numbers(n) for n in range(first, first + bundles_of_round)])
            consumers.disturb(chance)
            consumers.read()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (info := info_of(client, "eight")).acked != rounds * bundles_of_round:
            assert time.monotonic() < deadline, f"not all was delivered: {info}"
            consumers.read()
    finally:
        acked = consumers.end()
    info = info_of(client, "eight")
    found = Counter(number for number, _ in acked)
    assert set(found.values()) == {1}, "a bundle was durably acknowledged twice"
    # What was durable just before its consumer was killed may not have been written down; nothing else is missing.
    assert rounds * bundles_of_round - len(found) <= 16 * len(consumers.killed)
    assert (info.acked, info.rejected, info.pending, info.claimed) == (rounds * bundles_of_round, 0, 0, 0)
    assert consumers.stop_count > 0
    assert info.redelivered >= sum(count > 1 for _, count in acked) > 0


def info_of(client: Client, subscriber: str) -> SubscriberInfo:
    (infos,) = client.subscribers().values()
    return next(info for info in infos if info.subscriber == subscriber)


@pytest.mark.crash
def test_after_a_crash_exactly_what_was_not_acknowledged_comes_again() -> None:
    bundles = int(os.environ.get("QUIVER_TEST_BUNDLES", "100000"))
    chance = random.Random(3)
    with client_node(cores=1) as node, node.connect() as client:
        client.subscribe("holes").close()
        client.push_many([numbers(n, 1) for n in range(1000)] * (bundles // 1000))
        client.flush()
        kept: set[tuple[int, int]] = set()
        with client.subscribe("holes", prefetch=4096, lease=None) as subscription:
            deliveries: list[Delivery] = []
            while len(deliveries) < bundles:
                more = subscription.get_many(4096, DEADLINE_SECONDS)
                assert more, f"only {len(deliveries)} came"
                deliveries += more
            chance.shuffle(deliveries)
            for delivery in deliveries:
                if chance.random() < 0.1:
                    kept.add(delivery.bundle_id[2:])
                else:
                    delivery.ack()
            subscription.flush(DEADLINE_SECONDS)
            node.kill_worker(0)
            subscription.abort()
        with client.subscribe("holes", prefetch=4096, start="latest") as again:
            found: list[tuple[int, int]] = []
            while len(found) < len(kept):
                more = again.get_many(4096, DEADLINE_SECONDS)
                assert more, f"only {len(found)} of {len(kept)} came again"
                found += [delivery.bundle_id[2:] for delivery in more]
            assert again.get(0.3) is None
    assert len(found) == len(kept)
    assert set(found) == kept


def test_one_stalled_of_ten_subscribers_leaves_the_others_going(client: Client) -> None:
    bundles = 2_000
    names = [f"many-{number}" for number in range(10)]
    for name in names:
        client.subscribe(name).close()
    with client.subscribe(names[0], prefetch=4) as stalled:
        assert client.push_many([numbers(n) for n in range(bundles)])
        held = take(stalled, 1)
        for name in names[1:]:
            with client.subscribe(name, prefetch=256) as subscription:
                for delivery in take(subscription, bundles):
                    delivery.ack()
        assert held[0].is_resolved is False
        assert stalled.pending_count() == bundles
    # A bundle that another subscriber holds on to stays readable.
    assert held[0].row_count == 3


def test_bundles_of_a_stopped_consumer_go_to_another_and_its_late_ack_is_refused(
    node: ClientNode, client: Client
) -> None:
    """The first consumer does not call `get` any more, which is what a stopped process looks like to the worker."""
    with client.subscribe("fenced", lease=3.0) as first:
        client.push(numbers(5))
        (late,) = take(first, 1)
        with client.subscribe("fenced", lease=3.0) as second:
            (delivery,) = take(second, 1)
            assert delivery.bundle_id == late.bundle_id
            # Those that hang are offered it again too.
            assert delivery.delivery_count >= 2
            assert delivery.token > late.token
            with pytest.raises(NotClaimed) as raised:
                late.ack().wait()
            assert raised.value.code == "fenced"
            assert first.refused_count == 1
            delivery.ack().wait()
            assert second.all_drained()


def test_extended_lease_keeps_the_bundle(client: Client) -> None:
    with client.subscribe("extender", lease=2.0) as first, client.subscribe("extender", lease=2.0) as second:
        client.push(numbers(5))
        holder, other = first, second
        held = holder.get(0.2)
        while held is None:
            holder, other = other, holder
            held = holder.get(0.2)
        for _ in range(4):
            held.extend()
            assert other.get(0.6) is None
        assert holder.extend([held]) == []
        held.ack().wait()
        assert holder.extend([held]) == [held]
