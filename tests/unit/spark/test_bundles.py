"""From Spark's batches to bundles and back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from quiver_actors.errors import InvalidBundle, UsageError
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.reader import rows_of
from quiver_actors.spark.writer import TopicWriter, bundles_of

STRUCTS = pa.schema([("a", pa.struct([("x", pa.int64())])), ("b", pa.struct([("y", pa.string())]))])
SLOTS = {"a": 0, "b": 1}


def structs(rows: list[dict[str, dict[str, object] | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=STRUCTS)


def test_a_batch_without_slots_is_a_bundle() -> None:
    batch = pa.record_batch({"x": [1, 2]})
    assert bundles_of(batch, ()) == [batch]
    assert bundles_of(batch, ("flights",)) == [{"flights": batch}]


def test_struct_columns_become_slots() -> None:
    (bundle,) = bundles_of(structs([{"a": {"x": 1}, "b": {"y": "p"}}, {"a": {"x": 2}, "b": {"y": None}}]), ("a", "b"))
    assert isinstance(bundle, dict)
    assert bundle["a"].to_pylist() == [{"x": 1}, {"x": 2}]
    assert bundle["b"].to_pylist() == [{"y": "p"}, {"y": None}]


def test_rows_with_the_same_slots_share_a_bundle_and_every_row_comes_back() -> None:
    rows: list[dict[str, dict[str, object] | None]] = [
        {"a": {"x": 1}, "b": {"y": "p"}},
        {"a": {"x": 2}, "b": None},
        {"a": None, "b": {"y": "q"}},
        {"a": {"x": 3}, "b": None},
        {"a": {"x": None}, "b": {"y": None}},
    ]
    bundles = bundles_of(structs(rows), ("a", "b"))
    assert len(bundles) == 3
    back = []
    for bundle in bundles:
        assert isinstance(bundle, dict)
        read = rows_of({SLOTS[str(slot)]: batch for slot, batch in bundle.items()}, SLOTS)
        assert read is not None
        back += [{"a": row.get("a"), "b": row.get("b")} for row in read.to_pylist()]
    assert sorted(back, key=repr) == sorted(rows, key=repr)


def test_a_row_without_any_slot_is_refused() -> None:
    with pytest.raises(InvalidBundle, match="a, b"):
        bundles_of(structs([{"a": None, "b": None}, {"a": {"x": 1}, "b": None}]), ("a", "b"))


def test_slots_of_different_length_cannot_be_columns_of_the_same_rows() -> None:
    bundle = {0: pa.record_batch({"x": [1, 2]}), 1: pa.record_batch({"y": ["p"]})}
    with pytest.raises(UsageError, match="a 2, b 1"):
        rows_of(bundle, SLOTS)
    assert rows_of(bundle, {"b": 1}) == bundle[1]


def test_a_bundle_without_the_selected_slots_has_no_rows() -> None:
    bundle = {0: pa.record_batch({"x": [1, 2]})}
    assert rows_of(bundle, {"c": 2}) is None
    assert rows_of(bundle, {"b": 1, "c": 2}) is None


def test_several_slots_need_exactly_their_struct_columns() -> None:
    schema = StructType(
        [StructField("a", IntegerType()), StructField("b", StructType([StructField("y", IntegerType())]))]
    )
    with pytest.raises(UsageError, match="a integer, b struct"):
        TopicWriter(SourceOptions(slots=("a", "b")), schema)
    TopicWriter(SourceOptions(slots=("only",)), schema)
