"""A segment is named as without wanted rows only where none of its rows, in the types that the reader wants, satisfies the terms."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.base.conform import conform
from quiver_actors.client.statistics import SegmentStatistics
from quiver_actors.flight.contract import ColumnTerm, WantedRows, schema_bytes
from quiver_actors.flight.pruning import unmatched
from quiver_actors.query.conditions import parse_terms, wanted_mask
from tests.unit.client.test_statistics import of

_TYPES = [pa.int8(), pa.int64(), pa.float32(), pa.uint16()]
_WIDEST = pa.schema([("n", pa.float64()), ("m", pa.int64())])


def wanted(where: str, schema: pa.Schema, slot: int = 0) -> WantedRows:
    return WantedRows(slot, schema_bytes(schema), [ColumnTerm(*term) for term in parse_terms(where)])


def test_segments_without_a_match_are_named_by_core() -> None:
    low, high = of(pa.record_batch({"n": [1, 5]})), of(pa.record_batch({"n": [10, None]}))
    known = {0: {1: low, 2: high}, 3: {1: high}}
    schema = pa.schema([("n", pa.int32())])
    assert unmatched(known, wanted("n > 5", schema)) == {0: [1], 3: []}
    assert unmatched(known, wanted("n IN (1, 2)", schema)) == {0: [2], 3: [1]}
    assert unmatched(known, wanted("n IS NULL", schema)) == {0: [1], 3: []}
    assert unmatched(known, wanted("n >= 1 AND n < 11", schema)) == {0: [], 3: []}
    assert unmatched(known, wanted("n > 0", schema, slot=7)) == {0: [1, 2], 3: [1]}


def test_bounds_that_the_wanted_type_cannot_hold_leave_nothing_out() -> None:
    nanoseconds = of(pa.record_batch({"n": pa.array([1_999], pa.timestamp("ns", "UTC"))}))
    schema = pa.schema([("n", pa.timestamp("us", "UTC"))])
    assert unmatched({0: {0: nanoseconds}}, wanted("n = '1970-01-01T00:00:00.000001Z'", schema)) == {0: []}


_VALUES = st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(_TYPES), _VALUES, st.booleans()), min_size=1, max_size=3),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    st.integers(-2, 22),
    st.sampled_from(["", " AND m IS NULL", " AND m IS NOT NULL", " AND n IS NOT NULL"]),
)
def test_no_segment_is_left_out_that_has_a_row(
    streams: list[tuple[pa.DataType, list[int | None], bool]], sign: str, value: int, more: str
) -> None:
    batches = [
        pa.record_batch({"n": pa.array(values, kind)} | ({"m": pa.array(values, pa.int64())} if has_m else {}))
        for kind, values, has_m in streams
    ]
    where = f"n {sign} {value}{more}"
    segment: SegmentStatistics = of(*batches)
    has_rows = any(
        pc.sum(wanted_mask(conform(batch, _WIDEST), parse_terms(where))).as_py() or False for batch in batches
    )
    left_out = unmatched({0: {0: segment}}, wanted(where, _WIDEST))[0]
    assert not (left_out and has_rows)
