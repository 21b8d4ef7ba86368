"""Several schemas become one, whatever their order, and every stored value arrives in it unchanged."""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.base.conform import conform
from quiver_actors.base.widening import (
    AmbiguousColumns,
    SchemaConflict,
    ambiguous_columns,
    unambiguous,
    widen,
)
from quiver_actors.errors import UnsupportedType

DAY = datetime.date(2013, 1, 1)
NOON = datetime.datetime(2013, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=datetime.UTC)
DICTIONARY = pa.dictionary(pa.int8(), pa.string())

# The types of one column, each with a value, and the type that holds all of them.
WIDENED: list[tuple[list[tuple[pa.DataType, Any]], pa.DataType]] = [
    ([(pa.null(), None), (pa.date32(), DAY)], pa.date32()),
    ([(DICTIONARY, "a"), (pa.dictionary(pa.int16(), pa.string()), "b")], pa.string()),
    ([(DICTIONARY, "a"), (pa.string(), "b"), (pa.run_end_encoded(pa.int32(), pa.string()), "c")], pa.string()),
    ([(pa.uint8(), 255), (pa.uint32(), 1)], pa.uint32()),
    ([(pa.uint8(), 255), (pa.int8(), -1)], pa.int16()),
    ([(pa.uint32(), 2**32 - 1), (pa.int8(), -1), (pa.int64(), 2**62)], pa.int64()),
    ([(pa.uint64(), 2**64 - 1), (pa.int8(), -1)], pa.decimal128(20, 0)),
    ([(pa.uint64(), 7), (pa.int8(), -1), (pa.float32(), 0.5)], pa.float64()),
    ([(pa.int8(), 100), (pa.float16(), 0.5)], pa.float16()),
    ([(pa.int16(), 30_001), (pa.float32(), 0.5)], pa.float32()),
    ([(pa.int32(), 2**31 - 1), (pa.float32(), 0.5)], pa.float64()),
    ([(pa.int64(), 2**62 + 1), (pa.decimal128(5, 2), decimal.Decimal("1.25"))], pa.decimal128(21, 2)),
    ([(pa.decimal128(38, 0), decimal.Decimal(10**37)), (pa.decimal32(5, 2), decimal.Decimal("1.25"))], pa.decimal256(40, 2)),
    ([(pa.string(), "a"), (pa.large_string(), "b"), (pa.string_view(), "c")], pa.large_string()),
    ([(pa.string(), "a"), (pa.binary(), b"\xff")], pa.binary()),
    ([(pa.binary(1), b"a"), (pa.binary(2), b"ab")], pa.binary()),
    ([(pa.binary_view(), b"a"), (pa.string(), "ab")], pa.large_binary()),
    ([(pa.date32(), DAY), (pa.date64(), DAY)], pa.date64()),
    ([(pa.timestamp("s"), NOON), (pa.timestamp("us"), NOON)], pa.timestamp("us")),
    ([(pa.timestamp("s", "Asia/Tokyo"), NOON_UTC), (pa.timestamp("s", "UTC"), NOON_UTC)], pa.timestamp("s", "UTC")),
    ([(pa.timestamp("s", "Asia/Tokyo"), NOON_UTC), (pa.timestamp("ms", "Asia/Tokyo"), NOON_UTC)], pa.timestamp("ms", "Asia/Tokyo")),
    ([(pa.duration("s"), datetime.timedelta(1)), (pa.duration("ms"), datetime.timedelta(2))], pa.duration("ms")),
    ([(pa.time32("s"), datetime.time(1)), (pa.time32("ms"), datetime.time(2))], pa.time32("ms")),
    ([(pa.time32("s"), datetime.time(1)), (pa.time64("us"), datetime.time(2))], pa.time64("us")),
    ([(pa.list_(pa.int8()), [1]), (pa.list_(pa.int16(), 1), [300]), (pa.list_view(pa.int8()), [2])], pa.list_(pa.int16())),
    ([(pa.list_(DICTIONARY), ["a"]), (pa.large_list_view(pa.string()), ["b"])], pa.large_list(pa.string())),
    (
        [(pa.struct([("a", pa.int8())]), {"a": 1}), (pa.struct([("a", pa.int16()), ("b", DICTIONARY)]), {"a": 300, "b": "x"})],
        pa.struct([("a", pa.int16()), ("b", DICTIONARY)]),
    ),
    ([(pa.map_(pa.string(), pa.int8()), [("a", 1)]), (pa.map_(DICTIONARY, pa.int16()), [("b", 300)])], pa.map_(pa.string(), pa.int16())),
    ([(pa.uuid(), b"0123456789abcdef"), (pa.binary(), b"x")], pa.binary()),
]  # fmt: skip


def _batch(kind: pa.DataType, value: Any) -> pa.RecordBatch:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    array = pa.array([value, None, value], storage)
    column = pa.ExtensionArray.from_storage(kind, array) if storage is not kind else array
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([("c", kind)]))


