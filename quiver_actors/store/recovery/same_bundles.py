"""Decides whether a segment of another writer holds the entries of a log: by their values, because nothing else links the two.

That implementation lays entries into a segment in the order in which they stand in the log, widens or resolves dictionaries on the way, and
keeps neither sequences nor times. What cannot be decoded, or compared, counts as different: its entries are delivered once more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from quiver_actors.errors import FormatError
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal.codec import decode_entry_header, decode_slots

Bundle = dict[int, pa.RecordBatch]
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, NotImplementedError)


def same_bundles(segment: bytes, bodies: Iterator[bytes]) -> tuple[int, bool]:
    """How many of the segment's first bundles are the next of these entries, one for one; and whether that is the whole segment.

    Args:
        segment: the whole file.
        bodies: the bodies of the log's entries, from one on; no more of them are taken than are compared.
    """
    try:
        reader = SegmentReader(segment)
    except FormatError:
        return 0, False
    count = 0
    for index in range(reader.bundle_count):
        body = next(bodies, None)
        if body is None or not _is_same(reader, index, body):
            return count, False
        count += 1
    return count, count > 0


def _is_same(reader: SegmentReader, index: int, body: bytes) -> bool:
    try:
        stored, logged = reader.bundle(index), _bundle_of(body)
        return stored.keys() == logged.keys() and all(_same_batch(stored[slot], logged[slot]) for slot in stored)
    except (FormatError, *_ARROW_ERRORS):
        return False


def _bundle_of(body: bytes) -> Bundle:
    found = {}
    for block in decode_slots(body, decode_entry_header(body).slot_bitmap):
        payload = pa.py_buffer(body).slice(block.payload_offset, block.payload_bytes)
        with pa.ipc.open_stream(payload) as reader:
            found[block.slot_id] = reader.read_next_batch()
    return found


def _same_batch(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    if one.num_rows != other.num_rows or one.schema.names != other.schema.names:
        return False
    return all(_same_values(mine, theirs) for mine, theirs in zip(one.columns, other.columns, strict=True))


def _same_values(one: pa.Array, other: pa.Array) -> bool:
    one, other = _plain(one), _plain(other)
    if one.type != other.type or len(one) != len(other):
        return False
    if pa.types.is_floating(one.type):
        # Bit for bit: a value that is not a number equals itself.
        as_bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[one.type.bit_width]
        return bool(one.view(as_bits).equals(other.view(as_bits)))
    if pa.types.is_struct(one.type):
        is_valid = one.is_valid().equals(other.is_valid())
        return is_valid and all(map(_same_values, one.flatten(), other.flatten()))
    return bool(one.equals(other))


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
