"""Streaming queries while a node leaves by `quiver drain --leave` and comes back, asked as Spark does, without a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.flight.members import members_of
from quiver_actors.spark.asking import in_background
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL
from tests.integration.leaving_nodes import push, served, serving
from tests.integration.node_process import run_quiver
from tests.integration.spark_node import micro_batch, wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not HAS_ADMISSION_CONTROL, reason="needs Spark 4.2: before, the source is not told where it stands"
    ),
]


class Query:
    """The source of one query: planned, read and committed one micro-batch after the other."""

    def __init__(self, run_dir: Path, nodes: Path) -> None:
        from pyspark.sql.types import LongType, StructField, StructType

        self._options = {"runDir": str(run_dir), "nodes": str(nodes), "topic": "moving", "startingOffsets": "earliest"}
        self._schema = StructType([StructField("n", LongType())])
        self.rows: list[int] = []
        first: Any = micro_batch(self._options, self._schema)
        self._reader, self._end = first.reader, first.end
        self._read(first.partitions)

    def goes_on(self) -> None:
        """Ask for what is new, as an idle query does all the time, and read it."""
        end = self._reader.latestOffset(self._end, self._reader.getDefaultReadLimit())
        if end != self._end:
            self._reader.commit(self._end)
            begin, self._end = self._end, end
            self._read(self._reader.partitions(begin, end))

    def has_read(self, count: int) -> bool:
        self.goes_on()
        return len(self.rows) >= count

    def _read(self, partitions: Any) -> None:
        for partition in partitions:
            for batch in self._reader.read(partition):
                self.rows += batch.column("n").to_pylist()


@contextmanager
def all_the_time(ask: Callable[[], object]) -> Iterator[Future[None]]:
    """Ask again and again in the background; what that raises is raised at the end."""
    ending = threading.Event()

    def go_on() -> None:
        while not ending.is_set():
            ask()

    asking = in_background(go_on)
    try:
        yield asking
    finally:
        ending.set()
        asking.result(60)


def test_queries_go_on_at_once_when_a_node_leaves_and_when_it_is_back(tmp_path: Path) -> None:
    """One query runs on the host of the node that leaves, one on a host without a node. Both stood still for their `pushTimeout`."""
    nodes = tmp_path / "nodes"
    with ExitStack() as ending:
        leaves, stays = (ending.enter_context(served(name, nodes)) for name in ("leaves", "stays"))
        push(leaves, 0, 10)
        push(stays, 10, 10)
        queries = [Query(leaves.run_dir, nodes), Query(tmp_path, nodes)]

        def wait_rows(count: int) -> None:
            for query in queries:
                wait_until(partial(query.has_read, count), "the rows", 30)
                assert sorted(query.rows) == list(range(count))

        with ExitStack() as asking:
            for query in queries:
                asking.enter_context(all_the_time(query.goes_on))
            leaving = ("drain", "--run-dir", str(leaves.run_dir), "--timeout", "30s", "--leave", "--nodes", str(nodes))
            drained = run_quiver(*leaving)
            assert drained.returncode == 0, drained.stderr
            assert list(members_of(str(nodes))) == ["stays"]
        push(stays, 20, 10)
        wait_rows(30)
        leaves.kill()  # What has ended is also let go of.
        leaves.start()
        with serving(leaves, nodes):
            push(leaves, 30, 10)
            wait_rows(40)
