"""Batch and streaming write. Each Arrow batch of a task becomes bundles on the task's own node.

| commitProtocol | visible | a repeated task or micro-batch |
|---|---|---|
| batch (default) | all tasks together, when Spark commits | stores nothing twice, on whatever node it runs |
| task | each task's rows when it ends | stores nothing twice; rows of a job that failed stay |
| none | each bundle when it is sealed | may store again: at least once |
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from quiver_actors.errors import UsageError
from quiver_actors.spark import commit
from quiver_actors.spark.bundling import check_slot_columns
from quiver_actors.spark.message_first import message_first
from quiver_actors.spark.options import SourceOptions
from quiver_actors.spark.task import TaskWritten, skip_task, write_task
from quiver_actors.transactions import Token

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("quiver.spark")

DECISIONS_KEPT = 1000
"""Decisions of a streaming query that are kept unless configured: ten times what Spark keeps of its checkpoint and can replay."""

Messages = Sequence[TaskWritten | None]


class TopicWriter(DataSourceArrowWriter):
    """The writer of one job. Made on the driver, pickled to its tasks; the same object commits."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_slot_columns(options.slots, schema)
        self._options = options
        self._txn_id = ""
        self._decisions = ""
        self._attempt: commit.Attempt | None = None
        if options.commit_protocol != "none":
            self._decisions = commit.decisions_location(options)
            named = options.txn_app_id is not None
            self._txn_id = commit.named_transaction(options) if named else uuid.uuid4().hex
            self._attempt = commit.open_attempt(self._txn_id, self._decisions)

    @message_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Store the rows of one task."""
        options = self._options
        if options.commit_protocol == "none":
            return write_task(options, None, iterator)
        if self._attempt is None:
            return skip_task(iterator)
        if options.commit_protocol == "task":
            return write_partition(options, self._txn_id, self._decisions, iterator)
        return write_task(options, self._attempt, iterator)

    @message_first
    def commit(self, messages: list[TaskWritten | None]) -> None:
        """Decide and publish; a write that was committed before under its `txnAppId` and `txnVersion` is only published."""
        if self._options.commit_protocol == "batch":
            if self._attempt is None:
                commit.publish_again(self._options, self._txn_id, self._decisions)
            else:
                commit.publish(self._options, commit.decide(self._attempt, tokens_of(messages)).tokens)
                if self._options.txn_app_id is None:
                    # Nobody can repeat this write, and an attempt that is still alive finds nobody who decides for it.
                    commit.forget(self._attempt.txn_id, self._attempt.decisions)
        log("committed", self._options, messages)

    def abort(self, messages: list[TaskWritten | None]) -> None:
        """Drop the staged bundles unless they were committed: Spark calls this also when `commit` has failed."""
        if self._options.commit_protocol == "batch" and self._attempt is not None:
            commit.abort(self._options, self._attempt)
        log("aborted", self._options, messages)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch. Another one commits: everything it needs is in the messages."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_slot_columns(options.slots, schema)
        self._options = options
        self._decisions = "" if options.commit_protocol == "none" else commit.decisions_location(options)

    @message_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Store the rows of one task of a micro-batch."""
        options = self._options
        if options.commit_protocol == "none":
            return write_task(options, None, iterator)
        txn_id = micro_batch_id()
        attempt = commit.open_attempt(txn_id, self._decisions)
        if attempt is None:
            skip_task(iterator)
            if options.commit_protocol == "task":
                # It was committed as a whole before the option was changed.
                commit.publish_again(options, txn_id, self._decisions)
            # The commit finds the decision by the transaction's name.
            return TaskWritten(attempt=commit.Attempt(txn_id, 0, self._decisions), is_done_before=True)
        if options.commit_protocol == "task":
            return write_partition(options, txn_id, self._decisions, iterator)
        check_not_by_tasks(txn_id, self._decisions)
        return write_task(options, attempt, iterator)

    @message_first
    def commit(self, messages: list[TaskWritten | None], batchId: int) -> None:  # noqa: N803 - Spark passes it so
        """Decide and publish; a replayed micro-batch, whose decision stands, is only published."""
        attempts = attempts_of(messages)
        if self._options.commit_protocol == "batch":
            if any(message is not None and message.is_done_before for message in messages):
                commit.publish_again(self._options, attempts[0].txn_id, attempts[0].decisions)
            elif attempts:
                commit.publish(self._options, commit.decide(attempts[0], tokens_of(messages)).tokens)
        for attempt in set(attempts) if batchId >= DECISIONS_KEPT else ():
            query, _, rest = attempt.txn_id.partition(f"-{batchId}")
            commit.forget(f"{commit.transaction_id(query, batchId - DECISIONS_KEPT)}{rest}", attempt.decisions)
        log("committed", self._options, messages, batchId)

    def abort(self, messages: list[TaskWritten | None], batchId: int) -> None:  # noqa: N803
        """Abort the micro-batch like `TopicWriter.abort`. Without messages there is nothing to name: what is staged is dropped when the
        micro-batch is replayed, or expires.
        """
        if self._options.commit_protocol == "batch":
            for attempt in set(attempts_of(messages)):
                commit.abort(self._options, attempt)
        log("aborted", self._options, messages, batchId)


