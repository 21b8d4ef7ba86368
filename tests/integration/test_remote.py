"""Clients of another host, over real `quiver serve` processes with TLS and tokens: what arrives, what is told, and what survives whom."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.aio import connect_remote as connect_remote_of_asyncio
from quiver_actors.client import Client, GapNotice
from quiver_actors.errors import (
    BundleTooLarge,
    ConfigError,
    DurabilityUnknown,
    InvalidBundle,
    NotAllowed,
    ProtocolError,
    QuiverError,
    StorageFull,
    Throttled,
    UnknownSlot,
    UnknownTopic,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.flight.client import RemoteClient, connect_remote
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.not_remote import NotRemote
from quiver_actors.flight.server import NodeServer
from tests.integration import flight_tls
from tests.integration.client_node import ClientNode, client_node, first_id, numbers
from tests.integration.node_process import command_line

CONFIG = """
[retention]
size_cap = "1GiB"

[segment]
target_size = "1MiB"

[topics.travel]
slots = { flights = 3, weather = 7 }

[topics.other]
[topics.lost]
[topics.holes]
[topics.full]
[topics.full.retention]
cap_share = "2%"
size_cap_policy = "reject"
"""
DEADLINE_SECONDS = 60.0


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(cores=2, config=CONFIG) as started:
        yield started


@pytest.fixture(scope="module")
def local(node: ClientNode) -> Iterator[Client]:
    with node.connect() as connected:
        yield connected


class Served:
    """`quiver serve` with TLS and a token, which is started again on the same port."""

    def __init__(self, node: ClientNode, directory: Path) -> None:
        self.certificate, self._key = flight_tls.written_to(directory)
        self.token_file = directory / "token"
        self.token_file.write_text("a secret")
        self.token_file.chmod(0o600)
        self._node = node
        self.url = "grpc+tls://127.0.0.1:0"
        self.start()

    def start(self) -> None:
        address = self.url.rpartition("/")[2]
        options = [
            "--run-dir",
            str(self._node.directories.run),
            "--listen",
            address,
            "--token-file",
            str(self.token_file),
        ]
        options += ["--tls-cert", str(self.certificate), "--tls-key", str(self._key)]
        command = command_line("quiver_actors.cli.main", "serve", *options)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("quiver serving:"), line
        self.url = line.partition("location=")[2].partition(" ")[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def connect(self, **options: float) -> RemoteClient:
        return connect_remote(self.url, token_file=self.token_file, tls_roots=self.certificate, **options)


@pytest.fixture
def served(node: ClientNode, tmp_path: Path) -> Iterator[Served]:
    made = Served(node, tmp_path)
    yield made
    made.kill()


def until(condition: object) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        os.sched_yield()


def stored(client: Client, topic: str) -> list[int]:
    """The first values of all bundles of a topic."""
    cores = client.readable(topic)
    return [bundle.batch.column(0)[0].as_py() for core in cores for bundle in client.read(topic, core)]


def test_a_client_with_tls_and_a_token_does_what_a_local_one_does(served: Served, local: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bundle = {"flights": numbers(1), "weather": numbers(2, 2)}
    with quiver_actors.connect_remote(served.url, token="a secret", tls_roots=served.certificate) as client:
        with client.subscribe("exporter", topic="travel") as deliveries:
            receipt = client.push(bundle, topic="travel", item_count=5, trace_context=trace)
            delivery = deliveries.get(DEADLINE_SECONDS)
            assert delivery.bundle_id == receipt.bundle_id
            assert isinstance(delivery, quiver_actors.Delivery)
            assert (delivery.item_count, delivery.row_count, delivery.delivery_count) == (5, 5, 1)
            assert delivery.trace_context == {"traceparent": trace}
            (kept,) = local.read("travel", receipt.bundle_id.core)
            (far,) = client.read("travel", receipt.bundle_id.core)
            for each in (delivery, far):
                assert each["flights"].equals(bundle["flights"])
                assert each[7].equals(bundle["weather"])
                assert (each.incarnation, each.ingestion_unix_ns) == (kept.incarnation, kept.ingestion_unix_ns)
            assert client.sql("SELECT sum(id) AS s FROM travel.flights").read_all().to_pydict() == {"s": [6]}
            assert client.schema("travel", "flights") == local.schema("travel", "flights")
            assert client.topics() == local.topics()
            delivery.ack().wait()
            assert deliveries.all_drained()
            assert local.subscribers("travel")[receipt.bundle_id.core][0].pending == 0
        assert client.read("travel", receipt.bundle_id.core, slots=["weather"]).__next__().slot_ids == (7,)


def test_bundles_come_as_they_were_whatever_their_types(served: Served, local: Client) -> None:
    batches = [
        pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode(), "n": pa.array([None, 1, 2])}),
        pa.record_batch({"l": pa.array([[1], None, []]), "v": pa.array(["x" * 40, None, ""], pa.string_view())}),
        pa.record_batch({"e": pa.array([], pa.float64())}),
        pa.record_batch({"s": pa.array([{"a": 1}, None])}).slice(1),
        pa.record_batch(
            [pa.array([1])], schema=pa.schema([pa.field("m", pa.int64(), metadata={"k": "v"})], {"a": "b"})
        ),
    ]
    with served.connect() as client, client.subscribe("types") as deliveries:
        client.push_many(batches)
        for batch in batches:
            with deliveries.get(DEADLINE_SECONDS) as delivery:
                delivery.batch.validate(full=True)
                assert delivery.batch.equals(batch, check_metadata=True)


def test_large_bundles_and_many_of_them(served: Served, local: Client) -> None:
    large = pa.record_batch({"b": pa.array([b"x" * (1 << 20)] * 40)})
    with served.connect() as client, client.subscribe("large") as deliveries:
        receipts = client.push_many([large, *map(numbers, range(2000)), large])
        assert len(receipts) == 2002
        found = [deliveries.get(DEADLINE_SECONDS) for _ in receipts]
        assert [each.bundle_id for each in found] == [receipt.bundle_id for receipt in receipts]
        assert found[0].batch.equals(large)
        assert found[-1].batch.equals(large)
        assert [first_id(each) for each in found[1:-1]] == list(range(2000))


def test_what_cannot_be_pushed_is_told_as_at_home(served: Served, local: Client) -> None:
    cases: list[tuple[object, str, type[QuiverError]]] = [
        (numbers(1), "nowhere", UnknownTopic),
        (numbers(1), "travel", UnknownSlot),
        ({"nothing": numbers(1)}, "travel", UnknownSlot),
        (5, "default", InvalidBundle),
        ({}, "default", InvalidBundle),
    ]
    with served.connect() as client:
        for bundle, topic, kind in cases:
            for each in (client, local):
                with pytest.raises(kind):
                    each.push(bundle, topic=topic)  # type: ignore[arg-type]
        huge = pa.record_batch({"n": pa.array(range(1 << 20))})
        with pytest.raises(BundleTooLarge):
            client.push(dict.fromkeys(range(40), huge))
        before = len(stored(local, "default"))
        with pytest.raises(InvalidBundle):
            client.push_many([numbers(1), numbers(2), 5])  # type: ignore[list-item]
        assert len(stored(local, "default")) == before + 2
        with pytest.raises(UsageError, match="producer and sequence"):
            client.push(numbers(1), producer="p")
        with pytest.raises(UsageError, match="600"):
            client.push(numbers(1), timeout=601)


def test_a_full_topic_refuses_over_there_as_at_home(served: Served, local: Client) -> None:
    block = pa.record_batch({"b": pa.array([os.urandom(100_000)])})
    with local.subscribe("keeper", topic="full", start="earliest"), served.connect() as client:
        refused: list[type[QuiverError]] = []
        for each in (local, client):
            with pytest.raises((Throttled, StorageFull)) as told:
                each.push_many([block] * 500, topic="full", timeout=5.0)
            refused.append(type(told.value))
            assert told.value.retriable
        assert refused[0] is refused[1]


def test_a_number_is_stored_once(served: Served, local: Client) -> None:
    with served.connect() as client:
        first = client.push_many([numbers(n) for n in range(3)], topic="other", producer="p", sequence=5)
        again = client.push_many([numbers(n) for n in range(4)], topic="other", producer="p", sequence=5)
        assert [receipt.duplicate for receipt in again] == [True, True, True, False]
        assert [receipt.bundle_id for receipt in again][:3] == [receipt.bundle_id for receipt in first]


class Stalling:
    """A server in a process of its own that stores and does not answer."""

    def __init__(self, node: ClientNode) -> None:
        command = command_line("tests.integration.stalling_server", str(node.directories.run), "0")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._said = self._process.stdout
        self.port = int(self._said.readline())

    def kill_when_stored(self) -> None:
        assert self._said.readline() == "stored\n"
        self._process.kill()
        self._process.wait()
        self._said.close()


def pushing(client: RemoteClient, told: list[object], number: int, **key: object) -> threading.Thread:
    """Push in a thread, and append the receipt or the error to `told`."""

    def push() -> None:
        try:
            told.append(client.push(numbers(number), topic="lost", **key))  # type: ignore[arg-type]
        except QuiverError as error:
            told.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    return thread


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


def test_what_is_not_there_refuses_by_its_name(served: Served) -> None:
    with served.connect() as client, client.subscribe("names") as deliveries:
        for name in ("dataset", "stage", "create_topic", "unsubscribe", "hold"):
            with pytest.raises(NotRemote, match=name):
                getattr(client, name)
        with pytest.raises(NotRemote, match="batches"):
            deliveries.batches()
        assert not hasattr(client, "nothing_at_all")
        with pytest.raises(UsageError, match="asyncio"):
            connect_remote_of_asyncio(served.url)


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


def test_gap_notices_are_told_until_they_were_taken(served: Served, local: Client) -> None:
    with local.subscribe("gaps", topic="holes"):
        pass
    receipts = [local.push(numbers(n), topic="holes") for n in range(3)]
    local.seek("gaps", receipts[2].bundle_id, topic="holes")
    with served.connect() as client:
        seen: list[GapNotice] = []

        def fail(notice: GapNotice) -> None:
            seen.append(notice)
            raise LookupError

        with client.subscribe("gaps", topic="holes", on_gap=fail) as deliveries, pytest.raises(LookupError):
            deliveries.get(DEADLINE_SECONDS)
        with client.subscribe("gaps", topic="holes", gaps="deliver") as deliveries:
            notice = deliveries.get(DEADLINE_SECONDS)
            assert notice == seen[0]
            assert (notice.reason, notice.bundle_count, deliveries.gap_count) == ("dropped", 2, 1)
            assert first_id(deliveries.get(DEADLINE_SECONDS)) == 2
        with client.subscribe("gaps", topic="holes", gaps="deliver") as deliveries:
            assert first_id(deliveries.get(DEADLINE_SECONDS)) == 2


def test_versions_that_differ_are_told(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.flight.remote_contract.REMOTE_VERSION", 99)
    with pytest.raises(ProtocolError, match=r"version 99 .*this server version 1"):
        served.connect()


def test_leases_are_extended_and_end(served: Served) -> None:
    with served.connect() as client, client.subscribe("leases", lease=2.0) as deliveries:
        client.push_many([numbers(n) for n in range(3)])
        first, second, third = (deliveries.get(DEADLINE_SECONDS) for _ in range(3))
        assert first.lease_until_ns is not None
        before = first.lease_until_ns
        until(lambda: time.monotonic_ns() > before - 10**9)
        first.extend()
        assert first.lease_until_ns > before
        third.ack()
        deliveries.flush()
        assert deliveries.extend([first, third]) == [third]
        with client.subscribe("leases", lease=2.0) as other:
            again = other.get(DEADLINE_SECONDS)
            assert again.bundle_id in (first.bundle_id, second.bundle_id)
            assert again.token > second.token
