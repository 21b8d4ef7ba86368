from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quiver_actors
from quiver_actors.cli.commands.export import Files, LeftOut, Range, export_range
from quiver_actors.cli.main import main
from quiver_actors.errors import UnsupportedType
from tests.support.archived import ArchiveWriter, hole, sealed_segments
from tests.unit.cli.examples import run_examples
from tests.unit.embedded.batches import until
from tests.unit.store.inspection.stores import ACTIVE, CORE, ENTRY_BYTES, ROTATED, SEGMENT, flip
from tests.unit.store.segment.logfile import contiguous


def export(path: Path, *arguments: str) -> int:
    return main(["export-segment", str(path), *arguments])


def test_examples_run(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("export-segment", capsys, store, tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "0000000000000001-slot0-stream0.arrow",
        "quiver.wal-slot0-stream0.parquet",
        "quiver.wal-slot0-stream1.parquet",
    ]


def test_files_go_to_the_current_directory_unless_told(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(store / SEGMENT, "--format", "parquet") == 0
    assert capsys.readouterr().out == "./0000000000000001-slot0-stream0.parquet: 15 rows of 3 bundles\n"
    assert pq.read_table(tmp_path / "0000000000000001-slot0-stream0.parquet").num_rows == 15


def test_json_lists_streams(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(store / ACTIVE, "--out", str(tmp_path / "out"), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["format"], document["findings"]) == (1, "arrow", [])
    assert [(s["slot_id"], s["stream_id"], s["row_count"]) for s in document["streams"]] == [(0, 0, 15), (0, 1, 3)]


def test_damage_is_told_and_the_rest_exported(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(store / ROTATED, 121 + ENTRY_BYTES + 300)
    assert export(store / ROTATED, "--out", str(tmp_path / "out")) == 5
    shown = capsys.readouterr()
    assert "15 rows of 3 bundles" in shown.out
    assert f"byte {121 + ENTRY_BYTES}" in shown.err


def test_unsupported_type_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = pa.record_batch({"runs": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))})
    path = tmp_path / "0000000000000003.qseg"
    path.write_bytes(contiguous([{2: runs}]))
    assert export(path, "--format", "parquet", "--out", str(tmp_path / "out")) == 2
    assert "use --format arrow" in capsys.readouterr().err


def test_wrong_files_are_usage_errors(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "out")
    assert export(store / CORE, "--out", output) == 2
    assert export(store, "--out", output) == 2
    assert export(store / SEGMENT, "--out", output) == 0
    assert export(store / SEGMENT, "--out", output) == 2
    assert "already" in capsys.readouterr().err
    assert export(store / "nowhere", "--out", output) == 4


def test_a_slot_that_is_called_like_the_second_schema_of_another_has_a_file_of_its_own(tmp_path: Path) -> None:
    """`quiver export` wrote both to one file, of which only one was left."""
    batches = [pa.record_batch({"n": [1]}), pa.record_batch({"n": ["two"]}), pa.record_batch({"n": [3.5]})]
    with Files(str(tmp_path), "t", "parquet") as files:
        for slot, batch in zip(("x", "x", "x-2"), batches, strict=True):
            files.write(slot, batch)
        files.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t-x-2-2.parquet", "t-x-2.parquet", "t-x.parquet"]
    assert [pq.read_table(path).column("n").to_pylist() for path in files.written] == [[1], ["two"], [3.5]]


def test_a_slot_that_is_called_like_a_path_has_a_file_in_the_directory(tmp_path: Path) -> None:
    batches = [pa.record_batch({"n": [1]}), pa.record_batch({"n": [2]})]
    with Files(str(tmp_path), "t", "parquet") as files:
        for slot, batch in zip(("page/../home", "page_.._home"), batches, strict=True):
            files.write(slot, batch)
        files.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t-page_.._home-2.parquet", "t-page_.._home.parquet"]


@pytest.mark.parametrize("command", ["export", "tail"])
def test_a_slot_that_only_looks_like_a_number_is_a_name(command: str, tmp_path: Path) -> None:
    """Regression: such a slot was a traceback."""
    arguments = [command, "clicks", "--slot", "\N{SUPERSCRIPT TWO}", "--run-dir", str(tmp_path / "none")]
    assert main(arguments + (["--out", str(tmp_path)] if command == "export" else [])) == 3


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_bundles_with_dictionaries_of_their_own_go_to_one_file(tmp_path: Path, file_format: str) -> None:
    """Dictionaries that differ between batches are written to one file; as Arrow, the second one used to be a traceback."""
    texts = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["c", None])]
    batches = [
        pa.record_batch({"flat": array, "deep": pa.ListArray.from_arrays([0, 1, 2], array)}, metadata={"k": "v"})
        for array in texts
    ]
    with Files(str(tmp_path), "t", file_format) as files:
        for batch in batches:
            files.write("x", batch)
        files.finish()
    path = tmp_path / f"t-x.{file_format}"
    table = pq.read_table(path) if file_format == "parquet" else pa.ipc.open_file(path).read_all()
    assert table["flat"].to_pylist() == ["a", "b", "c", None]
    assert table["deep"].to_pylist() == [["a"], ["b"], ["c"], [None]]
    assert table.schema.metadata[b"k"] == b"v"


