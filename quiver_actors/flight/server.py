"""The Flight server of a node: what programs on other hosts may ask it (`contract`), carried out as a client of its workers.

It has no state of its own but open holds and the consumers of remote clients. Who calls and what it may do is in `callers`. Bytes of a
Spark job's pushes never pass here: they go through shared memory on their own host. Those of remote clients do (`pushes`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.rights import TokenHolder
from quiver_actors.client import Client
from quiver_actors.errors import ClosedError, ProtocolError, WorkerUnavailable
from quiver_actors.flight.callers import (
    MIDDLEWARE,
    TokenCheck,
    call_limit,
    check_allowed,
    explained,
    explaining,
    holder_of,
)
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSchemas,
    AskSlotRows,
    AskWeights,
    ConfirmGap,
    Done,
    DropRun,
    Look,
    Publish,
    ReadTicket,
    Request,
    SqlTicket,
    TableTicket,
    schema_of,
)
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote_clients import RemoteRequest
from quiver_actors.flight.remote_contract import (
    AskStatus,
    AskSubscribers,
    CloseDatasets,
    Consume,
    Greet,
    OpenDataset,
    Subscribe,
)
from quiver_actors.flight.tables import decoded_ticket

REQUESTS: dict[str, type[Request | RemoteRequest]] = {
    kind.__name__: kind
    for kind in (
        *(Look, AskSchemas, AskSlotRows, AskWeights, Acknowledge, ConfirmGap, Publish, DropRun),
        *(Greet, Subscribe, Consume, OpenDataset, CloseDatasets, AskSubscribers, AskStatus),
    )
}
_HOLDS_LOOKED_AT_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


class NodeServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves one node until `shutdown`. Calls run in threads of Flight."""

    def __init__(
        self,
        node: LocalNode,
        location: str,
        *,
        holders: Mapping[str, TokenHolder] = {},
        tls_certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """
        Args:
            location: where to listen, `grpc://host:port` or, with a certificate, `grpc+tls://host:port`; port 0: any free one.
            holders: who sends which token; callers that send none of them are refused. Empty: everybody may do everything.
            tls_certificate: (chain, key), PEM.

        Raises:
            OSError: the address cannot be listened on.
        """
        self.calls = call_limit()
        """The calls of each token that are under way."""
        super().__init__(
            location,
            middleware={MIDDLEWARE: TokenCheck(holders, self.calls)},
            tls_certificates=None if tls_certificate is None else [tls_certificate],
        )
        self._node = node
        self._ended = threading.Event()
        threading.Thread(target=self._tend_holds, name="quiver-holds", daemon=True).start()

    @explained
    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        """Answer one request of the contract: its name is the action's type, its body JSON. The token's role is checked first."""
        kind = REQUESTS.get(action.type)
        if kind is None:
            raise ProtocolError(f"action {action.type!r} is unknown: expected one of {', '.join(REQUESTS)}")
        request = msgspec.json.decode(action.body.to_pybytes(), type=kind)
        holder = holder_of(context)
        if isinstance(request, RemoteRequest):
            return iter([msgspec.json.encode(self._node.remote_clients.answer(holder, request))])
        check_allowed(holder, request)
        try:
            return iter([msgspec.json.encode(self._answer(request))])
        except ClosedError as error:
            if self._ended.is_set():
                raise WorkerUnavailable(f"node {self._node.name} does not answer, and its server is ending") from error
            raise

    @explained
    def list_actions(self, context: fl.ServerCallContext) -> list[fl.ActionType]:
        """List the requests that `do_action` answers, each with one line."""
        return [fl.ActionType(name, _summary(kind)) for name, kind in REQUESTS.items()]

    @explained
    def list_flights(self, context: fl.ServerCallContext, criteria: bytes) -> Iterator[fl.FlightInfo]:
        """List the slots of the topics that the caller may read; `criteria` is not looked at."""
        return iter(list(self._node.tables.flights(holder_of(context))))

    @explained
    def get_flight_info(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """Describe a slot of a topic (path), or the result of a SQL statement (command)."""
        return self._node.tables.flight(holder_of(context), descriptor)

    @explained
    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Stream the rows of a ticket in the ticket's schema, or its flight's; the token's role is checked first."""
        holder = holder_of(context)
        table = decoded_ticket(ticket.ticket)
        if table is not None:
            if isinstance(table, TableTicket | SqlTicket):
                reader = self._node.tables.read(holder, table)
            else:
                reader = self._node.remote_clients.read(holder, table)
            return _stream(reader.schema, iter(reader))
        wanted = msgspec.json.decode(ticket.ticket, type=ReadTicket)
        check_allowed(holder, wanted)
        schema = schema_of(wanted.schema)
        return _stream(schema, self._node.read(wanted))

    @explained
    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        """Store bundles, and answer with their receipts when they are as durable as these say; the token's role is checked first."""
        self._node.remote_clients.pushes.put(holder_of(context), descriptor, reader, writer)

    def shutdown(self, *, ended: Client | None = None) -> None:
        """End the server, the consumers and holds of its callers, and its background thread. Calls that are under way are waited for.

        Args:
            ended: the client of a node that has ended, to close: nobody is waited for who waits for its workers to come back.
        """
        self._ended.set()
        if ended is not None:
            ended.close()
        self._node.remote_clients.close()
        super().shutdown()
        self._node.close()

    def __exit__(self, *_: object) -> None:
        # The one of Flight calls its own shutdown, not this class's.
        self.shutdown()

    def _answer(self, request: Request) -> Any:
        node = self._node
        match request:
            case Look():
                return node.look(request)
            case AskSchemas():
                return node.schemas(request.topic, archive=request.archive)
            case AskSlotRows():
                return node.slot_rows(request)
            case AskWeights():
                return node.weights(request)
            case Acknowledge():
                node.acknowledge(request)
            case ConfirmGap():
                node.confirm_gap(request)
            case Publish():
                node.publish(request.tokens)
            case DropRun():
                node.drop_run(request)
        return Done()

    def _tend_holds(self) -> None:
        remote_clients = self._node.remote_clients
        while not self._ended.wait(max(_PAUSE_SECONDS, min(_HOLDS_LOOKED_AT_SECONDS, remote_clients.idle_seconds / 4))):
            self._node.close_idle_holds()
            remote_clients.close_idle()


def _stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> fl.GeneratorStream:
    # Flight sends the dictionaries of a generator's tables, and not those of its batches (apache/arrow issue 38480).
    sent = (pa.Table.from_batches([batch]) if batch.num_columns else batch for batch in explaining(batches))
    return fl.GeneratorStream(schema, sent)


def _summary(kind: type[Request | RemoteRequest]) -> str:
    """Describe an action in one line."""
    return ((kind.__doc__ or "").strip() or kind.__name__).splitlines()[0]
