"""Batch read: the bundles of a topic on all nodes, as rows in Spark's types.

A read sees everything that was acknowledged before it, sealed or not. Planning seals only what cannot be read otherwise: what was
acknowledged before its sync, or behind a publish that is under way. Bundles of this host are read through mapped files, others through
Flight from the node that owns them; each becomes one record batch. A segment that is deleted between planning and reading fails its task
with an error, or is left out with `failOnDataLoss=false`; one that is sealed or compacted meanwhile has the same bundles.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from quiver_actors.base.model import ENVELOPE_SLOT, SlotTable
from quiver_actors.errors import DataLost, UsageError
from quiver_actors.flight.archived_contents import NOT_STORED, ArchiveTerms, Loss, losses_in
from quiver_actors.flight.contract import (
    AskWeights,
    Contents,
    CoreContents,
    Look,
    Node,
    ReadTicket,
    RetiredTerms,
    SlotRows,
    schema_bytes,
    schema_of,
)
from quiver_actors.flight.rows import METADATA
from quiver_actors.flight.spark_types import spark_schema
from quiver_actors.spark import offsets
from quiver_actors.spark.message_first import message_first
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.options import EARLIEST, SourceOptions
from quiver_actors.spark.plan import (
    Extent,
    PlannedPartition,
    StoredRange,
    archived_names,
    extents_of,
    having_slots,
    matching_ranges,
    plan_partitions,
    ranges_between,
    rows_request,
)
from quiver_actors.spark.read_nodes import read_nodes

Slots = Mapping[str, int]
"""The slots that a read selects: name as the user gave it, or the slot's own, and id."""
END = (1 << 47, 0)

logger = logging.getLogger("quiver.spark")


class TopicPartition(InputPartition):
    """The work of one task, and the node to read from."""

    def __init__(self, place: Place, location: str | None, ticket: ReadTicket) -> None:
        super().__init__(None)
        self.place = place
        self.location = location
        self.ticket = ticket


class TopicReader(DataSourceReader):
    """The reader of one query. Made on the driver, pickled to its tasks; what planning finds travels in the partitions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @message_first
    def partitions(self) -> list[InputPartition]:
        """Plan partitions over everything that is stored on all nodes. Runs on the driver."""
        options = self._options
        nodes = read_nodes(options)
        contents = nodes.ask_all(
            lambda node: node.look(everything(options.topic, wanted_of_archive(options, node.name)))
        )
        stored = [
            piece
            for name, found in contents.items()
            for core in found.cores
            for piece in self._wanted(nodes.get(name), Place(name, core.core), core)
        ]
        if not stored:
            return []
        slots, target = selected_slots(options, contents), arrow_schema(self._schema)
        options.where.check(target)
        if options.slots:
            rows = slot_rows(options, stored)
            stored = having_slots(stored, rows, slots.values(), options.where.required_slots(slots))
        return read_partitions(options, slots, target, having_rows(options, slots, target, stored))

    @message_first
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition. Runs in a task."""
        return read_partition(self._options, partition)

    def _wanted(self, node: Node, place: Place, core: CoreContents) -> list[StoredRange]:
        """Return the part of a core's bundles that the options ask for.

        Raises:
            DataLost: some of it is neither on the disk nor in the archive, and the read is not to go on without.
        """
        options = self._options
        start, end = _position(options.starting_offsets, place), _position(options.ending_offsets, place)
        if options.starting_unix_ns is not None:
            start = position_at(node, options, place, core, options.starting_unix_ns)
        begin, until = offsets.bundle_of(start), END if end < 0 else offsets.bundle_of(end)
        for loss in losses_of(core, begin, until):
            tell_loss(options, f"{place} of topic {options.topic!r} lost {loss}")
        return ranges_between(place, wanted_extents(options, place, core), begin, until)


def wanted_of_archive(options: SourceOptions, node: str) -> ArchiveTerms:
    """What a read of these options wants of the archive of a node, if the disk has no more of it."""
    starts = options.starting_offsets if isinstance(options.starting_offsets, Mapping) else {}
    wanted = {place.core: offsets.bundle_of(position) for place, position in starts.items() if place.node == node}
    return ArchiveTerms(wanted, options.starting_unix_ns or 0)


