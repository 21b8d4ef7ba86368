"""Exactly once on one node: what a write leaves visible when tasks fail, jobs fail, and writes are repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from quiver_actors import spark as qs
from quiver_actors.spark import commit
from quiver_actors.spark.writer import tokens_of
from quiver_actors.transactions.asking import OWN_LOG_NAME
from tests.integration.spark_node import Node, ResumedQuery, wait_until
from tests.support.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def save(frame: DataFrame, topic: str, **options: str) -> None:
    frame.write.format("quiver").options(topic=topic, **options).mode("append").save()


def numbers(node: Node, topic: str, column: str = "id") -> list[int]:
    """Return the visible numbers, by core and in the order of the node."""
    found: list[int] = []
    with node.client() as client:
        client.flush(topic)
        for core in client.segments(topic):
            found += [n for bundle in client.read(topic, core) for n in bundle.batch.column(column).to_pylist()]
    return found


def staged(node: Node, topic: str) -> int:
    with node.client() as client:
        return sum(map(len, client.staged(topic).values()))


def failing(first_attempts: int) -> Any:
    """A function for mapInArrow that passes everything on, then fails, in so many attempts of each task."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        if context is not None and context.attemptNumber() < first_attempts:
            raise RuntimeError("this attempt fails behind its last row")

    return run


def test_a_failed_attempt_leaves_nothing_and_every_row_is_there_once(spark: SparkSession, node: Node) -> None:
    frame = spark.range(0, 20000, 1, 4).mapInArrow(failing(1), "id long")
    save(frame, "commit", bundleBytes="8KiB")
    found = numbers(node, "commit")
    assert sorted(found) == list(range(20000))
    runs = [found[start : start + 5000] for start in range(0, 20000, 5000)]
    assert sorted(runs) == [list(range(start, start + 5000)) for start in range(0, 20000, 5000)]
    assert staged(node, "commit") == 0


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, node: Node) -> None:
    with pytest.raises(Exception, match="fails behind its last row"):
        save(spark.range(0, 8000, 1, 2).mapInArrow(failing(9), "id long"), "failing", bundleBytes="8KiB")
    assert numbers(node, "failing") == []
    wait_until(lambda: staged(node, "failing") == 0, "the end of what was staged")


def test_a_write_with_a_name_is_stored_once(spark: SparkSession, node: Node, bucket: ObjectStore) -> None:
    """Its decision is made in the node's own log, or in an object store."""
    frame = spark.range(1000)
    for _ in range(2):
        save(frame, "again", txnAppId="loader/7", txnVersion="1")
    assert sorted(numbers(node, "again")) == list(range(1000))
    for _ in range(2):
        save(frame, "again", txnAppId="loader-7", txnVersion="2", decisions=bucket.url("log"))
    assert sorted(numbers(node, "again")) == sorted([*range(1000)] * 2)
    assert bucket.names() == ["log/_log.json", "log/again.loader-7-2.0.json"]
    with pytest.raises(Exception, match="'txnAppId' and 'txnVersion'"):
        save(frame, "again", txnAppId="loader/7")


@pytest.fixture
def writer(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes writers as Spark's driver does, without Spark: so that a driver can end between any two steps."""
    from pyspark.sql.types import LongType, StructField, StructType

    from quiver_actors.spark.options import WRITE, parse_options
    from quiver_actors.spark.writer import TopicWriter

    monkeypatch.setenv("QUIVER_RUN_DIR", str(node.run_dir))
    schema = StructType([StructField("id", LongType())])
    return lambda **options: TopicWriter(parse_options(options, WRITE), schema)


def batches(*numbers: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"id": list(numbers)})])


def test_an_abort_after_the_commit_undoes_nothing(node: Node, writer: Callable[..., Any]) -> None:
    job = writer(topic="aborted", txnAppId="job", txnVersion="1")
    written = job.write(batches(1, 2, 3))
    assert (written.rows, numbers(node, "aborted")) == (3, [])
    job.commit([written, None])
    job.abort([written, None])
    job.commit([written, None])
    assert numbers(node, "aborted") == [1, 2, 3]


def test_a_driver_that_dies_between_decision_and_publish(node: Node, writer: Callable[..., Any]) -> None:
    name = {"topic": "decided", "txnAppId": "job", "txnVersion": "1"}
    dying = writer(**name)
    written = dying.write(batches(1, 2, 3))
    commit.decide(dying._attempt, tokens_of([written]))
    assert numbers(node, "decided") == []
    again = writer(**name)
    second = again.write(batches(1, 2, 3))
    assert (second.rows, second.is_done_before) == (0, True)
    again.commit([second])
    assert numbers(node, "decided") == [1, 2, 3]


