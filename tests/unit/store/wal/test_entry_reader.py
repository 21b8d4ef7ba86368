"""Bundles are read out of a log by their places: all that Arrow knows, and nothing that is damaged, or that no place names."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Mapping
from random import Random

import pyarrow as pa
import pytest

from quiver_actors.base.envelope import trace_in, with_trace
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import ArrowError, ChecksumMismatch, FormatError, InvalidFormat, SlotNotInBundle
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.entry_reader import EntryReader, LogEntries, Place
from tests.disks.simulated import SimDisk
from tests.support.arrow_shapes import EXTENSIONS, LEAVES, ArrowShapes
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.support.open_logs import log_and_places
from tests.unit.store.segment.logfile import LogFile
from tests.unit.store.wal.logs import flipped

Bundle = Mapping[int, pa.RecordBatch]
SHAPES = 40
PAYLOAD = layout.ENTRY_HEAD.size + layout.SLOT_HEAD.size
"""Where the first payload begins in an entry."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def logged(*bundles: Bundle, item_count: int | None = None) -> tuple[bytes, dict[int, Place]]:
    """A log that is open, up to the end of its last bundle, and the places of the bundles that an engine has put into it."""
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS))
    driver.engine.registrations.register("s", "earliest")
    for bundle in bundles:
        driver.push(bundle, item_count=item_count)
    driver.commit()
    content, places = log_and_places(driver.engine, disk, driver.directory, 0)
    last = places[len(bundles) - 1]
    return content[: last.offset + last.size_bytes], places


def reader_of(content: bytes, places: Mapping[int, Place], *, verifies_checksums: bool = True) -> EntryReader:
    return EntryReader(LogEntries(memoryview(content)), places, 7, verifies_checksums=verifies_checksums)


def read(*bundles: Bundle) -> EntryReader:
    return reader_of(*logged(*bundles))


def altered(content: bytes, place: Place, at: int, new: bytes) -> bytes:
    """The log with other bytes in one entry, and the right checksum for them."""
    entry = bytearray(content[place.offset : place.offset + place.size_bytes])
    entry[at : at + len(new)] = new
    entry[-4:] = struct.pack("<I", zlib.crc32(entry[4:-4]))
    return content[: place.offset] + bytes(entry) + content[place.offset + place.size_bytes :]


def values(data_type: pa.DataType, seed: int) -> pa.Array:
    return ArrowShapes(Random(seed)).array(data_type, 9)


# --- what is in a bundle -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", [*LEAVES, *EXTENSIONS], ids=str)
def test_each_type_is_read(data_type: pa.DataType) -> None:
    batch = pa.record_batch({"v": values(data_type, 1)})
    assert read({0: batch}).bundle(0)[0].equals(batch, check_metadata=True)


def test_all_shapes_of_batches_are_read() -> None:
    shapes = ArrowShapes(Random(4))
    bundles = [{0: shapes.batch(shapes.schema(), 7)} for _ in range(SHAPES)]
    reader = read(*bundles)
    for index, bundle in enumerate(bundles):
        found = reader.bundle(index)[0]
        found.validate(full=True)
        assert found.equals(bundle[0], check_metadata=True)


def test_dictionaries_come_with_each_bundle() -> None:
    words = [["ash", "birch"], ["yew"], ["ash", "yew", "fir"]]
    arrays = [pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), pa.array(each)) for each in words]
    nested = [pa.StructArray.from_arrays([array], ["word"]) for array in arrays]
    bundles = [{0: pa.record_batch({"w": a, "n": n})} for a, n in zip(arrays, nested, strict=True)]
    reader = read(*bundles)
    for index in (2, 0, 1):
        assert reader.bundle(index)[0].equals(bundles[index][0])


def test_a_compressed_bundle_is_read_and_told() -> None:
    batch = pa.record_batch({"v": [7] * 5000})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    content, places = logged({0: batch}, {0: batch})
    assert not reader_of(content, places).is_compressed(0)
    place = places[0]
    squeezed = altered(content, place, PAYLOAD, stream.ljust(place.size_bytes - PAYLOAD - 4, b"\0"))
    reader = reader_of(squeezed, places)
    assert (reader.is_compressed(0), reader.is_compressed(1)) == (True, False)
    assert reader.bundle(0)[0].equals(batch)
    assert reader.bundle(1)[0].equals(batch)


def test_a_bundle_without_rows_is_read() -> None:
    empty = numbered_batch(1).slice(0, 0)
    assert read({0: empty}).bundle(0)[0].equals(empty)


