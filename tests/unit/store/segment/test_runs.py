"""Runs hold what their bundles hold, read one by one, in their order; whatever is damaged or not alike is in none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import pyarrow as pa
import pytest

from quiver_actors.errors import ChecksumMismatch
from quiver_actors.store.segment.checked import CheckedReader
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.runs import BODY_BYTES_MAX, RUN_BUNDLES_MIN, Run
from tests.support.arrow_shapes import ArrowShapes
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import LogFile

Bundle = Mapping[int, pa.RecordBatch]
SEALS: dict[str, Callable[[LogFile], bytes]] = {"in place": LogFile.seal, "compacted": LogFile.compacted}
FIXED = (
    pa.int8(),
    pa.int32(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.decimal128(30, 7),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.month_day_nano_interval(),
    pa.binary(3),
)
"""Types of which columns without nulls can be copied together."""


def log_of(bundles: Sequence[Bundle]) -> LogFile:
    log = LogFile()
    for bundle in bundles:
        log.push(bundle)
    return log


def numbers(n: int, rows: int = 10) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(n, n + rows)), "half": pa.array([n / 2] * rows)})


def bundles_of(runs: Sequence[Run]) -> list[int]:
    """Positions of the bundles that are in a run."""
    return [number for run in runs for number in range(run.first, run.first + run.bundle_count)]


def columns_of(batch: pa.RecordBatch, name: str) -> list[int]:
    return list(batch.schema.get_all_field_indices(name))


def check_runs(
    reader: SegmentReader,
    indexes: Sequence[int],
    slots: set[int] | None = None,
    columns: Mapping[int, Sequence[str]] | None = None,
) -> list[int]:
    """Compare runs with their bundles; returns the positions of the bundles that are in one."""
    runs = reader.runs(indexes, slots, columns)
    for run in runs:
        singles = [reader.bundle(indexes[number], slots) for number in range(run.first, run.first + run.bundle_count)]
        assert run.batches.keys() == singles[0].keys() - {63}
        for slot_id, batch in run.batches.items():
            batch.validate(full=True)
            parts = [single[slot_id] for single in singles]
            names = (columns or {}).get(slot_id)
            if names is not None:
                parts = [part.select([at for name in names for at in columns_of(part, name)]) for part in parts]
            assert batch.schema.equals(parts[0].schema, check_metadata=True)
            assert [part.num_rows for part in parts] == [run.row_counts[slot_id]] * run.bundle_count
            assert pa.Table.from_batches([batch]).equals(pa.Table.from_batches(parts))
    positions = bundles_of(runs)
    assert positions == sorted(set(positions))
    return positions


def random_bundles(random: Random) -> list[Bundle]:
    """Stretches of bundles alike, of drifting schemas and sizes, between bundles of any kind."""
    shapes, found = ArrowShapes(random, depth_max=1), list[Bundle]()
    for _ in range(random.randint(2, 5)):
        slots = random.sample((1, 2, 5, 63), random.randint(1, 3))
        if random.random() < 0.6:
            kinds = {
                slot: pa.schema(
                    [
                        pa.field(f"c{n}", random.choice(FIXED), nullable=random.random() < 0.5)
                        for n in range(random.randint(1, 3))
                    ],
                    metadata={"of": str(slot)},
                )
                for slot in slots
            }
        else:
            kinds = {slot: shapes.schema(3) for slot in slots}
        rows, noise = random.choice((1, 3, 8, 10)), random.choice((0, 0, 0.03))
        for _ in range(random.randint(1, 3 * RUN_BUNDLES_MIN)):
            if random.random() < noise:
                rows = random.choice((0, 1, 7))
            found.append({slot: filled(random, shapes, schema, rows, noise) for slot, schema in kinds.items()})
    return found


def filled(random: Random, shapes: ArrowShapes, schema: pa.Schema, rows: int, noise: float) -> pa.RecordBatch:
    """A batch of random values; columns of fixed width hold nulls in `noise` of all cases."""
    batch = shapes.batch(schema, rows)
    if random.random() < noise:
        return batch
    columns = [
        without_nulls(column) if kind.type in FIXED else column
        for kind, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch


@pytest.mark.parametrize("seal", SEALS)
def test_runs_of_random_bundles_hold_what_the_bundles_hold(seal: str) -> None:
    count = 0
    for seed in range(12):
        random = Random(seed)
        bundles = random_bundles(random)
        data = SEALS[seal](log_of(bundles))
        everything = list(range(len(bundles)))
        names = {slot_id: batch.schema.names[-1:] for slot_id, batch in bundles[0].items()}
        for reader in (CheckedReader(data), SegmentReader(data)):
            count += len(check_runs(reader, everything))
            check_runs(reader, sorted(random.sample(everything, random.randint(1, len(everything)))))
            check_runs(reader, everything, {1, 2})
            check_runs(reader, everything, {1}, names)
    assert count > 500, "the bundles are too different to test anything"


def without_nulls(column: pa.Array) -> pa.Array:
    """A column whose nulls are other values, and which has no place for nulls."""
    values = column.to_pylist()
    known = [value for value in values if value is not None]
    if values and not known:
        zeroes = pa.py_buffer(bytes(len(column) * column.type.bit_width // 8))
        return pa.Array.from_buffers(column.type, len(column), [None, zeroes])
    return pa.array([known[0] if value is None else value for value in values], column.type)


@pytest.mark.parametrize("seal", SEALS)
def test_bundles_alike_are_one_run(seal: str) -> None:
    reader = CheckedReader(SEALS[seal](log_of([{1: numbers(n), 2: numbers(-n, 3)} for n in range(50)])))
    assert check_runs(reader, range(50)) == list(range(50))
    assert check_runs(reader, [*range(20), *range(25, 50)]) == list(range(45))
    assert check_runs(reader, range(50), {2}) == list(range(50))
    assert check_runs(reader, range(50), None, {1: ["half"], 2: ["id", "half"]}) == list(range(50))


@pytest.mark.parametrize("kind", FIXED, ids=str)
def test_every_type_of_fixed_width_is_copied(kind: pa.DataType) -> None:
    shapes = ArrowShapes(Random(5))
    schema = pa.schema([pa.field("c", kind, nullable=False)])
    made = [without_nulls(shapes.batch(schema, 6).column(0)) for _ in range(20)]
    reader = CheckedReader(log_of([{1: pa.record_batch([column], schema)} for column in made]).seal())
    assert check_runs(reader, range(20)) == list(range(20))


def test_a_size_that_differs_ends_a_run() -> None:
    sizes = [10] * 20 + [11] * 20 + [10, 11] * 20
    reader = CheckedReader(log_of([{1: numbers(n, size)} for n, size in enumerate(sizes)]).seal())
    assert check_runs(reader, range(len(sizes))) == list(range(40))


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"a": pa.array([1, None, 3])}),
        pa.record_batch({"a": pa.array(["x", "y"])}),
        pa.record_batch({"a": pa.array([True, False])}),
        batches.one_column(batches.dictionary(["a"], [0])),
        batches.no_rows(),
        batches.no_columns_with_rows(),
        batches.nested(),
        pa.record_batch({"a": pa.array(range(BODY_BYTES_MAX))}),
    ],
    ids=["nulls", "strings", "bits", "dictionary", "no rows", "no columns", "nested", "large"],
)
def test_what_is_not_only_values_is_in_no_run(batch: pa.RecordBatch) -> None:
    reader = CheckedReader(log_of([{1: batch}] * 20).seal())
    assert reader.runs(range(20)) == []


def test_compressed_batches_are_in_no_run() -> None:
    log = LogFile()
    for _ in range(20):
        log.push({1: numbers(0, 100)}, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    assert CheckedReader(log.seal()).runs(range(20)) == []


def test_bundles_that_do_not_exist_are_left_to_the_caller() -> None:
    reader = CheckedReader(log_of([{1: numbers(n)} for n in range(20)]).seal())
    assert reader.runs(range(21)) == []
    assert reader.runs([]) == []


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def place_of(data: bytes, index: int) -> int:
    """Where the first value of a bundle is in the file."""
    column = SegmentReader(data).decode(index)[1].column(0)
    return int(column.buffers()[1].address - pa.py_buffer(data).address)


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("back", [0, 40, 120], ids=["a value", "metadata", "its start"])
def test_a_damaged_bundle_is_in_no_run(seal: str, back: int) -> None:
    whole = SEALS[seal](log_of([{1: numbers(n)} for n in range(60)]))
    data = flipped(whole, place_of(whole, 30) - back)
    reader = CheckedReader(data)
    assert check_runs(reader, [*range(30), *range(31, 60)]) == list(range(59))
    assert bundles_of(reader.runs(range(60))) == [*range(30), *range(31, 60)]
    with pytest.raises(ChecksumMismatch):
        reader.bundle(30)


@pytest.mark.parametrize("seal", SEALS)
def test_damage_that_comes_later_is_noticed(seal: str) -> None:
    data = bytearray(SEALS[seal](log_of([{1: numbers(n)} for n in range(60)])))
    reader = CheckedReader(memoryview(data))
    assert bundles_of(reader.runs(range(60))) == list(range(60))
    data[place_of(bytes(data), 40)] ^= 1
    assert bundles_of(reader.runs(range(60))) == [*range(40), *range(41, 60)]


def test_runs_are_copies() -> None:
    data = bytearray(log_of([{1: numbers(n)} for n in range(20)]).seal())
    (run,) = CheckedReader(memoryview(data)).runs(range(20))
    before = run.batches[1].to_pydict()
    data[place_of(bytes(data), 3)] ^= 1
    assert run.batches[1].to_pydict() == before
