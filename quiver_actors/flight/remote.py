"""A node of another host, through its Flight server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.errors import ConfigError, NotAllowed, ProtocolError, QuiverError, WorkerUnavailable, error_classes
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSchemas,
    AskSlotRows,
    AskWeights,
    ConfirmGap,
    Contents,
    Done,
    DropRun,
    Look,
    Publish,
    ReadTicket,
    Request,
    Schemas,
    SlotRows,
    Weights,
)

T = TypeVar("T")

ERROR_PREFIX = "quiver:"
"""How a server marks the message of an error that is one of ours: `quiver:<code>:<message>`."""


class RemoteNode:
    """One connection, made when it is first needed. Methods may be called by several threads."""

    def __init__(
        self,
        name: str,
        location: str,
        *,
        token: str | None = None,
        tls_roots: str | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        """
        Args:
            location: `grpc://host:port` or `grpc+tls://host:port`.
            token: what the server was started with; None: `$QUIVER_TOKEN`, if that is set.
            tls_roots: PEM file of the certificates to trust; None: those of the system.
        """
        self.name = name
        self.location = location
        self._token = token or os.environ.get("QUIVER_TOKEN")
        self._tls_roots = tls_roots
        self._timeout_seconds = timeout_seconds
        self._connection: fl.FlightClient | None = None
        self._lock = threading.Lock()

    def look(self, request: Look) -> Contents:
        """Ask the node's Flight server what it stores of a topic."""
        return self._ask(request, Contents)

    def schemas(self, topic: str) -> Schemas:
        """Ask the node's Flight server for the distinct schemas of a topic."""
        return self._ask(AskSchemas(topic), Schemas)

    def slot_rows(self, request: AskSlotRows) -> SlotRows:
        """Ask the node's Flight server for the rows of each slot."""
        return self._ask(request, SlotRows)

    def weights(self, request: AskWeights) -> Weights:
        """Ask the node's Flight server for rows and stored bytes of the bundles of one segment."""
        return self._ask(request, Weights)

    def acknowledge(self, request: Acknowledge) -> None:
        """Acknowledge through the node's Flight server; the token needs the role `admin`."""
        self._ask(request, Done)

    def confirm_gap(self, request: ConfirmGap) -> None:
        """Acknowledge a gap notice through the node's Flight server; the token needs the role `admin`."""
        self._ask(request, Done)

    def publish(self, tokens: Sequence[str]) -> None:
        """Publish through the node's Flight server; the token needs the role `write` or `admin`."""
        self._ask(Publish(list(tokens)), Done)

    def drop_run(self, request: DropRun) -> None:
        """Drop a run through the node's Flight server; the token needs the role `write` or `admin`."""
        self._ask(request, Done)

    def read(self, ticket: ReadTicket) -> Iterator[pa.RecordBatch]:
        """Batches as they arrive. An answer that does not come for the timeout ends with an error."""
        try:
            # No deadline for the whole stream: its consumer may be slow.
            reader = self._connected().do_get(fl.Ticket(msgspec.json.encode(ticket)), self._options(None))
            for chunk in reader:
                yield chunk.data
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._explained(error) from error

    def close(self) -> None:
        """Close the connection to the server; the next request opens another one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _ask(self, request: Request, answer: type[T]) -> T:
        action = fl.Action(type(request).__name__, msgspec.json.encode(request))
        try:
            (result,) = self._connected().do_action(action, self._options(self._timeout_seconds))
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._explained(error) from error
        return msgspec.json.decode(result.body.to_pybytes(), type=answer)

    def _connected(self) -> fl.FlightClient:
        with self._lock:
            if self._connection is None:
                roots = None if self._tls_roots is None else _read_roots(self._tls_roots)
                self._connection = fl.connect(self.location, tls_root_certs=roots)
            return self._connection

    def _options(self, timeout_seconds: float | None) -> fl.FlightCallOptions:
        headers = [] if self._token is None else [(b"authorization", f"Bearer {self._token}".encode())]
        return fl.FlightCallOptions(timeout=timeout_seconds, headers=headers)

    def _explained(self, error: Exception) -> QuiverError:
        """Return the Quiver error that the server named, else the Quiver error that a Flight error means for this node."""
        text = str(error)
        start = text.find(ERROR_PREFIX)
        if start >= 0:
            code, _, message = text[start + len(ERROR_PREFIX) :].partition(":")
            kind = error_classes().get(code)
            if kind is not None:
                return kind.__new__(
                    kind, f"node {self.name} ({self.location}): {message.split('. gRPC client debug')[0]}"
                )
        where = f"node {self.name} at {self.location}"
        if isinstance(error, fl.FlightUnauthenticatedError):
            return NotAllowed(
                f"{where} does not take this token: give option 'token' or QUIVER_TOKEN as `quiver serve` has it"
            )
        if isinstance(error, (fl.FlightUnavailableError, fl.FlightTimedOutError)):
            self.close()
            return WorkerUnavailable(f"{where} cannot be reached ({text[:300]}): is its `quiver serve` running?")
        return ProtocolError(f"{where} answered with an error: {text[:1000]}")


def _read_roots(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"the certificates to trust ({path}) cannot be read: {error.strerror}; name a PEM file of this host with option 'tlsRoots'"
        ) from error
