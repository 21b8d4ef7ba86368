"""A real standalone cluster of two hosts, a node on each: exactly once across nodes, remote reads, placement.

Heavy (a master, two workers, two executors): run by `make test-cluster`, not by `make test`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from quiver_actors import spark as qs
from quiver_actors.client import connect
from quiver_actors.spark.testing import ClusterNode, StandaloneCluster
from tests.integration.spark_node import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPICS = ("plain", "remote", "local", "executor", "python", "quiver", "speculation", "rounds", "stream", "copied")
CONFIG = "[segment]\nmax_open_duration = '200ms'\ntarget_size = '256KiB'\n" + "".join(f"[topics.{t}]\n" for t in TOPICS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    with StandaloneCluster(2, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(cluster: StandaloneCluster) -> SparkSession:
    return cluster.session(
        spark__task__maxFailures="8",
        spark__excludeOnFailure__enabled="false",
        spark__executor__maxNumFailures="1000",
        # However slow the machine is, a preferred host is waited for.
        spark__locality__wait="60s",
    )


def save(frame: DataFrame, topic: str, **options: str) -> None:
    frame.write.format("quiver").options(topic=topic, **options).mode("append").save()


def numbers(host: ClusterNode, topic: str) -> list[int]:
    """What is visible on one node, read without Spark."""
    found: list[int] = []
    with connect(host.run_dir) as client:
        client.flush(topic)
        for core in client.segments(topic):
            found += [n for bundle in client.read(topic, core) for n in bundle.batch.column("id").to_pylist()]
    return found


def everywhere(cluster: StandaloneCluster, topic: str) -> list[int]:
    return sorted(n for host in cluster.hosts for n in numbers(host, topic))


def staged(host: ClusterNode, topic: str) -> int:
    with connect(host.run_dir) as client:
        return sum(map(len, client.staged(topic).values()))


def slowly(seconds: float = 0.0) -> Any:
    """For mapInArrow: passes batches on and takes its time, so that something can happen meanwhile."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import threading

        pause = threading.Event()
        for batch in batches:
            for start in range(0, batch.num_rows, 250):
                pause.wait(seconds)
                yield batch.slice(start, 250)

    return run


def test_rows_go_to_the_node_of_their_task_and_are_read_from_all(
    spark: SparkSession, cluster: StandaloneCluster
) -> None:
    save(spark.range(0, 4000, 1, 8), "plain")
    assert everywhere(cluster, "plain") == list(range(4000))
    assert all(numbers(host, "plain") for host in cluster.hosts)
    frame = spark.read.format("quiver").option("topic", "plain").load()
    assert sorted(row.id for row in frame.collect()) == list(range(4000))


def test_a_range_of_another_host_comes_through_its_node(spark: SparkSession, cluster: StandaloneCluster) -> None:
    with connect(cluster.hosts[0].run_dir) as client:
        for first in range(0, 1000, 100):
            client.push(pa.record_batch({"id": pa.array(range(first, first + 100), pa.int64())}), topic="remote")
    frame = spark.read.format("quiver").options(topic="remote", minPartitions="4", includeMetadata="true").load()
    # Tasks run on both hosts, so about half of the ranges are read by the one that does not hold them.
    assert sorted(row.id for row in frame.collect()) == list(range(1000))
    assert {row[0] for row in frame.select("_quiver_node").distinct().collect()} == {"node-0"}


def test_read_local_runs_tasks_where_bundles_are(spark: SparkSession, cluster: StandaloneCluster) -> None:
    save(spark.range(0, 4000, 1, 8), "local")
    frame = qs.read_local(spark, "local", minPartitions="4", includeMetadata="true")

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            here = os.path.basename(os.path.dirname(os.environ["QUIVER_RUN_DIR"]))
            same = [node == here for node in batch.column("_quiver_node").to_pylist()]
            yield pa.record_batch({"hits": [sum(same)], "rows": [len(same)]})

    found = frame.mapInArrow(where, "hits long, rows long").agg({"hits": "sum", "rows": "sum"}).collect()[0]
    assert found["sum(rows)"] == 4000
    assert found["sum(hits)"] == 4000


