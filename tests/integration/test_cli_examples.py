"""Every example in the help of every command, run as it stands on a real node; and what push, tail, export and top do beside that.

The examples of verify, inspect, repair, compact and export-segment are run by tests/unit/cli, on stored files alone.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.manifest_store import ManifestWriter, StateUpload
from quiver_actors.archive.node_state import NodeState, encode_state
from quiver_actors.base.model import ONLOOKER_PREFIX
from quiver_actors.cli.commands.top import TopView
from quiver_actors.cli.examples import all_parsers, examples_of
from quiver_actors.cli.main import build_parser, main
from quiver_actors.client import Client
from quiver_actors.store.objects.opening import open_store
from tests.integration.client_node import ClientNode, client_node, numbers
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, command_line, wait_until_dead
from tests.support.archived import ArchiveWriter, sealed_segments

FLIGHTS = pa.table({"id": pa.array(range(25_000), pa.int64()), "from": ["JFK"] * 25_000})
ON_FILES = ("verify", "inspect", "repair", "compact", "export-segment")
"""Tested with stored files."""
AT_THE_END = ("quiver transactions publish", "quiver drain")
UNTIL_STOPPED = ("quiver up", "quiver serve", "quiver metrics --listen", "quiver tail clicks --rows")
CONFIG = """
[segment]
max_open_duration = "50ms"
[topics.travel]
slots = { flights = 0, weather = 1 }
"""


def examples() -> list[str]:
    found = [example for parser in all_parsers(build_parser()) for example in examples_of(parser)]
    found = [example for example in dict.fromkeys(found) if example.split()[1] not in ON_FILES]
    return sorted(found, key=lambda example: example.startswith(AT_THE_END))


def runs_on(example: str) -> bool:
    return example.startswith(UNTIL_STOPPED) or example == "quiver top"


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(cores=1, config=CONFIG) as node:
        with node.connect() as client:
            _fill(client)
        yield node


def _fill(client: Client) -> None:
    """Make the topics that the examples name. One example makes `clicks`."""
    client.create_topic("clicks-dead")
    stage = client.stage("nightly-2026-01-31")
    stage.push(numbers(1))
    token = stage.prepare()
    assert token is not None
    client.decide("nightly-2026-01-31", 0, [token])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, node: ClientNode) -> Path:
    """The directory in which the examples run."""
    place = tmp_path_factory.mktemp("examples")
    store = open_store(f"file://{place}/archive")
    owner = Owner(epoch=1, directory="here", start="first", since_unix_ns=1)
    state = encode_state(NodeState(node="worker-1", taken_unix_ns=1, files={}))
    ManifestWriter.own(store, "worker-1", owner, None).record_state(StateUpload(state, 1))
    store.close()
    pq.write_table(FLIGHTS, place / "flights.parquet")
    (place / "quiver.toml").write_text(
        f"data_dir = '{place}/own'\nrun_dir = '{node.directories.base}/own'\ncores = 1\n"
    )
    segments = sealed_segments(place / "archived", [[numbers(1, 2)], [numbers(3)]])
    ArchiveWriter(f"file://{place}/data-archive", node="worker-7", topic="travel").archive(dict(enumerate(segments)))
    return place


def fitted(example: str, place: Path, node: ClientNode) -> str:
    """Return the example with directories of this test, and with a node of its own if it starts one."""
    line = example.replace("/var/lib/quiver", str(place / "data")).replace(
        "unix:/run/quiver/", f"unix:{node.directories.base}/"
    )
    line = line.replace("file:///srv/archive", f"file://{place}/archive")
    if line.startswith("quiver subscribers export"):
        # The subscriber's files are the node's.
        line = example.replace("/var/lib/quiver", str(node.directories.data)).replace(
            "/tmp/exported", str(place / "progress")
        )
    line = line.replace("127.0.0.1:8815", "127.0.0.1:0").replace("127.0.0.1:9465", "127.0.0.1:0")
    if line.startswith("quiver up") and "--config" not in line:
        line += f" --run-dir {node.directories.base}/own"
    return line


CODES = {
    "quiver doctor": {0, 4},
    "quiver subscribers export": {
        3
    },  # it wants a node that is stopped: tests/unit/cli/commands/test_export_progress.py
}
"""What the command may exit with, where it may be something else than 0."""


@pytest.mark.timeout(240)
def test_every_example_runs(
    node: ClientNode, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIVER_RUN_DIR", str(node.directories.run))
    monkeypatch.chdir(place)
    assert main(["topics", "create", "clicks"]) == 0
    with node.connect() as client:
        client.subscribe("exporter", topic="clicks").close()
    assert main(["topics", "delete", "clicks", "--dry-run"]) == 0
    ran = 0
    for example in examples():
        if example.startswith("quiver drain"):
            with node.connect() as client:
                client.unsubscribe("exporter", topic="clicks")  # or it would wait for it
        if runs_on(example):
            _run_until_it_speaks(fitted(example, place, node), place, node)
        elif not example.startswith("quiver topics create"):
            _run(fitted(example, place, node), place, monkeypatch, capsys)
        ran += 1
    assert ran > 40
    wait_until_dead([node.process.pid])


def _run(line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, target = line.partition(" > ")
    if " - " in command:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1}\n{"id": 2}\n')))
    if command.startswith("quiver export travel --slot"):
        command = command.replace("--out exported", "--out exported-too")
    code = main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    expected = next((codes for start, codes in CODES.items() if command.startswith(start)), {0})
    assert code in expected, f"{line}: {printed.err}"
    if target:
        (place / target.strip()).with_suffix(".written").write_text(printed.out)


def _run_until_it_speaks(line: str, place: Path, node: ClientNode) -> None:
    """Run an example that goes on until it is stopped."""
    environment = {
        **os.environ,
        "QUIVER_RUN_DIR": str(node.directories.run),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(ROOT),
    }
    if line.startswith("quiver up"):
        del environment["QUIVER_RUN_DIR"]
    command = command_line("quiver_actors.cli.main", *shlex.split(line)[1:])
    started = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert started.stdout is not None
        if line.startswith("quiver tail"):
            with node.connect() as client:
                while not any(each.subscriber.startswith(ONLOOKER_PREFIX) for each in client.subscribers("clicks")[0]):
                    assert started.poll() is None, started.stderr and started.stderr.read()
                client.push(numbers(1), topic="clicks")
        assert started.stdout.readline(), f"{line}: {started.stderr and started.stderr.read()!r}"
        started.send_signal(signal.SIGINT)
        assert started.wait(DEADLINE_SECONDS) in (0, 130), line
    finally:
        started.kill()
        started.communicate()


# --- push, tail, export, top -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quiet() -> Iterator[ClientNode]:
    with client_node(cores=2, config=CONFIG) as node:
        yield node


def run(node: ClientNode, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
    done = said(node, *arguments, stdin=stdin, code=code)
    return (done.stdout if code == 0 else done.stderr).decode()


def said(node: ClientNode, *arguments: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
    command = command_line("quiver_actors.cli.main", *arguments, "--run-dir", str(node.directories.run))
    done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_files_of_every_format_go_in_and_come_out_again(quiet: ClientNode, tmp_path: Path) -> None:
    pq.write_table(FLIGHTS, tmp_path / "f.parquet")
    pyarrow.csv.write_csv(FLIGHTS, tmp_path / "f.csv")
    with pa.ipc.new_file(tmp_path / "f.arrow", FLIGHTS.schema) as writer:
        writer.write_table(FLIGHTS)
    into = ("--topic", "travel", "--slot", "flights")
    pushed = json.loads(run(quiet, "push", str(tmp_path / "f.parquet"), *into, "--rows", "10000", "--json"))
    assert (pushed["rows"], pushed["bundles"], pushed["durability"]) == (25_000, 3, ["synced"])
    run(quiet, "push", str(tmp_path / "f.csv"), *into)
    run(quiet, "push", str(tmp_path / "f.arrow"), *into)
    run(quiet, "push", "-", *into, stdin=(tmp_path / "f.parquet").read_bytes())
    run(quiet, "push", "-", "--topic", "travel", "--slot", "1", "--format", "jsonl", stdin=b'{"id": 7}\n')
    exported = json.loads(run(quiet, "export", "travel", "--flush", "--out", str(tmp_path / "out"), "--json"))
    # The file comes first whose slot is on the first worker.
    assert sorted(each["rows"] for each in exported["files"]) == [1, 100_000]
    table = pq.read_table(tmp_path / "out" / "travel-flights.parquet")
    assert sorted(table["id"].to_pylist()) == sorted(FLIGHTS["id"].to_pylist() * 4)
    assert "exists already" in run(quiet, "export", "travel", "--out", str(tmp_path / "out"), code=2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "travel-flights.parquet",
        "travel-weather.parquet",
    ]


def test_what_cannot_be_pushed_is_told(quiet: ClientNode, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,b\n1,2\n")
    (tmp_path / "f.bin").write_bytes(b"\0\1\2")
    assert "cannot be read as parquet" in run(quiet, "push", str(tmp_path / "f.csv"), "--format", "parquet", code=2)
    assert "give --format" in run(quiet, "push", str(tmp_path / "f.bin"), code=2)
    assert "'nowhere' does not exist" in run(quiet, "push", str(tmp_path / "f.csv"), "--topic", "nowhere", code=2)
    assert "not in the topic's slot table" in run(
        quiet, "push", str(tmp_path / "f.csv"), "--topic", "travel", "--slot", "x", code=2
    )
    assert "there is no file" in run(quiet, "push", str(tmp_path / "missing.csv"), code=2)
    assert "is a directory" in run(quiet, "push", str(tmp_path), code=2)
    for out in ("f.csv", "f.csv/below"):
        assert "--out" in run(quiet, "export", "travel", "--out", str(tmp_path / out), code=2)


def test_a_file_of_values_between_tabs_has_their_columns(quiet: ClientNode, tmp_path: Path) -> None:
    """Regression: the file was stored as one column of whole lines, without a warning."""
    (tmp_path / "f.tsv").write_text("a\tb\n1\tx,y\n")
    with quiet.connect() as client:
        client.create_topic("tabbed")
    run(quiet, "push", str(tmp_path / "f.tsv"), "--topic", "tabbed")
    run(quiet, "push", "-", "--format", "tsv", "--topic", "tabbed", stdin=b"a\tb\n2\tz\n")
    run(quiet, "export", "tabbed", "--flush", "--out", str(tmp_path / "out"))
    found = [row for path in (tmp_path / "out").iterdir() for row in pq.read_table(path).to_pylist()]
    assert sorted(found, key=str) == [{"a": 1, "b": "x,y"}, {"a": 2, "b": "z"}]


def test_tail_prints_what_was_sealed_and_leaves_no_subscriber(quiet: ClientNode) -> None:
    with quiet.connect() as client:
        client.create_topic("tailed", {"slots": {"page": 4}})
        client.push_many([{"page": numbers(number)} for number in (10, 20, 30)], topic="tailed")
        lines = run(quiet, "tail", "tailed", "--from", "earliest", "--count", "3", "--rows", "1", "--json").splitlines()
        assert [json.loads(line)["slots"]["page"]["values"] for line in lines] == [
            [{"id": 10}],
            [{"id": 20}],
            [{"id": 30}],
        ]
        assert client.subscribers("tailed") == {0: [], 1: []}
    assert "does not exist" in run(quiet, "tail", "nowhere", code=2)
    assert "not in the topic's slot table" in run(quiet, "tail", "tailed", "--slot", "x", code=2)


def test_tail_prints_rows_for_which_all_conditions_are_true(quiet: ClientNode) -> None:
    page, other = numbers(0, 4), pa.record_batch({"name": ["a"]})
    with quiet.connect() as client:
        client.create_topic("filtered", {"slots": {"page": 4, "names": 5}})
        client.push_many([{"page": page}, {"names": other}, {"page": page, "names": other}], topic="filtered")
    whole = ("tail", "filtered", "--from", "earliest", "--until-idle", "1")
    found = [
        json.loads(line)["slots"]
        for line in run(quiet, *whole, "--rows", "9", "--json", "--where", "id >= 1 AND id IN (0, 3)").splitlines()
    ]
    assert found == [{"page": {"rows": 1, "columns": ["id"], "values": [{"id": 3}]}}] * 2
    assert run(quiet, *whole, "--where", "id > 100") == ""
    assert len(run(quiet, *whole, "--count", "1", "--where", "name = 'a'").splitlines()) == 1
    assert (
        "no slot of it has the columns nowhere of --where"
        in said(quiet, *whole, "--where", "nowhere = 1").stderr.decode()
    )
    assert "where: id is int64" in run(quiet, *whole, "--where", "id = 'x'", code=2)
    assert "expected comparisons" in run(quiet, *whole, "--where", "id = 1 OR id = 2", code=2)


def test_tail_deletes_nothing_of_a_topic_that_has_no_subscriber(quiet: ClientNode) -> None:
    """Dead letters, for one: to look at them before they are sent back was to lose them."""
    with quiet.connect() as client:
        client.create_topic("looked-at")
        client.push_many([numbers(number) for number in (1, 2, 3)], topic="looked-at")
        run(quiet, "tail", "looked-at", "--from", "earliest", "--count", "3")
        run(quiet, "tail", "looked-at", "--until-idle", "1")
        kept = [bundle for core in client.segments("looked-at") for bundle in client.read("looked-at", core)]
        assert len(kept) == 3


def test_tail_shows_values_that_python_or_json_do_not_have(quiet: ClientNode) -> None:
    columns = {"at": pa.array([1 << 62], pa.timestamp("us")), "x": [float("nan")]}
    with quiet.connect() as client:
        client.create_topic("odd")
        client.push(pa.record_batch(columns), topic="odd")
    tail = ("tail", "odd", "--from", "earliest", "--count", "1", "--rows", "1")
    (line,) = run(quiet, *tail, "--json").splitlines()
    shown = json.loads(line, parse_constant=pytest.fail)
    assert shown["slots"]["0"]["values"] == [{"at": "<value out of range: 4611686018427387904>", "x": None}]
    assert "<value out of range" in run(quiet, *tail)


def test_top_shows_workers_topics_and_subscribers(quiet: ClientNode) -> None:
    with quiet.connect() as client:
        client.subscribe("watched", topic="default").close()
        client.push(numbers(1))
    text = run(quiet, "top", "--count", "2", "--interval", "0.05")
    assert text.count("quiver node ready") == 2
    assert all(word in text for word in ("core_0", "core_1", "PRESSURE", "default", "watched", "nobody"))
    assert "\x1b" not in text
    fitted = Console(width=120, file=io.StringIO())
    with quiet.connect() as client:
        for name in ("one", "two", "three"):
            client.create_topic(name)
    fitted.print(TopView(str(quiet.directories.run)).look(12))
    lines = fitted.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) <= 12
    assert [line for line in lines if re.fullmatch(r"and \d more topics", line)]
    missing = command_line("quiver_actors.cli.main", "top", "--run-dir", str(quiet.directories.base / "missing"))
    assert subprocess.run(missing, cwd=ROOT, capture_output=True, check=False).returncode == 3


def test_top_of_a_node_that_has_died_says_so_with_its_exit_code() -> None:
    with client_node() as node:
        node.kill_supervisor()
        command = command_line("quiver_actors.cli.main", "top", "--count", "1", "--run-dir", str(node.directories.run))
        assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 3
