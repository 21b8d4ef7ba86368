"""The Spark side: a job that pushes bundles from its tasks, and a table that goes through `format("quiver")` and back."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from quiver_actors.cli.demo import tables
from quiver_actors.cli.demo.node import PLANES_TOPIC, TOPIC
from quiver_actors.spark import ensure_java, node_client, session_conf, use

RECEIPTS = "core int, segment_seq long, bundle_index int, durability string, flights long, weather long"

_LOG4J = """
status = error
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log_path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


LOCAL, EXECUTORS = "local[2]", "local-cluster[2,1,640]"
"""Where tasks run: in the driver, or in two executors of their own."""


def start_spark(workspace: Path, run_dir: Path, master: str = LOCAL) -> SparkSession:
    """A session with two cores. Its tasks find the node through the environment, as on a cluster's nodes."""
    ensure_java()
    conf_dir = workspace / "spark-conf"
    conf_dir.mkdir(exist_ok=True)
    (conf_dir / "log4j2.properties").write_text(_LOG4J.format(log_path=workspace / "spark.log"))
    os.environ |= {
        "QUIVER_RUN_DIR": str(run_dir),
        "SPARK_CONF_DIR": str(conf_dir),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(workspace / "spark-work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    builder = (
        SparkSession.builder.master(master)
        .appName("quiver demo")
        .config(map=session_conf())
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.adaptive.coalescePartitions.enabled", "false")
        .config("spark.local.dir", str(workspace / "spark-local"))
        .config("spark.sql.warehouse.dir", str(workspace / "spark-warehouse"))
    )
    with _stderr_in(workspace / "spark.log"):
        return builder.getOrCreate()


@contextlib.contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Give processes that start meanwhile this file as their standard error: the JVM and its Python workers."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def push_travel(spark: SparkSession, files: dict[str, Path], days: int) -> pa.Table:
    """Push every block of hours as one bundle. Blocks until all are acknowledged.

    Returns:
        One row for each bundle: the columns `RECEIPTS`.
    """
    use(spark)
    flights = _read(spark, files["flights"], tables.FLIGHTS).where(F.col("time_hour") < tables.end_of(days))
    weather = _read(spark, files["weather"], tables.WEATHER).where(F.col("time_hour") < tables.end_of(days))
    block = F.floor(F.unix_timestamp("time_hour") / F.lit(tables.HOURS_PER_BUNDLE * 3600))
    pairs = flights.groupBy(block).cogroup(weather.groupBy(block))
    return pairs.applyInArrow(push_block, RECEIPTS).toArrow()


def push_block(block: tuple[pa.Scalar, ...], flights: pa.Table, weather: pa.Table) -> pa.Table:
    """Runs in a task: one block of hours becomes one bundle of up to two slots on the task's own node. Its number chooses the core."""
    both = {"flights": flights, "weather": weather}
    bundle: dict[str | int, Any] = {slot: table for slot, table in both.items() if table.num_rows}
    receipt = node_client().push(bundle, topic=TOPIC, key=str(block[0]), item_count=flights.num_rows, timeout=60)
    row = {
        "core": receipt.bundle_id.core,
        "segment_seq": receipt.bundle_id.segment_seq,
        "bundle_index": receipt.bundle_id.bundle_index,
        "durability": receipt.durability.name,
        "flights": flights.num_rows,
        "weather": weather.num_rows,
    }
    types = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
    schema = pa.schema([(name, types[kind]) for name, kind in (column.split() for column in RECEIPTS.split(", "))])
    return pa.Table.from_pylist([row], schema=schema)


def round_trip_planes(spark: SparkSession, files: dict[str, Path]) -> tuple[int, bool]:
    """Write the planes with `format("quiver")`, read them back, and compare.

    Returns:
        Rows read, and whether they are the rows written.
    """
    use(spark)
    planes = _read(spark, files["planes"], tables.PLANES)
    planes.write.format("quiver").option("topic", PLANES_TOPIC).mode("append").save()
    stored = spark.read.format("quiver").option("topic", PLANES_TOPIC).load()
    differing = planes.exceptAll(stored).union(stored.exceptAll(planes)).count()
    return stored.count(), differing == 0


def _read(spark: SparkSession, path: Path, columns: str) -> DataFrame:
    return spark.read.csv(str(path), schema=columns, header=True, nullValue="NA")
