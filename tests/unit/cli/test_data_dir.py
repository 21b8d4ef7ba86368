"""Commands on a data directory that nobody has open."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.cli.main import main
from tests.unit.embedded.batches import numbered


def test_commands_work_on_a_directory_that_nobody_has_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "data")

    def shown(*command: str, code: int = 0) -> str:
        assert main([*command, "--data-dir", path]) == code
        told = capsys.readouterr()
        return told.err if code else told.out

    assert "no data directory" in shown("tail", "default", code=2)
    with quiver_actors.open(path) as store:
        store.subscribe("slow", start="earliest").close()
        store.push_many(map(numbered, range(5)))
        held = shown("status", code=3)
        assert f"process {os.getpid()}" in held
        assert "with its --run-dir" in held
    status = shown("status")
    assert status.startswith("quiver store READY")
    assert "default" in status
    assert json.loads(shown("subscribers", "list", "--json"))["subscribers"][0]["subscriber"] == "slow"
    assert len(shown("tail", "default", "--json").splitlines()) == 5, "it begins with the first bundle, and ends"
    assert "5 rows" in shown("export", "default", "--format", "arrow", "--out", str(tmp_path / "out"))


def test_a_command_that_has_a_directory_open_does_not_wait_for_pushes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", "t", "--data-dir", "nowhere", "--from", "latest"]) == 2
    assert "nothing comes into a directory that this command has open" in capsys.readouterr().err
