from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiver_actors.cli.main import main
from tests.unit.cli.examples import run_examples
from tests.unit.store.inspection.stores import (
    ACTIVE,
    CORE,
    CURSOR,
    ENGINE,
    ENTRY_BYTES,
    GOLDEN,
    PROGRESS,
    ROTATED,
    SEGMENT,
    flip,
)


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main(["inspect", *arguments]) == code
    return capsys.readouterr().out


def test_examples_run(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("inspect", capsys, store, tmp_path / "out")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (ACTIVE, ["log header", "segment_seq", "log entries", "0: 5 rows", "zeroes behind", "sequences 13 to 16"]),
        (
            SEGMENT,
            ["sealed in place: 3 bundles", "trailer", "directory_offset", "number: int64; text: string", "0:0/2"],
        ),
        (PROGRESS, ["subscriber exporter", "oldest incomplete segment 1", "1/3", "#..", "CRC-32C"]),
        (CURSOR, ["wal_position", "crc32"]),
        (CORE, ["incarnation", "next_segment_seq_reserved", "clean_shutdown"]),
    ],
)
def test_healthy_files_show_what_they_hold(
    healthy_store: Path, path: str, wanted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown([str(healthy_store / path)], capsys)
    assert [word for word in wanted if word not in text] == []
    assert "DAMAGE" not in text
    assert "expected" not in text


def test_files_of_the_rust_implementation_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown([str(GOLDEN / "quiver-v1"), "--limit", "100"], capsys)
    for wanted in ("contiguous: 3 bundles", "contiguous: 2 bundles", "subscriber sub-a", "30: 5 rows, 31: 4 rows"):
        assert wanted in text.replace("31: 4 rows, 30: 5 rows", "30: 5 rows, 31: 4 rows")
    assert "not to be trusted" in text


def test_directory_shows_every_file(healthy_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown([str(healthy_store)], capsys)
    files = [str(path) for path in healthy_store.rglob("*") if path.is_file()]
    assert [file for file in files if f"{file}: " not in text] == []
    document = json.loads(shown([str(healthy_store), "--json"], capsys))
    assert sorted(view["path"] for view in document["files"]) == sorted(files)


def test_limit_cuts_lists_and_says_so(healthy_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown([str(healthy_store / SEGMENT), "--limit", "1"], capsys)
    assert text.count("... 2 more") == 2
    view = json.loads(shown([str(healthy_store / SEGMENT), "--limit", "0", "--json"], capsys))["files"][0]
    assert view["segment"]["bundle_count"] == 3
    assert "bundles" not in view["segment"]


def test_damaged_file_shows_where_it_breaks_and_goes_on(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / ROTATED, 121 + ENTRY_BYTES + 300)
    flip(store / ROTATED, 32)
    text = shown([str(store / ROTATED)], capsys, 5)
    assert f"damaged: bytes {121 + ENTRY_BYTES} to {121 + 2 * ENTRY_BYTES}" in text
    assert f"byte {121 + ENTRY_BYTES}: bytes" in text
    assert "<- expected 0x" in text
    assert text.count("0: 5 rows") == 3


def test_json_names_offset_expected_and_found(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / CORE, 0)
    document = json.loads(shown([str(store / CORE), "--json"], capsys, 5))
    assert document["schema_version"] == 1
    (view,) = document["files"]
    assert (view["kind"], view["recognised_by"]) == ("core file", "name")
    magic = view["fields"][0]
    assert (magic["offset"], magic["name"], magic["expected"]) == (0, "magic", "QUIVER\\x00C")
    assert view["findings"][0]["offset"] == 0


def test_unreadable_file_of_a_directory_does_not_stop_the_others(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / ENGINE / "quiver.sub.link").symlink_to(store / CORE)
    text = shown([str(store)], capsys, 5)
    assert "quiver.sub.link: unknown" in text
    assert "cannot be read" in text
    assert f"{store / CURSOR}: cursor" in text


@pytest.mark.parametrize("limit", ["-1", "many", ""])
def test_limit_must_be_a_number(limit: str, store: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(store), "--limit", limit])
    assert ended.value.code == 2


def test_missing_file_has_a_code_of_its_own(tmp_path: Path) -> None:
    assert main(["inspect", str(tmp_path / "nowhere")]) == 4
