"""Rights through Flight: each cell of the table of rights, at a real server; and what errors tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from quiver_actors.base.rights import ROLES, TABLE, Caller, TokenHolder, Verdict, verdict
from quiver_actors.errors import NotAllowed, ProtocolError, QuiverError, TransactionDecided
from quiver_actors.flight import contract as c
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote import RemoteNode
from quiver_actors.flight.server import REQUESTS, NodeServer
from quiver_actors.transactions import Token
from tests.integration.spark_node import Node

SCHEMA = pa.schema([("n", pa.int64())])
TOKENS = {f"{role.value} token": TokenHolder(role.value, role, frozenset({"default"})) for role in ROLES}
HOLD = c.HoldTerms("reader", 10**10, {})


class Server(NodeServer):
    """One whose node has a bug."""

    breaks = False

    def _answer(self, request: c.Request) -> object:
        if self.breaks:
            raise ZeroDivisionError("secret of the server")
        return super()._answer(request)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node("node = 'node-a'\n[topics.closed]\n")
    with node.client() as client:
        client.push(pa.record_batch({"n": [1, 2]}, schema=SCHEMA))
    yield node
    node.remove()


@pytest.fixture
def server(node: Node) -> Iterator[Server]:
    with (
        node.client() as client,
        Server(LocalNode("node-a", lambda: client), "grpc://127.0.0.1:0", holders=TOKENS) as made,
    ):
        yield made


def remote(server: Server, token: str) -> RemoteNode:
    return RemoteNode("node-a", f"grpc://127.0.0.1:{server.port}", token=token)


def token_of(topic: str) -> str:
    return Token(
        txn_id="t",
        epoch=0,
        partition=0,
        attempt=0,
        node="n",
        topic=topic,
        core=0,
        incarnation="00" * 16,
        number=1,
        bundles=1,
        rows=1,
        size_bytes=1,
        expires_unix_ns=1,
    ).encode()


CALLS: dict[str, Callable[[RemoteNode, str], object]] = {
    "flight.ReadTicket": lambda node, topic: list(node.read(c.ReadTicket(topic, {"0": 0}, [], c.schema_bytes(SCHEMA)))),
    "flight.TableTicket": lambda node, topic: list(node.read(cast(c.ReadTicket, c.TableTicket(topic, 0)))),
    "flight.Look": lambda node, topic: node.look(c.Look(topic)),
    "flight.Look: hold": lambda node, topic: node.look(c.Look(topic, hold=HOLD)),
    "flight.AskSchemas": lambda node, topic: node.schemas(topic),
    "flight.AskSlotRows": lambda node, topic: node.slot_rows(c.AskSlotRows(topic, {})),
    "flight.AskWeights": lambda node, topic: node.weights(c.AskWeights(topic, 0, 999, None)),
    "flight.Acknowledge": lambda node, topic: node.acknowledge(c.Acknowledge(topic, "nobody", 0, 0, 0)),
    "flight.ConfirmGap": lambda node, topic: node.confirm_gap(c.ConfirmGap(topic, "nobody", 0, 1)),
    "flight.Publish": lambda node, topic: node.publish([token_of(topic)]),
    "flight.DropRun": lambda node, topic: node.drop_run(c.DropRun(topic, "t", 0)),
}


def test_every_row_of_the_table_is_tried() -> None:
    assert set(CALLS) == {name for name in TABLE if name.startswith("flight.")}
    assert {name.partition(".")[2].partition(":")[0] for name in CALLS} - {"ReadTicket", "TableTicket"} == set(REQUESTS)


@pytest.mark.parametrize("row", CALLS)
def test_every_cell(server: Server, row: str) -> None:
    for role in ROLES:
        caller = remote(server, f"{role.value} token")
        for topic, column in (("default", role), ("closed", Caller.STRANGER)):
            if verdict(row, column) is Verdict.YES:
                with contextlib.suppress(QuiverError):
                    CALLS[row](caller, topic)
                    continue
                with pytest.raises(QuiverError) as told:
                    CALLS[row](caller, topic)
                assert not isinstance(told.value, NotAllowed), (role, topic)
            else:
                with pytest.raises(NotAllowed, match=f"token '{role.value}' may not .*topic '{topic}'"):
                    CALLS[row](caller, topic)
        caller.close()


def test_nobody_without_a_token_is_answered(server: Server) -> None:
    client = fl.connect(f"grpc://127.0.0.1:{server.port}")
    for call in (lambda: list(client.list_actions()), lambda: list(client.do_action("Look"))):
        with pytest.raises(fl.FlightUnauthenticatedError):
            call()
    client.close()


def test_the_actions_are_listed(server: Server) -> None:
    client = fl.connect(f"grpc://127.0.0.1:{server.port}")
    found = {action.type: action.description for action in client.list_actions(options("read token"))}
    assert set(found) == set(REQUESTS)
    assert all(found.values())
    client.close()


def options(token: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


@pytest.mark.parametrize(
    "call",
    [
        lambda client, given: list(client.do_action(fl.Action("Look", b"{"), given)),
        lambda client, given: list(client.do_action(fl.Action("Look", b"\xff\xfe"), given)),
        lambda client, given: list(client.do_action(fl.Action("Nothing", b""), given)),
        lambda client, given: list(client.do_action(fl.Action("Publish", b'{"type":"Publish","tokens":["x"]}'), given)),
        lambda client, given: client.do_get(fl.Ticket(b"nonsense"), given).read_all(),
        lambda client, given: client.do_get(
            fl.Ticket(msgspec.json.encode(c.ReadTicket("default", {"0": 0}, [], b"no schema"))), given
        ).read_all(),
        lambda client, given: client.get_flight_info(fl.FlightDescriptor.for_path("x"), given),
        lambda client, given: client.get_schema(fl.FlightDescriptor.for_path("x"), given),
        lambda client, given: client.do_put(fl.FlightDescriptor.for_path("x"), SCHEMA, given)[1].read(),
        lambda client, given: client.do_exchange(fl.FlightDescriptor.for_path("x"), given)[1].read_all(),
    ],
)
def test_no_traceback_leaves_the_server(
    server: Server, call: Callable[[fl.FlightClient, fl.FlightCallOptions], object]
) -> None:
    client = fl.connect(f"grpc://127.0.0.1:{server.port}")
    with pytest.raises((fl.FlightError, pa.ArrowException, OSError)) as told:
        call(client, options("admin token"))
    client.close()
    text = str(told.value)
    assert "quiver:" in text, text
    assert "Traceback" not in text
    assert ".py" not in text


def test_what_nobody_expected_is_said_without_its_words(server: Server) -> None:
    server.breaks = True
    caller = remote(server, "read token")
    with pytest.raises(ProtocolError, match="ZeroDivisionError") as told:
        caller.look(c.Look("default"))
    assert "secret" not in str(told.value)
    assert ".py" not in str(told.value)
    caller.close()


def test_a_committed_transaction_is_dropped_by_nobody_and_published(server: Server, node: Node) -> None:
    with node.client() as client:
        staged = client.stage("kept")
        staged.push(pa.record_batch({"n": [7]}, schema=SCHEMA))
        token = staged.prepare()
        assert token is not None
        client.decide("kept", 0, [token])
        caller = remote(server, "admin token")
        with pytest.raises(TransactionDecided, match="publish the tokens"):
            caller.drop_run(c.DropRun("default", "kept", 0))
        caller.publish([token.encode()])
        caller.close()
        assert not any(client.staged().values())
