"""A topic as a dataset: every way that Arrow has to read one gives the same rows, of what was stored when it was made."""

from __future__ import annotations

import asyncio
import gc
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from quiver_actors import Store, aio
from quiver_actors.base.widening import SchemaConflict
from quiver_actors.errors import ChecksumMismatch, FormatError, UnknownSlot, UnknownTopic, UsageError
from tests.unit.node.worker.harness import until

INT = pa.int32()
PLACES = ["_quiver_core", "_quiver_segment", "_quiver_bundle", "_quiver_ingestion_time"]


def clicks(*ids: int, kind: pa.DataType = INT, **more: Any) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, kind), **more})


def fill(store: Store, topic: str = "clicks") -> None:
    """A sealed segment of 40 bundles, a sealed one of wider ids, and an open one with another column."""
    store.push_many([clicks(2 * n, 2 * n + 1) for n in range(40)], topic=topic)
    store.flush(topic)
    store.push(clicks(80, 81, kind=pa.int64()), topic=topic)
    store.flush(topic)
    store.push(clicks(82, 83, page=["a", None]), topic=topic)


def damage(data_dir: Path, value: int, kind: str) -> None:
    """Flip a bit of a stored value in the only file that holds it."""
    pattern = value.to_bytes(4, "little") + (value + 1).to_bytes(4, "little")
    (path,) = [path for path in data_dir.rglob(kind) if pattern in path.read_bytes()]
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(pattern))
        file.write(bytes([content[content.index(pattern)] ^ 0x40]))


def test_bundles_of_drifting_schemas_are_one_table_in_the_order_of_their_pushes(store: Store) -> None:
    fill(store)
    dataset = store.dataset("clicks")
    assert isinstance(dataset, ds.Dataset)
    assert dataset.schema == pa.schema([("id", pa.int64()), ("page", pa.string())])
    found = dataset.to_table()
    assert found.column("id").to_pylist() == list(range(84))
    assert found.column("page").to_pylist() == [None] * 82 + ["a", None]
    assert dataset.is_complete


def test_fields_of_a_column_are_read_by_their_path_as_from_any_dataset(store: Store) -> None:
    store.push(
        pa.record_batch({"at": [{"x": 1, "y": "a"}, {"x": 2, "y": None}], "a.b": [5, 6], "a": [7, 8]}), topic="clicks"
    )
    dataset = store.dataset("clicks")
    whole = ds.dataset(dataset.to_table())
    for columns in (["at.x"], ["a.b"], ["a"], ["a.b", "at.y"], {"z": pc.field("at", "x")}):
        assert dataset.to_table(columns=columns).equals(whole.to_table(columns=columns)), columns


@pytest.mark.parametrize("limit", [None, 40])
def test_all_ways_of_arrow_see_the_same_rows(store: Store, limit: int | None) -> None:
    fill(store)
    dataset = store.dataset("clicks", where=None if limit is None else f"id < {limit}")
    rows = limit or 84
    ids = list(range(rows))
    assert dataset.count_rows() == sum(batch.num_rows for batch in dataset.to_batches()) == rows
    assert dataset.head(3).column("id").to_pylist() == ids[:3]
    assert dataset.take([rows - 1, 0]).column("id").to_pylist() == [rows - 1, 0]
    assert pa.RecordBatchReader.from_stream(dataset).read_all().column("id").to_pylist() == ids
    pieces = [fragment.to_table() for fragment in dataset.get_fragments()]
    assert pa.concat_tables(pieces).column("id").to_pylist() == ids
    # Arrow's own C++ readers, which know files only.
    assert ds.Scanner.from_dataset(dataset).to_table().column("id").to_pylist() == ids
    assert ds.dataset([dataset, dataset]).count_rows() == 2 * rows
    assert dataset.sort_by([("id", "descending")]).to_table().column("id").to_pylist() == ids[::-1]
    renamed = dataset.replace_schema(pa.schema([("id", pa.float64()), ("none", pa.string())])).to_table()
    assert renamed.column("id").to_pylist() == ids
    assert renamed.column("none").null_count == rows


