"""A real standalone cluster of two hosts, a node on each: exactly once across nodes, remote reads, placement.

Heavy (a master, two workers, two executors): run by `make test-cluster`, not by `make test`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from quiver_actors import spark as qs
from quiver_actors.archive.node_state import NodeState
from quiver_actors.client import Client, connect
from quiver_actors.spark.testing import ClusterNode, StandaloneCluster
from quiver_actors.transactions import Decisions
from tests.cluster.driver import slowly
from tests.cluster.looking import everywhere, memory_bytes, numbers, staged
from tests.cluster.moving import MovingNode
from tests.integration.spark_node import ResumedQuery, wait_until
from tests.integration.test_restore import take_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def spark(cluster: StandaloneCluster) -> Iterator[SparkSession]:
    # However slow the machine is, a preferred host is waited for.
    session = cluster.session(spark__task__maxFailures="8", spark__locality__wait="60s")
    yield session
    session.stop()


def save(frame: DataFrame, topic: str, **options: str) -> None:
    frame.write.format("quiver").options(topic=topic, **options).mode("append").save()


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
    frame = spark.range(0, 4000, 1, 4).mapInArrow(slowly(0.1, rows=250), "id long")
    write = Disturbed(cluster, frame, "executor", stageTtl="60s")
    write.when_staged(cluster.hosts[0], lambda: kill(cluster.hosts[0].executor_pids()))
    write.finish()
    assert everywhere(cluster, "executor") == list(range(4000))
    wait_until(lambda: not any(staged(host, "executor") for host in cluster.hosts), "the end of lost stages", 240)


def test_a_python_worker_that_is_killed(spark: SparkSession, cluster: StandaloneCluster) -> None:
    frame = spark.range(0, 4000, 1, 4).mapInArrow(slowly(0.1, rows=250), "id long")
    write = Disturbed(cluster, frame, "python")
    write.when_staged(cluster.hosts[1], lambda: kill(cluster.hosts[1].python_worker_pids()))
    write.finish()
    assert everywhere(cluster, "python") == list(range(4000))


def test_a_quiver_worker_that_is_killed(spark: SparkSession, cluster: StandaloneCluster) -> None:
    frame = spark.range(0, 4000, 1, 4).mapInArrow(slowly(0.1, rows=250), "id long")
    write = Disturbed(cluster, frame, "quiver")
    write.when_staged(cluster.hosts[0], lambda: kill(cluster.hosts[0].quiver_worker_pids()))
    write.finish()
    assert everywhere(cluster, "quiver") == list(range(4000))


def test_a_stream_through_both_nodes(spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path) -> None:
    """Topic to topic: read from both nodes, stored once on the nodes of the tasks, with a replayed micro-batch."""
    save(spark.range(0, 3000, 1, 6), "stream", bundleBytes="1KiB")

    def run() -> None:
        source = spark.readStream.format("quiver").options(topic="stream", startingOffsets="earliest")
        stream = source.option("maxRowsPerTrigger", "1000").schema("id LONG").load()
        writer = stream.writeStream.format("quiver").option("topic", "copied")
        ResumedQuery(
            writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start
        ).finish()

    run()
    assert everywhere(cluster, "copied") == list(range(3000))
    last = max((tmp_path / "ck" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    save(spark.range(3000, 4000, 1, 2), "stream", bundleBytes="1KiB")
    run()
    assert everywhere(cluster, "copied") == list(range(4000))


def test_a_node_that_is_lost_goes_on_at_another_host(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """What was archived is read without the node. After the restore the subscriber and the query go on where they were, each is told of the
    five bundles that died with the disk, and a prepared stage is published once."""
    log = Decisions(str(tmp_path / "decisions"))

    def copy_on(**options: str) -> None:
        source = spark.readStream.format("quiver").options(topic="moved", startingOffsets="earliest", **options)
        writer = source.schema("id LONG").load().writeStream.format("parquet").option("path", str(tmp_path / "copied"))
        writer = writer.option("checkpointLocation", str(tmp_path / "ck"))
        ResumedQuery(writer.trigger(availableNow=True).start).finish()

    def push(client: Client, *values: int) -> None:
        client.push_many([pa.record_batch({"id": [value]}) for value in values], topic="moved")

    with MovingNode(cluster, "127.0.0.4") as moving:
        moving.start()
        with connect(moving.node.run_dir) as client:
            with client.subscribe("reader", topic="moved", start="earliest") as deliveries:
                push(client, *range(60))
                for _ in range(20):
                    delivery = deliveries.get(timeout=30)
                    assert delivery is not None
                    delivery.ack()
            copy_on()
            push(client, *range(60, 80))
            client.flush("moved", until="archived", timeout=60)
            with client.stage("txn", topic="moved", decisions=log.location) as stage:
                stage.push(pa.record_batch({"id": [100]}))
                token = stage.prepare()
            push(client, *[-1] * 5)
        moving.wait_for_state(lambda state: is_waited_for(state, unsealed=5))
        moving.lose()
        frame = spark.read.format("quiver").options(topic="moved", archive=moving.url).load()
        assert sorted(row.id for row in frame.collect()) == list(range(80))

        said = moving.restore(cluster.hosts[1].address)
        assert [each["txn_id"] for each in said["carried_stages"]] == ["txn"]
        with connect(moving.node.run_dir) as client:
            ids, gaps = take_all(client, "reader", "moved")
            assert ids == list(range(20, 80))
            assert [gap.bundle_count for gap in gaps] == [5, None]
            push(client, *range(80, 100))
            assert token is not None
            for _ in range(2):
                client.publish(log.commit("txn", 0, [token]).tokens, drop_others=True)
        with pytest.raises(StreamingQueryException, match="lost"):
            copy_on()
        copy_on(failOnDataLoss="false")
        assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "copied")).collect()) == list(range(101))


def is_waited_for(state: NodeState, unsealed: int) -> bool:
    """Whether a state knows so many bundles that are not sealed, and has the bundles of a prepared stage."""
    count = sum(each.bundle_count for engine in state.engines for each in engine.unarchived if not each.is_sealed)
    return count == unsealed and any(stage.is_archived for engine in state.engines for stage in engine.prepared)


MANY = int(os.environ.get("QUIVER_TEST_MICRO_BATCHES", "1000"))
MEMORY_GROWTH_MAX = 24 << 20


@pytest.mark.timeout(3600)
def test_a_thousand_micro_batches_in_flat_memory(
    spark: SparkSession, cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """Topic to topic, a bundle each. Looked at: workers and Flight servers of both nodes, the tasks' Pythons, and the driver's."""
    for number, host in enumerate(cluster.hosts):
        with connect(host.run_dir) as client:
            client.push_many((pa.record_batch({"id": [n]}) for n in range(number, MANY, 2)), topic="many")
    source = spark.readStream.format("quiver").options(topic="many", startingOffsets="earliest", maxRowsPerTrigger="1")
    writer = source.schema("id LONG").load().coalesce(1).writeStream.format("quiver").option("topic", "many_copied")
    query = ResumedQuery(writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start)

    def batches() -> int:
        # The newest number: Spark deletes old ones.
        return max((int(path.name) + 1 for path in (tmp_path / "ck" / "commits").glob("[0-9]*")), default=0)

    def has_reached(count: int) -> bool:
        return batches() >= count or query.is_over()

    found = []
    for count in (MANY // 4, MANY - 10):
        wait_until(partial(has_reached, count), f"micro-batch {count}", 1500)
        found.append(memory_bytes(cluster))
    query.finish()
    assert batches() >= MANY
    assert everywhere(cluster, "many_copied") == list(range(MANY))
    early, late = found
    growth = {name: (late[name] - early[name]) >> 20 for name in early.keys() & late.keys()}
    print(f"memory growth in MiB: {growth}")
    assert all(late[name] - early[name] < MEMORY_GROWTH_MAX for name in growth), growth
    assert {name.split()[0] for name in growth} >= {"quiver", "serve", "task", "driver"}
