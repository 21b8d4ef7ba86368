from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors.errors import FormatError, UsageError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.inspection.export import Export, export_file
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.store.inspection.stores import ACTIVE, ENTRY_BYTES, GOLDEN, ROTATED, SEGMENT, flip
from tests.unit.store.segment.logfile import LogFile, contiguous

GOLDEN_LOG = GOLDEN / "quiver-v1" / "wal" / "quiver.wal"
GOLDEN_SEGMENT = GOLDEN / "quiver-v1" / "segments" / "0000000000000000.qseg"


def exported(path: Path, output: Path, file_format: str = "arrow") -> Export:
    disk = PosixDisk(str(path.parent))
    try:
        with Tree(disk, str(path.parent)).open(path.name) as source:
            return export_file(source, str(output), file_format)
    finally:
        disk.close()


def read(file: str) -> pa.Table:
    if file.endswith(".parquet"):
        return pq.read_table(file)
    with pa.memory_map(file) as mapped, pa.ipc.open_file(mapped) as reader:
        return reader.read_all()


def batches_of(segment: Path, slot_id: int) -> list[pa.RecordBatch]:
    reader = SegmentReader(segment.read_bytes())
    return [reader.bundle(index)[slot_id] for index in range(reader.bundle_count)]


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
@pytest.mark.parametrize("made_by", ["us", "rust"])
def test_streams_of_a_segment_hold_what_its_bundles_do(
    store: Path, tmp_path: Path, made_by: str, file_format: str
) -> None:
    path, slots = (store / SEGMENT, [0]) if made_by == "us" else (GOLDEN_SEGMENT, [30, 31])
    export = exported(path, tmp_path / "out", file_format)
    assert (export.findings, export.unsupported) == ([], [])
    assert sorted(stream.slot_id for stream in export.streams) == slots
    for stream in export.streams:
        assert Path(stream.file).name.startswith(f"{path.stem}-slot{stream.slot_id}-stream{stream.stream_id}.")
        wanted = pa.Table.from_batches(batches_of(path, stream.slot_id))
        found = read(stream.file)
        assert found.to_pydict() == wanted.to_pydict()
        assert stream.row_count == found.num_rows
        if file_format == "arrow":
            assert found.schema.equals(wanted.schema, check_metadata=True)


def test_log_gives_the_streams_that_its_segment_will_have(store: Path, tmp_path: Path) -> None:
    export = exported(store / ACTIVE, tmp_path / "out")
    assert [(s.slot_id, s.stream_id, s.row_count, s.batch_count) for s in export.streams] == [
        (0, 0, 15, 3),
        (0, 1, 3, 1),
    ]
    assert read(export.streams[0].file)["number"].to_pylist() == [n for n in (13, 14, 15) for _ in range(5)]
    assert read(export.streams[1].file)["kind"].to_pylist() == ["a", "b", "a"]


def test_log_of_the_rust_implementation_gives_all_its_rows(tmp_path: Path) -> None:
    export = exported(GOLDEN_LOG, tmp_path / "out")
    assert export.findings == []
    values = [value for s in export.streams if s.slot_id == 30 for value in read(s.file)["value"].to_pylist()]
    assert values == [1000 * i + k for i in range(9) for k in range(5)] or values == [
        1000 * i for i in range(9) for _ in range(5)
    ]
    attributes = [value for s in export.streams if s.slot_id == 31 for value in read(s.file)["attr"].to_pylist()]
    assert len(attributes) == 9 * 4


def test_damaged_entry_of_a_log_is_left_out_and_told(store: Path, tmp_path: Path) -> None:
    flip(store / ROTATED, 121 + ENTRY_BYTES + 300)
    export = exported(store / ROTATED, tmp_path / "out")
    assert [finding.offset for finding in export.findings] == [121 + ENTRY_BYTES]
    assert read(export.streams[0].file)["number"].to_pylist() == [n for n in (9, 11, 12) for _ in range(5)]


def test_damaged_header_of_a_log_costs_nothing(store: Path, tmp_path: Path) -> None:
    flip(store / ROTATED, 12)
    export = exported(store / ROTATED, tmp_path / "out")
    assert export.findings == []
    assert export.streams[0].row_count == 20


