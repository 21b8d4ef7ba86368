"""Turns the batches of Spark into the bundles that are pushed. Pure.

Sizes of bundles do not depend on Spark's: a batch between half and twice the target is pushed as it is, without a copy; smaller ones
are joined, larger ones cut into slices (which share the batch's buffers).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from quiver_actors.base.conform import conform
from quiver_actors.errors import InvalidBundle, UsageError
from quiver_actors.flight.spark_types import storable_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Slot: TypeAlias = str | int
Bundle: TypeAlias = "pa.RecordBatch | dict[Slot, pa.RecordBatch]"

KEYS_APART = 64
"""Rows of a keyed write go into so many classes of keys; those of a class stay in order, on one worker."""


def sized(batches: Iterable[pa.RecordBatch], target_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, in batches of about `target_bytes`. Empty batches are left out."""
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        size_bytes = batch.nbytes
        if small and small_bytes + size_bytes > 2 * target_bytes:
            yield joined(small)
            small, small_bytes = [], 0
        if size_bytes > 2 * target_bytes:
            yield from _cut(batch, -(-size_bytes // target_bytes))
            continue
        small.append(batch)
        small_bytes += size_bytes
        if small_bytes >= target_bytes // 2:
            yield joined(small)
            small, small_bytes = [], 0
    if small:
        yield joined(small)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of all rows; a single one is returned as it is."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(batch: pa.RecordBatch, parts: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    for index in range(min(parts, rows)):
        start, end = rows * index // parts, rows * (index + 1) // parts
        if start < end:
            yield batch.slice(start, end - start)


def storable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as a topic stores it: every field nullable, instants in UTC; buffers are shared."""
    return conform(batch, storable_schema(batch.schema))


def bundles_of(batch: pa.RecordBatch, slots: tuple[Slot, ...]) -> list[Bundle]:
    """Cut one storable batch into bundles.

    Without slots, or with one, the batch is the bundle. With several, each slot is a struct column; a row whose struct is null has
    nothing in that slot. Rows with the same slots form one bundle, so that the batches of a bundle are always row by row.

    Raises:
        InvalidBundle: a row in which every slot is null.
    """
    if not slots:
        return [batch]
    if len(slots) == 1:
        return [{slots[0]: batch}]
    present = _slots_present(batch, slots)
    patterns = np.unique(present)
    if patterns[0] == 0:
        raise InvalidBundle(f"a row has null in every slot column ({', '.join(map(str, slots))}): filter such rows out")
    return [
        _structs_as_batches(
            batch if len(patterns) == 1 else batch.filter(pa.array(present == pattern)), slots, int(pattern)
        )
        for pattern in patterns
    ]


def by_key(batch: pa.RecordBatch, column: str) -> dict[str, pa.RecordBatch]:
    """Rows by class of their key: text that chooses the worker, and the rows in their order.

    Raises:
        UsageError: there is no such column.
    """
    if column not in batch.schema.names:
        raise UsageError(f"option 'key' names column {column!r}: the data has {', '.join(batch.schema.names)}")
    keys = batch.column(column).dictionary_encode("encode")
    classes = np.array(
        [xxhash.xxh3_64_intdigest(repr(key.as_py()).encode()) % KEYS_APART for key in keys.dictionary], dtype=np.uint8
    )
    of_row = classes[keys.indices.to_numpy(zero_copy_only=False)]
    return {str(found): batch.filter(pa.array(of_row == found)) for found in np.unique(of_row)}


def check_slot_columns(slots: tuple[Slot, ...], schema: StructType) -> None:
    """
    Raises:
        UsageError: several slots are named, and the data does not have exactly these columns, each a struct.
    """
    if len(slots) < 2:
        return
    columns = {field.name: field.dataType.typeName() for field in schema}
    expected = dict.fromkeys(map(str, slots), "struct")
    if columns != expected:
        raise UsageError(
            f"option 'slots' names {', '.join(expected)}: expected exactly these columns, each a struct, but the data has "
            + ", ".join(f"{name} {kind}" for name, kind in columns.items())
        )


def _slots_present(batch: pa.RecordBatch, slots: tuple[Slot, ...]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return a bit mask for each row: the slots that are not null."""
    present = np.zeros(batch.num_rows, dtype=np.uint64)
    for bit, slot in enumerate(slots):
        valid = batch.column(str(slot)).is_valid().to_numpy(zero_copy_only=False)
        present |= valid.astype(np.uint64) << np.uint64(bit)
    return present


def _structs_as_batches(batch: pa.RecordBatch, slots: tuple[Slot, ...], pattern: int) -> dict[Slot, pa.RecordBatch]:
    return {
        slot: pa.RecordBatch.from_struct_array(batch.column(str(slot)))
        for bit, slot in enumerate(slots)
        if pattern >> bit & 1
    }
