"""`retention.keep_for` on a real node of two cores: what was acknowledged can still be read, and goes when the setting says so."""

from __future__ import annotations

from quiver_actors.client import Client
from quiver_actors.store.status.status_view import take_status
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, consume_until, node_fixture, numbers
from tests.support.commands import run_here

CONFIG = """
[segment]
target_size = "1MiB"
max_open_duration = "50ms"

[topics.kept]
"""
IDS = {10 * number for number in range(12)}


node = node_fixture(cores=2, config=CONFIG, scope="function")


def ids_in(client: Client, topic: str) -> set[int]:
    return {
        bundle.batch.column("id")[0].as_py() for core in client.segments(topic) for bundle in client.read(topic, core)
    }


def push_and_acknowledge(client: Client, topic: str) -> None:
    with client.subscribe("all", topic=topic, start="earliest") as subscription:
        for first in sorted(IDS):
            client.push(numbers(first), topic=topic, key=str(first))
        consume_until(subscription, IDS)
        subscription.flush()


def kept_bytes(node: ClientNode) -> int:
    return sum(view.keep_for_bytes for view in take_status(str(node.directories.run)).retention if view.topic == "kept")


def keep_for(node: ClientNode, duration: str) -> None:
    done = run_here("topics", "set", "kept", f"retention.keep_for={duration}", "--run-dir", str(node.directories.run))
    assert done.returncode == 0, done.stderr


def test_what_was_acknowledged_stays_is_shown_survives_a_restart_and_goes_with_the_setting(node: ClientNode) -> None:
    keep_for(node, "24h")
    with node.connect() as client:
        push_and_acknowledge(client, "default")
        push_and_acknowledge(client, "kept")
        wait_until(lambda: not ids_in(client, "default"), "what nobody needs to go")
        assert ids_in(client, "kept") == IDS
        with client.subscribe("late", topic="kept", start="earliest") as subscription:
            assert set(consume_until(subscription, IDS)) == IDS
            subscription.flush()
    wait_until(lambda: kept_bytes(node) > 0, "the figure")
    said = run_here("status", "--run-dir", str(node.directories.run)).stdout
    assert "that every subscriber is done with, kept by retention.keep_for" in said
    node.kill_supervisor()
    node.restart()
    with node.connect() as client:
        # A start reads its segments through first.
        wait_until(lambda: ids_in(client, "kept") == IDS, "what was kept to be there again")
        keep_for(node, "0ms")
        wait_until(lambda: not ids_in(client, "kept"), "what was kept to go")
    wait_until(lambda: kept_bytes(node) == 0, "the figure")
