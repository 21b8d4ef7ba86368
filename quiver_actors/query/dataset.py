"""A slot of a topic as a `pyarrow.dataset.Dataset`: for pandas, Polars, DuckDB, DataFusion and whatever else takes one.

Scans read mapped bundles directly. Arrow's own C++ readers, which some calls use (`join`, `sort_by`, a union of datasets), do not know
bundles: to them each segment is a file that is made when they open it (`segment_files`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from quiver_actors.base.notebook import table_html
from quiver_actors.errors import QuiverError, UsageError
from quiver_actors.query.conditions import expression_of, parse_terms
from quiver_actors.query.event_times import EventBound, event_span
from quiver_actors.query.fragments import PartFragment
from quiver_actors.query.guarantees import guarantee, matching
from quiver_actors.query.rows import METADATA, Rows
from quiver_actors.query.scan import Scan, both, count, fields_in, first_rows
from quiver_actors.query.schemas import chosen_slot, stored_schema
from quiver_actors.query.segment_files import segment_file_system
from quiver_actors.query.snapshot import Snapshot, SnapshotPart
from quiver_actors.query.span import Span


class TopicDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """What a slot of a topic held when this was made: the same rows at every scan, in the order of cores, segments and bundles.

    The snapshot's files stay mapped as long as this, a fragment or a batch of it lives. The columns of `rows.METADATA` can always be asked
    for by name, in `columns` and `filter`; they are in `schema` only where that was wanted.
    """

    def __init__(self, rows: Rows, stored: pa.Schema, schema: pa.Schema, where: pc.Expression | None = None) -> None:
        """Use `dataset_of`, which makes these.

        Args:
            stored: what the bundles conform to.
            schema: what a scan gives by default: fields of `stored`, and of `METADATA`.
            where: rows that are left out of every scan are those for which this is not true.
        """
        self._rows = rows
        self._stored = stored
        self._where = where
        self._parts = parts = {f"{part.core}/{part.segment_seq}": part for part in rows.snapshot.parts}
        self._scan = scan = Scan(rows, stored, schema)
        self._guarantees: dict[tuple[str, ...], dict[str, pc.Expression]] = {}
        """The guarantees of all segments, by the columns that they are about."""
        # Without this dataset: what Arrow holds in C++ could not be found to be a circle, and the files would stay mapped for ever.
        files = segment_file_system(lambda path: scan.table([parts[path]], where), list(parts))
        form = ds.IpcFileFormat()
        fragments = [form.make_fragment(path, filesystem=files) for path in self._parts]
        super().__init__(fragments, schema, form, files)

    @property
    def slot_id(self) -> int:
        """The slot that it is of."""
        return self._rows.slot_id

    @property
    def full_schema(self) -> pa.Schema:
        """All columns that a scan can name: those of the stored bundles, and those of `METADATA`."""
        return self._scan.full

    @property
    def segment_count(self) -> int:
        """How many segments it is made of."""
        return len(self._parts)

    @property
    def is_complete(self) -> bool:
        """Whether everything that had been acknowledged is in it; see `Snapshot.is_complete`."""
        return self._rows.snapshot.is_complete

    @property
    def failure(self) -> QuiverError | None:
        """What the last failed scan raised, for callers to whom it came as a text only."""
        return next(reversed(self._rows.failures), None)

    def scanner(
        self, columns: Sequence[str] | Mapping[str, pc.Expression] | None = None, filter: Any = None, **options: Any
    ) -> ds.Scanner:
        """Make a scanner, which can be used once. Segments that cannot have rows of the filter are not read.

        Args:
            columns: names, or expressions by name; None: those of `schema`.
            filter: an expression; None: all rows of the dataset.
            options: as of `pyarrow.dataset.Dataset.scanner`; those that concern files do nothing.

        Raises:
            ChecksumMismatch, DataLost, FormatError, UnsupportedType: while rows are read, as `Rows.batches`.
        """
        wanted = self._wanted(filter)
        return self._scan.scanner(self._matching(wanted), columns, wanted, options)

    def reader(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.RecordBatchReader:
        """Read the rows as batches, as a scanner with these arguments would, and faster where nothing is to be filtered or computed."""
        wanted = self._wanted(filter)
        return self._scan.reader(self._matching(wanted), columns, wanted, options)

    def to_batches(
        self, columns: Any = None, filter: Any = None, batch_size: int | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows as batches. Arguments and errors as of `scanner`."""
        return iter(self.reader(columns, filter, batch_size=batch_size, **options))

    def to_table(
        self, columns: Any = None, filter: Any = None, batch_size: int | None = None, **options: Any
    ) -> pa.Table:
        """Read the rows as a table. Arguments and errors as of `scanner`."""
        return self.reader(columns, filter, batch_size=batch_size, **options).read_all()

    def head(
        self,
        num_rows: int,
        columns: Any = None,
        filter: Any = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> pa.Table:
        """Read the first rows as a table. Arguments and errors as of `scanner`."""
        return first_rows(self.reader(columns, filter, batch_size=batch_size, **options), num_rows)

    def count_rows(self, filter: Any = None, batch_size: int | None = None, **options: Any) -> int:
        """Count the rows, which are read for it. Arguments and errors as of `scanner`."""
        return count(self.reader([], filter, batch_size=batch_size, **options))

    def get_fragments(self, filter: Any = None) -> Iterator[PartFragment[SnapshotPart]]:
        """The segments that can have rows of the filter, each of which can be scanned by itself."""
        return iter([PartFragment(self, part) for part in self._matching(self._wanted(filter))])

    def scan_part(
        self, part: SnapshotPart, columns: Any = None, filter: Any = None, options: Mapping[str, Any] = {}
    ) -> ds.Scanner:
        """Make a scanner of one segment's rows; see `scanner`."""
        return self._scan.scanner([part], columns, self._wanted(filter), options)

    def read_part(
        self, part: SnapshotPart, columns: Any = None, filter: Any = None, options: Mapping[str, Any] = {}
    ) -> pa.RecordBatchReader:
        """Read one segment's rows; see `reader`."""
        return self._scan.reader([part], columns, self._wanted(filter), options)

    def guarantee_of(self, part: SnapshotPart) -> pc.Expression:
        """Return an expression that is true for all rows of a segment."""
        return guarantee(part, self._scan, self._scan.full.names)

    def filter(self, expression: Any) -> TopicDataset:
        """The same snapshot without the rows for which the expression is not true."""
        return TopicDataset(self._rows, self._stored, self.schema, self._wanted(expression))

    def replace_schema(self, schema: pa.Schema) -> TopicDataset:
        """The same snapshot in another schema: stored columns by name in the given types, null where nothing is stored."""
        stored = pa.schema(
            [field for field in schema if field.name not in METADATA.names or field.name in self._stored.names]
        )
        return TopicDataset(self._rows, stored, schema, self._where)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All rows, for any library that takes Arrow streams."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a dataset of a topic cannot be pickled: it is made of memory of this process. Make another one in the other process"
        )

    def __repr__(self) -> str:
        snapshot = self._rows.snapshot
        return f"<TopicDataset topic={snapshot.topic} slot={self._rows.slot_id} segments={len(self._parts)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: how much of which topic it is, and its columns. No row is read."""
        snapshot = self._rows.snapshot
        title = f"Dataset of topic {snapshot.topic}, slot {self._rows.slot_id}: {len(self._parts):,} segments"
        return table_html(title, ("column", "type"), ((field.name, field.type) for field in self.schema))

    def _wanted(self, expression: Any) -> pc.Expression | None:
        return both(self._where, expression)

    def _matching(self, expression: pc.Expression | None) -> list[SnapshotPart]:
        if expression is None:
            return list(self._parts.values())
        columns = tuple(field.name for field in fields_in(self._scan.full, (expression,)))
        known = self._guarantees.get(columns)
        if known is None:
            known = {path: guarantee(part, self._scan, columns) for path, part in self._parts.items()}
            self._guarantees[columns] = known
        left = matching(known, self._scan.full, expression)
        self._rows.snapshot.tell_pruned(Counter(part.core for path, part in self._parts.items() if path not in left))
        return [part for path, part in self._parts.items() if path in left]


