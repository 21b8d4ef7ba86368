from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiver_actors.cli.main import main
from quiver_actors.store.disk.posix import PosixDisk
from tests.support.held_directories import held_by_another
from tests.unit.cli.examples import run_examples
from tests.unit.store.inspection.stores import (
    CURSOR,
    ENGINE,
    ENTRY_BYTES,
    PROGRESS,
    ROTATED,
    SEGMENT,
    flip,
    overwrite,
    snapshot,
)


def repair(store: Path, *arguments: str) -> int:
    return main(["repair", "--data-dir", str(store), *arguments])


def test_examples_run(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / CURSOR, 13)
    planned, done = run_examples("repair", capsys, store, tmp_path / "out")
    assert planned.replace("nothing was changed: do it with --yes\n", "") == done


def test_dry_run_prints_the_same_plan_and_changes_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, offset in ((CURSOR, 13), (PROGRESS, 40), (ROTATED, 121 + 300), (SEGMENT, 500)):
        flip(store / path, offset)
    before = snapshot(store)
    assert repair(store, "--dry-run") == 0
    planned = capsys.readouterr().out
    assert snapshot(store) == before
    assert repair(store, "--yes") == 0
    assert capsys.readouterr().out + "nothing was changed: do it with --yes\n" == planned
    assert main(["verify", str(store), "--deep"]) == 0


def test_what_was_done_is_said_with_the_reason(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / CURSOR, 13)
    assert repair(store, "--yes") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"{store}/{ENGINE}:"
    moved = "move aside wal/quiver.wal.cursor -> quarantine/quiver.wal.cursor.0 (cursor: crc32 is wrong)"
    assert lines[1] == moved
    assert lines[2].startswith("write wal/quiver.wal.cursor (position ")


def test_healthy_directory_is_said_to_be(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(store)
    assert repair(store, "--yes") == 0
    assert capsys.readouterr().out == f"{store}/{ENGINE}: nothing to repair\n"
    after = snapshot(store)
    assert after.pop("quiver.node.lock", None) is not None, "the node's lock was held meanwhile"
    assert after == before


def test_json_lists_engines_with_steps(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / CURSOR, 13)
    assert repair(store, "--dry-run", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["dry_run"]) == (1, True)
    (engine,) = document["engines"]
    assert [step["action"] for step in engine["steps"]] == ["move aside", "write"]
    assert engine["damage"][0]["code"] == "cursor"
    assert engine["left"] == []


def test_what_needs_a_hand_ends_with_a_code_of_its_own(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overwrite(store / ROTATED, 121 + 2 * ENTRY_BYTES, bytes(2 * ENTRY_BYTES))
    assert repair(store, "--yes") == 5
    shown = capsys.readouterr().out
    assert "LEFT AS IT IS" in shown
    assert "still damaged" in shown
    assert f"{2 * ENTRY_BYTES} bytes of entries are missing" in shown


@pytest.mark.parametrize("mode", ["--dry-run", "--yes"])
@pytest.mark.parametrize("lock", ["quiver.node.lock", f"{ENGINE}/quiver.lock"])
def test_running_node_or_engine_is_refused(
    store: Path, lock: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(store / CURSOR, 13)
    before = (store / CURSOR).read_bytes()
    with held_by_another(store / lock):
        assert repair(store, mode) == 3
    assert capsys.readouterr().err.startswith("quiver: ")
    assert (store / CURSOR).read_bytes() == before


def test_engine_directory_of_its_own_can_be_repaired(store: Path) -> None:
    flip(store / CURSOR, 13)
    assert repair(store / ENGINE, "--dry-run") == 0
    assert repair(store / ENGINE, "--yes") == 0
    assert main(["verify", str(store), "--deep"]) == 0
    disk = PosixDisk(str(store))
    lock = disk.lock(f"{ENGINE}/quiver.lock")
    assert lock is not None, "it was given back"
    lock.release()
    disk.close()


def test_slot_table_of_the_config_is_used(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / ROTATED, 121 + 300)
    config = tmp_path / "quiver.toml"
    config.write_text("[topics.default.slots]\nflights = 0\n")
    assert repair(store, "--dry-run", "--config", str(config)) == 5
    assert "slot table" in capsys.readouterr().out


def test_directory_without_engines_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repair(tmp_path, "--yes") == 0
    assert list(tmp_path.iterdir()) == []
    assert "no engine's directory" in capsys.readouterr().err
    assert repair(tmp_path / "nowhere", "--yes") == 4


@pytest.mark.parametrize("arguments", [[], ["--yes", "--dry-run"]])
def test_one_of_dry_run_and_yes_must_be_chosen(arguments: list[str], store: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        repair(store, *arguments)
    assert ended.value.code == 2
