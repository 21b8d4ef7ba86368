from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.cli.main import main
from tests.unit.cli.examples import help_of, run_examples
from tests.unit.store.inspection.stores import CURSOR, ENGINE, SEGMENT, flip, snapshot


def test_examples_run(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("verify", capsys, store, tmp_path / "out")


def test_healthy_directory_is_all_good(healthy_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--data-dir", str(healthy_store), "--deep"]) == 0
    shown = capsys.readouterr()
    assert "2 segments with 6 bundles, 8 log entries, 1 subscriber" in shown.out
    assert "0 damaged" in shown.out or "all good" in shown.out
    assert shown.err == "", "no progress bar off a terminal"


def test_damage_is_shown_with_place_expectation_and_what_to_do(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / CURSOR, 13)
    assert main(["verify", str(store)]) == 5
    lines = capsys.readouterr().out.splitlines()
    start = lines.index(f"DAMAGE   {store / CURSOR}, byte 20: cursor: crc32 is wrong")
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["expected:", "found:", "do:"]
    assert "1 damaged" in lines[-1]


def test_only_a_deep_look_finds_damaged_contents(store: Path) -> None:
    flip(store / SEGMENT, 500)
    assert main(["verify", str(store)]) == 0
    assert main(["verify", str(store), "--deep"]) == 5


@pytest.mark.parametrize("deep", [True, False])
def test_json_is_one_object_with_everything(store: Path, deep: bool, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / CURSOR, 13)
    assert main(["verify", str(store), "--json", *(["--deep"] if deep else [])]) == 5
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema_version", "path", "deep", "ok", "counts", "checked", "findings"]
    assert (document["schema_version"], document["deep"], document["ok"]) == (1, deep, False)
    assert document["counts"]["damage"] == 1
    first = document["findings"][0]
    assert (first["severity"], first["code"], first["offset"]) == ("damage", "cursor", 20)
    assert {"path", "message", "expected", "found", "action"} <= set(first)


def test_a_directory_whose_name_is_not_utf8_can_be_verified(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flip(store / CURSOR, 13)
    named = os.fsencode(store) + b"\xff"
    os.rename(store, named)
    for command in ("verify", "inspect"):
        done = subprocess.run(
            [sys.executable, "-m", "quiver_actors.cli.main", command, named], capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (5, b"")
        assert b"\\udcff" in done.stdout
        assert main([command, "--json", os.fsdecode(named)]) == 5
        assert named in [os.fsencode(text) for text in texts_in(json.loads(capfd.readouterr().out))]


def texts_in(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for value in document.values() if isinstance(document, dict) else document:
            yield from texts_in(value)


def test_one_file_can_be_verified(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(store / SEGMENT), "--deep"]) == 0
    flip(store / SEGMENT, -1)
    assert main(["verify", str(store / SEGMENT), "--deep"]) == 5
    assert f"{store / SEGMENT}, byte" in capsys.readouterr().out


@pytest.mark.parametrize("place", [".", "relative"])
def test_relative_paths_are_shown_as_they_were_given(
    store: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(store / CURSOR, 13)
    monkeypatch.chdir(store / ENGINE / "wal" if place == "." else store.parent)
    argument = "quiver.wal.cursor" if place == "." else "data"
    assert main(["verify", argument]) == 5
    wanted = "quiver.wal.cursor" if place == "." else f"data/{CURSOR}"
    assert f"DAMAGE   {wanted}, byte 20" in capsys.readouterr().out


def test_verify_leaves_no_trace(store: Path) -> None:
    os.unlink(store / ENGINE / "quiver.lock")
    before = snapshot(store)
    main(["verify", str(store), "--deep"])
    assert snapshot(store) == before


@pytest.mark.parametrize("arguments", [[], ["a", "--data-dir", "b"], ["--deep"]])
def test_wrong_arguments_end_with_the_usage_code(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", *arguments])
    assert ended.value.code == 2


def test_what_cannot_be_read_has_a_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "nowhere"), "--deep"]) == 4
    assert capsys.readouterr().err.startswith("quiver: open of")
    os.mkfifo(tmp_path / "pipe")
    assert main(["verify", str(tmp_path / "pipe")]) == 2


def test_a_directory_without_anything_of_ours_is_not_all_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever mistypes the path must not be told that the data is sound."""
    for count in ("0 files", "1 file"):
        assert main(["verify", "--data-dir", str(tmp_path)]) == 2
        assert f"nothing of Quiver is in {tmp_path} ({count})" in capsys.readouterr().err
        (tmp_path / "notes.txt").write_text("not ours")


@pytest.mark.parametrize("command", ["verify", "inspect", "repair", "export-segment"])
def test_help_documents_exit_codes_and_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    assert "exit codes:\n  0 " in text
    assert "\n  5 " in text
    assert "examples:\n  quiver " in text


def test_commands_load_data_libraries_only_when_they_run() -> None:
    commands = [f"commands.{name}" for name in ("verify", "inspect", "repair", "export_segment")]
    modules = [*commands, "storage", "progress_bar", "main"]
    program = "import sys\n" + "".join(f"import quiver_actors.cli.{name}\n" for name in modules)
    program += "assert not {'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
