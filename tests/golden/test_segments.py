"""Segments written by the Rust implementation return exactly what their README says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.store.segment.arrow_ipc import walk_stream
from quiver_actors.store.segment.reader import SegmentReader, read_footer
from tests.golden.parser import Log, parse_cursor, parse_log, parse_progress, parse_segment

DATA = Path(__file__).parent / "data"
DIRECTORIES = ["quiver-v1", "quiver-v1-rotated"]
SEGMENTS = [("0000000000000000.qseg", [0, 1, 2]), ("0000000000000001.qseg", [3, 4])]


def expected(i: int) -> dict[int, pa.RecordBatch]:
    """Bundle i of the README."""
    logs = pa.schema(
        [
            pa.field("ts", pa.int64(), nullable=False),
            pa.field("value", pa.int64(), nullable=False),
            pa.field("msg", pa.string()),
        ]
    )
    rows = [{"ts": 1700000000000 + k, "value": 1000 * i + k, "msg": f"{i}-{k}-xxxx"} for k in range(5)]
    keys = pa.array([f"key{i % 7}", f"key{(i + 1) % 7}", f"key{(i + 2) % 7}", None])
    attributes = pa.schema([pa.field("attr", pa.dictionary(pa.uint8(), pa.string()))])
    return {
        30: pa.RecordBatch.from_pylist(rows, schema=logs),
        31: pa.RecordBatch.from_arrays([keys.cast(attributes[0].type)], schema=attributes),
    }


def as_values(bundle: dict[int, pa.RecordBatch]) -> dict[int, dict[str, list[object]]]:
    return {slot_id: batch.to_pydict() for slot_id, batch in bundle.items()}


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize(("name", "numbers"), SEGMENTS)
def test_reader_returns_what_the_readme_says(directory: str, name: str, numbers: list[int]) -> None:
    data = (DATA / directory / "segments" / name).read_bytes()
    reader = SegmentReader(data, segment_seq=int(name[:16]))
    reader.verify_checksum()
    assert reader.bundle_count == len(numbers)
    assert reader.footer.extension is None
    assert sorted((s.slot_id, s.schema_fingerprint, s.chunk_count) for s in reader.streams) == [
        (30, b"\x30" * 32, len(numbers)),
        (31, b"\x31" * 32, len(numbers)),
    ]
    for index, i in enumerate(numbers):
        bundle = reader.bundle(index)
        assert set(bundle) == {30, 31}
        for slot_id, batch in bundle.items():
            batch.validate(full=True)
            assert batch.schema == expected(i)[slot_id].schema
        assert as_values(bundle) == as_values(expected(i))
        assert bundle[30].equals(expected(i)[30])
        assert reader.item_count(index) == 5
        assert (reader.sequence(index), reader.ingestion_ts(index), reader.byte_count(index)) == (None, None, None)


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize(("name", "numbers"), SEGMENTS)
def test_independent_parser_agrees(directory: str, name: str, numbers: list[int]) -> None:
    data = (DATA / directory / "segments" / name).read_bytes()
    segment = parse_segment(data)
    assert segment.bundles == [as_values(expected(i)) for i in numbers]
    assert segment.manifest["item_count"] == [5] * len(numbers)
    footer = read_footer(lambda size, offset: data[offset : offset + size], len(data))
    assert (footer.directory_offset, footer.bundle_count) == (segment.directory_offset, len(numbers))


def logs_of(directory: str) -> list[Log]:
    files = sorted((DATA / directory / "wal").glob("quiver.wal*"))
    return sorted(
        (parse_log(file.read_bytes()) for file in files if file.suffix != ".cursor"), key=lambda log: log.position_start
    )


@pytest.mark.parametrize(("directory", "numbers"), [("quiver-v1", range(9)), ("quiver-v1-rotated", range(3, 9))])
def test_parser_reads_the_logs(directory: str, numbers: range) -> None:
    logs = logs_of(directory)
    entries = [entry for log in logs for entry in log.entries]
    assert [entry.sequence for entry in entries] == list(numbers)
    assert [entry.bundle for entry in entries] == [as_values(expected(i)) for i in numbers]
    assert [entry.ingestion_ts_nanos for entry in entries] == [1700000000000000000 + i for i in numbers]
    assert all(list(entry.slots) == [31, 30] for entry in entries)
    assert all(log.ends_with == "end of file" for log in logs)
    assert logs[-1].position_end == 17901


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_parser_reads_cursor_and_progress(directory: str) -> None:
    cursor = parse_cursor((DATA / directory / "wal" / "quiver.wal.cursor").read_bytes())
    ends = [log.position_start + entry.end - log.header_size for log in logs_of(directory) for entry in log.entries]
    assert cursor in ends
    assert len([end for end in ends if end > cursor]) == 4
    progress = parse_progress((DATA / directory / "quiver.sub.sub-a").read_bytes())
    assert progress.resolved == {0: [True, False, True], 1: [True, False]}
    assert progress.checksum == "CRC-32"


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_walker_finds_what_the_parser_finds_in_rust_payloads(directory: str) -> None:
    """Their payloads are not aligned, and their messages are padded to 64."""
    for file in sorted((DATA / directory / "wal").glob("quiver.wal*")):
        if file.suffix == ".cursor":
            continue
        data = file.read_bytes()
        for entry in parse_log(data).entries:
            for slot in entry.slots.values():
                layout = walk_stream(data, slot.payload_at, len(data))
                assert layout.row_count == slot.row_count
                assert layout.schema_length == len(slot.payload.schema_message)
                assert (layout.batch.offset, layout.end) == (slot.payload.batch_at, slot.payload.end)
                assert len(layout.dictionaries) == (slot.slot_id == 31)


def test_parser_knows_the_examples_of_the_format_page() -> None:
    assert parse_cursor(bytes.fromhex("5155495645520054010018008000000000000000 6df90d37".replace(" ", ""))) == 128
    progress = parse_progress(
        bytes.fromhex(
            "5155495653554200 0100 2000 0000 0700000000000000 01000000 000000000000"
            " 0700000000000000 03000000 0100 0500000000000000 51d24f4f".replace(" ", "")
        )
    )
    assert (progress.oldest_incomplete_seg, progress.resolved) == (7, {7: [True, False, True]})
