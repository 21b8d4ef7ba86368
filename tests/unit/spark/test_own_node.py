"""How long a task waits for the node of its host. The node is a peer that listens; others are names in a list."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import Client
from quiver_actors.errors import Draining, NotRunning, WorkerUnavailable
from quiver_actors.spark import own_node
from quiver_actors.spark.connection import forget_client
from quiver_actors.spark.options import WRITE, SourceOptions, parse_options
from quiver_actors.spark.own_node import is_elsewhere, on_own_node
from tests.unit.client.peer import Peer

pytestmark = pytest.mark.timeout(60)

OTHERS = "node-b=grpc://host-b:1,node-c=grpc://host-c:1"
HERE = f"{OTHERS},node-a=grpc://{socket.gethostname()}:1"
LONGER_THAN_THE_TEST = "1h"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_node, "FIRST_PATIENCE_NS", 20 * MILLISECOND_NS)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    forget_client(str(tmp_path))


def options(run_dir: Path, nodes: str | None, timeout: str = LONGER_THAN_THE_TEST) -> SourceOptions:
    given = {"topic": "t", "runDir": str(run_dir), "pushTimeout": timeout, **({"nodes": nodes} if nodes else {})}
    return parse_options(given, WRITE)


def refusing(count: int, error: Exception) -> Callable[[Client, float], int]:
    """An action that is refused so many times. It returns how often it was tried."""
    tries = 0

    def action(client: Client, timeout_seconds: float) -> int:
        nonlocal tries
        tries += 1
        assert timeout_seconds > 0
        if tries <= count:
            raise error
        return tries

    return action


def test_the_first_attempt_goes_elsewhere_where_no_node_is_to_come(run_dir: Path) -> None:
    with pytest.raises(NotRunning):
        on_own_node(options(run_dir, OTHERS), 0, refusing(0, Draining("")))


@pytest.mark.parametrize(("nodes", "attempt_number"), [(OTHERS, 1), (HERE, 0), (None, 0)])
def test_a_node_that_may_come_is_waited_for(run_dir: Path, nodes: str | None, attempt_number: int) -> None:
    asked = options(run_dir, nodes, "300ms")
    with pytest.raises(NotRunning):
        on_own_node(asked, attempt_number, refusing(0, Draining("")))
    with Peer(run_dir):
        assert on_own_node(asked, attempt_number, refusing(0, Draining(""))) == 1
        forget_client(str(run_dir))


def test_the_first_attempt_goes_elsewhere_from_a_node_that_is_drained(run_dir: Path) -> None:
    with Peer(run_dir):
        with pytest.raises(Draining, match="drained"):
            on_own_node(options(run_dir, HERE), 0, refusing(1, Draining("it is being drained")))
        forget_client(str(run_dir))


@pytest.mark.parametrize(("nodes", "attempt_number"), [(HERE, 1), (None, 0)])
def test_later_attempts_and_only_nodes_wait_until_it_takes_stages_again(
    run_dir: Path, nodes: str | None, attempt_number: int
) -> None:
    with Peer(run_dir):
        found = on_own_node(options(run_dir, nodes), attempt_number, refusing(2, Draining("it is being drained")))
        assert found == 3
        forget_client(str(run_dir))


def test_a_worker_that_is_started_again_is_waited_for_and_a_node_that_stays_away_is_told(run_dir: Path) -> None:
    with Peer(run_dir):
        assert on_own_node(options(run_dir, HERE), 0, refusing(1, WorkerUnavailable("it is started again"))) == 2
        with pytest.raises(WorkerUnavailable, match="it is away"):
            on_own_node(options(run_dir, None, "50ms"), 1, refusing(99, WorkerUnavailable("it is away")))
        forget_client(str(run_dir))


def test_other_errors_are_told_at_once(run_dir: Path) -> None:
    with Peer(run_dir):
        with pytest.raises(KeyError):
            on_own_node(options(run_dir, None), 1, refusing(1, KeyError("other")))
        forget_client(str(run_dir))


def test_a_directory_that_cannot_be_read_names_nobody(run_dir: Path) -> None:
    assert not is_elsewhere(options(run_dir, str(run_dir / "none")), is_draining=True)
    assert not is_elsewhere(options(run_dir, f"node-a=grpc://{socket.gethostname()}:1"), is_draining=True)
    assert is_elsewhere(options(run_dir, HERE), is_draining=True)
    assert not is_elsewhere(options(run_dir, HERE), is_draining=False)
