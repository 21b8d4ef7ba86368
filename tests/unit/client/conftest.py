from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.client import Client, connect
from tests.unit.client.peer import Peer


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def peer(run_dir: Path) -> Iterator[Peer]:
    with Peer(run_dir) as started:
        yield started


@pytest.fixture
def two_cores(run_dir: Path) -> Iterator[Peer]:
    with Peer(run_dir, cores=2) as started:
        yield started


@pytest.fixture
def client(peer: Peer) -> Iterator[Client]:
    with connect(peer.run_dir) as connected:
        yield connected
