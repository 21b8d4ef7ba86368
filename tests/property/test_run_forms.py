"""Runs that are filled into a form: the same bytes and rows as a plan for every bundle, whatever is pushed and in whatever order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.store.encoding.entries import PlannedBundles, plan
from quiver_actors.store.encoding.forms import FORM_BYTES_MAX, RUN_BYTES_MAX
from quiver_actors.store.encoding.runs import RunMemory, plan_run
from quiver_actors.store.encoding.streams import EncodedStream, StreamTable
from tests.unit.client.entries import parse_span

Draw = Callable[[Random], Any]
Laid = tuple[bytes, bytes, bytes]
Pairs = Sequence[tuple[pa.RecordBatch, pa.RecordBatch]]
Slots = Sequence[tuple[int, pa.RecordBatch]]
SLOT = 5

FIXED: dict[pa.DataType, Draw] = {
    pa.int8(): lambda random: random.randint(-128, 127),
    pa.uint16(): lambda random: random.randint(0, 0xFFFF),
    pa.int32(): lambda random: random.randint(-(1 << 31), (1 << 31) - 1),
    pa.uint64(): lambda random: random.randint(0, (1 << 64) - 1),
    pa.float16(): lambda random: float(random.randint(-99, 99)),
    pa.float32(): lambda random: random.choice((0.0, -0.0, 1.5, float("inf"), float("nan"))),
    pa.float64(): lambda random: random.choice((random.random(), -0.0, float("-inf"), float("nan"))),
    pa.date32(): lambda random: random.randint(-9999, 9999),
    pa.time64("us"): lambda random: random.randint(0, 86_399_999_999),
    pa.timestamp("ms", "Europe/Berlin"): lambda random: random.randint(0, 1 << 40),
    pa.duration("ns"): lambda random: timedelta(microseconds=random.randint(-999, 999)),
    pa.month_day_nano_interval(): lambda random: (random.randint(-9, 9), random.randint(-9, 9), random.randint(-9, 9)),
    pa.decimal32(7, 2): lambda random: Decimal(random.randint(-99999, 99999)) / 100,
    pa.decimal256(60, 0): lambda random: Decimal(random.randint(-(10**59), 10**59)),
    pa.binary(3): lambda random: random.randbytes(3),
    pa.binary(16): lambda random: random.randbytes(16),
    pa.bool_(): lambda random: random.random() < 0.5,
}
TEXTS = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
OTHERS: dict[pa.DataType, Draw] = {
    pa.null(): lambda random: None,
    pa.string_view(): lambda random: "x" * random.randint(0, 20),
    pa.list_(pa.int8()): lambda random: [1] * random.randint(0, 3),
    pa.list_(pa.int8(), 2): lambda random: [random.randint(0, 9), 3],
    pa.struct([("a", pa.int16())]): lambda random: {"a": random.randint(0, 9)},
}


def text_values(random: Random, kind: pa.DataType, rows: int, total: int) -> list[str | bytes]:
    """Return values that together have `total` bytes."""
    cuts = sorted(random.randint(0, total) for _ in range(rows - 1))
    text = "".join(random.choice("abcdef") for _ in range(total))
    values = [text[a:b] for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
    return [value.encode() for value in values] if "binary" in str(kind) else list(values)


@dataclass
class Kind:
    """Properties that the batches of a run share."""

    schema: pa.Schema
    rows: int
    text_bytes: int

    @classmethod
    def drawn(cls, random: Random) -> Kind:
        kinds = [random.choice([*FIXED, *TEXTS]) for _ in range(random.randint(1, 6))]
        fields = [
            pa.field(f"c{number}", kind, random.random() < 0.7, {"unit": "m"} if random.random() < 0.3 else None)
            for number, kind in enumerate(kinds)
        ]
        metadata = {"k": "v"} if random.random() < 0.5 else None
        return cls(pa.schema(fields, metadata), random.choice((1, 2, 3, 8, 14, 37)), random.choice((0, 1, 8, 61)))

    def values(self, random: Random, kind: pa.DataType) -> list[Any]:
        if kind in TEXTS:
            return text_values(random, kind, self.rows, self.text_bytes)
        draw = FIXED.get(kind) or OTHERS[kind]
        return [draw(random) for _ in range(self.rows)]

    def batch(self, random: Random, *, is_sliced: bool) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return a batch that owns its buffers, and an equal one."""
        columns = [self.values(random, field.type) for field in self.schema]
        owning = self.batch_of(columns)
        if not is_sliced:
            return owning, owning
        front, behind = random.randint(0, 9), random.randint(0, 9)
        around = [self.values(random, field.type) for field in self.schema]
        longer = [(other * 9)[:front] + own + (other * 9)[:behind] for own, other in zip(columns, around, strict=True)]
        return owning, self.batch_of(longer).slice(front, self.rows)

    def batch_of(self, columns: Sequence[list[Any]]) -> pa.RecordBatch:
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def run_of(
    memory: RunMemory, streams: Sequence[EncodedStream], batches: Sequence[pa.RecordBatch], counts: list[int | None]
) -> Laid:
    planned = plan_run(memory, tuple(streams), batches, counts)
    assert planned is not None
    assert len(planned) == len(counts)
    ring = bytearray(b"\xaa" * (planned.size_bytes + 128))
    rows = planned.write(memoryview(ring), 64)
    assert ring[:64] == ring[-64:] == b"\xaa" * 64, "nothing outside of the span is written"
    return bytes(ring[64:-64]), b"".join(rows.entries), b"".join(rows.slots)


