"""The open segment, without a file."""

from __future__ import annotations

import numpy as np
import pytest

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import ArrowError, InvalidBundle, Truncated
from quiver_actors.store.segment.builder import BundleRun, SegmentBuilder
from quiver_actors.store.segment.placement import SlotPlacement, StreamSchema, place_payload
from quiver_actors.store.segment.tail import encode_tail
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import encode_stream


def no_read(offset: int, length: int) -> bytes:
    raise AssertionError("nothing is to be read back")


def place(slot_id: int = 3, offset: int = 192) -> SlotPlacement:
    payload = encode_stream(batches.plain())
    return place_payload(payload, 0, len(payload), file_offset=offset, slot_id=slot_id, fingerprint=bytes(32))


def test_empty_builder() -> None:
    builder = SegmentBuilder(9, no_read)
    assert builder.is_empty
    assert (builder.bundle_count, builder.stream_count, builder.row_count) == (0, 0, 0)
    assert (builder.first_sequence, builder.last_sequence) == (0, 0)
    assert len(builder.bundle_summaries().sequence) == 0


def test_append_counts_and_numbers() -> None:
    builder = SegmentBuilder(9, no_read)
    assert [builder.append(50 + n, -7 + n, n - 1, 600, (place(1), place(2))) for n in range(3)] == [0, 1, 2]
    assert (builder.bundle_count, builder.stream_count, builder.row_count, builder.is_empty) == (3, 2, 30, False)
    assert (builder.first_sequence, builder.last_sequence) == (50, 52)
    assert (builder.first_ingestion_ts_nanos, builder.last_ingestion_ts_nanos) == (-7, -5)
    summaries = builder.bundle_summaries()
    assert summaries.sequence.tolist() == [50, 51, 52]
    assert summaries.ingestion_ts_nanos.tolist() == [-7, -6, -5]
    assert summaries.item_count.tolist() == [-1, 0, 1]
    assert summaries.byte_count.tolist() == [600] * 3


def test_ingestion_times_are_those_of_the_earliest_and_latest_bundle_that_is_there() -> None:
    builder = SegmentBuilder(9, no_read)
    builder.append(1, 0, 0, 0, ())
    assert (builder.first_ingestion_ts_nanos, builder.last_ingestion_ts_nanos) == (0, 0)
    for sequence, ingestion_ts in enumerate((70, 50, 60), start=2):
        builder.append(sequence, ingestion_ts, 1, 1, (place(),))
    builder.append(5, 0, 0, 0, ())
    assert (builder.first_ingestion_ts_nanos, builder.last_ingestion_ts_nanos) == (50, 70)
    assert (builder.first_sequence, builder.last_sequence) == (1, 5)


def run_of(schemas: tuple[StreamSchema, ...], first_sequence: int, count: int) -> BundleRun:
    """Bundles whose numbers all differ, those of their slots as well."""
    numbers = np.arange(first_sequence, first_sequence + count)
    of_slots = numbers + 1000 * np.arange(len(schemas))[:, None]
    columns = (1000 - numbers, numbers % 3 - 1, numbers * 64)
    columns_of_slots = (of_slots % 5, of_slots * 64 + 192, of_slots * 8, of_slots * 16)
    return BundleRun(schemas, first_sequence, *columns, *columns_of_slots, row_count=int(columns_of_slots[0].sum()))


def append_each(builder: SegmentBuilder, run: BundleRun) -> None:
    for number, numbers in enumerate(zip(*run[2:5], strict=True)):
        of_slots = np.array(run[5:9])[:, :, number].T.tolist()
        slots = [(schema, *values, ()) for schema, values in zip(run.schemas, of_slots, strict=True)]
        time, items, size = map(int, numbers)
        builder.append(run.first_sequence + number, time, items, size, slots)


def tail_of(builder: SegmentBuilder) -> bytes:
    places = {"entries_end": 1 << 20, "crc32_of_entries": 7, "wal_position_start": 0, "wal_position_end": 1 << 20}
    return b"".join(encode_tail(builder, **places, incarnation=bytes(16)))


