"""A real node whose old segments lie in a cold directory: they are read like all others, and wait while the directory is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.client import Client
from quiver_actors.errors import StorageUnavailable
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, consume_until, numbers

SEGMENTS = 6
IDS = {10 * number for number in range(SEGMENTS)}
CONFIG = """
[segment]
max_open_duration = "1h"

[tier]
cold_dir = "{cold}"
keep_hot = 1
"""


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    (tmp_path / "cold").mkdir()
    return tmp_path / "cold"


@pytest.fixture
def node(cold: Path) -> Iterator[ClientNode]:
    with client_node(config=CONFIG.format(cold=cold)) as running:
        yield running


def cold_names(cold: Path) -> list[str]:
    return sorted(path.name for path in cold.glob("default/core_0/*/*.qseg"))


def fill(client: Client, cold: Path) -> None:
    """Push segments of one bundle each, and wait until all but one have moved."""
    for number in sorted(IDS):
        client.push(numbers(number))
        client.flush()
    wait_until(lambda: len(cold_names(cold)) == SEGMENTS - 1, "segments to move")


def ids_read(client: Client) -> list[int]:
    return [bundle.batch.column("id")[0].as_py() for bundle in client.read("default", 0)]


def is_read(client: Client, wanted: list[int]) -> bool:
    try:
        return ids_read(client) == wanted
    except StorageUnavailable:
        return False


def test_cold_segments_are_read_delivered_and_deleted_like_all_others(node: ClientNode, cold: Path) -> None:
    with node.connect() as client:
        with client.subscribe("all", start="earliest"):
            pass
        fill(client, cold)
        assert ids_read(client) == sorted(IDS)
        with client.subscribe("all", start="earliest") as subscription:
            assert list(consume_until(subscription, IDS)) == sorted(IDS)
            subscription.flush()
        wait_until(lambda: not cold_names(cold), "what is done with to go from the cold directory")


def test_a_cold_directory_that_is_away_over_a_restart_costs_no_bundle(node: ClientNode, cold: Path) -> None:
    with node.connect() as client:
        with client.subscribe("all", start="earliest"):
            pass
        fill(client, cold)
    node.kill_supervisor()
    cold.rename(cold.with_name("away"))
    cold.mkdir()  # an empty mount point
    node.restart()
    with node.connect(timeout=2.0) as client, pytest.raises(StorageUnavailable, match=r"quiver\.cold-id"):
        ids_read(client)
    with node.connect() as client:
        with client.subscribe("live", start="latest") as live:
            client.push(numbers(1_000))
            assert set(consume_until(live, {1_000})) == {1_000}, "what is live waits for no cold disk"
        with client.subscribe("all", start="earliest") as subscription:
            cold.rmdir()
            cold.with_name("away").rename(cold)
            wait_until(lambda: is_read(client, [*sorted(IDS), 1_000]), "the cold directory to be looked at again")
            assert list(consume_until(subscription, IDS)) == sorted(IDS)
