"""The ranges of a column hold its values, all of them, for every type that a stream can carry."""

from __future__ import annotations

import struct
from random import Random

import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError
from quiver_actors.store.segment.arrow_ipc import BatchSpan, walk_stream
from quiver_actors.store.segment.column_buffers import Range, column_ranges
from tests.support.arrow_shapes import ArrowShapes
from tests.unit.store.segment.logfile import encode_stream


class Encoded:
    """A batch as it stands in a stream."""

    def __init__(self, batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> None:
        self.schema = batch.schema
        self.stream = encode_stream(batch, options)
        self.span: BatchSpan = walk_stream(self.stream, 0, len(self.stream)).batch

    def ranges(self, columns: list[int]) -> list[Range] | None:
        start = self.span.offset
        return column_ranges(self.stream[start : start + self.span.metadata_bytes], self.schema, columns)

    def read_from(self, ranges: list[Range]) -> pa.RecordBatch:
        """The batch, decoded from these ranges alone: all else of its body is noise."""
        start = self.span.offset
        body = start + self.span.metadata_bytes
        partial = bytearray(self.stream)
        partial[body : body + self.span.body_bytes] = b"\xa5" * self.span.body_bytes
        for first, end in ranges:
            partial[start + first : start + end] = self.stream[start + first : start + end]
        return pa.ipc.open_stream(pa.py_buffer(bytes(partial))).read_next_batch()


@pytest.mark.parametrize("seed", range(40))
def test_a_column_can_be_read_from_its_ranges_alone(seed: int) -> None:
    shapes = ArrowShapes(Random(seed))
    for _ in range(10):
        batch = shapes.batch(shapes.schema())
        encoded = Encoded(batch)
        for column in range(batch.num_columns):
            ranges = encoded.ranges([column])
            if ranges is not None:
                found = encoded.read_from(ranges).column(column)
                found.validate(full=True)
                assert found.equals(batch.column(column)), batch.schema.field(column)


def test_columns_are_found_in_most_shapes() -> None:
    shapes = ArrowShapes(Random(7))
    encoded = [Encoded(shapes.batch(shapes.schema())) for _ in range(200)]
    found = [each.ranges(list(range(len(each.schema)))) is not None for each in encoded]
    assert sum(found) > 150


def test_one_of_ten_columns_takes_a_tenth() -> None:
    batch = pa.record_batch({f"c{number}": pa.array(range(10_000), pa.int64()) for number in range(10)})
    encoded = Encoded(batch)
    assert sum(end - start for start, end in encoded.ranges([3]) or []) == 80_000
    assert encoded.ranges([]) == []
    assert sum(end - start for start, end in encoded.ranges([9, 3, 3]) or []) == 160_000


def test_of_compressed_buffers_nothing_is_said() -> None:
    batch = pa.record_batch({"a": [1] * 1000, "b": ["text"] * 1000})
    assert Encoded(batch, pa.ipc.IpcWriteOptions(compression="zstd")).ranges([0]) is None


def test_of_views_with_values_of_their_own_nothing_is_said() -> None:
    views = pa.array(["a text that is too long for its view"] * 3, pa.string_view())
    batch = pa.record_batch({"number": [1, 2, 3], "text": views})
    assert Encoded(batch).ranges([0]) is None


@pytest.mark.parametrize("place", [(32, 24), (24, 32), (-8, 24), (24, -32), (1 << 62, 24), (24, 1 << 62)])
def test_of_values_outside_of_the_body_nothing_is_said(place: tuple[int, int]) -> None:
    batch = pa.record_batch({"a": pa.array([1, 2, 3]), "b": pa.array([4, 5, 6])})
    metadata = batch.serialize().to_pybytes()[: -2 * 24]
    at = metadata.rindex(struct.pack("<qq", 24, 24))
    assert column_ranges(metadata, batch.schema, [1]) == [(len(metadata) + 24, len(metadata) + 48)]
    moved = metadata[:at] + struct.pack("<qq", *place) + metadata[at + 16 :]
    assert column_ranges(moved, batch.schema, [1]) is None
    assert column_ranges(moved, batch.schema, [0]) == [(len(metadata), len(metadata) + 24)]


def test_another_message_is_refused() -> None:
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(ArrowError):
        column_ranges(schema.serialize().to_pybytes(), schema, [0])
