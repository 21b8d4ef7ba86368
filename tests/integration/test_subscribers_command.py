"""`quiver subscribers` on a real node."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.client_node import ClientNode, node_fixture, numbers, take
from tests.support.commands import run_here

node = node_fixture(cores=2)


def subscribers(node: ClientNode, command: str, *arguments: str) -> Any:
    found = run_here("subscribers", command, "--run-dir", str(node.directories.run), *arguments)
    assert not found.stderr
    return found


def wait_lag(node: ClientNode, subscriber: str, topic: str, wanted: int) -> None:
    """Wait until the figures, which are published ten times a second, show it."""
    for _ in range(100):
        found = json.loads(subscribers(node, "lag", subscriber, "--topic", topic, "--json").stdout)["subscribers"]
        if [each["lag_bundles"] for each in found] == [wanted]:
            return
    raise AssertionError(f"{subscriber} is not {wanted} bundles behind: {found}")


def test_list_lag_orphans_and_drop(node: ClientNode) -> None:
    assert subscribers(node, "list").stdout == "no subscribers\n"
    assert subscribers(node, "orphans").stdout == "no orphans\n"
    with node.connect() as client:
        with client.subscribe("left", topic="travel"):
            pass
        with client.subscribe("here", topic="travel") as here:
            client.push_many([{"flights": numbers(n)} for n in range(30)], topic="travel")
            client.flush("travel")
            for delivery in take(here, 10):
                delivery.ack()
            here.flush()
            wait_lag(node, "here", "travel", 20)
            wait_lag(node, "left", "travel", 30)
            listed = subscribers(node, "list", "--topic", "travel").stdout.splitlines()
            assert [line.split()[:3] for line in listed] == [
                ["SUBSCRIBER", "TOPIC", "LAG"],
                ["left", "travel", "30"],
                ["here", "travel", "20"],
            ]
            assert subscribers(node, "lag", "--topic", "travel", "--max", "30").returncode == 0
            assert subscribers(node, "lag", "--topic", "travel", "--max", "29").returncode == 4
            orphans = json.loads(subscribers(node, "orphans", "--json").stdout)["subscribers"]
            assert [each["subscriber"] for each in orphans] == ["left"]
            refused = run_here("subscribers", "drop", "here", "--yes", "--run-dir", str(node.directories.run))
            assert refused.returncode == 2
            assert "is in use" in refused.stderr
        assert "dropped subscriber left" in subscribers(node, "drop", "left", "--yes").stdout
        unknown = run_here(
            "subscribers", "drop", "left", "--yes", "--run-dir", str(node.directories.run), "--topic", "travel"
        )
        assert unknown.returncode == 2
        assert "no subscriber 'left' of topic 'travel'" in unknown.stderr
        for command in (["lag", "--max", "1"], ["list"], ["orphans"]):
            misspelt = run_here("subscribers", *command, "--run-dir", str(node.directories.run), "--topic", "travle")
            assert misspelt.returncode == 2
            assert "topic 'travle' does not exist on this node" in misspelt.stderr
