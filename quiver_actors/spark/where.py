"""Option `where`: rows that a read is to leave out before they travel to the JVM, and whole segments before they are read.

    id >= 100 AND kind IN ('a', 'b') AND _quiver_ingestion_time >= '2026-11-21T00:00:00Z'

`query/conditions.py` has the language. The conditions are part of the frame, as its topic is, so every query of the frame has them.
Spark's own filter pushdown is not taken: it keeps the filters of a frame's first query for the frame's later queries, and has one place
for both sides of a join (`PythonDataSourceV2.setReadInfo`, Spark 4.1 to 4.3), so that rows would be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from quiver_actors.errors import UsageError
from quiver_actors.flight.contract import ColumnTerm, WantedRows, schema_bytes
from quiver_actors.flight.rows import METADATA
from quiver_actors.query.conditions import COMPARISONS, Term, parse_terms, wanted_mask
from quiver_actors.spark.offsets import Place

_UNBOUNDED = (-(1 << 62), 1 << 62)
_INGESTION_TIME = "_quiver_ingestion_time"


@dataclass(frozen=True)
class Where:
    """The condition of option `where`: it selects the rows for which every term is true."""

    terms: tuple[Term, ...] = ()
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Least and greatest wanted value of columns that have one value in a whole segment."""

    def check(self, schema: pa.Schema) -> None:
        """
        Raises:
            UsageError: a column is not read, or its type cannot be compared with the given value.
        """
        for term in self.terms:
            if term.column not in schema.names:
                hint = " (includeMetadata=true adds it)" if term.column in METADATA.names else ""
                raise UsageError(
                    f"where: column {term.column!r} is not read{hint}: expected one of {', '.join(schema.names)}"
                )
            term.check(schema.field(term.column).type)

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

    def wanted_rows(self, slots: Mapping[str, int], schema: pa.Schema) -> WantedRows | None:
        """What nodes need to tell which segments have none of the rows; None: the terms say nothing of single columns of a slot.

        Args:
            schema: the one that rows conform to.
        """
        terms = [term for term in self.terms if term.column not in METADATA.names]
        if len(slots) != 1 or not terms:
            return None
        (slot_id,) = slots.values()
        columns = {term.column for term in terms}
        named = pa.schema([field for field in schema if field.name in columns])
        return WantedRows(slot_id, schema_bytes(named), [ColumnTerm(*term) for term in terms])

    def filtered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the rows that are wanted."""
        for batch in batches:
            wanted = batch.filter(wanted_mask(batch, self.terms))
            if wanted.num_rows:
                yield wanted


EVERYTHING = Where()


def parse_where(text: str) -> Where:
    """
    Raises:
        ConfigError: it is not comparisons joined by AND.
    """
    terms = parse_terms(text)
    ranges: dict[str, tuple[int, int]] = {}
    for term in terms:
        if term.column in ("_quiver_core", "_quiver_segment", _INGESTION_TIME) and term.kind in COMPARISONS:
            ranges[term.column] = _narrowed(ranges.get(term.column, _UNBOUNDED), term)
    return Where(terms, ranges)


def _narrowed(span: tuple[int, int], term: Term) -> tuple[int, int]:
    """Return the part of `span` that the term leaves."""
    kind = METADATA.field(term.column).type
    (scalar,) = term.values_as(kind)
    value = scalar.value if term.column == _INGESTION_TIME else scalar.as_py()
    low, high = span
    lows = {"=": value, ">=": value, ">": value + 1}
    highs = {"=": value, "<=": value, "<": value - 1}
    return max(low, lows.get(term.kind, low)), min(high, highs.get(term.kind, high))
