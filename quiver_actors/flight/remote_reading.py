"""The methods of `RemoteClient` that read what is stored: bundles, rows, datasets and answers to SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl

from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.client import StoredBundle
from quiver_actors.client.known_topics import TopicInfos
from quiver_actors.client.projection import Asked
from quiver_actors.client.ranges import check_bounds
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.stored_range import StoredRange
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FLIGHT_ERRORS, FlightConnection
from quiver_actors.flight.contract import SqlTicket
from quiver_actors.flight.frames import unframed
from quiver_actors.flight.received import received
from quiver_actors.flight.remote_dataset import OpenDatasets, RemoteDataset
from quiver_actors.query.event_times import EventBound
from quiver_actors.query.span import Bound, Span, unix_ns_of


class RemoteReading:
    """Reads through the Flight server of a node."""

    def __init__(self, connection: FlightConnection, timeout: float) -> None:
        """`timeout`: seconds that calls wait for the server; reads of rows may take longer."""
        self._connection = connection
        self._timeout_seconds = timeout
        self._datasets = OpenDatasets(connection, timeout, self._batches)

    def topics(self) -> TopicInfos:
        """The node's topics that the token names, by name."""
        raise NotImplementedError

    def dataset(
        self,
        topic: str = DEFAULT_TOPIC,
        slot: str | int | None = None,
        *,
        start: Bound = None,
        end: Bound = None,
        where: str | pc.Expression | None = None,
        event_start: EventBound = None,
        event_end: EventBound = None,
        metadata: bool | Iterable[str] = False,
        skip_damaged: bool = False,
    ) -> RemoteDataset:
        """Return what a slot of a topic holds now as a `pyarrow.dataset.Dataset`, whose scans bring the rows that they need here.

        Arguments are those of `Client.dataset`. The node keeps the snapshot for 10 minutes after its last scan, up to 64 of them for each
        token: scans within that time read the same rows, later ones raise ClosedError. Close it when it is done with.

        Columns and filters of a scan travel to the node. Conditions in words (`where="delay > 10"`) let it leave out whole segments, as do
        the bounds and filters that Substrait can say; other filters are applied here to all rows.

        Raises:
            NotAllowed: the token may not read the topic; QuotaExceeded: it has too many open datasets.
            As `Client.dataset`; `WorkerUnavailable` also where the server cannot be reached.
        """
        span = Span.parse(topic, start, end)
        request = rc.OpenDataset(
            rc.REMOTE_VERSION,
            topic,
            slot,
            rc.Bounds(span.start_ns, span.end_ns, dict(span.starts), dict(span.ends)),
            where if isinstance(where, str) else None,
            None if event_start is None else unix_ns_of("event_start", event_start),
            None if event_end is None else unix_ns_of("event_end", event_end),
            metadata if isinstance(metadata, bool) else list(metadata),
            skip_damaged,
        )
        return self._datasets.open(request, None if isinstance(where, str) else where)

    def read(
        self,
        topic: str,
        core: int,
        start: BundleId | None = None,
        end: BundleId | None = None,
        *,
        slots: Iterable[str | int] | None = None,
        columns: Mapping[str | int, Iterable[str]] | None = None,
    ) -> StoredRange:
        """Read stored bundles of one core in order, from `start` up to and not including `end`, as `Client.read` does.

        They come as they are read. Where the connection is lost, the iterator raises; a new call goes on behind the last bundle.

        Raises:
            UnknownTopic, UnknownSlot, UsageError: the call is wrong.
            And while bundles are read, NotStored, DataLost, ChecksumMismatch: as `Client.read`; WorkerUnavailable: the connection is lost.
        """
        asked = Asked.parse(slots, columns)
        check_bounds(topic, core, start, end)
        ticket = rc.BundlesTicket(
            topic,
            core,
            None if start is None else start[2:],
            None if end is None else end[2:],
            None if asked.slots is None else list(asked.slots),
            [(slot, list(names)) for slot, names in asked.columns.items()],
        )
        infos = self.topics()
        if topic not in infos:
            raise unknown_topic(topic, infos)
        topic_slots = TopicSlots(infos[topic])
        projection = asked.resolve(topic_slots)

        def read() -> Iterator[StoredBundle]:
            for batch in self._batches(msgspec.json.encode(ticket)):
                for frame in unframed(batch, rc.StoredFacts):
                    yield StoredBundle(*received(frame.facts, frame.batches, topic_slots, projection))

        return StoredRange(read)

    def sql(self, statement: str, *, start: Bound = None, end: Bound = None) -> pa.RecordBatchReader:
        """Run one reading SQL statement at the node, over the topics that the token may read, and return its rows as an Arrow reader.

        Args:
            start, end: ingestion times, as of `dataset`: topics hold no others. What has left the disk since `start` is read from the
                node's archive.

        Raises:
            UsageError: the statement is wrong; NotAllowed: the token reads nothing; also while rows are read, WorkerUnavailable.
        """
        span = Span.parse_times(start, end)
        reader = self._reader(msgspec.json.encode(SqlTicket(statement, span.start_ns, span.end_ns)))
        return pa.RecordBatchReader.from_batches(reader.schema, self._read_on(reader))

    def schema(self, topic: str = DEFAULT_TOPIC, slot: str | int | None = None) -> pa.Schema:
        """The one schema to which everything that is stored in a slot conforms, as the node's datasets and SQL have it.

        Raises:
            SchemaConflict, UnknownSlot, UnknownTopic, UsageError: as `Client.dataset`.
        """
        path = (topic,) if slot is None else (topic, str(slot))
        connection = self._connection
        try:
            options = connection.options(self._timeout_seconds)
            return connection.client().get_flight_info(fl.FlightDescriptor.for_path(*path), options).schema
        except FLIGHT_ERRORS as error:
            raise connection.explained(error) from error

    def _batches(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        yield from self._read_on(self._reader(ticket))

    def _reader(self, ticket: bytes) -> fl.FlightStreamReader:
        try:
            # Without a deadline: who reads it may be slow.
            return self._connection.client().do_get(fl.Ticket(ticket), self._connection.options(None))
        except FLIGHT_ERRORS as error:
            raise self._connection.explained(error) from error

    def _read_on(self, reader: fl.FlightStreamReader) -> Iterator[pa.RecordBatch]:
        try:
            for chunk in reader:
                yield chunk.data
        except FLIGHT_ERRORS as error:
            raise self._connection.explained(error) from error
