"""Whatever is stored, Spark reads the rows that a dataset has: topics whose columns come, go and change their types.

`QUIVER_AGREEING_TOPICS=2000` tries more than the few topics of an ordinary run.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from quiver_actors.client import connect
from tests.integration.spark_node import Node
from tests.property.test_query_agreement import _sorted, topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quiver_actors.client import Client

TOPICS = int(os.environ.get("QUIVER_AGREEING_TOPICS", "5"))
TOPICS_PER_JOB = 5

# PySpark leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300 + 10 * TOPICS),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
_numbers = itertools.count()


@settings(
    max_examples=1 + TOPICS // TOPICS_PER_JOB,  # The first one is always the simplest.
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(stored=st.lists(topics(), min_size=TOPICS_PER_JOB, max_size=TOPICS_PER_JOB))
def test_spark_reads_the_rows_of_the_dataset(
    spark: SparkSession, node: Node, stored: list[list[tuple[pa.RecordBatch, bool]]]
) -> None:
    with connect(node.run_dir) as client:
        names = [_store(client, bundles) for bundles in stored]
        datasets = [client.dataset(name) for name in names]
        expected = {name: _sorted(each.to_table().to_pylist()) for name, each in zip(names, datasets, strict=True)}
        found = _read_in_one_job(spark, names)
        for name, dataset in zip(names, datasets, strict=True):
            columns = dataset.schema.names
            assert _sorted([{column: row[column] for column in columns} for row in found[name]]) == expected[name]
            client.delete_topic(name)


def _store(client: Client, bundles: list[tuple[pa.RecordBatch, bool]]) -> str:
    topic = f"agreeing{next(_numbers)}"
    client.create_topic(topic)
    for batch, is_last in bundles:
        client.push(batch, topic=topic, key="one worker")
        if is_last:
            client.flush(topic)
    return topic


def _read_in_one_job(spark: SparkSession, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each topic: all topics are structs of one frame, null where a row is of another topic."""
    frames: list[DataFrame] = []
    for name in names:
        frame = spark.read.format("quiver").option("topic", name).load()
        frames.append(frame.selectExpr(f"struct(*) AS {name}"))
    whole = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    rows = whole.toArrow().to_pylist()
    return {name: [row[name] for row in rows if row[name] is not None] for name in names}
