"""The rows of a snapshot's bundles in one slot, as Arrow batches of one schema.

Guarantee: no value is shown before its bundle has been proven against its checksum (unless the client does not verify). Value buffers point
into the mapped files wherever a stored column already has the wanted type; small bundles of equal layout are copied into one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from quiver_actors.base.conform import conform
from quiver_actors.base.widening import AmbiguousColumns, ambiguous_columns
from quiver_actors.errors import DataLost, FormatError, QuiverError, SlotNotInBundle
from quiver_actors.query.snapshot import Snapshot, SnapshotPart, names_of
from quiver_actors.query.span import Span
from quiver_actors.store.segment.reader import SegmentReader

METADATA = pa.schema(
    [
        ("_quiver_core", pa.int32()),
        ("_quiver_segment", pa.int64()),
        ("_quiver_bundle", pa.int32()),
        ("_quiver_ingestion_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""Columns that say where a row is stored. A stored column of the same name takes their place."""

logger = logging.getLogger("quiver.query")


@dataclass(frozen=True)
class Rows:
    """The rows of one slot of a snapshot within a span.

    Any number of threads may read, each with its own iterator.
    """

    snapshot: Snapshot
    slot_id: int
    span: Span
    skips_damaged: bool
    """Bundles that are damaged or lost, or have columns that cannot be told apart, are left out, with a warning in the log. Otherwise they
    raise, the last where such a column is read."""
    failures: list[QuiverError] = field(default_factory=list)
    """What was raised while rows were read, for callers to whom it comes through code that keeps its text only."""
    ambiguous: dict[str, list[str]] = field(default_factory=dict)
    """Columns that cannot be told apart in bundles of some segments, by name."""

    def batches(self, parts: Iterable[SnapshotPart], schema: pa.Schema, stored: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of some parts.

        Args:
            schema: schema of the batches, with fields of `stored` and of `METADATA`.
            stored: the one schema of all bundles.

        Raises:
            ChecksumMismatch, DataLost, FormatError: a bundle is damaged or lost; names it. Not raised if damage is skipped.
            UnsupportedType: a value does not fit the type that its column has.
            AmbiguousColumns: a column is read that some bundles have several of. Not raised if damage is skipped.
        """
        wanted = pa.schema([field for field in schema if field.name in stored.names])
        # Of bundles that are left out for their columns all columns must be seen.
        names = None if self.skips_damaged and self.ambiguous else wanted.names or stored.names[:1]
        for whole in parts:
            part = whole._replace(bundles=whole.bundles.narrowed(self.slot_id, names))
            if not schema.names:
                # Whoever asks for no column counts rows: one batch a segment is enough.
                known = self.known_row_count(part)
                yield _rows_without_columns(
                    sum(batch.num_rows for _, batch, _ in self._read(part, names)) if known is None else known
                )
            else:
                for indexes, batch, rows_each in self._read(part, names):
                    if batch.num_rows:
                        yield _placed(self._conformed(batch, wanted, part), schema, part, indexes, rows_each)
            self.snapshot.tell_read(part.size_bytes)

    def known_row_count(self, part: SnapshotPart) -> int | None:
        """Return how many rows a part has, by the table of contents of its segment; None: its bundles have to be read for it.

        The table of contents is proven, the bundles are not. With `skips_damaged` they are read, to count what a scan gives.
        """
        if self.skips_damaged or self.span.start_ns is not None or self.span.end_ns is not None:
            return None
        reader = part.bundles.reader if part.bundles.is_mapped else None
        if not isinstance(reader, SegmentReader) or (part.first, part.end) != (0, reader.bundle_count):
            return None
        ends = np.asarray(reader.manifest.ref_ends)
        if (ends[1:] == ends[:-1]).any():
            return None  # Some are lost, which whoever reads them is told.
        return sum(stream.row_count for stream in reader.streams if stream.slot_id == self.slot_id)

    def _read(
        self, part: SnapshotPart, columns: Sequence[str] | None
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch, int]]:
        """Yield groups of bundles, with their rows one after another and the number of rows of each bundle."""
        for indexes, batch, rows_each in self._read_groups(part, columns):
            if columns is None and ambiguous_columns(batch.schema):
                logger.warning("quiver.query.left_out %s", self._ambiguity(part, batch.schema))
                continue
            yield indexes, batch, rows_each

    def _read_groups(
        self, part: SnapshotPart, columns: Sequence[str] | None
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch, int]]:
        times = part.bundles.ingestion_ts_nanos
        indexes: Sequence[int] = range(part.first, part.end)
        if self.span.start_ns is not None or self.span.end_ns is not None:
            indexes = [index for index in indexes if self.span.holds(times(index))]
        done = 0
        for run in part.bundles.reader.runs(
            indexes, (self.slot_id,), None if columns is None else {self.slot_id: columns}
        ):
            yield from self._read_singly(part, indexes[done : run.first])
            done = run.first + run.bundle_count
            if self.slot_id in run.batches:
                yield indexes[run.first : done], run.batches[self.slot_id], run.row_counts[self.slot_id]
        yield from self._read_singly(part, indexes[done:])

    def _read_singly(
        self, part: SnapshotPart, indexes: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch, int]]:
        bundles = part.bundles
        for index in indexes:
            try:
                bundles.check(index)
                batch = bundles.batch(index, self.slot_id)
            except SlotNotInBundle:
                continue
            except (FormatError, DataLost) as error:
                self.pass_over(error, part)
                continue
            yield (index,), batch, batch.num_rows

    def pass_over(self, error: QuiverError, part: SnapshotPart) -> None:
        """Leave out what is damaged or lost, with a warning, or raise what says where it lies."""
        where = f"topic {self.snapshot.topic!r}, core {part.core}: {error}"
        if not self.skips_damaged:
            raise self._failed(type(error)(f"{where}. To go on with what is left, skip what is damaged")) from error
        logger.warning("quiver.query.left_out %s", where)

    def cannot_tell_apart(self, columns: Iterable[str], part: SnapshotPart) -> None:
        """Note columns of which bundles of a part have several."""
        for name in columns:
            self.ambiguous.setdefault(name, []).append(str(part))

    def _conformed(self, batch: pa.RecordBatch, wanted: pa.Schema, part: SnapshotPart) -> pa.RecordBatch:
        try:
            return conform(batch, wanted)
        except AmbiguousColumns as error:
            what = self._ambiguity(part, batch.schema)
            advice = "Name other columns, read these bundles one by one, or leave them out: skip what is damaged"
            raise self._failed(AmbiguousColumns(f"{what}. {advice}")) from error
        except QuiverError as error:
            raise self._failed(type(error)(f"topic {self.snapshot.topic!r}, {part}: {error}")) from error

    def _ambiguity(self, part: SnapshotPart, schema: pa.Schema) -> str:
        """What cannot be told apart in a bundle of a part, and where the same is, for people."""
        (slot,) = names_of(self.snapshot.slots, [self.slot_id])
        column = next(iter(ambiguous_columns(schema)), "")
        others = len(set(self.ambiguous.get(column, ())) - {str(part)})
        more = f" (also of {others:,} more segment{'s' * (others > 1)})" if others else ""
        is_repeated = len(schema.get_all_field_indices(column)) > 1
        what = (
            f"several columns called {column!r}" if is_repeated else f"in column {column!r} several fields of one name"
        )
        return f"topic {self.snapshot.topic!r}, slot {slot!r}: a bundle of {part}{more} has {what}, which no reader can tell apart"

    def _failed(self, error: QuiverError) -> QuiverError:
        self.failures.append(error)
        return error


def _rows_without_columns(row_count: int) -> pa.RecordBatch:
    return pa.record_batch({"": pa.nulls(row_count)}).select([])


def _placed(
    batch: pa.RecordBatch, schema: pa.Schema, part: SnapshotPart, indexes: Sequence[int], rows_each: int
) -> pa.RecordBatch:
    """The batch with the columns that say where its rows lie."""
    if len(schema) == batch.num_columns:
        return batch
    columns = [
        batch.column(field.name) if field.name in batch.schema.names else _place(field, part, indexes, rows_each)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _place(field: pa.Field, part: SnapshotPart, indexes: Sequence[int], rows_each: int) -> pa.Array:
    if field.name in ("_quiver_core", "_quiver_segment"):
        value = part.core if field.name == "_quiver_core" else part.segment_seq
        return pa.repeat(pa.scalar(value, field.type), len(indexes) * rows_each)
    if field.name == "_quiver_bundle":
        return pa.array(np.repeat(np.asarray(indexes, np.int32), rows_each), field.type)
    times = [part.bundles.ingestion_ts_nanos(index) for index in indexes]
    values = pa.array([None if time is None else time // 1000 for time in times], pa.int64()).cast(field.type)
    if len(indexes) == 1:
        return pa.repeat(values[0], rows_each)
    return values.take(pa.array(np.repeat(np.arange(len(indexes)), rows_each)))
