"""No bound of the statistics is ever narrower than the values, whatever their type; where none can be told there is none."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.errors import InvalidFormat
from quiver_actors.store.segment.statistics import (
    TEXT_BYTES_MAX,
    ColumnSums,
    decode_statistics,
    encode_statistics,
)

NOON = datetime.datetime(2013, 1, 1, 12)
DAY = NOON.date()
BOUNDED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 127]),
    (pa.uint64(), [2**64 - 1, 3]),
    (pa.float16(), [1.5, -2.0]),
    (pa.float64(), [math.inf, -math.inf]),
    (pa.decimal128(20, 2), [decimal.Decimal("1.25"), decimal.Decimal("-99999.99")]),
    (pa.decimal256(60, 0), [decimal.Decimal(10**59), decimal.Decimal(3)]),
    (pa.date32(), [DAY, DAY.replace(year=1913)]),
    (pa.date64(), [DAY, DAY.replace(year=1913)]),
    (pa.time32("s"), [datetime.time(1), datetime.time(23)]),
    (pa.time64("ns"), [datetime.time(1, 2, 3, 4), datetime.time(23)]),
    (pa.timestamp("us"), [NOON, NOON.replace(year=1913)]),
    (pa.timestamp("ms", "Asia/Tokyo"), [NOON.replace(tzinfo=datetime.UTC)]),
    (pa.duration("s"), [datetime.timedelta(3), datetime.timedelta(-3)]),
    (pa.string(), ["b", "a", ""]),
    (pa.large_string(), ["ö", "z"]),
    (pa.binary(), [b"\xff", b"a"]),
    (pa.dictionary(pa.int8(), pa.string()), ["b", "a"]),
]
UNBOUNDED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.null(), []),
    (pa.float64(), [1.0, math.nan]),
    (pa.float16(), [1.0, math.nan]),
    (pa.string(), ["a", "b" * (TEXT_BYTES_MAX + 1)]),
    (pa.string(), ["a", "ö" * (TEXT_BYTES_MAX // 2 + 1)]),
    (pa.string_view(), ["a"]),
    (pa.list_(pa.int8()), [[1]]),
    (pa.struct([("a", pa.int8())]), [{"a": 1}]),
    (pa.month_day_nano_interval(), [(1, 2, 3)]),
    (pa.int64(), []),
]


def found(kind: pa.DataType, *pieces: list[Any]) -> Any:
    schema = pa.schema([("c", kind)])
    sums = ColumnSums(schema)
    for piece in pieces:
        sums.add([pa.RecordBatch.from_arrays([pa.array(piece, kind)], schema=schema)])
    (columns,) = decode_statistics(encode_statistics([sums.packed()]), [schema])
    assert columns is not None
    return columns["c"]


@pytest.mark.parametrize(("kind", "values"), BOUNDED, ids=[str(case[0]) for case in BOUNDED])
def test_bounds_are_the_smallest_and_the_largest_value(kind: pa.DataType, values: list[Any]) -> None:
    for pieces in ([[None, *values]], [[None], *([value] for value in values)], [[], values, [None]]):
        column = found(kind, *pieces)
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        assert column.null_count == sum(piece.count(None) for piece in pieces)
        assert [column.smallest.type, column.largest.type] == [plain, plain]
        assert [column.smallest, column.largest] == [pa.scalar(min(values), plain), pa.scalar(max(values), plain)]


@pytest.mark.parametrize(("kind", "values"), UNBOUNDED, ids=[str(case[0]) for case in UNBOUNDED])
def test_where_bounds_cannot_be_told_there_are_none(kind: pa.DataType, values: list[Any]) -> None:
    for pieces in (
        [[None, *values]],
        [[None], *([value] for value in values)],
        [*([value] for value in reversed(values)), [None]],
    ):
        assert tuple(found(kind, *pieces)) == (1, None, None)


def test_rows_that_point_to_a_null_among_the_values_of_a_dictionary_are_nulls() -> None:
    words = pa.array(["b", None, "a"])
    keys = [pa.array([0, 1, None, 1, 2], pa.int8()), pa.array([1], pa.int8()), pa.array([], pa.int8())]
    columns = [pa.DictionaryArray.from_arrays(each, words) for each in keys]
    schema = pa.schema([("c", columns[0].type)])
    sums = ColumnSums(schema)
    sums.add([pa.RecordBatch.from_arrays([column], schema=schema) for column in columns])
    assert sums.packed() == [[4, "a", "b"]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.floats(width=32), st.integers(-9, 9)), max_size=5), max_size=4))
def test_no_value_lies_outside(pieces: list[list[float | None]]) -> None:
    column = found(pa.float32(), *pieces)
    values = [value for piece in pieces for value in piece if value is not None]
    assert column.null_count == sum(piece.count(None) for piece in pieces)
    if not values or any(map(math.isnan, values)):
        assert column.smallest is None
        assert column.largest is None
    else:
        assert (column.smallest.as_py(), column.largest.as_py()) == (min(values), max(values))


def test_what_was_not_looked_at_is_none_and_columns_of_one_name_are_left_out() -> None:
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8()), ("b", pa.int8())])
    sums = ColumnSums(twice)
    sums.add([pa.RecordBatch.from_arrays([pa.array([1], pa.int8())] * 3, schema=twice)])
    decoded = decode_statistics(encode_statistics([None, sums.packed()]), [twice, twice])
    assert decoded[0] is None
    assert decoded[1] is not None
    assert list(decoded[1]) == ["b"]


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\x91\x93", b"\x91\x91\x93\x00\xa1x\x00", b"\x91\x91\x91\x00"]
)
def test_rubbish_is_an_error(data: bytes) -> None:
    with pytest.raises(InvalidFormat):
        decode_statistics(data, [pa.schema([("a", pa.int8())])])


def test_texts_that_point_outside_their_buffers_are_not_followed() -> None:
    schema = pa.schema([("c", pa.string())])
    offsets = pa.py_buffer(b"\0\0\0\0\xff\xff\xff\x7f\x01\0\0\0")
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a")])
    with pytest.raises(pa.ArrowInvalid):
        ColumnSums(schema).add([pa.RecordBatch.from_arrays([array], schema=schema)])
