"""Every Arrow library takes stored bundles as a table, without a copy, and a notebook shows what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import arro3.core
import duckdb
import nanoarrow
import polars
import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.base.widening import SchemaConflict
from quiver_actors.embedded.store import Store
from quiver_actors.errors import InvalidBundle

BATCH = pa.record_batch({"n": pa.array([1, None, 3]), "t": pa.array(["a", None, "a longer text than twelve bytes"])})
ROWS = BATCH.to_pylist()
READERS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "pyarrow": lambda it: pa.table(it).to_pylist(),
    "polars": lambda it: polars.DataFrame(it).to_dicts(),
    "duckdb": lambda it: duckdb.connect().from_arrow(it).to_arrow_table().to_pylist(),
    "nanoarrow": lambda it: nanoarrow.ArrayStream(it).read_all().to_pylist(),
    "arro3": lambda it: pa.table(arro3.core.Table.from_arrow(it)).to_pylist(),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with quiver_actors.open(tmp_path / "data") as store:
        yield store


def test_deliveries_batches_and_ranges_are_tables_for_every_library(store: Store) -> None:
    with store.subscribe("one", start="earliest") as one, store.subscribe("many", start="earliest") as many:
        store.push_many([BATCH, BATCH])
        delivery = one.get(timeout=20)
        assert delivery is not None
        batch = next(iter(many.batches(max_rows=6)))
        bundle = next(store.read("default", 0))
        for name, rows_of in READERS.items():
            assert rows_of(delivery) == ROWS, name
            assert rows_of(bundle) == ROWS, name
            assert rows_of(batch) == ROWS * 2, name
            assert rows_of(store.read("default", 0)) == ROWS * 2, name
        delivery.ack()


def test_no_value_is_copied(store: Store) -> None:
    store.push(BATCH)
    bundle = next(store.read("default", 0))
    address = bundle.batch.column("n").buffers()[1].address
    assert pa.table(bundle)["n"].chunk(0).buffers()[1].address == address
    assert polars.DataFrame(bundle)["n"].to_arrow().buffers()[1].address == address


def test_a_range_is_one_table_whatever_its_iterator_has_given(store: Store) -> None:
    store.push(BATCH)
    store.push(pa.record_batch({"n": pa.array([2.5]), "x": pa.array([True])}))
    found = store.read("default", 0)
    assert next(found).row_count == 3
    table = pa.table(found)
    assert table.schema == pa.schema([("n", pa.float64()), ("t", pa.string()), ("x", pa.bool_())])
    assert table["n"].to_pylist() == [1.0, None, 3.0, 2.5]
    assert [bundle.row_count for bundle in found] == [1]


def test_several_slots_or_types_without_a_common_one_are_refused_by_name(store: Store) -> None:
    store.push({1: BATCH, 2: BATCH})
    with pytest.raises(InvalidBundle, match=r"slots \[1, 2\]"):
        pa.table(next(store.read("default", 0)))
    store.push({1: BATCH})
    store.push({2: BATCH})
    end = store.push({1: pa.record_batch({"n": ["x"]})}).bundle_id
    with pytest.raises(InvalidBundle, match=r"slots \[1, 2\]"):
        pa.table(store.read("default", 0, start=end._replace(bundle_index=1), end=end))
    assert pa.table(store.read("default", 0, end=end, slots=[2])).num_rows == 6
    with pytest.raises(SchemaConflict, match=r"'n'.*int64 in bundle 0 of segment 0; string in bundle 3 of segment 0"):
        pa.table(store.read("default", 0, slots=[1]))


def test_a_notebook_shows_what_they_are_and_escapes_names(store: Store) -> None:
    with store.subscribe("one", start="earliest") as one:
        receipt = store.push(pa.record_batch({"<b>": [1]}))
        assert "<td>synced</td>" in receipt._repr_html_()
        delivery = one.get(timeout=20)
        assert delivery is not None
        shown = delivery._repr_html_()
    assert "1 rows of &lt;b&gt;" in shown
    assert "<b>" not in shown
    topics = store.topics()
    assert topics["default"].durability == "wal"
    assert "<td>default</td><td>any</td><td>wal</td>" in topics._repr_html_()
