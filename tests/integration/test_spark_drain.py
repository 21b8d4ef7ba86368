"""A node is drained under a streaming query that goes on with the others."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from quiver_actors.flight.members import members_of
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL
from tests.integration.leaving_nodes import push, served
from tests.integration.node_process import run_quiver
from tests.integration.spark_node import ResumedQuery, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not HAS_ADMISSION_CONTROL, reason="needs Spark 4.2: before, the source is not told where it stands"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def rows_committed(output: Path) -> int:
    """Return the rows that the finished micro-batches of a Parquet query have written, over all of its runs."""
    logs = [log.read_text().splitlines() for log in (output / "_spark_metadata").glob("[0-9]*")]
    files = {json.loads(line)["path"] for lines in logs for line in lines if line.startswith("{")}
    return sum(pq.read_metadata(file.removeprefix("file://")).num_rows for file in files)


def test_a_drain_ends_under_an_idle_query_which_goes_on_without_the_node(spark: SparkSession, tmp_path: Path) -> None:
    nodes, output = tmp_path / "nodes", tmp_path / "output"

    def start() -> StreamingQuery:
        options = {"topic": "moving", "startingOffsets": "earliest", "nodes": str(nodes), "runDir": str(tmp_path)}
        stream = spark.readStream.format("quiver").options(**options).schema("n BIGINT").load()
        writer = stream.writeStream.format("parquet").option("path", str(output))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def wait_read(query: ResumedQuery, count: int) -> None:
        wait_until(lambda: rows_committed(output) >= count or query.is_over(), "the rows")
        assert rows_committed(output) == count

    with ExitStack() as ending:
        leaves, stays = (ending.enter_context(served(name, nodes)) for name in ("leaves", "stays"))
        push(leaves, 0, 100)
        push(stays, 100, 100)
        query = ResumedQuery(start)
        ending.callback(query.stop)
        wait_read(query, 200)
        # Nothing more comes, so Spark plans no micro-batch any more, with which it would commit the last one.
        drained = run_quiver(
            "drain", "--run-dir", str(leaves.run_dir), "--timeout", "60s", "--leave", "--nodes", str(nodes)
        )
        assert drained.returncode == 0, drained.stderr
        assert list(members_of(str(nodes))) == ["stays"]
        push(stays, 200, 100)
        wait_read(query, 300)
        query.stop()
        query = ResumedQuery(start)
        ending.callback(query.stop)
        push(stays, 300, 100)
        wait_read(query, 400)
    assert sorted(row.n for row in spark.read.parquet(str(output)).collect()) == list(range(400))
