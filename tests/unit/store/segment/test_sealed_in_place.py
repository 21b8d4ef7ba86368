"""What was pushed is what is read from a log file that was sealed in place."""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.store.segment.reader import SegmentReader
from tests.golden.parser import parse_log, parse_segment
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import HEADER_BYTES, INCARNATION, POSITION_START, TIME, LogFile, fingerprint_of


def assert_reads_back(log: LogFile, reader: SegmentReader) -> None:
    reader.verify_checksum()
    assert reader.bundle_count == len(log.pushed)
    for index, pushed in enumerate(log.pushed):
        bundle = reader.bundle(index)
        assert list(bundle) == list(pushed)
        for slot_id, batch in bundle.items():
            batch.validate(full=True)
            assert batch.schema.equals(pushed[slot_id].schema, check_metadata=True)
            assert batch.num_rows == pushed[slot_id].num_rows
            assert batch.equals(pushed[slot_id])


@pytest.mark.parametrize("make", batches.EVERY, ids=lambda make: make.__name__)
def test_every_kind_of_batch_reads_back_equal(make: Callable[[], pa.RecordBatch]) -> None:
    log = LogFile()
    log.push({3: make()})
    log.push({3: batches.plain(), 9: make()}, item_count=4)
    log.push({3: make()})
    assert_reads_back(log, log.sealed())


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_bodies_stay_as_they_are(codec: str) -> None:
    log = LogFile()
    log.push({1: batches.large()}, options=pa.ipc.IpcWriteOptions(compression=codec))
    assert_reads_back(log, log.sealed())


def test_independent_parser_reads_the_same_bundles() -> None:
    log = LogFile()
    for n in range(5):
        attributes = batches.one_column(
            batches.dictionary(["a", "b", "c"][: n + 1], [0, n % 2 and 0, None], pa.uint8())
        )
        log.push({30: batches.plain(n, start=n), 31: attributes}, item_count=n)
    log.push({31: batches.one_column(batches.dictionary(["x"], [0], pa.uint8()))})
    data = log.seal()
    segment = parse_segment(data)
    assert segment.bundles == [
        {slot_id: batch.to_pydict() for slot_id, batch in bundle.items()} for bundle in log.pushed
    ]
    assert segment.manifest["item_count"] == [0, 1, 2, 3, 4, None]
    assert segment.manifest["byte_count"] == [entry.end - entry.at for entry in parse_log(data).entries]
    assert segment.extension is not None
    assert segment.extension.incarnation == INCARNATION
    assert segment.extension.row_count == sum(batch.num_rows for bundle in log.pushed for batch in bundle.values())


def test_whole_file_checksum_is_that_of_zlib() -> None:
    log = LogFile()
    for n in range(40):
        log.push({n % 7: batches.plain(n)})
    data = log.seal()
    assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4])


def test_sealed_file_is_still_a_log_that_ends_at_its_mark() -> None:
    log = LogFile()
    log.push({1: batches.plain()})
    log.push({2: batches.scalars().select(["bool"])})
    unsealed = parse_log(bytes(log.data), aligned=True)
    sealed = parse_log(log.seal(), aligned=True)
    assert [entry.bundle for entry in sealed.entries] == [entry.bundle for entry in unsealed.entries]
    assert (sealed.ends_with, sealed.end) == ("end mark", len(log.data))


def test_64_slots_and_absent_ones() -> None:
    log = LogFile()
    log.push({slot: batches.plain(slot + 1) for slot in reversed(range(64))})
    log.push({63: batches.plain()})
    log.push({slot: batches.plain(2) for slot in range(0, 64, 3)})
    reader = log.sealed()
    assert_reads_back(log, reader)
    assert len(reader.streams) == 64
    assert reader.manifest.slot_ids(1) == (63,)
    assert [stream.slot_id for stream in reader.streams] == list(range(64))


def test_schema_drift_gives_streams_of_their_own() -> None:
    variants = [
        pa.schema([pa.field("a", pa.int64())]),
        pa.schema([pa.field("a", pa.int64(), nullable=False)]),
        pa.schema([pa.field("a", pa.int64(), metadata={"k": "v"})]),
        pa.schema([pa.field("a", pa.int64())], metadata={"k": "v"}),
        pa.schema([pa.field("a", pa.uint64())]),
        pa.schema([pa.field("b", pa.int64())]),
    ]
    log = LogFile()
    for n in range(18):
        schema = variants[n % 6]
        log.push({4: pa.RecordBatch.from_arrays([pa.array([n], schema[0].type)], schema=schema)})
    reader = log.sealed()
    assert_reads_back(log, reader)
    assert [stream.chunk_count for stream in reader.streams] == [3] * 6


