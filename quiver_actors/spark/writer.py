"""Batch write: each Arrow batch of a task becomes a bundle on the task's own node.

Guarantees: a task succeeds only when all its bundles are acknowledged. Bundles are visible as soon as they are sealed, and a task that
Spark runs again pushes again: at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from quiver_actors.client import Client
from quiver_actors.errors import InvalidBundle, UsageError
from quiver_actors.spark.conform import conform, storable_schema
from quiver_actors.spark.connection import with_node
from quiver_actors.spark.options import SourceOptions
from quiver_actors.units import MIB, SECOND_NS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("quiver.spark")

Slot: TypeAlias = str | int
Bundle: TypeAlias = "pa.RecordBatch | dict[Slot, pa.RecordBatch]"

PUSH_BUNDLES_MAX = 64
PUSH_BYTES_TARGET = 16 * MIB
"""What is pushed before its acknowledgements are awaited: enough to keep the node busy, little enough to hold in memory."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one task has pushed, all of it acknowledged."""

    bundles: int
    rows: int


class TopicWriter(DataSourceArrowWriter):
    """The writer of one job. Made on the driver, pickled to its tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        _check_slot_columns(options.slots, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Push every batch of one task. Drains the iterator: a Python worker that does not is not used again."""
        options = self._options
        bundles = rows = 0
        for batches in _portions(iterator):
            pushes = [bundle for batch in batches for bundle in bundles_of(batch, options.slots)]
            with_node(options.run_dir, options.push_timeout_ns, partial(self._push, pushes))
            bundles += len(pushes)
            rows += sum(batch.num_rows for batch in batches)
        return TaskWritten(bundles, rows)

    def _push(self, bundles: list[Bundle], client: Client) -> None:
        client.push_many(bundles, topic=self._options.topic, timeout=self._options.push_timeout_ns / SECOND_NS)

    def commit(self, messages: list[TaskWritten | None]) -> None:
        self._log("committed", messages)

    def abort(self, messages: list[TaskWritten | None]) -> None:
        """Nothing is taken back: what tasks have pushed before the job failed stays in the topic."""
        self._log("aborted", messages)

    def _log(self, outcome: str, messages: list[TaskWritten | None]) -> None:
        done = [message for message in messages if message is not None]
        logger.info(
            "quiver.spark.%s topic=%s tasks=%d bundles=%d rows=%d",
            outcome,
            self._options.topic,
            len(done),
            sum(message.bundles for message in done),
            sum(message.rows for message in done),
        )


def bundles_of(batch: pa.RecordBatch, slots: tuple[Slot, ...]) -> list[Bundle]:
    """Cut one batch of Spark's into bundles.

    Without slots, or with one, the batch is the bundle. With several, each slot is a struct column; a row whose struct is null has
    nothing in that slot. Rows with the same slots form one bundle, so that the batches of a bundle are always row by row.

    Raises:
        InvalidBundle: a row in which every slot is null.
    """
    batch = conform(batch, storable_schema(batch.schema))
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


def _slots_present(batch: pa.RecordBatch, slots: tuple[Slot, ...]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """For each row a bit mask of the slots that are not null."""
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


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Group batches with rows up to the push limits."""
    portion: list[pa.RecordBatch] = []
    portion_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        portion.append(batch)
        portion_bytes += batch.nbytes
        if len(portion) >= PUSH_BUNDLES_MAX or portion_bytes >= PUSH_BYTES_TARGET:
            yield portion
            portion, portion_bytes = [], 0
    if portion:
        yield portion


def _check_slot_columns(slots: tuple[Slot, ...], schema: StructType) -> None:
    if len(slots) < 2:
        return
    columns = {field.name: field.dataType.typeName() for field in schema}
    expected = dict.fromkeys(map(str, slots), "struct")
    if columns != expected:
        raise UsageError(
            f"option 'slots' names {', '.join(expected)}: expected exactly these columns, each a struct, but the data has "
            + ", ".join(f"{name} {kind}" for name, kind in columns.items())
        )
