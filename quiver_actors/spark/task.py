"""Writes the rows of one task: its batches become bundles on its own node, pushed at once or staged for the driver to publish.

The iterator is always drained, also when there is nothing to store: Spark does not use a Python worker again that left rows unread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from quiver_actors.base.units import MIB, SECOND_NS
from quiver_actors.client import Client
from quiver_actors.client.stage import Stage
from quiver_actors.errors import QuiverError
from quiver_actors.spark import commit
from quiver_actors.spark.bundling import Bundle, bundles_of, by_key, sized, storable
from quiver_actors.spark.connection import with_node
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.own_node import on_own_node

T = TypeVar("T")

PUSH_BUNDLES_MAX = 64
PUSH_BYTES_TARGET = 16 * MIB
"""Bytes pushed before their acknowledgements are awaited: enough to keep the node busy, little enough to hold in memory."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """Result of one task; with tokens its bundles are invisible until the driver publishes them."""

    bundles: int = 0
    rows: int = 0
    attempt: commit.Attempt | None = None
    tokens: tuple[str, ...] = ()
    is_done_before: bool = False
    """An earlier attempt at the same transaction was committed: nothing was stored."""


def write_task(
    options: SourceOptions, attempt: commit.Attempt | None, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    """Store the batches of one task. `attempt`: what they are staged for; None: they are visible at once.

    Raises:
        QuiverError: the node could not take them in time; names its run directory. Spark runs the task again.
    """
    keyed = _keyed(options, sized(map(storable, batches), options.bundle_bytes))
    # The first batch makes Spark compute: a node is asked only when there is something to store.
    first = next(keyed, None)
    try:
        if first is None:
            return TaskWritten(attempt=attempt)
        rows = chain((first,), keyed)
        return _push(options, rows) if attempt is None else _stage(options, attempt, rows)
    except QuiverError as error:
        _drain(keyed)
        error.add_note(f"node: {options.run_dir or node_directory()}; topic: {options.topic}")
        raise


def skip_task(batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Drain a task whose rows are stored already."""
    _drain(batches)
    return TaskWritten(is_done_before=True)


def node_directory() -> str:
    """Return the run directory of this host's node: `QUIVER_RUN_DIR`, else the default of the user."""
    from quiver_actors.base.config import default_run_dir

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
        _with_node(options, partial(_push_many, options, key, pushes))
        bundles += len(pushes)
        rows += sum(batch.num_rows for batch in portion)
    return TaskWritten(bundles, rows)


def _with_node(options: SourceOptions, action: Callable[[Client], T]) -> T:
    return with_node(options.run_dir, options.push_timeout_ns, action, trusted_uid=options.trusted_uid)


def _push_many(options: SourceOptions, key: str | None, pushes: list[Bundle], client: Client) -> None:
    timeout = options.push_timeout_ns / SECOND_NS
    client.push_many(pushes, topic=options.topic, key=key, trace_context=options.traceparent, timeout=timeout)


def _stage(options: SourceOptions, attempt: commit.Attempt, batches: Iterator[Keyed]) -> TaskWritten:
    """One stage for each worker that the task's keys belong to; without keys, one."""
    stages = _Stages(options, attempt)
    try:
        stages.push(batches)
        tokens = stages.prepare()
    except BaseException:
        stages.abort()
        raise
    return TaskWritten(stages.bundles, stages.rows, attempt, tokens)


class _Stages:
    """The stages of one task, by core."""

    def __init__(self, options: SourceOptions, attempt: commit.Attempt) -> None:
        self.bundles = self.rows = 0
        self._options = options
        self._attempt = attempt
        self._timeout = options.push_timeout_ns / SECOND_NS
        context = TaskContext.get()
        # Without a task nobody would do it elsewhere.
        self._attempt_number = 1 if context is None else context.attemptNumber()
        self._client = on_own_node(options, self._attempt_number, lambda client, _: client)
        self._stages: dict[int, Stage] = {}

    def push(self, batches: Iterator[Keyed]) -> None:
        if self._options.key is None:
            # One call for all, so that Spark computes the next batch while the worker takes this one.
            self._push(None, (batch for _, batch in batches))
            return
        for key, batch in batches:
            self._push(key, [batch])

    def _push(self, key: str | None, batches: Iterable[pa.RecordBatch]) -> None:
        trace = self._options.traceparent
        self._begun(key).push_many(self._bundles(batches), trace_context=trace, timeout=self._timeout)

    def prepare(self) -> tuple[str, ...]:
        commit.check_not_aborted(self._attempt)
        tokens = [stage.prepare(timeout=self._timeout) for stage in self._stages.values()]
        return tuple(token.encode() for token in tokens if token is not None)

    def abort(self) -> None:
        for stage in self._stages.values():
            with contextlib.suppress(QuiverError):
                stage.abort()

    def _bundles(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Bundle]:
        for batch in batches:
            found = bundles_of(batch, self._options.slots)
            self.bundles += len(found)
            self.rows += batch.num_rows
            yield from found

    def _begun(self, key: str | None) -> Stage:
        core = self._client.core_for(key)
        if core not in self._stages:
            self._stages[core] = on_own_node(self._options, self._attempt_number, partial(self._begin, key))
        return self._stages[core]

    def _begin(self, key: str | None, client: Client, timeout_seconds: float) -> Stage:
        context = TaskContext.get()
        self._client = client
        return client.stage(
            self._attempt.txn_id,
            topic=self._options.topic,
            partition=0 if context is None else context.partitionId(),
            attempt=0 if context is None else context.taskAttemptId(),
            epoch=self._attempt.epoch,
            decisions=self._attempt.decisions,
            ttl=self._options.stage_ttl_ns / SECOND_NS,
            key=key,
            node=client.node,
            timeout=timeout_seconds,
        )


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
