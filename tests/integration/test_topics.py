"""Topics come, change and go while a real node runs, and every change survives a kill."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.base.model import Durability
from quiver_actors.base.units import MIB
from quiver_actors.client import Client
from quiver_actors.errors import (
    ConfigError,
    TopicDeleted,
    TopicExists,
    TopicRecreated,
    UnknownSlot,
    UnknownTopic,
    UsageError,
)
from quiver_actors.node.topics.aside import ASIDE_PREFIX
from tests.integration.client_node import (
    CONFIG,
    ClientNode,
    client_fixture,
    client_node,
    first_id,
    node_fixture,
    numbers,
    take,
)
from tests.support.commands import run_here
from tests.unit.node.worker.harness import until

node = node_fixture(cores=2)
client = client_fixture(scope="function")


def quiver(node: ClientNode, *arguments: str) -> str:
    """One command for that node; fails the test where it fails."""
    done = run_here(*arguments, "--run-dir", str(node.directories.run))
    assert done.returncode == 0, done.stderr
    return done.stdout


def directories_aside(node: ClientNode) -> list[Path]:
    return list(node.directories.data.glob(f"{ASIDE_PREFIX}*"))


def test_a_topic_is_created_at_run_time_and_used_by_a_client_that_was_there_before(client: Client) -> None:
    client.push(numbers(0))
    with pytest.raises(UnknownTopic):
        client.push(numbers(0), topic="clicks")
    client.create_topic("clicks", {"slots": {"page": 4}, "durability": "segment_only"})
    for key in ("a", "b", "c", "d"):
        receipt = client.push({"page": numbers(1)}, topic="clicks", key=key)
        assert receipt.durability is Durability.OPEN_SEGMENT
    with pytest.raises(UnknownSlot, match="'pages' is not in the topic's slot table"):
        client.push({"pages": numbers(1)}, topic="clicks")
    with pytest.raises(TopicExists):
        client.create_topic("clicks")
    client.create_topic("clicks", if_missing=True)
    assert client.topics()["clicks"].slots == {"page": 4}


def test_settings_change_live(client: Client, node: ClientNode) -> None:
    client.create_topic("changing")
    assert client.push(numbers(0), topic="changing").durability is Durability.SYNCED
    client.set_topic("changing", {"wal.flush_interval": "25ms", "priority": 9})
    assert client.push(numbers(1), topic="changing").durability is Durability.WRITTEN
    client.set_topic("changing", {}, unset=["wal.flush_interval"])
    assert client.push(numbers(2), topic="changing").durability is Durability.SYNCED
    shown = json.loads(quiver(node, "topics", "show", "changing", "--json"))["topic"]
    assert (shown["settings"]["priority"], shown["origins"]["priority"]) == (9, "quiver topics")
    with pytest.raises(ConfigError, match="cannot be changed"):
        client.set_topic("changing", {"slots": {"a": 1}})
    with pytest.raises(ConfigError, match="is set by file"):
        client.set_topic("quick", {"durability": "wal"})
    with pytest.raises(UnknownTopic):
        client.set_topic("missing", {"priority": 1})


def test_whoever_uses_a_deleted_topic_is_told_also_when_there_is_another_one_of_that_name(
    client: Client, node: ClientNode
) -> None:
    client.create_topic("moving", {"slots": {"old": 1}})
    subscription = client.subscribe("reader", topic="moving", start="earliest")
    receipt = client.push({"old": numbers(7)}, topic="moving")
    with take(subscription, 1)[0] as delivery:
        assert first_id(delivery) == 7
    with node.connect() as other, node.connect() as cursor:
        cursor.flush("moving")
        incarnation = client.topics()["moving"].incarnation
        other.delete_topic("moving")
        with pytest.raises(TopicDeleted):
            client.push({"old": numbers(8)}, topic="moving")
        with pytest.raises(TopicDeleted):
            subscription.get(timeout=20.0)
        other.create_topic("moving", {"slots": {"new": 1}})
        assert client.topics()["moving"].incarnation != incarnation
        with pytest.raises(TopicRecreated):
            cursor.ack_through(receipt.bundle_id, subscriber="reader")
        with pytest.raises((TopicRecreated, UnknownSlot)):
            client.push({"old": numbers(9)}, topic="moving")
        until(lambda: _pushes(client), "a push to the new topic")
        fresh = other.subscribe("reader", topic="moving", start="earliest")
        with take(fresh, 1)[0] as delivery:
            assert first_id(delivery) == 10
    until(lambda: not directories_aside(node), "the old topic's files to be unlinked")


def _pushes(client: Client) -> bool:
    try:
        client.push({"new": numbers(10)}, topic="moving")
    except TopicRecreated:
        return False
    return True


def test_a_subscription_that_was_away_while_its_topic_was_created_anew_is_told(node: ClientNode) -> None:
    with node.connect() as client, node.connect() as other:
        client.create_topic("leaving")
        subscription = client.subscribe("reader", topic="leaving")
        node.process.signal(signal.SIGSTOP)  # the supervisor: workers that die are not started again yet
        for pid in node.pids.values():
            node.kill_pid(pid)
        node.process.signal(signal.SIGCONT)
        other.delete_topic("leaving")
        other.create_topic("leaving")
        with pytest.raises((TopicRecreated, TopicDeleted)):
            subscription.get(timeout=20.0)
        until(lambda: {child.state for child in node.process.status().children} == {"ready"}, "both workers")
        node.pids = {child.index: child.pid for child in node.process.status().children}


def test_topics_come_and_go_with_asyncio_too(node: ClientNode) -> None:
    async def life() -> None:
        async with aio.connect(str(node.directories.run), timeout=20.0) as client:
            await client.create_topic("brief", {"priority": 1})
            await client.push(numbers(1), topic="brief")
            await client.set_topic("brief", {"priority": 2})
            await client.delete_topic("brief")
            assert "brief" not in await client.topics()

    asyncio.run(life())


def test_the_default_topic_and_configured_ones_stay(client: Client) -> None:
    with pytest.raises(UsageError, match="always there"):
        client.delete_topic("default")
    with pytest.raises(UsageError, match="in the configuration"):
        client.delete_topic("travel")
    with pytest.raises(UnknownTopic):
        client.delete_topic("missing")


def test_commands_list_create_change_and_delete(node: ClientNode) -> None:
    assert "created" in quiver(node, "topics", "create", "shop", "segment.target_size=2MiB", "slots=cart=0")
    again = json.loads(quiver(node, "topics", "create", "shop", "--if-missing", "--json"))
    assert again["topic"]["settings"]["segment.target_size"] == 2 * MIB
    listed = json.loads(quiver(node, "topics", "list", "--json"))
    assert listed["schema_version"] == 1
    assert "shop" in [topic["name"] for topic in listed["topics"]]
    assert "changed" in quiver(node, "topics", "set", "shop", "priority=2")
    assert "priority = 2" in quiver(node, "topics", "show", "shop")
    assert "would delete topic shop with 0 bundles" in quiver(node, "topics", "delete", "shop", "--dry-run")
    assert "deleted" in quiver(node, "topics", "delete", "shop", "--yes")
    assert "shop" not in quiver(node, "topics", "list")
    refused = run_here("topics", "create", "shop", "segment.size=1", "--run-dir", str(node.directories.run))
    assert refused.returncode == 2
    assert "did you mean 'segment." in refused.stderr


def test_changes_survive_a_kill_of_the_whole_node_and_a_deletion_is_finished_by_the_next_one() -> None:
    with client_node(cores=1) as node:
        with node.connect() as client:
            client.create_topic("kept", {"priority": 4})
            client.create_topic("gone")
            client.push(numbers(1), topic="kept")
            client.push(numbers(2), topic="gone")
            before = client.topics()
            node.signal_worker(0, signal.SIGSTOP)  # it cannot let go of the topic: the deletion stays half done
            refused = run_here("topics", "delete", "gone", "--yes", "--timeout", "200ms", "--run-dir", client.run_dir)
            assert (refused.returncode, "the change is durable" in refused.stderr) == (1, True)
            assert (node.directories.data / "gone").is_dir()
        node.kill_supervisor()
        node.restart()
        with node.connect() as client:
            after = client.topics()
            assert "gone" not in after
            assert after["kept"].incarnation == before["kept"].incarnation
            assert not (node.directories.data / "gone").exists()
            client.create_topic("gone")
            client.flush("gone")
            assert client.segments("gone") == {0: []}
            client.flush("kept")
            assert [info.bundle_count for info in client.segments("kept")[0]] == [1]
        until(lambda: not directories_aside(node), "the files of the deleted topic to be unlinked")


def test_a_reload_applies_what_can_change_live_and_says_what_cannot() -> None:
    with client_node(cores=1) as node:
        file = node.directories.base / "quiver.toml"
        file.write_text(
            f"cores = 7\narena_size = '2MiB'\n{CONFIG.replace('50ms', '60ms')}\n[topics.added]\n[wal]\nflush_interval='9ms'\n"
        )
        said = quiver(node, "config", "reload").splitlines()
        assert "cores: 1 to 7: needs a restart" not in said, "the flag of `quiver up` still wins"
        assert 'arena_size: "64MiB" to "2MiB": holds now' in said
        assert "topic added: created" in said
        assert 'topics.travel.segment.max_open_duration: "50ms" to "60ms": holds now' in said
        with node.connect() as client:
            assert client.push(numbers(1), topic="added").durability is Durability.WRITTEN
        file.write_text("croes = 1\n")
        refused = run_here("config", "reload", "--run-dir", str(node.directories.run))
        assert (refused.returncode, "did you mean 'cores'" in refused.stderr) == (2, True)
        node.process.signal(signal.SIGHUP)
        node.process.wait_for("node.reload_refused")
        file.write_text(CONFIG)
        node.process.signal(signal.SIGHUP)
        node.process.wait_for("node.reloaded")
