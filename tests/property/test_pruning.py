"""A segment that its statistics rule out has none of the rows that a filter keeps, whatever the types and the schema asked for."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiver_actors.base.conform import conform
from quiver_actors.base.widening import SchemaConflict, widen
from quiver_actors.client.statistics import StreamStatistics
from quiver_actors.errors import UnsupportedType
from quiver_actors.query.guarantees import matching, values_guarantee
from quiver_actors.query.schemas import filterable
from quiver_actors.store.segment.statistics import ColumnSums, decode_statistics, encode_statistics

INTEGERS = (0, 1, -1, 5, 9, 10, 100, 127, -128, 255, 2**31 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, -0.0, 1.5, 0.1, -2.25, 3.0, 1e300, math.inf, -math.inf, math.nan)
TEXTS = ("", "a", "b", "aa", "é", "\U0001f600", "a\0", "9", "10", "100", "z" * 64, "z" * 65)
INSTANTS = tuple(
    map(datetime.datetime.fromisoformat, ("0001-01-01", "1969-12-31T23:59:59.999999", "2200-01-01T01:01:01"))
)
DAYS = tuple(instant.date() for instant in INSTANTS)
FAMILIES: tuple[tuple[tuple[pa.DataType, ...], tuple[Any, ...]], ...] = (
    ((pa.int8(), pa.int16(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()), INTEGERS),
    ((pa.dictionary(pa.int8(), pa.int64()), pa.run_end_encoded(pa.int32(), pa.int64()), pa.int64()), INTEGERS),
    ((pa.float16(), pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.float64())), FLOATS),
    ((pa.float32(), pa.float64(), pa.int16(), pa.int64()), INTEGERS),
    ((pa.decimal128(7, 2), pa.decimal256(50, 4), pa.int32()), (Decimal(5), Decimal(-3), Decimal(10), Decimal(7))),
    ((pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())), TEXTS),
    ((pa.binary(), pa.large_binary(), pa.binary(1)), (b"a", b"\xff", b"")),
    (tuple(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ("UTC", "Asia/Tokyo")), INSTANTS),
    (tuple(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), INSTANTS),
    ((pa.date32(), pa.date64()), DAYS),
    ((pa.duration("s"), pa.duration("ns")), (datetime.timedelta(0), datetime.timedelta(days=-1))),
    ((pa.time32("s"), pa.time64("ns")), (datetime.time(0), datetime.time(1, 2, 3))),
    ((pa.bool_(),), (True, False)),
    ((pa.null(), pa.int64(), pa.string()), ()),
)
"""Types that drift into each other, and values that some of them hold."""
ASKED = (pa.string(), pa.int64(), pa.float64(), pa.float32(), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.date32())
"""Types in which a reader may ask for a column."""
COMPARISONS = (pc.equal, pc.not_equal, pc.greater, pc.greater_equal, pc.less, pc.less_equal)


class Stream(NamedTuple):
    """The rows of one schema in one segment."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]

    @property
    def statistics(self) -> StreamStatistics:
        sums = ColumnSums(self.schema)
        for batch in self.batches:
            sums.add([batch])
        (columns,) = decode_statistics(encode_statistics([sums.packed()]), [self.schema])
        return StreamStatistics(0, self.schema, sum(batch.num_rows for batch in self.batches), columns)


def held(kind: pa.DataType, values: tuple[Any, ...]) -> list[Any]:
    """The values that the type can have."""
    return [value for value in values if scalar(value, kind) is not None]


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    plain = kind.value_type if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) else kind
    try:
        return pa.scalar(value, pa.float32() if pa.types.is_float16(plain) else plain).cast(plain)
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def column(draw: st.DrawFn, kind: pa.DataType, values: tuple[Any, ...]) -> pa.Array:
    choices = held(kind, values)
    drawn = draw(st.lists(st.sampled_from([None, *choices]), max_size=4))
    if pa.types.is_dictionary(kind):
        # Nulls may be among the values, where Arrow does not count them, and values that no row has.
        words = [*choices, *draw(st.sampled_from([(), (None,)]))]
        places = draw(st.lists(st.sampled_from([None, *range(len(words))]), max_size=4))
        return pa.DictionaryArray.from_arrays(pa.array(places, kind.index_type), pa.array(words, kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(pa.array(drawn, kind.value_type), pa.int32())
    if pa.types.is_float16(kind):
        return pa.array(drawn, pa.float32()).cast(kind)
    return pa.array(drawn, kind)


@st.composite
def segments(draw: st.DrawFn) -> tuple[list[list[Stream]], tuple[Any, ...]]:
    kinds, values = draw(st.sampled_from(FAMILIES))
    found: list[list[Stream]] = []
    for _ in range(draw(st.integers(1, 3))):
        streams = []
        for _ in range(draw(st.integers(1, 2))):
            kind, name = draw(st.sampled_from(kinds)), draw(st.sampled_from("cccccd"))
            schema = pa.schema([(name, kind)])
            arrays = [column(draw, kind, values) for _ in range(draw(st.integers(1, 2)))]
            streams.append(Stream(schema, [pa.RecordBatch.from_arrays([array], schema=schema) for array in arrays]))
        found.append(streams)
    return found, values


def conditions(
    draw: Callable[[st.SearchStrategy[Any]], Any], kind: pa.DataType, choices: list[pa.Scalar], depth: int = 0
) -> pc.Expression:
    """An expression about column c."""
    shape = draw(
        st.sampled_from(["compare", "compare", "in", "null", "valid", *(["not", "and", "or"] if depth < 2 else [])])
    )
    if shape in ("not", "and", "or"):
        parts = [conditions(draw, kind, choices, depth + 1) for _ in range(1 if shape == "not" else 2)]
        return ~parts[0] if shape == "not" else parts[0] & parts[1] if shape == "and" else parts[0] | parts[1]
    if shape in ("null", "valid") or not choices:
        return pc.field("c").is_null() if shape == "null" else pc.field("c").is_valid()
    if shape == "in":
        some = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=3))
        # Python has not all of the values.
        parts = [pa.repeat(each, 1) for each in some] + ([pa.nulls(1, kind)] if draw(st.booleans()) else [])
        return pc.field("c").isin(pa.concat_arrays(parts))
    sides = [pc.field("c"), pc.scalar(draw(st.sampled_from(choices)))]
    return draw(st.sampled_from(COMPARISONS))(*(sides if draw(st.booleans()) else reversed(sides)))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), stored=segments(), asks=st.booleans())