def test_what_an_arrow_file_cannot_hold_is_told(tmp_path: Path) -> None:
    texts = pa.array(["a"], pa.string_view())
    batch = pa.record_batch({"n": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), texts)})
    with Files(str(tmp_path), "t", "arrow") as files, pytest.raises(UnsupportedType, match="slot x"):
        files.write("x", batch)


def export_archived(directory: Path, *arguments: str) -> int:
    return main(
        ["export", "default", "--archive", f"file://{directory}/archive", "--out", str(directory / "out"), *arguments]
    )


def test_segments_that_are_deleted_meanwhile_are_passed_over_and_the_rest_is_exported(tmp_path: Path) -> None:
    with quiver_actors.open(tmp_path / "data") as store, Files(str(tmp_path), "default", "arrow") as files:
        for number in range(3):
            store.push_many([pa.record_batch({"id": [2 * number]}), pa.record_batch({"id": [2 * number + 1]})])
            store.flush()
        found = store.readable()[0].infos
        assert len(found) == 3
        with store.subscribe("reader", start="earliest") as deliveries:
            for delivery in deliveries.get_many(2, 30):
                delivery.ack()
            deliveries.flush()
        until(lambda: len(store.readable()[0].infos) == 2, "the first segment is deleted")
        assert export_range(store, "default", Range(0, found, 0), None, files) == LeftOut(deleted_segments=1)
        files.finish()
    (path,) = files.written
    assert pa.ipc.open_file(path).read_all()["id"].to_pylist() == [2, 3, 4, 5]


def test_an_archive_is_exported_without_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [[pa.record_batch({"n": [seq, index]}) for index in range(3)] for seq in range(2)]
    contents = sealed_segments(tmp_path / "store", batches)
    ArchiveWriter(f"file://{tmp_path}/archive").archive(dict(enumerate(contents)))
    assert export_archived(tmp_path) == 0
    table = pq.read_table(tmp_path / "out" / "default-0.parquet")
    assert table["n"].to_pylist() == [value for seq in range(2) for index in range(3) for value in (seq, index)]
    assert "default-0.parquet: 12 rows" in capsys.readouterr().out


def test_holes_of_an_archive_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (content,) = sealed_segments(tmp_path / "store", [[pa.record_batch({"n": [1]})]])
    ArchiveWriter(f"file://{tmp_path}/archive").archive({0: content}, [hole(1, 0, 4)])
    assert export_archived(tmp_path, "--json") == 5
    document = json.loads(capsys.readouterr().out)
    assert (document["lost_bundles"], [each["rows"] for each in document["files"]]) == (4, [1])


def test_what_does_not_go_with_an_archive_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export_archived(tmp_path, "--flush") == 2
    assert export_archived(tmp_path, "--data-dir", str(tmp_path)) == 2
    assert export_archived(tmp_path) == 2
    assert main(["export", "default", "--node", "a", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "does not go with --flush" in shown
    assert "does not go with --data-dir" in shown
    assert "there is no archive at" in shown
    assert "it goes with --archive" in shown


def test_who_looks_into_an_archive_that_is_not_there_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, restored = f"file://{tmp_path}/typo", str(tmp_path / "data")
    for command in (["archive", "ls"], ["restore", "--node", "a", "--data-dir", restored, "--yes"]):
        assert main([*command, "--archive", url]) == 2
        assert f"there is no archive at {url}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
