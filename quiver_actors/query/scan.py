"""One way to read rows: what a scan of a dataset, of a segment, and of a segment as a file have in common.

Arrow's scanner costs some 40 us of CPU a batch, which is more than the rest of reading a bundle of 64 KiB, its checksum included. So rows
pass it only where it has something to do: to filter, to compute, and to read ahead of what is fetched from an archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiver_actors.errors import UsageError
from quiver_actors.query.rows import METADATA, Rows
from quiver_actors.query.snapshot import SnapshotPart

_BATCH_ROWS_MAX = 1 << 17
"""Most rows of a batch unless the caller says otherwise: as of Arrow's datasets."""
_JOINED_BYTES_MAX = 1 << 20
"""Batches that together have up to so many bytes pass a scanner as one: copying 64 KiB costs a tenth of what a batch costs there."""
_SCANNER_OPTIONS = ("batch_size", "batch_readahead", "fragment_readahead", "use_threads", "memory_pool")


@dataclass(frozen=True)
class Scan:
    """Rows and their schemas. `schema`: the columns of a scan by default; `stored`: the one schema of all bundles."""

    rows: Rows
    stored: pa.Schema
    schema: pa.Schema

    @property
    def full(self) -> pa.Schema:
        """All columns that a scan can name."""
        return pa.schema([*self.stored, *(field for field in METADATA if field.name not in self.stored.names)])

    def scanner(
        self, parts: Iterable[SnapshotPart], columns: Any, wanted: pc.Expression | None, options: Mapping[str, Any]
    ) -> ds.Scanner:
        """Make a scanner of some parts, which can be used once. Arguments as of `TopicDataset.scanner`."""
        columns = self.schema.names if columns is None else columns
        return scanner_of(
            lambda schema: _joined(self.rows.batches(parts, schema, self.stored)), self.full, columns, wanted, options
        )

    def reader(
        self, parts: Sequence[SnapshotPart], columns: Any, wanted: pc.Expression | None, options: Mapping[str, Any]
    ) -> pa.RecordBatchReader:
        """Read some parts, without a scanner where it would have nothing to do. Arguments as of `TopicDataset.scanner`."""
        names = self.schema.names if columns is None else columns
        rows_max = options.get("batch_size")
        rows_max = _BATCH_ROWS_MAX if rows_max is None else rows_max
        if wanted is not None or rows_max < 1 or not self._are_columns(names):
            return self.scanner(parts, columns, wanted, options).to_reader()
        if not all(part.bundles.is_mapped for part in parts):
            return self.scanner(parts, columns, wanted, options).to_reader()
        schema = pa.schema([self.full.field(name) for name in names])
        batches = self.rows.batches(parts, schema, self.stored)
        return pa.RecordBatchReader.from_batches(schema, _cut(batches, schema, rows_max))

    def _are_columns(self, names: Any) -> bool:
        """Whether these are names of columns, each of which is meant once and is there once. To all else Arrow says what it says."""
        return isinstance(names, list) and all(names.count(each) == self.full.names.count(each) == 1 for each in names)

    def table(self, parts: Iterable[SnapshotPart], wanted: pc.Expression | None) -> pa.Table:
        """Read some parts into a table whose columns have one dictionary each, as an Arrow file has."""
        return self.scanner(parts, None, wanted, {}).to_table().unify_dictionaries()


def scanner_of(
    read: Callable[[pa.Schema], Iterator[pa.RecordBatch]],
    full: pa.Schema,
    columns: Any,
    wanted: pc.Expression | None,
    options: Mapping[str, Any],
) -> ds.Scanner:
    """Make a scanner that can be used once.

    Args:
        read: reads the rows in a schema whose fields are some of `full`.
        full: all columns that can be named.
        columns: those that are wanted, or expressions by name.
        wanted: rows for which this is not true are left out.
        options: as of `pyarrow.dataset.Dataset.scanner`; those that concern files do nothing.
    """
    schema = _read_for(full, columns, wanted)
    reader = pa.RecordBatchReader.from_batches(schema, read(schema))
    passed = {name: options[name] for name in _SCANNER_OPTIONS if options.get(name) is not None}
    return ds.Scanner.from_batches(reader, columns=columns, filter=wanted, **passed)


def both(where: pc.Expression | None, expression: Any) -> pc.Expression | None:
    """Return the expression that is true where both are; None: nothing is asked. Raises UsageError: the second is no expression."""
    if expression is not None and not isinstance(expression, pc.Expression):
        raise UsageError(f"filter={expression!r} is not possible: expected an expression of pyarrow.compute")
    if where is None or expression is None:
        return where if expression is None else expression
    return where & expression


def is_positional(expression: pc.Expression) -> bool:
    """Whether an expression may name columns by their place in the schema, as those do that have travelled as Substrait."""
    return "FieldPath" in str(expression)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `_JOINED_BYTES_MAX`; those that are larger stay as they are."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if waiting and size_bytes + batch.nbytes > _JOINED_BYTES_MAX:
            yield from _as_one(waiting)
            waiting, size_bytes = [], 0
        waiting.append(batch)
        size_bytes += batch.nbytes
    yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or not batches[0].num_columns:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowException:
        return batches  # Arrow does not know how to join every type.


def _cut(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of so many, each of which has the metadata of the schema, whatever its bundle had."""
    for batch in batches:
        if schema.names and not batch.schema.equals(schema, check_metadata=True):
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if batch.num_rows <= rows_max:
            yield batch
        else:
            yield from (batch.slice(first, rows_max) for first in range(0, batch.num_rows, rows_max))


def first_rows(reader: pa.RecordBatchReader, row_count: int) -> pa.Table:
    """Read so many rows, and no batch more than they take."""
    found: list[pa.RecordBatch] = []
    left = row_count
    while left > 0 and (batch := next(reader, None)) is not None:
        found.append(batch.slice(0, left))
        left -= found[-1].num_rows
    return pa.Table.from_batches(found, reader.schema)


def count(reader: pa.RecordBatchReader) -> int:
    """Read all rows, and count them."""
    return sum(batch.num_rows for batch in reader)


def fields_in(full: pa.Schema, expressions: Iterable[pc.Expression]) -> list[pa.Field]:
    """The fields that expressions name, by their texts: perhaps too many, never too few."""
    text = " ".join(map(str, expressions))
    return [field for field in full if field.name in text or "FieldPath" in text]


def _read_for(full: pa.Schema, columns: Any, wanted: pc.Expression | None) -> pa.Schema:
    """The columns that a scan needs."""
    names = set(columns) if not isinstance(columns, Mapping) else set()
    names |= {name.partition(".")[0] for name in names}  # "a.b" may be field b of column a
    expressions = [*(columns.values() if isinstance(columns, Mapping) else ()), *(() if wanted is None else (wanted,))]
    named = {field.name for field in fields_in(full, expressions)}
    return pa.schema([field for field in full if field.name in names or field.name in named])
