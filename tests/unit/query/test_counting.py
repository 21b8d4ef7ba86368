"""A statement that counts all rows is answered from tables of contents, as an engine would answer it, and is never wrong for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors import Store
from quiver_actors.errors import ChecksumMismatch, UsageError
from quiver_actors.query.engines import ENGINES
from tests.unit.query.test_dataset import clicks, damage, fill


@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_answer_is_the_one_of_the_engine(store: Store, engine: str) -> None:
    fill(store)
    store.push({"flights": clicks(1, 82), "weather": clicks(*range(5))}, topic="travel")
    store.push(clicks(7), topic="My-topic")
    for counted, count in (
        ("clicks", 84),
        ('clicks."0"', 84),
        ('"My-topic"', 1),
        ("travel.weather", 5),
        ('"travel"."flights"', 2),
    ):
        for start in ("SELECT count(*) FROM", "select Count ( * ) as n from", "SELECT count(*) AS n\nFROM"):
            found = store.sql(f"{start} {counted};", engine=engine).read_all()
            # With a condition the engine answers.
            expected = store.sql(f"{start} {counted} WHERE 1 = 1", engine=engine).read_all()
            assert found.to_pydict() == expected.to_pydict() == {found.column_names[0]: [count]}
            assert found.schema.types == expected.schema.types
    for wrong in ("travel", "nothing", "travel.trains", "clicks.flights"):
        with pytest.raises(UsageError):
            store.sql(f"SELECT count(*) FROM {wrong}", engine=engine)


def test_only_tables_of_contents_are_read_and_these_are_proven(store: Store, data_dir: Path) -> None:
    store.push_many([clicks(9000 + 2 * n, 9001 + 2 * n) for n in range(30)], topic="clicks")
    store.flush("clicks")
    damage(data_dir, 9010, "*.qseg")
    assert store.dataset("clicks").count_rows() == 60
    assert store.sql("SELECT count(*) AS n FROM clicks").read_all().to_pydict() == {"n": [60]}
    forgiving = store.dataset("clicks", skip_damaged=True)
    assert forgiving.count_rows() == forgiving.to_table().num_rows == 58
    found = store.sql("SELECT count(*) AS n FROM clicks", skip_damaged=True).read_all()
    assert found.to_pydict() == {"n": [58]}
    # A topic of its own: the first one's segment is rescued as soon as somebody has met the damage.
    store.push_many([clicks(2 * n, 2 * n + 1) for n in range(30)], topic="My-topic")
    store.flush("My-topic")
    (path,) = (data_dir / "My-topic").rglob("*.qseg")
    with path.open("r+b") as file:
        # In the stream directory, which says how many rows there are.
        content = file.read()
        place = content.rindex((60).to_bytes(8, "little"))
        file.seek(place)
        file.write((61).to_bytes(8, "little"))
    with pytest.raises(ChecksumMismatch):
        store.dataset("My-topic").count_rows()


def test_bounds_are_kept(store: Store) -> None:
    store.push_many([clicks(n) for n in range(10)], topic="clicks")
    end = store.push(clicks(10), topic="clicks").bundle_id
    store.flush("clicks")
    assert store.dataset("clicks", end=end).count_rows() == 10
    (info,) = store.segments("clicks")[0]
    newest = info.last_ingestion_ts_nanos
    found = store.sql("SELECT count(*) AS n FROM clicks", start=newest).read_all().to_pydict()["n"][0]
    assert found == store.sql("SELECT id FROM clicks", start=newest).read_all().num_rows
    assert found < 11


def test_no_engine_is_loaded_for_it(store: Store, data_dir: Path) -> None:
    store.push(pa.record_batch({"id": [1]}), topic="clicks")
    store.close()
    program = (
        "import sys; from quiver_actors.cli.main import main\n"
        f"code = main(['query', '--data-dir', {str(data_dir)!r}, 'SELECT count(*) FROM clicks'])\n"
        "assert not {'duckdb', 'datafusion', 'pyarrow.dataset', 'pandas'} & set(sys.modules), 'loaded'\n"
        "sys.exit(code)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["count_star()", "1", "(1", "row)"]
