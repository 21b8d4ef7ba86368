"""What was pushed is what is read, for every type that Arrow can carry: see `contents`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.simulated import SimDisk
from tests.property import contents
from tests.property.contents import ContentTally, check_batch, check_segment, compacted, read_file
from tests.support.arrow_shapes import EXTENSIONS, LEAVES
from tests.support.engine_driver import EngineDriver
from tests.support.other_readers import polars_rows

SEEDS = 160
GROUP = 40


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_random_bundles_come_back_as_pushed_through_seal_recovery_and_compaction(first: int) -> None:
    tally = contents.run(range(first, first + GROUP))
    assert tally.batches_read == tally.batches
    assert tally.streams_arrow_rs > 0.9 * tally.streams
    assert tally.streams_polars > 0.2 * tally.streams


@pytest.mark.parametrize("data_type", [*LEAVES, *EXTENSIONS], ids=str)
def test_each_type_alone_comes_back_through_every_reader(data_type: pa.DataType) -> None:
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    array = pa.nulls(3, storage)
    if storage is not data_type:
        array = pa.ExtensionArray.from_storage(data_type, array)
    bundles = [{0: pa.record_batch([array.slice(first)], names=["c"])} for first in (0, 1)]
    content = _sealed(*bundles)
    tally = ContentTally()
    check_segment(content, bundles, tally)
    check_segment(compacted(content), bundles, tally)
    assert tally.batches_read == 4


def _sealed(*bundles: dict[int, pa.RecordBatch]) -> bytes:
    driver = EngineDriver(SimDisk())
    for bundle in bundles:
        driver.push(bundle)
    driver.seal()
    return read_file(driver, driver.engine.segments()[-1].segment_seq)


def _with_dictionary(values: pa.Array, *indices: int | None) -> pa.RecordBatch:
    return pa.record_batch({"c": pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), values)})


@pytest.mark.parametrize("value_type", [pa.string_view(), pa.binary_view()], ids=str)
def test_compaction_keeps_nulls_in_dictionaries_of_views(value_type: pa.DataType) -> None:
    """Uniting two dictionaries of views turned null into the empty string. pyarrow's `dictionary_encode("encode")` does that to
    views, to no other type. They are united as plain strings now.
    """
    first = _with_dictionary(pa.array([None, "a"], value_type), 0, 1)
    second = _with_dictionary(pa.array(["b", None, "a"], value_type), 2, 1, None)
    reader = SegmentReader(compacted(_sealed({0: first}, {0: second})))
    assert len(reader.streams) == 1
    check_batch(reader.bundle(0)[0], first)
    check_batch(reader.bundle(1)[0], second)


def test_polars_opens_dictionaries_that_compaction_has_united() -> None:
    """The dictionary message of a united stream had its vtables side by side at the front. Arrow's own readers follow them wherever
    they are; polars refused the stream. Each now stands before its table.
    """
    first = _with_dictionary(pa.array(["a"]), 0)
    second = _with_dictionary(pa.array(["b", "a"]), 0, 1)
    content = compacted(_sealed({0: first}, {0: second}))
    (stream,) = SegmentReader(content).streams
    file = content[stream.byte_offset : stream.byte_offset + stream.byte_length]
    assert polars_rows(file) == [("a",), ("b",), ("a",)]
