"""Spark's batches become bundles, and bundles become rows."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

from quiver_actors.base.widening import AmbiguousColumns
from quiver_actors.errors import FormatError, InvalidBundle, UsageError
from quiver_actors.flight.contract import BundleRange
from quiver_actors.flight.rows import read_range, rows_of
from quiver_actors.spark.bundling import bundles_of, by_key, sized
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.writer import TopicWriter
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.store.segment.logfile import LogFile

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


def test_a_bundle_without_a_required_slot_is_left_out_unread() -> None:
    a, b = pa.record_batch({"x": [1, 2]}), pa.record_batch({"y": ["p", "q"]})
    log = LogFile()
    for bundle in ({0: a}, {0: a, 1: b}):
        log.push(bundle)
    data = bytearray(log.seal())
    stream = next(stream for stream in SegmentReader(bytes(data)).streams if stream.slot_id == 0)
    ends_at = stream.byte_offset + stream.byte_length

    def read(bundles: int, required: list[int]) -> list[dict[str, object]]:
        segment = SegmentReader(bytes(data))
        batches = read_range(segment, "node", BundleRange(0, 7, 0, bundles), SLOTS, STRUCTS, required)
        return [row for batch in batches for row in batch.to_pylist()]

    assert [row["b"] for row in read(2, [])] == [None, None, {"y": "p"}, {"y": "q"}]
    assert [row["b"] for row in read(2, [1])] == [{"y": "p"}, {"y": "q"}]
    data[ends_at - 6 : ends_at] = b"ruined"
    with pytest.raises(FormatError):
        read(1, [])
    assert read(1, [1]) == []


def test_two_columns_of_one_name_are_an_error_that_names_the_bundle_or_are_left_out() -> None:
    log = LogFile()
    log.push({0: pa.record_batch({"x": [1], "z": [1]})})
    log.push({0: pa.RecordBatch.from_arrays([pa.array([2]), pa.array([3]), pa.array([4])], names=["x", "x", "z"])})
    segment = SegmentReader(bytes(log.seal()))
    for slots in ({"a": 0}, SLOTS):

        def read(
            column: str, slots: dict[str, int] = slots, *, skip_ambiguous: bool = False
        ) -> list[dict[str, object]]:
            inner = pa.schema([(column, pa.int64())])
            target = inner if len(slots) == 1 else pa.schema([("a", pa.struct(list(inner)))])
            piece = BundleRange(3, 7, 0, 2)
            batches = read_range(segment, "node", piece, slots, target, skip_ambiguous=skip_ambiguous)
            return [row.get("a") or row for batch in batches for row in batch.to_pylist()]

        assert read("z") == [{"z": 1}, {"z": 4}]
        with pytest.raises(AmbiguousColumns, match="bundle 1 of segment 7 of core 3"):
            read("x")
        assert read("x", skip_ambiguous=True) == [{"x": 1}]


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
    TopicWriter(SourceOptions(slots=("only",), commit_protocol="none"), schema)


def test_a_batch_that_fits_is_taken_as_it_is() -> None:
    batch = pa.record_batch({"x": pa.array(range(1000))})
    (found,) = sized([batch], batch.nbytes)
    assert found is batch


@given(st.lists(st.integers(0, 400), max_size=20), st.integers(64, 4000))
def test_sizes_follow_the_target_and_no_row_is_lost_or_moved(rows: list[int], target_bytes: int) -> None:
    counter = itertools.count()
    batches = [pa.record_batch({"x": pa.array(list(itertools.islice(counter, count)), pa.int64())}) for count in rows]
    found = list(sized(batches, target_bytes))
    assert [value for batch in found for value in batch.column("x").to_pylist()] == list(range(sum(rows)))
    assert all(batch.nbytes <= max(2 * target_bytes, 8) for batch in found)
    assert all(batch.nbytes >= target_bytes // 2 - 8 for batch in found[:-1]) or max(rows) * 8 > target_bytes // 2


def test_rows_of_one_key_stay_together_and_in_order() -> None:
    batch = pa.record_batch({"k": ["a", "b", "a", None, "b"], "n": [0, 1, 2, 3, 4]})
    classes = by_key(batch, "k")
    rows = [row for part in classes.values() for row in part.to_pylist()]
    assert sorted(rows, key=lambda row: row["n"]) == batch.to_pylist()
    for key in ("a", "b", None):
        holders = [part for part in classes.values() if key in part.column("k").to_pylist()]
        assert len(holders) == 1
    with pytest.raises(UsageError, match="column 'z'"):
        by_key(batch, "z")
