"""What does Spark pay for Quiver: a write against a sink that does nothing and against Parquet, a read against mapped files and against
Parquet?

Interleaved: every round runs every variant once, in turn; reported are medians, and the median of the ratios of times within a round, so
that what else the machine does hits all alike (a ratio of 1.05 is 5 % longer). `local[2]`, one node with one worker beside it on the same
cores. A first round is not counted. Quiver syncs what it takes; Parquet files are written without a sync.

    push      rows that cost Spark nothing: Quiver's sink (commitProtocol none, batch) / a Python Arrow sink that drops its batches;
              / Parquet
    job       rows that are parsed, joined and aggregated first: the same
    read      stored rows into Spark's noop sink: Quiver's source / a Python source over mapped Arrow files; / Parquet on the same disk

    python -m benchmarks.spark [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from benchmarks.harness import Measurements, Report, begun, parser, read_options, running_node
from quiver_actors.client import connect
from quiver_actors.spark import ensure_java, session_conf

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
    options = read_options(parser(__doc__), rounds=7)
    rows = 400_000 if options.quick else 2_000_000
    with begun(options) as (report, directory):
        workspace = Path(directory)
        topics = "".join(f"[topics.{topic}]\n" for topic in TOPICS)
        with running_node(directory, topics) as os.environ["QUIVER_RUN_DIR"], session(workspace) as spark:
            measure(report, spark, workspace, rows, options.rounds)


def measure(report: Report, spark: SparkSession, workspace: Path, rows: int, rounds: int) -> None:
    bulk = spark.range(0, rows, 1, 2).selectExpr("id", "id * 2 AS b", "CAST(id AS DOUBLE) c", "CAST(id AS INT) d")
    for what, frame, prefix in (("push", bulk, ""), ("job", real_work(spark, rows // 4), "job_")):
        files = str(workspace / f"{what}.parquet")
        writes = in_turns(
            {
                "drop": partial(bare_write, frame),
                "parquet": partial(parquet_write, frame, files),
                "none": partial(quiver_write, frame, f"{prefix}none", "none"),
                "batch": partial(quiver_write, frame, f"{prefix}batch", "batch"),
            },
            rounds,
        )
        show(report, f"spark/{what}", writes, ("none", "batch"), ("drop", "parquet"), "synced")
    prepare_reads(spark, workspace, bulk)
    columns = "id LONG, b LONG, c DOUBLE, d INT"
    quiver = spark.read.format("quiver").option("topic", "read").schema(columns)
    mapped = spark.read.format("bare").schema(columns)
    reads = in_turns(
        {
            "mapped": lambda: noop(mapped.load(str(workspace / "arrow"))),
            "quiver": lambda: noop(quiver.load()),
            "parquet": lambda: noop(spark.read.parquet(str(workspace / "parquet"))),
        },
        rounds,
    )
    show(report, "spark/read", reads, ("quiver",), ("mapped", "parquet"), "")


def show(
    report: Report,
    case: str,
    found: dict[str, list[Measurements]],
    ours: Sequence[str],
    limits: Sequence[str],
    durability: str,
) -> None:
    for name in limits:
        report.show_rounds(f"{case}/{name}", found[name], "s", "s", "none")
    for name in ours:
        for limit in limits:
            report.show_rounds(f"{case}/{name}", found[name], "s", "s", durability, (limit, found[limit]))


def in_turns(variants: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[Measurements]]:
    """Seconds of every variant in every round; a first round is not counted."""
    found: dict[str, list[Measurements]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, run in variants.items():
            started = time.perf_counter()
            run()
            if number:
                found[name].append({"s": time.perf_counter() - started})
    return found


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


def parquet_write(frame: DataFrame, path: str) -> None:
    frame = frame.toDF(*[name.replace("(", "_").replace(")", "") for name in frame.columns])
    frame.write.mode("overwrite").parquet(path)


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def prepare_reads(spark: SparkSession, workspace: Path, frame: DataFrame) -> None:
    """The same rows in a topic, in mapped Arrow files and in Parquet."""
    quiver_write(frame, "read", "none")
    frame.write.parquet(str(workspace / "parquet"))
    (workspace / "arrow").mkdir()
    with connect() as client:
        client.flush("read")
        for core in client.segments("read"):
            for number, bundle in enumerate(client.read("read", core)):
                path = str(workspace / "arrow" / f"{core}-{number:05}.arrow")
                with pa.ipc.new_file(path, bundle.batch.schema) as writer:
                    writer.write_batch(bundle.batch)


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
