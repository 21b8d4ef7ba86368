"""How the bundles of one call are put into messages: whatever way, the bytes are those of a plan each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.framing import BUFFER_BYTES
from quiver_actors.base.protocol.messages import ENTRY_ROW, SLOT_ROW, TopicInfo
from quiver_actors.client.grouping import GROUP_BYTES_MAX, RUN_ROWS_MAX, Grouping, Planned
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.errors import BundleTooLarge, InvalidBundle, UsageError
from quiver_actors.store.encoding.entries import PushRows, plan, write
from quiver_actors.store.encoding.runs import RUN_BUNDLES_MIN, PlannedRun, RunMemory
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.staged.keys import with_key
from tests.unit.client.entries import parse_span
from tests.unit.store.encoding.test_entries import ONE_BATCH, Period, coded, numbers

SLOTS = TopicSlots(TopicInfo("t", {}, "wal", 0))
Pairs = Sequence[tuple[Bundle, int | None]]


def group(pairs: Pairs, memory: RunMemory | None = None, streams: StreamTable | None = None) -> list[Planned]:
    return list(Grouping(SLOTS, streams or StreamTable("t"), memory or RunMemory()).groups(pairs))


def without_counts(bundles: Sequence[Bundle]) -> Pairs:
    return [(bundle, None) for bundle in bundles]


def laid_out(groups: Sequence[Planned]) -> tuple[bytes, bytes, bytes, bytes]:
    """Span and rows, written where old bytes are."""
    ring = memoryview(bytearray(b"\xaa" * (sum(each.size_bytes for each in groups) + 128)))
    offset, rows = 64, []
    for each in groups:
        rows.append(each.write(ring, offset))
        offset += each.size_bytes
    assert bytes(ring[:64]) == bytes(ring[offset:]) == b"\xaa" * 64, "nothing outside of the spans is written"
    entries, slots, dictionaries = (
        b"".join(packed for row in rows for packed in getattr(row, name))
        for name in ("entries", "slots", "dictionaries")
    )
    return bytes(ring[64:offset]), entries, slots, dictionaries


def planned_each(pairs: Pairs, streams: StreamTable) -> tuple[bytes, bytes, bytes, bytes]:
    plans = [plan(SLOTS.batches_of(bundle), streams, item_count) for bundle, item_count in pairs]
    ring, rows, offset = memoryview(bytearray(sum(each.entry_bytes for each in plans))), PushRows(), 0
    for each in plans:
        write(each, ring, offset, rows)
        offset += each.entry_bytes
    return bytes(ring), b"".join(rows.entries), b"".join(rows.slots), b"".join(rows.dictionaries)


def check_same(pairs: Pairs, memory: RunMemory | None = None) -> list[Planned]:
    """The groups, after their bytes have been compared with those of plans, and read by a judge of its own."""
    streams = StreamTable("t")
    groups = group(pairs, memory, streams)
    found = laid_out(groups)
    assert found == planned_each(pairs, streams)
    parse_span(*found)
    assert sum(map(len, groups)) == len(pairs)
    assert all(len(each) <= RUN_ROWS_MAX // 2 for each in groups)
    return groups


def texts(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"text": pa.array(["x" * number for number in range(rows)], pa.string())})


@pytest.mark.parametrize("batch", ONE_BATCH.values(), ids=ONE_BATCH.keys())
def test_every_kind_comes_out_as_planned(batch: pa.RecordBatch) -> None:
    check_same(without_counts([{30: batch}] * (RUN_BUNDLES_MIN + 1)))


def test_like_bundles_are_runs_of_every_length_and_memory_is_used_again() -> None:
    memory = RunMemory()
    for rows in range(70):
        batches = [numbers(rows), numbers((rows * 7) % 60), numbers(0)] * 5
        groups = check_same(without_counts(batches), memory)
        assert all(isinstance(each, PlannedRun) for each in groups)


def test_runs_that_are_laid_out_as_the_last_one_differ_in_what_they_hold() -> None:
    memory, streams = RunMemory(), StreamTable("t")
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])

    def texts(*lengths: int, value: int = 1) -> pa.RecordBatch:
        columns = [[value] * len(lengths), ["x" * length for length in lengths]]
        return pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
        )

    alike = [texts(3, 4)] * 20
    for bundles in (alike, alike, [texts(4, 3, value=2)] * 20, [texts(7)] * 20, [texts(3, 40)] * 20, alike, alike[:15]):
        for counts in ([None] * 20, range(20), [7] * 20):
            pairs = [*zip(bundles, counts, strict=False)]
            found = laid_out(group(pairs, memory, streams))
            assert found == planned_each(pairs, streams)
            parse_span(*found)
    in_slots = [*without_counts([{slot: numbers(5)} for slot in (1, 2) for _ in range(20)])]
    assert laid_out(group(in_slots, memory, streams)) == planned_each(in_slots, streams)


def test_bundles_of_the_same_slots_are_runs() -> None:
    memory = RunMemory()
    for rows in range(40):
        bundles = [
            {40: numbers(size), 3: texts(size % 5), 63: numbers(0)} for size in (rows, (rows * 7) % 60, rows // 2)
        ]
        groups = check_same(without_counts(bundles * 5), memory)
        assert all(isinstance(each, PlannedRun) for each in groups)


def test_bundles_that_only_look_like_the_last_one_are_what_they_say() -> None:
    """Keys in another order, other slots, another schema, other metadata, a table, one slot less or more: between those that are alike."""
    first, second = numbers(5), texts(5)
    alike = {1: first, 2: second}
    others: list[Bundle] = [
        {2: second, 1: first},
        {1: second, 2: first},
        {1: first, 3: second},
        {1: first},
        {1: first, 2: second, 3: first},
        {1: first, 2: second.replace_schema_metadata({"k": "v"})},
        {1: pa.Table.from_batches([first]), 2: second},
        {1: numbers(6), 2: second},
        {1: first, 2: texts(1)},
        {1: first, 2: numbers(90_000)},
        {1: first, 2: coded(["a"])},
        first,
    ]
    for other in others:
        for count in (3, RUN_BUNDLES_MIN, 70):
            check_same(without_counts([*[alike] * count, other, *[alike] * count, *[other] * count]))


def test_slots_in_another_order_keep_what_is_theirs() -> None:
    """Slots with one schema and equal rows are told apart by their keys alone."""
    first, second = numbers(5), numbers(20).slice(9, 5)
    for bundles in ([{2: second, 1: first}] * 30, [{1: first, 2: second}, {2: second, 1: first}] * 30):
        check_same(without_counts(bundles))


def test_one_batch_in_two_slots_does_not_hide_their_order() -> None:
    same, first, second = numbers(5), numbers(20).slice(3, 5), numbers(20).slice(9, 5)
    check_same(without_counts([*[{2: same, 1: same}] * 3, *[{2: second, 1: first}] * 30]))


def test_bundles_handed_on_without_their_key_are_runs() -> None:
    """A key left out of an envelope does not make neighbours different."""
    handed_on = {1: numbers(5), ENVELOPE_SLOT: with_key(None, "p", 7)}
    for bundles in ([handed_on] * 40, [{ENVELOPE_SLOT: with_key(None, "p", 7), 1: numbers(5)}] * 40):
        groups = check_same(without_counts(bundles))
        assert all(isinstance(each, PlannedRun) for each in groups)


@pytest.mark.parametrize(
    "wrong", [{}, {True: numbers(5), 2: numbers(5)}, {1: numbers(5), 64: numbers(5)}, {1: numbers(5), 2: "no batch"}]
)
def test_what_is_no_bundle_is_refused_among_bundles_of_several_slots(wrong: Bundle) -> None:
    alike = {1: numbers(5), 2: numbers(5)}
    groups: list[Planned] = []
    with pytest.raises(UsageError):
        collect(without_counts([*[alike] * 20, wrong, alike]), groups)
    assert sum(map(len, groups)) == 20


def test_bundles_of_a_trace_carry_it_among_others_that_are_alike() -> None:
    slots = SLOTS.traced({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
    for bundle in (numbers(5), {1: numbers(5), 2: texts(5)}):
        streams, pairs = StreamTable("t"), without_counts([bundle] * 40)
        groups = list(Grouping(slots, streams, RunMemory()).groups(pairs))
        assert all(isinstance(each, PlannedRun) for each in groups)
        assert all(63 in entry.batches for entry in parse_span(*laid_out(groups)))


def test_more_rows_than_an_entry_can_say_are_refused() -> None:
    giant = pa.record_batch([pa.nulls((1 << 31) - 1)], names=["n"])
    groups: list[Planned] = []
    with pytest.raises(InvalidBundle, match="rows"):
        collect(without_counts([{1: giant, 2: giant, 3: giant}] * 20), groups)
    assert groups == []


def test_mixtures_come_out_as_planned() -> None:
    rng = random.Random(5)
    kinds: list[Bundle] = [
        numbers(5),
        numbers(5),
        numbers(5),
        {63: numbers(7)},
        {1: numbers(3), 2: numbers(4)},
        {2: numbers(4), 1: numbers(3)},
        {1: numbers(5), 7: texts(2)},
        coded(["a", "b"]),
        numbers(9_000),
        pa.Table.from_batches([numbers(6)]),
        numbers(70_000).slice(10, 5),
    ]
    for _ in range(12):
        pairs: list[tuple[Bundle, int | None]] = []
        for _ in range(12):
            bundle = rng.choice(kinds)
            pairs += [(bundle, rng.choice((None, 0, 5, (1 << 63) - 1))) for _ in range(rng.choice((1, 2, 15, 70)))]
        check_same(pairs)


def test_schemas_that_alternate_share_their_messages() -> None:
    bundles = [numbers(5), {7: numbers(5)}] * 64
    assert [len(each) for each in group(without_counts(bundles))] == [64, 64]


def test_groups_are_full_but_not_over_their_limits() -> None:
    assert [len(each) for each in group(without_counts([numbers(5)] * 900))] == [64, 768, 68]
    of_two_slots = [{slot: texts(0) for slot in range(2)}] * 900
    assert [len(each) for each in group(without_counts(of_two_slots))] == [64, RUN_ROWS_MAX // 3, 324]
    rows_bytes = RUN_ROWS_MAX * max(ENTRY_ROW.size, SLOT_ROW.size)
    assert rows_bytes + 256 < BUFFER_BYTES, "the message of a full run fits a reader's usual buffer"
    large = group(without_counts([numbers(4_000)] * 100))
    assert all(each.size_bytes <= GROUP_BYTES_MAX for each in large)
    assert all(each.size_bytes > GROUP_BYTES_MAX // 2 for each in large[:-1])


def test_run_whose_guess_was_too_low_goes_on_in_the_next_message() -> None:
    """Many columns: messages are far larger than the buffers that were counted."""
    wide = pa.record_batch({f"c{number}": pa.array([number], pa.int8()) for number in range(60)})
    groups = check_same(without_counts([wide] * 1000))
    assert all(each.size_bytes <= GROUP_BYTES_MAX for each in groups)


@pytest.mark.parametrize("wrong", [-1, 1.5])
def test_wrong_bundle_comes_after_all_before_it(wrong: Any) -> None:
    for count in (3, RUN_BUNDLES_MIN, 100):
        groups: list[Planned] = []
        pairs = [*without_counts([numbers(4)] * count), (numbers(4), wrong), (numbers(4), None)]
        with pytest.raises(InvalidBundle, match="item_count"):
            collect(pairs, groups)
        assert sum(map(len, groups)) == count


def collect(pairs: Pairs, into: list[Planned]) -> None:
    for each in Grouping(SLOTS, StreamTable("t"), RunMemory()).groups(pairs):
        into.append(each)


def test_what_arrow_cannot_encode_ends_a_run() -> None:
    many = pa.record_batch([pa.nulls(1 << 32)], names=["n"])
    groups: list[Planned] = []
    with pytest.raises(InvalidBundle, match="Arrow cannot encode"):
        collect(without_counts([*[many.slice(0, 5)] * 20, many, *[many.slice(0, 5)] * 20]), groups)
    assert sum(map(len, groups)) == 20


def test_written_run_can_be_planned_again() -> None:
    streams = StreamTable("t")
    of_slots: Pairs = [({4: numbers(number), 5: texts(0)}, number) for number in range(30)]
    for pairs in ([(numbers(number), number) for number in range(30)], of_slots):
        (run,) = group(pairs, streams=streams)
        run.write(memoryview(bytearray(run.size_bytes)), 0)
        again = [plan(batches, streams, item_count) for batches, item_count in run.bundles_from(10)]
        assert [each.item_count for each in again] == list(range(10, 30))
        assert [each.row_count for each in again] == list(range(10, 30))
        assert all(len(each.streams) == run.streams_max for each in again)


def one_binary(size_bytes: int) -> pa.RecordBatch:
    """One row of that size; its zeroes cost no memory until somebody looks at them."""
    content = np.zeros(size_bytes, np.uint8)
    offsets = pa.array([0, size_bytes], pa.int32()).buffers()[1]
    return pa.record_batch({"x": pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(content)])})


def test_large_batches_of_as_many_rows_as_the_small_ones_around_them_cost_no_order() -> None:
    small, large, giant = one_binary(100), one_binary(400_000), one_binary(3 << 20)
    bundles = [small] * 20 + [large] * 4 + [small] * 20 + [giant] + [small] * 30 + [giant, giant] + [small] * 3
    groups = check_same(without_counts(bundles))
    assert isinstance(groups[0], PlannedRun)
    assert sum(len(each) for each in groups if isinstance(each, PlannedRun)) >= 60, "those around it stay runs"


@pytest.mark.parametrize("size_bytes", [100_000, 400_000, 3 << 20])
def test_a_large_first_bundle_is_right_in_front_of_small_ones(size_bytes: int) -> None:
    small, large = one_binary(100), one_binary(size_bytes)
    for first, others in ((large, small), ({1: small, 2: large}, {1: small, 2: small})):
        for count in (1, RUN_BUNDLES_MIN, 70):
            check_same(without_counts([first, *[others] * count]))


def test_slices_of_a_large_batch_are_right_in_runs() -> None:
    table = numbers(20_000)
    slices = [table.slice(first * 7, 40) for first in range(60)]
    check_same(without_counts([*slices, *[numbers(40)] * 20, *slices]))
    check_same(without_counts([numbers(40), *slices]))


@pytest.mark.parametrize("in_front", [0, 5, 40])
def test_a_bundle_over_the_limit_inside_of_a_run_ends_the_call_behind_those_in_front(in_front: int) -> None:
    small, over = one_binary(100), one_binary((256 << 20) + 1)
    found: list[int] = []
    pairs = without_counts([small] * in_front + [small] * 2 + [over] + [small] * 30)
    with pytest.raises(BundleTooLarge):
        found.extend(len(each) for each in Grouping(SLOTS, StreamTable("t"), RunMemory()).groups(pairs))
    assert sum(found) == in_front + 2


def test_of_two_wrong_bundles_the_first_one_is_told() -> None:
    pairs = without_counts([one_binary(100)] * 14 + [one_binary((256 << 20) + 1), one_binary(100), "no bundle"])
    groups = Grouping(SLOTS, StreamTable("t"), RunMemory()).groups(pairs)
    assert len(next(groups)) == 14
    with pytest.raises(BundleTooLarge):
        next(groups)


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a slot"])
def test_extension_types_keep_their_parameters(wrapped: bool) -> None:
    """Equal to pyarrow, which asks their class: it says nothing of parameters unless it was told to."""
    units = [*"DDDDDDDDDDDDDDDDDDHHHHHHHHHHHHHHHHHHD"]
    batches = [
        pa.record_batch([pa.ExtensionArray.from_storage(Period(unit), pa.array([1, 2]))], ["at"]) for unit in units
    ]
    groups = group(without_counts([{7: batch} for batch in batches] if wrapped else batches))
    entries = parse_span(*laid_out(groups))
    found = [message for entry in entries for message in entry.schema_messages.values()]
    assert found == [StreamTable("u").stream(0, batch.schema).message for batch in batches]
    assert len(set(found)) == 2
