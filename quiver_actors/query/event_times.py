"""Rows of a span of event times: of the column that the topic's setting `event_time` names, whatever its unit."""

from __future__ import annotations

import datetime
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from quiver_actors.errors import UsageError
from quiver_actors.query.span import unix_ns_of

EventBound: TypeAlias = "datetime.datetime | int | None"
"""A time with a zone, or UNIX nanoseconds."""

_UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_NS = 86_400 * _UNIT_NS["s"]


def event_span(schema: pa.Schema, column: str, start: EventBound, end: EventBound) -> pc.Expression | None:
    """Return what is true of the rows whose event time lies in `[start, end)`; None: nothing is bounded. A time without a zone is in UTC.

    Args:
        schema: of the rows.
        column: the topic's setting; empty: it has none.

    Raises:
        UsageError: the rows have no such column, it holds no times or dates, or a bound is no time.
    """
    if start is None and end is None:
        return None
    if column not in schema.names:
        known = f"no column {column!r}" if column else "no setting `event_time`, which names its column of event times"
        raise UsageError(f"event_start and event_end are not possible: the topic has {known}")
    kind = schema.field(column).type
    unit_ns = unit_ns_of(kind)
    if unit_ns is None:
        raise UsageError(f"event_start and event_end are not possible: column {column!r} is {kind}, not times or dates")
    found = pc.scalar(value=True)
    # Whole units from the bound on are those from the next whole unit on, so no value has to be converted.
    if start is not None:
        found = found & (pc.field(column) >= _scalar(-(-unix_ns_of("event_start", start) // unit_ns), kind))
    if end is not None:
        found = found & (pc.field(column) < _scalar(-(-unix_ns_of("event_end", end) // unit_ns), kind))
    return found


def unit_ns_of(kind: pa.DataType) -> int | None:
    """Nanoseconds of one unit of a type of times or dates; None: it is another type."""
    if types.is_timestamp(kind):
        return _UNIT_NS[kind.unit]
    if types.is_date(kind):
        return _DAY_NS if types.is_date32(kind) else _UNIT_NS["ms"]
    return None


def _scalar(value: int, kind: pa.DataType) -> pa.Scalar:
    return pa.array([value], pa.int32() if types.is_date32(kind) else pa.int64()).view(kind)[0]
