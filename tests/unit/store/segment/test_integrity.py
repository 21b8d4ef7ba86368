"""A checked reader shows what was written or raises, whatever bit of the file is flipped, before it is opened or after."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.errors import ChecksumMismatch, FormatError
from quiver_actors.store.segment.checked import CheckedReader, open_reader
from quiver_actors.store.segment.layout import EXTENSION, EXTENSION_TABLE, FOOTER, LOG_HEADER_BYTES, TRAILER
from quiver_actors.store.segment.mapping import SegmentMapping
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal import layout as wal_layout
from tests.unit.store.segment.logfile import LogFile

GOLDEN = Path(__file__).parents[3] / "golden" / "data" / "quiver-v1" / "segments" / "0000000000000000.qseg"
FLIPS = 400

Values = tuple[dict[int, pa.RecordBatch], int | None, int | None, int | None]


def log_of(sizes: list[int], *, dictionaries: bool = False) -> LogFile:
    """A bundle of two slots for each size, and with dictionaries that grow from bundle to bundle in a third one."""
    log, rng = LogFile(), np.random.default_rng(1)
    for number, rows in enumerate(sizes):
        bundle = {
            1: pa.record_batch(
                {"id": rng.integers(0, 1 << 60, rows), "name": [f"{number}-{row}" for row in range(rows)]}
            ),
            2: pa.record_batch({"price": rng.random(rows)}),
        }
        if dictionaries:
            words = pa.array([f"word {word}" for word in range(number + 1)] * 3)
            bundle[3] = pa.record_batch({"word": words.dictionary_encode()})
        log.push(bundle, item_count=number if number % 2 else -1)
    return log


def with_lost_bundles() -> bytes:
    """Return a segment as a rescue leaves it: the third and fourth bundle have a row without slots, and damaged entries."""
    log, fresh = log_of([300] * 6), LogFile()
    whole = SegmentReader(log.seal())
    ends = LOG_HEADER_BYTES + np.cumsum(log.builder.manifest_columns().byte_count.astype(np.int64))
    for index in range(6):
        if index in (2, 3):
            fresh.builder.append(100 + index, 0, -1, 0, ())
            fresh.data += bytes(byte ^ 0x55 for byte in log.data[int(ends[index - 1]) : int(ends[index])])
        else:
            fresh.push(whole.bundle(index), item_count=index)
    return fresh.seal()


SHAPES: dict[str, Callable[[], bytes]] = {
    "in place, of one size": lambda: log_of([300] * 8).seal(),
    "in place, of many sizes": lambda: log_of([number % 7 * 30 for number in range(20)]).seal(),
    "in place, large": lambda: log_of([1500, 2000, 1500]).seal(),
    "in place, dictionaries": lambda: log_of([200] * 8, dictionaries=True).seal(),
    "in place, bundles lost": with_lost_bundles,
    "compacted": lambda: log_of([number % 5 * 100 for number in range(20)]).compacted(),
    "compacted, dictionaries": lambda: log_of([200] * 8, dictionaries=True).compacted(),
    "written by Rust": GOLDEN.read_bytes,
}


@pytest.fixture(params=SHAPES, ids=lambda name: name.replace(", ", "-").replace(" ", "_"))
def content(request: pytest.FixtureRequest) -> bytes:
    return SHAPES[request.param]()


def values_of(reader: SegmentReader, index: int) -> Values:
    reader.check(index)
    return reader.bundle(index), reader.item_count(index), reader.sequence(index), reader.ingestion_ts(index)


def all_values(content: bytes) -> list[Values]:
    reader = SegmentReader(content)
    return [values_of(reader, index) for index in range(reader.bundle_count)]


def damaged_bundles(reader: SegmentReader, expected: list[Values]) -> int:
    """How many bundles cannot be read; the others are as they were."""
    damaged = 0
    for index, values in enumerate(expected):
        try:
            found = values_of(reader, index)
        except FormatError:
            damaged += 1
        else:
            assert found == values
    return damaged


@contextmanager
def mapped(path: Path, content: bytes) -> Iterator[SegmentMapping]:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield SegmentMapping(descriptor, len(content), 7)
    finally:
        os.close(descriptor)


def test_the_header_is_as_long_as_that_of_a_log() -> None:
    assert wal_layout.HEADER_BYTES == LOG_HEADER_BYTES


def test_a_whole_file_is_read_as_it_was_written(content: bytes) -> None:
    expected, reader = all_values(content), CheckedReader(content)
    assert damaged_bundles(reader, expected) == 0
    assert reader.streams == SegmentReader(content).streams
    assert [reader.schema(info.stream_id) for info in reader.streams]
    assert reader.row_count == SegmentReader(content).row_count
    assert reader.incarnation == SegmentReader(content).incarnation


def test_a_bit_that_was_flipped_before_is_never_shown(content: bytes) -> None:
    expected, rng, found = all_values(content), random.Random(1), 0
    for _ in range(FLIPS):
        at = rng.randrange(len(content))
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.randrange(8)
        try:
            reader = CheckedReader(bytes(damaged))
        except FormatError:
            found += 1
            continue
        found += damaged_bundles(reader, expected) > 0
    assert found > FLIPS // 2


def test_a_bit_that_is_flipped_under_an_open_reader_is_never_shown(content: bytes, tmp_path: Path) -> None:
    expected, rng, found = all_values(content), random.Random(2), 0
    path = tmp_path / "live"
    with mapped(path, content) as mapping, path.open("r+b", buffering=0) as file:
        reader = open_reader(mapping, 7)
        assert damaged_bundles(reader, expected) == 0
        for _ in range(FLIPS):
            at = rng.randrange(len(content))
            os.pwrite(file.fileno(), bytes([content[at] ^ 1 << rng.randrange(8)]), at)  # a bit flips in the file
            found += damaged_bundles(reader, expected) > 0
            os.pwrite(file.fileno(), content[at : at + 1], at)
        assert damaged_bundles(reader, expected) == 0
    # The golden file is a page or two: all of it is frozen with its footers.
    assert found > FLIPS // 4 or len(content) < 10_000


@pytest.mark.parametrize("seal", [LogFile.seal, LogFile.compacted], ids=["in place", "compacted"])
@pytest.mark.parametrize("place", [2, 6], ids=["streams", "bundles"])
def test_a_footer_that_counts_otherwise_than_the_tables_is_damaged(
    seal: Callable[[LogFile], bytes], place: int
) -> None:
    content = bytearray(seal(log_of([50] * 3)))
    content[-TRAILER.size - EXTENSION.size - FOOTER.size + place] += 1
    content[-4:] = struct.pack("<I", zlib.crc32(content[:-4]))
    with pytest.raises(
        ChecksumMismatch, match="segment 7: the end of the file is damaged: it lists 2 streams and 3 bundles"
    ):
        CheckedReader(bytes(content), segment_seq=7)


@pytest.mark.parametrize(
    "look",
    [
        lambda reader: reader.streams,
        lambda reader: reader.schema(0),
        lambda reader: reader.row_count,
        lambda reader: reader.incarnation,
    ],
    ids=["streams", "schema", "row_count", "incarnation"],
)
def test_what_belongs_to_no_bundle_of_a_compacted_file_is_proven_with_all_of_it(
    look: Callable[[CheckedReader], object],
) -> None:
    content = bytearray(log_of([50] * 3).compacted())
    content[content.index(SegmentReader(bytes(content)).bundle(1)[2].column(0).buffers()[1].to_pybytes())] ^= 1
    told: list[str] = []
    reader = CheckedReader(bytes(content), segment_seq=7, tell_damage=told.append)
    for count in (1, 2):
        with pytest.raises(ChecksumMismatch, match="segment 7: the file is damaged: its CRC-32 is"):
            look(reader)
        assert len(told) == count
    assert reader.bundle(0).keys() == {1, 2}
    with pytest.raises(ChecksumMismatch, match="bundle 1 is damaged"):
        reader.bundle(1)


@pytest.mark.parametrize("shape", ["in place, of one size", "compacted"])
def test_each_bit_at_the_end_of_the_file_is_found_at_once(shape: str, tmp_path: Path) -> None:
    """Regression: a high bit of the log position let the reader keep exabytes of a file of 100 KB, one slice after the other."""
    content = SHAPES[shape]()
    expected = all_values(content)
    size_bytes = FOOTER.size + EXTENSION.size + TRAILER.size
    with mapped(tmp_path / "live", content) as mapping, (tmp_path / "live").open("r+b", buffering=0) as file:
        for at in range(len(content) - size_bytes, len(content)):
            for bits in (1, 0x80):
                os.pwrite(file.fileno(), bytes([content[at] ^ bits]), at)
                with pytest.raises(FormatError):
                    _ = open_reader(SegmentMapping(file.fileno(), len(content), 7), 7).incarnation
                os.pwrite(file.fileno(), content[at : at + 1], at)
        assert damaged_bundles(open_reader(mapping, 7), expected) == 0


def test_a_compacted_file_whose_footer_counts_from_another_number_is_refused_before_a_bundle_is_read() -> None:
    content = bytearray(SHAPES["compacted"]())
    content[-TRAILER.size - EXTENSION.size + EXTENSION_TABLE.offsets["first_sequence"]] ^= 1
    with pytest.raises(ChecksumMismatch, match="its bundles are not numbered as the footer says"):
        CheckedReader(bytes(content))


def test_a_damaged_slot_costs_the_bundle_under_a_projection_too() -> None:
    log = log_of([50] * 3)
    reader = SegmentReader(log.seal())
    price = reader.bundle(1)[2].column(0).buffers()[1].to_pybytes()
    content = log.seal()
    at = content.index(price)
    damaged = CheckedReader(content[:at] + bytes(8) + content[at + 8 :])
    assert damaged.bundle(0, (1,)).keys() == {1}
    with pytest.raises(ChecksumMismatch, match="bundle 1 is damaged"):
        damaged.bundle(1, (1,))
    with pytest.raises(ChecksumMismatch, match="bundle 1 is damaged"):
        damaged.batch(1, 1)
    assert damaged.decode(1, (1,))[1].equals(reader.bundle(1)[1])


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_dictionary_that_other_bundles_brought_is_checked_and_then_kept(is_compacted: bool, tmp_path: Path) -> None:
    log = log_of([3] * 8, dictionaries=True)
    content = log.compacted() if is_compacted else log.seal()
    expected, path = all_values(content), tmp_path / "live"
    # The last bundle brought the longest dictionary, which all of them use.
    at = content.rindex(b"word 0word 1word 2")
    with mapped(path, content) as mapping, path.open("r+b", buffering=0) as file:
        reader = open_reader(mapping, 7)
        assert reader.bundle(0) == expected[0][0]
        os.pwrite(file.fileno(), b"WORD", at)  # the dictionary is damaged when it was read already
        assert reader.bundle(1) == expected[1][0]
        fresh = open_reader(SegmentMapping(file.fileno(), len(content), 7), 7)
        for index in range(8):
            with pytest.raises(ChecksumMismatch):
                fresh.bundle(index)


def test_who_asked_to_be_told_hears_of_damage(tmp_path: Path) -> None:
    told: list[str] = []
    content = log_of([50] * 3).seal()
    at = LOG_HEADER_BYTES + 200
    with mapped(tmp_path / "body", content[:at] + b"\x55" + content[at + 1 :]) as mapping:
        reader = open_reader(mapping, 7, tell_damage=told.append)
        reader.bundle(1)
        assert told == []
        with pytest.raises(ChecksumMismatch):
            reader.bundle(0)
        assert told == ["segment 7: bundle 0 is damaged: its bytes do not have the checksum that was stored with them"]
    with mapped(tmp_path / "tail", content[:-40] + b"\x55" + content[-39:]) as mapping:
        with pytest.raises(FormatError):
            open_reader(mapping, 7, tell_damage=told.append)
        assert len(told) == 2


def test_a_bundle_of_another_writer_is_checked_each_time_and_its_damage_costs_no_other() -> None:
    content = bytearray(GOLDEN.read_bytes())
    expected = all_values(bytes(content))
    reader = CheckedReader(memoryview(content).toreadonly())
    start = pa.py_buffer(content).address
    for index in range(3):
        values = reader.batch(index, reader.slot_ids(index)[0]).column(0).buffers()[-1]
        content[values.address - start] ^= 1
        with pytest.raises(ChecksumMismatch, match=f"bundle {index} is damaged"):
            reader.bundle(index)
        assert damaged_bundles(reader, expected) == 1
        content[values.address - start] ^= 1
    assert damaged_bundles(reader, expected) == 0


def test_a_reader_that_does_not_verify_shows_what_is_there(tmp_path: Path) -> None:
    content = log_of([50] * 3).seal()
    value = SegmentReader(content).bundle(1)[1].column(0).buffers()[1].to_pybytes()
    at = content.index(value)
    with mapped(tmp_path / "off", content[:at] + bytes(8) + content[at + 8 :]) as mapping:
        reader = open_reader(mapping, 7, verifies_checksums=False)
        assert reader.bundle(1)[1].column(0)[0].as_py() == 0


def test_what_is_frozen_stays_and_the_rest_shows_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with mapped(path, bytes(3 << 12)) as mapping, path.open("r+b", buffering=0) as file:
        mapping.freeze(5000, 5010)
        for at in (100, 5005, 9000):
            os.pwrite(file.fileno(), b"\xff", at)
        assert (mapping.memory[100], mapping.memory[5005], mapping.memory[9000]) == (0xFF, 0, 0xFF)
        assert mapping.memory.readonly
        with pytest.raises(TypeError):
            mapping.memory[0] = 1
    assert path.read_bytes().count(b"\xff") == 3
