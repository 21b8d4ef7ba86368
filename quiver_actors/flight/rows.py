"""Stored bundles as rows: one slot's batch, or a struct column for each of several slots, in exactly the wanted types.

Columns that begin with `_quiver_` tell where a row is stored; they are made where the wanted schema has them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from quiver_actors.base.conform import conform
from quiver_actors.base.widening import AmbiguousColumns
from quiver_actors.client.projection import Projection
from quiver_actors.client.segments import BundleReader
from quiver_actors.errors import ChecksumMismatch, DataLost, NotStored, StorageUnavailable, UnsupportedType, UsageError
from quiver_actors.flight.contract import BundleRange
from quiver_actors.flight.stored import Stored
from quiver_actors.store.wal.entry_reader import EntryReader

logger = logging.getLogger("quiver.flight")

_OPEN_SECONDS = 60.0
_OPEN_LOOK_SECONDS = 0.05

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
    client: Stored,
    node: str,
    topic: str,
    slots: Mapping[str, int],
    ranges: Sequence[BundleRange],
    target: pa.Schema,
    *,
    skip_missing: bool = False,
    required: Collection[int] = (),
    verify_checksums: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of exactly `target`, one for each bundle that has rows in the slots. Value buffers point into the mapped file where they can.

    Args:
        required: bundles that lack one of these slots are left out unread.
        verify_checksums: prove each bundle against its checksum, whole, before its rows are given.

    Raises:
        NotStored: a segment is not there any more, unless `skip_missing`.
        DataLost: a bundle was lost to damage, unless `skip_missing`.
        ChecksumMismatch: a bundle is damaged. Its worker is told, and saves what it can. With `skip_missing` one of a segment that is not
            sealed is left out.
        UsageError: slots of a bundle differ in their number of rows.
        AmbiguousColumns: a bundle has several columns of a name that is wanted; with `skip_missing` such bundles are left out.
        UnsupportedType: a value does not fit.
    """
    projection = wanted_of(slots, target)
    for piece in ranges:
        try:
            segment = _opened(client, topic, piece, projection, verify_checksums=verify_checksums)
        except NotStored:
            if skip_missing:
                continue
            raise
        if not skip_missing:
            _check_nothing_is_lost(segment, node, topic, piece)
        damaged = _damaged(segment, piece) if skip_missing and isinstance(segment, EntryReader) else ()
        batches = read_range(segment, node, piece, slots, target, required, damaged, skip_ambiguous=skip_missing)
        yield from _placing(batches, f"node {node}, topic {topic!r}, slots {', '.join(slots)}")


def _placing(batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches; what cannot be read of them says where it is stored."""
    try:
        yield from batches
    except AmbiguousColumns as error:
        advice = "Read with .schema(...) without that column, or leave such bundles out with failOnDataLoss=false"
        raise AmbiguousColumns(f"{where}: {error}. {advice}") from error
    except UnsupportedType as error:
        raise type(error)(f"{where}: {error}") from error


def wanted_of(slots: Mapping[str, int], target: pa.Schema) -> Projection:
    """What rows of a schema are made of: with one slot its columns of these names, else the slots."""
    slot_ids = frozenset(slots.values())
    return Projection(slot_ids, {slot_id: tuple(target.names) for slot_id in slot_ids} if len(slot_ids) == 1 else {})


def _opened(
    client: Stored, topic: str, piece: BundleRange, projection: Projection, *, verify_checksums: bool
) -> BundleReader:
    """What reads a range. A worker that has just started first looks at what it has: that is waited for.

    Raises:
        NotStored: the segment is not there any more.
        StorageUnavailable: it cannot be read for a long time.
    """
    deadline = time.monotonic() + _OPEN_SECONDS
    while True:
        try:
            segment = client.read_part(
                piece.core,
                topic,
                piece.segment_seq,
                piece.bundle_start,
                piece.bundle_end,
                verify_checksums=verify_checksums,
                projection=projection,
            )
            # One of the archive is looked for when it is first asked something.
            segment.is_lost(piece.bundle_start)
            return segment
        except StorageUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_OPEN_LOOK_SECONDS)


def _damaged(segment: BundleReader, piece: BundleRange) -> set[int]:
    """Damaged bundles of a range of an open log, which does not say itself what is lost of it. The worker is told, and announces them."""
    found = set()
    for index in range(piece.bundle_start, piece.bundle_end):
        try:
            segment.check(index)
        except ChecksumMismatch:
            found.add(index)
    return found


def _check_nothing_is_lost(segment: BundleReader, node: str, topic: str, piece: BundleRange) -> None:
    lost = [index for index in range(piece.bundle_start, piece.bundle_end) if segment.is_lost(index)]
    if lost:
        raise DataLost(
            f"node {node}, core {piece.core}, topic {topic!r}: {len(lost)} bundles of segment {piece.segment_seq} are lost, the "
            f"first is bundle {lost[0]}. To go on with what is left, read with failOnDataLoss=false"
        )


def read_range(
    segment: BundleReader,
    node: str,
    piece: BundleRange,
    slots: Mapping[str, int],
    target: pa.Schema,
    required: Collection[int] = (),
    left_out: Collection[int] = (),
    *,
    skip_ambiguous: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of one bundle range of one segment, like `read_rows`, but for the bundles that are left out.

    `skip_ambiguous`: these are also bundles that have several columns of a wanted name, with a warning in the log.
    """
    for index in range(piece.bundle_start, piece.bundle_end):
        if index in left_out or not set(segment.slot_ids(index)).issuperset(required):
            continue
        batch = rows_of(segment.bundle(index, tuple(slots.values())), slots)
        if batch is not None and batch.num_rows:
            place = (node, piece.core, piece.segment_seq, index)
            try:
                yield _conformed(_with_metadata(batch, target, segment, place), target, place)
            except AmbiguousColumns as error:
                if not skip_ambiguous:
                    raise
                logger.warning("quiver.flight.left_out node %s, %s", node, error)


def _conformed(batch: pa.RecordBatch, target: pa.Schema, place: tuple[str, int, int, int]) -> pa.RecordBatch:
    try:
        return conform(batch, target)
    except UnsupportedType as error:
        raise type(error)(f"bundle {place[3]} of segment {place[2]} of core {place[1]}: {error}") from error


def rows_of(bundle: Mapping[int, pa.RecordBatch], slots: Mapping[str, int]) -> pa.RecordBatch | None:
    """Return one bundle as rows, or None if it has none of the slots.

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
    batch: pa.RecordBatch, target: pa.Schema, segment: BundleReader, place: tuple[str, int, int, int]
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
