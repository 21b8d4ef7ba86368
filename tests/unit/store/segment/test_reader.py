"""The reader on damaged, foreign and contiguous segments."""

from __future__ import annotations

import random
import struct
import zlib

import pyarrow as pa
import pytest

from quiver_actors.errors import (
    ArrowError,
    ChecksumMismatch,
    FormatError,
    InvalidFormat,
    SlotNotInBundle,
    StreamNotFound,
    Truncated,
    UnsupportedVersion,
)
from quiver_actors.store.segment import codec
from quiver_actors.store.segment.arrow_file import FILE_START, encode_footer
from quiver_actors.store.segment.layout import EXTENSION, FOOTER, STREAMS_MAX, TRAILER
from quiver_actors.store.segment.reader import SegmentReader, read_footer
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import LogFile

TWO_SLOTS = {1: batches.plain(4), 6: batches.one_column(batches.dictionary(["a", "b"], [0, 1]))}


def sealed() -> bytes:
    log = LogFile()
    for n in range(3):
        log.push(TWO_SLOTS, item_count=n)
    return log.seal()


def assemble(
    streams: bytes, directory: pa.RecordBatch, manifest: pa.RecordBatch, *, version: int = 1, extra: bytes = b""
) -> bytes:
    """A segment from parts, as another implementation might write it."""
    tables = [encode_table(batch) for batch in (directory, manifest)]
    offset = len(streams)
    footer = FOOTER.pack(version, 1, 1, offset, len(tables[0]), offset + len(tables[0]), len(tables[1])) + extra
    data = streams + b"".join(tables) + footer + struct.pack("<I8s", len(footer), b"QUIVER\0S")
    return data + struct.pack("<I", zlib.crc32(data))


def encode_table(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


STREAM = encode_table(batches.plain(4))
REF = pa.struct(
    [
        pa.field(n, t, nullable=False)
        for n, t in (("slot_id", pa.uint16()), ("stream_id", pa.uint32()), ("chunk_index", pa.uint32()))
    ]
)


def directory(**changes: object) -> pa.RecordBatch:
    row: dict[str, object] = {
        "stream_id": 0,
        "slot_id": 1,
        "schema_fingerprint": bytes(32),
        "byte_offset": 0,
        "byte_length": len(STREAM),
        "row_count": 4,
        "chunk_count": 1,
    }
    return pa.RecordBatch.from_pylist([row | changes], schema=codec.DIRECTORY_SCHEMA)


def manifest(refs: list[dict[str, int]] | None = None, **more: pa.Array) -> pa.RecordBatch:
    refs = [{"slot_id": 1, "stream_id": 0, "chunk_index": 0}] if refs is None else refs
    columns: dict[str, pa.Array] = {
        "unknown": pa.array(["ignored"]),
        "slot_refs": pa.array([refs], pa.list_(pa.field("item", REF, nullable=True))),
        "bundle_index": pa.array([0], pa.uint32()),
    }
    return pa.record_batch({name: column for name, column in (columns | more).items() if column is not None})


def test_foreign_segment_with_few_and_unknown_columns() -> None:
    reader = SegmentReader(assemble(STREAM, directory(), manifest(), extra=b"??"))
    reader.verify_checksum()
    assert reader.footer.extension is None
    assert reader.bundle(0)[1].equals(batches.plain(4))
    assert [reader.item_count(0), reader.byte_count(0), reader.sequence(0), reader.ingestion_ts(0)] == [None] * 4
    assert reader.row_count == 4


@pytest.mark.parametrize("known", [pa.array([7], pa.uint64()), pa.array([None], pa.uint64())])
def test_item_count_may_be_nullable(known: pa.Array) -> None:
    reader = SegmentReader(assemble(STREAM, directory(), manifest(item_count=known)))
    assert reader.item_count(0) == known[0].as_py()


def test_columns_of_the_wrong_type_or_with_nulls_are_refused() -> None:
    large = pa.array([[]], pa.large_list(REF))
    wrong_refs = pa.array([[{"slot_id": 1, "stream_id": 0, "chunk_index": 0}]])
    wrong = [
        manifest(item_count=pa.array([7], pa.int64())),
        manifest(bundle_index=pa.array([0], pa.uint64())),
        manifest(bundle_index=pa.array([None], pa.uint32())),
        manifest(bundle_index=pa.array([1], pa.uint32())),
        manifest(bundle_index=None),
        manifest(slot_refs=None),
        manifest(slot_refs=large),
        manifest(slot_refs=wrong_refs),
        manifest(slot_refs=pa.array([None], pa.list_(REF))),
        manifest(slot_refs=pa.array([[None]], pa.list_(REF))),
        manifest([{"slot_id": n, "stream_id": 0, "chunk_index": 0} for n in range(65)]),
    ]
    for batch in wrong:
        with pytest.raises(InvalidFormat):
            SegmentReader(assemble(STREAM, directory(), batch))


def test_directory_must_be_complete_and_unambiguous() -> None:
    good = directory()
    for wrong in (good.drop_columns(["row_count"]), pa.concat_batches([good, good])):
        with pytest.raises(InvalidFormat):
            SegmentReader(assemble(STREAM, wrong, manifest()))


def test_broken_reference_costs_its_bundle_and_says_which() -> None:
    cases: list[tuple[bytes, type[FormatError]]] = [
        (assemble(STREAM, directory(), manifest([{"slot_id": 1, "stream_id": 5, "chunk_index": 0}])), StreamNotFound),
        (assemble(STREAM, directory(), manifest([{"slot_id": 1, "stream_id": 0, "chunk_index": 1}])), StreamNotFound),
        (assemble(STREAM, directory(byte_length=1 << 40), manifest()), InvalidFormat),
        (assemble(STREAM, directory(byte_length=len(STREAM) - 8), manifest()), ArrowError),
        (assemble(STREAM, directory(byte_length=12), manifest()), Truncated),
    ]
    for data, error in cases:
        reader = SegmentReader(data, segment_seq=12)
        with pytest.raises(error, match="segment 12: "):
            reader.bundle(0)


def test_limits_of_a_stream_are_checked_before_it_is_opened() -> None:
    blocks = struct.pack("<qiiq", 8, 8, 0, 0) * 10_001
    schema = batches.plain().schema.serialize().to_pybytes()
    stream = b"".join((FILE_START, *encode_footer(schema, blocks, b"")))
    reader = SegmentReader(assemble(stream, directory(byte_length=len(stream)), manifest()))
    with pytest.raises(InvalidFormat, match="10001"):
        reader.bundle(0)


def test_directory_over_the_limit_is_refused() -> None:
    rows = STREAMS_MAX + 1
    columns = [pa.array(range(rows), pa.uint32()), *(pa.repeat(column[0], rows) for column in directory().columns[1:])]
    many = pa.RecordBatch.from_arrays(columns, schema=codec.DIRECTORY_SCHEMA)
    with pytest.raises(InvalidFormat, match="100000"):
        SegmentReader(assemble(STREAM, many, manifest()))


def test_files_that_are_no_segments() -> None:
    good = sealed()
    for data, error in (
        (b"", Truncated),
        (good[-15:], Truncated),
        (bytes(64), InvalidFormat),
        (good[:-1], InvalidFormat),
        (good[-200:], InvalidFormat),
        (assemble(STREAM, directory(), manifest(), version=2), UnsupportedVersion),
    ):
        with pytest.raises(error):
            SegmentReader(data)
    tiny_footer = bytes(20) + struct.pack("<H", 1) + struct.pack("<I8sI", 2, b"QUIVER\0S", 0)
    with pytest.raises(InvalidFormat, match="34"):
        SegmentReader(tiny_footer)


def test_longer_extension_of_a_later_release_is_read_as_far_as_known() -> None:
    log = LogFile()
    log.push(TWO_SLOTS)
    data = log.seal()
    footer_at = len(data) - TRAILER.size - FOOTER.size - EXTENSION.size
    known = bytearray(data[footer_at : -TRAILER.size])
    struct.pack_into("<H", known, FOOTER.size, EXTENSION.size + 6)
    longer = data[:footer_at] + known + b"future" + struct.pack("<I8s", len(known) + 6, b"QUIVER\0S")
    longer += struct.pack("<I", zlib.crc32(longer))
    assert SegmentReader(longer).footer.extension == SegmentReader(data).footer.extension


def test_flipped_bit_anywhere_is_found_by_the_checksum() -> None:
    data = sealed()
    rng = random.Random(3)
    for at in [0, 10, 63, 64, *rng.sample(range(len(data) - 200), 40)]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        try:
            reader = SegmentReader(bytes(damaged), segment_seq=4)
        except FormatError:
            continue
        with pytest.raises(ChecksumMismatch, match="segment 4"):
            reader.verify_checksum()


def test_damaged_tail_raises_nothing_but_format_errors() -> None:
    data = sealed()
    start = SegmentReader(data).footer.directory_offset
    rng = random.Random(11)
    for at in range(start - 600, len(data)):
        damaged = bytearray(data)
        damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, damaged[at] ^ 1])
        try:
            reader = SegmentReader(bytes(damaged))
            for index in range(reader.bundle_count):
                reader.bundle(index)
        except FormatError:
            pass


