"""A segment rewritten by moving its messages says and holds what it did before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.store.segment.compaction import PART_BYTES, Rewriting, check_rewriting
from quiver_actors.store.segment.outline import READ_BYTES, Read, read_messages, read_outline
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.unify import DICTIONARY_BYTES_MAX
from tests.golden.parser import parse_segment
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import LogFile, encode_stream, fingerprint_of
from tests.unit.store.segment.test_dictionaries import column, with_delta


def reads(data: bytes | bytearray) -> Read:
    return lambda length, offset: bytes(data[offset : offset + length])


def rewritten(data: bytes, *, parse: bool = True) -> bytes:
    """The compacted segment, checked as the engine checks it, and by the independent parser if that knows its types."""
    outline = read_outline(reads(data), len(data))
    new = b"".join(chain.from_iterable(Rewriting(outline, reads(data)).parts()))
    check_rewriting(outline, read_outline(reads(new), len(new)))
    assert not parse or not parse_segment(new).in_place
    return new


def compacted(log: LogFile, *, parse: bool = True) -> SegmentReader:
    reader = SegmentReader(rewritten(log.seal(), parse=parse))
    reader.verify_checksum()
    assert reader.bundle_count == len(log.pushed)
    return reader


def assert_same_values(log: LogFile, reader: SegmentReader) -> None:
    for index, pushed in enumerate(log.pushed):
        bundle = reader.bundle(index)
        assert list(bundle) == list(pushed)
        for slot_id, batch in bundle.items():
            batch.validate(full=True)
            assert batch.schema.equals(pushed[slot_id].schema, check_metadata=True)
            assert batch.to_pydict() == pushed[slot_id].to_pydict()


def words_of(words: Sequence[object], key: pa.DataType | None = None) -> pa.RecordBatch:
    """One row per word and one null."""
    return batches.one_column(batches.dictionary(words, [*range(len(words)), None], key or pa.int16()))


# --- contents -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", batches.EVERY, ids=lambda make: make.__name__)
def test_every_kind_of_batch_comes_back_equal(make: Callable[[], pa.RecordBatch]) -> None:
    log = LogFile()
    log.push({3: make()})
    log.push({3: batches.plain(), 9: make()}, item_count=4)
    log.push({3: make()})
    reader = compacted(log, parse=False)
    for index, pushed in enumerate(log.pushed):
        for slot_id, batch in reader.bundle(index).items():
            batch.validate(full=True)
            assert batch.equals(pushed[slot_id])
            assert batch.schema.equals(pushed[slot_id].schema, check_metadata=True)


def test_numbers_times_counts_and_lost_bundles_stay() -> None:
    log = LogFile()
    for n in range(5):
        log.push({n % 2: batches.plain(n)}, item_count=n if n % 2 else -1)
    log.builder.append(105, 0, -1, 0, ())
    log.pushed.append({})
    log.push({0: batches.plain(2)})
    old, new = log.sealed(), compacted(log)
    assert new.manifest.lost() == (5,)
    for index in range(old.bundle_count):
        assert new.sequence(index) == old.sequence(index)
        assert new.ingestion_ts(index) == old.ingestion_ts(index)
        assert new.item_count(index) == old.item_count(index)
        assert new.byte_count(index) == old.byte_count(index)
        rows = [{slot: batch.num_rows for slot, batch in each.bundle(index).items()} for each in (old, new)]
        assert rows[0] == rows[1]
    assert new.footer.extension == old.footer.extension


def test_messages_are_moved_as_they_are() -> None:
    log = LogFile()
    for n in range(20):
        log.push({1: batches.plain(n)})
    data = log.seal()
    new = rewritten(data)
    before, after = (read_outline(reads(d), len(d)).streams[0].batches.tolist() for d in (data, new))
    for (old_at, *old_size), (new_at, *new_size) in zip(before, after, strict=True):
        assert old_size == new_size
        assert data[old_at : old_at + sum(old_size)] == new[new_at : new_at + sum(new_size)]


def test_the_schema_is_written_once_a_stream() -> None:
    log = LogFile()
    for n in range(50):
        log.push({1: batches.plain(2, n)})
    message = log.builder.streams[0].schema.message
    assert log.seal().count(message) == 50
    assert rewritten(log.seal()).count(message) == 1


def test_segment_without_bundles() -> None:
    reader = compacted(LogFile())
    assert (reader.bundle_count, reader.streams) == (0, ())


def test_it_reads_and_writes_in_pieces() -> None:
    log = LogFile()
    for n in range(3000):
        log.push({n % 3: batches.plain(40, n)})
    data = log.seal()
    largest = 0

    def read(length: int, offset: int) -> bytes:
        nonlocal largest
        largest = max(largest, length)
        return data[offset : offset + length]

    outline = read_outline(reads(data), len(data))
    parts = [sum(map(len, part)) for part in Rewriting(outline, read).parts()]
    assert largest <= READ_BYTES
    assert max(parts) < 2 * PART_BYTES < len(data)


# --- dictionaries -----------------------------------------------------------------------------------------------------------


def test_streams_that_differ_in_their_dictionaries_become_one() -> None:
    log = LogFile()
    for n in range(30):
        log.push({5: words_of([f"w{n}", f"w{n + 1}", "always"]), 6: batches.plain(2, n)})
    assert len(log.sealed().streams) == 31
    reader = compacted(log)
    assert_same_values(log, reader)
    assert [stream.chunk_count for stream in reader.streams] == [30, 30]
    dictionary = reader.bundle(0)[5].column(0).dictionary
    assert dictionary.to_pylist() == ["w0", "w1", "always", *(f"w{n}" for n in range(2, 31))]


def test_keys_keep_their_type_and_a_new_stream_begins_where_they_end() -> None:
    log = LogFile()
    for n in range(10):
        log.push({5: words_of([f"{n}-{k}" for k in range(50)], pa.int8())})
    reader = compacted(log)
    assert_same_values(log, reader)
    assert [stream.chunk_count for stream in reader.streams] == [2] * 5, "128 values a stream"
    assert reader.bundle(9)[5].schema.field(0).type == pa.dictionary(pa.int8(), pa.string())


def test_keys_are_used_to_the_last() -> None:
    log = LogFile()
    for n in range(2):
        log.push({5: words_of([f"{n}-{k}" for k in range(128)], pa.uint8())})
    reader = compacted(log)
    assert_same_values(log, reader)
    assert len(reader.streams) == 1
    assert len(reader.bundle(0)[5].column(0).dictionary) == 256


@pytest.mark.parametrize(
    "values",
    [
        [["a", None], [None, "b"]],
        [["a", "a"], ["b", "a", "b"]],
        [[1, 2], [2, 3]],
        [[0.0, float("inf")], [-0.0, 0.0]],
        [[b"\0", b""], [b"x", b"\0"]],
        [[True], [False, True]],
        [[], ["a"], []],
    ],
    ids=["nulls", "repeated", "integers", "signed zeroes", "binary", "booleans", "empty"],
)
def test_values_of_every_kind_are_brought_together(values: list[list[object]]) -> None:
    check_values_are_brought_together(values, next(pa.array(each).type for each in values if each))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.float32(), pa.float16()], ids=str)
def test_values_whose_types_are_brought_together_as_others(kind: pa.DataType) -> None:
    numbers: list[list[object]] = [[0.0, 1.5], [-0.0, None]]
    texts: list[list[object]] = [["", "a"], ["a text that is longer than a view holds", None, "a"]]
    check_values_are_brought_together(numbers if pa.types.is_floating(kind) else texts, kind, parse=False)


def check_values_are_brought_together(values: list[list[object]], kind: pa.DataType, *, parse: bool = True) -> None:
    log = LogFile()
    for each in values:
        indices = pa.array([*range(len(each)), None], pa.int8())
        log.push({5: batches.one_column(pa.DictionaryArray.from_arrays(indices, pa.array(each, kind)))})
    reader = compacted(log, parse=parse)
    assert_same_values(log, reader)
    assert len(reader.streams) == 1
    signs = [[str(value) for value in reader.bundle(n)[5].column(0).to_pylist()] for n in range(len(values))]
    assert signs == [[str(value) for value in [*pa.array(each, kind).to_pylist(), None]] for each in values]


def test_nested_dictionaries_are_brought_together_one_by_one() -> None:
    def nested(n: int) -> pa.RecordBatch:
        inner = batches.dictionary([f"d{n}", "both"], [0, 1, None, 1], pa.int8())
        keys = pa.array(["k", "l", "m", "n"])
        return pa.record_batch(
            {
                "struct": pa.StructArray.from_arrays([inner, keys], names=["d", "k"]),
                "list": pa.ListArray.from_arrays([0, 1, 1, 4, 4], batches.dictionary([f"p{n}", "q"], [1, 0, 1, 0])),
                "map": pa.MapArray.from_arrays([0, 2, 2, 4, 4], keys, batches.dictionary(["r"], [0, None, 0, 0])),
                "extension": pa.ExtensionArray.from_storage(pa.opaque(inner.type, "kind", "vendor"), inner),
            }
        )

    log = LogFile()
    for n in range(6):
        log.push({5: nested(n)})
    reader = compacted(log, parse=False)
    assert_same_values(log, reader)
    assert len(reader.streams) == 1


@pytest.mark.parametrize("what", ["ordered", "dictionary of dictionary", "values that cannot be hashed", "compressed"])
def test_what_cannot_be_brought_together_is_left_as_it_is(what: str) -> None:
    log = LogFile()
    for n in range(4):
        array, options = batches.dictionary([f"w{n}"] * 40, range(40)), None
        if what == "ordered":
            array = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([f"w{n}", "x"]), ordered=True)
        elif what == "dictionary of dictionary":
            array = pa.DictionaryArray.from_arrays(
                pa.array([0, 1]), pa.StructArray.from_arrays([batches.dictionary([f"w{n}"], [0, 0])], names=["d"])
            )
        elif what == "values that cannot be hashed":
            array = batches.dictionary([[n], []], [0, 1])
        else:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
        log.push({5: batches.one_column(array)}, options=options)
    reader = compacted(log, parse=what == "ordered")
    assert_same_values(log, reader)
    assert len(reader.streams) == 4


def of_an_unknown_type(words: Sequence[str]) -> bytes:
    """A payload with a dictionary column and one of a type that a later Arrow may have."""

    def encoded(kind: pa.DataType) -> bytes:
        column = batches.dictionary(words, range(len(words)))
        return encode_stream(pa.record_batch({"c": column, "d": pa.nulls(len(words), kind)}))

    text, binary = encoded(pa.string()), encoded(pa.binary())
    (at,) = (at for at, pair in enumerate(zip(text, binary, strict=True)) if pair[0] != pair[1])
    return text[:at] + b"\x63" + text[at + 1 :]


def test_streams_of_a_schema_that_pyarrow_cannot_read_are_left_as_they_are() -> None:
    log = LogFile()
    payloads = [of_an_unknown_type(words) for words in (["a"], ["b", "a"])]
    for payload in payloads:
        with pytest.raises(pa.ArrowInvalid, match="Unrecognized type"):
            pa.ipc.open_stream(payload)
        log.push_payloads({5: payload}, {5: bytes(32)}, {5: 1})
    data = rewritten(log.seal(), parse=False)
    outline = read_outline(reads(data), len(data))
    assert [len(stream.batches) for stream in outline.streams] == [1, 1]
    for stream, payload in zip(outline.streams, payloads, strict=True):
        (message,) = read_messages(reads(data), stream.batches)
        assert message in payload


def test_keys_that_cannot_serve_two_streams_leave_the_first_alone() -> None:
    log = LogFile()
    for name, count in (("a", 100), ("b", 60), ("c", 60)):
        log.push({5: words_of([f"{name}-{n}" for n in range(count)], pa.int8())})
    reader = compacted(log)
    assert_same_values(log, reader)
    assert [stream.chunk_count for stream in reader.streams] == [1, 2]


def test_dictionaries_beyond_what_is_taken_into_memory_are_left_as_they_are() -> None:
    log = LogFile()
    for words in (["a"], ["b"], ["c" * (DICTIONARY_BYTES_MAX + 1)], ["d"]):
        log.push({5: words_of(words)})
    reader = compacted(log, parse=False)
    assert_same_values(log, reader)
    assert [stream.chunk_count for stream in reader.streams] == [2, 1, 1]


def test_a_stream_whose_dictionary_comes_in_two_messages_is_left_as_it_is() -> None:
    log = LogFile()
    fingerprint = fingerprint_of(column(["a"]).schema)
    log.push_payloads({5: with_delta(["a"], ["b"])}, {5: fingerprint}, {5: 1})
    for words in (["c"], ["d"]):
        log.push({5: column(words)}, fingerprints={5: fingerprint})
    reader = SegmentReader(rewritten(log.seal(), parse=False))
    assert [stream.chunk_count for stream in reader.streams] == [1, 2]
    assert [reader.bundle(n)[5].to_pydict() for n in range(3)] == [{"c": ["b"]}, {"c": ["c"]}, {"c": ["d"]}]


def several_groups() -> LogFile:
    """Streams whose batches get other keys, of two and of three messages of more than half of what is read at once."""
    log = LogFile()
    rows = READ_BYTES // 2 // 4 + 1000
    for words, count in ((["a"], 1), (["b", "a"], 2), (["c", "a"], 3)):
        for n in range(count):
            log.push({5: batches.one_column(batches.dictionary(words, [n % len(words)] * rows))})
    return log


def test_large_batches_get_their_keys_a_few_at_a_time() -> None:
    log = several_groups()
    reader = compacted(log, parse=False)
    assert [stream.chunk_count for stream in reader.streams] == [6]
    for index, pushed in enumerate(log.pushed):
        assert reader.bundle(index)[5].column(0).cast(pa.string()).equals(pushed[5].column(0).cast(pa.string()))


@pytest.mark.parametrize(
    ("bytes_there", "said"),
    [(END_OF_STREAM, "where a batch is expected"), (b"\xff\xff\xff\xff\x10\0\0\0" + bytes(16), "cannot be decoded")],
    ids=["end mark", "no message"],
)
def test_a_batch_that_is_none_ends_the_rewriting(bytes_there: bytes, said: str) -> None:
    """No file comes of it, even if nobody has checked the checksum before."""
    data = bytearray(several_groups().seal())
    outline = read_outline(reads(bytes(data)), len(data))
    at = int(outline.streams[1].batches[1, 0])
    data[at : at + len(bytes_there)] = bytes_there
    with pytest.raises(ArrowError, match=said):
        b"".join(chain.from_iterable(Rewriting(outline, reads(bytes(data))).parts()))


def test_a_compressed_batch_in_the_middle_of_a_stream_is_refused() -> None:
    log = LogFile()
    long = [f"word-{n}" for n in range(100)]
    log.push({5: words_of(["first", *long])})
    log.push({5: words_of(long)})
    log.push({5: words_of(long)}, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    data = log.seal()
    streams = read_outline(reads(data), len(data)).streams
    if len(streams[1].batches) < 2:
        pytest.skip("its dictionary has other bytes, and so a stream of its own")
    with pytest.raises(ArrowError, match="compressed"):
        rewritten(data)


def test_several_dictionaries_share_the_capacity_of_the_smallest_key() -> None:
    log = LogFile()
    for n in range(6):
        wide = batches.dictionary([f"wide-{n}-{k}" for k in range(30)], range(30), pa.int32())
        narrow = batches.dictionary([f"narrow-{n}-{k}" for k in range(30)], range(30), pa.int8())
        log.push({5: pa.record_batch({"wide": wide, "narrow": narrow})})
    reader = compacted(log)
    assert_same_values(log, reader)
    assert [stream.chunk_count for stream in reader.streams] == [4, 2]
