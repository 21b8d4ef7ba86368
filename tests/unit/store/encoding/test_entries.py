from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.errors import BundleTooLarge, InvalidBundle
from quiver_actors.store.encoding.entries import JOINED_BYTES_MAX, SERIALIZE_BYTES_MAX, InPlace, lay_out, plan
from quiver_actors.store.encoding.streams import StreamTable
from tests.unit.client.entries import ParsedEntry, parse_span

Bundle = Mapping[int, pa.RecordBatch]


def encode(*bundles: Bundle, item_count: int | None = None) -> list[ParsedEntry]:
    """Lay bundles out back to back in memory that holds old bytes, and parse them."""
    streams = StreamTable("t")
    plans = [plan(sorted(bundle.items(), key=lambda item: item[0]), streams, item_count) for bundle in bundles]
    size = sum(planned.entry_bytes for planned in plans)
    ring = memoryview(bytearray(b"\xaa" * (size + 128)))
    rows, offset = lay_out(plans, ring, 64), 64 + size
    assert bytes(ring[:64]) == bytes(ring[offset:]) == b"\xaa" * 64, "nothing outside of the span is written"
    push = rows.push(0, "t", 64, size, offset)
    return parse_span(bytes(ring[64:offset]), push.entries, push.slots, push.dictionaries)


def check_round_trip(*bundles: Bundle) -> list[ParsedEntry]:
    parsed = encode(*bundles)
    for entry, bundle in zip(parsed, bundles, strict=True):
        assert entry.batches.keys() == bundle.keys()
        for slot_id, batch in bundle.items():
            found = entry.batches[slot_id]
            found.validate(full=True)
            assert found.schema.equals(batch.schema, check_metadata=True)
            assert found.equals(batch)
    return parsed


def numbers(rows: int, **columns: pa.Array) -> pa.RecordBatch:
    values = np.random.default_rng(rows).integers(0, 1 << 40, rows)
    return pa.record_batch({"id": pa.array(values), "half": pa.array(values / 2), **columns})


def coded(values: list[str | None], index_type: pa.DataType | None = None) -> pa.RecordBatch:
    column = pa.array(values).dictionary_encode()
    if index_type is not None:
        column = pa.DictionaryArray.from_arrays(column.indices.cast(index_type), column.dictionary)
    return pa.record_batch({"word": column})


def nested_coded(rows: int) -> pa.RecordBatch:
    words = pa.array([f"w{n % 7}" for n in range(rows)]).dictionary_encode()
    struct_column = pa.StructArray.from_arrays([words, pa.array(range(rows))], ["word", "n"])
    lists = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), words)
    return pa.record_batch({"s": struct_column, "l": lists})


ONE_BATCH: dict[str, pa.RecordBatch] = {
    "small": numbers(20),
    "no rows": numbers(0),
    "no columns": pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([]))),
    "joined at its largest": numbers(950),
    "over joined": numbers(1200),
    "serialized at its largest": numbers(8100),
    "in place": numbers(9000),
    "megabyte": numbers(70_000),
    "slice of a large one": numbers(70_000).slice(1000, 50),
    "nulls": pa.record_batch({"a": pa.array([1, None, 3]), "b": pa.array([None, None, None], pa.string())}),
    "metadata": pa.record_batch({"a": [1]}).replace_schema_metadata({"zz": "1", "a": "2"}),
    "field metadata": pa.record_batch(
        [pa.array([1])], schema=pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"unit": "m"})])
    ),
    "decimal, time, binary": pa.record_batch(
        {
            "d": pa.array([1, 2], pa.decimal128(10, 2)),
            "t": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
            "b": pa.array([b"x", b"yy"], pa.large_binary()),
            "v": pa.array(["a", "a string longer than twelve bytes"], pa.string_view()),
        }
    ),
    "run-end encoded": pa.record_batch({"r": pa.RunEndEncodedArray.from_arrays([2, 5], ["a", "b"])}),
    "map and union": pa.record_batch(
        {
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "u": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
        }
    ),
    "extension": pa.record_batch({"u": pa.array([b"0123456789abcdef"], pa.uuid())}),
    "dictionary": coded(["a", "b", None, "a"]),
    "dictionary, narrow index": coded(["a", "b", "a"], pa.uint8()),
    "dictionary, nested": nested_coded(50),
    "dictionary, in place": nested_coded(20_000),
    "dictionary in an extension": pa.record_batch(
        {"r": pa.RunEndEncodedArray.from_arrays([2, 5], pa.array(["a", "b"]))}
    ),
    "several dictionaries": pa.record_batch(
        {"a": pa.array(["x", "y"]).dictionary_encode(), "b": pa.array([1, 1]).dictionary_encode()}
    ),
}