def test_the_same_rows_come_again_whatever_happens_to_the_topic(store: Store, data_dir: Path) -> None:
    store.create_topic("passing")
    fill(store, "passing")
    dataset = store.dataset("passing")
    before = dataset.to_table()
    files = {path for path in data_dir.rglob("*") if path.is_file()}
    assert len([path for path in files if path.suffix == ".qseg"]) == 2
    store.push(clicks(1000), topic="passing")
    store.flush("passing")
    assert dataset.to_table() == before
    store.delete_topic("passing")
    for path in data_dir.rglob("*.qseg"):
        path.unlink()
    assert dataset.to_table() == before


def test_columns_and_filters_are_those_of_arrow(store: Store) -> None:
    fill(store)
    dataset = store.dataset("clicks")
    assert dataset.to_table(columns=["page"]).column_names == ["page"]
    assert dataset.to_table(columns=[]).num_rows == 84
    doubled = dataset.to_table(columns={"twice": pc.field("id") * 2}, filter=pc.field("page") == "a")
    assert doubled.to_pydict() == {"twice": [164]}
    assert dataset.filter(pc.field("id") > 9).filter(pc.field("id") < 12).to_table().column("id").to_pylist() == [
        10,
        11,
    ]
    with pytest.raises(pa.ArrowInvalid, match="nothing"):
        dataset.to_table(filter=pc.field("nothing") == 1)
    with pytest.raises(UsageError, match="expected an expression"):
        dataset.scanner(filter="id > 3")


