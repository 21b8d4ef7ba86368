"""Forwarding to Delta and Iceberg tables on a real node: which rows are there after forwarders and workers were killed at each step."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiver_actors.client import Client
from tests.integration.client_node import ClientNode, node_fixture, numbers
from tests.integration.lake_process import STEPS, SUBSCRIBER
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, command_line
from tests.unit.forward.lakes import LAKES

ROWS = 3
pytestmark = pytest.mark.crash


node = node_fixture(cores=2)


@pytest.fixture(params=LAKES)
def kind(request: pytest.FixtureRequest, node: ClientNode) -> Iterator[str]:
    """A kind of table, with a subscriber that is new in each test."""
    with node.connect() as client:
        client.subscribe(SUBSCRIBER, start="latest").close()
    yield str(request.param)
    with node.connect() as client:
        client.unsubscribe(SUBSCRIBER)


@contextmanager
def forwarder(node: ClientNode, directory: Path, kind: str, end: str) -> Iterator[subprocess.Popen[bytes]]:
    """A forwarder process that has subscribed."""
    command = command_line("tests.integration.lake_process", str(node.directories.run), str(directory), kind, end)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def push(client: Client, first: int, count: int) -> None:
    """Distinct rows, over both cores."""
    for key in range(2):
        client.push_many([numbers(n * ROWS, ROWS) for n in range(first, first + count) if n % 2 == key], key=str(key))


def ids(directory: Path, kind: str) -> list[int]:
    return sorted(LAKES[kind].read(directory).column("id").to_pylist())


def rows_of(directory: Path, kind: str) -> int:
    try:
        return LAKES[kind].read(directory).num_rows
    except Exception:  # noqa: BLE001 - each library has its own words for a table that is not there yet
        return 0


def finish(node: ClientNode, directory: Path, kind: str) -> None:
    with forwarder(node, directory, kind, "idle") as process:
        assert process.wait(DEADLINE_SECONDS) == 0


def test_no_row_is_lost_or_doubled_at_whatever_step_it_is_killed(node: ClientNode, tmp_path: Path, kind: str) -> None:
    with node.connect() as client:
        push(client, 0, 200)
        for step in STEPS:
            with forwarder(node, tmp_path, kind, step) as process:
                assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        finish(node, tmp_path, kind)
        assert ids(tmp_path, kind) == list(range(200 * ROWS))
        with client.subscribe(SUBSCRIBER) as rest:
            assert rest.all_drained()


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
def test_kills_at_any_moment_and_of_a_worker(node: ClientNode, tmp_path: Path, kind: str) -> None:
    with node.connect() as client:
        for number in range(2):
            push(client, number * 100, 100)
            before = rows_of(tmp_path, kind)
            with forwarder(node, tmp_path, kind, "killed") as process:
                deadline = time.monotonic() + DEADLINE_SECONDS
                while rows_of(tmp_path, kind) <= before:
                    assert time.monotonic() < deadline, "no commit came"
                if number == 0:
                    node.kill_worker(0)
                process.kill()
                process.wait(DEADLINE_SECONDS)
        finish(node, tmp_path, kind)
    assert ids(tmp_path, kind) == list(range(200 * ROWS))


@pytest.mark.parametrize("kind", ["delta"], indirect=True)
def test_two_consumers_of_one_subscriber_are_slow_and_exact(node: ClientNode, tmp_path: Path, kind: str) -> None:
    """Each holds bundles that the other one waits for: what is refused comes again, until one of them is alone."""
    with node.connect() as client:
        push(client, 0, 40)
    with forwarder(node, tmp_path, kind, "killed") as one, forwarder(node, tmp_path, kind, "idle") as other:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not rows_of(tmp_path, kind):
            assert time.monotonic() < deadline, "no commit came"
        one.kill()
        assert other.wait(DEADLINE_SECONDS) == 0
    assert ids(tmp_path, kind) == list(range(40 * ROWS))