def plans_of(streams: StreamTable, batches: Sequence[pa.RecordBatch], counts: list[int | None]) -> Laid:
    return plans_of_slots(streams, [[(SLOT, batch)] for batch in batches], counts)


def plans_of_slots(streams: StreamTable, bundles: Sequence[Slots], counts: list[int | None]) -> Laid:
    planned = PlannedBundles([plan(slots, streams, count) for slots, count in zip(bundles, counts, strict=True)])
    ring = bytearray(planned.size_bytes)
    rows = planned.write(memoryview(ring), 0)
    return bytes(ring), b"".join(rows.entries), b"".join(rows.slots)


def check_run(memory: RunMemory, streams: StreamTable, pairs: Pairs) -> bool:
    """Push the second of each pair: the bytes are those of the first. Whether it was filled into a form."""
    stream, rows = streams.stream(SLOT, pairs[0][0].schema), pairs[0][0].num_rows
    form = memory.form((stream,), (rows,))
    counts = [number if number % 3 else None for number in range(len(pairs))]
    found = run_of(memory, [stream], [given for _, given in pairs], counts)
    is_alike = all(given.num_rows == rows for _, given in pairs)
    is_filled = is_alike and form is not None and memory.form((stream,), (rows,)) is form
    if is_filled or all(owning is given for owning, given in pairs):
        assert found == plans_of(streams, [owning for owning, _ in pairs], counts)
    parse_span(*found, b"")
    return is_filled


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_a_form_are_those_of_plans(seed: int) -> None:
    random = Random(seed)
    kinds = [Kind.drawn(random) for _ in range(3)]
    memory, streams = RunMemory(), StreamTable("t")
    filled = 0
    for number in range(12):
        kind = kinds[number % 3]
        count = random.choice((2, 12, 30))
        pairs = [kind.batch(random, is_sliced=number > 2 and random.random() < 0.5) for _ in range(count)]
        filled += check_run(memory, streams, pairs)
    assert filled == 9, "the first run of each kind is Arrow's"


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_bundles_of_several_slots_are_those_of_plans(seed: int) -> None:
    """Runs are the same in a form, and as Arrow writes them when a slot's texts are of other lengths."""
    random = Random(seed)
    kinds = {slot: Kind.drawn(random) for slot in sorted(random.sample(range(64), random.randint(2, 6)))}
    odd, others = random.choice([*kinds]), [Kind(kind.schema, kind.rows, 62) for kind in kinds.values()]
    memory, table, forms = RunMemory(), StreamTable("t"), []
    streams = [table.stream(slot, kind.schema) for slot, kind in kinds.items()]
    rows = tuple(kind.rows for kind in kinds.values())
    for number in range(6):
        bundles = [
            [(slot, kind.batch(random, is_sliced=False)[0]) for slot, kind in kinds.items()]
            for _ in range(random.choice((2, 12, 30)))
        ]
        if number == 3:
            at = [*kinds].index(odd)
            bundles[-1][at] = (odd, others[at].batch(random, is_sliced=False)[0])
        counts = [None if count % 3 else count for count in range(len(bundles))]
        found = run_of(memory, streams, [batch for slots in bundles for _, batch in slots], counts)
        assert found == plans_of_slots(table, bundles, counts)
        parse_span(*found, b"")
        forms.append(memory.form(tuple(streams), rows))
    assert forms[0] is forms[1] is forms[2] is not None, (
        "the second run and the third one are filled into the first one's form"
    )
    assert forms[4] is forms[5] is not None


def test_a_form_that_was_made_from_slices_holds_nothing_of_what_is_around_them() -> None:
    memory, streams, random = RunMemory(), StreamTable("t"), Random(1)
    kind = Kind(pa.schema([("n", pa.int32()), ("b", pa.binary(3)), ("on", pa.bool_())]), 3, 0)
    columns = [[value for _ in range(40) for value in kind.values(random, field.type)] for field in kind.schema]
    whole = kind.batch_of(columns)
    pairs = [
        (kind.batch_of([column[at : at + 3] for column in columns]), whole.slice(at, 3)) for at in range(3, 111, 3)
    ]
    assert [check_run(memory, streams, pairs) for _ in range(2)] == [False, True]
    assert check_run(memory, streams, same(*[owning for owning, _ in pairs]))