def test_segment_with_a_damaged_tail_is_read_by_its_entries(store: Path, tmp_path: Path) -> None:
    flip(store / SEGMENT, -10)
    export = exported(store / SEGMENT, tmp_path / "out")
    assert [finding.code for finding in export.findings] == ["export.missing"]
    assert read(export.streams[0].file)["number"].to_pylist() == [n for n in (3, 4, 5) for _ in range(5)]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_batch_with_wrong_values_is_left_out_and_told(tmp_path: Path, is_compacted: bool) -> None:
    log = LogFile()
    for number in range(4):
        log.push({7: pa.record_batch({"id": pa.array([number * 100 + row for row in range(20)])})})
    data = bytearray(log.compacted() if is_compacted else log.seal())
    at = data.index((210).to_bytes(8, "little"))
    data[at : at + 4] = b"\x2a" * 4
    path = tmp_path / "0000000000000007.qseg"
    path.write_bytes(bytes(data))
    export = exported(path, tmp_path / "out")
    assert (export.streams[0].batch_count, export.streams[0].left_out) == (3, 1)
    assert ["bundle 2 is damaged" in finding.message for finding in export.findings] == [True]
    assert read(export.streams[0].file)["id"].to_pylist() == [n * 100 + row for n in (0, 1, 3) for row in range(20)]


def test_batch_that_cannot_be_decoded_is_left_out_and_told(tmp_path: Path) -> None:
    batches = [pa.record_batch({"text": pa.array([f"{n}-{row}" for row in range(4)])}) for n in range(3)]
    data = bytearray(contiguous({7: batch} for batch in batches))
    offsets = b"".join(value.to_bytes(4, "little") for value in (0, 3, 6, 9, 12))
    second = data.index(offsets, data.index(offsets) + 1)
    data[second : second + 8] = (1 << 30).to_bytes(8, "little")
    path = tmp_path / "0000000000000003.qseg"
    path.write_bytes(bytes(data))
    export = exported(path, tmp_path / "out")
    (stream,) = export.streams
    assert (stream.batch_count, stream.left_out) == (2, 1)
    assert "chunk 1" in export.findings[0].message
    assert read(stream.file)["text"].to_pylist() == [f"{n}-{row}" for n in (0, 2) for row in range(4)]


def test_type_that_parquet_lacks_is_told_and_others_are_exported(tmp_path: Path) -> None:
    plain = pa.record_batch({"x": [1, 2]})
    odd = pa.record_batch({"runs": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"]))})
    path = tmp_path / "0000000000000003.qseg"
    path.write_bytes(contiguous([{1: plain, 2: odd}]))
    export = exported(path, tmp_path / "out", "parquet")
    assert [stream.slot_id for stream in export.streams] == [1]
    assert len(export.unsupported) == 1
    assert "slot 2" in export.unsupported[0]
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["0000000000000003-slot1-stream0.parquet"]
    assert len(exported(path, tmp_path / "arrow").streams) == 2


def test_nothing_is_overwritten(store: Path, tmp_path: Path) -> None:
    exported(store / SEGMENT, tmp_path / "out")
    (file,) = (tmp_path / "out").iterdir()
    before = file.stat().st_mtime_ns
    with pytest.raises(UsageError, match="already"):
        exported(store / SEGMENT, tmp_path / "out")
    assert file.stat().st_mtime_ns == before


def test_other_files_are_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_bytes(b"hello")
    with pytest.raises(UsageError, match="expected a segment or a log"):
        exported(tmp_path / "note.txt", tmp_path / "out")
    empty = tmp_path / "quiver.wal"
    empty.write_bytes((store / ACTIVE).read_bytes()[:121])
    with pytest.raises(UsageError, match="no valid entry"):
        exported(empty, tmp_path / "out")
    broken = tmp_path / "0000000000000001.qseg"
    broken.write_bytes(GOLDEN_SEGMENT.read_bytes()[2000:])
    with pytest.raises(FormatError):
        exported(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()
