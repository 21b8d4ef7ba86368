"""One node for a module that seals nothing by itself, a client of it, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver_actors.client import Client
from tests.integration.client_node import ClientNode, client_node
from tests.integration.live_node import LIVE


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(config=LIVE) as started:
        yield started


@pytest.fixture(scope="module")
def client(node: ClientNode) -> Iterator[Client]:
    with node.connect() as connected:
        yield connected


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own. Nothing of it is sealed unless the test does it."""
    name: str = request.node.name.replace("[", "-").replace("]", "")[-58:]
    client.create_topic(name)
    return name
