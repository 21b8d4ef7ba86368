"""What was pushed is what is read: random bundles through encoder, engine, seal, recovery and compaction, against plain pyarrow.

One seed is one store: a few schemas over a few slots, bundles pushed in groups, one segment sealed in place, one recovered from its log
by the next open. Each is then rewritten by compaction. All four files are read back in full, and every stream in them is opened by
arrow-rs and polars as an Arrow file of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from random import Random

import pyarrow as pa

from quiver_actors.store.segment.compaction import Rewriting
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.arrow_shapes import ArrowShapes
from tests.support.engine_driver import EngineDriver
from tests.support.other_readers import (
    Rows,
    arrow_rs_rows,
    polars_rows,
    rows_of,
    why_not_arrow_rs,
    why_not_polars,
)

Bundle = dict[int, pa.RecordBatch]
SLOTS = (0, 1, 7, 62, 63)


@dataclass
class ContentTally:
    """Counted while it was done."""

    stores: int = 0
    bundles: int = 0
    batches: int = 0
    batches_read: int = 0
    streams: int = 0
    streams_arrow_rs: int = 0
    streams_polars: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)


def random_bundles(random: Random) -> list[Bundle]:
    """Bundles over two to four streams, so that schemas meet again and dictionaries grow, change or stay."""
    shapes = ArrowShapes(random)
    streams = [(random.choice(SLOTS), shapes.schema()) for _ in range(random.randint(2, 4))]
    bundles = []
    for _ in range(random.randint(4, 10)):
        chosen = random.sample(streams, random.randint(1, len(streams)))
        bundles.append({slot: shapes.batch(schema) for slot, schema in chosen})
    repeated = dict(random.choice(bundles))
    return [*bundles, repeated]


def through_pyarrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What pyarrow alone makes of it, on its way through a stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def check_seed(seed: int, tally: ContentTally) -> None:
    """One store.

    Raises:
        AssertionError: names what differs.
    """
    random = Random(f"contents {seed}")
    bundles = random_bundles(random)
    driver = EngineDriver(SimDisk())
    middle = random.randint(1, len(bundles) - 1)
    sealed_in_place = _push_and_seal(driver, random, bundles[:middle])
    recovered = _push_and_reopen(driver, random, bundles[middle:])
    tally.stores += 1
    tally.bundles += len(bundles)
    for number, expected in ((sealed_in_place, bundles[:middle]), (recovered, bundles[middle:])):
        content = read_file(driver, number)
        check_segment(content, expected, tally)
        check_segment(compacted(content), expected, tally)


def _push_and_seal(driver: EngineDriver, random: Random, bundles: list[Bundle]) -> int:
    _push(driver, random, bundles)
    driver.seal()
    return driver.engine.segments()[-1].segment_seq


def _push_and_reopen(driver: EngineDriver, random: Random, bundles: list[Bundle]) -> int:
    """Only what is synced is left by the power loss; the next open seals the log that it finds."""
    _push(driver, random, bundles)
    assert isinstance(driver.disk, SimDisk)
    driver.disk = driver.disk.crash(CrashMode.DROP)
    driver.reopen()
    driver.settle()
    return driver.engine.segments()[-1].segment_seq


def _push(driver: EngineDriver, random: Random, bundles: list[Bundle]) -> None:
    position = 0
    while position < len(bundles):
        count = random.randint(1, 3)
        driver.push(*bundles[position : position + count])
        driver.commit()
        position += count


def read_file(driver: EngineDriver, segment_seq: int) -> bytes:
    file = driver.disk.open_read(f"{driver.directory}/segments/{segment_seq:016}.qseg")
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def compacted(content: bytes) -> bytes:
    def read(length: int, offset: int) -> bytes:
        return content[offset : offset + length]

    return b"".join(chain.from_iterable(Rewriting(read_outline(read, len(content)), read).parts()))


def check_segment(content: bytes, expected: list[Bundle], tally: ContentTally) -> None:
    reader = SegmentReader(content)
    reader.verify_checksum()
    assert reader.bundle_count == len(expected)
    for index, bundle in enumerate(expected):
        found = reader.bundle(index)
        assert list(found) == sorted(bundle)
        for slot_id, pushed in bundle.items():
            check_batch(found[slot_id], pushed)
            tally.batches_read += 1
    tally.batches += sum(map(len, expected))
    _check_streams(content, reader, tally)


def check_batch(found: pa.RecordBatch, pushed: pa.RecordBatch) -> None:
    """Schema with metadata, and values, as pushed and as pyarrow gives them back by itself."""
    found.validate(full=True)
    assert found.schema.equals(pushed.schema, check_metadata=True), (
        f"{found.schema}\n\nwas pushed as\n\n{pushed.schema}"
    )
    for reference in (pushed, through_pyarrow(pushed)):
        for column, expected in zip(found.columns, reference.columns, strict=True):
            # A dictionary may have grown since: then it is the values that count.
            is_same = column.equals(expected) or list(map(shown, column)) == list(map(shown, expected))
            assert is_same, f"{column}\n\nwas pushed as\n\n{expected}"
        assert found.num_rows == reference.num_rows


def shown(value: pa.Scalar | None) -> object:
    """A value whatever it is encoded as; structs as tuples, also those with two fields of one name, which `as_py` refuses."""
    if isinstance(value, pa.UnionScalar):
        return value.type_code, shown(value.value)
    if value is None or not value.is_valid:
        return None
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar | pa.RunEndEncodedScalar):
        return shown(value.value)
    if isinstance(value, pa.StructScalar):
        return tuple(shown(value[index]) for index in range(value.type.num_fields))
    if isinstance(value, pa.ListScalar):
        return [shown(inner) for inner in value.values]
    return value.as_py()


def _check_streams(content: bytes, reader: SegmentReader, tally: ContentTally) -> None:
    """Each stream is an Arrow file for everybody."""
    for stream in reader.streams:
        file = content[stream.byte_offset : stream.byte_offset + stream.byte_length]
        table = pa.ipc.open_file(file).read_all()
        assert table.num_rows == stream.row_count
        tally.streams += 1
        tally.types.update(_names_of(table.schema))
        arrow_rs, polars = why_not_arrow_rs(table.schema), why_not_polars(table.schema)
        if arrow_rs is None:
            expected = rows_of(table)
            _same_rows("arrow-rs", arrow_rs_rows(file), expected)
            tally.streams_arrow_rs += 1
            if polars is None:
                _same_rows("polars", polars_rows(file), expected)
                tally.streams_polars += 1
        tally.passed_over.update(f"arrow-rs: {arrow_rs}" for _ in (arrow_rs,) if arrow_rs)
        tally.passed_over.update(f"polars: {polars}" for _ in (polars,) if polars)


def _same_rows(reader: str, found: Rows, expected: Rows) -> None:
    assert found == expected, f"{reader} reads {found}, pyarrow {expected}"


def _names_of(schema: pa.Schema) -> list[str]:
    return [str(column.type).partition("<")[0].partition("[")[0].partition("(")[0] for column in schema]


def run(seeds: range) -> ContentTally:
    """All seeds.

    Raises:
        AssertionError: names the seed.
    """
    tally = ContentTally()
    for seed in seeds:
        try:
            check_seed(seed, tally)
        except Exception as error:
            raise AssertionError(f"contents seed {seed}: {error}") from error
    return tally
