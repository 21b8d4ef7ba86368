"""A node, a client of it on its host, and a `quiver serve` beside it, for tests of clients on other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.client_node import ClientNode, client_fixture, node_fixture
from tests.integration.remote.servers import CONFIG, Served

node = node_fixture(cores=2, config=CONFIG)
local = client_fixture()


@pytest.fixture
def served(node: ClientNode, tmp_path: Path) -> Iterator[Served]:
    made = Served(node, tmp_path)
    yield made
    made.kill()