def test_no_segment_with_wanted_rows_is_left_out(data: st.DataObject, stored: Any, asks: bool) -> None:
    found, values = stored
    try:
        schema = filterable(widen(stream.schema for streams in found for stream in streams))
    except SchemaConflict:
        assume(condition=False)
    if asks:
        schema = pa.schema([("c", data.draw(st.sampled_from(ASKED)))])
    assume(condition="c" in schema.names)
    kind = schema.field("c").type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    choices = [each for value in (*values, math.nan, "7") if (each := scalar(value, plain)) is not None]
    tables: dict[str, pa.Table] = {}
    try:
        for number, streams in enumerate(found):
            batches = [conform(batch, schema) for stream in streams for batch in stream.batches]
            tables[str(number)] = pa.Table.from_batches(batches, schema)
    except UnsupportedType:
        assume(condition=False)
    guaranteed = {
        str(number): values_guarantee(schema, ["c"], 0, [stream.statistics for stream in streams])
        for number, streams in enumerate(found)
    }
    wanted = conditions(data.draw, plain, choices)
    assert _with_rows(tables, wanted) <= matching(guaranteed, schema, wanted), (
        str(wanted),
        {key: str(each) for key, each in guaranteed.items()},
    )


def _with_rows(tables: Mapping[str, pa.Table], wanted: pc.Expression) -> set[str]:
    try:
        return {key for key, table in tables.items() if table.filter(wanted).num_rows}
    except pa.ArrowException:
        assume(condition=False)  # Arrow has no such comparison: a scan raises the same.
        raise


NULL_WORD = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
KNOWN: list[tuple[pa.Array, pa.DataType, pc.Expression]] = [
    (NULL_WORD, pa.string(), pc.field("c").is_null()),
    (pa.array([1.5, 3.0]), pa.float64(), ~(pc.field("c") < pc.scalar(math.nan))),
    (pa.array([5, 7, 100]), pa.string(), pc.field("c") == "7"),
    (pa.array(["9", "10", "50"]), pa.int64(), pc.field("c") == 50),
    (pa.array([Decimal("5.5"), Decimal("7.0"), Decimal("10.5")]), pa.string(), pc.field("c") == "7.0"),
]


@pytest.mark.parametrize(("stored", "asked", "wanted"), KNOWN, ids=lambda value: str(getattr(value, "type", value)))
def test_segments_that_were_left_out_once(stored: pa.Array, asked: pa.DataType, wanted: pc.Expression) -> None:
    stream = Stream(pa.schema([("c", stored.type)]), [pa.record_batch([stored], ["c"])])
    schema = pa.schema([("c", asked)])
    assert pa.Table.from_batches([conform(stream.batches[0], schema)]).filter(wanted).num_rows == 1 + (
        asked == "double"
    )
    assert matching({"0": values_guarantee(schema, ["c"], 0, [stream.statistics])}, schema, wanted) == {"0"}


def test_ruled_out_segments_are_left_out() -> None:
    schema = pa.schema([("c", pa.int64())])
    streams = [
        [Stream(schema, [pa.record_batch([pa.array([low, low + 9])], schema=schema)])] for low in range(0, 100, 10)
    ]
    guaranteed = {
        str(number): values_guarantee(schema, ["c"], 0, [stream.statistics for stream in each])
        for number, each in enumerate(streams)
    }
    assert matching(
        guaranteed, schema, reduce(lambda one, other: one | other, [pc.field("c") == 55, pc.field("c") > 97])
    ) == {"5", "9"}