def same(*batches: pa.RecordBatch) -> Pairs:
    return [(batch, batch) for batch in batches]


PLAIN = pa.schema([("n", pa.int32()), ("text", pa.string())])


def plain(*texts: str | None, n: int | None = 7) -> pa.RecordBatch:
    return pa.record_batch([pa.array([n] * len(texts), pa.int32()), pa.array(texts, pa.string())], PLAIN)


MISFITS = {
    "a null": plain("ab", "cd", n=None),
    "a null text": plain("abcd", None),
    "longer texts": plain("ab", "cde"),
    "shorter texts that pad as much": plain("a", "cd"),
    "other rows": plain("abcd"),
    "one for a memory of its own": plain("ab", "x" * RUN_BYTES_MAX),
}


@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("place", [1, 20, -1])
def test_what_does_not_fit_the_form_is_written_by_arrow(misfit: pa.RecordBatch, place: int) -> None:
    memory, streams = RunMemory(), StreamTable("t")
    alike = same(*[plain("ab", "cd", n=n) for n in range(30)])
    assert [check_run(memory, streams, alike) for _ in range(3)] == [False, True, True]
    mixed = list(alike)
    mixed[place] = (misfit, misfit)
    if misfit.nbytes < RUN_BYTES_MAX:
        assert not check_run(memory, streams, mixed)
    else:
        stream = streams.stream(SLOT, PLAIN)
        planned = plan_run(memory, (stream,), [batch for batch, _ in mixed], [None] * 30)
        assert planned is not None
        assert len(planned) == place % 30
    check_run(memory, streams, alike)
    check_run(memory, streams, alike)
    assert check_run(memory, streams, alike)


def test_texts_of_other_lengths_that_pad_as_much_make_no_form() -> None:
    memory, streams = RunMemory(), StreamTable("t")
    lengths = same(*[plain("x" * (1 + n % 8)) for n in range(30)])
    assert [check_run(memory, streams, lengths) for _ in range(3)] == [False, False, False]


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_kinds_of_columns_stay_with_arrow(kind: pa.DataType) -> None:
    memory, streams, random = RunMemory(), StreamTable("t"), Random(1)
    alike = Kind(pa.schema([("n", pa.int32()), ("other", kind)]), 5, 0)
    for _ in range(3):
        assert not check_run(memory, streams, [alike.batch(random, is_sliced=False) for _ in range(20)])
    for empty in (pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([]))), plain()):
        assert not any(check_run(memory, streams, same(*[empty] * 20)) for _ in range(3))


def test_validity_without_a_null_is_left_out_as_arrow_does() -> None:
    validity, values = pa.py_buffer(b"\xff"), pa.array([1, 2, 3])
    unknown = pa.Array.from_buffers(pa.int64(), 3, [validity, values.buffers()[1]])
    memory, streams = RunMemory(), StreamTable("t")
    pairs = same(*[pa.record_batch({"n": column}) for column in (values, unknown)] * 10)
    assert [check_run(memory, streams, pairs) for _ in range(2)] == [False, True]
    null = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\xfd"), values.buffers()[1]])
    assert not check_run(memory, streams, [*pairs, *same(pa.record_batch({"n": null}))])


def test_entries_over_the_limit_of_a_form_and_runs_over_their_memory() -> None:
    memory, streams = RunMemory(), StreamTable("t")
    for rows, is_filled in ((FORM_BYTES_MAX // 8 - 60, True), (FORM_BYTES_MAX // 8 - 40, False)):
        batch = pa.record_batch({"n": range(rows)})
        check_run(memory, streams, same(*[batch] * 20))
        assert check_run(memory, streams, same(*[batch] * 20)) is is_filled
        stream = streams.stream(SLOT, batch.schema)
        planned = plan_run(memory, (stream,), [batch] * 200, [None] * 200)
        assert planned is not None
        entry_bytes = planned.size_bytes // len(planned)
        assert len(planned) == RUN_BYTES_MAX // entry_bytes


def test_runs_that_are_not_written_yet_keep_what_they_hold() -> None:
    """Several runs of one memory are planned before any of them is written, as happens with several threads."""
    memory, streams = RunMemory(), StreamTable("t")
    stream = streams.stream(SLOT, PLAIN)
    runs = [[plain("ab", "cd", n=100 * run + n) for n in range(20)] for run in range(6)]
    check_run(memory, streams, same(*runs[0]))
    planned = [plan_run(memory, (stream,), batches, [None] * 20) for batches in runs]
    for each, batches in zip(planned, runs, strict=True):
        assert each is not None
        ring = bytearray(each.size_bytes)
        each.write(memoryview(ring), 0)
        assert bytes(ring) == plans_of(streams, batches, [None] * 20)[0]
    assert check_run(memory, streams, same(*runs[1]))
