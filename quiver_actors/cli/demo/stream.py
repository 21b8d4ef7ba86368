"""The streaming half of the demo: files -> Structured Streaming -> Quiver -> Structured Streaming -> Parquet, exactly once.

Two queries run on executors of their own. On the way one executor is killed, then a worker of the node. Tasks run again, micro-batches are
replayed; at the end every row of the source is in the Parquet files once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.cli.demo.node import STREAM_TOPIC, Node
from quiver_actors.client import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTS = 8
KILL_EXECUTOR_AT, KILL_WORKER_AT = 2, 4
"""Micro-batches that the first query has begun."""
KILLED_CORE = 1
RUNS_MAX = 5
_LOOK_SECONDS = 0.1
_DEADLINE_SECONDS = 600.0
COLUMNS = "row long, carrier string, flight int, tailnum string, origin string, dest string, time_hour timestamp"


@dataclass(frozen=True)
class StreamOutcome:
    """The figures of the streaming half."""

    rows: int
    lost: int
    duplicates: int
    rows_equal: bool

    @property
    def is_good(self) -> bool:
        """Whether no row was lost or doubled and all rows are equal to those pushed."""
        return self.lost == 0 and self.duplicates == 0 and self.rows_equal

    def __str__(self) -> str:
        equal = str(self.rows_equal).lower()
        return f"stream: rows={self.rows} lost={self.lost} duplicates={self.duplicates} rows_equal={equal}"


def run_stream(spark: SparkSession, node: Node, workspace: Path, flights: pa.Table) -> StreamOutcome:
    """Send the flights through both queries, with the kills."""
    names = [column.split()[0] for column in COLUMNS.split(", ")]
    source = flights.append_column("row", pa.array(range(flights.num_rows), pa.int64())).select(names)
    write_parts(source, workspace / "stream-in")
    writing, reading = _Writing(spark, workspace), _Reading(spark, workspace)
    reader = reading.start()
    try:
        follow(writing, node)
        with connect(str(node.run_dir)) as client:
            client.flush(STREAM_TOPIC)
        reader = reading.finish(reader)
    finally:
        for query in spark.streams.active:
            query.stop()
    return compare(source, spark.read.parquet(str(reading.output)).toArrow())


def write_parts(source: pa.Table, directory: Path) -> None:
    """`PARTS` files, each of them a micro-batch."""
    directory.mkdir()
    rows = -(-source.num_rows // PARTS)
    for number in range(PARTS):
        pq.write_table(source.slice(number * rows, rows), directory / f"{number:03}.parquet")


class _Writing:
    """Files into the topic; ends when all are in."""

    def __init__(self, spark: SparkSession, workspace: Path) -> None:
        self._spark = spark
        self._workspace = workspace

    def start(self) -> StreamingQuery:
        source = self._spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", "1")
        files = source.parquet(str(self._workspace / "stream-in"))
        writer = files.writeStream.format("quiver").option("topic", STREAM_TOPIC)
        checkpoint = str(self._workspace / "checkpoint-in")
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def begun(self) -> int:
        """Micro-batches that were begun, over all runs of the query."""
        return len(list((self._workspace / "checkpoint-in" / "offsets").glob("[0-9]*")))


class _Reading:
    """The topic into Parquet files."""

    def __init__(self, spark: SparkSession, workspace: Path) -> None:
        self.output = workspace / "stream-out"
        self._spark = spark
        self._checkpoint = str(workspace / "checkpoint-out")

    def start(self) -> StreamingQuery:
        # The subscriber's name shows in `quiver status`; on Spark 4.1 the query has no other.
        options = {"topic": STREAM_TOPIC, "startingOffsets": "earliest", "subscriber": "stream-to-parquet"}
        source = self._spark.readStream.format("quiver").options(**options)
        writer = source.schema(COLUMNS).load().writeStream.format("parquet").option("path", str(self.output))
        return writer.option("checkpointLocation", self._checkpoint).start()

    def finish(self, query: StreamingQuery) -> StreamingQuery:
        """Wait until everything in the topic is in the files; a query that has failed goes on from its checkpoint."""
        for run in range(RUNS_MAX):
            try:
                query.processAllAvailable()
                return query
            except Exception as error:
                if run == RUNS_MAX - 1:
                    raise
                print(f"  the reading query failed ({_first_line(error)}) and goes on from its checkpoint")
                query = self.start()
        raise AssertionError("unreachable")


def follow(writing: _Writing, node: Node) -> None:
    """Run the writing query to its end, kill on the way, and start it again where it fails."""
    todo: list[tuple[int, Any]] = [(KILL_EXECUTOR_AT, kill_executor), (KILL_WORKER_AT, lambda: kill_worker(node))]
    for run in range(RUNS_MAX):
        query = writing.start()
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while query.isActive:
            if todo and writing.begun() >= todo[0][0]:
                todo.pop(0)[1]()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the writing query did not end within {_DEADLINE_SECONDS:.0f} s")
            time.sleep(_LOOK_SECONDS)
        error = query.exception()
        if error is None:
            return
        if run == RUNS_MAX - 1:
            raise error
        print(f"  the writing query failed ({_first_line(error)}) and goes on from its checkpoint")


def kill_executor() -> None:
    """SIGKILL to one of the JVMs that run tasks; Spark starts another one."""
    pids = executor_pids()
    if pids:
        os.kill(pids[0], signal.SIGKILL)
        print(f"  SIGKILL to an executor (pid {pids[0]}) while both queries run")


def kill_worker(node: Node) -> None:
    """Kill a worker while both queries run."""
    pid = node.kill_worker(KILLED_CORE)
    print(f"  SIGKILL to worker {KILLED_CORE} (pid {pid}) while both queries run")


def executor_pids() -> list[int]:
    """The executors of this program's session."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (directory / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and _is_below(int(directory.name), os.getpid()):
                found.append(int(directory.name))
    return sorted(found)


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def compare(source: pa.Table, arrived: pa.Table) -> StreamOutcome:
    """Rows by their number, and their contents."""
    numbers = set(arrived["row"].to_pylist())
    ordered = arrived.select(source.column_names).cast(source.schema).sort_by("row").combine_chunks()
    return StreamOutcome(
        rows=arrived.num_rows,
        lost=source.num_rows - len(numbers),
        duplicates=arrived.num_rows - len(numbers),
        rows_equal=ordered.equals(source.combine_chunks()),
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
