"""What generic Flight clients are offered: each slot of a topic as a flight, and SQL statements as commands.

A flight's descriptor is the path (topic, slot); (topic) alone will do where there is one slot. A time behind them is where the flight
begins, also where that is only in the archive, and a second one is where it ends. A command is the text of a statement, or a JSON object
of the statement and these two times.
Tickets are read when they are used, so they show what is stored then. To a caller there are no topics but those that it may read.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.config.tree import ServeSettings
from quiver_actors.base.model import SlotTable
from quiver_actors.base.rights import TokenHolder, Verdict, require, verdict
from quiver_actors.base.widening import SchemaConflict, unambiguous, widen
from quiver_actors.client import Client
from quiver_actors.errors import ProtocolError, UsageError
from quiver_actors.flight.callers import check_allowed
from quiver_actors.flight.contract import SqlTicket, TableTicket
from quiver_actors.flight.remote_contract import RemoteTicket
from quiver_actors.flight.statements import Statements
from quiver_actors.query.schemas import filterable
from quiver_actors.query.snapshot import names_of
from quiver_actors.query.span import unix_ns_of

_READS = "flight.TableTicket"
EARLIEST = "earliest"
"""Stands for a time: the flight begins with the oldest bundle that the node's archive has."""
_UNIX_NS_MAX = (1 << 63) - 1
_DIGITS_MAX = 19
_SHOWN_CHARS = 60
_EXPECTED_COMMAND = (
    "expected the text of a statement, or a JSON object such as "
    '{"sql": "SELECT ...", "start": "earliest", "end": "2026-01-31T12:00Z"}'
)


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
            UnknownTopic, UnknownSlot, UsageError: there is no such flight, or the statement or a time is wrong.
            NotStored: what lies between its start and the disk is not in the archive either.
            QueryLimit: the statement needs more memory or time than it may use. QuotaExceeded: too many are under way.
            ProtocolError: the descriptor is neither a path nor a command.
        """
        if descriptor.descriptor_type == fl.DescriptorType.CMD:
            asked = asked_by(descriptor.command)
            return _described(descriptor, asked, self._sql(holder, asked).schema)
        named = _Path.of([part.decode() for part in descriptor.path or ()])
        check_allowed(holder, TableTicket(named.topic, 0))
        dataset = self._client().dataset(named.topic, named.slot, start=named.start_ns, end=named.end_ns)
        ticket = TableTicket(named.topic, dataset.slot_id, named.start_ns, named.end_ns)
        return self._info(ticket, dataset.schema, named.times)

    def read(self, holder: TokenHolder, ticket: TableTicket | SqlTicket) -> pa.RecordBatchReader:
        """Read what a ticket is for. Raises as `flight`, and as a dataset while rows are read."""
        if isinstance(ticket, SqlTicket):
            return self._sql(holder, ticket)
        check_allowed(holder, ticket)
        dataset = self._client().dataset(ticket.topic, ticket.slot, start=ticket.start_ns, end=ticket.end_ns)
        return dataset.scanner().to_reader()

    def _sql(self, holder: TokenHolder, ticket: SqlTicket) -> pa.RecordBatchReader:
        topics = self._readable_topics(holder)
        return self._statements.run(
            holder,
            lambda limits: self._client().sql(
                ticket.statement, topics=topics, start=ticket.start_ns, end=ticket.end_ns, limits=limits
            ),
        )

    def _readable_topics(self, holder: TokenHolder) -> list[str]:
        require(holder, holder.role, _READS, "any topic")
        return [topic for topic in self._client().topics() if verdict(_READS, holder.caller(topic)) is Verdict.YES]

    def _info(self, ticket: TableTicket, schema: pa.Schema, times: Sequence[str] = ()) -> fl.FlightInfo:
        info = self._client().topics().get(ticket.topic)
        (name,) = names_of(SlotTable(info.slots if info else None), [ticket.slot])
        return _described(fl.FlightDescriptor.for_path(ticket.topic, name, *times), ticket, schema)


def decoded_ticket(ticket: bytes) -> RemoteTicket | None:
    """The ticket of a flight or of a remote client; None: it is another one."""
    try:
        found: RemoteTicket = msgspec.json.decode(ticket, type=RemoteTicket)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found


def _described(descriptor: fl.FlightDescriptor, ticket: TableTicket | SqlTicket, schema: pa.Schema) -> fl.FlightInfo:
    return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(msgspec.json.encode(ticket), [])], -1, -1)


class _Path(NamedTuple):
    """What the path of a descriptor names."""

    topic: str
    slot: str | int | None
    start_ns: int | None
    end_ns: int | None
    times: tuple[str, ...]
    """The times as the path has them."""

    @classmethod
    def of(cls, path: list[str]) -> _Path:
        """
        Raises:
            ProtocolError: it names no flight.
            UsageError: a time in it is none.
        """
        if not 1 <= len(path) <= 4:
            raise ProtocolError(
                f"path {path!r} names no flight: expected a topic, a slot, where it begins and where it ends, or a SQL statement as command"
            )
        topic, slot, start, end = [*path, "", "", ""][:4]
        return cls(topic, slot_named(slot) if slot else None, _unix_ns(start), _unix_ns(end), tuple(path[2:]))


class _Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement, and the times between which topics hold anything to it: texts as in a path, or UNIX nanoseconds."""

    sql: str
    start: str | int | None = None
    end: str | int | None = None


def asked_by(command: bytes) -> SqlTicket:
    """Return the question of a command: the text of a statement, or a JSON object, which no statement begins like.

    Raises:
        UsageError: it begins like an object and is not the one that is expected, or a time in it is none.
        ProtocolError: it is no text.
    """
    try:
        text = command.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the command of a flight is no UTF-8: {error}; {_EXPECTED_COMMAND}") from error
    if not text.lstrip().startswith("{"):
        return SqlTicket(text)
    try:
        found = msgspec.json.decode(text, type=_Command)
    except msgspec.DecodeError as error:
        raise UsageError(f"the command of a flight cannot be read: {error}; {_EXPECTED_COMMAND}") from error
    start_ns, end_ns = (None if bound is None else _time(str(bound)) for bound in (found.start, found.end))
    return SqlTicket(found.sql, start_ns, end_ns)


def _unix_ns(time: str) -> int | None:
    """The time that a path has, UNIX nanoseconds; None where it has none. Raises UsageError: the text is no time."""
    return _time(time) if time else None


def _time(text: str) -> int:
    """UNIX nanoseconds. Raises UsageError: the text is no time."""
    if text == EARLIEST:
        return 0
    if text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= _UNIX_NS_MAX:
        return int(text)
    with contextlib.suppress(ValueError):
        found = datetime.datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return unix_ns_of("time", found)
    raise UsageError(
        f"{text[:_SHOWN_CHARS]!r} is no time of a flight: expected {EARLIEST!r}, a time with its zone such as 2026-01-31T12:00Z, or UNIX "
        "nanoseconds"
    )


def slot_named(name: str) -> str | int:
    """Return the slot of a flight's path: its name, or its number."""
    return int(name) if name.isdecimal() else name
