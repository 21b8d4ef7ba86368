"""Stored bundles as rows: one slot's batch, or a struct column for each of several slots, in exactly the wanted types.

Columns that begin with `_quiver_` tell where a row is stored; they are made where the wanted schema has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from quiver_actors.client import Client
from quiver_actors.errors import NotStored, UsageError
from quiver_actors.flight.conform import conform
from quiver_actors.flight.contract import BundleRange
from quiver_actors.segment.reader import SegmentReader

METADATA = pa.schema(
    [
        ("_quiver_node", pa.string()),
        ("_quiver_core", pa.int32()),
        ("_quiver_segment", pa.int64()),
        ("_quiver_bundle", pa.int32()),
        ("_quiver_ingestion_time", pa.timestamp("us", tz="UTC")),
    ]
)


def read_rows(
    client: Client,
    node: str,
    topic: str,
    slots: Mapping[str, int],
    ranges: Sequence[BundleRange],
    target: pa.Schema,
    *,
    skip_missing: bool = False,
    required: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """Batches of exactly `target`, one for each bundle that has rows in the slots. Value buffers point into the mapped file where they can.

    Args:
        required: bundles that lack one of these slots are left out unread.

    Raises:
        NotStored: a segment is not there any more, unless `skip_missing`.
        UsageError: slots of a bundle differ in their number of rows.
        UnsupportedType: a value does not fit.
    """
    for piece in ranges:
        try:
            segment = client.read_segment(piece.core, topic, piece.segment_seq)
        except NotStored:
            if skip_missing:
                continue
            raise
        yield from read_range(segment, node, piece, slots, target, required)


def read_range(
    segment: SegmentReader,
    node: str,
    piece: BundleRange,
    slots: Mapping[str, int],
    target: pa.Schema,
    required: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """As `read_rows`, of one segment."""
    for index in range(piece.bundle_start, piece.bundle_end):
        if not set(segment.slot_ids(index)).issuperset(required):
            continue
        batch = rows_of(segment.bundle(index, tuple(slots.values())), slots)
        if batch is not None and batch.num_rows:
            place = (node, piece.core, piece.segment_seq, index)
            yield conform(_with_metadata(batch, target, segment, place), target)


def rows_of(bundle: Mapping[int, pa.RecordBatch], slots: Mapping[str, int]) -> pa.RecordBatch | None:
    """One bundle as rows. None if it has none of the slots.

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


def _with_metadata(
    batch: pa.RecordBatch, target: pa.Schema, segment: SegmentReader, place: tuple[str, int, int, int]
) -> pa.RecordBatch:
    wanted = [field for field in METADATA if field.name in target.names and field.name not in batch.schema.names]
    if not wanted:
        return batch
    unix_ns = segment.ingestion_ts(place[3])
    values = dict(zip(METADATA.names, (*place, None if unix_ns is None else unix_ns // 1000), strict=True))
    for field in wanted:
        column = pa.repeat(pa.scalar(values[field.name], field.type), batch.num_rows)
        batch = batch.append_column(field, column)
    return batch
