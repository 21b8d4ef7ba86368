"""How soon after a push has a streaming query of Spark committed it to its sink, beyond what the micro-batch itself takes?

One worker, `max_open_duration = "1h"`: nothing is sealed. A query without a trigger interval is idle, and a bundle of one row is pushed.
The time from the call of `push` until the commit file of its micro-batch is there, less the `triggerExecution` that Spark reports of that
micro-batch, is the `wait`; it is negative where Spark is longer busy behind its commit than it took to see the push. Spark looks for new
data every 10 ms while it is idle (`spark.sql.streaming.pollingDelay`). Beside it, in the same session and in turns, a Python source that
does nothing but read a number out of a file: what any Python source pays.

    python -m benchmarks.live_spark [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.harness import Measurements, Report, begun, parser, read_options, running_node
from benchmarks.spark import session
from quiver_actors.client import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

CONFIG = '[segment]\nmax_open_duration = "1h"\n[topics.live]\n'
WARM_PUSHES = 5
_LOOK_SECONDS = 0.001
_PATIENCE_SECONDS = 60.0
_IDLE_SECONDS = 0.05


class CountReader(DataSourceStreamReader):
    """Offsets are the number in a file; each row is its offset."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"count": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"count": int(self._path.read_text())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["count"], end["count"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": pa.array(range(*partition.value), pa.int64())})


class CountSource(DataSource):
    """`format("count")`: what any Python source pays."""

    @classmethod
    def name(cls) -> str:
        return "count"

    def schema(self) -> str:
        return "n BIGINT"

    def streamReader(self, schema: StructType) -> CountReader:  # noqa: N802
        return CountReader(self.options["path"])


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if query.exception() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the query did not go on: {query.exception()}")
        time.sleep(_LOOK_SECONDS)


class LiveQuery:
    """An idle query with a sink that drops its rows."""

    def __init__(self, spark: SparkSession, source: str, options: dict[str, str], directory: Path) -> None:
        self._commits = directory / "commits"
        writer = spark.readStream.format(source).options(**options).schema("n BIGINT").load().writeStream.format("noop")
        self._query = writer.option("checkpointLocation", str(directory)).start()

    def wait_ms(self, push: Callable[[], object]) -> float:
        """Push once. How long that took to the sink's commit, less the micro-batch."""
        batch = len(list(self._commits.glob("[0-9]*"))) if self._commits.exists() else 0
        committed = self._commits / str(batch)
        # Not always at the same place of Spark's own beat.
        time.sleep(_IDLE_SECONDS + random.uniform(0, _LOOK_SECONDS * 20))
        begun_ns = time.perf_counter_ns()
        push()
        wait_until(committed.exists, self._query)
        took_ms = (time.perf_counter_ns() - begun_ns) / 1e6
        found: list[float] = []

        def is_told() -> bool:
            found[:] = [
                p.durationMs["triggerExecution"]
                for p in self._query.recentProgress
                if p.batchId == batch and p.numInputRows
            ]
            return bool(found)

        wait_until(is_told, self._query)
        return took_ms - found[0]

    def stop(self) -> None:
        self._query.stop()


def measured(query: LiveQuery, push: Callable[[], object], pushes: int) -> Measurements:
    for _ in range(WARM_PUSHES):
        query.wait_ms(push)
    waits = sorted(query.wait_ms(push) for _ in range(pushes))
    return {"p50": statistics.median(waits), "p90": waits[len(waits) * 9 // 10]}


def show(report: Report, spark: SparkSession, run_dir: str, workspace: Path, pushes: int, rounds: int) -> None:
    count = workspace / "count"
    count.write_text("0")

    def add_one() -> None:
        following = count.with_suffix(".next")
        following.write_text(str(int(count.read_text()) + 1))
        os.replace(following, count)

    results: dict[str, list[Measurements]] = {"quiver": [], "python_source": []}
    with connect(run_dir) as client:
        row = pa.record_batch({"n": pa.array([1], pa.int64())})
        queries = {
            "quiver": (
                LiveQuery(spark, "quiver", {"topic": "live", "startingOffsets": "earliest"}, workspace / "q"),
                lambda: client.push(row, topic="live"),
            ),
            "python_source": (LiveQuery(spark, "count", {"path": str(count)}, workspace / "c"), add_one),
        }
        try:
            for _ in range(rounds):
                for name, (query, push) in queries.items():
                    results[name].append(measured(query, push, pushes))
        finally:
            for query, _ in queries.values():
                query.stop()
    for key in ("p50", "p90"):
        beside = ("python_source", results["python_source"])
        report.show_rounds(f"live_spark/wait/python_source/{key}", results["python_source"], key, "ms")
        report.show_rounds(f"live_spark/wait/quiver/{key}", results["quiver"], key, "ms", "synced", beside)


def main() -> None:
    options = read_options(parser(__doc__), rounds=3)
    with begun(options) as (report, directory), running_node(directory, CONFIG) as run_dir:
        os.environ["QUIVER_RUN_DIR"] = str(run_dir)
        with session(Path(directory)) as spark:
            spark.dataSource.register(CountSource)
            show(report, spark, str(run_dir), Path(directory), 5 if options.quick else 40, options.rounds)


if __name__ == "__main__":
    main()
