"""Dictionaries: equal ones are shared, extensions replace, anything else gets its own stream."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError
from quiver_actors.store.segment import dictionaries
from quiver_actors.store.segment.arrow_file import read_footer_counts
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM, walk_stream
from quiver_actors.store.segment.placement import place_payload
from quiver_actors.store.segment.reader import SegmentReader
from tests.golden.parser import parse_segment
from tests.unit.store.segment.batches import dictionary, one_column
from tests.unit.store.segment.logfile import LogFile, encode_stream, fingerprint_of


def column(values: Sequence[object], indices: Sequence[int | None] | None = None) -> pa.RecordBatch:
    return one_column(dictionary(values, [len(values) - 1] if indices is None else indices, pa.uint16()))


def push_all(*pushed: pa.RecordBatch) -> LogFile:
    log = LogFile()
    for batch in pushed:
        log.push({5: batch})
    return log


def chunks(log: LogFile) -> list[int]:
    """Chunks of each stream, after checking that every bundle reads back."""
    data = log.seal()
    reader = SegmentReader(data)
    for index, bundle in enumerate(log.pushed):
        read = reader.bundle(index)
        for slot_id, batch in read.items():
            batch.validate(full=True)
            assert batch.schema.equals(bundle[slot_id].schema, check_metadata=True)
            assert batch.to_pydict() == bundle[slot_id].to_pydict()
    for stream in reader.streams:
        end = stream.byte_offset + stream.byte_length
        counts = read_footer_counts(data, stream.byte_offset, end)
        assert counts.batches == stream.chunk_count
        assert counts.dictionaries == len(log.builder.streams[stream.stream_id].schema.dictionary_ids)
    return [stream.chunk_count for stream in reader.streams]


def test_equal_dictionaries_are_referenced_once() -> None:
    log = push_all(column(["a", "b"], [0]), column(["a", "b"], [1, None]), column(["a", "b"], []))
    assert chunks(log) == [3]
    parse_segment(log.seal())


def test_extension_replaces_the_referenced_block() -> None:
    log = push_all(column(["a"]), column(["a", "b"]), column(["a", "b", "c"]), column(["a", "b", "c"]))
    assert chunks(log) == [4]
    segment = parse_segment(log.seal())
    assert [bundle[5] for bundle in segment.bundles] == [{"c": ["a"]}, {"c": ["b"]}, {"c": ["c"]}, {"c": ["c"]}]


def test_equal_batches_equal_the_pushed_ones_unless_extended() -> None:
    log = push_all(column(["a", "b"]), column(["b", "a"]))
    reader = log.sealed()
    assert all(reader.batch(n, 5).equals(log.pushed[n][5]) for n in range(2))


def test_different_dictionary_starts_a_stream() -> None:
    assert chunks(push_all(column(["a", "b"]), column(["b", "a"]), column(["a"]), column(["x", "b", "c"]))) == [
        1,
        1,
        1,
        1,
    ]


def test_bundles_return_to_the_stream_of_their_dictionary() -> None:
    pushed = [column([f"{n % 20}-a", f"{n % 20}-b"], [n % 2]) for n in range(200)]
    assert chunks(push_all(*pushed)) == [10] * 20


def test_interleaved_producers_that_grow_their_dictionaries_keep_one_stream_each() -> None:
    pushed = [column([f"p{n % 3}-{k}" for k in range(1 + n // 3)]) for n in range(60)]
    assert chunks(push_all(*pushed)) == [20, 20, 20]


def test_dictionary_that_grows_after_many_others_is_found_again() -> None:
    ever_new = [column([f"only-{n}"]) for n in range(3 * dictionaries.MISSES_BEFORE_SAMPLING)]
    growing = [column([f"g{k}" for k in range(1 + n)]) for n in range(2 * dictionaries.MISSES_BEFORE_SAMPLING)]
    streams = chunks(push_all(*ever_new, *growing))
    assert sum(streams) == len(ever_new) + len(growing)
    assert max(streams) > dictionaries.MISSES_BEFORE_SAMPLING


def test_large_dictionaries_are_read_back_for_the_comparison() -> None:
    values: Sequence[object] = [f"value-{n:06}" for n in range(dictionaries.KEPT_BYTES_MAX // 10)]
    log = push_all(column(values), column(values), column([*values, "more"]), column(["other"]), column(values))
    assert chunks(log) == [3, 1, 1]


def test_nulls_in_dictionaries() -> None:
    assert chunks(push_all(column(["a", None]), column(["a", None, "b"]), column(["a", "x", "b"]))) == [2, 1]


def test_float_that_differs_in_its_sign_of_zero_is_another_dictionary() -> None:
    log = push_all(column([0.0]), column([-0.0, 1.0], [0]), column([0.0, 1.0], [0]))
    reader = log.sealed()
    assert [str(reader.batch(n, 5).column(0)[0].as_py()) for n in range(3)] == ["0.0", "-0.0", "0.0"]


@pytest.mark.parametrize("kind", [pa.float64(), pa.opaque(pa.float64(), "kind", "vendor")], ids=["plain", "extension"])
def test_zeroes_of_two_signs_in_values_of_dictionaries_are_not_taken_for_each_other(kind: pa.DataType) -> None:
    def column_of(*numbers: float) -> pa.RecordBatch:
        values = pa.array(numbers)
        if isinstance(kind, pa.BaseExtensionType):
            values = pa.ExtensionArray.from_storage(kind, values)
        structs = pa.StructArray.from_arrays([values], names=["x"])
        return one_column(pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), structs))

    log = push_all(column_of(0.0), column_of(-0.0, 1.0), column_of(0.0, 1.0))
    reader = log.sealed()
    assert [str(reader.batch(n, 5).column(0)[0].as_py()["x"]) for n in range(3)] == ["0.0", "-0.0", "0.0"]


def test_several_dictionaries_extend_together_or_not_at_all() -> None:
    def pair(a: Sequence[object], b: Sequence[object]) -> pa.RecordBatch:
        return pa.record_batch({"a": dictionary(a, [0]), "n": pa.array([1]), "b": dictionary(b, [0])})

    assert chunks(push_all(pair(["a"], ["x"]), pair(["a", "b"], ["x"]), pair(["a", "b"], ["x", "y"]))) == [3]
    assert chunks(push_all(pair(["a"], ["x"]), pair(["a", "b"], ["z"]))) == [1, 1]
    assert chunks(push_all(pair(["a"], ["x", "y"]), pair(["a", "b"], ["x"]))) == [1, 1]


def nest_in_struct(values: Sequence[object]) -> pa.Array:
    return pa.StructArray.from_arrays([dictionary(values, [len(values) - 1])], names=["d"])


def nest_in_list(values: Sequence[object]) -> pa.Array:
    return pa.ListArray.from_arrays([0, 1], dictionary(values, [len(values) - 1]))


def nest_in_map(values: Sequence[object]) -> pa.Array:
    return pa.MapArray.from_arrays([0, 1], pa.array(["k"]), dictionary(values, [len(values) - 1]))


def nest_in_list_view(values: Sequence[object]) -> pa.Array:
    return pa.ListViewArray.from_arrays([0], [1], dictionary(values, [len(values) - 1]))


def nest_in_union(values: Sequence[object]) -> pa.Array:
    return pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [dictionary(values, [len(values) - 1])])


def nest_in_runs(values: Sequence[object]) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), dictionary(values, [len(values) - 1]))


def nest_in_extension(values: Sequence[object]) -> pa.Array:
    storage = nest_in_struct(values)
    return pa.ExtensionArray.from_storage(pa.opaque(storage.type, "kind", "vendor"), storage)


NESTS = [nest_in_extension, nest_in_struct, nest_in_list, nest_in_map, nest_in_list_view, nest_in_union, nest_in_runs]


@pytest.mark.parametrize("nest", NESTS, ids=lambda nest: nest.__name__)
def test_nested_dictionaries_follow_the_same_rule(nest: Callable[[Sequence[object]], pa.Array]) -> None:
    sets: list[Sequence[object]] = [["a"], ["a", "b"], ["b", "a"], ["a", "b", "c"], ["b", "a"]]
    assert chunks(push_all(*(one_column(nest(values)) for values in sets))) == [3, 2]


def test_dictionary_inside_a_dictionary() -> None:
    def outer(inner: Sequence[object], indices: list[int]) -> pa.RecordBatch:
        structs = pa.StructArray.from_arrays([dictionary(inner, indices)], names=["d"])
        return one_column(pa.DictionaryArray.from_arrays(pa.array([len(indices) - 1], pa.int8()), structs))

    # The outer messages of the first and third bundle are byte-equal, their values are not.
    log = push_all(outer(["a", "b"], [0, 1]), outer(["a", "b"], [0, 1, 0]), outer(["b", "a"], [0, 1]))
    assert chunks(log) == [2, 1]


def test_dictionary_of_a_dictionary_is_nothing_that_arrow_streams_can_carry() -> None:
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1]), dictionary(["a", "b"], [1, 0]))
    with pytest.raises(OSError, match="out of range"):
        pa.ipc.open_stream(encode_stream(one_column(twice))).read_next_batch()


def with_delta(first: Sequence[object], delta: Sequence[object]) -> bytes:
    """A payload whose dictionary comes in two messages."""
    sink = pa.BufferOutputStream()
    batches = [column(first), column([*first, *delta])]
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    ) as writer:
        writer.write_batch(batches[0])
        after_first = sink.tell()
        writer.write_batch(batches[1])
    data: bytes = sink.getvalue().to_pybytes()
    layout = walk_stream(data[:after_first] + END_OF_STREAM, 0, after_first + 8)
    return data[: layout.batch.offset] + data[after_first:]


def test_deltas_of_one_payload_belong_together() -> None:
    payload = with_delta(["a"], ["b"])
    assert [span.is_delta for span in walk_stream(payload, 0, len(payload)).dictionaries] == [False, True]
    log = LogFile()
    fingerprint = fingerprint_of(column(["a"]).schema)
    log.push({5: column(["a"])})
    log.push_payloads({5: payload}, {5: fingerprint}, {5: 1})
    log.push({5: column(["a", "b", "c"])})
    reader = log.sealed()
    assert [reader.batch(n, 5).to_pydict() for n in range(3)] == [{"c": ["a"]}, {"c": ["b"]}, {"c": ["c"]}]
    assert len(reader.streams) == 1


def test_delta_that_stays_the_last_word() -> None:
    log = LogFile()
    fingerprint = fingerprint_of(column(["a"]).schema)
    for payload in (with_delta(["a"], ["b"]), encode_stream(column(["a", "b"], [1])), with_delta(["a"], ["b"])):
        log.push_payloads({5: payload}, {5: fingerprint}, {5: 1})
    reader = log.sealed()
    assert [reader.batch(n, 5).to_pydict() for n in range(3)] == [{"c": ["b"]}] * 3


def test_dictionary_sent_twice_in_one_payload_means_the_later_one() -> None:
    payloads = [encode_stream(column(values, [0])) for values in (["a"], ["b"])]
    layouts = [walk_stream(payload, 0, len(payload)) for payload in payloads]
    unused = payloads[0][layouts[0].dictionaries[0].offset : layouts[0].batch.offset]
    at = layouts[1].schema_length
    log = LogFile()
    log.push_payloads({5: payloads[1][:at] + unused + payloads[1][at:]}, {5: bytes(32)}, {5: 1})
    assert log.sealed().batch(0, 5).to_pydict() == {"c": ["b"]}


def test_damaged_dictionary_costs_its_own_bundle_only() -> None:
    good = encode_stream(column(["aaaa", "bbbb"], [0]))
    span = walk_stream(good, 0, len(good)).dictionaries[0]
    damaged = bytearray(good)
    damaged[span.offset + span.metadata_bytes + 4 : span.offset + span.metadata_bytes + 8] = b"\xff\xff\xff\x7f"
    log = LogFile()
    log.push({5: column(["aaaa"], [0])})
    log.push_payloads({5: bytes(damaged)}, {5: fingerprint_of(column(["a"]).schema)}, {5: 1})
    log.push({5: column(["aaaa", "bbbb"], [1])})
    reader = log.sealed()
    assert reader.batch(0, 5).to_pydict() == {"c": ["aaaa"]}
    assert reader.batch(2, 5).to_pydict() == {"c": ["bbbb"]}


@pytest.mark.parametrize("seed", range(8))
def test_random_mixture_reads_back(seed: int) -> None:
    rng = random.Random(seed)
    pools = [[f"{name}{n}" for n in range(30)] for name in "abc"]
    pushed: list[pa.RecordBatch] = []
    for _ in range(150):
        pool = rng.choice(pools)
        values: Sequence[object] = pool[: rng.randint(1, 30)] if rng.random() < 0.8 else rng.sample(pool, 5)
        indices = [rng.randrange(len(values)) if rng.random() < 0.9 else None for _ in range(rng.randrange(4))]
        flat = dictionary(values, indices, pa.int8())
        pushed.append(one_column(flat if rng.random() < 0.5 else pa.StructArray.from_arrays([flat], names=["d"])))
    chunks(push_all(*pushed))


def test_refused_bundle_leaves_no_trace_in_the_streams_of_others() -> None:
    log = LogFile()
    log.push({5: column(["a"])})
    grown = encode_stream(column(["a", "b"]))
    taken = place_payload(
        grown, 0, len(grown), file_offset=1 << 30, slot_id=5, fingerprint=log.builder.streams[0].schema[1]
    )
    refused = (*taken[:5], ())
    with pytest.raises(ArrowError):
        log.builder.append(1, 1, 1, 1, (taken, (refused[0]._replace(slot_id=6), *refused[1:])))
    log.push({5: column(["a"])})
    assert chunks(log) == [2]
