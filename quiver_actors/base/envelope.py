"""The envelope: what a bundle carries beside its payload, as columns of slot 63 (docs/formats.md section 10.7, "Envelope").

| columns                                                     | whose                                          |
|-------------------------------------------------------------|------------------------------------------------|
| `quiver.producer`, `quiver.producer_sequence`               | idempotent producers, `store.staged.keys`      |
| `quiver.traceparent`, `quiver.tracestate`, `quiver.baggage` | the trace that the push belongs to, here       |
| `dead_letter.*`                                             | dead letters, `store.subscriber.dead_letters`       |
| any other                                                   | the producer's own; stays as it is             |

Guarantee: who adds columns keeps those of the others, so a trace context goes through idempotent pushes and dead letters. Every row says
the same. What is read is as untrusted as any bundle: a trace context that is none is not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from quiver_actors.errors import UsageError

TraceContext: TypeAlias = str | Mapping[str, str]
"""A W3C `traceparent`, or the headers that OpenTelemetry's `inject` writes into a dict."""

TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
TRACE_CHARACTERS_MAX = 8192
"""Longest accepted value of each trace header, in characters."""
_PREFIX = "quiver."
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_PRINTABLE = re.compile(rf"[\x20-\x7e]{{1,{TRACE_CHARACTERS_MAX}}}")


def parse_trace(given: TraceContext | None) -> dict[str, str]:
    """The headers of a trace context, checked; empty if none was given.

    Raises:
        UsageError: it is none.
    """
    if isinstance(given, str):
        given = {"traceparent": given}
    headers = dict(given or {})
    for name, value in headers.items():
        if name not in TRACE_HEADERS:
            raise UsageError(f"trace context has {name!r}: expected {', '.join(TRACE_HEADERS)} (W3C Trace Context)")
        if not _is_valid(name, value):
            expected = (
                "expected VERSION-TRACE-SPAN-FLAGS in hex digits: 00-<32>-<16>-<2>, neither id all zeroes"
                if name == "traceparent"
                else f"expected 1 to {TRACE_CHARACTERS_MAX} printable ASCII characters"
            )
            raise UsageError(f"{name} {str(value)[:80]!r} cannot be read: {expected}")
    if "tracestate" in headers and "traceparent" not in headers:
        raise UsageError("a tracestate needs a traceparent: give both")
    return headers


def with_trace(envelope: pa.RecordBatch | None, headers: Mapping[str, str]) -> pa.RecordBatch:
    """The envelope of a bundle with its trace context, behind the columns that it had."""
    fields = [pa.field(_PREFIX + name, pa.string(), nullable=False) for name in headers]
    return with_columns(envelope, pa.schema(fields), tuple(headers.values()))


def trace_in(envelope: pa.RecordBatch) -> dict[str, str]:
    """The trace context that an envelope carries, by header; empty if it carries none."""
    found: dict[str, str] = {}
    for name in TRACE_HEADERS:
        index = envelope.schema.get_field_index(_PREFIX + name)
        value = envelope.column(index)[0].as_py() if index >= 0 and envelope.num_rows else None
        if isinstance(value, str) and _is_valid(name, value):
            found[name] = value
    if "traceparent" not in found:
        found.pop("tracestate", None)
    return found


def with_columns(envelope: pa.RecordBatch | None, schema: pa.Schema, row: tuple[Any, ...]) -> pa.RecordBatch:
    """An envelope with more columns, which all rows have the same values of, in place of those of the same names.

    Args:
        envelope: its other columns stay in front, its rows as many as they are; one without rows has nothing to keep.
    """
    kept = [] if envelope is None or not envelope.num_rows else _others(envelope.schema, schema)
    row_count = envelope.num_rows if envelope is not None and kept else 1
    columns = [pa.array([value] * row_count, field.type) for value, field in zip(row, schema, strict=True)]
    if envelope is None or not kept:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    fields = [envelope.schema.field(index) for index in kept]
    return pa.RecordBatch.from_arrays(
        [*(envelope.column(index) for index in kept), *columns],
        schema=pa.schema([*fields, *schema], envelope.schema.metadata),
    )


def _others(present: pa.Schema, added: pa.Schema) -> list[int]:
    """Which columns are not about to be replaced."""
    return [index for index, name in enumerate(present.names) if name not in added.names]


def _is_valid(name: str, value: object) -> bool:
    pattern = _TRACEPARENT if name == "traceparent" else _PRINTABLE
    return isinstance(value, str) and pattern.fullmatch(value) is not None
