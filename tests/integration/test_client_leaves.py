"""Acknowledgements reach the worker although the consumer calls nothing afterwards."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from quiver_actors.client import Client
from tests.integration.client_node import ClientNode, node_fixture, numbers
from tests.integration.node_process import ROOT, command_line

BUNDLES = 200
DEADLINE_SECONDS = 60.0


node = node_fixture()


@pytest.fixture(scope="module")
def client(node: ClientNode) -> Iterator[Client]:
    with node.connect() as connected:
        connected.subscribe("first").close()
        connected.push_many([numbers(n) for n in range(BUNDLES)])
        yield connected


def leave(node: ClientNode, subscriber: str, way: str) -> subprocess.Popen[bytes]:
    command = command_line(
        "tests.integration.leaving_consumer", str(node.directories.run), subscriber, str(BUNDLES), way
    )
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)


def wait_until_nothing_is_owed(client: Client, subscriber: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while owed := owed_count(client, subscriber):
        assert time.monotonic() < deadline, f"{owed} bundles are still owed"


def owed_count(client: Client, subscriber: str) -> int:
    (infos,) = client.subscribers().values()
    (info,) = (info for info in infos if info.subscriber == subscriber)
    return info.pending + info.claimed


@pytest.mark.parametrize(("way", "code"), [("return", 0), ("sigterm", -signal.SIGTERM), ("child", 0)])
def test_a_process_that_ends_sends_its_acknowledgements(node: ClientNode, client: Client, way: str, code: int) -> None:
    client.subscribe(way, start="earliest").close()
    process = leave(node, way, way)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code
    wait_until_nothing_is_owed(client, way)


def test_a_consumer_that_calls_nothing_sends_its_acknowledgements(node: ClientNode, client: Client) -> None:
    client.subscribe("silence", start="earliest").close()
    process = leave(node, "silence", "silence")
    try:
        wait_until_nothing_is_owed(client, "silence")
        assert process.poll() is None
    finally:
        process.communicate(timeout=DEADLINE_SECONDS)
