"""Conditions on rows: comparisons of a column with literals, joined by AND. The same language for Spark's option `where` and for commands.

    id >= 100 AND kind IN ('a', 'b') AND at >= '2026-11-21T00:00:00Z' AND note IS NOT NULL

A condition is data: nothing of its text is ever executed. A literal is cast to the type of the column that it is compared with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from quiver_actors.errors import ConfigError, UsageError

_TOKEN = re.compile(
    r"\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b|`(?P<name>[^`]+)`|(?P<word>[^\W\d]\w*)"
    r"|(?P<symbol><=|>=|<>|!=|==|[=<>(),]))"
)
COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
_SPELLINGS = {"==": "=", "<>": "!="}

Token = tuple[str, str]
"""What a token is (`text`, `number`, `name`, `word` or `symbol`), and its value."""


class Term(NamedTuple):
    """One comparison; `values` as they were written."""

    column: str
    kind: str
    """`=`, `!=`, `>`, `>=`, `<`, `<=`, `IN`, `IS NULL` or `IS NOT NULL`."""
    values: tuple[str, ...] = ()

    def check(self, kind: pa.DataType) -> None:
        """
        Raises:
            UsageError: a column of that type cannot be compared with the given values.
        """
        self.values_as(kind)
        try:
            self.mask(pa.RecordBatch.from_arrays([pa.nulls(0, kind)], [self.column]))
        except pa.ArrowException as error:
            raise UsageError(f"where: {self.column} is {kind}, which cannot be compared: {error}") from error

    def mask(self, batch: pa.RecordBatch) -> Any:
        """True for rows that are wanted, null or false for others."""
        column = batch.column(self.column)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if self.kind == "IS NULL":
            return column.is_null()
        if self.kind == "IS NOT NULL":
            return column.is_valid()
        values = self.values_as(column.type)
        if self.kind == "IN":
            return pc.is_in(column, value_set=_array(values))
        return COMPARISONS[self.kind](column, values[0])

    def expression(self, kind: pa.DataType) -> pc.Expression:
        """True for rows that are wanted, null or false for others; `kind` is the type of the column."""
        column = pc.field(self.column)
        if self.kind == "IS NULL":
            return column.is_null()
        if self.kind == "IS NOT NULL":
            return column.is_valid()
        values = self.values_as(kind)
        if self.kind == "IN":
            return column.isin(_array(values))
        return COMPARISONS[self.kind](column, values[0])

    def values_as(self, kind: pa.DataType) -> list[Any]:
        """
        Raises:
            UsageError: the values of the condition are not of that type.
        """
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        try:
            return [pa.scalar(value).cast(kind) for value in self.values]
        except pa.ArrowException as error:
            raise UsageError(f"where: {self.column} is {kind}: {error}") from error


def _array(values: Iterable[pa.Scalar]) -> pa.Array:
    """Scalars of one type as an array; Python has not all of their values."""
    return pa.concat_arrays([pa.repeat(value, 1) for value in values])


def parse_terms(text: str) -> tuple[Term, ...]:
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
    return tuple(terms)


def wanted_mask(batch: pa.RecordBatch, terms: Iterable[Term]) -> Any:
    """Return True for each row for which every term is true, False for the others. The batch has all columns of the terms."""
    wanted = pa.repeat(pa.scalar(value=True), batch.num_rows)
    for term in terms:
        wanted = pc.and_(wanted, pc.fill_null(term.mask(batch), fill_value=False))
    return wanted


def expression_of(terms: Iterable[Term], schema: pa.Schema) -> pc.Expression:
    """Return what is true of the rows for which every term is true.

    Raises:
        UsageError: a column is not in the schema, or its type cannot be compared with the given value.
    """
    found = pc.scalar(value=True)
    for term in terms:
        if term.column not in schema.names:
            raise UsageError(f"where: there is no column {term.column!r}: expected one of {', '.join(schema.names)}")
        term.check(schema.field(term.column).type)
        found = found & term.expression(schema.field(term.column).type)
    return found


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise _misread(text)
        value = found.group(found.lastgroup)
        yield found.lastgroup, value.replace("''", "'") if found.lastgroup == "text" else value
        at = found.end()


def _term(tokens: list[Token], text: str) -> Term:
    kind, column = _take(tokens, text)
    if kind not in ("word", "name"):
        raise _misread(text)
    comparison = _take(tokens, text)[1].upper()
    comparison = _SPELLINGS.get(comparison, comparison)
    if comparison in COMPARISONS:
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


def _literals(tokens: list[Token], text: str) -> Iterator[str]:
    if _take(tokens, text) != ("symbol", "("):
        raise _misread(text)
    yield _literal(tokens, text)
    while (separator := _take(tokens, text)) == ("symbol", ","):
        yield _literal(tokens, text)
    if separator != ("symbol", ")"):
        raise _misread(text)


def _literal(tokens: list[Token], text: str) -> str:
    kind, value = _take(tokens, text)
    if kind in ("text", "number") or (kind == "word" and value.lower() in ("true", "false")):
        return value
    raise _misread(text)


def _take(tokens: list[Token], text: str) -> Token:
    if not tokens:
        raise _misread(text)
    return tokens.pop(0)


def _misread(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not understood: expected comparisons of a column with literals, joined by AND, such as "
        "\"id >= 100 AND kind IN ('a', 'b') AND note IS NOT NULL\""
    )
