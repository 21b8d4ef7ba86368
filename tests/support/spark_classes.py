"""An archive of the classes that Spark loads, from which the JVMs of the tests start sooner.

    python -m tests.support.spark_classes FILE      makes it; an empty file where this Java cannot

A JVM that finds that the archive is of another Java or another class path does without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVMs of tests run for a minute or less: they compile quickly rather than well, which takes half of the CPU time."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
_SECONDS_MAX = 300
_JOB = """
import os, sys
os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
from quiver_actors.spark import ensure_java, session_conf
ensure_java()
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config(map=session_conf()).config("spark.ui.enabled", "false")
spark = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "2").getOrCreate()
numbers = spark.range(100).selectExpr("id", "CAST(id % 7 AS STRING) AS name", "STRUCT(id) AS s")
numbers.groupBy("name").count().orderBy("name").collect()
numbers.mapInArrow(lambda batches: batches, numbers.schema).where("id > 3").toArrow()
numbers.coalesce(1).write.json("in")
stream = spark.readStream.schema(numbers.schema).json("in").writeStream.trigger(availableNow=True)
stream.option("checkpointLocation", "checkpoint").start("out", "parquet").awaitTermination()
spark.read.parquet("out").unionByName(numbers).collect()
spark.stop()
"""
"""What most tests do with Spark, so that its classes are in the archive."""


def archive_options() -> str:
    """Options of a JVM that runs Spark; empty where there is no archive."""
    return f"-XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() and ARCHIVE.stat().st_size else ""


def make(archive: Path) -> bool:
    """Run a job of Spark, whose JVM writes the archive when it ends. Returns whether it has."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        made = Path(directory) / "made.jsa"
        own = {"JDK_JAVA_OPTIONS": JVM_OPTIONS, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made} {_QUIET}"}
        job = subprocess.run(
            [sys.executable, "-c", _JOB],
            cwd=directory,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,  # The JVM has it, too: the job ends when that has ended.
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        if job.returncode or not made.exists():
            print(f"the tests go on without an archive of Spark's classes: {job.stdout[-500:]}", file=sys.stderr)
            archive.touch()
            return False
        made.replace(archive)
        return True


if __name__ == "__main__":
    make(Path(sys.argv[1]))
