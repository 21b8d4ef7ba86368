"""`quiver subscribers seek` on a real node of two workers."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.errors import AlreadyResolved
from tests.integration.client_node import ClientNode, client_fixture, first_id, node_fixture, numbers, take
from tests.support.commands import run_here

BUNDLES = 20


node = node_fixture(cores=2)
client = client_fixture(scope="function")


def seek(node: ClientNode, subscriber: str, position: str, *arguments: str) -> Any:
    done = run_here("subscribers", "seek", subscriber, position, "--run-dir", str(node.directories.run), *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def push_on_both(client: Client, first: int) -> None:
    """Half of the bundles on each worker."""
    keys = {core: next(key for key in map(str, range(99)) if core_of(client, key) == core) for core in (0, 1)}
    for number in range(first, first + BUNDLES):
        client.push(numbers(number), key=keys[number % 2])
    client.flush()


def core_of(client: Client, key: str) -> int:
    return client.push(numbers(0), key=key, topic="other").bundle_id.core


def test_back_and_forth(node: ClientNode, client: Client) -> None:
    with client.subscribe("keeper", start="earliest"), client.subscribe("mover", gaps="deliver") as subscription:
        push_on_both(client, 0)
        middle = datetime.datetime.now(datetime.UTC)
        push_on_both(client, BUNDLES)
        held = [subscription.get(20) for _ in range(2 * BUNDLES)]
        assert {first_id(each) for each in held if isinstance(each, Delivery)} == set(range(2 * BUNDLES))
        late, *others = [each for each in held if isinstance(each, Delivery)]
        for delivery in others:
            delivery.ack()
        subscription.flush()

        assert seek(node, "mover", "earliest", "--dry-run", "--json") == {
            "schema_version": 1,
            "done": False,
            "skipped": 0,
            "again": len(others),
        }
        assert seek(node, "mover", middle.isoformat(), "--yes", "--json") == {
            "schema_version": 1,
            "done": True,
            "skipped": 1,
            "again": BUNDLES,
        }
        with pytest.raises(AlreadyResolved):
            late.ack().wait()
        gap, found = None, set[int]()
        while gap is None or len(found) < BUNDLES:
            event = subscription.get(20)
            if isinstance(event, GapNotice):
                gap = event
            elif event is not None:
                found.add(first_id(event))
                event.ack()
        assert (gap.reason, gap.bundle_index_first, gap.segment_seq) == ("dropped", *late.bundle_id[:1:-1])
        assert found == set(range(BUNDLES, 2 * BUNDLES))
        assert subscription.all_drained()

        assert seek(node, "mover", "earliest", "--yes", "--json")["again"] == 2 * BUNDLES
        again = [subscription.get(20) for _ in range(2 * BUNDLES)]
        assert {first_id(each) for each in again if isinstance(each, Delivery)} == set(range(2 * BUNDLES))
        at = "/".join(map(str, late.bundle_id[1:]))
        assert seek(node, "mover", at, "--yes", "--json")["done"]
        assert seek(node, "mover", "latest", "--yes", "--json")["again"] == 0
        client.push(numbers(99))
        event = subscription.get(20)
        while not (isinstance(event, Delivery) and first_id(event) == 99):
            assert event is not None, "what came after the seek is delivered"
            event = subscription.get(20)


@pytest.mark.parametrize(
    ("subscriber", "arguments", "words"),
    [
        ("nobody", ["latest", "--yes"], "nobody"),
        ("someone", ["2026-01-31", "--yes"], "a time with its zone"),
        ("someone", ["1/2", "--yes"], "is not understood"),
        ("someone", ["latest"], "give --yes"),
        ("someone", ["latest", "--yes", "--topic", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_said(
    node: ClientNode, client: Client, subscriber: str, arguments: list[str], words: str
) -> None:
    with client.subscribe("someone") as subscription:
        client.push(numbers(1))
        refused = run_here("subscribers", "seek", subscriber, *arguments, "--run-dir", str(node.directories.run))
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
        take(subscription, 1)[0].ack()
