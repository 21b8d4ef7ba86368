"""Option `where`: rows that a read is to leave out before they travel to the JVM, and whole segments before they are read.

    id >= 100 AND kind IN ('a', 'b') AND _quiver_ingestion_time >= '2026-11-21T00:00:00Z'

Comparisons of a column with literals, joined by AND. They are part of the frame, as its topic is, so every query of the frame has them.
Spark's own filter pushdown is not taken: it keeps the filters of a frame's first query for the frame's later queries, and has one place
for both sides of a join (`PythonDataSourceV2.setReadInfo`, Spark 4.1 to 4.3), so that rows would be missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.flight.rows import METADATA
from quiver_actors.spark.offsets import Place

_TOKEN = re.compile(
    r"\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b|`(?P<name>[^`]+)`|(?P<word>[^\W\d]\w*)"
    r"|(?P<symbol><=|>=|<>|!=|==|[=<>(),]))"
)
_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
_SPELLINGS = {"==": "=", "<>": "!="}
_UNBOUNDED = (-(1 << 62), 1 << 62)
_INGESTION_TIME = "_quiver_ingestion_time"


class Term(NamedTuple):
    """One comparison; `values` as they were written."""

    column: str
    kind: str
    """`=`, `!=`, `>`, `>=`, `<`, `<=`, `IN`, `IS NULL` or `IS NOT NULL`."""
    values: tuple[str, ...] = ()

    def mask(self, batch: pa.RecordBatch) -> Any:
        """True for rows that are wanted, null or false for others."""
        column = batch.column(self.column)
        if self.kind == "IS NULL":
            return column.is_null()
        if self.kind == "IS NOT NULL":
            return column.is_valid()
        values = self.values_as(column.type)
        if self.kind == "IN":
            return pc.is_in(column, value_set=pa.array([value.as_py() for value in values], column.type))
        return _COMPARISONS[self.kind](column, values[0])

    def values_as(self, kind: pa.DataType) -> list[Any]:
        """
        Raises:
            UsageError: they are not of that type.
        """
        try:
            return [pa.scalar(value).cast(kind) for value in self.values]
        except pa.ArrowException as error:
            raise UsageError(f"option 'where': {self.column} is {kind}: {error}") from error


@dataclass(frozen=True)
class Where:
    """What is wanted: rows for which every term is true."""

    terms: tuple[Term, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For columns that a whole segment shares, what they can be at least and at most."""

    def check(self, schema: pa.Schema) -> None:
        """
        Raises:
            UsageError: a column is not read, or cannot be compared with what it is compared with.
        """
        for term in self.terms:
            if term.column not in schema.names:
                hint = " (includeMetadata=true adds it)" if term.column in METADATA.names else ""
                raise UsageError(
                    f"option 'where': column {term.column!r} is not read{hint}: expected one of {', '.join(schema.names)}"
                )
            kind = schema.field(term.column).type
            term.values_as(kind)
            try:
                term.mask(pa.RecordBatch.from_arrays([pa.nulls(0, kind)], [term.column]))
            except pa.ArrowException as error:
                raise UsageError(
                    f"option 'where': {term.column} is {kind}, which cannot be compared: {error}"
                ) from error

    def may_hold(self, place: Place, segment_seq: int, first_unix_ns: int, last_unix_ns: int) -> bool:
        """Whether a segment can have rows that are wanted."""
        spans = {"_quiver_core": (place.core, place.core), "_quiver_segment": (segment_seq, segment_seq)}
        if last_unix_ns:  # Otherwise another implementation wrote it without times.
            spans[_INGESTION_TIME] = (first_unix_ns // 1000, last_unix_ns // 1000)
        nodes = [term.values for term in self.terms if term.column == "_quiver_node" and term.kind in ("=", "IN")]
        return all(place.node in wanted for wanted in nodes) and all(
            spans[column][1] >= low and spans[column][0] <= high
            for column, (low, high) in self.ranges.items()
            if column in spans
        )

    def required_slots(self, slots: Mapping[str, int]) -> list[int]:
        """Slots that a bundle must have for a row to be wanted: with several selected, a column is a slot, and null where there is none."""
        return sorted({slots[term.column] for term in self.terms if term.column in slots and term.kind != "IS NULL"})

    def filtered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the rows that are wanted."""
        for batch in batches:
            for term in self.terms:
                batch = batch.filter(term.mask(batch))
            if batch.num_rows:
                yield batch


EVERYTHING = Where()


def parse_where(text: str) -> Where:
    """
    Raises:
        ConfigError: it is not comparisons joined by AND.
    """
    tokens = list(_tokens(text))
    terms = []
    while tokens:
        terms.append(_term(tokens, text))
        if tokens and (_take(tokens, text)[1].upper() != "AND" or not tokens):
            raise _misread(text)
    if not terms:
        raise _misread(text)
    ranges: dict[str, tuple[int, int]] = {}
    for term in terms:
        if term.column in ("_quiver_core", "_quiver_segment", _INGESTION_TIME) and term.kind in _COMPARISONS:
            ranges[term.column] = _narrowed(ranges.get(term.column, _UNBOUNDED), term)
    return Where(tuple(terms), ranges)


_Token = tuple[str, str]


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _misread(text)
        value = found.group(found.lastgroup)
        yield found.lastgroup, value.replace("''", "'") if found.lastgroup == "text" else value
        at = found.end()


def _term(tokens: list[_Token], text: str) -> Term:
    kind, column = _take(tokens, text)
    if kind not in ("word", "name"):
        raise _misread(text)
    comparison = _take(tokens, text)[1].upper()
    comparison = _SPELLINGS.get(comparison, comparison)
    if comparison in _COMPARISONS:
        return Term(column, comparison, (_literal(tokens, text),))
    if comparison == "IN":
        return Term(column, "IN", tuple(_literals(tokens, text)))
    if comparison == "IS":
        words = [_take(tokens, text)[1].upper()]
        if words == ["NOT"]:
            words.append(_take(tokens, text)[1].upper())
        if words[-1] == "NULL":
            return Term(column, " ".join(["IS", *words]))
    raise _misread(text)


def _literals(tokens: list[_Token], text: str) -> Iterator[str]:
    if _take(tokens, text) != ("symbol", "("):
        raise _misread(text)
    yield _literal(tokens, text)
    while (separator := _take(tokens, text)) == ("symbol", ","):
        yield _literal(tokens, text)
    if separator != ("symbol", ")"):
        raise _misread(text)


def _literal(tokens: list[_Token], text: str) -> str:
    kind, value = _take(tokens, text)
    if kind in ("text", "number") or (kind == "word" and value.lower() in ("true", "false")):
        return value
    raise _misread(text)


def _take(tokens: list[_Token], text: str) -> _Token:
    if not tokens:
        raise _misread(text)
    return tokens.pop(0)


def _misread(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not understood: expected comparisons of a column with literals, joined by AND, such as "
        "\"id >= 100 AND kind IN ('a', 'b') AND note IS NOT NULL\""
    )


def _narrowed(span: tuple[int, int], term: Term) -> tuple[int, int]:
    """Of what a segment shares, the part that the term leaves."""
    kind = METADATA.field(term.column).type
    (scalar,) = term.values_as(kind)
    value = scalar.value if term.column == _INGESTION_TIME else scalar.as_py()
    low, high = span
    lows = {"=": value, ">=": value, ">": value + 1}
    highs = {"=": value, "<=": value, "<": value - 1}
    return max(low, lows.get(term.kind, low)), min(high, highs.get(term.kind, high))