def test_read_footer_touches_only_the_end() -> None:
    data = sealed()
    calls: list[tuple[int, int]] = []

    def pread(size: int, offset: int) -> bytes:
        calls.append((size, offset))
        return data[offset : offset + size]

    assert read_footer(pread, len(data)) == SegmentReader(data).footer
    size = TRAILER.size + FOOTER.size + EXTENSION.size
    assert calls == [(size, len(data) - size)]


def test_read_footer_that_is_longer_than_ours_takes_a_second_look() -> None:
    data = assemble(STREAM, directory(), manifest(), extra=bytes(500))
    footer = read_footer(lambda size, offset: data[offset : offset + size], len(data))
    assert (footer.directory_offset, footer.extension) == (len(STREAM), None)


def test_projection_touches_only_the_wanted_slots() -> None:
    reader = SegmentReader(sealed())
    assert list(reader.bundle(1, {6})) == [6]
    assert reader.bundle(1, (2, 3)) == {}
    assert list(reader.bundle(1, [6, 1, 40])) == [1, 6]
    assert reader.batch(2, 1).equals(TWO_SLOTS[1])
    with pytest.raises(SlotNotInBundle, match=r"\[1, 6\]"):
        reader.batch(2, 5)


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_bundle_that_does_not_exist(index: int) -> None:
    reader = SegmentReader(sealed())
    for ask in (reader.bundle, reader.item_count, reader.manifest.slot_ids, reader.sequence):
        with pytest.raises(IndexError):
            ask(index)


def test_any_buffer_will_do() -> None:
    data = sealed()
    for memory in (data, memoryview(data), memoryview(bytearray(data)), memoryview(b"x" + data)[1:]):
        assert SegmentReader(memory).batch(0, 1).equals(TWO_SLOTS[1])


def test_schema_without_reading_a_bundle() -> None:
    reader = SegmentReader(sealed())
    assert [reader.schema(stream.stream_id) for stream in reader.streams] == [b.schema for b in TWO_SLOTS.values()]
    with pytest.raises(StreamNotFound):
        reader.schema(9)
