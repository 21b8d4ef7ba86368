from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.client import Client, Subscription, connect
from tests.unit.client.clock import MODULES, ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, batch
from tests.unit.client.peer import Peer
from tests.unit.store.segment.logfile import LogFile


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
def clock(monkeypatch: pytest.MonkeyPatch) -> ClientClock:
    clock = ClientClock()
    for module in MODULES:
        monkeypatch.setattr(f"{module}.time", clock)
    return clock


@pytest.fixture
def client(peer: Peer) -> Iterator[Client]:
    with connect(peer.run_dir) as connected:
        yield connected


@pytest.fixture(scope="session")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real segment: bundle n has slot 3 with 2 rows from n on; every tenth has slot 7 too."""
    log = LogFile()
    for n in range(BUNDLES):
        log.push({3: batch(n)} | ({7: batch(-n, 1)} if n % 10 == 0 else {}), item_count=n % 5)
    path = tmp_path_factory.mktemp("segment") / "0000000000000004.qseg"
    path.write_bytes(log.compacted())
    return path


@pytest.fixture
def feeder(peer: Peer, segment: Path) -> Feeder:
    return Feeder(peer, segment)


@pytest.fixture
def subscription(client: Client) -> Iterator[Subscription]:
    with client.subscribe("exporter", topic="travel", idle_timeout=10) as subscribed:
        yield subscribed
