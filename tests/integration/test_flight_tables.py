"""Any Flight client finds topics and reads them, and asks in SQL: as much of them as its token may read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from quiver_actors.base.rights import Caller, TokenHolder
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from tests.integration.client_node import client_node

HOLDERS = {
    "all": TokenHolder("all", Caller.ADMIN, frozenset()),
    "some": TokenHolder("some", Caller.READ, frozenset({"travel", "nowhere"})),
    "pusher": TokenHolder("pusher", Caller.WRITE, frozenset()),
}
CONFIG = "[segment]\nmax_open_duration = '1h'\n[topics.travel]\nslots = { flights = 3, weather = 7 }\n[topics.secret]\n"


@pytest.fixture(scope="module")
def location() -> Iterator[str]:
    with client_node(cores=1, config=CONFIG) as node, node.connect() as client:
        for carrier, kind in (("AA", pa.int32()), ("UA", pa.int64())):
            flights = pa.record_batch({"carrier": [carrier] * 2, "delay": pa.array([1, 2], kind)})
            client.push({"flights": flights, "weather": pa.record_batch({"wind": [0.5]})}, topic="travel")
            client.flush("travel")
        client.push(pa.record_batch({"word": ["hidden"]}), topic="secret")
        with NodeServer(LocalNode("node-a", lambda: client), "grpc://127.0.0.1:0", holders=HOLDERS) as server:
            yield f"grpc://127.0.0.1:{server.port}"


class Asker:
    """A plain client of pyarrow, with a token."""

    def __init__(self, location: str, token: str) -> None:
        self._client = fl.connect(location)
        self._options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])

    def paths(self) -> list[list[bytes]]:
        return [info.descriptor.path for info in self._client.list_flights(options=self._options)]

    def info(self, *path: str, sql: str = "") -> fl.FlightInfo:
        found = fl.FlightDescriptor.for_command(sql) if sql else fl.FlightDescriptor.for_path(*path)
        return self._client.get_flight_info(found, self._options)

    def read(self, info: fl.FlightInfo) -> pa.Table:
        found = self._client.do_get(info.endpoints[0].ticket, self._options).read_all()
        assert found.schema == info.schema
        return found

    def sql(self, statement: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = self.read(self.info(sql=statement)).to_pylist()
        return rows


@pytest.fixture
def everybody(location: str) -> Asker:
    return Asker(location, "all")


@pytest.fixture
def some(location: str) -> Asker:
    return Asker(location, "some")


def test_topics_are_listed_and_read(everybody: Asker, some: Asker) -> None:
    assert everybody.paths() == [[b"secret", b"0"], [b"travel", b"flights"], [b"travel", b"weather"]]
    assert some.paths() == [[b"travel", b"flights"], [b"travel", b"weather"]]
    flights = some.read(some.info("travel", "flights"))
    assert flights.to_pydict() == {"carrier": ["AA", "AA", "UA", "UA"], "delay": [1, 2, 1, 2]}
    assert flights.schema.field("delay").type == pa.int64()
    assert everybody.read(everybody.info("secret")).to_pydict() == {"word": ["hidden"]}
    assert some.read(some.info("travel", "7")).num_rows == 2


def test_a_statement_is_a_command(everybody: Asker, some: Asker) -> None:
    statement = "SELECT carrier, sum(delay) AS delay FROM travel.flights GROUP BY 1 ORDER BY 1"
    assert some.sql(statement) == [{"carrier": "AA", "delay": 3}, {"carrier": "UA", "delay": 3}]
    assert everybody.sql("SELECT count(*) AS n FROM secret") == [{"n": 1}]
    assert some.sql("SELECT DISTINCT topic FROM quiver.segments") == [{"topic": "travel"}]
    assert some.sql("SELECT topic FROM quiver.topics") == [{"topic": "travel"}]


def test_what_a_token_may_not_read_is_not_there(location: str, some: Asker) -> None:
    with pytest.raises(fl.FlightServerError, match="Table with name secret does not exist"):
        some.sql("SELECT * FROM secret")
    with pytest.raises(fl.FlightUnauthorizedError, match="token 'some' may not read the topic"):
        some.info("secret")
    ticket = fl.Ticket(b'{"kind": "table", "topic": "secret", "slot": 0}')
    options = fl.FlightCallOptions(headers=[(b"authorization", b"Bearer some")])
    with pytest.raises(fl.FlightUnauthorizedError, match="token 'some' may not read the topic"):
        fl.connect(location).do_get(ticket, options).read_all()
    pusher = Asker(location, "pusher")
    for call in (pusher.paths, lambda: pusher.info("travel", "flights"), lambda: pusher.info(sql="SELECT 1")):
        with pytest.raises(fl.FlightUnauthorizedError, match="token is for writing"):
            call()
    with pytest.raises(fl.FlightUnauthenticatedError):
        Asker(location, "guessed").paths()


def test_wrong_calls_are_refused(some: Asker) -> None:
    for path, reason in (
        (("travel",), "flights, weather"),
        (("travel", "trains"), "trains"),
        (("nowhere",), "nowhere"),
    ):
        with pytest.raises(fl.FlightServerError, match=reason):
            some.info(*path)
    with pytest.raises(fl.FlightServerError, match="names no flight"):
        some.info("travel", "flights", "earliest", "2026-01-31T12:00Z", "more")
    for statement in ("COPY (SELECT 1) TO '/tmp/x'", "SELECT * FROM read_text('/etc/passwd')", "SELEC 1"):
        with pytest.raises(fl.FlightServerError):
            some.info(sql=statement)
