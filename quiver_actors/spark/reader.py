"""Batch read: the sealed bundles of a topic on this node, as rows in Spark's types.

Planning seals what is open, so that a read sees everything that was acknowledged before it. Bundles are read through mapped segment
files; each becomes one record batch. A segment that is deleted between planning and reading fails its task with an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from quiver_actors.client import Client
from quiver_actors.errors import UsageError
from quiver_actors.model import SlotTable
from quiver_actors.spark.conform import conform, spark_schema
from quiver_actors.spark.connection import with_node
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.plan import BundleRange, StoredSegment, plan_partitions

if TYPE_CHECKING:
    from quiver_actors.segment.reader import SegmentReader

Slots = Mapping[str, int]
"""The slots that a read selects: name as the user gave it, or the slot's own, and id."""


class TopicPartition(InputPartition):
    """What one task reads."""

    def __init__(self, slots: Slots, ranges: Sequence[BundleRange]) -> None:
        super().__init__(None)
        self.slots = dict(slots)
        self.ranges = tuple(ranges)


class TopicReader(DataSourceReader):
    """The reader of one query. Made on the driver, pickled to its tasks; what planning finds travels in the partitions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        stored = with_node(options.run_dir, options.push_timeout_ns, partial(_Stored, options=options))
        if not stored.segments:
            return []
        return [
            TopicPartition(stored.slots, ranges)
            for ranges in plan_partitions(stored.segments, options.max_partition_bytes)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. Spark reads an empty plan as one partition without a value: it has no rows."""
        if not isinstance(partition, TopicPartition):
            return
        target = arrow_schema(self._schema)
        for piece in partition.ranges:
            segment = self._open(piece)
            for index in range(piece.bundle_start, piece.bundle_end):
                batch = rows_of(segment.bundle(index, partition.slots.values()), partition.slots)
                if batch is not None and batch.num_rows:
                    yield conform(batch, target)

    def _open(self, piece: BundleRange) -> SegmentReader:
        def read_segment(client: Client) -> SegmentReader:
            return client.read_segment(piece.core, self._options.topic, piece.segment_seq)

        return with_node(self._options.run_dir, self._options.push_timeout_ns, read_segment)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark demands of every batch."""
    # Older versions have no such parameter and mean UTC.
    knows_zones = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if knows_zones else to_arrow_schema(schema)


def stored_schema(options: SourceOptions) -> StructType:
    """The columns of a topic as Spark types: the union over all sealed bundles; with several slots, a struct for each.

    Raises:
        UsageError: nothing is stored yet, or the topic has several slots and none was chosen.
        UnsupportedType: Spark cannot hold what is stored.
    """
    stored = with_node(options.run_dir, options.push_timeout_ns, partial(_Stored, options=options))
    if not stored.segments:
        raise UsageError(
            f"topic {options.topic!r} holds no bundles yet, so its columns are unknown: read with .schema(...)"
        )
    schemas = {name: spark_schema(stored.schemas.get(slot_id, ())) for name, slot_id in stored.slots.items()}
    if len(schemas) == 1:
        (only,) = schemas.values()
    else:
        only = pa.schema([pa.field(name, pa.struct(list(schema))) for name, schema in schemas.items()])
    return from_arrow_schema(only, prefer_timestamp_ntz=True)


def rows_of(bundle: Mapping[int, pa.RecordBatch], slots: Slots) -> pa.RecordBatch | None:
    """One bundle as rows: the batch of the one slot, or a struct column for each of several. None if it has none of them.

    Raises:
        UsageError: slots of the bundle differ in their number of rows.
    """
    if len(slots) == 1:
        return bundle.get(next(iter(slots.values())))
    present = {name: bundle[slot_id] for name, slot_id in slots.items() if slot_id in bundle}
    counts = {name: batch.num_rows for name, batch in present.items()}
    if len(set(counts.values())) > 1:
        raise UsageError(
            "slots of one bundle have different numbers of rows ("
            + ", ".join(f"{name} {count}" for name, count in counts.items())
            + "), so they are no columns of the same rows: read one slot at a time"
        )
    if not present:
        return None
    return pa.RecordBatch.from_arrays([batch.to_struct_array() for batch in present.values()], names=list(present))


class _Stored:
    """What is stored in a topic now: its sealed segments, the slots to read, and every schema of each of them."""

    def __init__(self, client: Client, *, options: SourceOptions) -> None:
        client.flush(options.topic)
        self.segments = [
            StoredSegment(core, info.segment_seq, info.bundle_count, info.size_bytes)
            for core, infos in client.segments(options.topic).items()
            for info in infos
        ]
        self.schemas: dict[int, list[pa.Schema]] = {}
        self._collect_schemas(client, options.topic)
        self.slots = self._selected(options, SlotTable(client.topics()[options.topic].slots))

    def _collect_schemas(self, client: Client, topic: str) -> None:
        seen: set[tuple[int, bytes]] = set()
        for segment in self.segments:
            reader = client.read_segment(segment.core, topic, segment.segment_seq)
            for stream in reader.streams:
                key = (stream.slot_id, stream.schema_fingerprint)
                if key not in seen:
                    seen.add(key)
                    self.schemas.setdefault(stream.slot_id, []).append(reader.schema(stream.stream_id))

    def _selected(self, options: SourceOptions, table: SlotTable) -> Slots:
        if options.slots:
            return {str(slot): table.resolve(slot) for slot in options.slots}
        if len(self.schemas) > 1:
            names = _names(sorted(self.schemas), table)
            raise UsageError(f"topic {options.topic!r} has bundles with the slots {names}: choose with option 'slots'")
        return {str(slot_id): slot_id for slot_id in self.schemas}


def _names(slot_ids: Iterable[int], table: SlotTable) -> str:
    return ", ".join(table.name_of(slot_id) or str(slot_id) for slot_id in slot_ids)