class Disturbed:
    """A write in a thread, and something that happens to it once bundles are staged."""

    def __init__(self, cluster: StandaloneCluster, frame: DataFrame, topic: str, **options: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._error: BaseException | None = None

        def run() -> None:
            try:
                qs.use(frame.sparkSession)
                save(frame, topic, bundleBytes="1KiB", **options)
            except BaseException as error:  # noqa: BLE001 - raised by `finish`
                self._error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def when_staged(self, host: ClusterNode, action: Callable[[], None]) -> None:
        wait_until(lambda: staged(host, self._topic) > 0 or not self._thread.is_alive(), "a stage")
        action()

    def finish(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_an_executor_that_is_killed_costs_and_doubles_nothing(spark: SparkSession, cluster: StandaloneCluster) -> None:
    frame = spark.range(0, 4000, 1, 4).mapInArrow(slowly(0.1), "id long")
    write = Disturbed(cluster, frame, "executor", stageTtl="60s")
    write.when_staged(cluster.hosts[0], lambda: kill(cluster.hosts[0].executor_pids()))
    write.finish()
    assert everywhere(cluster, "executor") == list(range(4000))
    wait_until(lambda: not any(staged(host, "executor") for host in cluster.hosts), "the end of lost stages", 240)


def test_a_python_worker_that_is_killed(spark: SparkSession, cluster: StandaloneCluster) -> None:
    frame = spark.range(0, 4000, 1, 4).mapInArrow(slowly(0.1), "id long")
    write = Disturbed(cluster, frame, "python")
    write.when_staged(cluster.hosts[1], lambda: kill(cluster.hosts[1].python_worker_pids()))
    write.finish()
    assert everywhere(cluster, "python") == list(range(4000))


def test_a_quiver_worker_that_is_killed(spark: SparkSession, cluster: StandaloneCluster) -> None:
    frame = spark.range(0, 4000, 1, 4).mapInArrow(slowly(0.1), "id long")
    write = Disturbed(cluster, frame, "quiver")
    write.when_staged(cluster.hosts[0], lambda: kill([cluster.hosts[0].quiver_worker_pid()]))
    write.finish()
    assert everywhere(cluster, "quiver") == list(range(4000))


def test_a_slow_host_is_overtaken(spark: SparkSession, cluster: StandaloneCluster) -> None:
    slow = str(cluster.hosts[1].run_dir)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import threading

        for batch in batches:
            for start in range(0, batch.num_rows, 100):
                threading.Event().wait(2.0 if os.environ["QUIVER_RUN_DIR"] == slow else 0.0)
                yield batch.slice(start, 100)

    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
    }
    # Read by the scheduler when the context starts: another session of the same cluster.
    spark.stop()
    session = cluster.session(**{key.replace(".", "__"): value for key, value in settings.items()})
    save(session.range(0, 4000, 1, 4).mapInArrow(run, "id long"), "speculation", bundleBytes="1KiB")
    assert everywhere(cluster, "speculation") == list(range(4000))


ROUNDS = int(os.environ.get("QUIVER_TEST_ROUNDS", "6"))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_rounds_of_kills(cluster: StandaloneCluster, seed: int) -> None:
    """Executor, Python worker, quiver worker or Flight server, at a moment that the seed chooses."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession() or cluster.session()
    chance = random.Random(seed)
    host = chance.choice(cluster.hosts)
    before = everywhere(cluster, "rounds")
    actions: dict[str, Callable[[], None]] = {
        "executor": lambda: kill(host.executor_pids()),
        "python": lambda: kill(host.python_worker_pids()),
        "quiver": lambda: kill([host.quiver_worker_pid()]),
        "serve": lambda: restart_serve(host),
    }
    action = chance.choice(sorted(actions))
    frame = spark.range(seed * 10000, seed * 10000 + 3000, 1, 4).mapInArrow(slowly(0.05), "id long")
    write = Disturbed(cluster, frame, "rounds")
    threading.Event().wait(chance.random() * 3)
    actions[action]()
    write.finish()
    expected = sorted([*before, *range(seed * 10000, seed * 10000 + 3000)])
    assert everywhere(cluster, "rounds") == expected, f"{action} on {host.name}"


def restart_serve(host: ClusterNode) -> None:
    assert host.serve is not None
    host.serve.kill()
    host.serve.wait()
    host.start_serve()


def test_a_stream_through_both_nodes(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Topic to topic: read from both nodes, stored once on the nodes of the tasks, with a replayed micro-batch."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession() or cluster.session()
    save(spark.range(0, 3000, 1, 6), "stream", bundleBytes="1KiB")

    def run() -> None:
        source = spark.readStream.format("quiver").options(topic="stream", startingOffsets="earliest")
        stream = source.option("maxRowsPerTrigger", "1000").schema("id LONG").load()
        writer = stream.writeStream.format("quiver").option("topic", "copied")
        query = writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
        assert query.awaitTermination(240)

    run()
    assert everywhere(cluster, "copied") == list(range(3000))
    last = max((tmp_path / "ck" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    save(spark.range(3000, 4000, 1, 2), "stream", bundleBytes="1KiB")
    run()
    assert everywhere(cluster, "copied") == list(range(4000))
