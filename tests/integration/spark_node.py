"""What the Spark tests share: a node, a session, and helpers to look at what arrived."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quiver_actors.client import Client, connect
from quiver_actors.spark import ensure_java, session_conf
from tests.integration.node_process import Directories, NodeProcess, command_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

    from quiver_actors.spark.stream import TopicStreamReader

DEADLINE_SECONDS = 120.0


class Node:
    """`quiver up` with two workers on directories that outlive it."""

    def __init__(self, config: str) -> None:
        self.directories = Directories()
        self._config = self.directories.base / "quiver.toml"
        self._config.write_text(config)
        self.run_dir = self.directories.run
        self.start()

    def start(self) -> None:
        options = {
            "--config": self._config,
            "--data-dir": self.directories.data,
            "--run-dir": self.run_dir,
            "--cores": 2,
        }
        arguments = [str(part) for option in options.items() for part in option]
        command = command_line("quiver_actors.cli.main", "up", *arguments)
        self.process = NodeProcess(command, self.run_dir).wait_ready()

    def stop(self) -> None:
        assert self.process.stop() == 0, self.process.logged()

    def kill(self) -> None:
        """SIGKILL to the supervisor: its workers die with it."""
        self.process.__exit__()

    def remove(self) -> None:
        self.stop()
        self.directories.remove()

    def client(self) -> Client:
        return connect(self.run_dir)


@contextmanager
def spark_session(directory: Path, *, master: str = "local[2,4]", **conf: str) -> Iterator[SparkSession]:
    """A session whose Python is this one."""
    ensure_java()
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .config(map=session_conf())
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
    )
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


class ResumedQuery:
    """A streaming query that is started again, from its checkpoint, when Spark has given one of its Pythons up.

    Spark waits ten seconds for a Python that it has started, however busy the machine is, and ends the query if that was too short.
    """

    STARTS_MAX = 20
    GIVEN_UP = "Python worker failed to connect back"

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._starts = 1
        self.query = start()

    def is_over(self) -> bool:
        """Whether it has come to its end by itself.

        Raises:
            StreamingQueryException: something else has ended it.
        """
        from pyspark.errors import StreamingQueryException

        if self.query.isActive:
            return False
        try:
            self.query.awaitTermination(1)
        except StreamingQueryException as error:
            if self.GIVEN_UP not in str(error) or self._starts == self.STARTS_MAX:
                raise
            self._starts += 1
            self.query = self._start()
            return False
        return True

    def stop(self) -> None:
        self.query.stop()

    def finish(self, seconds: float = 360.0) -> StreamingQuery:
        """Wait for its end."""
        wait_until(self.is_over, "the end of the query", seconds)
        return self.query


class MicroBatch(NamedTuple):
    reader: TopicStreamReader
    end: dict[str, Any]
    partitions: list[InputPartition]


def micro_batch(options: dict[str, str], schema: StructType, start: dict[str, Any] | None = None) -> MicroBatch:
    """What a process of a streaming query plans first, asked as Spark does. `start`: of a query that was there before."""
    from quiver_actors.spark.options import READ_STREAM, parse_options
    from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL, stream_reader

    named = {} if HAS_ADMISSION_CONTROL else {"subscriber": f"query-{uuid.uuid4().hex}"}
    reader: Any = stream_reader(parse_options({**named, **options}, READ_STREAM), schema)
    start = reader.initialOffset() if start is None else start
    end = reader.latestOffset(start, reader.getDefaultReadLimit()) if HAS_ADMISSION_CONTROL else reader.latestOffset()
    return MicroBatch(reader, end, reader.partitions(start, end))


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Look again and again; fails the test when it does not come true."""
    deadline = time.monotonic() + seconds
    pause = Pause()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:.0f} s"
        pause.once()


class Pause:
    """A short wait between two looks at something that nobody announces."""

    def once(self) -> None:
        import select

        select.select([], [], [], 0.05)
