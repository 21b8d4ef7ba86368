"""The settings that a driver program makes once: the session's configuration, and the active session of each thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_VERSION_MIN = (4, 1)


def session_conf() -> dict[str, str]:
    """Settings that suit Arrow batches on their way into Quiver, for `SparkSession.builder.config(map=session_conf())`.

    Batches of 10,000 rows and at most 4 MiB fit many times into a producer's arena; compressing Arrow between the JVM and its Python
    workers only costs time (with lz4 it practically hangs); reused Python workers keep their connection to the node.
    """
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
        "spark.sql.execution.arrow.compression.codec": "none",
        "spark.python.worker.reuse": "true",
    }


def use(spark: SparkSession) -> SparkSession:
    """Make `spark` the session of the calling thread. Call it once in every thread that writes with `format("quiver")`.

    Spark looks up Python data sources in the JVM's active session, which only the thread that built the session has: without this, a
    write from another thread fails with DATA_SOURCE_NOT_FOUND.

    Returns:
        The same session.

    Raises:
        UsageError: this Spark is older than 4.1.
    """
    check_spark_version(spark.version)
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:  # A Spark Connect session has no JVM in this process and needs nothing.
        jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    return spark


def check_spark_version(version: str) -> None:
    """Raise UsageError if `version`, such as "4.3.0", is below the oldest Spark that Quiver supports."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < SPARK_VERSION_MIN:
        raise UsageError(
            f"Spark {version} is not supported: Quiver needs Spark {'.'.join(map(str, SPARK_VERSION_MIN))} or newer"
        )
