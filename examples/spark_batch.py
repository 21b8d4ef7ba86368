"""Spark, batch: a DataFrame is written to a topic, exactly once however often the job is run, and read back.

    pip install 'quiver-actors[spark,spark-jre]'
    quiver up --data-dir quiver_data --cores 2 &
    python examples/spark_batch.py

The node is the one of `QUIVER_RUN_DIR`, else the one of this user. Run it again: the rows are still there once.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession

import quiver_actors
from quiver_actors import spark as qs

TOPIC = "example-clicks"
ROWS = 10_000


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that has quiver_actors
    qs.ensure_java()
    builder = SparkSession.builder.appName("spark_batch").master("local[2,4]").config(map=qs.session_conf())
    return qs.use(builder.getOrCreate())


def write(clicks: DataFrame) -> None:
    """All rows become visible together. These two options name the write, so that repeating it changes nothing."""
    named = clicks.write.format("quiver").option("txnAppId", "example-import").option("txnVersion", "1")
    named.option("topic", TOPIC).mode("append").save()


def main() -> None:
    with quiver_actors.connect() as client:
        client.create_topic(TOPIC, if_missing=True)
    spark = session()
    clicks = spark.range(ROWS).selectExpr("id", "concat('page-', id % 7) AS page")
    write(clicks)
    write(clicks)  # as a job does that its scheduler starts a second time

    stored = spark.read.format("quiver").option("topic", TOPIC).option("where", "page != 'page-0'").load()
    for page, count in stored.groupBy("page").count().orderBy("page").collect():
        print(page, count)
    rows = spark.read.format("quiver").option("topic", TOPIC).load().count()
    spark.stop()
    print(f"wrote {ROWS} rows twice, stored {rows}")


if __name__ == "__main__":
    main()
