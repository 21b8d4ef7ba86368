"""Somebody moves the directory of a core away under a running node, and brings it back: a fault that passes, and no loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.client import Client
from quiver_actors.client.subscribe_request import SubscribeOptions
from quiver_actors.errors import QuiverError, StorageUnavailable
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, first_id, numbers, take
from tests.integration.test_missing_files import health

CONFIG = """
[topics.other]
"""


def core_directory(node: ClientNode) -> Path:
    return node.directories.data / "default/core_0"


def push_until_refused(client: Client, first: int) -> tuple[list[int], QuiverError]:
    """Push and seal until the node notices. Returns what was acknowledged, and the error."""
    acknowledged: list[int] = []
    while True:
        try:
            client.push(numbers(first + len(acknowledged)))
            acknowledged.append(first + len(acknowledged))
            client.flush()
        except QuiverError as error:
            return acknowledged, error


def is_refused_for_now(client: Client) -> bool:
    try:
        client.push(numbers(-1), timeout=2.0)
    except StorageUnavailable:
        return True
    except QuiverError:
        return False
    raise AssertionError("pushed into a directory that is not there")


@pytest.mark.parametrize("leaves", ["nothing", "mount point"])
def test_a_directory_that_is_moved_away_is_not_made_anew_and_is_served_again_when_it_is_back(leaves: str) -> None:
    with client_node(config=CONFIG) as node:
        with node.connect(timeout=5.0) as client:
            client.push_many([numbers(n) for n in range(3)])
            client.flush()
            away = node.directories.base / "away"
            core_directory(node).rename(away)
            if leaves == "mount point":
                core_directory(node).mkdir()
            acknowledged, _ = push_until_refused(client, 3)
        with node.connect(timeout=5.0) as client:
            wait_until(lambda: is_refused_for_now(client), "pushes are refused for now")
            client.push(numbers(100), topic="other")
            assert not core_directory(node).exists() or list(core_directory(node).iterdir()) == []
            code, said = health(node)
            assert code != 0
            assert "default" in said
        if leaves == "mount point":
            core_directory(node).rmdir()
        away.rename(core_directory(node))
        with node.connect() as client, client.subscribe("s", start="earliest") as subscription:
            client.push(numbers(50))
            found = [first_id(delivery) for delivery in take(subscription, 3 + len(acknowledged) + 1)]
        assert found == [0, 1, 2, *acknowledged, 50]
        wait_until(lambda: health(node)[0] == 0, "the node is healthy again")


def test_a_worker_that_is_started_again_meanwhile_serves_the_rest_and_waits() -> None:
    with client_node(config=CONFIG) as node:
        with node.connect() as client:
            client.push_many([numbers(n) for n in range(3)])
        away = node.directories.base / "away"
        core_directory(node).rename(away)
        node.kill_worker(0)
        with node.connect(timeout=5.0) as client:
            assert is_refused_for_now(client)
            with pytest.raises(StorageUnavailable, match="tries again by itself"):
                client.subscribers()
            client.push(numbers(100), topic="other")
        node.kill_worker(0)
        assert not core_directory(node).exists()
        away.rename(core_directory(node))
        with node.connect() as client, client.subscribe("s", start="earliest") as subscription:
            assert [first_id(delivery) for delivery in take(subscription, 3)] == [0, 1, 2]


def test_the_directory_of_an_adopted_core_is_waited_for_too() -> None:
    with client_node(cores=2, config=CONFIG) as node:
        with node.connect() as client:
            key = next(str(n) for n in range(100) if client._producer.core_for(str(n)) == 1)
            client.push_many([numbers(n) for n in range(3)], key=key)
        node.process.stop()
        node.restart(1)
        away = node.directories.base / "away"
        adopted = node.directories.data / "default/core_1"
        adopted.rename(away)
        node.kill_worker(0)
        wait_until(lambda: "default" in health(node)[1], "the node misses the directory")
        assert not adopted.exists()
        away.rename(adopted)
        with node.connect() as client, client.subscribe("s", start="earliest") as subscription:
            assert [first_id(delivery) for delivery in take(subscription, 3)] == [0, 1, 2]


def test_a_topic_that_is_deleted_and_created_again_has_a_directory_of_its_own() -> None:
    with client_node(config=CONFIG) as node, node.connect() as client:
        client.create_topic("fleeting")
        client.push(numbers(1), topic="fleeting")
        client.delete_topic("fleeting")
        node.kill_worker(0)
        with node.connect() as again:
            again.create_topic("fleeting")
            again.push(numbers(2), topic="fleeting")
            with again.subscribe("s", topic="fleeting", start="earliest") as subscription:
                assert first_id(*take(subscription, 1)) == 2


def test_a_subscribe_that_fails_counts_no_bundle_of_the_other_cores_as_delivered() -> None:
    with client_node(cores=2, config=CONFIG) as node:
        terms = SubscribeOptions(start="earliest", max_deliveries=1, exhausted="drop")
        with node.connect() as client:
            key = next(str(n) for n in range(100) if client.core_for(str(n)) == 0)
            client.push_many([numbers(n) for n in range(3)], key=key)
            client.flush()
            client.subscribe("s", **terms).close()
        away = node.directories.base / "away"
        gone = node.directories.data / "default/core_1"
        gone.rename(away)
        node.kill_worker(1)
        with node.connect(timeout=5.0) as client, pytest.raises(StorageUnavailable, match="worker 1"):
            client.subscribe("s", **terms)
        away.rename(gone)
        with node.connect() as client, client.subscribe("s", **terms) as subscription:
            found = take(subscription, 3)
            assert [(first_id(delivery), delivery.delivery_count) for delivery in found] == [(0, 1), (1, 1), (2, 1)]
