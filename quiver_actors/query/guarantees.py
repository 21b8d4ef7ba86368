"""Expressions that are true of all rows of a segment, before it is read: by these Arrow finds which segments a filter leaves out.

A guarantee may say less than is true, and never more: otherwise rows would be missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import types

from quiver_actors.query.rows import METADATA
from quiver_actors.query.scan import Scan, is_positional
from quiver_actors.query.segment_files import segment_file_system
from quiver_actors.query.snapshot import SchemaStatistics, SnapshotPart


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_day_or_instant(kind: pa.DataType) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


_BOUNDED: tuple[Callable[[pa.DataType], bool], ...] = (_is_number, _is_day_or_instant, _is_text)
"""Types of columns whose bounds are used. Within one of these, a cast keeps the order of values."""

_NAN = re.compile(r"\bnan\b")


def guarantee(part: SnapshotPart, scan: Scan, columns: Collection[str]) -> pc.Expression:
    """Return an expression about some columns that is true for all rows of a part, by its place and its statistics."""
    found = _of_place(part, scan.stored, columns)
    if part.statistics is None:
        return found
    return found & values_guarantee(scan.stored, columns, scan.rows.slot_id, part.statistics)


def values_guarantee(
    schema: pa.Schema, columns: Collection[str], slot_id: int, statistics: Sequence[SchemaStatistics]
) -> pc.Expression:
    """Return an expression about some columns that is true for all rows of a slot in one segment.

    Args:
        schema: the one that the rows conform to.
        statistics: those of the segment.
    """
    streams = [each for each in statistics if each.slot_id == slot_id and each.row_count]
    found = pc.scalar(value=True)
    for field in schema:
        known = _of_column(field, streams) if field.name in columns else None
        found = found if known is None else found & known
    return found


def matching(guaranteed: Mapping[str, pc.Expression], schema: pa.Schema, expression: pc.Expression) -> set[str]:
    """Return the keys of those segments, each with its guarantee, that can have rows for which an expression is true."""
    if _NAN.search(str(expression)):
        # By bounds, Arrow takes values to be less than NaN (pyarrow 26): with a NOT before it, segments would be missing.
        return set(guaranteed)
    form, files = ds.IpcFileFormat(), segment_file_system(None, ())
    if is_positional(expression):
        # Arrow compares what is known of a column with what is wanted of it only where both name it in the same way.
        guaranteed = {key: _positional(known, schema) for key, known in guaranteed.items()}
    fragments = [
        form.make_fragment(key, filesystem=files, partition_expression=known) for key, known in guaranteed.items()
    ]
    found = ds.FileSystemDataset(fragments, schema, form, files).get_fragments(expression)
    return {fragment.path for fragment in found}


def _positional(expression: pc.Expression, schema: pa.Schema) -> pc.Expression:
    """The same expression with columns by their place in the schema; one that is always true where Substrait cannot say it."""
    try:
        return pc.Expression.from_substrait(expression.to_substrait(schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pc.scalar(value=True)


def _of_place(part: SnapshotPart, stored: pa.Schema, columns: Collection[str]) -> pc.Expression:
    """Nothing is known of stored columns that have names of ours."""
    values = {"_quiver_core": (part.core, part.core), "_quiver_segment": (part.segment_seq, part.segment_seq)}
    if part.oldest_unix_ns:
        values["_quiver_ingestion_time"] = (part.oldest_unix_ns // 1000, part.newest_unix_ns // 1000)
    found = pc.scalar(value=True)
    for name, (low, high) in values.items():
        if name in columns and name not in stored.names:
            kind = METADATA.field(name).type
            found = found & (pc.field(name) >= pa.scalar(low, kind)) & (pc.field(name) <= pa.scalar(high, kind))
    return found


def _of_column(field: pa.Field, streams: Sequence[SchemaStatistics]) -> pc.Expression | None:
    """Bounds of a column over all schemas of a segment, in the type that the column has in the dataset; None: there are none."""
    is_comparable = next((is_kind for is_kind in _BOUNDED if is_kind(field.type)), None)
    if is_comparable is None:
        return None
    lows: list[pa.Scalar] = []
    highs: list[pa.Scalar] = []
    has_nulls = False
    for stream in streams:
        if field.name not in stream.schema.names:
            has_nulls = True
            continue
        known = None if stream.columns is None else stream.columns.get(field.name)
        if known is None:
            return None
        has_nulls |= known.null_count > 0
        if known.null_count < stream.row_count:
            if known.smallest is None or known.largest is None or not is_comparable(known.smallest.type):
                return None
            lows.append(known.smallest)
            highs.append(known.largest)
    return _between(field, lows, highs, has_nulls=has_nulls)


def _between(
    field: pa.Field, lows: Sequence[pa.Scalar], highs: Sequence[pa.Scalar], *, has_nulls: bool
) -> pc.Expression | None:
    column = pc.field(field.name)
    if not lows:
        return column.is_null()
    try:
        low = pc.min(pa.array([each.cast(field.type) for each in lows]))
        high = pc.max(pa.array([each.cast(field.type) for each in highs]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if not has_nulls:
        return (column >= low) & (column <= high)
    # Arrow understands a bound that allows nulls, and not two of them together.
    return ((column >= low) | column.is_null()) & ((column <= high) | column.is_null())
