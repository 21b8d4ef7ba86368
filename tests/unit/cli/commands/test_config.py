from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from quiver_actors.base.config import load_config
from quiver_actors.cli.main import main
from quiver_actors.errors import ConfigError
from quiver_actors.node.composition import run_node


def test_show_says_what_holds_and_where_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quiver.toml"
    file.write_text("[topics.clicks]\npriority = 3\n")
    monkeypatch.setenv("QUIVER_CORES", "2")
    assert main(["config", "show", "--config", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    rows = {row["key"]: (row["value"], row["origin"]) for row in document["settings"]}
    assert rows["cores"] == ("2", "environment QUIVER_CORES")
    assert rows["segment.target_size"] == ('"32MiB"', "default")
    assert rows["topics.clicks.priority"] == ("3", f"file {file}")
    main(["config", "show", "--config", str(file), "--origin"])
    text = capsys.readouterr().out
    assert tomllib.loads(text)["topics"] == {"clicks": {"priority": 3}}
    assert f"# file {file}" in text


def test_check_names_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "quiver.toml"
    file.write_text("croes = 2\n[segment]\ntarget_size = 'x'\n")
    assert main(["config", "check", str(file)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["config", "check", str(file), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], len(found["problems"])) == (False, 2)
    file.write_text("cores = 2\n")
    assert main(["config", "check", str(file)]) == 0
    assert main(["config", "check", str(tmp_path / "missing.toml")]) == 2


def test_a_worker_for_each_core_may_be_too_many_for_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quiver.toml"
    file.write_text(f"data_dir = '{tmp_path}/data'\nrun_dir = '{tmp_path}/run'\nretention.size_cap = '1GiB'\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(2)))
    assert main(["config", "check", str(file)]) == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert main(["config", "check", str(file)]) == 2
    assert "where cores = 0 means 64: key 'retention.size_cap'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="each of 64 workers"):
        run_node(load_config(str(file)))
    assert not (tmp_path / "data").exists()


def test_init_writes_a_file_that_check_likes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "init"]) == 0
    file = tmp_path / "quiver.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == 0
