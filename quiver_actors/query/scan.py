"""One way to read rows: what a scan of a dataset, of a segment, and of a segment as a file have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiver_actors.errors import UsageError
from quiver_actors.query.rows import METADATA, Rows
from quiver_actors.query.snapshot import SnapshotPart

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
            lambda schema: self.rows.batches(parts, schema, self.stored), self.full, columns, wanted, options
        )

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
    """What is true where both are; None: nothing is asked. Raises UsageError: the second is no expression."""
    if expression is not None and not isinstance(expression, pc.Expression):
        raise UsageError(f"filter={expression!r} is not possible: expected an expression of pyarrow.compute")
    if where is None or expression is None:
        return where if expression is None else expression
    return where & expression


def is_positional(expression: pc.Expression) -> bool:
    """Whether an expression may name columns by their place in the schema, as those do that have travelled as Substrait."""
    return "FieldPath" in str(expression)


def fields_in(full: pa.Schema, expressions: Iterable[pc.Expression]) -> list[pa.Field]:
    """The fields that expressions name, by their texts: perhaps too many, never too few."""
    text = " ".join(map(str, expressions))
    return [field for field in full if field.name in text or "FieldPath" in text]


def _read_for(full: pa.Schema, columns: Any, wanted: pc.Expression | None) -> pa.Schema:
    """The columns that a scan needs."""
    names = set(columns) if not isinstance(columns, Mapping) else set()
    expressions = [*(columns.values() if isinstance(columns, Mapping) else ()), *(() if wanted is None else (wanted,))]
    named = {field.name for field in fields_in(full, expressions)}
    return pa.schema([field for field in full if field.name in names or field.name in named])
