"""`quiver query` over a directory that nobody has open: every form of the result, its limits, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quiver_actors
from quiver_actors.cli.main import main
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, command_line
from tests.unit.query.test_dataset import clicks, damage


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("query") / "data"
    with quiver_actors.open(path) as store:
        store.create_topic("travel", {"slots": {"flights": 0, "weather": 1}})
        flights = pa.record_batch({"carrier": ["AA", "UA", None], "delay": [3.5, float("nan"), 1.0]})
        store.push({"flights": flights, "weather": clicks(1)}, topic="travel")
        store.push_many([clicks(n) for n in range(150)])
        store.push({"flights": pa.record_batch({"text": ["two\nlines \x1b[2J", "x" * 100]})}, topic="travel")
    return path


def ask(capsys: pytest.CaptureFixture[str], data_dir: Path, *arguments: str, code: int = 0) -> tuple[list[str], str]:
    assert main(["query", "--data-dir", str(data_dir), *arguments]) == code
    printed = capsys.readouterr()
    return printed.out.splitlines(), printed.err


@pytest.mark.parametrize("engine", ["duckdb", "datafusion"])
def test_a_table_has_its_columns_in_line(capsys: pytest.CaptureFixture[str], data_dir: Path, engine: str) -> None:
    statement = "SELECT carrier, delay FROM travel.flights WHERE text IS NULL AND delay < 4 ORDER BY carrier"
    lines, _ = ask(capsys, data_dir, statement, "--engine", engine)
    assert lines == ["carrier  delay", "AA         3.5", "           1.0", "(2 rows)"]


def test_a_value_keeps_to_its_line(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    lines, _ = ask(capsys, data_dir, "SELECT text FROM travel.flights WHERE text IS NOT NULL")
    assert lines == ["text", r"two\nlines \x1b[2J", "x" * 59 + "…", "(2 rows)"]


def test_json_is_a_row_a_line(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    lines, _ = ask(capsys, data_dir, "SELECT carrier, delay FROM travel.flights WHERE text IS NULL", "--json")
    assert [json.loads(line) for line in lines] == [
        {"carrier": "AA", "delay": 3.5},
        {"carrier": "UA", "delay": None},
        {"carrier": None, "delay": 1.0},
    ]


def test_json_numbers_are_numbers(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    lines, _ = ask(capsys, data_dir, 'SELECT sum(id) AS total, 1.5 AS half FROM "default"', "--json")
    assert lines == ['{"total": 11175, "half": "1.5"}']


def test_files_have_all_rows(capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path) -> None:
    statement = 'SELECT id, _quiver_bundle FROM "default" ORDER BY id'
    for form in ("csv", "arrow", "parquet"):
        lines, _ = ask(capsys, data_dir, statement, "--format", form, "--output", str(tmp_path / form))
        assert lines == [f"{tmp_path / form}: 150 rows"]
    ids = list(range(150))
    assert pq.read_table(tmp_path / "parquet").column("id").to_pylist() == ids
    assert pa.ipc.open_file(tmp_path / "arrow").read_all().column("_quiver_bundle").to_pylist() == ids
    csv = (tmp_path / "csv").read_text().splitlines()
    assert (csv[0], csv[-1], len(csv)) == ('"id","_quiver_bundle"', "149,149", 151)
    _, error = ask(capsys, data_dir, statement, "--format", "csv", "--output", str(tmp_path / "csv"), code=2)
    assert "exists already" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arrow", "csv", "parquet"]


def test_wrong_calls_are_refused(capsys: pytest.CaptureFixture[str], data_dir: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for arguments, reason in (
        (("SELECT * FROM travel",), "tables: travel.flights, travel.weather"),
        (("SELECT 1", "--format", "parquet"), "needs --output"),
        (("SELECT 1", "--json", "--output", out), "csv, arrow or parquet"),
        (("SELECT 1", "--format", "csv", "--output", out, "--follow", "1s"), "csv, arrow or parquet"),
        (("SELECT [1] AS list", "--format", "csv", "--output", out), "use another --format"),
        (("COPY (SELECT 1) TO '/tmp/none'",), "one statement that reads"),
    ):
        _, error = ask(capsys, data_dir, *arguments, code=2)
        assert reason in error
    assert not list(tmp_path.iterdir())


def on_terminal(*arguments: str) -> str:
    """What the command prints to a terminal."""
    ours, its = pty.openpty()
    try:
        command = command_line("quiver_actors.cli.main", "query", *arguments)
        started = subprocess.Popen(command, cwd=ROOT, stdout=its)
        os.close(its)
        shown = b""
        while piece := _read(ours):
            shown += piece
        assert started.wait(DEADLINE_SECONDS) == 0
        return shown.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)


def test_a_terminal_is_told_how_far_it_is_on_stderr_alone(data_dir: Path) -> None:
    ours, its = pty.openpty()
    try:
        command = command_line(
            "quiver_actors.cli.main", "query", "--data-dir", str(data_dir), 'SELECT sum(id) AS n FROM "default"'
        )
        found = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=its, check=True, timeout=DEADLINE_SECONDS
        )
        os.close(its)
        told = _read(ours).decode()
    finally:
        os.close(ours)
    assert found.stdout.split() == [b"n", b"11175", b"(1", b"row)"]
    assert re.search(r"\d KiB of [\d.]+ KiB read", told)
    assert told.endswith("\r\x1b[K")
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=DEADLINE_SECONDS)
    assert (piped.stdout, piped.stderr) == (found.stdout, b"")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def test_a_terminal_gets_the_first_rows_and_pipes_get_all(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    statement = 'SELECT id FROM "default" ORDER BY id'
    shown = on_terminal("--data-dir", str(data_dir), statement).splitlines()
    assert (len(shown), shown[-2:]) == (102, ["99", "(150 rows, the first 100 are shown: --limit 0 shows all)"])
    assert len(on_terminal("--data-dir", str(data_dir), statement, "--limit", "0").splitlines()) == 152
    assert len(ask(capsys, data_dir, statement)[0]) == 152
    assert ask(capsys, data_dir, statement, "--limit", "2", "--json")[0] == ['{"id": 0}', '{"id": 1}']


def test_follow_runs_it_until_it_is_interrupted(data_dir: Path) -> None:
    command = command_line(
        "quiver_actors.cli.main", "query", "--data-dir", str(data_dir), "SELECT 1 AS one", "--json", "--follow", "10ms"
    )
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert [started.stdout.readline() for _ in range(3)] == [b'{"one": 1}\n'] * 3
        started.send_signal(signal.SIGINT)
        started.stdout.read()
        assert started.wait(DEADLINE_SECONDS) == 0


def test_damage_has_an_exit_code_or_is_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with quiver_actors.open(tmp_path / "data") as store:
        store.push_many([clicks(9000 + 2 * n, 9001 + 2 * n) for n in range(30)])
        store.flush()
    damage(tmp_path / "data", 9010, "*.qseg")
    # The store looks at what it has when it is opened: it may have rescued the others before the statement runs.
    lines, error = ask(capsys, tmp_path / "data", 'SELECT count(id) AS n FROM "default"', "--json", code=5)
    assert (lines, "--skip-damaged" in error) == ([], True)
    lines, _ = ask(capsys, tmp_path / "data", 'SELECT count(*) AS n FROM "default"', "--json", "--skip-damaged")
    assert lines == ['{"n": 58}']


def test_a_statement_loads_no_pandas(data_dir: Path) -> None:
    statement = 'SELECT count(id) FROM "default"'
    line = command_line("quiver_actors.cli.main", "query", "--data-dir", str(data_dir), statement)
    line[1:1] = ["-X", "importtime"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "duckdb" in done.stderr
    assert "pandas." not in done.stderr, "loading it takes longer than most statements"