def losses_of(
    core: CoreContents, start: tuple[int, int], end: tuple[int, int], *, tells_first: bool = True
) -> Iterator[Loss]:
    """Yield what disk and archive say that is lost of a range; nothing where the archive was not asked.

    Args:
        tells_first: whether what is gone right at the start, without a record, is wanted: who stands there may have read it.
    """
    if core.archived is None:
        return
    if tells_first and start < end and core.begins_behind(start):
        yield Loss(start[0], start[1], 0, NOT_STORED)
    yield from losses_in(core.disk, core.archived, start, end)


def tell_loss(options: SourceOptions, what: str) -> None:
    """Log a loss of a batch read.

    Raises:
        DataLost: the read is not to go on without what is missing.
    """
    if options.fail_on_data_loss:
        raise DataLost(f"{what}. To go on with what is left, read with failOnDataLoss=false")
    logger.warning("quiver.spark.data_lost %s", what)


def wanted_extents(options: SourceOptions, place: Place, core: CoreContents) -> list[Extent]:
    """The segments of a core that can have rows for `where`, by their place and their times."""
    wanted = (
        info
        for info in core.readable
        if options.where.may_hold(place, info.segment_seq, info.first_ingestion_ts_nanos, info.last_ingestion_ts_nanos)
    )
    return extents_of(core, wanted)


def having_rows(
    options: SourceOptions, slots: Slots, target: pa.Schema, stored: Sequence[StoredRange]
) -> Sequence[StoredRange]:
    """Leave out the segments that have no row for `where`, as the statistics say that their nodes keep."""
    wanted = options.where.wanted_rows(slots, target)
    if wanted is None:
        return stored
    archived = [piece for piece in stored if piece.archived_as]
    rows = read_nodes(options).ask(
        {piece.place.node for piece in stored},
        lambda node: node.slot_rows(rows_request(archived, node.name, options.topic, wanted)),
    )
    found = matching_ranges(stored, rows)
    logger.info("quiver.spark.pruned topic=%s segments=%d of=%d", options.topic, len(stored) - len(found), len(stored))
    return found


def everything(topic: str, archive: ArchiveTerms | None = None) -> Look:
    """Ask for all that was acknowledged before, of all cores that the node has or has had."""
    return Look(topic, flush=True, reads_unsealed=True, archive=archive, retired=RetiredTerms())


def read_partitions(
    options: SourceOptions, slots: Slots, target: pa.Schema, stored: Sequence[StoredRange]
) -> list[InputPartition]:
    """Partitions for these bundles."""
    options.where.check(target)
    nodes = read_nodes(options)
    schema = schema_bytes(target)
    required = options.where.required_slots(slots)
    # What is on the disk too is read there, and in the archive what was lost of it.
    archived = {
        (piece.place, piece.segment_seq): piece for piece in stored if piece.archived_as and not piece.is_on_disk
    }

    def partition(planned: PlannedPartition) -> TopicPartition:
        places = ((planned.place, piece.segment_seq) for piece in planned.ranges)
        names = archived_names(archived[place] for place in places if place in archived)
        ticket = ReadTicket(
            options.topic,
            dict(slots),
            planned.ranges,
            schema,
            skip_missing=not options.fail_on_data_loss,
            required=required,
            verify_checksums=options.verify_checksums,
            archived=names.get(planned.place.core),
        )
        return TopicPartition(planned.place, nodes.location(planned.place.node), ticket)

    planned = plan_partitions(stored, options.max_partition_bytes, options.min_partitions)
    return [partition(each) for each in planned]


