"""One node for a module that seals nothing by itself, a client of it, and a topic for each test."""

from __future__ import annotations

import pytest

from quiver_actors.client import Client
from tests.integration.client_node import client_fixture, node_fixture
from tests.integration.live_node import LIVE

node = node_fixture(config=LIVE)
client = client_fixture()


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own. Nothing of it is sealed unless the test does it."""
    name: str = request.node.name.replace("[", "-").replace("]", "")[-58:]
    client.create_topic(name)
    return name
