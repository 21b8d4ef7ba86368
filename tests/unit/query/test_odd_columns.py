"""Bundles that nobody refuses when they are pushed, and that tables do not know: nulls in NOT NULL columns, two columns of one name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from quiver_actors import Store
from quiver_actors.base.widening import AmbiguousColumns
from quiver_actors.query.engines import ENGINES

STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.struct([pa.field("x", pa.int32(), nullable=False)]), nullable=False),
    ]
)
TWICE = pa.RecordBatch.from_arrays([pa.array([10, 11]), pa.array([20, 21]), pa.array([5, 6])], names=["a", "a", "b"])
PLAIN = pa.record_batch({"a": [1], "b": [2]})


def rows_of(store: Store, statement: str, engine: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.sql(statement, engine=engine, **options).read_all().to_pylist()
    return found


@pytest.mark.parametrize("is_sealed", [True, False])
def test_nulls_in_columns_that_are_not_null_are_read_by_everybody(store: Store, is_sealed: bool) -> None:
    rows = [{"id": 1, "at": {"x": None}}, {"id": None, "at": None}]
    store.push(pa.RecordBatch.from_pylist(rows, schema=STRICT), topic="clicks")
    if is_sealed:
        store.flush("clicks")
    assert store.dataset("clicks").to_table().to_pylist() == rows
    assert store.dataset("clicks", where="id IS NULL").count_rows() == 1
    assert pa.table(store.read("clicks", 0)).to_pylist() == rows
    for engine in ENGINES:
        assert rows_of(store, "SELECT * FROM clicks", engine) == rows
        assert rows_of(store, "SELECT count(*) AS n FROM clicks WHERE id IS NULL", engine) == [{"n": 1}]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_two_columns_of_one_name_spoil_no_other_query(
    store: Store, caplog: pytest.LogCaptureFixture, is_sealed: bool
) -> None:
    store.push({"flights": PLAIN, "weather": PLAIN}, topic="travel")
    store.flush("travel")
    store.push_many([{"flights": TWICE}] * 20, topic="travel")
    if is_sealed:
        store.flush("travel")
    dataset = store.dataset("travel", "flights")
    assert dataset.schema == pa.schema([("b", pa.int64()), ("a", pa.int64())])
    assert dataset.count_rows() == 41
    assert dataset.to_table(columns=["b"]).column("b").to_pylist() == [2, *[5, 6] * 20]
    message = "topic 'travel', slot 'flights': a bundle of segment 1 of core 0 has several columns called 'a'"
    with pytest.raises(AmbiguousColumns, match=message):
        dataset.to_table()
    with pytest.raises(AmbiguousColumns, match=message):
        dataset.to_table(columns=["b"], filter=pc.field("a") > 0)
    forgiving = store.dataset("travel", "flights", skip_damaged=True)
    assert forgiving.to_table().to_pylist() == [{"b": 2, "a": 1}]
    assert "left_out" in caplog.text
    assert forgiving.count_rows() == forgiving.to_table(columns=["b"]).num_rows == 1
    for engine in ENGINES:
        assert rows_of(store, "SELECT * FROM travel.weather", engine) == [{"a": 1, "b": 2}]
        assert rows_of(store, "SELECT count(*) AS n, sum(b) AS b FROM travel.flights", engine) == [{"n": 41, "b": 222}]
        assert rows_of(store, "SELECT a FROM travel.flights", engine, skip_damaged=True) == [{"a": 1}]
        with pytest.raises(AmbiguousColumns, match=message):
            rows_of(store, "SELECT a FROM travel.flights", engine)


def test_a_topic_of_nothing_else_is_a_table_too(store: Store) -> None:
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    store.push(pa.RecordBatch.from_arrays([inner], names=["s"]), topic="clicks")
    with pytest.raises(AmbiguousColumns, match="'s'"):
        store.dataset("clicks").to_table()
    assert store.dataset("clicks").count_rows() == 1
    assert store.dataset("clicks", skip_damaged=True).to_table().to_pydict() == {"s": []}