def test_slots_are_read_alone_and_together() -> None:
    bundle = {slot: pa.record_batch({f"c{slot}": list(range(slot + 1))}) for slot in (0, 3, 17, 62)}
    reader = read({0: numbered_batch(0)}, bundle)
    assert reader.slot_ids(1) == (0, 3, 17, 62)
    assert {slot: batch.to_pydict() for slot, batch in reader.bundle(1).items()} == {
        slot: batch.to_pydict() for slot, batch in bundle.items()
    }
    assert list(reader.bundle(1, (17, 5))) == [17]
    assert reader.bundle(0, (17,)) == {}
    assert reader.decode_batch(1, 62).equals(bundle[62])
    with pytest.raises(SlotNotInBundle, match="no slot 4: it has"):
        reader.decode_batch(1, 4)


def test_an_envelope_is_a_slot() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    reader = read({0: numbered_batch(0), ENVELOPE_SLOT: with_trace(None, trace)})
    assert reader.slot_ids(0) == (0, ENVELOPE_SLOT)
    assert trace_in(reader.bundle(0)[ENVELOPE_SLOT]) == trace


def test_what_a_log_says_beside_the_batches() -> None:
    content, places = logged({0: numbered_batch(0)}, {0: numbered_batch(1)}, item_count=12)
    reader = reader_of(content, places)
    assert (reader.item_count(0), reader.sequence(1), reader.bundle_count) == (12, 1, 2)
    assert reader.ingestion_ts(0) is not None
    assert read({0: numbered_batch(0)}).item_count(0) is None
    assert reader.schema_messages(0)[0] == reader.schema_messages(1)[0]
    assert pa.ipc.read_schema(pa.py_buffer(reader.schema_messages(0)[0])).equals(numbered_batch(0).schema)


def test_a_batch_outlives_the_reader() -> None:
    batch = read({0: numbered_batch(3)}).bundle(0)[0]
    assert batch.equals(numbered_batch(3))


# --- damage --------------------------------------------------------------------------------------------------------------


def test_damage_of_any_byte_of_an_entry_is_told() -> None:
    content, places = logged(
        {0: numbered_batch(0)}, {0: numbered_batch(1), 4: numbered_batch(2)}, {0: numbered_batch(3)}
    )
    place = places[1]
    told: list[tuple[str, int]] = []
    for at in range(place.offset, place.offset + place.size_bytes):
        entries = LogEntries(memoryview(flipped(content, at, 1 << at % 8)))
        reader = EntryReader(entries, places, 7, tell_damage=lambda reason, index: told.append((reason, index)))
        with pytest.raises(ChecksumMismatch, match="segment 7: bundle 1 of the open log is damaged"):
            reader.bundle(1)
    assert [index for _, index in told] == [1] * place.size_bytes


def test_damage_elsewhere_concerns_no_other_bundle() -> None:
    content, places = logged(*({0: numbered_batch(number)} for number in range(3)))
    rotten = bytearray(content)
    for index in (0, 2):
        offset, size_bytes, _ = places[index]
        rotten[offset : offset + size_bytes] = bytes(size_bytes)
    reader = reader_of(bytes(rotten[: places[2].offset]), places)
    assert reader.bundle(1)[0].equals(numbered_batch(1))


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_damage_that_nobody_checks_is_an_error_of_the_format_at_most(bits: int) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["ash", "yew"]))
    content, places = logged({0: numbered_batch(0), 1: pa.record_batch({"w": words})})
    place = places[0]
    for at in range(place.offset, place.offset + place.size_bytes):
        reader = reader_of(flipped(content, at, bits), places, verifies_checksums=False)
        with contextlib.suppress(FormatError):
            reader.bundle(0)


def test_a_stream_without_a_batch_is_told() -> None:
    content, places = logged({0: numbered_batch(0)})
    schema_bytes = len(reader_of(content, places).schema_messages(0)[0])
    cut = altered(content, places[0], PAYLOAD + schema_bytes, END_OF_STREAM)
    with pytest.raises(ArrowError):
        reader_of(cut, places).bundle(0)


@pytest.mark.parametrize("metadata_bytes", [1024, 1 << 20, 0x7FFFFFF8, 0xFFFFFFF8])
def test_a_schema_that_says_it_is_longer_than_its_slot_is_told_and_not_looked_at(metadata_bytes: int) -> None:
    content, places = logged(*({0: numbered_batch(number)} for number in range(4)))
    assert places[0].size_bytes < 1024 < 3 * places[0].size_bytes
    long = altered(content, places[0], PAYLOAD + 4, struct.pack("<I", metadata_bytes))
    entries = LogEntries(memoryview(long))
    reader = EntryReader(entries, places, 7)
    reader.check(0)
    with pytest.raises(FormatError):
        reader.decode(0)
    assert entries.schemas == {}, "what lies behind the slot was read as part of a schema"


