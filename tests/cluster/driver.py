"""A Spark driver in a process of its own, so that it can be killed.

    python -m tests.cluster.driver SETTINGS      (JSON: the session's)

Says `ready`, then takes a write a line (JSON: first, count, options) and answers each with `done` or `failed` and why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def slowly(seconds: float, rows: int) -> Any:
    """Return a function for mapInArrow that passes on `rows` at a time and pauses before each portion."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import threading

        pause = threading.Event()
        for batch in batches:
            for start in range(0, batch.num_rows, rows):
                pause.wait(seconds)
                yield batch.slice(start, rows)

    return run


def write(spark: SparkSession, first: int, count: int, options: dict[str, str]) -> None:
    """Numbers, with something beside each that tells whether a row is whole."""
    frame = spark.range(first, first + count, 1, 4).selectExpr("id", "md5(CAST(id AS STRING)) AS content")
    slow = frame.mapInArrow(slowly(0.04, rows=100), "id long, content string")
    slow.write.format("quiver").options(**options).mode("append").save()


def main() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(map=json.loads(sys.argv[1])).getOrCreate()
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            write(spark, **json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
            print("failed", json.dumps(str(error)[:3000]), flush=True)
        else:
            print("done", flush=True)


if __name__ == "__main__":
    main()