def read_partition(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition. Spark reads an empty plan as one partition without a value: it has no rows."""
    if isinstance(partition, TopicPartition):
        node = read_nodes(options).get(partition.place.node, partition.location)
        yield from options.where.filtered(node.read(partition.ticket))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The exact Arrow schema that Spark demands of every batch."""
    # Older versions have no such parameter and mean UTC.
    knows_zones = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if knows_zones else to_arrow_schema(schema)


def stored_schema(options: SourceOptions) -> StructType:
    """The columns of a topic as Spark types: the union over all stored bundles; with several slots, a struct for each.

    Raises:
        UsageError: nothing is stored yet, or the topic has several slots and none was chosen.
        UnsupportedType: Spark cannot hold what is stored.
    """
    nodes = read_nodes(options)
    contents = nodes.ask_all(lambda node: node.look(everything(options.topic)))
    by_slot = _schemas_of(options, contents)
    if not by_slot:
        raise UsageError(
            f"topic {options.topic!r} holds no bundles yet, so its columns are unknown: read with .schema(...)"
        )
    slots = selected_slots(options, contents)
    schemas = {name: spark_schema(by_slot.get(slot_id, ())) for name, slot_id in slots.items()}
    if len(schemas) == 1:
        (only,) = schemas.values()
    else:
        only = pa.schema([pa.field(name, pa.struct(list(schema))) for name, schema in schemas.items()])
    if options.include_metadata:
        only = pa.schema([*only, *METADATA])
    return from_arrow_schema(only, prefer_timestamp_ntz=True)


def selected_slots(options: SourceOptions, contents: Mapping[str, Contents]) -> Slots:
    """The slots that the option names, else the only one that bundles have.

    Raises:
        UsageError: they have several.
        UnknownSlot: the option names one that the topic does not have.
    """
    named = named_slots(options, contents)
    return only_slot(options, contents, _schemas_of(options, contents)) if named is None else named


def named_slots(options: SourceOptions, contents: Mapping[str, Contents]) -> Slots | None:
    """The slots that the option names, else the only one that the topic declares. None: it is what bundles have.

    Raises:
        UnknownSlot: the option names one that the topic does not have.
    """
    table = SlotTable(next(iter(contents.values())).slots)
    if options.slots:
        return {str(slot): table.resolve(slot) for slot in options.slots}
    return table.declared if len(table.declared) == 1 else None


def only_slot(options: SourceOptions, contents: Mapping[str, Contents], slot_ids: Collection[int]) -> Slots:
    """
    Raises:
        UsageError: there are several.
    """
    if len(slot_ids) > 1:
        table = SlotTable(next(iter(contents.values())).slots)
        names = ", ".join(table.name_of(slot_id) or str(slot_id) for slot_id in sorted(slot_ids))
        raise UsageError(f"topic {options.topic!r} has bundles with the slots {names}: choose with option 'slots'")
    return {str(slot_id): slot_id for slot_id in slot_ids}


def slot_rows(options: SourceOptions, stored: Sequence[StoredRange]) -> dict[str, SlotRows]:
    """Return the rows of each slot in the segments of these ranges, by node; of segments that are not sealed in the ranges alone."""

    def ask(node: Node) -> SlotRows:
        return node.slot_rows(rows_request(stored, node.name, options.topic))

    return read_nodes(options).ask({piece.place.node for piece in stored}, ask)


def _schemas_of(options: SourceOptions, contents: Mapping[str, Contents]) -> dict[int, list[pa.Schema]]:
    """Every stored schema by slot, the bundles' envelope left out."""
    found: dict[int, list[pa.Schema]] = {}
    for schemas in read_nodes(options).ask(contents, lambda node: node.schemas(options.topic, archive=True)).values():
        for slot_id, messages in schemas.by_slot.items():
            if slot_id != ENVELOPE_SLOT:
                found.setdefault(slot_id, []).extend(map(schema_of, messages))
    return found


def position_at(node: Node, options: SourceOptions, place: Place, core: CoreContents, unix_ns: int) -> int:
    """The position of the first bundle of a core that was ingested at or after that time; behind the last if none was."""
    for info in core.readable:
        if info.last_ingestion_ts_nanos >= unix_ns:
            if info.first_ingestion_ts_nanos >= unix_ns:
                return offsets.position(info.segment_seq, 0)
            request = AskWeights(options.topic, place.core, info.segment_seq, [], 0, info.bundle_count)
            times = node.weights(request).ingestion_unix_ns
            index = next((index for index, time_ns in enumerate(times) if time_ns >= unix_ns), len(times))
            return offsets.position(info.segment_seq, index, info.bundle_count)
    return end_of_stored(core)


def head_of(core: CoreContents) -> int:
    """The position behind everything that can be read; 0 where nothing can. More may come to the last segment if it is not sealed."""
    in_archive = [] if core.archived is None else core.archived.segments
    behind_sealed = (offsets.position(info.segment_seq + 1, 0) for info in (*core.segments, *in_archive))
    behind_unsealed = (offsets.position(info.segment_seq, info.bundle_count) for info in core.unsealed)
    return max([*behind_sealed, *behind_unsealed], default=0)


def end_of_stored(core: CoreContents) -> int:
    """The position behind everything that was ever stored, wherever it is by now."""
    return max(head_of(core), offsets.position(max(0, core.comes_next), 0))


def _position(wanted: str | offsets.Offsets | None, place: Place) -> int:
    """-1: the end."""
    if wanted is None or wanted == EARLIEST:
        return 0
    if isinstance(wanted, str):
        return -1
    return wanted.get(place, 0)