def test_weak_fingerprint_does_not_mix_schemas() -> None:
    log = LogFile()
    for n in range(4):
        batch = batches.plain() if n % 2 else batches.nested()
        log.push({4: batch}, fingerprints={4: bytes(32)})
    reader = log.sealed()
    assert_reads_back(log, reader)
    assert [stream.schema_fingerprint for stream in reader.streams] == [bytes(32)] * 2


def test_one_schema_under_two_fingerprints_gives_two_streams() -> None:
    log = LogFile()
    log.push({4: batches.plain()}, fingerprints={4: bytes(32)})
    log.push({4: batches.plain()})
    reader = log.sealed()
    assert_reads_back(log, reader)
    assert [stream.schema_fingerprint for stream in reader.streams] == [
        bytes(32),
        fingerprint_of(batches.plain().schema),
    ]


def test_footer_says_what_the_segment_covers() -> None:
    log = LogFile()
    log.push({1: batches.plain(3)}, item_count=9)
    log.push({1: batches.plain(4), 2: batches.plain(1)})
    reader = log.sealed()
    extension = reader.footer.extension
    assert extension is not None
    assert (extension.wal_position_start, extension.wal_position_end) == (
        POSITION_START,
        POSITION_START + len(log.data) - HEADER_BYTES,
    )
    assert (extension.first_sequence, extension.last_sequence) == (100, 101)
    assert extension.first_ingestion_ts_nanos == TIME + 100
    assert extension.last_ingestion_ts_nanos == TIME + 101
    assert (extension.row_count, extension.incarnation) == (8, INCARNATION)
    assert [reader.item_count(n) for n in range(2)] == [9, None]
    assert [reader.sequence(n) for n in range(2)] == [100, 101]
    assert [reader.ingestion_ts(n) for n in range(2)] == [TIME + 100, TIME + 101]
    assert {slot: batch.num_rows for slot, batch in reader.bundle(1).items()} == {1: 4, 2: 1}
    assert reader.row_count == 8


def test_lost_bundles_keep_their_numbers() -> None:
    log = LogFile()
    log.push({1: batches.plain(3)})
    log.builder.append(101, 0, 0, 0, ())
    log.pushed.append({})
    log.push({2: batches.plain(4)})
    reader = log.sealed()
    assert_reads_back(log, reader)
    assert reader.manifest.lost() == (1,)
    assert (reader.manifest.slot_ids(1), reader.bundle(1), reader.sequence(1)) == ((), {}, 101)
    assert reader.footer.extension is not None
    assert reader.footer.extension.first_ingestion_ts_nanos == TIME + 100


def test_segment_without_bundles_is_readable() -> None:
    log = LogFile()
    reader = log.sealed()
    reader.verify_checksum()
    assert (reader.bundle_count, reader.row_count, reader.streams) == (0, 0, ())
    assert parse_segment(log.seal()).bundles == []


def test_batches_point_into_the_mapping_and_keep_it(tmp_path: Path) -> None:
    log = LogFile()
    log.push({1: batches.plain(1000), 2: batches.one_column(batches.dictionary(["a", "b"], [0, 1]))})
    path = tmp_path / "0000000000000007.qseg"
    path.write_bytes(log.seal())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    start = pa.py_buffer(mapping).address
    reader = SegmentReader(mapping)
    bundle = reader.bundle(0)
    addresses = [
        buffer.address for batch in bundle.values() for column in batch.columns for buffer in column.buffers() if buffer
    ]
    assert addresses
    assert all(start <= address < start + len(mapping) for address in addresses)
    with pytest.raises(BufferError):
        mapping.close()
    path.unlink()
    del reader, mapping
    assert bundle[1].equals(log.pushed[0][1])


def test_data_of_many_bundles_in_random_order() -> None:
    log = LogFile()
    for n in range(3000):
        log.push({n % 5: batches.plain(n % 3, start=n)}, item_count=n)
    reader = log.sealed()
    for index in (2999, 0, 1500, 1, 2998, *range(0, 3000, 97)):
        assert reader.bundle(index)[index % 5].equals(log.pushed[index][index % 5])
        assert reader.item_count(index) == index
