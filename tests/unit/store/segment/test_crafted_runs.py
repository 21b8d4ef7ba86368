"""Segments that were written wrong, or by others, with right checksums: what fits no run is in none, and nothing is raised for it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError, ChecksumMismatch, StreamNotFound
from quiver_actors.store.segment.arrow_file import BLOCK, FILE_START, encode_footer
from quiver_actors.store.segment.checked import CheckedReader
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.runs import BODY_BYTES_MAX, RunReader
from tests.unit.store.segment import schemas
from tests.unit.store.segment.logfile import LogFile, encode_stream, fingerprint_of
from tests.unit.store.segment.test_reader import assemble, directory, manifest
from tests.unit.store.segment.test_runs import bundles_of, check_runs, flipped, log_of, numbers, place_of

ALIKE = 20
"""Bundles that are one run."""


def single(n: int, rows: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(n, n + rows))})


def with_schema(change: Callable[[bytes], bytes]) -> bytes:
    """A sealed segment of bundles that would be a run, the schema of whose stream's footer was changed before the checksum was taken."""
    content = log_of([{1: single(n)} for n in range(ALIKE)]).seal()
    message = single(0).schema.serialize().to_pybytes()
    at = content.rindex(message[8:])
    changed = content[:at] + change(message)[8:] + content[at + len(message) - 8 :]
    return changed[:-4] + struct.pack("<I", zlib.crc32(changed[:-4]))


def with_payloads(change: Callable[[bytes], bytes]) -> CheckedReader:
    """A reader of bundles that would be a run, but whose payloads were changed before they were stored."""
    log = LogFile()
    for n in range(ALIKE):
        batch = numbers(n)
        log.push_payloads({1: change(encode_stream(batch))}, {1: fingerprint_of(batch.schema)}, {1: 10})
    return CheckedReader(log.seal())


# --- streams -----------------------------------------------------------------------------------------------------------------


def test_a_stream_whose_values_are_stored_the_other_way_round_is_left_to_arrow() -> None:
    reader = CheckedReader(with_schema(schemas.big_endian))
    assert reader.runs(range(ALIKE)) == []
    values = np.arange(3, 13).byteswap().tolist()
    assert reader.bundle(3)[1].column(0).to_pylist() == values


@pytest.mark.parametrize("change", [schemas.without_its_fields, schemas.with_a_vtable_nowhere])
def test_a_schema_that_cannot_be_read_is_left_to_the_reader_of_single_bundles(change: Callable[[bytes], bytes]) -> None:
    reader = CheckedReader(with_schema(change))
    assert reader.runs(range(ALIKE)) == []
    with pytest.raises(ArrowError, match="stream 0 cannot be read"):
        reader.bundle(0)


@pytest.mark.parametrize("lost_bytes", [None, 8, -(1 << 40)], ids=["no entry", "cut off", "longer than the file"])
def test_a_directory_that_does_not_fit_its_file_gives_no_runs(lost_bytes: int | None) -> None:
    content = log_of([{1: numbers(n)} for n in range(ALIKE)]).seal()
    reader = SegmentReader(content)
    (info,) = reader.streams
    assert len(RunReader(memoryview(content), {0: info}, reader.manifest, reader.check).read(range(ALIKE))) == 1
    streams = {} if lost_bytes is None else {0: info._replace(byte_length=info.byte_length - lost_bytes)}
    assert RunReader(memoryview(content), streams, reader.manifest, reader.check).read(range(ALIKE)) == []


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_chunk_that_its_stream_lacks_is_in_no_run(count: int) -> None:
    schema, message = single(0).schema.serialize().to_pybytes(), single(0).serialize().to_pybytes()
    block = BLOCK.pack(len(FILE_START) + len(schema), len(message) - 80, 0, 80)
    stream = b"".join((FILE_START, schema, message, *encode_footer(schema, b"", count * block)))
    refs = [{"slot_id": 1, "stream_id": 0, "chunk_index": 1}]
    reader = SegmentReader(assemble(stream, directory(byte_length=len(stream)), manifest(refs)))
    if count == 2:
        assert check_runs(reader, [0] * ALIKE) == list(range(ALIKE))
        return
    assert reader.runs([0] * ALIKE) == []
    with pytest.raises(StreamNotFound, match="none at 1"):
        reader.bundle(0)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_views_are_in_no_run(kind: pa.DataType) -> None:
    batch = pa.record_batch({"a": pa.array(["x", "y"], kind)})
    assert CheckedReader(log_of([{1: batch}] * ALIKE).seal()).runs(range(ALIKE)) == []