@pytest.mark.parametrize("batch", ONE_BATCH.values(), ids=ONE_BATCH.keys())
def test_one_slot_round_trips(batch: pa.RecordBatch) -> None:
    check_round_trip({30: batch})


@pytest.mark.parametrize("batch", ONE_BATCH.values(), ids=ONE_BATCH.keys())
def test_each_kind_round_trips_between_others(batch: pa.RecordBatch) -> None:
    check_round_trip({0: numbers(3)}, {1: numbers(5), 7: batch, 62: coded(["q"])}, {2: batch, 3: numbers(9000)})


def test_sixty_four_slots_round_trip() -> None:
    parsed = check_round_trip({slot_id: numbers(slot_id) for slot_id in range(64)})
    assert parsed[0].bitmap == (1 << 64) - 1


@pytest.mark.parametrize("stream_bytes_mod", range(0, 64, 8))
def test_padding_is_right_for_every_length(stream_bytes_mod: int) -> None:
    batch = pa.record_batch({"b": [b"x" * (200 + stream_bytes_mod)]})
    large = pa.record_batch({"b": [b"x" * (SERIALIZE_BYTES_MAX + stream_bytes_mod)]})
    check_round_trip({5: batch}, {5: batch, 6: batch}, {5: large}, {5: large, 9: large})


def test_the_three_ways_of_writing_are_all_used() -> None:
    streams = StreamTable("t")
    (joined,) = plan([(0, numbers(20))], streams).parts
    assert isinstance(joined, bytes)
    assert len(joined) <= JOINED_BYTES_MAX
    copied = plan([(0, numbers(4000))], streams).parts
    assert len(copied) == 3
    assert not any(isinstance(part, InPlace) for part in copied)
    in_place = plan([(0, numbers(20_000))], streams).parts
    assert any(isinstance(part, InPlace) for part in in_place)


def test_fingerprint_is_blake2b_of_the_schema_message() -> None:
    (entry,) = encode({4: numbers(3)})
    message = entry.schema_messages[4]
    assert entry.fingerprints[4] == hashlib.blake2b(message, digest_size=32).digest()
    assert pa.ipc.read_schema(pa.py_buffer(message)).equals(numbers(3).schema)


def test_item_count_travels_and_is_minus_one_when_unknown() -> None:
    assert encode({0: numbers(1)}, item_count=7)[0].item_count == 7
    assert encode({0: numbers(1)})[0].item_count == -1


@pytest.mark.parametrize("item_count", [-1, 1 << 63, 1.5, 2.0, "3", np.float64(4)])
def test_impossible_item_count_is_refused(item_count: Any) -> None:
    with pytest.raises(InvalidBundle, match=r"item_count .* expected an integer"):
        plan([(0, numbers(1))], StreamTable("t"), item_count)


@pytest.mark.parametrize("item_count", [3, np.int64(3), np.uint8(3)])
def test_integers_of_numpy_are_item_counts(item_count: Any) -> None:
    assert encode({0: numbers(1)}, item_count=item_count)[0].item_count == 3


def test_bundle_over_the_limit_is_refused_before_it_is_copied() -> None:
    # 96 MiB of real memory, referred to three times.
    column = pa.array(np.zeros(12 << 20, np.int64))
    batch = pa.record_batch({"a": column})
    with pytest.raises(BundleTooLarge, match=r"288 MiB.*256 MiB"):
        plan([(slot_id, batch) for slot_id in range(3)], StreamTable("t"))


def test_bundle_of_exactly_the_limit_is_planned() -> None:
    def entry_body(padding: int) -> int:
        blob = pa.array([memoryview(content)[:padding]], pa.large_binary())
        return plan([(0, pa.record_batch({"b": blob}))], StreamTable("t")).entry_bytes - 8

    content = bytearray(1 << 28)
    limit = 256 << 20
    overhead = entry_body(1 << 20) - (1 << 20)
    assert limit - 64 < entry_body(limit - overhead - 56) <= limit
    with pytest.raises(BundleTooLarge):
        entry_body(limit)


def test_more_rows_than_an_entry_counts_are_refused() -> None:
    nulls = pa.record_batch({"n": pa.nulls((1 << 31) - 1)})
    with pytest.raises(InvalidBundle, match="6442450941 rows"):
        plan([(slot_id, nulls) for slot_id in range(3)], StreamTable("t"))


def test_what_arrow_cannot_send_is_an_invalid_bundle() -> None:
    with pytest.raises(InvalidBundle, match="slot 9"):
        plan([(9, pa.record_batch({"n": pa.nulls(1 << 31)}))], StreamTable("t"))


