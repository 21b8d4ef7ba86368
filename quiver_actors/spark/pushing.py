"""Pushing without a sink: from `mapInArrow` and `foreachBatch`.

A Python transformation followed by a sink sends every row to Python twice; `push` does both in one visit. It is as exact as a sink: tasks
stage, and the driver decides and publishes when all have ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from quiver_actors.errors import UsageError
from quiver_actors.spark import commit
from quiver_actors.spark.options import WRITE, SourceOptions, parse_options
from quiver_actors.spark.session import use
from quiver_actors.spark.task import TaskWritten, write_task
from quiver_actors.transactions import Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Transform: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]"

_WRITTEN = "bundles long, rows long, tokens array<string>"
_WRITTEN_ARROW = pa.schema([("bundles", pa.int64()), ("rows", pa.int64()), ("tokens", pa.list_(pa.string()))])
_stored: dict[tuple[str, str], tuple[str | None, int, int]] = {}
"""Last batch that `foreach_batch` stored, by (name of the query, topic): run of the query, micro-batch, hash of its plan."""
RECEIPTS = "node string, core int, partition int, bundles long, rows long"


def push(df: DataFrame, topic: str, transform: Transform | None = None, **options: str) -> DataFrame:
    """Transform the DataFrame's batches in its tasks and store what comes out; returns when it is visible on all nodes.

    Args:
        transform: from an iterator of record batches to one, as for `mapInArrow`; None: store them as they are.
        options: of a batch write; see docs/spark.md. `commitProtocol=none`: visible as it comes, stored again when a task is repeated.

    Returns:
        What was stored where: columns `RECEIPTS`, a row for each stage. Empty if `txnAppId` and `txnVersion` were written before, or
        with `commitProtocol=none`.

    Raises:
        ConfigError: an option is wrong. And what Spark raises when a task has failed for good.
    """
    checked = parse_options({**options, "topic": topic}, WRITE)
    if checked.commit_protocol == "task":
        raise UsageError("push takes commitProtocol=batch or none: its tasks do not decide")
    spark = use(df.sparkSession)
    tokens: list[Token] = []
    if checked.commit_protocol == "none":
        df.mapInArrow(_writing(checked, None, transform), _WRITTEN).collect()
    else:
        tokens = _push_run(df, checked, transform)
    rows = [(token.node, token.core, token.partition, token.bundles, token.rows) for token in tokens]
    return spark.createDataFrame(rows, RECEIPTS)


def tee(topic: str, **options: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `df.mapInArrow(tee("topic"), df.schema)`: every batch is stored and goes on. At least once: Spark runs tasks again."""
    checked = parse_options({"commitProtocol": "none", **options, "topic": topic}, WRITE)
    if checked.commit_protocol != "none":
        raise UsageError("tee takes commitProtocol=none: rows that go on through a plan are not committed with it")

    def store_and_pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            write_task(checked, None, iter([batch]))
            yield batch

    return store_and_pass


def foreach_batch(topic: str, **options: str) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch(foreach_batch("topic"))`: each micro-batch is stored once, also when it is replayed.

    Args:
        options: of a batch write; `txnAppId` names the query, and is needed where Spark does not (`checkpointLocation` is a good name), and
            where the function of one query stores twice into one topic: one for each, as what has a name is stored once.

    The function raises UsageError where another frame of the same micro-batch has been stored under the same name.
    """
    parse_options({**options, "topic": topic, **({"txnVersion": "0"} if "txnAppId" in options else {})}, WRITE)

    def store(df: DataFrame, batch_id: int) -> None:
        spark = use(df.sparkSession)
        app_id = options.get("txnAppId") or spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if app_id is None:
            raise UsageError("Spark does not name the query here: give foreach_batch a txnAppId of its own")
        identity = {"txnAppId": app_id, "txnVersion": str(batch_id)}
        stored = _run_of(spark), batch_id, df.semanticHash()
        _check_name(app_id, topic, stored)
        df.write.format("quiver").options(**{**options, **identity, "topic": topic}).mode("append").save()
        _stored[app_id, topic] = stored

    return store


def _run_of(spark: SparkSession) -> str | None:
    """What tells runs of a query apart: a replayed micro-batch has another plan. None where that cannot be seen (Spark Connect)."""
    if getattr(spark, "_jvm", None) is None:
        return None
    run: str | None = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    return run


def _check_name(app_id: str, topic: str, stored: tuple[str | None, int, int]) -> None:
    """
    Raises:
        UsageError: what would not be stored, as it has the name of something else.
    """
    before = _stored.get((app_id, topic), stored)
    if before[:2] == stored[:2] and before != stored:
        raise UsageError(
            f"micro-batch {stored[1]} of {app_id!r} has been stored in topic {topic!r} already, with other contents, and what has one name "
            "is stored once: give each foreach_batch of the query a txnAppId of its own"
        )


def _push_run(df: DataFrame, options: SourceOptions, transform: Transform | None) -> list[Token]:
    decisions = commit.decisions_location(options)
    named = options.txn_app_id is not None
    txn_id = commit.named_transaction(options) if named else uuid.uuid4().hex
    attempt = commit.open_attempt(txn_id, decisions)
    if attempt is None:
        commit.publish_again(options, txn_id, decisions)
        return []
    try:
        rows = df.mapInArrow(_writing(options, attempt, transform), _WRITTEN).collect()
    except BaseException:
        commit.abort(options, attempt)
        raise
    tokens = list(commit.decide(attempt, [Token.decode(token) for row in rows for token in row.tokens]).tokens)
    commit.publish(options, tokens)
    if not named:
        commit.forget(txn_id, decisions)  # As a sink's: nobody can repeat this write.
    return tokens


def _writing(options: SourceOptions, attempt: commit.Attempt | None, transform: Transform | None) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = batches if transform is None else iter(transform(batches))
        yield _as_row(write_task(options, attempt, made))
        for _ in batches:  # What the transformation left unread.
            continue

    return write


def _as_row(written: TaskWritten) -> pa.RecordBatch:
    row = {"bundles": written.bundles, "rows": written.rows, "tokens": list(written.tokens)}
    return pa.RecordBatch.from_pylist([row], schema=_WRITTEN_ARROW)