def write_partition(
    options: SourceOptions, txn_id: str, decisions: str, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    """`commitProtocol=task`: stage, decide and publish the rows of one partition in its task."""
    own_id = id_of_partition(txn_id)
    attempt = commit.open_attempt(own_id, decisions)
    if attempt is None:
        written = skip_task(batches)
        commit.publish_again(options, own_id, decisions)
        return written
    written = write_task(options, attempt, batches)
    commit.publish(options, commit.decide(attempt, tokens_of([written])).tokens)
    return TaskWritten(written.bundles, written.rows, attempt)


def id_of_partition(txn_id: str) -> str:
    """The transaction of the calling task alone, with `commitProtocol=task`."""
    context = TaskContext.get()
    return f"{txn_id}-p{context.partitionId() if context is not None else 0}"


def check_not_by_tasks(txn_id: str, decisions: str) -> None:
    """
    Raises:
        UsageError: a task has committed rows of this micro-batch by itself. All of them would be stored once more.
    """
    own_id = id_of_partition(txn_id)
    if commit.open_attempt(own_id, decisions) is None:
        raise UsageError(
            f"this micro-batch was begun with commitProtocol=task, and {own_id} is committed: end it with that (start the query once with "
            "commitProtocol=task and trigger availableNow), then change the option"
        )


def micro_batch_id() -> str:
    """The transaction of the micro-batch that the calling task belongs to: the same when it is replayed.

    Raises:
        UsageError: this is no task of a streaming query.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if query is None or batch is None:
        raise UsageError(
            "this task belongs to no micro-batch: Spark did not name its query; write with commitProtocol=none"
        )
    return commit.transaction_id(query, batch)


def attempts_of(messages: Messages) -> list[commit.Attempt]:
    """Return the attempts of the tasks that stored something; a task without bundles has no message or no attempt."""
    return [message.attempt for message in messages if message is not None and message.attempt is not None]


def tokens_of(messages: Messages) -> list[Token]:
    """Return the tokens of all stages that the tasks have prepared."""
    return [Token.decode(token) for message in messages if message is not None for token in message.tokens]


def log(outcome: str, options: SourceOptions, messages: Messages, batch_id: int | None = None) -> None:
    """Log the outcome of a write with its topic and the sums of its tasks' bundles and rows."""
    done = [message for message in messages if message is not None]
    logger.info(
        "quiver.spark.%s topic=%s%s tasks=%d bundles=%d rows=%d",
        outcome,
        options.topic,
        "" if batch_id is None else f" batch={batch_id}",
        len(done),
        sum(message.bundles for message in done),
        sum(message.rows for message in done),
    )