def test_a_slot_that_has_no_runs_keeps_others_from_them_only_where_it_is_read() -> None:
    texts = pa.record_batch({"text": ["a"]})
    reader = CheckedReader(log_of([{1: texts, 2: numbers(n)} for n in range(ALIKE)]).seal())
    for _ in range(2):
        assert check_runs(reader, range(ALIKE)) == []
        assert check_runs(reader, range(ALIKE), {2}) == list(range(ALIKE))


def test_damage_of_the_bundle_by_which_a_stream_is_opened_is_not_remembered() -> None:
    whole = log_of([{1: numbers(n)} for n in range(2 * ALIKE)]).seal()
    reader = CheckedReader(flipped(whole, place_of(whole, 0)))
    assert reader.runs(range(2 * ALIKE)) == []
    with pytest.raises(ChecksumMismatch):
        reader.bundle(0)
    assert check_runs(reader, range(1, 2 * ALIKE)) == list(range(2 * ALIKE - 1))


# --- bundles -----------------------------------------------------------------------------------------------------------------


def test_a_large_bundle_in_front_of_small_ones_is_read_by_itself() -> None:
    large = single(0, BODY_BYTES_MAX // 8 + 1)
    reader = CheckedReader(log_of([{1: large}, *({1: single(n)} for n in range(2 * ALIKE))]).seal())
    assert reader.runs(range(2 * ALIKE + 1)) == []
    assert check_runs(reader, range(1, 2 * ALIKE + 1)) == list(range(2 * ALIKE))


def test_batches_of_one_size_that_are_laid_out_otherwise_are_in_no_run() -> None:
    nulls = pa.record_batch({"id": pa.array([None, *range(8)], pa.int64())})
    assert pa.ipc.get_record_batch_size(nulls) == pa.ipc.get_record_batch_size(single(0))
    reader = CheckedReader(log_of([{1: single(n)} for n in range(ALIKE)] + [{1: nulls}] * ALIKE).seal())
    assert check_runs(reader, range(2 * ALIKE)) == list(range(ALIKE))
    assert reader.bundle(2 * ALIKE - 1)[1] == nulls


def test_damaged_metadata_of_the_first_of_many_keeps_the_run_in_front_of_it() -> None:
    sizes = [10] * ALIKE + [11] * ALIKE
    whole = log_of([{1: numbers(n, size)} for n, size in enumerate(sizes)]).seal()
    metadata_bytes = int.from_bytes(numbers(ALIKE, 11).serialize()[4:8].to_pybytes(), "little")
    reader = CheckedReader(flipped(whole, place_of(whole, ALIKE) - metadata_bytes + 3))
    assert check_runs(reader, range(ALIKE)) == list(range(ALIKE))
    assert bundles_of(reader.runs(range(2 * ALIKE))) == list(range(ALIKE))
    with pytest.raises(ChecksumMismatch):
        reader.bundle(ALIKE)


@pytest.mark.parametrize(
    "place",
    [(88, 80), (-8, 80), (80, 72), (80, -8), (1 << 62, 80), (80, 1 << 62)],
    ids=["behind the end", "before the start", "too short", "negative", "far away", "far too long"],
)
def test_values_outside_of_the_body_are_never_read(place: Sequence[int]) -> None:
    def change(payload: bytes) -> bytes:
        at = payload.rindex(struct.pack("<qq", 80, 80))  # where the second column's values are
        return payload[:at] + struct.pack("<qq", *place) + payload[at + 16 :]

    assert len(with_payloads(bytes).runs(range(ALIKE))) == 1
    assert with_payloads(change).runs(range(ALIKE)) == []


def test_more_layouts_than_are_remembered_are_read_all_the_same() -> None:
    count = 1030
    schema = pa.schema([("a", pa.int8())])
    log = log_of([{1: pa.record_batch([np.full(n + 1, n % 100, np.int8)], schema)} for n in range(count)])
    reader = SegmentReader(log.seal())
    runs = reader.runs([index for index in range(count) for _ in range(16)])
    assert [run.first for run in runs] == list(range(0, 16 * count, 16))
    for index, run in enumerate(runs):
        assert run.row_counts == {1: index + 1}
        assert run.batches[1].num_rows == 16 * (index + 1)
        assert run.batches[1].column(0).unique().to_pylist() == [index % 100]
