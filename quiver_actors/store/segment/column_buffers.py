"""The parts of a record batch message that hold the values of some of its columns.

A batch's metadata lists the buffers of all columns one after another, in the order of the schema, and names no column. How many each column
has follows from its type. Where the sum is another one than the list is long, nothing can be said of any column: views have
as many buffers as they like, and older writers give unions one more.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyarrow import types

from quiver_actors.store.segment.bodies import batch_buffers

Range = tuple[int, int]
"""Bytes `[start, end)`."""


def column_ranges(metadata: bytes | memoryview, schema: pa.Schema, columns: Collection[int]) -> list[Range] | None:
    """Where the values of columns are, from the start of the message.

    Args:
        metadata: of the record batch message, whole.
        columns: numbers of columns of the schema.

    Returns:
        Rising ranges, without the metadata; None where only the whole message will do.

    Raises:
        Truncated, ArrowError: it is not the metadata of a record batch.
    """
    found = batch_buffers(metadata)
    if found is None:
        return None
    ends, count = [], 0
    for field in schema:
        count += _buffer_count(field.type)
        ends.append(count)
    if count != len(found.buffers):
        return None
    wanted = [
        buffer
        for column in sorted(set(columns))
        for buffer in found.buffers[ends[column - 1] if column else 0 : ends[column]]
    ]
    if any(not 0 <= offset <= offset + length <= found.body_bytes for offset, length in wanted):
        return None
    start = found.metadata_bytes
    return sorted((start + offset, start + offset + length) for offset, length in wanted if length)


def _buffer_count(data_type: pa.DataType) -> int:
    """The number of buffers that a column of this type has in a message, those of its children included."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _buffer_count(data_type.storage_type)
    if types.is_dictionary(data_type):
        return _buffer_count(data_type.index_type)
    children = sum(_buffer_count(data_type.field(index).type) for index in range(data_type.num_fields))
    return _own_buffer_count(data_type) + children


def _own_buffer_count(data_type: pa.DataType) -> int:
    if types.is_null(data_type) or types.is_run_end_encoded(data_type):
        return 0
    if types.is_union(data_type):
        return 1 if data_type.mode == "sparse" else 2
    count: int = data_type.num_buffers
    return count
