"""`quiver doctor` as an operator runs it."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

from tests.integration.node_process import ROOT, Directories, NodeProcess, command_line, run_quiver


def test_findings_come_as_text_and_as_json(tmp_path: Path) -> None:
    places = ["--data-dir", str(tmp_path / "data"), "--run-dir", str(tmp_path / "run")]
    text = run_quiver("doctor", *places)
    assert text.stderr == ""
    document = json.loads(run_quiver("doctor", "--json", *places).stdout)
    assert document["schema_version"] == 1
    levels = [finding["level"] for finding in document["findings"]]
    assert text.returncode == (4 if "failure" in levels else 0)
    for finding in document["findings"]:
        assert finding["check"] in text.stdout
    assert document["facts"]["data_dir"]["path"] == str(tmp_path / "data")


def test_a_link_as_data_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = run_quiver("doctor", "--data-dir", str(tmp_path / "link"), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 4
    assert "FAIL  data directory" in done.stdout
    assert "symbolic link" in done.stdout


def test_low_limits_are_warnings_and_fail_only_when_strict(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = command_line("quiver_actors.cli.main", "doctor", "--data-dir", str(tmp_path), *arguments)
        return subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False)

    assert "limit 256" in doctor().stdout
    assert doctor("--strict").returncode == 4


def test_a_running_node_of_the_same_version_is_fine() -> None:
    directories = Directories()
    try:
        with NodeProcess.small(directories).wait_ready():
            places = ["--data-dir", str(directories.data), "--run-dir", str(directories.run)]
            document = json.loads(run_quiver("doctor", "--json", *places).stdout)
        assert (
            document["facts"]["session"]["node_version"] == document["facts"]["software"]["packages"]["quiver-actors"]
        )
        assert "running node" not in {finding["check"] for finding in document["findings"]}
    finally:
        directories.remove()
