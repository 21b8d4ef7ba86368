"""What generic Flight clients are offered: each slot of a topic as a flight, and SQL statements as commands.

A flight's descriptor is the path (topic, slot); (topic) alone will do where there is one slot. A command is the text of a statement.
Tickets are read when they are used, so they show what is stored then. To a caller there are no topics but those that it may read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.config.tree import ServeSettings
from quiver_actors.base.model import SlotTable
from quiver_actors.base.rights import TokenHolder, Verdict, require, verdict
from quiver_actors.base.widening import SchemaConflict, unambiguous, widen
from quiver_actors.client import Client
from quiver_actors.errors import ProtocolError
from quiver_actors.flight.callers import check_allowed
from quiver_actors.flight.contract import SqlTicket, TableTicket
from quiver_actors.flight.remote_contract import RemoteTicket
from quiver_actors.flight.statements import Statements
from quiver_actors.query.schemas import filterable
from quiver_actors.query.snapshot import names_of

_READS = "flight.TableTicket"


class NodeTables:
    """The flights of one node. Several threads may call its methods."""

    def __init__(self, client: Callable[[], Client], settings: ServeSettings) -> None:
        """`client` returns the client to use."""
        self._client = client
        self._statements = Statements(settings)

    def flights(self, holder: TokenHolder) -> Iterator[fl.FlightInfo]:
        """Describe everything that is stored of the topics that the caller may read. Raises NotAllowed where its role reads none."""
        client = self._client()
        for topic in sorted(self._readable_topics(holder)):
            by_slot: dict[int, list[pa.Schema]] = {}
            for held in client.schemas(topic):
                by_slot.setdefault(held.slot_id, []).append(unambiguous(held.schema))
            for slot_id, schemas in sorted(by_slot.items()):
                # What has no common schema is no flight; who asks for it by name is told why.
                with contextlib.suppress(SchemaConflict):
                    yield self._info(TableTicket(topic, slot_id), filterable(widen(schemas)))

    def flight(self, holder: TokenHolder, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """Describe one flight, or the result of a statement.

        Raises:
            NotAllowed: the caller may not read it.
            UnknownTopic, UnknownSlot, UsageError: there is no such flight, or the statement is wrong.
            QueryLimit: the statement needs more memory or time than it may use. QuotaExceeded: too many are under way.
            ProtocolError: the descriptor is neither a path nor a command.
        """
        if descriptor.descriptor_type == fl.DescriptorType.CMD:
            statement = descriptor.command.decode()
            return _described(descriptor, SqlTicket(statement), self._sql(holder, statement).schema)
        path = [part.decode() for part in descriptor.path or ()]
        if not 1 <= len(path) <= 2:
            raise ProtocolError(
                f"path {path!r} names no flight: expected a topic and a slot, or a SQL statement as command"
            )
        check_allowed(holder, TableTicket(path[0], 0))
        dataset = self._client().dataset(path[0], slot_named(path[1]) if len(path) > 1 else None)
        return self._info(TableTicket(path[0], dataset.slot_id), dataset.schema)

    def read(self, holder: TokenHolder, ticket: TableTicket | SqlTicket) -> pa.RecordBatchReader:
        """Read what a ticket is for. Raises as `flight`, and as a dataset while rows are read."""
        if isinstance(ticket, SqlTicket):
            return self._sql(holder, ticket.statement)
        check_allowed(holder, ticket)
        return self._client().dataset(ticket.topic, ticket.slot).scanner().to_reader()

    def _sql(self, holder: TokenHolder, statement: str) -> pa.RecordBatchReader:
        topics = self._readable_topics(holder)
        return self._statements.run(holder, lambda limits: self._client().sql(statement, topics=topics, limits=limits))

    def _readable_topics(self, holder: TokenHolder) -> list[str]:
        require(holder, holder.role, _READS, "any topic")
        return [topic for topic in self._client().topics() if verdict(_READS, holder.caller(topic)) is Verdict.YES]

    def _info(self, ticket: TableTicket, schema: pa.Schema) -> fl.FlightInfo:
        info = self._client().topics().get(ticket.topic)
        (name,) = names_of(SlotTable(info.slots if info else None), [ticket.slot])
        return _described(fl.FlightDescriptor.for_path(ticket.topic, name), ticket, schema)


def decoded_ticket(ticket: bytes) -> RemoteTicket | None:
    """The ticket of a flight or of a remote client; None: it is another one."""
    try:
        found: RemoteTicket = msgspec.json.decode(ticket, type=RemoteTicket)
    except msgspec.DecodeError:
        return None
    return found


def _described(descriptor: fl.FlightDescriptor, ticket: TableTicket | SqlTicket, schema: pa.Schema) -> fl.FlightInfo:
    return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(msgspec.json.encode(ticket), [])], -1, -1)


def slot_named(name: str) -> str | int:
    """Return the slot of a flight's path: its name, or its number."""
    return int(name) if name.isdecimal() else name
