"""`quiver status` against a real node: running, with stopped workers, with a stopped and with a dead supervisor."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from quiver_actors.base.metrics.figures import EngineFigure
from quiver_actors.node.leftovers import is_asked_for
from quiver_actors.store.status.status_view import take_status
from tests.integration.node_process import ROOT, Directories, NodeProcess, command_line, named_memory, run_quiver
from tests.unit.node.worker.harness import until

WORKER_FIGURES_BASE = 1000
ENGINE_FIGURES_BASE = 100


@pytest.fixture
def directories() -> Iterator[Directories]:
    made = Directories()
    yield made
    made.remove()


@pytest.fixture
def node(directories: Directories) -> Iterator[NodeProcess]:
    with NodeProcess.small(directories, "serve_with_figures").wait_ready() as started:
        # The log says so before the page does.
        assert status(directories, "--wait", "ready").returncode == 0
        yield started


def status(directories: Directories, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_quiver("status", "--run-dir", str(directories.run), *arguments)


def status_json(directories: Directories) -> Any:
    return json.loads(status(directories, "--json").stdout)


def row_of(rows: list[dict[str, Any]], **wanted: object) -> dict[str, Any]:
    (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return found


def test_json_shows_the_node_and_its_workers(directories: Directories, node: NodeProcess) -> None:
    done = status(directories, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert document["node"]["state"] == "degraded", "a topic of it is full"
    assert (document["node"]["running"], document["node"]["ready"], document["node"]["healthy"]) == (True, True, False)
    assert document["node"]["pid"] == node.pid
    assert document["node"]["topics"] == ["default", "clicks"]
    assert [worker["pid"] for worker in document["workers"]] == node.worker_pids()
    worker = row_of(document["workers"], core=1)
    assert worker["state"] == "ready"
    assert worker["sessions"] == 2 * WORKER_FIGURES_BASE + 2
    assert worker["cpu"] == sorted(os.sched_getaffinity(0))[1 % len(os.sched_getaffinity(0))]
    assert worker["restarts"] == 0
    assert worker["uptime_ns"] > worker["figures_age_ns"] >= 0
    assert document["shared_memory"]["arena_bytes"] == 3 * WORKER_FIGURES_BASE + 2 * 3
    assert document["shared_memory"]["counters_bytes"] > 0


def test_json_shows_topics_subscribers_and_errors(directories: Directories, node: NodeProcess) -> None:
    document = status_json(directories)
    assert len(document["engines"]) == 4
    assert (document["engines"][0]["topic"], document["engines"][0]["state"]) == ("clicks", "full"), "worst first"
    engine = row_of(document["engines"], topic="default", core=0)
    assert (engine["bundles_in"], engine["rows_in"], engine["bytes_in"]) == (101, 102, 103)
    assert (engine["wal_bytes"], engine["open_segment_bytes"], engine["segments"]) == (104, 105, 107)
    assert engine["disk_bytes"] == 117
    subscriber = row_of(document["subscribers"], topic="clicks", subscriber="exporter", core=1)
    assert subscriber["lag_bundles"] == 20
    assert 10_000_000_000 <= subscriber["oldest_age_ns"] < 60_000_000_000
    assert row_of(document["subscribers"], subscriber="done", core=0)["oldest_age_ns"] is None
    error = row_of(document["errors"], core=1)
    assert (error["message"], error["count"]) == ("disk of core 1 is slow", 2)
    assert "topic clicks on core_1 is full" in document["node"]["problems"]


def test_table_is_plain_text_with_every_section(directories: Directories, node: NodeProcess) -> None:
    done = status(directories)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith(f"quiver node DEGRADED  pid {node.pid}  up ")
    for heading in ("WORKER ", "TOPIC ", "SUBSCRIBER ", "shared memory ", "ERROR OF "):
        assert any(line.startswith(heading) for line in done.stdout.splitlines())
    exporter = [line.split() for line in done.stdout.splitlines() if line.startswith("exporter")]
    assert [(line[1], line[2]) for line in exporter] == [("clicks", "30"), ("default", "30")], "lag summed over cores"
    topics = [line.split()[:4] for line in done.stdout.splitlines() if line.startswith(("default ", "clicks "))]
    assert topics[0] == ["clicks", "full", "core_1", f"{2 * ENGINE_FIGURES_BASE + EngineFigure.STORED_BUNDLES:,}"], (
        "what is not well, by core, first"
    )
    assert ["default", "ready", "2", "cores"] in topics
    in_full = [line.split()[:3] for line in status(directories, "--all").stdout.splitlines()]
    assert ["default", "ready", "core_0"] in in_full


def test_stopped_worker_is_shown_with_the_age_of_its_figures(directories: Directories, node: NodeProcess) -> None:
    pid = node.worker_pids()[1]
    os.kill(pid, signal.SIGSTOP)
    node.wait_for("worker.suspended", "worker=core_1")
    first, second = status_json(directories), status_json(directories)
    workers = [row_of(document["workers"], core=1) for document in (first, second)]
    assert [worker["state"] for worker in workers] == ["stopped", "stopped"]
    assert workers[0]["process_state"] == "T"
    assert workers[1]["figures_age_ns"] > workers[0]["figures_age_ns"]
    assert first["workers"][0]["core"] == 1, "worst first"
    assert row_of(first["engines"], topic="default", core=1)["state"] == "stopped"
    assert row_of(first["engines"], topic="default", core=1)["bundles_in"] == 2 * ENGINE_FIGURES_BASE + 1
    table = status(directories)
    assert table.returncode == 0
    lines = table.stdout.splitlines()
    assert lines[1:4] == [
        f"  {what} is stopped" for what in ("worker core_1", "topic clicks on core_1", "topic default on core_1")
    ]
    assert "  -> stopped: somebody has stopped its process: `kill -CONT` its pid" in lines
    assert next(line for line in lines if line.startswith("core_")).split()[:3] == ["core_1", "stopped", str(pid)]


def test_everything_stopped_still_answers(directories: Directories, node: NodeProcess) -> None:
    """Nothing of the node can run, so nothing of it can have been asked."""
    workers = node.worker_pids()
    for pid in (*workers, node.pid):
        os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, node.pid, os.WSTOPPED | os.WNOWAIT)
    until(lambda: {psutil.Process(pid).status() for pid in workers} == {psutil.STATUS_STOPPED}, "all to be stopped")
    document = status_json(directories)
    assert document["node"]["state"] == "stopped"
    assert {worker["state"] for worker in document["workers"]} == {"stopped"}
    assert len(document["engines"]) == 4
    assert "the supervisor is stopped: its own figures are" in status(directories).stdout


@contextlib.contextmanager
def held_figures(directories: Directories) -> Iterator[None]:
    """What a dead node has left stays until somebody starts another node, as tests beside this one do: not while it is held."""
    with named_memory(directories.record()["counters"]).open("rb") as memory:
        fcntl.flock(memory, fcntl.LOCK_SH)
        yield


def test_dead_supervisor_is_said_and_its_last_figures_shown(directories: Directories, node: NodeProcess) -> None:
    with held_figures(directories):
        check_dead(directories, node)


def check_dead(directories: Directories, node: NodeProcess) -> None:
    node.signal(signal.SIGKILL)
    node.end()
    done = status(directories)
    assert done.returncode == 3
    assert "NOT RUNNING: its supervisor is dead" in done.stdout
    assert f"quiver node DEAD  pid {node.pid}" in done.stdout
    document = status_json(directories)
    assert (document["node"]["running"], document["node"]["ready"], document["node"]["uptime_ns"]) == (
        False,
        False,
        None,
    )
    assert {worker["state"] for worker in document["workers"]} == {"dead"}
    assert {engine["state"] for engine in document["engines"]} == {"dead"}
    assert document["shared_memory"]["arena_bytes"] == 0
    assert len(document["errors"]) == 2


def test_worker_that_comes_back_is_shown_with_its_last_exit(directories: Directories, node: NodeProcess) -> None:
    os.kill(node.worker_pids()[0], signal.SIGKILL)
    node.wait_for("worker.start", "worker=core_0", "restarts=1")
    node.wait_for("worker.ready", "worker=core_0")
    worker = row_of(status_json(directories)["workers"], core=0)
    assert (worker["state"], worker["restarts"], worker["last_exit"]) == ("ready", 1, "SIGKILL")


def test_failed_worker_is_shown_as_such(directories: Directories) -> None:
    with NodeProcess.small(directories, "first_core_crashes") as node:
        node.wait_for("worker.failed", "worker=core_0")
        node.wait_for("node.ready")
        until(lambda: status_json(directories)["node"]["state"] != "starting", "the page to say what the log says")
        document = status_json(directories)
        shown = document["node"]
        assert (shown["state"], shown["ready"], shown["healthy"]) == ("degraded", True, False)
        worker = row_of(document["workers"], core=0)
        assert (worker["state"], worker["pid"], worker["last_exit"]) == ("failed", None, "exit 1 (crashed)")
        assert status(directories, "--check", "ready").returncode == 0
        unhealthy = status(directories, "--check", "healthy")
        assert (unhealthy.returncode, unhealthy.stdout) == (4, "")
        assert "worker core_0 is failed" in unhealthy.stderr
        assert node.stop() == 0


def test_no_node_is_one_line_and_its_own_code(directories: Directories) -> None:
    for mode in ([], ["--json"], ["--check", "ready"]):
        done = status(directories, *mode)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"no node is running in {directories.run}" in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "content", ["", "[]", '{"version": 2}', '{"version": 1}', '{"version": 1, "counters": "/etc"}']
)
def test_damaged_node_record_is_refused(directories: Directories, content: str) -> None:
    directories.run.mkdir()
    (directories.run / "node.json").write_text(content)
    done = status(directories)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Traceback" not in done.stderr


def test_run_directory_comes_from_the_environment_or_a_config_file(directories: Directories, node: NodeProcess) -> None:
    by_environment = run_quiver("status", "--check", "ready", environment={"QUIVER_RUN_DIR": str(directories.run)})
    assert by_environment.returncode == 0
    config = directories.base / "quiver.toml"
    config.write_text(f'run_dir = "{directories.run}"\n')
    assert run_quiver("status", "--check", "ready", "--config", str(config)).returncode == 0


def test_check_holds_for_a_healthy_node(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        assert status(directories, "--wait", "ready").returncode == 0
        for wanted in ("ready", "healthy"):
            done = status(directories, "--check", wanted)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert node.stop() == 0


def test_check_and_wait_follow_readiness(directories: Directories) -> None:
    directories.data.mkdir()
    os.mkfifo(directories.data / "go")
    wait = command_line("quiver_actors.cli.main", "status", "--run-dir", str(directories.run), "--wait", "ready")
    with (
        subprocess.Popen([*wait, "--timeout", "120s"], cwd=ROOT) as waiting,
        NodeProcess.small(directories, "last_core_waits") as node,
    ):
        node.wait_for("worker.ready", "worker=core_0")
        starting, deadline = status(directories, "--check", "ready"), time.monotonic() + 60
        while "worker core_1 is recovering" not in starting.stderr:
            assert "worker core_1 is starting" in starting.stderr
            assert time.monotonic() < deadline
            starting = status(directories, "--check", "ready")
        assert starting.returncode == 4
        assert waiting.poll() is None
        (directories.data / "go").write_bytes(b".")
        assert waiting.wait(120) == 0
        assert status(directories, "--check", "ready").returncode == 0
        assert node.stop() == 0


def test_wait_gives_up_after_its_timeout(directories: Directories) -> None:
    done = status(directories, "--wait", "ready", "--timeout", "100ms")
    assert (done.returncode, done.stdout) == (5, "")
    assert "not ready in time: no node is running" in done.stderr


def test_watch_goes_on_while_no_node_runs(directories: Directories) -> None:
    command = command_line("quiver_actors.cli.main", "status", "--run-dir", str(directories.run), "--watch", "0.05")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as watching:  # type: ignore[call-overload]
        watching.stderr.readline()
        watching.stderr.readline()
        with NodeProcess.small(directories).wait_ready() as node:
            assert select.select([watching.stdout], [], [], 30)[0]
            assert b"quiver node" in watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            watching.communicate(timeout=30)
            assert node.stop() == 0
        assert watching.returncode == 0


def test_reader_that_leaves_early_is_no_error(directories: Directories, node: NodeProcess) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command_line("quiver_actors.cli.main", "status", "--run-dir", str(directories.run)),
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments",
    [["--watch", "0"], ["--watch", "soon"], ["--check", "rich"], ["--check", "ready", "--wait", "ready"]],
)
def test_wrong_arguments_are_a_usage_error(directories: Directories, arguments: list[str]) -> None:
    done = status(directories, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_page_of_a_dead_node_is_asked_for_until_the_next_start_in_its_run_directory(
    directories: Directories, node: NodeProcess
) -> None:
    """Each start and stop of another node of the same user removed it: "dead and left no figures"."""
    name = directories.record()["counters"]
    with held_figures(directories):
        node.signal(signal.SIGKILL)
        node.end()
        assert is_asked_for(name)
        with NodeProcess.small(directories).wait_ready():
            assert not named_memory(name).exists()
            assert is_asked_for(directories.record()["counters"])


def test_a_start_that_is_killed_at_any_moment_leaves_no_record_without_figures(directories: Directories) -> None:
    """Between the record and the page's own word of its run directory, the next sweep of another node removed the page."""
    directories.base.joinpath("other").mkdir()
    places = (str(directories.data), str(directories.run), str(directories.base / "other"))
    done = subprocess.run(
        command_line("tests.integration.killed_starts", *places),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert [each for each in told if each != "figures" and not each.startswith("no node is running in")] == []
    assert told[-1] == "figures"
    assert len({*told}) == 2, "no start was killed between the removal of the former record and its own"


def test_a_look_at_a_dead_node_finds_the_one_that_starts_in_its_place_meanwhile(
    directories: Directories, node: NodeProcess
) -> None:
    node.signal(signal.SIGKILL)
    node.end()
    started: list[NodeProcess] = []
    is_armed = True

    def start_the_next(event: str, arguments: tuple[Any, ...]) -> None:
        """The record of the dead node has been read when the lock of its supervisor is opened."""
        nonlocal is_armed
        if is_armed and event == "open" and str(arguments[0]) == str(directories.run / "supervisor.lock"):
            is_armed = False
            started.append(NodeProcess.small(directories).wait_ready())

    sys.addaudithook(start_the_next)
    try:
        found = take_status(str(directories.run))
        assert (found.node.pid, found.node.running) == (started[0].pid, True)
    finally:
        is_armed = False
        for each in started:
            each.stop()


def test_a_command_does_not_wait_for_a_node_whose_supervisor_is_dead(
    directories: Directories, node: NodeProcess, tmp_path: Path
) -> None:
    node.signal(signal.SIGKILL)
    node.end()
    rows = tmp_path / "rows.csv"
    rows.write_text("n\n1\n")
    done = run_quiver("push", str(rows), "--run-dir", str(directories.run), "--timeout", "1h")
    assert done.returncode == 3
    assert "is dead" in done.stderr
    assert "quiver up --run-dir" in done.stderr
