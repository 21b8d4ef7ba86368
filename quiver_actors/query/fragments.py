"""A part of a dataset that can be scanned by itself, with the methods of `pyarrow.dataset.Fragment`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiver_actors.query.scan import count, first_rows

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)


class Partitioned(Protocol[P_contra]):
    """A dataset that can be scanned part by part."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a scan by default."""

    def replace_schema(self, schema: pa.Schema) -> Self:
        """The same rows in another schema."""

    def scan_part(
        self, part: P_contra, columns: Any = None, filter: Any = None, options: Mapping[str, Any] = {}
    ) -> ds.Scanner:
        """Make a scanner of the rows of one part, which can be used once."""

    def read_part(
        self, part: P_contra, columns: Any = None, filter: Any = None, options: Mapping[str, Any] = {}
    ) -> pa.RecordBatchReader:
        """Read the rows of one part as batches, as a scanner with these arguments would."""

    def guarantee_of(self, part: P_contra) -> pc.Expression:
        """Return an expression that is true for all rows of a part."""


class PartFragment(Generic[P]):
    """The rows of one part of a dataset, such as a segment."""

    def __init__(self, dataset: Partitioned[P], part: P) -> None:
        self._dataset = dataset
        self._part = part

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the dataset, in which bundles are read."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """Return an expression about core, segment and time that is true for all rows of the part."""
        return self._dataset.guarantee_of(self._part)

    def scanner(
        self, schema: pa.Schema | None = None, columns: Any = None, filter: Any = None, **options: Any
    ) -> ds.Scanner:
        """Make a scanner, which can be used once; see `TopicDataset.scanner`. `schema`: None, or that of the dataset."""
        return self._shown_as(schema).scan_part(self._part, columns, filter, options)

    def to_batches(self, schema: pa.Schema | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Read the rows as batches; options as of `scanner`."""
        return iter(self._reader(schema, **options))

    def to_table(self, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
        """Read the rows as a table; options as of `scanner`."""
        return self._reader(schema, **options).read_all()

    def head(self, num_rows: int, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
        """Read the first rows; options as of `scanner`."""
        return first_rows(self._reader(schema, **options), num_rows)

    def count_rows(self, schema: pa.Schema | None = None, **options: Any) -> int:
        """Count the rows; options as of `scanner`."""
        return count(self._reader(schema, **({"columns": []} | options)))

    def _shown_as(self, schema: pa.Schema | None) -> Partitioned[P]:
        if schema is not None and not schema.equals(self._dataset.schema):
            return self._dataset.replace_schema(schema)
        return self._dataset

    def _reader(
        self, schema: pa.Schema | None, columns: Any = None, filter: Any = None, **options: Any
    ) -> pa.RecordBatchReader:
        return self._shown_as(schema).read_part(self._part, columns, filter, options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._part}>"
