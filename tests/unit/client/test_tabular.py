"""Every Arrow library's tables can be pushed as they are, and come back to every one of them; what is ambiguous is refused by name."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import arro3.core
import duckdb
import nanoarrow
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import quiver_actors
from quiver_actors.client.tabular import batch_of
from quiver_actors.embedded.store import Store
from quiver_actors.errors import BundleTooLarge, InvalidBundle

BATCH = pa.record_batch({"n": pa.array([1, None, 3]), "t": pa.array(["a", None, "a longer text than twelve bytes"])})
ROWS = BATCH.to_pylist()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with quiver_actors.open(tmp_path / "data") as store:
        yield store


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with quiver_actors.open(tmp_path_factory.mktemp("refusing")) as store:
        yield store
        assert not store.readable("default")[0].unsealed


def _relation() -> Any:
    found = pa.Table.from_batches([BATCH])
    return duckdb.connect().from_arrow(found)


SOURCES: dict[str, Callable[[], Any]] = {
    "pyarrow batch": lambda: BATCH,
    "pyarrow table": lambda: pa.table(BATCH),
    "table of chunks": lambda: pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1, 0), BATCH.slice(1)]),
    "polars": lambda: polars.DataFrame(BATCH),
    "polars of chunks": lambda: polars.concat([polars.DataFrame(BATCH)[:1], polars.DataFrame(BATCH)[1:]], rechunk=False),
    "pandas": lambda: BATCH.to_pandas().astype({"n": "Int64"}),
    "duckdb": _relation,
    "nanoarrow": lambda: nanoarrow.Array(BATCH),
    "arro3 batch": lambda: arro3.core.RecordBatch.from_arrow(BATCH),
    "arro3 table": lambda: arro3.core.Table.from_arrow(pa.table(BATCH)),
    "rows": lambda: ROWS,
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_one_push_of_any_table_is_one_bundle_with_its_rows(store: Store, source: Callable[[], Any]) -> None:
    with store.subscribe("reader", start="earliest") as deliveries:
        first = store.push(source())
        second = store.push({5: source(), "logs": source()})
        assert [first.bundle_id.bundle_index, second.bundle_id.bundle_index] == [0, 1]
        found = [deliveries.get(timeout=20) for _ in range(2)]
        assert found[0] is not None
        assert found[1] is not None
        assert found[0].batch.to_pylist() == ROWS
        assert [found[1][5].to_pylist(), found[1]["logs"].to_pylist()] == [ROWS, ROWS]


def _reader() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(BATCH.schema, iter([BATCH, BATCH.slice(1)]))


READERS: dict[str, Callable[[], Any]] = {
    "pyarrow": _reader,
    "arro3": lambda: arro3.core.RecordBatchReader.from_stream(_reader()),
    "nanoarrow": lambda: nanoarrow.ArrayStream(_reader()),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_reader_is_refused_by_push_and_each_batch_of_it_is_a_bundle_of_push_many(
    store: Store, reader: Callable[[], Any]
) -> None:
    for refused in (reader(), {0: reader()}):
        with pytest.raises(InvalidBundle, match=r"(Reader|ArrayStream), whose batches.*push_many\(reader\)"):
            store.push(refused)
    receipts = store.push_many(reader())
    assert [receipt.bundle_id.bundle_index for receipt in receipts] == [0, 1]
    assert [bundle.batch.num_rows for bundle in store.read("default", 0)] == [3, 2]


def test_push_many_of_a_table_or_frame_stores_its_chunks(store: Store) -> None:
    frame = polars.DataFrame(BATCH)
    assert len(store.push_many(pa.Table.from_batches([BATCH, BATCH]))) == 2
    assert len(store.push_many(frame)) == 1
    assert len(store.push_many(pandas.DataFrame({"n": [1]}))) == 1
    assert len(store.push_many([frame, BATCH, ROWS])) == 3
    assert len(store.push_many([BATCH], producer="p", sequence=1)) == 1


def test_numbered_pushes_and_stages_take_tables_too(store: Store) -> None:
    frame = polars.DataFrame(BATCH)
    store.push(frame, producer="p", sequence=1)
    assert store.push(frame, producer="p", sequence=1).duplicate
    with store.transaction("t") as transaction:
        transaction.push(frame)
    assert [bundle.batch.to_pylist() for bundle in store.read("default", 0)] == [ROWS, ROWS]


NAIVE = datetime.datetime(2013, 1, 1)
WORDS = pa.array(["x"]).dictionary_encode()
LISTED = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.DictionaryArray.from_arrays(pa.array([0]), WORDS))
IDS = pa.array([b"0" * 16], pa.binary(16)).cast(pa.uuid())

REFUSED: list[tuple[Any, str]] = [
    (7, "cannot push a int: expected a pyarrow.RecordBatch or Table, a DataFrame"),
    ([], "cannot push a list"),
    ([[1]], "cannot push a list"),
    ([{}], "expected the names of columns"),
    ([{1: "a"}], "expected the names of columns"),
    ([{"a": 1}, {"a": "x"}], "the values of 'a' in the rows do not make one column"),
    ([{"a": 2**70}], "the values of 'a' in the rows"),
    (polars.Series("a", [1]), r"polars.*Series.*non-struct"),
    (pa.array([1]), r"pyarrow.*Array.*non-struct"),
    (pa.array([{"a": 1}, None]), "non-zero null count"),
    (pandas.DataFrame({"a": [1, "x"]}), "pandas.*DataFrame.*Could not convert"),
    ([{"a": 1}, None], "item 1 is a NoneType, and not a dict"),
    (({"a": 1},), r"push list\(rows\)"),
    ([{"a": "x"}, {"a": b"x"}], "'a' in the rows.*both texts and bytes"),
    ([{"a": NAIVE}, {"a": NAIVE.replace(tzinfo=datetime.UTC)}], "'a' in the rows.*with and without a time zone"),
    ([{"a": 2**62 + 1}, {"a": 0.5}], "'a' in the rows.*not make one column"),
    (polars.LazyFrame({"a": [1]}), r"polars.*LazyFrame: push what its collect\(\) returns"),
    (polars.DataFrame({"a": polars.Series([object()], dtype=polars.Object)}), r"polars.*columns \['a'\] hold objects"),
    (polars.DataFrame({"a": polars.Series([1], dtype=polars.Int128)}), "polars.*DataFrame.*expected"),
    (polars.DataFrame, "cannot push a type: DataFrame is a class"),
    (ds.dataset(pa.table({"a": [1]})), r"InMemoryDataset: push what its to_table\(\) returns"),
    ([BATCH], r"push_many\(\) stores each"),
    (iter([BATCH]), r"push_many\(\) stores each"),
    (
        duckdb.connect().sql("SELECT CAST(i::VARCHAR || 'x' AS INTEGER) AS n FROM range(3) t(i)"),
        "DuckDB.*Conversion Error",
    ),
    (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "pandas.*DataFrame.*Duplicate column"),
    (
        pa.record_batch({"a": pa.DictionaryArray.from_arrays(pa.array([0]), WORDS)}),
        "column 'a' is .*dictionary of dictionaries",
    ),
    (pa.record_batch({"a": pa.array([[0]]), "b": LISTED}), "column 'b' is .*dictionary of dictionaries"),
    (pa.record_batch({"u": pa.DictionaryArray.from_arrays(pa.array([0]), IDS)}), "cannot read it.*u dictionary<.*uuid"),
    ({0: {"a": 1}}, "slot 0: cannot push a dict"),
    ({"a": [1, 2]}, r"to push columns, write pa.record_batch\(\{'a': ...\}\)"),
    ({"a": np.array([1])}, "to push columns"),
    ({"a": polars.Series([1])}, "to push columns"),
    ({"a": pandas.Series([1])}, "to push columns"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=[case[1][:30] for case in REFUSED])
def test_what_is_ambiguous_is_refused_with_its_type_and_what_to_do(refusing: Store, content: Any, message: str) -> None:
    with pytest.raises(InvalidBundle, match=message):
        refusing.push(content)


def test_a_refused_schema_does_not_stand_in_the_way_of_one_that_looks_like_it(refusing: Store, store: Store) -> None:
    twofold = pa.record_batch({"a": pa.DictionaryArray.from_arrays(pa.array([0]), WORDS)})
    with pytest.raises(InvalidBundle, match="dictionary of dictionaries"):
        store.push(twofold)
    plain = pa.record_batch({"a": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x"]))})
    store.push(plain)
    (found,) = store.read("default", 0)
    assert found.batch.equals(plain)


UNUSUAL: dict[str, Callable[[], Any]] = {
    "nested nulls": lambda: pa.record_batch({"a": pa.array([None, [None]], pa.list_(pa.null()))}),
    "extension": lambda: pa.record_batch({"u": IDS}),
    "dictionary of structs": lambda: pa.record_batch(
        {"s": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([{"w": "x"}]))}
    ),
    "chunks with other dictionaries": lambda: pa.Table.from_batches(
        [pa.record_batch({"a": pa.array([word]).dictionary_encode()}) for word in "xy"]
    ),
    "categories": lambda: polars.DataFrame({"a": polars.Series(["x", "y"], dtype=polars.Categorical)}),
    "a zone": lambda: pandas.DataFrame({"t": pandas.to_datetime(["2024-01-01"]).tz_localize("Europe/Berlin")}),
    "two zones": lambda: [
        {"t": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)},
        {"t": datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))},
    ],
    "a huge integer": lambda: duckdb.connect().sql("SELECT 1::HUGEINT AS n"),
    "no row": lambda: duckdb.connect().sql("SELECT 1 AS n WHERE false"),
    "a view of a text": lambda: pa.record_batch({"v": pa.array(["x" * 40, None], pa.string_view())}),
    "run ends": lambda: pa.record_batch({"r": pa.RunEndEncodedArray.from_arrays([2], [7])}),
}


@pytest.mark.parametrize("source", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_values_come_back_as_they_were(store: Store, source: Callable[[], Any]) -> None:
    store.push(source())
    (found,) = store.read("default", 0)
    found.batch.validate(full=True)
    assert found.batch.equals(batch_of(source()))


def test_rows_that_lack_a_key_have_null_there() -> None:
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": datetime.date(2013, 1, 1), "a": 2.5}]
    assert batch_of(rows).to_pylist() == [{"a": 1.0, "b": None}, {"a": 2.5, "b": datetime.date(2013, 1, 1)}]


def _address(array: pa.Array) -> int:
    return int(array.buffers()[1].address)


def test_buffers_are_taken_as_they_are() -> None:
    values = np.arange(10_000)
    frame = polars.DataFrame({"n": values})
    assert _address(batch_of(frame).column("n")) == _address(frame["n"].to_arrow())
    assert _address(batch_of(pa.table({"n": pa.array(values)})).column("n")) == values.ctypes.data
    assert _address(batch_of(arro3.core.RecordBatch.from_arrow(BATCH)).column("n")) == _address(BATCH.column("n"))
    assert _address(batch_of(nanoarrow.Array(BATCH)).column("n")) == _address(BATCH.column("n"))


def test_a_few_rows_of_a_large_frame_do_not_bring_its_texts_along() -> None:
    texts = [f"{number:>200}" for number in range(10_000)]
    few = polars.DataFrame({"t": texts}).slice(4_000, 2)
    batch = batch_of(few)
    assert batch.column("t").to_pylist() == texts[4_000:4_002]
    assert batch.schema.field("t").type == pa.string_view()
    assert len(batch.serialize()) < 4_096
    whole = polars.DataFrame({"t": texts})
    assert (
        batch_of(whole).column("t").buffers()[2].address
        == whole.to_arrow(compat_level=polars.CompatLevel.newest())["t"].chunk(0).buffers()[2].address
    )


def test_what_no_bundle_holds_is_refused_before_it_is_read_to_its_end() -> None:
    asked = []

    class Endless:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            batch = pa.record_batch({"n": pa.nulls(1 << 22, pa.int64())})

            def batches() -> Iterator[pa.RecordBatch]:
                while True:
                    asked.append(1)
                    yield batch

            return pa.RecordBatchReader.from_batches(batch.schema, batches()).__arrow_c_stream__(requested_schema)

    with pytest.raises(BundleTooLarge, match=r"Endless has more than 256 MiB.*push_many"):
        batch_of(Endless())
    assert len(asked) < 12


def test_the_index_of_a_pandas_frame_is_a_column_and_makes_no_schema_of_its_own() -> None:
    frames = [pandas.DataFrame({"n": range(rows)}) for rows in (1, 2)]
    one, other = (batch_of(frame).schema for frame in frames)
    assert one.equals(other, check_metadata=True)
    assert batch_of(frames[0].set_index(pandas.Index([7], name="i"))).to_pylist() == [{"n": 0, "i": 7}]
