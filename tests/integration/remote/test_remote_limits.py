"""What one token may have of a server: calls at a time, and datasets that no other token can use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from quiver_actors.base.rights import Caller, TokenHolder
from quiver_actors.base.units import KIB, MIB
from quiver_actors.client import Client
from quiver_actors.errors import ClosedError, NotAllowed, QuotaExceeded
from quiver_actors.flight.client import RemoteClient, connect_remote
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from tests.integration.client_node import numbers
from tests.integration.remote.servers import Served

SCHEMA = pa.schema([("id", pa.int64())])
HOLDERS = {
    name: TokenHolder(name, role, frozenset({"other"}))
    for name, role in (("greedy", Caller.ADMIN), ("modest", Caller.ADMIN), ("writer", Caller.WRITE))
}


@pytest.fixture
def server(local: Client) -> Iterator[NodeServer]:
    node = LocalNode("node-a", lambda: local)
    with NodeServer(node, "grpc://127.0.0.1:0", holders=HOLDERS) as made:
        yield made


@pytest.fixture
def clients(server: NodeServer) -> Iterator[dict[str, RemoteClient]]:
    found = {name: connect_remote(f"grpc://127.0.0.1:{server.port}", token=name) for name in HOLDERS}
    yield found
    for client in found.values():
        client.close()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline


def test_calls_of_one_token_have_a_limit_and_those_of_others_go_on(
    server: NodeServer, clients: dict[str, RemoteClient]
) -> None:
    server.calls.most = 20
    greedy = clients["greedy"]
    line = fl.connect(f"grpc://127.0.0.1:{server.port}")
    given = fl.FlightCallOptions(headers=[(b"authorization", b"Bearer greedy")])
    # Pushes that never send anything.
    path = fl.FlightDescriptor.for_path("other")
    writers = [line.do_put(path, SCHEMA, given)[0] for _ in range(20)]
    until(lambda: server.calls.count(HOLDERS["greedy"]) == 20)
    calls: list[Callable[[], object]] = [
        greedy.topics,
        lambda: greedy.push(numbers(1), topic="other"),
        lambda: greedy.sql("SELECT 1").read_all(),
        lambda: greedy.subscribe("s", topic="other"),
    ]
    for call in calls:
        with pytest.raises(QuotaExceeded, match=r"token 'greedy' has 20 calls under way.*nothing was done"):
            call()
    assert clients["modest"].push(numbers(2), topic="other")
    assert clients["modest"].sql("SELECT count(*) AS n FROM other").read_all().num_rows == 1
    for writer in writers:
        writer.close()
    until(lambda: server.calls.count(HOLDERS["greedy"]) == 0)
    assert greedy.push(numbers(3), topic="other")
    line.close()


def test_what_a_compressed_message_becomes_is_bounded_and_the_server_goes_on(served: Served) -> None:
    token = (b"authorization", f"Bearer {served.token_file.read_text()}".encode())
    options = fl.FlightCallOptions(headers=[token], write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    path = fl.FlightDescriptor.for_path("other")
    with fl.connect(served.url, tls_root_certs=served.certificate.read_bytes()) as line:
        zeros = bytes(600 * MIB)
        bomb = pa.record_batch({"id": pa.Array.from_buffers(pa.int8(), len(zeros), [None, pa.py_buffer(zeros)])})
        writer, _ = line.do_put(path, bomb.schema, options)
        with pytest.raises(fl.FlightServerError, match=r"quota_exceeded:.*no memory left.*serve\.memory"):  # noqa: PT012
            writer.write_batch(bomb)
            writer.close()
        small = pa.record_batch({"id": [1] * 1000})
        writer, answers = line.do_put(path, small.schema, options)
        writer.write_batch(small)
        assert answers.read().to_pybytes(), "what is compressed and fits is stored"
        writer.close()
    with served.connect() as client:
        assert client.push(numbers(5), topic="other")
    peak = Path(f"/proc/{served.process.pid}/status").read_text().split("VmHWM:")[1].split()[0]
    assert int(peak) * KIB < 500 * MIB, "nothing of it was decompressed"


def test_a_dataset_is_the_token_s_that_opened_it(server: NodeServer, clients: dict[str, RemoteClient]) -> None:
    clients["modest"].push(numbers(4), topic="other")
    dataset = clients["modest"].dataset("other")
    # Another token that knows the id neither reads nor closes it.
    (key,) = server._node.remote_clients.datasets._open
    stranger = clients["greedy"].dataset("other")
    stranger._keeping.opened = dataset._keeping.opened
    with pytest.raises(ClosedError):
        stranger.to_table()
    clients["greedy"]._datasets._forgotten.append(key)
    clients["greedy"]._datasets.tell()
    assert dataset.count_rows() >= 3
    for call in (lambda: clients["writer"].dataset("other"), lambda: clients["modest"].dataset("travel", "flights")):
        with pytest.raises(NotAllowed):
            call()
