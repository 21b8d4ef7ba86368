"""The questions of a client to what is stored, as datasets and in SQL. Mixed into `Client`.

Nothing is claimed, sealed or flushed for them. `pyarrow.dataset` and the SQL engines are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.client.exchange import Exchange, Flow
from quiver_actors.client.requests import Requests

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from quiver_actors.query.dataset import TopicDataset
    from quiver_actors.query.event_times import EventBound
    from quiver_actors.query.snapshot import Snapshot
    from quiver_actors.query.span import Bound, Span
    from quiver_actors.query.sql import Material


class QueryingClient:
    """Methods of `Client` that ask."""

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
                for each of several cores. `end` is not included.
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
            StorageUnavailable, WorkerUnavailable: what is stored cannot be read now.
        """
        span, flow = taking_dataset(self._requests, topic, start, end, verifies_checksums=self._verifies_checksums)
        choice = {"slot": slot, "where": where, "event_start": event_start, "event_end": event_end}
        choice |= {"metadata": metadata, "skip_damaged": skip_damaged}
        return dataset_from(self._exchange.run(flow), span, **choice)

    def sql(
        self,
        statement: str,
        *,
        engine: str = "duckdb",
        topics: Collection[str] | None = None,
        skip_damaged: bool = False,
    ) -> pa.RecordBatchReader:
        """Run one reading SQL statement over what is stored now, and return its rows as an Arrow reader.

        A table is `topic.slot`, or `topic` alone where it has one slot; `quiver.topics`, `quiver.segments`, `quiver.subscribers` and
        `quiver.gaps` describe the node. Columns of the place of a row (`dataset`) are there where the statement names them. The statement
        reaches neither files nor the network, and changes nothing.

        Args:
            engine: `duckdb`, or `datafusion`.
            topics: to the statement there are no others than these; None: there are all.
            skip_damaged: as of `dataset`.

        Raises:
            UsageError: the statement is wrong or not a reading one, or the engine's package (extra `query`) is not installed.
            As `dataset`, also while rows are read.
        """
        flow = taking_material(self._requests, statement, topics, verifies_checksums=self._verifies_checksums)
        return answer(statement, self._exchange.run(flow), engine, skip_damaged=skip_damaged)


# --- without the waiting, for threads and asyncio -------------------------------------------------------------------------------


def taking_dataset(
    requests: Requests, topic: str, start: Bound, end: Bound, *, verifies_checksums: bool
) -> tuple[Span, Flow[Snapshot]]:
    """Return what is wanted of a topic, and the flow that takes its snapshot."""
    from quiver_actors.client.snapshots import taking_snapshot
    from quiver_actors.query.span import Span

    span = Span.parse(topic, start, end)
    return span, taking_snapshot(requests, topic, span, verifies_checksums=verifies_checksums)


def dataset_from(snapshot: Snapshot, span: Span, **choice: Any) -> TopicDataset:
    """Make the dataset of a snapshot; see `query.dataset.dataset_of`."""
    from quiver_actors.query.dataset import dataset_of

    return dataset_of(snapshot, span, **choice)


def taking_material(
    requests: Requests, statement: str, topics: Collection[str] | None, *, verifies_checksums: bool
) -> Flow[Material]:
    """Return the flow that takes what a statement may be about."""
    from quiver_actors.client.snapshots import gathering_material

    return gathering_material(requests, statement, topics, verifies_checksums=verifies_checksums)


def answer(statement: str, material: Material, engine: str, *, skip_damaged: bool) -> pa.RecordBatchReader:
    """Run a statement over what was taken for it."""
    from quiver_actors.query.engines import run_statement
    from quiver_actors.query.sql import tables_of

    return run_statement(engine, statement, tables_of(statement, material, skip_damaged=skip_damaged))
