"""Rows that are not sealed, and will not be for an hour, in a real local Spark session; `test_spark_unsealed` has the cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.integration.spark_node import Node, wait_until
from tests.integration.test_spark_stream import Stream, push

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")[-60:]
    with node.client() as client:
        client.create_topic(name)
    return name


def sealed_count(node: Node, topic: str) -> int:
    with node.client() as client:
        return sum(len(infos) for infos in client.segments(topic).values())


def test_a_batch_read_of_open_segments(spark: SparkSession, node: Node, topic: str) -> None:
    push(node, topic, 0, 100)
    frame = spark.read.format("quiver").option("topic", topic).load()
    assert frame.columns == ["n"]
    assert sorted(row.n for row in frame.collect()) == list(range(100))
    with node.client() as client:
        client.push(pa.record_batch({"n": [100], "name": ["new"]}), topic=topic)
    again = spark.read.format("quiver").option("topic", topic).load()
    assert again.columns == ["n", "name"]
    assert again.where("name = 'new'").count() == 1
    assert again.count() == 101
    assert sealed_count(node, topic) == 0


def test_single_pushes_reach_the_sink_of_a_stream_without_a_seal(
    spark: SparkSession, node: Node, topic: str, tmp_path: Path
) -> None:
    """Across a node that is killed in between, a seal, and a query that is stopped and started again."""
    stream = Stream(spark, tmp_path, topic)
    pushed: list[int] = []

    def push_next(count: int) -> None:
        push(node, topic, len(pushed), count)
        pushed.extend(range(len(pushed), len(pushed) + count))

    def push_singly(query: StreamingQuery, count: int) -> None:
        for _ in range(count):
            push_next(1)
            wait_until(lambda: query.exception() or stream.rows() == pushed, "the row")
            assert query.exception() is None

    query = stream.start(processingTime="0 seconds")
    try:
        push_singly(query, 5)
        assert sealed_count(node, topic) == 0
        with node.client() as client:
            client.flush(topic)
        push_singly(query, 2)
    finally:
        query.stop()
    push_next(3)
    node.kill()
    node.start()
    query = stream.start(processingTime="0 seconds")
    try:
        push_singly(query, 2)
    finally:
        query.stop()
    assert stream.rows() == pushed
