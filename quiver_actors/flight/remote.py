"""A node of another host, through its Flight server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.flight.connection import FlightConnection
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
        self._timeout_seconds = timeout_seconds
        self._connection = FlightConnection(
            name, location, token=token or os.environ.get("QUIVER_TOKEN"), tls_roots=tls_roots
        )

    def look(self, request: Look) -> Contents:
        """Ask the node's Flight server what it stores of a topic."""
        return self._ask(request, Contents)

    def schemas(self, topic: str, *, archive: bool = False) -> Schemas:
        """Ask the node's Flight server for the distinct schemas of a topic."""
        return self._ask(AskSchemas(topic, archive), Schemas)

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
            connection = self._connection
            reader = connection.client().do_get(fl.Ticket(msgspec.json.encode(ticket)), connection.options(None))
            for chunk in reader:
                yield chunk.data
        except (fl.FlightError, pa.ArrowException) as error:
            raise self._connection.explained(error) from error

    def close(self) -> None:
        """Close the connection to the server; the next request opens another one."""
        self._connection.drop()

    def _ask(self, request: Request, answer: type[T]) -> T:
        return self._connection.ask(request, answer, self._timeout_seconds)
