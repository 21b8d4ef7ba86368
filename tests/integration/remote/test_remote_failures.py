"""Clients of another host whose server, process or connection goes away, or is not who it should be."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.client import Client
from quiver_actors.errors import (
    ConfigError,
    DurabilityUnknown,
    NotAllowed,
    ProtocolError,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.flight.client import connect_remote
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from tests.integration.client_node import ClientNode, first_id, numbers
from tests.integration.node_process import command_line
from tests.integration.remote.servers import DEADLINE_SECONDS, Served, Stalling, pushing, stored


def test_a_bundle_whose_answer_was_lost_may_be_stored(node: ClientNode, local: Client) -> None:
    server, told = Stalling(node), list[object]()
    with connect_remote(f"grpc://127.0.0.1:{server.port}") as client:
        thread = pushing(client, told, 77)
        server.kill_when_stored()
        thread.join(DEADLINE_SECONDS)
    (error,) = told
    assert isinstance(error, DurabilityUnknown), error
    assert "may be stored" in str(error)
    assert stored(local, "lost").count(77) == 1


def test_a_numbered_bundle_whose_answer_was_lost_is_pushed_again_and_stored_once(
    node: ClientNode, local: Client
) -> None:
    server, told = Stalling(node), list[object]()
    with connect_remote(f"grpc://127.0.0.1:{server.port}") as client:
        thread = pushing(client, told, 78, producer="q", sequence=0, timeout=120.0)
        server.kill_when_stored()
        with NodeServer(LocalNode("node-a", lambda: local), f"grpc://127.0.0.1:{server.port}"):
            thread.join(DEADLINE_SECONDS)
    (receipt,) = told
    assert isinstance(receipt, quiver_actors.Receipt), receipt
    assert receipt.duplicate
    assert stored(local, "lost").count(78) == 1


def test_a_push_that_was_never_taken_says_that_nothing_is_stored(served: Served, local: Client) -> None:
    with served.connect() as client:
        client.push(numbers(1), topic="lost")
        served.kill()
        with pytest.raises(WorkerUnavailable, match="nothing of this push was stored"):
            client.push(numbers(79), topic="lost", timeout=1.0)
        told: list[object] = []
        thread = pushing(client, told, 80, timeout=120.0)
        served.start()
        thread.join(DEADLINE_SECONDS)
    assert isinstance(told[0], quiver_actors.Receipt), told
    assert (stored(local, "lost").count(79), stored(local, "lost").count(80)) == (0, 1)


def test_bundles_of_earlier_messages_are_not_said_to_be_lost(served: Served, local: Client) -> None:
    def bundles() -> Iterator[pa.RecordBatch]:
        for number in (
            90,
            91,
        ):  # together more than a message holds, so the first one leaves before the next bundle is asked for
            yield pa.record_batch({"id": [number], "fill": [bytes(3 << 20)]})
        served.kill()
        yield pa.record_batch({"id": [92], "fill": [b""]})

    with (
        served.connect() as client,
        pytest.raises(DurabilityUnknown, match="the first 1 bundles of this push are stored"),
    ):
        client.push_many(bundles(), topic="lost", timeout=8.0)
    assert [stored(local, "lost").count(number) for number in (90, 91, 92)] == [1, 0, 0]


def test_who_cannot_be_reached_or_believed_is_told_at_once(served: Served, tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(WorkerUnavailable, match="cannot be reached"):
        connect_remote("grpc://127.0.0.1:1", timeout=DEADLINE_SECONDS)
    assert time.monotonic() - begun < DEADLINE_SECONDS
    with pytest.raises(WorkerUnavailable):
        connect_remote(served.url, token="a secret")
    with pytest.raises(NotAllowed, match="does not take this token"):
        connect_remote(served.url, token="another", tls_roots=served.certificate)
    with pytest.raises(ConfigError, match="tls_roots"):
        connect_remote(served.url, tls_roots=tmp_path / "nothing")
    with pytest.raises(ConfigError, match="one of them"):
        connect_remote(served.url, token="a", token_file=served.token_file)
    with pytest.raises(UsageError, match="no place of a Flight server"):
        connect_remote("nonsense")
    served.token_file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod"):
        served.connect()


def test_a_subscription_outlives_its_server(served: Served, local: Client) -> None:
    with served.connect() as client, client.subscribe("survivor") as deliveries:
        client.push_many([numbers(n) for n in range(10)])
        taken = [deliveries.get(DEADLINE_SECONDS) for _ in range(10)]
        for delivery in taken[:4]:
            delivery.ack()
        deliveries.flush()
        served.kill()
        taken[4].ack()
        with pytest.raises(WorkerUnavailable):
            deliveries.get(0.1)
        served.start()
        again = [deliveries.get(DEADLINE_SECONDS) for _ in range(6)]
        assert [first_id(each) for each in again] == [4, 5, 6, 7, 8, 9]
        with pytest.raises(WorkerUnavailable, match="delivered again"):
            deliveries.flush()
        with pytest.raises(WorkerUnavailable):
            taken[5].ack().wait()
        assert deliveries.claims_lost == 1
        for delivery in again:
            delivery.ack()
        assert deliveries.flush() == []
        assert deliveries.pending_count() == 0


def test_what_a_dead_client_held_goes_back(local: Client) -> None:
    node = LocalNode("node-a", lambda: local)
    node.remote_clients.consumers.idle_seconds = 1.0
    with NodeServer(node, "grpc://127.0.0.1:0") as server:
        url = f"grpc://127.0.0.1:{server.port}"
        program = (
            "import sys, quiver_actors\n"
            "deliveries = quiver_actors.connect_remote(sys.argv[1]).subscribe('mortal')\n"
            "print('ready', flush=True)\n"
            "print(deliveries.get(60).bundle_id, flush=True)\n"
            "input()\n"
        )
        command = [*command_line("quiver_actors.cli.main")[:1], "-c", program, url]
        with (
            connect_remote(url) as client,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        ):
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            receipt = client.push(numbers(1))
            assert child.stdout.readline() == f"{receipt.bundle_id}\n"
            with client.subscribe("mortal") as deliveries:
                # It is idle for longer than a second: what it holds stays its own, as it gives signs of life.
                assert deliveries.get(2.5) is None
                child.kill()
                assert deliveries.get(DEADLINE_SECONDS).bundle_id == receipt.bundle_id


def test_versions_that_differ_are_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.flight.remote_contract.REMOTE_VERSION", 99)
    with pytest.raises(ProtocolError, match=r"version 99 .*this server version 3"):
        served.connect()