def test_a_driver_that_dies_before_the_decision(node: Node, writer: Callable[..., Any]) -> None:
    name = {"topic": "undecided", "txnAppId": "job", "txnVersion": "1"}
    writer(**name).write(batches(1, 2, 3))
    assert staged(node, "undecided") == 1
    again = writer(**name)
    again.commit([again.write(batches(1, 2, 3))])
    assert numbers(node, "undecided") == [1, 2, 3]
    wait_until(lambda: staged(node, "undecided") == 0, "the end of the first run's stage")


def test_a_cancelled_job_leaves_nothing(spark: SparkSession, node: Node) -> None:
    """The sink's task sees a cancelled job as the end of its rows, and prepares them; the driver drops what it has not heard of."""

    def endless(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import threading

        for _ in given:
            while True:
                yield pa.record_batch({"id": list(range(1000))})
                threading.Event().wait(0.05)

    def write() -> None:
        qs.use(spark)
        spark.sparkContext.setJobGroup("cancelled", "", True)
        with pytest.raises(Exception, match="cancel"):
            save(spark.range(0, 2, 1, 2).mapInArrow(endless, "id long"), "cancelled", bundleBytes="1KiB")

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        wait_until(lambda: staged(node, "cancelled") > 0 or writing.done(), "a stage")
        spark.sparkContext.cancelJobGroup("cancelled")
        writing.result(timeout=120)
    wait_until(lambda: staged(node, "cancelled") == 0, "the end of the stages")
    assert numbers(node, "cancelled") == []


def test_a_task_publishes_its_own_rows(spark: SparkSession, node: Node) -> None:
    frame = spark.range(0, 4000, 1, 2).mapInArrow(failing(1), "id long")
    save(frame, "tasks", commitProtocol="task", bundleBytes="8KiB")
    assert sorted(numbers(node, "tasks")) == list(range(4000))


def test_rows_of_a_key_stay_in_order_on_one_worker(spark: SparkSession, node: Node) -> None:
    save(spark.range(0, 3000, 1, 1).selectExpr("id", "id % 7 AS k"), "keyed", key="k", bundleBytes="4KiB")
    with node.client() as client:
        client.flush("keyed")
        cores = {
            core: [n for bundle in client.read("keyed", core) for n in bundle.batch.column("id").to_pylist()]
            for core in client.segments("keyed")
        }
    assert sorted(n for found in cores.values() for n in found) == list(range(3000))
    for key in range(7):
        (found,) = [of for found in cores.values() if (of := [n for n in found if n % 7 == key])]
        assert found == sorted(found)


class Sink:
    """Files become micro-batches, micro-batches bundles."""

    def __init__(self, spark: SparkSession, directory: Path, topic: str) -> None:
        self._spark = spark
        self._topic = topic
        self.source = directory / "source"
        self.source.mkdir()
        self.checkpoint = directory / "checkpoint"

    def add(self, first: int, count: int) -> None:
        lines = "".join(json.dumps({"id": n}) + "\n" for n in range(first, first + count))
        (self.source / f"{first:06}.json").write_text(lines)

    def run(self, partitions: int, **options: str) -> None:
        stream = self._spark.readStream.schema("id LONG").option("maxFilesPerTrigger", "1").json(str(self.source))
        writer = stream.repartition(partitions).writeStream.format("quiver").options(topic=self._topic, **options)
        ResumedQuery(
            writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start
        ).finish()

    def forget_last_commit(self) -> None:
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_replayed_micro_batch_is_stored_once(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    sink = Sink(spark, tmp_path, "sink")
    sink.add(0, 300)
    sink.add(300, 200)
    sink.run(partitions=3)
    sink.forget_last_commit()
    sink.add(500, 100)
    # The replay cuts the same rows into other tasks.
    sink.run(partitions=5)
    assert sorted(numbers(node, "sink")) == list(range(600))
    assert len(list((sink.checkpoint / "_quiver_decisions").glob("*.json"))) == 3


def test_foreach_batch_stores_a_replayed_micro_batch_once(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    frame = spark.range(500)
    store = qs.foreach_batch("foreach", txnAppId="query-1")
    for batch_id in (0, 1, 1):
        store(frame, batch_id)
    assert len(numbers(node, "foreach")) == 1000


def test_two_frames_of_one_micro_batch_do_not_have_one_name(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    """The second one was taken for done, silently."""
    sink = Sink(spark, tmp_path, "halves")
    sink.add(0, 50)

    def run(*stores: Callable[[DataFrame, int], None]) -> None:
        def store_parts(frame: DataFrame, batch_id: int) -> None:
            for number, store in enumerate(stores):
                store(frame.where(f"id % 2 = {number}"), batch_id)

        stream = spark.readStream.schema("id LONG").json(str(sink.source))
        writer = stream.writeStream.foreachBatch(store_parts).option("checkpointLocation", str(sink.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination(180)

    with pytest.raises(Exception, match="txnAppId of its own"):
        run(qs.foreach_batch("halves"), qs.foreach_batch("halves"))
    run(qs.foreach_batch("halves"), qs.foreach_batch("halves", txnAppId="odd"))
    assert sorted(numbers(node, "halves")) == list(range(50))


def test_foreach_batch_of_a_query(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    sink = Sink(spark, tmp_path, "each")
    sink.add(0, 50)
    stream = spark.readStream.schema("id LONG").json(str(sink.source))
    store = qs.foreach_batch("each", txnAppId=str(sink.checkpoint))
    for _ in range(2):
        writer = stream.writeStream.foreachBatch(store).option("checkpointLocation", str(sink.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(180)
        sink.forget_last_commit()
    assert sorted(numbers(node, "each")) == list(range(50))


def test_transform_and_push_in_one(spark: SparkSession, node: Node) -> None:
    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        for batch in batches:
            yield pa.record_batch({"id": pc.multiply(batch.column("id"), 2)})

    def decisions() -> set[Path]:
        return set((node.directories.data / OWN_LOG_NAME).glob("*.json"))

    before = decisions()
    receipts = qs.push(spark.range(0, 2000, 1, 2), "pushed", transform=doubled)
    assert decisions() == before, "what nobody can ask for again is not kept"
    assert receipts.agg({"rows": "sum"}).collect()[0][0] == 2000
    assert sorted(numbers(node, "pushed")) == list(range(0, 4000, 2))
    again: dict[str, Any] = {"txnAppId": "push", "txnVersion": "1"}
    for expected in (10, 0):
        assert sum(row.rows for row in qs.push(spark.range(10), "pushed", **again).collect()) == expected
    assert len(numbers(node, "pushed")) == 2010


def test_a_write_belongs_to_the_trace_that_it_is_given(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    """Writes by the sink, by `push` and by a stream: the trace is with every bundle."""
    by_write, by_push, by_stream = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2, 3))
    save(spark.range(0, 20, 1, 2), "traced", traceparent=by_write)
    qs.push(spark.range(20, 40, 1, 2), "traced", traceparent=by_push)
    save(spark.range(40, 50, 1, 1), "traced")
    sink = Sink(spark, tmp_path, "traced")
    sink.add(50, 10)
    sink.run(partitions=1, traceparent=by_stream)
    found: dict[str, list[int]] = {}
    with node.client() as client, client.subscribe("tracer", topic="traced", start="earliest") as subscription:
        while sum(map(len, found.values())) < 60:
            delivery = subscription.get(60)
            assert delivery is not None, f"only these came: {found}"
            trace = delivery.trace_context.get("traceparent", "")
            found.setdefault(trace, []).extend(delivery.batch.column("id").to_pylist())
            delivery.ack()
    assert {trace: sorted(ids) for trace, ids in found.items()} == {
        by_write: list(range(20)),
        by_push: list(range(20, 40)),
        "": list(range(40, 50)),
        by_stream: list(range(50, 60)),
    }


def test_tee_stores_what_goes_on(spark: SparkSession, node: Node) -> None:
    frame = spark.range(0, 1000, 1, 2)
    assert frame.mapInArrow(qs.tee("teed"), frame.schema).count() == 1000
    assert sorted(numbers(node, "teed")) == list(range(1000))


def test_filters_of_the_option_and_of_queries_agree(spark: SparkSession, node: Node) -> None:
    save(spark.range(0, 2000, 1, 2).selectExpr("id", "CAST(id AS STRING) s"), "filters", bundleBytes="4KiB")
    reader = spark.read.format("quiver").options(topic="filters", includeMetadata="true")
    frame = reader.load()
    for where in (
        "id >= 100 AND id < 110 AND s != '105'",
        "s IN ('7', '8')",
        "_quiver_core = 99",
        "_quiver_core = 0 AND id < 1000",
        "_quiver_ingestion_time > '2020-01-01T00:00:00Z'",
        "_quiver_ingestion_time < '2020-01-01T00:00:00Z'",
    ):
        assert reader.option("where", where).load().count() == frame.where(where).count(), where
    with pytest.raises(Exception, match="'other' is not read"):
        reader.option("where", "other = 1").load().count()


def test_sparks_switch_for_filters_changes_no_result(spark: SparkSession, node: Node) -> None:
    """Filters are not taken: Spark keeps those of a frame's first query, and has one place for both sides of a union."""
    save(spark.range(0, 2000, 1, 2), "switched", bundleBytes="4KiB")
    frame = spark.read.format("quiver").option("topic", "switched").load()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert frame.where("id < 10").count() == 10
        assert frame.count() == 2000
        assert frame.where("id < 10").union(frame.where("id >= 1990")).count() == 20
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
