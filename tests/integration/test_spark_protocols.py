"""A streaming query whose `commitProtocol` is changed while a micro-batch can still be replayed. No session is needed for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors.errors import UsageError
from quiver_actors.spark.options import WRITE_STREAM, parse_options
from quiver_actors.spark.writer import TopicStreamWriter
from tests.integration.spark_node import Node
from tests.integration.test_spark_commit import numbers

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture
def task() -> Iterator[None]:
    """Says that the calling thread is the only task of a query's first micro-batch."""
    context: Any = TaskContext._getOrCreate()
    context._partitionId = context._taskAttemptId = 0
    context._localProperties = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "0"}
    yield
    TaskContext._setTaskContext(None)


def test_a_micro_batch_that_is_replayed_under_another_protocol_is_stored_once(
    node: Node, task: None, tmp_path: Path
) -> None:
    """All of it was stored twice: the decision of the micro-batch has another name than those of its tasks."""
    with node.client() as client:
        for topic in ("batch-task", "task-batch"):
            client.create_topic(topic)

    def write(topic: str, protocol: str) -> None:
        given = {"topic": topic, "commitProtocol": protocol, "checkpointLocation": str(tmp_path / topic)}
        sink = TopicStreamWriter(parse_options({**given, "runDir": str(node.run_dir)}, WRITE_STREAM), SCHEMA)
        sink.commit([sink.write(iter([pa.record_batch({"id": [1, 2, 3]})]))], 0)

    write("batch-task", "batch")
    write("batch-task", "task")
    assert numbers(node, "batch-task") == [1, 2, 3]
    write("task-batch", "task")
    with pytest.raises(UsageError, match="begun with commitProtocol=task, and query-0-p0 is committed"):
        write("task-batch", "batch")
    write("task-batch", "task")
    assert numbers(node, "task-batch") == [1, 2, 3]