def test_runs_are_what_their_bundles_are_one_by_one_whenever_somebody_reads() -> None:
    first, second, third = (place(slot)[0] for slot in (1, 2, 3))
    several = (second, third)
    shapes = [((first,), 3), ((first,), 40), ((second,), 5), (several, 30), (several, 3), ((first,), 1)]
    shapes += [((second,), 5000), ((first, second, third), 200)]
    for read_after in range(len(shapes) + 1):
        at_once, one_by_one, sequence = SegmentBuilder(9, no_read), SegmentBuilder(9, no_read), 10
        for number, (schemas, count) in enumerate(shapes):
            run = run_of(schemas, sequence, count)
            at_once.append_run(run)
            append_each(one_by_one, run)
            sequence += count
            if number == read_after:
                assert tail_of(at_once) == tail_of(one_by_one)
                for builder in (at_once, one_by_one):
                    builder.append(sequence, -50, 1, 64, (place(1), place(2)))
                sequence += 1
        assert (at_once.bundle_count, at_once.row_count) == (one_by_one.bundle_count, one_by_one.row_count)
        assert at_once.first_sequence == 10
        assert at_once.last_sequence == sequence - 1
        assert tail_of(at_once) == tail_of(one_by_one)


def test_summaries_are_copies() -> None:
    builder = SegmentBuilder(9, no_read)
    builder.append(1, 1, 1, 1, (place(),))
    summaries = builder.bundle_summaries()
    builder.append(2, 2, 2, 2, (place(),))
    assert summaries.sequence.tolist() == [1]


def test_equal_schemas_of_different_connections_share_a_stream() -> None:
    builder = SegmentBuilder(9, no_read)
    first, second = place(), place()
    assert first[0] is not second[0]
    builder.append(1, 1, 1, 1, (first,))
    builder.append(2, 2, 2, 2, (second,))
    assert builder.stream_count == 1


def test_full_segment_refuses_and_stays_as_it_is() -> None:
    builder = SegmentBuilder(9, no_read)
    slots = (place(),)
    for n in range(SEGMENT_BUNDLES_MAX):
        builder.append(n, n, 1, 1, slots)
    with pytest.raises(InvalidBundle, match="65535"):
        builder.append(70_000, 1, 1, 1, slots)
    assert (builder.bundle_count, builder.last_sequence) == (SEGMENT_BUNDLES_MAX, SEGMENT_BUNDLES_MAX - 1)


def test_a_run_that_does_not_fit_is_refused_whole() -> None:
    def run(first_sequence: int, count: int) -> BundleRun:
        each = np.full(count, 64)
        of_slot, offsets = each[None], 192 + 64 * np.arange(count)[None]
        columns = (each, each, each, of_slot, offsets, of_slot, of_slot)
        return BundleRun((place()[0],), first_sequence, *columns, row_count=64 * count)

    builder = SegmentBuilder(9, no_read)
    builder.append_run(run(0, SEGMENT_BUNDLES_MAX - 1))
    assert repr(builder) == "<SegmentBuilder 9 bundles=65534 streams=1 rows=4194176>"
    with pytest.raises(InvalidBundle, match="holds 65534 bundles: no 2 more fit"):
        builder.append_run(run(SEGMENT_BUNDLES_MAX - 1, 2))
    assert (builder.bundle_count, builder.streams[0].chunk_count) == (SEGMENT_BUNDLES_MAX - 1,) * 2
    builder.append_run(run(SEGMENT_BUNDLES_MAX - 1, 1))
    assert builder.last_sequence == SEGMENT_BUNDLES_MAX - 1


def test_payload_without_its_dictionary_is_refused_and_adds_nothing() -> None:
    payload = encode_stream(batches.one_column(batches.dictionary(["a"], [0])))
    placed = place_payload(payload, 0, len(payload), file_offset=192, slot_id=3, fingerprint=bytes(32))
    builder = SegmentBuilder(9, no_read)
    delta = placed[5][0]._replace(is_delta=True)
    other = placed[5][0]._replace(id=77)
    for wrong in ((), (delta,), (other,), (*placed[5], other)):
        with pytest.raises(ArrowError):
            builder.append(1, 1, 1, 1, (place(1), (*placed[:5], wrong)))
    assert builder.is_empty
    assert (builder.row_count, builder.stream_count) == (0, 0)
    builder.append(1, 1, 1, 1, (placed,))


def test_stream_schema_knows_its_dictionaries() -> None:
    plain = StreamSchema(1, bytes(32), batches.plain().schema.serialize().to_pybytes())
    keyed = StreamSchema(1, bytes(32), batches.dictionary_keys().schema.serialize().to_pybytes())
    assert not plain.has_dictionaries
    assert keyed.has_dictionaries
    assert len(keyed.dictionary_ids) == 8
    with pytest.raises(Truncated):
        StreamSchema(1, bytes(32), b"nothing").has_dictionaries  # noqa: B018


def test_incarnation_of_the_wrong_length_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="16"):
        encode_tail(
            SegmentBuilder(1, no_read),
            entries_end=121,
            crc32_of_entries=0,
            wal_position_start=0,
            wal_position_end=0,
            incarnation=b"short",
        )
