"""The questions of a client to what is stored, as datasets and in SQL. Mixed into `Client`.

Nothing is claimed, sealed or flushed for them. `pyarrow.dataset` and the SQL engines are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.exchange import Exchange, Flow
from quiver_actors.client.requests import Requests

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from quiver_actors.client.snapshots import Gathered, Taken
    from quiver_actors.query.dataset import TopicDataset
    from quiver_actors.query.event_times import EventBound
    from quiver_actors.query.limits import SqlLimits
    from quiver_actors.query.snapshot import Progress
    from quiver_actors.query.span import Bound, Span


class QueryingClient:
    """Methods of `Client` that ask."""

    _archived: ArchivedReads
    _exchange: Exchange
    _requests: Requests
    _verifies_checksums: bool

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
    ) -> TopicDataset:
        """Return what a slot of a topic holds now, sealed or not, as a `pyarrow.dataset.Dataset`: the same rows at every scan.

        Bundles of different schemas come as one table, by the rules of `base.widening`. The files stay mapped for as long as the dataset
        lives; those that are deleted meanwhile count as used space until it goes,
        and evictions take others instead.

        Args:
            slot: name or id; None: the only one.
            start, end: ingestion times (a datetime with a zone, or UNIX nanoseconds), or bundles: a BundleId for its core, or one
                for each of several cores. `end` is not included. None: where the disk begins, and what can be read last. What lies
                between a start and the disk is read from the node's archive, if it has one (docs/archive.md).
            where: rows to keep: an expression of pyarrow, or conditions such as "carrier IN ('AA', 'UA') AND delay > 10".
            event_start, event_end: rows to keep by the column that the topic's setting `event_time` names: a datetime with a zone, or UNIX
                nanoseconds. `event_end` is not included; rows without an event time are left out.
            metadata: show the columns `_quiver_core`, `_quiver_segment`, `_quiver_bundle` and `_quiver_ingestion_time`, or those of them
                that are named. `columns=` and `filter=` of a scan, and `where`, may name them in any case.
            skip_damaged: leave out bundles that are damaged or lost, with a warning in the log; otherwise the scan raises.

        Raises:
            UnknownTopic, UnknownSlot, UsageError, ConfigError: the call is wrong.
            SchemaConflict: bundles have types of one column that no type holds.
            ChecksumMismatch, FormatError: a segment is damaged where it says what it holds.
            NotStored: what lies between the start and the disk is not in the archive either.
            StorageUnavailable, WorkerUnavailable: what is stored cannot be read now.
        """
        span, flow = taking_dataset(self._requests, topic, start, end, verifies_checksums=self._verifies_checksums)
        choice = {"slot": slot, "where": where, "event_start": event_start, "event_end": event_end}
        choice |= {"metadata": metadata, "skip_damaged": skip_damaged}
        return dataset_from(self._archived, self._exchange.run(flow), span, **choice)

    def sql(
        self,
        statement: str,
        *,
        engine: str = "duckdb",
        topics: Collection[str] | None = None,
        start: Bound = None,
        end: Bound = None,
        skip_damaged: bool = False,
        progress: Progress | None = None,
        limits: SqlLimits | None = None,
    ) -> pa.RecordBatchReader:
        """Run one reading SQL statement over what is stored now, and return its rows as an Arrow reader.

        A table is `topic.slot`, or `topic` alone where it has one slot; `quiver.topics`, `quiver.segments`, `quiver.subscribers` and
        `quiver.gaps` describe the node. Columns of the place of a row (`dataset`) are there where the statement names them. The statement
        reaches neither files nor the network, and changes nothing.

        Args:
            engine: `duckdb`, or `datafusion`.
            topics: to the statement there are no others than these; None: there are all.
            start, end: ingestion times, as of `dataset`: topics hold no others.
            skip_damaged: as of `dataset`.
            progress: told how many bytes of segments have been read, and how many there are at most; from any thread, and must return at
                once.
            limits: memory and time that it may use; None: a quarter of the machine's memory, and any time. Times are kept by DuckDB alone.

        Raises:
            QueryLimit: it needs more than its limits; also while rows are read.
            UsageError: the statement is wrong or not a reading one, or the engine's package (extra `query`) is not installed.
            As `dataset`, also while rows are read.
        """
        span = span_of_times(start, end)
        flow = taking_material(self._requests, statement, topics, span, verifies_checksums=self._verifies_checksums)
        gathered = self._exchange.run(flow)
        choice = {"skip_damaged": skip_damaged, "progress": progress, "limits": limits}
        return answer(self._archived, statement, gathered, engine, **choice)


# --- without the waiting, for threads and asyncio -------------------------------------------------------------------------------


def taking_dataset(
    requests: Requests, topic: str, start: Bound, end: Bound, *, verifies_checksums: bool
) -> tuple[Span, Flow[Taken]]:
    """Return what is wanted of a topic, and the flow that takes a snapshot of what the disk has of it."""
    from quiver_actors.client.snapshots import taking_snapshot
    from quiver_actors.query.span import Span

    span = Span.parse(topic, start, end)
    return span, taking_snapshot(requests, topic, span, verifies_checksums=verifies_checksums)


def dataset_from(archived: ArchivedReads, taken: Taken, span: Span, **choice: Any) -> TopicDataset:
    """Make the dataset of a snapshot and of what is archived before it; see `query.dataset.dataset_of`. Waits for the archiver."""
    from quiver_actors.client.archived_snapshots import whole_snapshot
    from quiver_actors.query.dataset import dataset_of

    return dataset_of(whole_snapshot(archived, taken, span), span, **choice)


def span_of_times(start: Bound, end: Bound) -> Span:
    """What a statement is about. Raises UsageError: a bound is no time."""
    from quiver_actors.query.span import Span

    return Span.parse_times(start, end)


def taking_material(
    requests: Requests, statement: str, topics: Collection[str] | None, span: Span, *, verifies_checksums: bool
) -> Flow[Gathered]:
    """Return the flow that takes what a statement may be about."""
    from quiver_actors.client.snapshots import gathering_material

    return gathering_material(requests, statement, topics, span, verifies_checksums=verifies_checksums)


def answer(
    archived: ArchivedReads,
    statement: str,
    gathered: Gathered,
    engine: str,
    **choice: Any,
) -> pa.RecordBatchReader:
    """Run a statement over what was taken for it, and over what is archived before that; see `answer_of`. Waits for the archiver."""
    from quiver_actors.client.archived_snapshots import whole_material
    from quiver_actors.query.answering import answer_of

    return answer_of(engine, statement, whole_material(archived, gathered), **choice)