def test_slots_that_end_behind_their_entry_are_told() -> None:
    content, places = logged({0: numbered_batch(0)})
    slot_bytes = layout.ENTRY_HEAD.size + layout.SLOT_TABLE.offsets["payload_len"]
    for what in (
        altered(content, places[0], slot_bytes, struct.pack("<I", 1 << 30)),
        altered(content, places[0], layout.ENTRY_TABLE.offsets["slot_bitmap"], struct.pack("<Q", (1 << 64) - 1)),
    ):
        with pytest.raises(FormatError):
            reader_of(what, places).bundle(0)


# --- the log ---------------------------------------------------------------------------------------------------------------


def test_the_incarnation_is_that_of_the_segment_that_the_log_becomes() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS))
    driver.engine.registrations.register("s", "earliest")
    driver.push({0: numbered_batch(0)})
    driver.commit()
    content, places = log_and_places(driver.engine, disk, driver.directory, 0)
    reader = reader_of(content, places)
    driver.seal()
    driver.settle()
    assert reader.incarnation is not None
    assert reader.incarnation == driver.read(0).incarnation
    assert (reader.is_lost(0), reader.runs([0])) == (False, []), "each bundle of a log is read by itself"
    assert reader.byte_count(0) == places[0].size_bytes == driver.read(0).byte_count(0)


def test_a_log_that_does_not_say_its_incarnation_has_none_and_a_damaged_header_is_told() -> None:
    other = LogFile()
    assert LogEntries(memoryview(bytes(other.data))).incarnation is None
    with pytest.raises(FormatError):
        _ = LogEntries(memoryview(flipped(bytes(other.data), 0))).incarnation


def test_schemas_that_are_remembered_do_not_pile_up() -> None:
    """A log may bring a new schema with each bundle, and a reader of it lives as long as the log."""
    content, places = logged({0: numbered_batch(0)}, {0: numbered_batch(1)})
    entries = LogEntries(memoryview(content))
    reader = EntryReader(entries, places, 7)
    assert reader.bundle(0)[0].equals(numbered_batch(0))
    for number in range(3000):
        schema = pa.schema([(f"column {number}", pa.int8())])
        assert entries.add_schema(schema.serialize().to_pybytes()) == (schema, False)
    assert len(entries.schemas) <= 1024
    assert reader.bundle(1)[0].equals(numbered_batch(1)), "what was forgotten is read again"


# --- places --------------------------------------------------------------------------------------------------------------


def test_only_bundles_with_a_place_are_there() -> None:
    content, places = logged(*({0: numbered_batch(number)} for number in range(3)))
    reader = reader_of(content, {1: places[1]})
    assert reader.bundle(1)[0].equals(numbered_batch(1))
    for call in (reader.check, reader.bundle, reader.decode, reader.slot_ids, reader.sequence, reader.item_count):
        for index in (0, 2, -1):
            with pytest.raises(IndexError, match="none of those whose places are known"):
                call(index)


def test_places_out_of_range_are_told() -> None:
    content, places = logged({0: numbered_batch(0)}, {0: numbered_batch(1)})
    offset, size_bytes, count = places[1]
    wrong = [
        Place(len(content), size_bytes, count),
        Place(len(content) - 10, 64, count),
        Place(len(content) - 10, 0, count),
        Place(1 << 62, size_bytes, count),
        Place((1 << 64) - 1, (1 << 32) - 1, count),
        Place(offset, len(content), count),
        Place(offset, 0, count),
        Place(offset, 7, count),
        Place(offset, 32, count),
    ]
    for place in wrong:
        with pytest.raises(ChecksumMismatch):
            reader_of(content, {1: place}).bundle(1)
        unchecked = reader_of(content, {1: place}, verifies_checksums=False)
        if place.offset + place.size_bytes > len(content) or place.size_bytes < 64:
            for call in (unchecked.bundle, unchecked.slot_ids, unchecked.is_compressed):
                with pytest.raises(InvalidFormat, match="bundle 1 ends behind"):
                    call(1)
        if place.offset > len(content):
            with pytest.raises(InvalidFormat, match="bundle 1 ends behind"):
                unchecked.sequence(1)


def test_a_place_that_names_part_of_another_entry_is_damaged() -> None:
    content, places = logged({0: numbered_batch(0)}, {0: numbered_batch(1)})
    offset, size_bytes, count = places[0]
    for place in (Place(offset + 64, size_bytes, count), Place(offset, size_bytes + places[1].size_bytes, count)):
        with pytest.raises(ChecksumMismatch):
            reader_of(content, {0: place}).bundle(0)
