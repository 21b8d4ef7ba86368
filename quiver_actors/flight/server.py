"""The Flight server of a node: what programs on other hosts may ask it (`contract`), carried out as a client of its workers.

It has no state of its own but open holds. Whoever reaches it may read all topics and publish prepared bundles, so it takes a token, and
TLS where the network is not trusted. Bytes of pushes never pass here: they go through shared memory on their own host.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.errors import ProtocolError, QuiverError
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
    schema_of,
)
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote import ERROR_PREFIX

_REQUESTS: dict[str, type[Request]] = {
    kind.__name__: kind
    for kind in (Look, AskSchemas, AskSlotRows, AskWeights, Acknowledge, ConfirmGap, Publish, DropRun)
}
_HOLDS_LOOKED_AT_SECONDS = 10.0


class NodeServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves one node until `shutdown`. Calls run in threads of Flight."""

    def __init__(
        self,
        node: LocalNode,
        location: str,
        *,
        token: str | None = None,
        tls_certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """
        Args:
            location: where to listen, `grpc://host:port` or, with a certificate, `grpc+tls://host:port`; port 0: any free one.
            token: refuse callers that do not send it.
            tls_certificate: (chain, key), PEM.

        Raises:
            OSError: the address cannot be listened on.
        """
        super().__init__(
            location,
            middleware={"token": _TokenCheck(token)},
            tls_certificates=None if tls_certificate is None else [tls_certificate],
        )
        self._node = node
        self._ended = threading.Event()
        threading.Thread(target=self._tend_holds, name="quiver-holds", daemon=True).start()

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        kind = _REQUESTS.get(action.type)
        with _Explained():
            if kind is None:
                raise ProtocolError(f"action {action.type!r} is unknown: expected one of {', '.join(_REQUESTS)}")
            answer = self._answer(msgspec.json.decode(action.body.to_pybytes(), type=kind))
            return iter([msgspec.json.encode(answer)])

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        return [(name, (kind.__doc__ or "").strip().splitlines()[0]) for name, kind in _REQUESTS.items()]

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        with _Explained():
            wanted = msgspec.json.decode(ticket.ticket, type=ReadTicket)
            schema = schema_of(wanted.schema)
            return fl.GeneratorStream(schema, _explaining(self._node.read(wanted)))

    def shutdown(self) -> None:
        self._ended.set()
        super().shutdown()

    def _answer(self, request: Request) -> Any:
        node = self._node
        match request:
            case Look():
                return node.look(request)
            case AskSchemas():
                return node.schemas(request.topic)
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
        while not self._ended.wait(_HOLDS_LOOKED_AT_SECONDS):
            self._node.close_idle_holds()


class _TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls through that carry the token."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()

    def start_call(self, info: fl.CallInfo, headers: dict[str, list[Any]]) -> None:
        if self._expected is None:
            return
        sent = next(iter(headers.get("authorization", [])), "")
        if not hmac.compare_digest(sent.encode() if isinstance(sent, str) else sent, self._expected):
            raise fl.FlightUnauthenticatedError("no token, or not the one of this node")


class _Explained:
    """Our errors travel with their code."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (QuiverError, msgspec.DecodeError, UnicodeDecodeError)):
            raise _travelling(error) from error


def _explaining(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except QuiverError as error:
        raise _travelling(error) from error


def _travelling(error: Exception) -> fl.FlightServerError:
    code = error.code if isinstance(error, QuiverError) else ProtocolError.code
    return fl.FlightServerError(f"{ERROR_PREFIX}{code}:{error}")
