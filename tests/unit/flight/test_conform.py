"""Every Arrow type reaches Spark's exact type with its values, or is refused by name."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from quiver_actors.base.conform import conform
from quiver_actors.errors import UnsupportedType
from quiver_actors.flight.spark_types import spark_schema, spark_type, storable_schema

US = datetime.timedelta(microseconds=1)
EPOCH = datetime.datetime(1970, 1, 1)
EPOCH_UTC = EPOCH.replace(tzinfo=datetime.UTC)

# type, values, Spark's Arrow type, Spark's values (None: the same)
CASES: list[tuple[pa.DataType, list[Any], pa.DataType, list[Any] | None]] = [
    (pa.bool_(), [True, None], pa.bool_(), None),
    (pa.int8(), [-128, None], pa.int8(), None),
    (pa.int64(), [2**63 - 1, None], pa.int64(), None),
    (pa.uint8(), [255, None], pa.int16(), None),
    (pa.uint16(), [65535, None], pa.int32(), None),
    (pa.uint32(), [2**32 - 1, None], pa.int64(), None),
    (pa.uint64(), [2**64 - 1, None], pa.decimal128(20, 0), [decimal.Decimal(2**64 - 1), None]),
    (pa.float16(), [1.5, None], pa.float32(), None),
    (pa.decimal32(5, 2), [decimal.Decimal("1.23"), None], pa.decimal128(5, 2), None),
    (pa.decimal256(38, 2), [decimal.Decimal("1.23"), None], pa.decimal128(38, 2), None),
    (pa.large_string(), ["a", None], pa.string(), None),
    (pa.string_view(), ["a", None, "longer than twelve bytes"], pa.string(), None),
    (pa.large_binary(), [b"a", None], pa.binary(), None),
    (pa.binary_view(), [b"a", None, b"longer than twelve bytes"], pa.binary(), None),
    (pa.binary(2), [b"ab", None], pa.binary(), None),
    (pa.date64(), [datetime.date(2013, 12, 31), None], pa.date32(), None),
    (pa.timestamp("s"), [EPOCH, None], pa.timestamp("us"), None),
    (pa.timestamp("us", "America/New_York"), [EPOCH_UTC, None], pa.timestamp("us", "UTC"), [EPOCH_UTC, None]),
    (pa.duration("ms"), [datetime.timedelta(seconds=1), None], pa.duration("us"), None),
    (pa.time32("ms"), [datetime.time(1, 2, 3), None], pa.time64("ns"), None),
    (pa.time64("us"), [datetime.time(1, 2, 3, 4), None], pa.time64("ns"), None),
    (pa.large_list(pa.uint16()), [[1], None, []], pa.list_(pa.int32()), None),
    (pa.list_(pa.uint16(), 2), [[1, 2], None, [3, 4]], pa.list_(pa.int32()), None),
    (pa.list_view(pa.int16()), [[1], None, [2, 3]], pa.list_(pa.int16()), None),
    (pa.large_list_view(pa.string()), [["x", "y"], None, [], [None]], pa.list_(pa.string()), None),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["x"], None, ["x", "y"]], pa.list_(pa.string()), None),
    (pa.map_(pa.large_string(), pa.uint8()), [[("a", 1)], None, [("b", None)]], pa.map_(pa.string(), pa.int16()), None),
    (
        pa.struct([("a", pa.uint8()), ("b", pa.large_list(pa.string_view()))]),
        [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.int16()), ("b", pa.list_(pa.string()))]),
        None,
    ),
    (pa.dictionary(pa.int8(), pa.string()), ["x", None, "x"], pa.string(), None),
    (pa.run_end_encoded(pa.int32(), pa.string()), ["x", "x", None], pa.string(), None),
    (pa.null(), [None, None], pa.null(), None),
]


@pytest.mark.parametrize(("source", "values", "target", "expected"), CASES, ids=[str(case[0]) for case in CASES])
def test_values_arrive_in_the_type_of_the_table(
    source: pa.DataType, values: list[Any], target: pa.DataType, expected: list[Any] | None
) -> None:
    batch = pa.record_batch([pa.array(values, source)], names=["v"])
    schema = spark_schema([batch.schema])
    assert schema == pa.schema([pa.field("v", target)])
    for start in range(len(values)):
        conformed = conform(batch.slice(start), schema)
        conformed.validate(full=True)
        assert conformed.schema.equals(schema)
        assert conformed.column(0).to_pylist() == (expected or values)[start:]


TEXTS = ["x", None, "longer than twelve bytes"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pc.run_end_encode(pa.array(TEXTS)),
        pa.array([[text] for text in TEXTS]),
    ],
    ids=lambda values: str(values.type),
)
@pytest.mark.parametrize("piece", [slice(None), slice(1, 4), slice(3, 3)], ids=str)
def test_dictionaries_and_runs_may_hold_any_type(values: pa.Array, piece: slice) -> None:
    """Arrow itself refuses to decode most of these. Polars gives its categories as a dictionary of views."""
    plain = values.to_pylist()
    of_dictionary = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1, 0], pa.uint32()), values)
    of_runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5], pa.int32()), values)
    expected = [plain[2], plain[0], None, plain[1], plain[0]], [*[plain[0]] * 2, plain[1], *[plain[2]] * 2]
    for array, rows in zip((of_dictionary, of_runs), expected, strict=True):
        target = pa.schema([("c", spark_type(array.type))])
        found = conform(pa.record_batch([array[piece]], names=["c"]), target)
        found.validate(full=True)
        assert found.schema.equals(target)
        assert found.column("c").to_pylist() == rows[piece]


def test_nanoseconds_are_cut_to_microseconds() -> None:
    batch = pa.record_batch([pa.array([1_999, None], pa.timestamp("ns", "UTC"))], names=["t"])
    assert conform(batch, spark_schema([batch.schema])).column(0).to_pylist() == [EPOCH_UTC + US, None]


@pytest.mark.parametrize(
    "source", [pa.decimal256(39, 0), pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])], ids=str
)
def test_what_spark_does_not_have_is_refused(source: pa.DataType) -> None:
    with pytest.raises(UnsupportedType):
        spark_type(source)


def test_a_value_that_does_not_fit_is_an_error_not_another_value() -> None:
    batch = pa.record_batch({"v": pa.array([2**40])})
    with pytest.raises(UnsupportedType, match="'v'"):
        conform(batch, pa.schema([("v", pa.int32())]))


def test_the_schema_of_a_topic_is_the_union_with_the_widest_types() -> None:
    first = pa.schema([("a", pa.uint8()), ("b", pa.null()), ("c", pa.int32())])
    second = pa.schema([("a", pa.int64()), ("b", pa.large_string()), ("d", pa.dictionary(pa.int8(), pa.float64()))])
    assert spark_schema([first, second]) == pa.schema(
        [("a", pa.int64()), ("b", pa.string()), ("c", pa.int32()), ("d", pa.float64())]
    )


def test_types_that_no_type_holds_are_refused() -> None:
    with pytest.raises(UnsupportedType, match="no common"):
        spark_schema([pa.schema([("a", pa.int64())]), pa.schema([("a", pa.string())])])


def test_columns_are_found_by_name_missing_ones_are_null_and_others_dropped() -> None:
    batch = pa.record_batch({"b": [1, 2], "x": ["dropped", "too"], "a": ["p", "q"]})
    target = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(pa.int8()))])
    assert conform(batch, target).to_pylist() == [{"a": "p", "b": 1, "c": None}, {"a": "q", "b": 2, "c": None}]


def test_two_columns_of_one_name_are_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(UnsupportedType, match="2 columns are called 'a'"):
        conform(batch, pa.schema([("a", pa.int64())]))


def test_nulls_under_a_not_null_schema_are_refused() -> None:
    batch = pa.record_batch({"a": pa.array([1, None])})
    with pytest.raises(UnsupportedType, match="NOT NULL"):
        conform(batch, pa.schema([pa.field("a", pa.int64(), nullable=False)]))


def test_a_batch_that_fits_is_passed_on_and_value_buffers_are_shared() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2]), "n": pa.array([[1.0], [2.0]], pa.large_list(pa.float64()))})
    assert conform(batch, batch.schema) is batch
    conformed = conform(batch, spark_schema([batch.schema]))
    assert conformed.column("a").buffers()[1].address == batch.column("a").buffers()[1].address
    assert conformed.column("n").values.buffers()[1].address == batch.column("n").values.buffers()[1].address


def test_the_same_table_is_stored_under_one_schema_whatever_spark_says_of_nulls_and_zones() -> None:
    strict = pa.schema(
        [
            pa.field("t", pa.timestamp("us", "America/New_York"), nullable=False),
            pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
            pa.field("s", pa.struct([pa.field("x", pa.int8(), nullable=False)]), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), nullable=False),
        ]
    )
    loose = pa.schema(
        [
            ("t", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.field("element", pa.int32()))),
            ("s", pa.struct([("x", pa.int8())])),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    assert storable_schema(strict).equals(storable_schema(loose))
    rows = [{"t": EPOCH_UTC, "l": [1, 2], "s": {"x": 3}, "m": [("k", 4)]}]
    stored = conform(pa.RecordBatch.from_pylist(rows, schema=strict), storable_schema(strict))
    stored.validate(full=True)
    assert stored.to_pylist() == rows


NOON = datetime.datetime(2013, 1, 1, 12)
CHANGED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([0.1]), pa.float32()),
    (pa.array([1e300]), pa.float32()),
    (pa.array([0.1], pa.float32()), pa.float16()),
    (pa.array([decimal.Decimal("12345678901234567890.1")]), pa.float64()),
    (pa.array([5]), pa.bool_()),
    (pa.array([0.5]), pa.bool_()),
    (pa.array([NOON]), pa.date32()),
    (pa.array([NOON], pa.timestamp("ns")), pa.date64()),
]
KEPT: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([2.5, None, float("nan"), float("-inf"), -0.0]), pa.float32()),
    (pa.array([decimal.Decimal("0.5"), None]), pa.float64()),
    (pa.array([0, 1, None]), pa.bool_()),
    (pa.array([NOON.replace(hour=0), None]), pa.date32()),
]


@pytest.mark.parametrize(("values", "target"), CHANGED, ids=lambda value: str(getattr(value, "type", value)))
def test_a_value_that_arrow_would_change_without_a_word_is_refused(values: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match="'v'"):
        conform(pa.record_batch({"v": values}), pa.schema([("v", target)]))


@pytest.mark.parametrize(("values", "target"), KEPT, ids=lambda value: str(getattr(value, "type", value)))
def test_values_that_are_the_same_in_a_narrower_type_are_read(values: pa.Array, target: pa.DataType) -> None:
    found = conform(pa.record_batch({"v": values}), pa.schema([("v", target)])).column("v")
    assert found.type == target
    assert str(found.cast(values.type)) == str(values)
