"""Another number of cores: a node is started with ever different ones on one data directory, and every bundle is read once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from quiver_actors.base.core_dirs import RETIRED_NAME, find_core_dirs
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Subscription
from quiver_actors.errors import StorageUnavailable
from tests.integration import node_process
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, first_id, numbers
from tests.integration.node_process import run_quiver

CONFIG = """
[segment]
target_size = "64KiB"
max_open_duration = "50ms"

[topics.other]
"""
TOPICS = ("default", "other")
CORES = [int(cores) for cores in os.environ.get("QUIVER_TEST_CORES", "4,2,1,5").split(",")]
"""8,3,1,16 in the long form."""


def push_everywhere(client: Client, stored: dict[BundleId, int], topics: tuple[str, ...] = TOPICS) -> None:
    """A few bundles to each worker and topic."""
    for topic in topics:
        for core in client._producer._channels.directory.push_cores:
            key = next(str(n) for n in range(10_000) if client._producer.core_for(str(n)) == core)
            first = len(stored)
            receipts = client.push_many([numbers(first + n) for n in range(3)], topic=topic, key=key)
            stored.update((receipt.bundle_id, first + n) for n, receipt in enumerate(receipts))


def read_some(subscription: Subscription, count: int) -> Iterator[tuple[BundleId, int]]:
    for _ in range(count):
        delivery = subscription.get(20.0)
        assert delivery is not None
        with delivery:
            yield delivery.bundle_id, first_id(delivery)


def restart(node: ClientNode, cores: int) -> None:
    node.process.stop()
    node.restart(cores)


def core_dirs(node: ClientNode) -> set[int]:
    return set(find_core_dirs(str(node.directories.data)))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_bundle_is_read_once_whatever_the_number_of_cores_and_empty_directories_are_retired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Sixteen workers on two processors take their time to start.
    monkeypatch.setattr(node_process, "DEADLINE_SECONDS", 120.0)
    stored: dict[BundleId, int] = {}
    read: dict[BundleId, int] = {}
    with client_node(CORES[0], CONFIG) as node:
        for number, cores in enumerate(CORES):
            if number:
                restart(node, cores)
            with node.connect() as client:
                subscriptions = [client.subscribe("s", topic=topic, start="earliest") for topic in TOPICS]
                push_everywhere(client, stored)
                for subscription in subscriptions:
                    for bundle_id, first in read_some(subscription, 4):
                        assert bundle_id not in read, "delivered again"
                        read[bundle_id] = first
                    subscription.flush(60.0)
                    subscription.close()
        with node.connect() as client:
            subscriptions = [client.subscribe("s", topic=topic) for topic in TOPICS]
            for topic, subscription in zip(TOPICS, subscriptions, strict=True):
                left = [id_ for id_ in stored if id_.topic == topic and id_ not in read]
                read.update(read_some(subscription, len(left)))
        assert read == stored, "every bundle under its id, once"
        restart(node, 1)
        wait_until(lambda: core_dirs(node) == {0}, "the directories of all other cores are empty and retired")
        retired = {path.name for path in (node.directories.data / "default" / RETIRED_NAME).iterdir()}
        assert retired == {f"core_{core}" for core in range(1, max(CORES))}
        restart(node, CORES[-1])
        with node.connect() as client:
            before = dict(stored)
            subscription = client.subscribe("s", start="earliest")
            push_everywhere(client, stored)
            assert len(stored) == len(before) + 2 * CORES[-1] * 3, "no id is used twice"
            new = {id_ for id_ in stored if id_ not in before and id_.topic == "default"}
            assert {id_ for id_, _ in read_some(subscription, len(new))} == new


def test_an_adopted_core_takes_no_pushes_and_goes_while_a_consumer_is_attached() -> None:
    stored: dict[BundleId, int] = {}
    with client_node(2, CONFIG) as node:
        with node.connect() as client:
            client.subscribe("s", start="earliest").close()
            client.subscribe("s", topic="other", start="earliest").close()
            push_everywhere(client, stored)
        restart(node, 1)
        assert re.search("adoption.begin.*core=1", node.process.logged())
        with node.connect() as client, client.subscribe("s") as subscription:
            other = client.subscribe("s", topic="other")
            assert client.push(numbers(1000)).bundle_id.core == 0
            assert {id_ for id_, _ in read_some(other, 6)} == {id_ for id_ in stored if id_.topic == "other"}
            other.flush()
            found = dict(read_some(subscription, 7))
            assert found.items() >= {id_: n for id_, n in stored.items() if id_.topic == "default"}.items()
            subscription.flush()
            wait_until(lambda: core_dirs(node) == {0}, "core 1 is retired")
            client.push(numbers(2000))
            (last,) = read_some(subscription, 1)
            assert last[1] == 2000, "the consumer goes on"
            other.close()
        assert "worker.end" not in node.process.logged(), "the worker lives on when it has retired a core"


def test_a_topic_that_is_created_later_has_subscribers_while_a_core_is_adopted() -> None:
    stored: dict[BundleId, int] = {}
    with client_node(2, CONFIG) as node:
        with node.connect() as client:
            client.subscribe("slow", start="earliest").close()
            push_everywhere(client, stored, ("default",))
        restart(node, 1)
        with node.connect() as client:
            client.create_topic("late")
        with node.connect() as client, client.subscribe("s", topic="late", start="earliest") as late:
            client.push(numbers(3000), topic="late")
            assert [first for _, first in read_some(late, 1)] == [3000]
            late.flush()
            assert 1 in core_dirs(node), "somebody is still owed what core 1 holds"
            with client.subscribe("slow") as slow:
                assert len(dict(read_some(slow, 6))) == 6
                slow.flush()
            wait_until(lambda: core_dirs(node) == {0}, "core 1 is retired")
        assert "worker.end" not in node.process.logged()


def health(node: ClientNode) -> tuple[int, str]:
    done = run_quiver("status", "--run-dir", str(node.directories.run), "--check", "healthy")
    return done.returncode, done.stderr


def test_a_directory_that_cannot_be_opened_at_first_is_tried_again_and_the_rest_is_served_meanwhile() -> None:
    stored: dict[BundleId, int] = {}
    with client_node(2, CONFIG) as node:
        with node.connect() as client:
            for topic in TOPICS:
                client.subscribe("s", topic=topic, start="earliest").close()
            push_everywhere(client, stored)
        node.process.stop()
        segments = node.directories.data / "default/core_1/segments"
        aside = node.directories.data / "aside"
        segments.rename(aside)
        segments.symlink_to(aside)  # links are refused: an error of the disk, as long as it is there
        node.restart(1)
        wait_until(lambda: health(node)[0] == 4, "the health says that a topic is not served whole")
        assert "topic default on core_1 is degraded" in health(node)[1]
        with node.connect() as client:
            with pytest.raises(StorageUnavailable, match="tries again by itself"):
                client.subscribers()
            with client.subscribe("s", topic="other") as other:
                assert {id_ for id_, _ in read_some(other, 6)} == {id_ for id_ in stored if id_.topic == "other"}
            with client.subscribe("s") as subscription:
                first = dict(read_some(subscription, 3))
                assert {id_.core for id_ in first} == {0}
                assert client.push(numbers(1000)).bundle_id.core == 0
                assert [number for _, number in read_some(subscription, 1)] == [1000]
                segments.unlink()
                aside.rename(segments)
                found = first | dict(read_some(subscription, 3))
                assert found == {id_: n for id_, n in stored.items() if id_.topic == "default"}
        wait_until(lambda: health(node)[0] == 0, "the fault has passed")
        assert "worker.end" not in node.process.logged()
