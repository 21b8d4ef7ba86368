"""Filters that Spark hands down: what of them leaves out whole segments, and rows before they travel to the JVM.

Never leaves out a row that Spark would keep: only comparisons that Arrow and Spark are known to agree on are used (booleans, integers,
text, dates, instants; no floating point, whose NaN they order differently), and Spark applies all filters again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from quiver_actors.spark.offsets import Place

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_AGREED = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_string,
    types.is_date32,
    types.is_timestamp,
)


@dataclass(frozen=True)
class Pushed:
    """The filters that were taken. All of them hold for a row that is wanted."""

    filters: tuple[Any, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For columns that a whole segment shares, what they can be at least and at most."""
    node: str | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pushed:
        taken = [
            each
            for each in filters
            if _kind(each) in (*_COMPARISONS, "In", "IsNull", "IsNotNull") and len(each.attribute) == 1
        ]
        ranges: dict[str, tuple[int, int]] = {}
        node = None
        for each in taken:
            column = each.attribute[0]
            if column == "_quiver_node" and _kind(each) == "EqualTo":
                node = each.value
            elif (
                column in ("_quiver_core", "_quiver_segment", "_quiver_ingestion_time") and _kind(each) in _COMPARISONS
            ):
                ranges[column] = _narrowed(ranges.get(column, (-(1 << 62), 1 << 62)), _kind(each), _integer(each.value))
        return cls(tuple(taken), ranges, node)

    def may_hold(self, place: Place, segment_seq: int, first_unix_ns: int, last_unix_ns: int) -> bool:
        """Whether a segment can have rows that are wanted."""
        spans = {
            "_quiver_core": (place.core, place.core),
            "_quiver_segment": (segment_seq, segment_seq),
            "_quiver_ingestion_time": (first_unix_ns // 1000, last_unix_ns // 1000),
        }
        if self.node is not None and self.node != place.node:
            return False
        if not last_unix_ns:
            # Another implementation wrote it without times.
            spans.pop("_quiver_ingestion_time")
        return all(
            spans[column][1] >= low and spans[column][0] <= high
            for column, (low, high) in self.ranges.items()
            if column in spans
        )

    def filtered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches without rows that no filter wants."""
        for batch in batches:
            for each in self.filters:
                mask = _mask(batch, each)
                if mask is not None:
                    batch = batch.filter(mask)
            if batch.num_rows:
                yield batch


def _kind(filter_: Any) -> str:
    return type(filter_).__name__


def _mask(batch: pa.RecordBatch, filter_: Any) -> Any:
    """True for rows that a filter may want; None: cannot be told here."""
    name = filter_.attribute[0]
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    kind = _kind(filter_)
    if kind == "IsNull":
        return column.is_null()
    if kind == "IsNotNull":
        return column.is_valid()
    if not any(is_agreed(column.type) for is_agreed in _AGREED) or not _zones_agree(column.type, filter_.value):
        return None
    try:
        if kind == "In":
            return pc.is_in(column, value_set=pa.array(filter_.value, column.type))
        return _COMPARISONS[kind](column, pa.scalar(filter_.value, column.type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _zones_agree(column: pa.DataType, value: Any) -> bool:
    """Whether a time of day has one meaning: an instant is compared with instants only."""
    values = value if isinstance(value, (list, tuple)) else [value]
    times = [each for each in values if isinstance(each, datetime.datetime)]
    return all(types.is_timestamp(column) and (each.tzinfo is None) == (column.tz is None) for each in times)


def _integer(value: Any) -> int | None:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return None
        return (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return value if isinstance(value, int) else None


def _narrowed(span: tuple[int, int], kind: str, value: int | None) -> tuple[int, int]:
    if value is None:
        return span
    low, high = span
    if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
        low = max(low, value)
    if kind in ("EqualTo", "LessThan", "LessThanOrEqual"):
        high = min(high, value)
    return low, high
