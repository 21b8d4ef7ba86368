"""Spark, streaming, exactly once: files go into a topic and out of it into Parquet, while tasks fail and a micro-batch is replayed.

    pip install 'quiver-actors[spark,spark-jre]'
    quiver up --data-dir quiver_data --cores 2 &
    python examples/spark_streaming.py

The node is the one of `QUIVER_RUN_DIR`, else the one of this user. Topic and files are this run's own, and gone at its end.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import quiver_actors
from quiver_actors import spark as qs

ROWS = 5_000


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each task loses its first attempt, after it has handed on its rows."""
    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("this attempt is lost; Spark runs the task again")


def write(spark: SparkSession, base: str, topic: str) -> None:
    rows = spark.readStream.schema("id BIGINT").json(f"{base}/in").mapInArrow(failing_at_first, "id BIGINT")
    writer = rows.writeStream.format("quiver").option("topic", topic).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{base}/checkpoint-in").start().awaitTermination()


def read(spark: SparkSession, base: str, topic: str) -> list[int]:
    """The subscriber keeps what the query has not committed; its name shows in `quiver status`."""
    options = {"topic": topic, "startingOffsets": "earliest", "subscriber": "to-parquet"}
    rows = spark.readStream.format("quiver").options(**options).schema("id BIGINT").load()
    query = rows.writeStream.option("checkpointLocation", f"{base}/checkpoint-out").start(f"{base}/out", "parquet")
    query.processAllAvailable()
    query.stop()
    return [row.id for row in spark.read.parquet(f"{base}/out").collect()]


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that has quiver_actors
    qs.ensure_java()
    builder = SparkSession.builder.master("local[2,4]").config(map=qs.session_conf())
    spark = builder.config("spark.log.level", "OFF").getOrCreate()  # the failing attempts would fill the log
    with quiver_actors.connect() as client, tempfile.TemporaryDirectory(prefix="example-") as base:
        topic = os.path.basename(base)
        client.create_topic(topic)
        spark.range(ROWS).coalesce(1).write.json(f"{base}/in")
        write(spark, base, topic)
        shutil.rmtree(f"{base}/checkpoint-in/commits")  # as if the driver had died before Spark noted the end
        write(spark, base, topic)  # replays the micro-batch
        client.flush(topic)
        found = read(spark, base, topic)
        client.delete_topic(topic)
    spark.stop()
    print(f"wrote {ROWS} rows, read {len(found)}, of them different {len(set(found))}")


if __name__ == "__main__":
    main()
