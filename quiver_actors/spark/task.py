"""What one task writes: its batches become bundles on its own node, pushed at once or staged for the driver to publish.

The iterator is always drained, also when there is nothing to store: Spark does not use a Python worker again that left rows unread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from quiver_actors.client import Client
from quiver_actors.errors import QuiverError
from quiver_actors.spark import commit
from quiver_actors.spark.bundling import Bundle, bundles_of, by_key, sized, storable
from quiver_actors.spark.connection import node_client, with_node
from quiver_actors.spark.options import SourceOptions
from quiver_actors.units import MIB, SECOND_NS

PUSH_BUNDLES_MAX = 64
PUSH_BYTES_TARGET = 16 * MIB
"""What is pushed before its acknowledgements are awaited: enough to keep the node busy, little enough to hold in memory."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one task has stored; invisible until the driver publishes it where it has tokens."""

    bundles: int = 0
    rows: int = 0
    run: commit.Run | None = None
    tokens: tuple[str, ...] = ()
    is_done_before: bool = False
    """An earlier run of the same transaction was committed: nothing was stored."""


def write_task(options: SourceOptions, run: commit.Run | None, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Store the batches of one task. `run`: what they are staged for; None: they are visible at once.

    Raises:
        QuiverError: the node could not take them in time; names its run directory. Spark runs the task again.
    """
    keyed = _keyed(options, sized(map(storable, batches), options.bundle_bytes))
    # The first batch makes Spark compute: a node is asked only when there is something to store.
    first = next(keyed, None)
    try:
        if first is None:
            return TaskWritten(run=run)
        rows = chain((first,), keyed)
        return _push(options, rows) if run is None else _stage(options, run, rows)
    except QuiverError as error:
        _drain(keyed)
        error.add_note(f"node: {options.run_dir or node_directory()}; topic: {options.topic}")
        raise


def skip_task(batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Drain a task whose rows are stored already."""
    _drain(batches)
    return TaskWritten(is_done_before=True)


def node_directory() -> str:
    from quiver_actors.config import default_run_dir

    return default_run_dir()


def _drain(rest: Iterable[Any]) -> None:
    for _ in rest:
        continue


Keyed = tuple[str | None, pa.RecordBatch]


def _keyed(options: SourceOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[Keyed]:
    """Batches with the key that chooses their worker."""
    for batch in batches:
        if options.key is None:
            yield None, batch
        else:
            yield from by_key(batch, options.key).items()


def _push(options: SourceOptions, batches: Iterator[Keyed]) -> TaskWritten:
    bundles = rows = 0
    for key, portion in _portions(batches):
        pushes = [bundle for batch in portion for bundle in bundles_of(batch, options.slots)]
        with_node(options.run_dir, options.push_timeout_ns, partial(_push_many, options, key, pushes))
        bundles += len(pushes)
        rows += sum(batch.num_rows for batch in portion)
    return TaskWritten(bundles, rows)


def _push_many(options: SourceOptions, key: str | None, pushes: list[Bundle], client: Client) -> None:
    client.push_many(pushes, topic=options.topic, key=key, timeout=options.push_timeout_ns / SECOND_NS)


def _stage(options: SourceOptions, run: commit.Run, batches: Iterator[Keyed]) -> TaskWritten:
    """One stage for each worker that the task's keys belong to; without keys, one."""
    context = TaskContext.get()
    partition, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
    timeout = options.push_timeout_ns / SECOND_NS
    client: Any = node_client(options.run_dir, options.push_timeout_ns)
    stages: dict[int, Any] = {}
    bundles = rows = 0
    try:
        for key, batch in batches:
            core = client.core_for(key)
            if core not in stages:
                stages[core] = client.stage(
                    run.txn_id,
                    topic=options.topic,
                    partition=partition,
                    attempt=attempt,
                    epoch=run.epoch,
                    decisions=run.decisions,
                    key=key,
                    node=client.node,
                    timeout=timeout,
                )
            pushes = bundles_of(batch, options.slots)
            stages[core].push_many(pushes, timeout=timeout)
            bundles += len(pushes)
            rows += batch.num_rows
        tokens = [stage.prepare(timeout=timeout) for stage in stages.values()]
    except BaseException:
        for stage in stages.values():
            stage.abort()
        raise
    return TaskWritten(bundles, rows, run, tuple(token.encode() for token in tokens if token is not None))


def _portions(batches: Iterable[Keyed]) -> Iterator[tuple[str | None, list[pa.RecordBatch]]]:
    """Group batches of one key up to the push limits, in order for each key."""
    portions: dict[str | None, list[pa.RecordBatch]] = {}
    sizes: dict[str | None, int] = {}
    for key, batch in batches:
        portions.setdefault(key, []).append(batch)
        sizes[key] = sizes.get(key, 0) + batch.nbytes
        if len(portions[key]) >= PUSH_BUNDLES_MAX or sum(sizes.values()) >= PUSH_BYTES_TARGET:
            fullest = max(sizes, key=lambda each: sizes[each])
            yield fullest, portions.pop(fullest)
            del sizes[fullest]
    yield from portions.items()