def _value_in(expected: Any, found: Any) -> None:
    if isinstance(expected, dict):
        assert found == {**dict.fromkeys(found), **expected}
    elif isinstance(expected, str) and isinstance(found, bytes):
        assert found == expected.encode()
    else:
        assert found == expected


@pytest.mark.parametrize(("held", "expected"), WIDENED, ids=[str(case[1]) for case in WIDENED])
def test_the_values_of_all_types_arrive_unchanged_in_the_widest_one(
    held: list[tuple[pa.DataType, Any]], expected: pa.DataType
) -> None:
    for some in itertools.permutations(held):
        batches = [_batch(kind, value) for kind, value in some]
        schema = widen(batch.schema for batch in batches)
        assert str(schema.field("c").type) == str(expected) or expected.num_fields
        for batch, (_, value) in zip(batches, some, strict=True):
            for start in range(3):
                found = conform(batch.slice(start), schema)
                found.validate(full=True)
                assert found.schema.equals(schema)
                rows = found.column("c").to_pylist()
                _value_in(value, rows[-1])
                assert len(rows) == 3 - start
                assert start > 1 or rows[1 - start] is None


CONFLICTS = [
    (pa.bool_(), pa.int8()),
    (pa.string(), pa.int64()),
    (pa.decimal128(5, 2), pa.float64()),
    (pa.timestamp("s"), pa.timestamp("s", "UTC")),
    (pa.timestamp("s"), pa.date32()),
    (pa.list_(pa.int8()), pa.int8()),
    (pa.list_(pa.int8()), pa.list_(pa.string())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])),
    (pa.decimal256(76, 0), pa.decimal128(5, 2)),
    (pa.month_day_nano_interval(), pa.duration("s")),
    (pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.struct([("a", pa.int8())])),
]


@pytest.mark.parametrize(("one", "other"), CONFLICTS, ids=str)
def test_a_conflict_names_the_column_its_types_and_who_holds_them(one: pa.DataType, other: pa.DataType) -> None:
    schemas = [pa.schema([("c", one)]), pa.schema([("d", one)]), pa.schema([("c", other)])]
    with pytest.raises(SchemaConflict) as caught:
        widen(schemas, ["segment 1", "segment 2", "segment 3"])
    message = str(caught.value)
    assert "'c'" in message
    assert f"{one} in segment 1" in message
    assert f"{other} in segment 3" in message
    assert "segment 2" not in message


def test_columns_come_in_the_order_of_first_sight_and_are_nullable() -> None:
    required = [pa.field(name, pa.int8(), nullable=False) for name in "abc"]
    found = widen([pa.schema(required[:2]), pa.schema([required[2], required[0]])])
    assert found == pa.schema([field.with_nullable(True) for field in required])


INNER = pa.field("x", pa.int32(), nullable=False)
NESTED: list[tuple[pa.DataType, Any]] = [
    (pa.int32(), 1),
    (pa.struct([INNER]), {"x": None}),
    (pa.list_(INNER), [1, None]),
    (pa.large_list(pa.field("item", pa.struct([INNER]))), [{"x": None}, {"x": 2}]),
    (pa.list_(INNER, 2), [None, 1]),
    (pa.map_(pa.string(), INNER), [("k", None)]),
    (pa.list_view(INNER), [1, 2]),
]


