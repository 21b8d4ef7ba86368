"""Rights through Flight: each cell of the table of rights, at a real server; and what errors tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest

from quiver_actors.base.rights import ROLES, TABLE, Caller, TokenHolder, verdict
from quiver_actors.errors import (
    ClosedError,
    NotAllowed,
    ProtocolError,
    QuiverError,
    TransactionDecided,
)
from quiver_actors.flight import contract as c
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FlightConnection
from quiver_actors.flight.frames import FRAMES
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote import RemoteNode
from quiver_actors.flight.server import REQUESTS, NodeServer
from quiver_actors.transactions import Token
from tests.integration.spark_node import Node

SCHEMA = pa.schema([("n", pa.int64())])
TOKENS = {f"{role.value} token": TokenHolder(role.value, role, frozenset({"default"})) for role in ROLES}
TOKENS["other admin token"] = TokenHolder("other", Caller.ADMIN, frozenset({"default", "nowhere"}))
HOLD = c.HoldTerms("reader", 10**10, {})


class Server(NodeServer):
    """One whose node has a bug."""

    breaks = False

    def _answer(self, request: c.Request) -> object:
        if self.breaks:
            raise ZeroDivisionError("secret of the server")
        return super()._answer(request)


class Asker(RemoteNode):
    """Makes the calls of a node of another host, and of a remote client."""

    def __init__(self, location: str, token: str) -> None:
        super().__init__("node-a", location, token=token)
        self.line = FlightConnection("node-a", location, token=token, tls_roots=None)

    def close(self) -> None:
        super().close()
        self.line.close()


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


def remote(server: Server, token: str) -> Asker:
    return Asker(f"grpc://127.0.0.1:{server.port}", token)


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


def act(node: Asker, request: object) -> object:
    """Send an action of remote clients."""
    return node.line.ask(request, object, 60.0)


def put(node: Asker, topic: str) -> None:
    """Push as any Flight client does."""
    connection = node.line
    try:
        client, options = connection.client(), connection.options(60.0)
        writer, reader = client.do_put(fl.FlightDescriptor.for_path(topic), SCHEMA, options)
        writer.write_batch(pa.record_batch({"n": [1]}, schema=SCHEMA))
        writer.done_writing()
        reader.read()
        writer.close()
    except (fl.FlightError, pa.ArrowException) as error:
        raise connection.explained(error) from error


def terms(**changed: Any) -> fl.FlightDescriptor:
    """The descriptor of a push of remote clients."""
    right = rc.PushTerms(rc.REMOTE_VERSION, "default", 10**9)
    return fl.FlightDescriptor.for_command(msgspec.json.encode(msgspec.structs.replace(right, **changed)))


def opening(topic: str) -> rc.OpenDataset:
    """A request for a dataset of everything."""
    return rc.OpenDataset(
        rc.REMOTE_VERSION, topic, None, rc.Bounds(), None, None, None, metadata=False, skip_damaged=False
    )


def frames(facts: bytes, slots: bytes, streams: list[bytes | None]) -> pa.RecordBatch:
    """One bundle of a push, as somebody may send it."""
    return many_of([(facts, slots, streams)])


def many(facts: bytes, stream: bytes, count: int) -> pa.RecordBatch:
    return many_of([(facts, b"\x00", [stream])] * count)


def many_of(rows: Sequence[tuple[bytes, bytes, list[bytes | None]]]) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), FRAMES, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=FRAMES)


def putting(
    client: fl.FlightClient,
    given: fl.FlightCallOptions,
    descriptor: fl.FlightDescriptor,
    message: pa.RecordBatch | None = None,
) -> None:
    """Push a message, by default a plain batch; raises what the server says."""
    batch = pa.record_batch({"n": [1]}, schema=SCHEMA) if message is None else message
    writer, reader = client.do_put(descriptor, batch.schema, given)
    with contextlib.suppress(fl.FlightError, pa.ArrowException, OSError):
        writer.write_batch(batch)
        writer.done_writing()
    while reader.read() is not None:
        pass
    writer.close()


def stream_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


FACTS = msgspec.msgpack.encode(rc.PushedFacts())
STREAM = stream_of(pa.record_batch({"n": [1]}, schema=SCHEMA))
_ENDS = pa.py_buffer(b"\0\0\0\0" + b"\xff\xff\xff\x7f" + b"\1\0\0\0")
OUTSIDE = pa.Array.from_buffers(pa.string(), 2, [None, _ENDS, pa.py_buffer(b"x")])
"""Texts, the first of which ends far behind their buffer."""
WRONG = stream_of(pa.RecordBatch.from_arrays([OUTSIDE], ["s"]))


BEHIND = bytes(
    (pc.field("z") > 1).to_substrait(pa.schema([(f"c{n}", pa.int64()) for n in range(40)] + [("z", pa.int64())]))
)
"""A condition on a column that there is not."""


def scanning(client: fl.FlightClient, given: fl.FlightCallOptions, where: bytes) -> bytes:
    """The ticket of a scan with that condition."""
    (answer,) = client.do_action(fl.Action("OpenDataset", msgspec.json.encode(opening("default"))), given)
    opened = msgspec.json.decode(answer.body.to_pybytes(), type=rc.OpenedDataset)
    return msgspec.json.encode(rc.ScanTicket(opened.dataset, ["n"], where))


WHATEVER_TOPIC = {
    "flight.Greet": "seen",
    "flight.Consume": "held",
    "flight.ScanTicket": "held",
    "flight.CloseDatasets": "held",
    "flight.AskStatus": "seen",
}
"""Rows that are about no topic, with the verdict that lets the call through."""

CALLS: dict[str, Callable[[Asker, str], object]] = {
    "flight.ReadTicket": lambda node, topic: list(node.read(c.ReadTicket(topic, {"0": 0}, [], c.schema_bytes(SCHEMA)))),
    "flight.TableTicket": lambda node, topic: list(node.read(cast(c.ReadTicket, c.TableTicket(topic, 0)))),
    "flight.Look": lambda node, topic: node.look(c.Look(topic)),
    "flight.Look: hold": lambda node, topic: node.look(c.Look(topic, hold=HOLD)),
    "flight.AskSchemas": lambda node, topic: node.schemas(topic),
    "flight.AskSlotRows": lambda node, topic: node.slot_rows(c.AskSlotRows(topic, {})),
    "flight.AskWeights": lambda node, topic: node.weights(c.AskWeights(topic, 0, 999, None)),
    "flight.Acknowledge": lambda node, topic: node.acknowledge(c.Acknowledge(topic, "nobody", 0, 0, 0)),
    "flight.ConfirmGap": lambda node, topic: node.confirm_gap(c.ConfirmGap(topic, "nobody", 0, 1)),
    "flight.Greet": lambda node, topic: act(node, rc.Greet(rc.REMOTE_VERSION)),
    "flight.OpenDataset": lambda node, topic: act(node, opening(topic)),
    "flight.ScanTicket": lambda node, topic: list(node.read(cast(c.ReadTicket, rc.ScanTicket("nothing", [])))),
    "flight.CloseDatasets": lambda node, topic: act(node, rc.CloseDatasets(["nothing"])),
    "flight.AskSubscribers": lambda node, topic: act(node, rc.AskSubscribers(topic)),
    "flight.AskStatus": lambda node, topic: act(node, rc.AskStatus()),
    "flight.BundlesTicket": lambda node, topic: list(node.read(cast(c.ReadTicket, rc.BundlesTicket(topic, 0)))),
    "flight.Push": put,
    "flight.Subscribe": lambda node, topic: act(node, rc.Subscribe(rc.REMOTE_VERSION, topic, "s", {})),
    "flight.Consume": lambda node, topic: act(node, rc.Consume("nothing", rc.Resolve([]))),
    "flight.Publish": lambda node, topic: node.publish([token_of(topic)]),
    "flight.DropRun": lambda node, topic: node.drop_run(c.DropRun(topic, "t", 0)),
}


def test_every_row_of_the_table_is_tried() -> None:
    assert set(CALLS) == {name for name in TABLE if name.startswith("flight.")}
    others = {"ReadTicket", "TableTicket", "ScanTicket", "BundlesTicket", "Push"}
    assert {name.partition(".")[2].partition(":")[0] for name in CALLS} - others == set(REQUESTS)


@pytest.mark.parametrize("row", CALLS)
def test_every_cell(server: Server, row: str) -> None:
    for role in ROLES:
        caller = remote(server, f"{role.value} token")
        for topic, column in (("default", role), ("closed", Caller.STRANGER)):
            if row in WHATEVER_TOPIC:
                column = role
            if verdict(row, column).value in ("yes", WHATEVER_TOPIC.get(row)):
                with contextlib.suppress(QuiverError):
                    CALLS[row](caller, topic)
                    continue
                with pytest.raises(QuiverError) as told:
                    CALLS[row](caller, topic)
                assert not isinstance(told.value, NotAllowed), (role, topic)
            else:
                with pytest.raises(
                    NotAllowed,
                    match=f"token '{role.value}' may not .*" + ("" if row in WHATEVER_TOPIC else f"topic '{topic}'"),
                ):
                    CALLS[row](caller, topic)
        caller.close()


def test_a_topic_of_the_token_that_is_not_there_tells_no_other_names(server: Server) -> None:
    caller, told = remote(server, "other admin token"), []
    for row in CALLS.keys() - WHATEVER_TOPIC.keys():
        try:
            CALLS[row](caller, "nowhere")
        except QuiverError as error:
            told.append(f"{row}: {error}")
    assert any("topic 'nowhere' does not exist" in each for each in told)
    assert [each for each in told if "closed" in each] == []
    caller.close()


def test_dead_letters_go_where_the_token_may_push(server: Server) -> None:
    caller = remote(server, "admin token")
    request = rc.Subscribe(rc.REMOTE_VERSION, "default", "s", {"dead_letter_topic": "closed", "max_deliveries": 1})
    with pytest.raises(NotAllowed, match="topic 'closed'"):
        act(caller, request)
    caller.close()


def test_a_subscription_is_the_token_s_that_opened_it(server: Server) -> None:
    owner = remote(server, "admin token")
    opened = owner.line.ask(rc.Subscribe(rc.REMOTE_VERSION, "default", "own", {}), rc.Subscribed, 60.0)
    for token, kind in (("other admin token", ClosedError), ("read token", NotAllowed)):
        other = remote(server, token)
        with pytest.raises(kind):
            act(other, rc.Consume(opened.subscription, rc.EndSubscription()))
        with pytest.raises(kind):
            list(other.read(cast(c.ReadTicket, rc.TakeTicket(opened.subscription, 1, 1, 0))))
        other.close()
    act(owner, rc.Consume(opened.subscription, rc.EndSubscription()))
    with pytest.raises(ClosedError):
        act(owner, rc.Consume(opened.subscription, rc.EndSubscription()))
    owner.close()


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
        lambda client, given: client.do_get(fl.Ticket(scanning(client, given, b"nonsense")), given).read_all(),
        lambda client, given: client.do_get(fl.Ticket(scanning(client, given, BEHIND)), given).read_all(),
        lambda client, given: client.get_flight_info(fl.FlightDescriptor.for_path("x"), given),
        lambda client, given: client.get_schema(fl.FlightDescriptor.for_path("x"), given),
        lambda client, given: putting(client, given, fl.FlightDescriptor.for_path("x")),
        lambda client, given: putting(client, given, fl.FlightDescriptor.for_path()),
        lambda client, given: putting(client, given, fl.FlightDescriptor.for_path("default", "no slot")),
        lambda client, given: putting(client, given, fl.FlightDescriptor.for_command(b"")),
        lambda client, given: putting(client, given, fl.FlightDescriptor.for_command(b"{}")),
        lambda client, given: putting(client, given, terms(version=99)),
        lambda client, given: putting(client, given, terms(timeout_ns=-1)),
        lambda client, given: putting(client, given, terms()),
        lambda client, given: putting(client, given, terms(), frames(b"x", b"", [])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x00", [])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x00\x00", [STREAM, STREAM])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x00", [None])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x40", [STREAM])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x00", [STREAM[:-30]])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x00", [b""])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"\x00", [WRONG])),
        lambda client, given: putting(client, given, terms(), frames(FACTS, b"", [])),
        lambda client, given: putting(client, given, terms(producer=""), frames(FACTS, b"\x00", [STREAM])),
        lambda client, given: putting(client, given, terms(), many(FACTS, STREAM, rc.PUSH_BUNDLES_MAX + 1)),
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
