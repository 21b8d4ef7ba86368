"""What a supervisor refuses to start on: directories, configurations and disks that it cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.integration.node_process import (
    QUICK,
    Directories,
    NodeProcess,
    command_line,
    run_quiver,
)
from tests.integration.supervised import left_in


def test_second_supervisor_on_one_data_directory_is_refused(directories: Directories) -> None:
    with NodeProcess.small(directories).wait_ready() as node:
        other_run = directories.base / "other"
        with NodeProcess.small(directories, run_dir=other_run) as second:
            assert second.end()[0] == 3
            assert f"process {node.pid} holds {directories.data}/quiver.node.lock" in second.logged()
        assert [child.state for child in node.status().children] == ["ready", "ready"]
        assert node.stop() == 0


def test_second_supervisor_on_one_run_directory_is_refused(directories: Directories) -> None:
    other = Directories()
    with NodeProcess.small(directories).wait_ready() as node:
        with NodeProcess.small(other, run_dir=directories.run) as second:
            assert second.end()[0] == 3
            assert f"process {node.pid} holds {directories.run}/supervisor.lock" in second.logged()
        assert directories.record()["pid"] == node.pid
        assert [child.state for child in node.status().children] == ["ready", "ready"]
        assert node.stop() == 0
    other.remove()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("quiver-data 4\n", "has version 4; this program reads versions 1 to 3 and writes version 3"),
        ("notes\n", "not a data directory"),
    ],
)
def test_data_directory_of_another_version_is_refused(directories: Directories, content: str, said: str) -> None:
    directories.data.mkdir()
    (directories.data / "quiver.version").write_text(content)
    done = run_quiver("up", "--data-dir", str(directories.data), "--run-dir", str(directories.run))
    assert (done.returncode, done.stdout) == (4, "")
    assert said in done.stderr
    assert (directories.data / "quiver.version").read_text() == content
    assert left_in(directories) == []


@pytest.mark.parametrize("content", [None, "quiver-data 1\n", "quiver-data 2\n", "quiver-data 3\n"])
def test_data_directory_is_marked_with_our_version(directories: Directories, content: str | None) -> None:
    """A program that reads version 1 only would ignore the owners of subscribers: it must refuse what this one has opened."""
    if content is not None:
        directories.data.mkdir(mode=0o700)
        (directories.data / "quiver.version").write_text(content)
    for _ in range(2):
        with NodeProcess.small(directories).wait_ready() as node:
            assert (directories.data / "quiver.version").read_text() == "quiver-data 3\n"
            assert node.stop() == 0


def test_data_directory_that_is_a_file_is_refused(directories: Directories) -> None:
    directories.data.write_text("")
    done = run_quiver("up", "--data-dir", str(directories.data), "--run-dir", str(directories.run))
    assert done.returncode == 4
    assert f"{directories.data} failed: File exists" in done.stderr


@pytest.mark.parametrize(
    ("full", "code", "message"),
    [("data", 4, "No space left on device"), ("run", 2, "cannot be written: No space left on device; make room")],
)
def test_full_disk_at_start_is_refused(directories: Directories, full: str, code: int, message: str) -> None:
    """A mount of its own, in a name space of its own: needs the right to mount."""
    data, run = directories.data, directories.run
    place = getattr(directories, full)
    place.mkdir(exist_ok=True)
    fill = f"mount -t tmpfs -o size=64k,mode=700 tmpfs {place} && ! dd if=/dev/zero of={place}/filler bs=4k 2>/dev/null"
    quiver = " ".join(command_line("quiver_actors.cli.main", "up", "--data-dir", str(data), "--run-dir", str(run)))
    allowed = subprocess.run(["unshare", "-m", "sh", "-c", fill], capture_output=True, check=False, timeout=30)
    if allowed.returncode != 0:
        pytest.skip("mounting is not allowed here")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{fill}; exec {quiver}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == code
    assert message in done.stderr
    assert left_in(directories) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        ("cores = [", "is not TOML"),
        ("croes = 2", "did you mean 'cores'?"),
        ("cores = -1", "is out of range"),
    ],
)
def test_unusable_config_is_refused(directories: Directories, content: str | None, said: str) -> None:
    config = directories.base / "quiver.toml"
    if content is not None:
        config.write_text(content)
    done = run_quiver("up", "--config", str(config), "--data-dir", str(directories.data))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("quiver: ")
    assert len(done.stderr.splitlines()) == 1
    assert not directories.data.exists()


def test_run_directory_that_others_can_write_is_refused(directories: Directories) -> None:
    directories.run.mkdir()
    directories.run.chmod(0o770)
    done = run_quiver("up", "--data-dir", str(directories.data), "--run-dir", str(directories.run))
    assert done.returncode == 2
    assert f"chmod 700 {directories.run}" in done.stderr


def test_run_directory_of_another_user_is_refused(directories: Directories) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")
    directories.run.mkdir()
    os.chown(directories.run, 12345, -1)
    done = run_quiver("up", "--data-dir", str(directories.data), "--run-dir", str(directories.run))
    assert done.returncode == 2
    assert "belongs to user 12345" in done.stderr


def test_run_directory_that_is_a_link_is_refused(directories: Directories) -> None:
    target = directories.base / "target"
    target.mkdir(mode=0o700)
    directories.run.symlink_to(target)
    done = run_quiver("up", "--data-dir", str(directories.data), "--run-dir", str(directories.run))
    assert done.returncode == 2
    assert "not a link" in done.stderr
    directories.run.unlink()


def test_run_directory_too_long_for_a_socket_is_refused(directories: Directories) -> None:
    run = directories.base / ("r" * 100)
    done = run_quiver("up", "--data-dir", str(directories.data), "--run-dir", str(run))
    assert done.returncode == 2
    assert "too long for sockets" in done.stderr
    assert not run.exists()


def test_supervisor_that_may_not_fork_says_why_and_leaves_nothing(directories: Directories) -> None:
    arguments = (str(directories.data), str(directories.run), "1", "serve", msgspec.json.encode(QUICK).decode())
    program = f"import sys, numpy\nfrom tests.integration.small_node import main\nsys.exit(main(*{arguments!r}))"
    with NodeProcess([sys.executable, "-c", program], directories.run) as node:
        assert node.end()[0] == 1
        assert "quiver: the supervisor" in node.logged()
        assert "Traceback" not in node.logged()
    assert left_in(directories) == []
