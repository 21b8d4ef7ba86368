"""What a node offers remote clients (`flight.client`): a greeting, pushes, subscriptions, and the stored bundles of a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.base.rights import TokenHolder, Verdict, require, verdict
from quiver_actors.client import Client
from quiver_actors.errors import ProtocolError, UsageError
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.callers import check_topic
from quiver_actors.flight.consumers import Consumers, stored_facts
from quiver_actors.flight.contract import Done
from quiver_actors.flight.datasets import Datasets
from quiver_actors.flight.frames import FRAMES, Frame, framed
from quiver_actors.flight.node_status import visible
from quiver_actors.flight.pushes import Pushes, version_text

RemoteRequest = (
    rc.Greet | rc.Subscribe | rc.Consume | rc.OpenDataset | rc.CloseDatasets | rc.AskSubscribers | rc.AskStatus
)
_BYTES_OF_BATCH = 4 << 20


TellStatus = Callable[[], dict[str, Any]]
"""Returns the document of `quiver status --json`."""


def tell_nothing() -> dict[str, Any]:
    """Refuse. Raises UsageError: this server was made without a way to look."""
    raise UsageError("this server cannot tell how the node is: `quiver serve` can")


def _sees(holder: TokenHolder, topic: str) -> bool:
    return verdict("flight.AskStatus", holder.caller(topic)) is Verdict.SEEN


class RemoteClients:
    """The remote clients of one node. Several threads may call its methods."""

    def __init__(self, node: str, client: Callable[[], Client], status: TellStatus = tell_nothing) -> None:
        """`client` returns the client to use, `status` how the node is."""
        self.pushes = Pushes(client)
        self.consumers = Consumers(client)
        self.datasets = Datasets(client)
        self._node = node
        self._client = client
        self._status = status

    def answer(self, holder: TokenHolder, request: RemoteRequest) -> Any:
        """Carry out an action.

        Raises:
            NotAllowed: the token may not.
            ProtocolError: the client speaks another version.
            And as `Consumers` and `Datasets` have it.
        """
        if isinstance(request, rc.Greet | rc.Subscribe | rc.OpenDataset) and request.version != rc.REMOTE_VERSION:
            raise ProtocolError(version_text(request.version))
        match request:
            case rc.OpenDataset():
                check_topic(holder, "flight.OpenDataset", request.topic)
                return self.datasets.open(holder, request)
            case rc.CloseDatasets():
                require(holder, holder.role, "flight.CloseDatasets")
                self.datasets.close_some(holder, request.datasets)
                return Done()
            case rc.AskSubscribers():
                check_topic(holder, "flight.AskSubscribers", request.topic)
                return rc.Subscribers(self._client().subscribers(request.topic))
            case rc.AskStatus():
                require(holder, holder.role, "flight.AskStatus")
                return rc.Status(visible(self._status(), partial(_sees, holder)))
            case rc.Greet():
                require(holder, holder.role, "flight.Greet")
                topics = self._client().topics().values()
                seen = [info for info in topics if verdict("flight.Greet", holder.caller(info.name)) is Verdict.SEEN]
                return rc.Greeting(rc.REMOTE_VERSION, self._node, seen)
            case rc.Subscribe():
                check_topic(holder, "flight.Subscribe", request.topic)
                if dead_letters := request.options.get("dead_letter_topic"):
                    check_topic(holder, "flight.Push", str(dead_letters))
                return self.consumers.open(holder, request)
            case rc.Consume():
                require(holder, holder.role, "flight.Consume")
                return self.consumers.consume(holder, request)

    def read(
        self, holder: TokenHolder, ticket: rc.ScanTicket | rc.BundlesTicket | rc.TakeTicket | rc.ClaimTicket
    ) -> pa.RecordBatchReader:
        """Read the rows that a ticket is for, or its bundles, as `frames` has them.

        Raises:
            As `answer`; and while they are read, as a dataset, or `Client.read`.
        """
        if isinstance(ticket, rc.ScanTicket):
            require(holder, holder.role, "flight.ScanTicket")
            return self.datasets.read(holder, ticket)
        if isinstance(ticket, rc.BundlesTicket):
            check_topic(holder, "flight.BundlesTicket", ticket.topic)
            return pa.RecordBatchReader.from_batches(FRAMES, self._stored(ticket))
        require(holder, holder.role, "flight.Consume")
        return pa.RecordBatchReader.from_batches(FRAMES, [self.consumers.take(holder, ticket)])

    @property
    def idle_seconds(self) -> float:
        """After so long without a call, consumers or datasets may be forgotten."""
        return min(self.consumers.idle_seconds, self.datasets.idle_seconds)

    def close_idle(self) -> None:
        """End consumers, and forget datasets, of which nothing was heard for too long."""
        self.consumers.close_idle()
        self.datasets.close_idle()

    def close(self) -> None:
        """End all consumers, and forget all datasets."""
        self.consumers.close()
        self.datasets.close()

    def _stored(self, ticket: rc.BundlesTicket) -> Iterator[pa.RecordBatch]:
        start, end = (
            None if at is None else BundleId(ticket.topic, ticket.core, *at) for at in (ticket.start, ticket.end)
        )
        columns = dict(ticket.columns)
        found = self._client().read(ticket.topic, ticket.core, start, end, slots=ticket.slots, columns=columns)
        frames: list[Frame] = []
        size_bytes = 0
        for bundle in found:
            frames.append(Frame(stored_facts(bundle), bundle.slots))
            size_bytes += sum(batch.nbytes for batch in frames[-1].batches.values())
            if size_bytes >= _BYTES_OF_BATCH or len(frames) >= rc.TAKEN_BUNDLES_MAX:
                yield framed(frames)
                frames, size_bytes = [], 0
        yield framed(frames)