def dataset_of(
    snapshot: Snapshot,
    span: Span,
    *,
    slot: str | int | None = None,
    where: str | pc.Expression | None = None,
    event_start: EventBound = None,
    event_end: EventBound = None,
    metadata: bool | Iterable[str] = False,
    skip_damaged: bool = False,
) -> TopicDataset:
    """The dataset of one slot of a snapshot.

    Args:
        span: the bounds for which the snapshot was taken.
        where: rows to keep: an expression, or conditions as Spark's option `where` has them.
        event_start, event_end: rows to keep by the topic's column of event times; see `event_times.event_span`.
        metadata: whether the columns of `rows.METADATA` are in the dataset's schema; or which of them.
        skip_damaged: leave out bundles that are damaged or lost, instead of raising.

    Raises:
        UsageError: the topic has several slots, and none was chosen; or the conditions do not fit their columns.
        UnknownSlot, ConfigError: the topic has no such slot; the conditions are not understood.
        SchemaConflict, ChecksumMismatch, FormatError: as `stored_schema`.
    """
    rows = Rows(snapshot, chosen_slot(snapshot, slot), span, skip_damaged)
    stored = stored_schema(rows)
    shown = METADATA.names if metadata is True else list(metadata or ())
    schema = pa.schema(
        [*stored, *(field for field in METADATA if field.name in shown and field.name not in stored.names)]
    )
    condition = expression_of(parse_terms(where), Scan(rows, stored, schema).full) if isinstance(where, str) else where
    happened = event_span(stored, snapshot.event_time, event_start, event_end)
    if happened is not None:
        condition = happened if condition is None else condition & happened
    return TopicDataset(rows, stored, schema, condition)