def test_a_row_says_where_it_is_stored(store: Store) -> None:
    fill(store)
    receipt = store.push(clicks(84), topic="clicks")
    dataset = store.dataset("clicks", metadata=True)
    assert dataset.schema.names == ["id", "page", *PLACES]
    rows = dataset.to_table().to_pylist()
    assert [row["_quiver_bundle"] for row in rows[:80]] == [number // 2 for number in range(80)]
    last = rows[-1]
    assert (last["_quiver_core"], last["_quiver_segment"], last["_quiver_bundle"]) == receipt.bundle_id[1:]
    assert abs(datetime.now(UTC) - last["_quiver_ingestion_time"]) < timedelta(minutes=5)
    hidden = store.dataset("clicks")
    assert hidden.schema.names == ["id", "page"]
    asked = hidden.to_table(columns=["_quiver_segment", "id"], filter=pc.field("_quiver_bundle") == 39)
    assert asked.column("id").to_pylist() == [78, 79]


def test_segments_that_cannot_have_wanted_rows_are_left_out_unread(store: Store, data_dir: Path) -> None:
    fill(store)
    segments = sorted(info.segment_seq for info in store.segments("clicks")[0])
    dataset = store.dataset("clicks", where=f"_quiver_segment > {segments[0]}")
    damage(data_dir, 2, "*.qseg")  # in the first segment
    assert len(list(dataset.get_fragments())) == 2
    assert dataset.to_table().column("id").to_pylist() == [80, 81, 82, 83]
    later = pa.scalar(datetime.now(UTC) + timedelta(days=1))
    assert not list(store.dataset("clicks").get_fragments(pc.field("_quiver_ingestion_time") > later))


def test_segments_whose_values_cannot_match_are_left_out_unread(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver_actors.store.engine.summaries.STATISTICS_AGE_NS", 0)
    for first in (0, 1000, 2000):
        store.push_many([clicks(first + 2 * n, first + 2 * n + 1, page=["p", None]) for n in range(20)], topic="clicks")
        store.flush("clicks")
    store.push(clicks(3000, kind=pa.int64()), topic="clicks")
    store.flush("clicks")

    def are_known() -> bool:
        found = [stream for segment in store.statistics("clicks")[0].values() for stream in segment.streams]
        return len(found) == 4 and all(stream.columns is not None for stream in found)

    until(are_known, "the statistics")
    damage(data_dir, 1010, "*.qseg")
    dataset = store.dataset("clicks")
    for condition, rows in (
        (pc.field("id") >= 2000, 41),
        (pc.field("id") < 40, 40),
        (pc.field("id") == 2007, 1),
        (pc.field("id").isin([5, 2005, 3000]), 3),
        ((pc.field("id") > 2990) & pc.field("page").is_null(), 1),
        (pc.field("page").is_null() & (pc.field("id") < 1000), 20),
        ((pc.field("page") > "q"), 0),
    ):
        assert dataset.filter(condition).count_rows() == rows
        travelled = pc.Expression.from_substrait(condition.to_substrait(dataset.full_schema))
        assert dataset.filter(travelled).count_rows() == rows
    assert [len(list(dataset.get_fragments(pc.field("id") < limit))) for limit in (0, 1, 1001, 9999)] == [0, 1, 2, 4]
    assert store.sql("SELECT count(*) AS n FROM clicks WHERE id > 2000").read_all().to_pydict() == {"n": [40]}


def test_start_and_end_cut_between_bundles(store: Store) -> None:
    receipts = [store.push(clicks(number), topic="clicks") for number in range(6)]
    times = [bundle.ingestion_unix_ns or 0 for bundle in store.read("clicks", 0)]
    assert len(set(times)) == 6
    by_id = store.dataset("clicks", start=receipts[2].bundle_id, end={0: receipts[4].bundle_id})
    assert by_id.to_table().column("id").to_pylist() == [2, 3]
    store.flush("clicks")
    by_time = store.dataset("clicks", start=times[1], end=times[3])
    assert by_time.to_table().column("id").to_pylist() == [1, 2]
    assert store.dataset("clicks", start=datetime.now(UTC) + timedelta(days=1)).count_rows() == 0
    for wrong in ("yesterday", datetime.now(), -1, store.push(clicks(1), topic="My-topic").bundle_id):
        with pytest.raises(UsageError, match="start"):
            store.dataset("clicks", start=wrong)  # type: ignore[arg-type]


def test_a_slot_is_chosen_where_there_are_several(store: Store) -> None:
    store.push({"flights": clicks(1), "weather": pa.record_batch({"wind": [1.5]})}, topic="travel")
    store.push({"flights": clicks(2)}, topic="travel")
    assert store.dataset("travel", "flights").to_table().to_pydict() == {"id": [1, 2]}
    assert store.dataset("travel", slot=1).to_table().to_pydict() == {"wind": [1.5]}
    with pytest.raises(UsageError, match="flights, weather"):
        store.dataset("travel")
    with pytest.raises(UnknownSlot):
        store.dataset("travel", "trains")
    with pytest.raises(UnknownTopic):
        store.dataset("trips")
    store.push({0: clicks(1), 5: clicks(2)}, topic="clicks")
    with pytest.raises(UsageError, match="0, 5"):
        store.dataset("clicks")


@pytest.mark.parametrize("is_sealed", [True, False])
def test_damage_is_an_error_that_names_it_or_is_left_out(store: Store, data_dir: Path, is_sealed: bool) -> None:
    store.push_many([clicks(9000 + 2 * n, 9001 + 2 * n) for n in range(30)], topic="clicks")
    if is_sealed:
        store.flush("clicks")
    dataset, forgiving = store.dataset("clicks"), store.dataset("clicks", skip_damaged=True)
    damage(data_dir, 9010, "*.qseg" if is_sealed else "quiver.wal*")
    for _ in range(2):
        with pytest.raises(ChecksumMismatch, match=r"topic 'clicks', core 0: segment 0: .*bundle 5"):
            dataset.to_table()
    assert isinstance(dataset.failure, ChecksumMismatch)
    left = [number for number in range(9000, 9060) if number not in (9010, 9011)]
    assert forgiving.to_table().column("id").to_pylist() == left


def test_types_that_no_type_holds_are_refused_with_their_segments(store: Store) -> None:
    store.push(clicks(1), topic="clicks")
    store.flush("clicks")
    store.push(pa.record_batch({"id": ["one"]}), topic="clicks")
    with pytest.raises(SchemaConflict, match=r"int32 in segment 0 of core 0; string in segment 1 of core 0"):
        store.dataset("clicks")


def test_an_empty_topic_is_an_empty_table(store: Store) -> None:
    dataset = store.dataset("clicks")
    assert (dataset.schema.names, dataset.count_rows(), dataset.to_table().num_rows) == ([], 0, 0)
    assert store.dataset("clicks", metadata=PLACES[:1]).to_table().column_names == PLACES[:1]


def test_a_stored_column_takes_the_place_of_one_of_ours(store: Store) -> None:
    store.push(
        pa.record_batch({"_quiver_core": ["mine"], "_quiver_segment": pa.array([77], pa.int64())}), topic="clicks"
    )
    dataset = store.dataset("clicks", metadata=True, where="_quiver_segment = 77 AND _quiver_core = 'mine'")
    assert dataset.to_table(columns=["_quiver_core", "_quiver_bundle"]).to_pylist() == [
        {"_quiver_core": "mine", "_quiver_bundle": 0}
    ]


def test_values_are_not_copied_where_types_agree(store: Store) -> None:
    batch = clicks(*range(10_000), kind=pa.int64())
    store.push(batch, topic="clicks")
    store.flush("clicks")
    dataset = store.dataset("clicks")
    addresses = {next(iter(dataset.to_batches())).column("id").buffers()[1].address for _ in range(2)}
    assert len(addresses) == 1


def test_batches_have_the_size_that_was_asked_for(store: Store) -> None:
    store.push_many([clicks(*range(3000 * n, 3000 * n + 3000)) for n in range(40)], topic="clicks")
    store.flush("clicks")
    dataset = store.dataset("clicks")
    sizes = [batch.num_rows for batch in dataset.to_batches(batch_size=300)]
    assert max(sizes) == 300
    assert sum(sizes) == 120_000
    # A scanner costs by the batch: what has nothing to filter does without it, and what has gives it larger ones.
    assert len(list(dataset.to_batches())) == 40
    assert len(list(dataset.scanner(filter=pc.field("id") >= 0).to_batches())) == 1
    assert [batch.num_rows for batch in dataset.to_batches(columns=[])] == [120_000]


def test_batches_have_the_metadata_of_the_dataset(store: Store) -> None:
    bundle = clicks(1).replace_schema_metadata({"made by": "pandas"})
    store.push(bundle, topic="clicks")
    dataset = store.dataset("clicks")
    (batch,) = dataset.to_batches()
    assert batch.schema.equals(dataset.schema, check_metadata=True)
    assert batch.schema.equals(next(iter(dataset.scanner().to_batches())).schema, check_metadata=True)


@pytest.mark.parametrize("columns", [["nothing"], ["id", "nothing"], "id", ("id",)])
def test_columns_that_arrow_refuses_are_refused_alike(store: Store, columns: Any) -> None:
    fill(store)
    dataset = store.dataset("clicks")
    with pytest.raises((pa.ArrowInvalid, ValueError)) as scanned:
        dataset.scanner(columns).to_table()
    for read in (dataset.to_table, dataset.to_batches, next(dataset.get_fragments()).to_table):
        with pytest.raises(type(scanned.value)) as refused:
            read(columns=columns)
        assert str(refused.value) == str(scanned.value)


def mapped_segments(directory: Path) -> list[str]:
    """Mapped segments of one directory: the collector may let go of others at any moment."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if ".qseg" in line and str(directory) in line]


def test_files_are_let_go_of_with_the_dataset(store: Store, data_dir: Path) -> None:
    fill(store)
    before = len(mapped_segments(data_dir))
    dataset = store.dataset("clicks")
    table = ds.Scanner.from_dataset(dataset.filter(pc.field("id") >= 0)).to_table()
    fragments = list(dataset.get_fragments())
    assert len(mapped_segments(data_dir)) > before
    del dataset, fragments
    gc.collect()
    assert len(mapped_segments(data_dir)) == before
    assert table.num_rows == 84


def test_a_dataset_stays_in_its_process(store: Store) -> None:
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(store.dataset("clicks"))


def test_the_asynchronous_client_makes_the_same_dataset(data_dir: Path) -> None:
    async def ask() -> None:
        async with await aio.open(data_dir) as opened:
            await opened.push(clicks(1, 2))
            dataset = await opened.dataset(where="id > 1")
            assert dataset.to_table().to_pydict() == {"id": [2]}
            reader = await opened.sql('SELECT sum(id) AS total FROM "default"')
            assert reader.read_all().to_pydict() == {"total": [3]}

    asyncio.run(ask())


def test_a_segment_that_a_filter_leaves_out_is_not_opened(store: Store, data_dir: Path) -> None:
    store.create_topic("apart")
    for number in range(2):
        store.push(clicks(number), topic="apart")
        store.flush("apart")
    (path,) = [path for path in data_dir.rglob("*.qseg") if path.name.endswith("1.qseg") and "apart" in str(path)]
    with path.open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff" * 8)
    dataset = store.dataset("apart")
    assert dataset.schema == clicks(0).schema
    assert dataset.to_table(filter=pc.field("_quiver_segment") == 0).num_rows == clicks(0).num_rows
    with pytest.raises(FormatError):
        dataset.to_table()
