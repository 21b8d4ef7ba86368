"""SQL over topics, with both engines: the same rows, joined and described, and nothing but reading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors import Store
from quiver_actors.errors import ChecksumMismatch, UsageError
from quiver_actors.query.engines import ENGINES
from tests.unit.node.worker.harness import until
from tests.unit.query.test_dataset import clicks, damage, fill


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def one_row(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with quiver_actors.open(tmp_path_factory.mktemp("row"), settings={"topics": {"clicks": {}}}) as opened:
        opened.push(clicks(1), topic="clicks")
        yield opened


def rows(store: Store, statement: str, engine: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in store.sql(statement, engine=engine).read_all().to_pylist()]


def test_topics_are_tables(store: Store, engine: str) -> None:
    fill(store)
    store.push({"flights": clicks(1, 82), "weather": pa.record_batch({"id": [2]})}, topic="travel")
    assert rows(store, "SELECT count(*), max(id), min(page) FROM clicks WHERE id > 10", engine) == [(73, 83, "a")]
    joined = "SELECT c.page FROM clicks c JOIN travel.flights f ON c.id = f.id ORDER BY c.page"
    assert rows(store, joined, engine) == [("a",), (None,)]
    assert rows(store, "SELECT count(*) FROM clicks a, clicks b WHERE a.id = b.id", engine) == [(84,)]
    recent = (
        "SELECT count(*) FROM clicks WHERE _quiver_ingestion_time > now() - INTERVAL '5' MINUTE AND _quiver_bundle = 0"
    )
    assert rows(store, recent, engine) == [(6,)]
    assert rows(store, "SELECT * FROM clicks ORDER BY id LIMIT 1", engine) == [(0, None)]


def test_a_program_is_told_how_many_bytes_of_segments_have_been_read(store: Store) -> None:
    fill(store)
    told: list[tuple[int, int]] = []
    # The topic is read twice, and counts once.
    store.sql(
        "SELECT count(*) FROM clicks a, clicks b WHERE a.id = b.id", progress=lambda *each: told.append(each)
    ).read_all()
    sizes = store.sql("SELECT size_bytes FROM quiver.segments WHERE topic = 'clicks'").read_all()
    total_bytes = sum(sizes.column("size_bytes").to_pylist())
    assert {total for _, total in told} == {total_bytes}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total_bytes, total_bytes)


def test_names_that_need_quotes(store: Store, engine: str) -> None:
    store.push(clicks(7), topic="My-topic")
    assert (
        rows(store, 'SELECT id FROM "My-topic"', engine)
        == rows(store, 'SELECT id FROM "My-topic"."0"', engine)
        == [(7,)]
    )


def test_columns_whose_names_differ_in_case_alone_are_never_taken_for_each_other(store: Store, engine: str) -> None:
    store.push(pa.record_batch({"id": [1], "Id": [2], "other": [3]}), topic="clicks")
    assert rows(store, "SELECT other FROM clicks", engine) == [(3,)]
    if engine == "datafusion":
        assert rows(store, 'SELECT "Id", "id" FROM clicks', engine) == [(2, 1)]
    else:
        with pytest.raises(UsageError, match="columns id, Id of clicks"):
            store.sql('SELECT "Id" FROM clicks', engine=engine)


def test_the_node_describes_itself(store: Store, engine: str) -> None:
    fill(store)
    with store.subscribe("reader", topic="clicks", start="earliest"):
        assert rows(store, "SELECT topic FROM quiver.topics ORDER BY topic", engine) == [
            ("My-topic",),
            ("clicks",),
            ("default",),
            ("travel",),
        ]
        segments = 'SELECT segment, is_sealed, bundles, "rows" FROM quiver.segments ORDER BY segment'
        assert rows(store, segments, engine) == [(0, True, 40, 80), (1, True, 1, 2), (2, False, 1, None)]
        waiting = "SELECT topic, subscriber, connections FROM quiver.subscribers"
        assert rows(store, waiting, engine) == [("clicks", "reader", 1)]
        assert rows(store, "SELECT * FROM quiver.gaps", engine) == []


def test_a_wrong_statement_is_refused_with_the_tables_that_there_are(store: Store, engine: str) -> None:
    for wrong in ("SELECT * FROM travel", "SELECT nothing FROM travel.flights", "SELEC 1", "SELECT 1; SELECT 2", ""):
        with pytest.raises(UsageError):
            store.sql(wrong, engine=engine).read_all()
    with pytest.raises(UsageError, match=r"tables: travel\.flights, travel\.weather"):
        store.sql("SELECT * FROM travel", engine=engine)
    with pytest.raises(UsageError, match="duckdb, datafusion"):
        store.sql("SELECT 1", engine="sqlite")


def test_names_that_a_statement_gets_wrong_are_explained(one_row: Store) -> None:
    with pytest.raises(UsageError, match='a name that is a word of SQL stands in double quotes: "default"'):
        one_row.sql("SELECT * FROM default")
    with pytest.raises(UsageError, match=r"names no topic that there is \(FROM quiver.topics lists them\)"):
        one_row.sql("SELECT * FROM clikcs")


def test_an_error_while_rows_are_computed_is_ours(store: Store, engine: str) -> None:
    store.push(pa.record_batch({"text": ["1", "x"]}), topic="clicks")
    with pytest.raises(UsageError, match=engine):
        store.sql("SELECT CAST(text AS INTEGER) FROM clicks", engine=engine).read_all()


def test_damage_is_named_or_left_out(store: Store, data_dir: Path, engine: str) -> None:
    store.push_many([clicks(9000 + 2 * n, 9001 + 2 * n) for n in range(30)], topic="clicks")
    store.flush("clicks")
    damage(data_dir, 9010, "*.qseg")
    with pytest.raises(ChecksumMismatch, match=r"topic 'clicks', core 0: segment 0: .*bundle 5"):
        store.sql("SELECT sum(id) FROM clicks", engine=engine).read_all()
    left = store.sql("SELECT count(*) AS n FROM clicks", engine=engine, skip_damaged=True).read_all()
    assert left.to_pydict() == {"n": [58]}


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_blob('{file}')",
        "SELECT * FROM read_parquet('{file}')",
        "SELECT * FROM parquet_metadata('{file}')",
        "SELECT * FROM sniff_csv('{file}')",
        "SELECT * FROM glob('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM query('SELECT * FROM read_csv(''{file}'')')",
        "SELECT * FROM read_text(':memory:')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO ':memory:.wal' (FORMAT csv)",
        "SELECT * FROM 'https://localhost/rows.csv'",
        "SELECT getenv('HOME')",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM pandas_scan(42)",
        "COPY (SELECT 1) TO '{out}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
        "COPY clicks FROM '{file}'",
        "EXPORT DATABASE '{out}'",
        "IMPORT DATABASE '{out}'",
        "ATTACH '{out}' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET temp_directory = '{out}'",
        "PRAGMA database_list",
        "CREATE TABLE copied AS SELECT 1",
        "CREATE EXTERNAL TABLE copied STORED AS CSV LOCATION '{file}'",
        "INSERT INTO clicks VALUES (1)",
        "DELETE FROM clicks",
        "DROP VIEW clicks",
        "CALL pragma_version()",
    ],
)
def test_a_statement_reaches_neither_files_nor_settings(
    one_row: Store, tmp_path: Path, engine: str, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = one_row
    file, out, own = tmp_path / "secret.csv", tmp_path / "written", tmp_path / ":memory:"
    for each in (file, own):
        each.write_text("secret\n9173642058\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        store.sql(statement.format(file=file, out=out), engine=engine).read_all()
    assert "9173642058" not in str(refused.value)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {file.name, own.name}
    assert store.sql("SELECT id FROM clicks", engine=engine).read_all().to_pydict() == {"id": [1]}


def test_settings_of_the_engine_tell_no_place_of_this_host(one_row: Store) -> None:
    told = str(rows(one_row, "SELECT * FROM duckdb_settings()", "duckdb"))
    for place in (str(Path.cwd()), str(Path.home()), ":memory:"):
        assert place not in told


def test_gap_notices_say_which_bundles_are_lost(data_dir: Path, engine: str) -> None:
    settings = {
        "segment.target_size": "512KiB",
        "segment.max_open_duration": "20ms",
        "retention.size_cap": "8MiB",
        "retention.size_cap_policy": "drop_oldest",
        "retention.min_free": "1MiB",
        "topics": {"busy": {}},
    }
    with quiver_actors.open(data_dir, settings=settings) as store:
        store.subscribe("slow", topic="busy", start="earliest").close()
        pushed = store.push_many([pa.record_batch({"n": range(4096)})] * 400, topic="busy")
        question = 'SELECT segment, first_bundle, bundles, "rows", reason, notices FROM quiver.gaps ORDER BY 1, 2'
        until(lambda: len(rows(store, question, engine)) > 1, "a second notice")
        found: list[Any] = rows(store, question, engine)
        named = [(segment, first + number) for segment, first, count, *_ in found for number in range(count)]
        assert named == [receipt.bundle_id[2:] for receipt in pushed[: len(named)]]
        # The notice comes first, and then the file goes.
        until(lambda: store.dataset("busy").count_rows() <= 4096 * (400 - len(named)), "no row of a lost bundle")
        assert {each[3:] for each in found} == {(4096 * each[2], "evicted", 1) for each in found}
