"""What Spark pays for Quiver: a write against a sink that does nothing, a read against a bare source of mapped files and against Parquet.

    python -m benchmarks.spark [--quick] [--json]

Interleaved: every round runs every variant once, in turn; reported are medians of the ratios within a round, so that what else the
machine does hits all alike. `local[2]`, one node with one worker beside it on the same cores.

    push      rows that cost Spark nothing: Quiver's sink (commitProtocol none, batch) / a Python Arrow sink that drops its batches
    job       rows that are parsed, joined and aggregated first: the same
    read      stored rows into Spark's noop sink: Quiver's source / a Python source over mapped Arrow files; / Parquet on the same disk
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from quiver_actors.client import connect
from quiver_actors.spark import ensure_java, session_conf

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUIVER = [sys.executable, "-m", "quiver_actors.cli.main"]
TOPICS = ("none", "batch", "job_none", "job_batch", "read")


class DropWriter(DataSourceArrowWriter):
    """The limit of a Python sink: takes every batch and forgets it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            continue
        return WriterCommitMessage()


class MappedReader(DataSourceReader):
    """The limit of a Python source: Arrow files, mapped, in exactly Spark's types."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._path).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        reader = pa.ipc.open_file(pa.memory_map(partition.value))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


class BareSource(DataSource):
    """`format("bare")`: both limits."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def reader(self, schema: StructType) -> MappedReader:
        return MappedReader(self.options["path"])

    def writer(self, schema: StructType, overwrite: bool) -> DropWriter:
        return DropWriter()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rows, rounds = (400_000, 3) if arguments.quick else (2_000_000, 7)
    workspace = Path(tempfile.mkdtemp(prefix="quiver-spark-bench-"))
    try:
        with running_node(workspace), session(workspace) as spark:
            found = measure(spark, workspace, rows, rounds)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:34} {value:.2f}" if isinstance(value, float) else f"{name:34} {value}")


def measure(spark: SparkSession, workspace: Path, rows: int, rounds: int) -> dict[str, Any]:
    """Every ratio, by name; and what the slower side of each took."""
    bulk = spark.range(0, rows, 1, 2).selectExpr("id", "id * 2 AS b", "CAST(id AS DOUBLE) c", "CAST(id AS INT) d")
    worked = real_work(spark, rows // 4)
    pushes = in_turns(
        {
            "drop": lambda: bare_write(bulk),
            "none": lambda: quiver_write(bulk, "none", "none"),
            "batch": lambda: quiver_write(bulk, "batch", "batch"),
        },
        rounds,
    )
    jobs = in_turns(
        {
            "drop": lambda: bare_write(worked),
            "none": lambda: quiver_write(worked, "job_none", "none"),
            "batch": lambda: quiver_write(worked, "job_batch", "batch"),
        },
        rounds,
    )
    prepare_reads(spark, workspace, bulk)
    columns = "id LONG, b LONG, c DOUBLE, d INT"
    quiver = spark.read.format("quiver").option("topic", "read").schema(columns)
    reads = in_turns(
        {
            "mapped": lambda: noop(spark.read.format("bare").schema(columns).load(str(workspace / "arrow"))),
            "quiver": lambda: noop(quiver.load()),
            "parquet": lambda: noop(spark.read.parquet(str(workspace / "parquet"))),
        },
        rounds,
    )
    return {
        "rows": rows,
        "rounds": rounds,
        "push none / drop": ratio(pushes, "none", "drop"),
        "push batch / drop": ratio(pushes, "batch", "drop"),
        "job none / drop": ratio(jobs, "none", "drop"),
        "job batch / drop": ratio(jobs, "batch", "drop"),
        "read quiver / mapped": ratio(reads, "quiver", "mapped"),
        "read quiver / parquet": ratio(reads, "quiver", "parquet"),
        "push drop seconds": statistics.median(pushes["drop"]),
        "job drop seconds": statistics.median(jobs["drop"]),
        "read mapped seconds": statistics.median(reads["mapped"]),
    }


def in_turns(variants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every variant in every round; a first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, run in variants.items():
            started = time.perf_counter()
            run()
            if number:
                found[name].append(time.perf_counter() - started)
    return found


def ratio(seconds: dict[str, list[float]], of: str, to: str) -> float:
    return statistics.median(left / right for left, right in zip(seconds[of], seconds[to], strict=True))


def real_work(spark: SparkSession, rows: int) -> DataFrame:
    """Text that is parsed, joined and aggregated: what a job does before it stores something."""
    lines = spark.range(0, rows, 1, 2).selectExpr("to_json(named_struct('k', id % 1000, 'v', id, 's', uuid())) AS line")
    parsed = lines.selectExpr("from_json(line, 'k LONG, v LONG, s STRING') AS r").select("r.*")
    names = spark.range(1000).selectExpr("id AS k", "concat('name-', id) AS name")
    return (
        parsed.join(names, "k").groupBy("name", (parsed.v / 16).cast("long").alias("g")).agg({"v": "sum", "s": "max"})
    )


def bare_write(frame: DataFrame) -> None:
    frame.write.format("bare").mode("append").save()


def quiver_write(frame: DataFrame, topic: str, protocol: str) -> None:
    frame = frame.toDF(*[name.replace("(", "_").replace(")", "") for name in frame.columns])
    frame.write.format("quiver").options(topic=topic, commitProtocol=protocol).mode("append").save()


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def prepare_reads(spark: SparkSession, workspace: Path, frame: DataFrame) -> None:
    """The same rows in a topic, in mapped Arrow files and in Parquet."""
    quiver_write(frame, "read", "none")
    frame.write.parquet(str(workspace / "parquet"))
    (workspace / "arrow").mkdir()
    with connect(workspace / "run") as client:
        client.flush("read")
        for core in client.segments("read"):
            for number, bundle in enumerate(client.read("read", core)):
                path = str(workspace / "arrow" / f"{core}-{number:05}.arrow")
                with pa.ipc.new_file(path, bundle.batch.schema) as writer:
                    writer.write_batch(bundle.batch)


@contextmanager
def running_node(workspace: Path) -> Iterator[None]:
    """`quiver up` with one worker."""
    config = workspace / "quiver.toml"
    config.write_text("".join(f"[topics.{topic}]\n" for topic in TOPICS))
    os.environ["QUIVER_RUN_DIR"] = str(workspace / "run")
    places = ["--data-dir", str(workspace / "data"), "--run-dir", str(workspace / "run"), "--cores", "1"]
    command = [*_QUIVER, "up", "--config", str(config), *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the node did not start")
            yield
        finally:
            process.terminate()


@contextmanager
def session(workspace: Path) -> Iterator[SparkSession]:
    """A local session of two cores."""
    ensure_java()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        **session_conf(),
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "4",
        "spark.local.dir": str(workspace / "local"),
        "spark.sql.warehouse.dir": str(workspace / "warehouse"),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.dataSource.register(BareSource)
    try:
        yield spark
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