def test_a_written_plan_holds_no_encoded_bytes_and_its_batches_can_be_planned_again() -> None:
    streams = StreamTable("t")
    for batch in (numbers(3), numbers(3000), numbers(20_000), nested_coded(20_000)):
        first = plan([(0, batch)], streams)
        entries = [memoryview(bytearray(first.entry_bytes)) for _ in range(2)]
        lay_out([first], entries[0])
        assert not first.parts
        again = plan(first.batches, streams, first.item_count)
        lay_out([again], entries[1])
        assert entries[0] == entries[1]
        assert again.crc == first.crc


class Period(pa.ExtensionType):
    """One with a parameter that decides nothing about its equality, as long as nobody defines that."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        super().__init__(pa.int64(), "test.period")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.unit.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, _: pa.DataType, serialized: bytes) -> Period:
        return cls(serialized.decode())


def noted(note: str) -> pa.DataType:
    return pa.struct([pa.field("y", pa.int32(), metadata={"note": note})])


class TestStreamTable:
    def test_equal_schema_of_another_batch_is_the_same_stream(self) -> None:
        streams = StreamTable("t")
        assert streams.stream(3, numbers(1).schema) is streams.stream(3, numbers(2).schema)

    def test_slots_have_streams_of_their_own(self) -> None:
        streams = StreamTable("t")
        schema = numbers(1).schema
        first, second = streams.stream(3, schema), streams.stream(4, schema)
        assert first.handle != second.handle
        assert first.fingerprint == second.fingerprint

    @pytest.mark.parametrize(
        "other",
        [
            pa.schema([pa.field("a", pa.int64(), nullable=False)]),
            pa.schema([pa.field("a", pa.int32())]),
            pa.schema([pa.field("b", pa.int64())]),
            pa.schema([pa.field("a", pa.int64(), metadata={"k": "v"})]),
            pa.schema([pa.field("a", pa.int64())], metadata={"k": "v"}),
            pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64())]),
            pa.schema([]),
        ],
    )
    def test_schema_that_differs_in_anything_is_another_stream(self, other: pa.Schema) -> None:
        streams = StreamTable("t")
        first = streams.stream(0, pa.schema([pa.field("a", pa.int64())]))
        second = streams.stream(0, other)
        assert first.handle != second.handle
        assert first.fingerprint != second.fingerprint

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (Period("D"), Period("H")),
            (pa.list_(Period("D")), pa.list_(Period("H"))),
            (pa.dictionary(pa.int8(), noted("1")), pa.dictionary(pa.int8(), noted("2"))),
            (pa.opaque(noted("1"), "kind", "vendor"), pa.opaque(noted("2"), "kind", "vendor")),
        ],
        ids=lambda data_type: str(data_type.id),
    )
    def test_schemas_that_only_pyarrow_takes_for_equal_are_two_streams(
        self, one: pa.DataType, other: pa.DataType
    ) -> None:
        streams, schemas = StreamTable("t"), [pa.schema([("x", data_type)]) for data_type in (one, other)]
        assert schemas[0].equals(schemas[1], check_metadata=True)
        messages = [streams.stream(0, schema).message for schema in schemas * 2]
        assert messages == [StreamTable("u").stream(0, schema).message for schema in schemas * 2]
        assert len({streams.stream(0, schema).handle for schema in schemas * 2}) == 2

    def test_metadata_in_another_order_still_writes_the_declared_message(self) -> None:
        one, two = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
        large = numbers(20_000)
        entries = encode({0: large.replace_schema_metadata(one)}, {0: large.replace_schema_metadata(two)})
        assert entries[0].schema_messages == entries[1].schema_messages

    def test_many_schemas_are_found_again(self) -> None:
        streams = StreamTable("t")
        schemas = [pa.schema([pa.field(f"c{n}", pa.int64())]) for n in range(40)]
        handles = [streams.stream(0, schema).handle for schema in schemas]
        assert len(set(handles)) == 40
        assert [streams.stream(0, schema).handle for schema in schemas] == handles

    def test_dictionaries_are_seen_wherever_they_hide(self) -> None:
        streams = StreamTable("t")
        word = pa.dictionary(pa.int8(), pa.string())
        types = [word, pa.list_(word), pa.struct([("w", word)]), pa.map_(pa.string(), word), pa.large_list(word)]
        for data_type in types:
            assert streams.stream(0, pa.schema([("x", data_type)])).has_dictionaries, data_type
        assert not streams.stream(0, pa.schema([("x", pa.list_(pa.string()))])).has_dictionaries
