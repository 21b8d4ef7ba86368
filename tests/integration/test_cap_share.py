"""A topic that may have only a part of the node's cap: real processes, real files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.units import KIB, MIB
from quiver_actors.client import Client
from quiver_actors.errors import ConfigError, Throttled
from quiver_actors.store.status.status_view import take_status
from quiver_actors.supervisor.measure import measure
from tests.integration.capped_node import STEP, bundle, config, drain, key_of, push_answered, wait_until
from tests.integration.client_node import ClientNode, client_node
from tests.support.commands import run_here

CAP = 48 * MIB
LIMIT = CAP // 4
CORES = 2


@contextmanager
def node_with_a_share(policy: str) -> Iterator[ClientNode]:
    text = config(cap=CAP) + f'\n[topics.small.retention]\ncap_share = "25%"\nsize_cap_policy = "{policy}"\n'
    with client_node(CORES, text) as node:
        yield node


def disk_of(node: ClientNode, topic: str) -> int:
    return measure([str(node.directories.data / topic)])


def fill(client: Client, topic: str, keys: list[str]) -> int:
    """Push to the keys in turn until a push is refused; how many were taken before."""
    taken = 0
    with pytest.raises(Throttled, match=r"retention\.cap_share"):  # noqa: PT012 - which push is refused is not known before
        for number in range(1000):
            key = keys[number % len(keys)]
            taken += len(push_answered(client, [bundle(number)] * 4, 0.5, topic=topic, key=key))
    return taken


@pytest.mark.parametrize("policy", ["backpressure", "reject"])
def test_a_topic_stops_at_its_share_while_others_go_on_and_goes_on_when_it_is_read(policy: str) -> None:
    with node_with_a_share(policy) as node, node.connect() as client:
        subscription = client.subscribe("s", topic="small", start="earliest")
        keys = [key_of(client, core) for core in range(CORES)]
        taken = fill(client, "small", keys)
        assert LIMIT / 2 < disk_of(node, "small") <= LIMIT + CORES * (STEP + 64 * KIB)
        # The rest of the cap is the others'.
        others = client.push_many((bundle(n) for n in range(2 * LIMIT // (100 * KIB))), timeout=30.0)
        assert len(others) * 100 * KIB > LIMIT
        for _ in range(taken):
            delivery = subscription.get(60.0)
            assert delivery is not None
            delivery.ack()
        subscription.flush()
        wait_until(lambda: fill(client, "small", keys) > 0, "there is room again")


def test_one_core_alone_may_use_all_of_it() -> None:
    with node_with_a_share("reject") as node, node.connect() as client:
        client.subscribe("s", topic="small", start="earliest").close()
        fill(client, "small", [key_of(client, 1)])
        # All but a log that does not fit any more, a step of one that cannot grow any more, and what the other core has ready.
        assert measure([str(node.directories.data / "small" / "core_1")]) > LIMIT - 4 * STEP


def test_drop_oldest_takes_from_its_own_oldest_and_announces_it_and_nobody_else_loses_anything() -> None:
    with node_with_a_share("drop_oldest") as node, node.connect() as client:
        other = client.push_many(bundle(number) for number in range(20))
        # Nobody is there to hold any of it.
        client.subscribe("s", topic="small", start="earliest").close()
        keys = [key_of(client, core) for core in range(CORES)]
        pushed: set[BundleId] = set()
        for number in range(60):
            batch = [bundle(number)] * 5
            receipts = client.push_many(batch, topic="small", key=keys[number % CORES], timeout=20.0)
            pushed.update(receipt.bundle_id for receipt in receipts)
        client.flush(topic="small")
        assert disk_of(node, "small") <= LIMIT + CORES * (STEP + 64 * KIB)
        with client.subscribe("s", topic="small", gaps="deliver") as subscription:
            delivered, announced = drain(subscription, pushed)
        assert {each.core for each in announced} == set(range(CORES)), "the oldest, wherever it was"
        assert not delivered & announced
        assert len(client.push_many(bundle(number) for number in range(20))) == len(other)
        losses = take_status(str(node.directories.run)).losses
        assert {loss.topic for loss in losses if loss.bundles} == {"small"}


def test_the_share_is_shown_changes_live_and_must_hold_the_logs() -> None:
    with node_with_a_share("backpressure") as node, node.connect() as client:
        where = ("--run-dir", str(node.directories.run))
        client.push(bundle(1), topic="small")

        def shown() -> tuple[int, bool]:
            (share,) = take_status(str(node.directories.run)).shares
            return share.limit_bytes, share.used_bytes > 0

        wait_until(lambda: shown() == (LIMIT, True), "status shows it")
        text = run_here("topics", "show", "small", *where).stdout
        assert "of the 12.0 MiB that it may have" in text
        assert "of the 12.0 MiB that it may have" in run_here("status", *where).stdout
        client.create_topic("other", {"retention.cap_share": "30%"})
        client.set_topic("other", {"retention.cap_share": 0.5})
        document = json.loads(run_here("topics", "show", "other", "--json", *where).stdout)["topic"]
        assert document["settings"]["retention.cap_share"] == 0.5
        wait_until(
            lambda: {share.limit_bytes for share in take_status(where[1]).shares} == {LIMIT, CAP // 2}, "the change"
        )
        with pytest.raises(ConfigError, match="less than 4 segments"):
            client.set_topic("other", {"retention.cap_share": "1%"})
        client.set_topic("other", {"retention.cap_share": "100%"})
        wait_until(lambda: len(take_status(where[1]).shares) == 1, "lifted")
