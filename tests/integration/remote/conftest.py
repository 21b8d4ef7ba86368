"""A node, a client of it on its host, and a `quiver serve` beside it, for tests of clients on other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.client import Client
from tests.integration.client_node import ClientNode, client_node
from tests.integration.remote.servers import CONFIG, Served


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(cores=2, config=CONFIG) as started:
        yield started


@pytest.fixture(scope="module")
def local(node: ClientNode) -> Iterator[Client]:
    with node.connect() as connected:
        yield connected


@pytest.fixture
def served(node: ClientNode, tmp_path: Path) -> Iterator[Served]:
    made = Served(node, tmp_path)
    yield made
    made.kill()