@pytest.mark.parametrize(("kind", "value"), NESTED, ids=[str(case[0]) for case in NESTED])
def test_nulls_in_columns_that_are_not_null_arrive_as_nulls(kind: pa.DataType, value: Any) -> None:
    """Nobody looks for them when they are pushed."""
    schema = pa.schema([pa.field("c", kind, nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([value, None, value], kind)], schema=schema)
    wanted = widen([schema])
    assert wanted.field("c").nullable
    assert "x: int32 not null" not in str(wanted) or pa.types.is_list_view(kind)
    for start in range(3):
        found = conform(batch.slice(start), wanted)
        assert found.schema.equals(wanted)
        assert found.column("c").to_pylist() == [value, None, value][start:]


@pytest.mark.parametrize("inner", [pa.null(), pa.int8()], ids=str)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_fixed_size_lists_of_fixed_size_lists_become_lists(inner: pa.DataType, make: Any) -> None:
    kind, target = pa.list_(pa.list_(inner, 2), 2), make(pa.list_(inner, 2))
    rows = [None, [[None, None], [None, None]], [[None, None], None], None]
    for start in range(4):
        batch = pa.RecordBatch.from_arrays([pa.array(rows, kind)], names=["c"]).slice(start)
        found = conform(batch, pa.schema([("c", target)]))
        found.validate(full=True)
        assert found.column("c").to_pylist() == rows[start:]


def test_columns_that_cannot_be_told_apart_have_no_type() -> None:
    twice = pa.struct([("x", pa.int8()), ("x", pa.int8())])
    schema = pa.schema([("a", pa.int8()), ("s", pa.list_(twice)), ("b", pa.int8()), ("a", pa.string())])
    assert ambiguous_columns(schema) == ["a", "s"]
    assert unambiguous(schema) == pa.schema([("b", pa.int8()), ("a", pa.null()), ("s", pa.null())])
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    assert conform(batch, pa.schema([("b", pa.int8())])).to_pylist() == [{"b": None}]
    for name in "as":
        for kind in (pa.null(), pa.list_(pa.struct([("x", pa.int8())]))):
            with pytest.raises(AmbiguousColumns, match=f"'{name}'"):
                conform(batch, pa.schema([(name, kind)]))


def test_one_schema_is_itself_with_its_metadata_and_columns_of_one_name() -> None:
    twice = pa.schema([("a", pa.int8()), ("a", DICTIONARY)], metadata={"k": "v"})
    assert widen([twice, twice]).equals(twice, check_metadata=True)
    with pytest.raises(AmbiguousColumns, match="several columns are called 'a' in segment 3"):
        widen([twice, pa.schema([("a", pa.int8())])], ["segment 3", "segment 4"])


def test_metadata_is_kept_where_all_say_the_same() -> None:
    field = pa.field("a", pa.int8(), metadata={"unit": "s"})
    one = pa.schema([field, ("b", pa.int8())], metadata={"k": "v"})
    other = pa.schema([field, ("b", pa.int16())], metadata={"k": "v"})
    assert widen([one, other]).metadata == {b"k": b"v"}
    assert widen([one, other]).field("a").metadata == {b"unit": b"s"}
    found = widen([one, pa.schema([("a", pa.int8())])])
    assert found.metadata is None
    assert found.field("a").metadata is None


def test_of_no_schema_there_is_an_empty_one() -> None:
    assert widen([]) == pa.schema([])


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.int64(), 2**53 + 1, pa.float64()),
        (pa.timestamp("s"), datetime.datetime(3000, 1, 1), pa.timestamp("ns")),
    ],
    ids=str,
)
def test_a_value_that_the_widest_type_does_not_hold_is_an_error_not_another_value(
    kind: pa.DataType, value: Any, other: pa.DataType
) -> None:
    batch = _batch(kind, value)
    with pytest.raises(UnsupportedType, match="'c'"):
        conform(batch, widen([batch.schema, pa.schema([("c", other)])]))


SCALARS = [
    *(pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(3), pa.date32(), pa.date64(), pa.uuid()),
    *(pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.timestamp("us", "Asia/Tokyo"), pa.duration("ms"), pa.time32("s")),
    *(pa.decimal128(9, 2), pa.decimal256(50, 10), pa.month_day_nano_interval()),
]  # fmt: skip
KINDS = st.recursive(
    st.sampled_from(SCALARS),
    lambda kinds: st.one_of(
        kinds.map(pa.list_),
        kinds.map(pa.large_list_view),
        kinds.map(lambda kind: pa.list_(kind, 2)),
        st.lists(st.tuples(st.sampled_from("xyz"), kinds), max_size=3, unique_by=lambda pair: pair[0]).map(pa.struct),
        st.sampled_from(SCALARS[:-1])
        .filter(lambda kind: not isinstance(kind, pa.BaseExtensionType))
        .map(lambda kind: pa.dictionary(pa.int16(), kind)),
    ),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(KINDS, min_size=1, max_size=4), st.randoms())
def test_any_types_make_the_same_one_in_any_order_and_widening_again_changes_nothing(
    kinds: list[pa.DataType], random: Any
) -> None:
    try:
        found = widest_type(kinds)
    except SchemaConflict:
        with pytest.raises(SchemaConflict):
            widest_type(reversed(kinds))
        return
    shuffled = random.sample(kinds, len(kinds))
    assert _sorted_fields(widest_type(shuffled)) == _sorted_fields(found)
    assert _sorted_fields(widest_type([found, *kinds])) == _sorted_fields(found)
    for kind in kinds:
        for rows in (0, 2):
            batch = pa.RecordBatch.from_arrays([pa.nulls(rows, kind)], schema=pa.schema([("c", kind)]))
            conformed = conform(batch, pa.schema([("c", found)]))
            conformed.validate(full=True)
            assert conformed.schema.field("c").type == found
            assert conformed.column("c").to_pylist() == [None] * rows


def widest_type(kinds: Iterable[pa.DataType]) -> pa.DataType:
    return widen([pa.schema([("c", kind)]) for kind in kinds]).field("c").type


def _sorted_fields(kind: pa.DataType) -> str:
    """The type with the fields of its structs in one order."""
    if pa.types.is_struct(kind):
        return f"struct<{sorted((field.name, _sorted_fields(field.type), field.nullable) for field in kind)}>"
    if kind.num_fields:
        return f"{type(kind).__name__}<{[_sorted_fields(kind.field(at).type) for at in range(kind.num_fields)]}>"
    return str(kind)
