"""`format("quiver")` against a real node and a real local Spark session."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from quiver_actors.client import Client, connect
from quiver_actors.errors import UsageError
from quiver_actors.spark import read_local, use
from quiver_actors.spark.options import READ, parse_options
from quiver_actors.spark.reader import TopicPartition, TopicReader, stored_schema
from quiver_actors.store.status.status_view import take_status
from tests.integration.spark_node import Node, micro_batch, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# PySpark leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def with_statistics(node: Node) -> None:
    """Two topics of three segments each. They are sealed before all tests of this file: statistics are made ten seconds after that."""
    with connect(node.run_dir) as client:
        client.create_topic("counted")
        for topic in ("bounds", "counted"):
            for first in (0, 100, 200):
                client.push(pa.record_batch({"n": range(first, first + 10)}), topic=topic, key="one worker")
                client.flush(topic)
        client.push(pa.record_batch({"n": [250]}), topic="bounds", key="one worker")  # not sealed: always planned


def save(frame: DataFrame, topic: str, **options: str) -> None:
    frame.write.format("quiver").options(topic=topic, **options).mode("append").save()


def load(spark: SparkSession, topic: str, **options: str) -> DataFrame:
    return spark.read.format("quiver").options(topic=topic, **options).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows in an order that does not depend on partitions."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=repr)


def test_every_type_of_spark_comes_back_as_it_was_written(spark: SparkSession) -> None:
    frame = spark.sql(
        """
        SELECT CAST(id % 100 AS TINYINT) b, CAST(id AS SMALLINT) s, CAST(id AS INT) i, id l, CAST(id AS FLOAT) f, id / 3 d,
            CAST(id AS DECIMAL(20, 3)) dec, IF(id % 7 = 0, NULL, CAST(id AS STRING)) str, CAST(CAST(id AS STRING) AS BINARY) bin,
            id % 2 = 0 flag, DATE_ADD(DATE'2013-01-01', CAST(id AS INT)) day, TIMESTAMP_SECONDS(id * 3600) ts,
            CAST(TIMESTAMP_SECONDS(id) AS TIMESTAMP_NTZ) ntz, MAKE_DT_INTERVAL(0, 0, 0, id) dt,
            IF(id % 5 = 0, NULL, ARRAY(id, NULL, id + 1)) arr, MAP(CAST(id AS STRING), id) m,
            IF(id % 3 = 0, NULL, NAMED_STRUCT('x', NULLIF(id, 1), 'y', NULLIF(ARRAY(CAST(id AS STRING), NULL), NULL))) st, NULL AS nothing
        FROM RANGE(25000)
        """
    )
    save(frame, "types")
    stored = load(spark, "types")
    assert stored.schema.simpleString() == frame.schema.simpleString()
    assert all(field.nullable for field in stored.schema)
    assert stored.toArrow().sort_by("l").equals(frame.toArrow().cast(stored.toArrow().schema).sort_by("l"))


def test_struct_columns_travel_as_slots(spark: SparkSession, node: Node) -> None:
    frame = spark.sql(
        """
        SELECT IF(id % 3 = 0, NULL, NAMED_STRUCT('x', NULLIF(id, 2))) a,
            IF(id % 3 = 1, NULL, NAMED_STRUCT('y', NULLIF(CAST(id AS STRING), '3'), 'z', NULLIF(id % 2, 0))) b
        FROM RANGE(1000)
        """
    )
    save(frame, "slots", slots="a,b")
    assert rows(load(spark, "slots", slots="a,b")) == rows(frame)
    b = [row["b"] for row in rows(frame) if row["b"] is not None]
    assert rows(load(spark, "slots", slots="5")) == sorted(b, key=repr)


def test_one_slot_of_bundles_with_slots_of_different_length(spark: SparkSession, node: Node) -> None:
    flights, weather = pa.table({"flight": [1, 2, 3]}), pa.table({"temp": [39.0]})
    with connect(node.run_dir) as client:
        client.push({"flights": flights, "weather": weather}, topic="travel")
        client.push({"flights": flights}, topic="travel")
    assert rows(load(spark, "travel", slots="flights")) == sorted(flights.to_pylist() * 2, key=repr)
    assert rows(load(spark, "travel", slots="1")) == weather.to_pylist()
    with pytest.raises(Exception, match="flights, weather: choose with option 'slots'"):
        load(spark, "travel")
    with pytest.raises(Exception, match="flights 3, weather 1"):
        load(spark, "travel", slots="flights,weather").collect()


def test_segments_without_a_wanted_slot_are_not_even_planned(spark: SparkSession, node: Node) -> None:
    a, b = pa.table({"x": [1, 2]}), pa.table({"y": ["p", "q"]})
    with connect(node.run_dir) as client:
        for bundle in ({"a": a}, {"a": a, "b": b}, {"b": b}):
            client.push(bundle, topic="statistics", key="one worker")
            client.flush("statistics")

    def planned(**options: str) -> int:
        checked = parse_options({"topic": "statistics", "runDir": str(node.run_dir), **options}, READ)
        partitions = TopicReader(checked, stored_schema(checked)).partitions()
        return sum(len(each.ticket.ranges) for each in partitions if isinstance(each, TopicPartition))

    assert (planned(slots="a"), planned(slots="b"), planned(slots="a,b")) == (2, 2, 3)
    assert planned(slots="a,b", where="b IS NOT NULL AND a IS NOT NULL") == 1
    whole = load(spark, "statistics", slots="a,b")
    for where in ("b IS NOT NULL", "b IS NULL", "a IS NOT NULL AND b IS NOT NULL"):
        assert rows(load(spark, "statistics", slots="a,b", where=where)) == rows(whole.where(where)), where


def test_segments_whose_values_do_not_match_are_not_even_planned(
    spark: SparkSession, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    where = "n >= 105 AND n < 200"
    checked = parse_options({"topic": "bounds", "runDir": str(node.run_dir), "where": where}, READ)

    def planned() -> int:
        partitions = TopicReader(checked, stored_schema(checked)).partitions()
        return sum(len(each.ticket.ranges) for each in partitions if isinstance(each, TopicPartition))

    wait_until(lambda: planned() <= 2, "statistics", 60)
    with caplog.at_level("INFO", "quiver.spark"):
        assert planned() <= 2
    assert "quiver.spark.pruned topic=bounds segments=2 of=4" in caplog.text
    assert rows(load(spark, "bounds", where=where)) == rows(load(spark, "bounds").where(where))
    streamed = micro_batch(
        {"topic": "bounds", "runDir": str(node.run_dir), "startingOffsets": "earliest", "where": where},
        stored_schema(checked),
    )
    tickets = [each.ticket for each in streamed.partitions if isinstance(each, TopicPartition)]
    assert sum(len(ticket.ranges) for ticket in tickets) == 2
    found = [row for each in streamed.partitions for batch in streamed.reader.read(each) for row in batch.to_pylist()]
    assert sorted(row["n"] for row in found) == list(range(105, 110))


def test_a_nodes_metrics_count_segments_that_were_left_out(node: Node) -> None:
    def counted() -> int:
        return sum(worker.segments_pruned for worker in take_status(str(node.run_dir)).workers)

    def known(client: Client) -> list[object]:
        segments = [each for of_core in client.statistics("counted").values() for each in of_core.values()]
        return [stream.columns for segment in segments for stream in segment.streams]

    with connect(node.run_dir) as client:
        wait_until(lambda: len(known(client)) == 3 and None not in known(client), "statistics", 60)
        seen = counted()
        client.tell_pruned("counted", dict.fromkeys(client.statistics("counted"), 1 << 62))
        # What other tests had the node count before is published by then, too.
        wait_until(lambda: counted() >= seen + 3, "more segments than there are")
        before = counted()
        assert client.dataset("counted", where="n >= 105 AND n < 200").count_rows() == 5
        wait_until(lambda: counted() == before + 2, "the count of a dataset")
        assert client.sql("SELECT count(*) AS n FROM counted WHERE n < 5").read_all().to_pydict() == {"n": [5]}
        wait_until(lambda: counted() == before + 4, "the count of a statement")


def test_what_others_push_is_read_in_sparks_types(spark: SparkSession, node: Node) -> None:
    batch = pa.record_batch(
        {
            "u64": pa.array([2**64 - 1, None], pa.uint64()),
            "word": pa.array(["x", None]).dictionary_encode(),
            "run": pc.run_end_encode(pa.array(["r", "r"])),
            "view": pa.array([["v"], None], pa.list_view(pa.string_view())),
            "fixed": pa.array([[1, 2], None], pa.list_(pa.uint16(), 2)),
            "when": pa.array([1_999, None], pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    with connect(node.run_dir) as client:
        client.push(batch, topic="arrow")
        client.push(batch.slice(0, 1), topic="arrow")
    first = {
        "u64": decimal.Decimal(2**64 - 1),
        "word": "x",
        "run": "r",
        "view": ["v"],
        "fixed": [1, 2],
        "when": datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC),
    }
    second = dict.fromkeys(first) | {"run": "r"}
    assert rows(load(spark, "arrow")) == sorted([first, first, second], key=repr)


def test_columns_that_come_and_go_make_one_schema(spark: SparkSession) -> None:
    save(spark.sql("SELECT 1 AS a, 'x' AS b"), "drift")
    save(spark.sql("SELECT CAST(2 AS BIGINT) AS a, 2.5D AS c"), "drift")
    stored = load(spark, "drift")
    assert stored.schema.simpleString() in {"struct<a:bigint,b:string,c:double>", "struct<a:bigint,c:double,b:string>"}
    assert rows(stored.select("a", "b", "c")) == [{"a": 1, "b": "x", "c": None}, {"a": 2, "b": None, "c": 2.5}]


def test_a_schema_of_the_users_projects_and_widens(spark: SparkSession) -> None:
    save(spark.sql("SELECT CAST(id AS INT) a, id * 1000000000000 b FROM RANGE(3)"), "projection")
    reader = spark.read.format("quiver").option("topic", "projection")
    assert rows(reader.schema("a BIGINT, other STRING").load()) == [{"a": n, "other": None} for n in range(3)]
    with pytest.raises(Exception, match=r"'b'.*cannot be read"):
        reader.schema("b INT").load().collect()


def test_the_same_table_is_stored_under_one_schema(spark: SparkSession, node: Node) -> None:
    query = "SELECT id, TIMESTAMP_SECONDS(id) ts{} FROM RANGE(10)"
    save(spark.sql(query.format("")), "zones")
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    save(other.sql("SELECT IF(id < 100, id, NULL) id, TIMESTAMP_SECONDS(id) ts FROM RANGE(10)"), "zones")
    with connect(node.run_dir) as client:
        client.flush("zones")
        segments = [
            client.read_segment(core, "zones", info.segment_seq)
            for core, infos in client.segments("zones").items()
            for info in infos
        ]
    fingerprints = {stream.schema_fingerprint for segment in segments for stream in segment.streams}
    assert len(fingerprints) == 1


def test_a_read_is_cut_into_partitions_by_bytes(spark: SparkSession) -> None:
    frame = spark.sql("SELECT id, CAST(id AS STRING) s FROM RANGE(100000)")
    save(frame, "partitions", bundleBytes="64KiB")
    whole, cut = load(spark, "partitions"), load(spark, "partitions", maxPartitionBytes="256KiB")
    assert whole.rdd.getNumPartitions() < cut.rdd.getNumPartitions()
    assert cut.toArrow().sort_by("id").equals(frame.toArrow().cast(cut.toArrow().schema).sort_by("id"))


def test_a_located_read_has_the_same_rows(spark: SparkSession) -> None:
    save(spark.range(0, 300, 1, 3), "located", bundleBytes="1KiB")
    found = read_local(spark, "located", minPartitions="3", where="id < 200")
    assert rows(found) == sorted(({"id": n} for n in range(200)), key=repr)
    with pytest.raises(UsageError, match="expected one of prefer, none"):
        read_local(spark, "located", locality="here")


def test_a_write_from_another_thread(spark: SparkSession) -> None:
    def write(number: int) -> None:
        use(spark)
        save(spark.range(number * 100, number * 100 + 100), "threads")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert rows(load(spark, "threads")) == sorted(({"id": n} for n in range(400)), key=repr)


def test_sql_and_a_new_session_know_the_format(spark: SparkSession) -> None:
    session = spark.newSession()
    session.sql("CREATE TEMPORARY VIEW readings (id BIGINT) USING quiver OPTIONS (topic 'sql')")
    session.sql("INSERT INTO readings VALUES (7), (8)")
    assert rows(session.sql("SELECT id FROM readings")) == [{"id": 7}, {"id": 8}]
    assert rows(load(spark, "sql")) == [{"id": 7}, {"id": 8}]


def test_a_table_of_sql_names_its_topic_each_time(spark: SparkSession) -> None:
    """Spark does not hand a table's OPTIONS to Python sources: nothing may go to another topic because of that."""
    spark.sql("CREATE TABLE stored (id BIGINT) USING quiver OPTIONS (topic 'tables')")
    for statement in ("INSERT INTO stored VALUES (1)", "SELECT * FROM stored"):
        with pytest.raises(Exception, match="option 'topic' is missing"):
            spark.sql(statement).collect()
    spark.sql("INSERT INTO stored WITH ('topic' = 'tables') VALUES (1)")
    assert rows(spark.sql("SELECT id FROM stored WITH ('topic' = 'tables')")) == [{"id": 1}]
    spark.sql("DROP TABLE stored")
    # Without columns Spark asks for them, with what it adds to a table.
    spark.sql("CREATE TABLE derived USING quiver OPTIONS (topic 'tables')")
    assert [field.name for field in spark.table("derived").schema] == ["id"]
    spark.sql("DROP TABLE derived")


def test_a_topic_without_bundles(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"holds no bundles yet.*\.schema"):
        load(spark, "empty")
    assert spark.read.format("quiver").option("topic", "empty").schema("a INT").load().collect() == []
    save(spark.range(0), "empty")
    assert spark.read.format("quiver").option("topic", "empty").schema("id BIGINT").load().collect() == []


def refused_writes(spark: SparkSession) -> dict[str, tuple[Callable[[], None], str]]:
    frame = spark.range(3)
    return {
        "unknown option": (lambda: save(frame, "types", topik="x"), "option 'topik' is unknown.*did you mean 'topic'"),
        "unknown topic": (lambda: save(frame, "nowhere"), "topic 'nowhere' does not exist"),
        "unknown slot": (lambda: save(frame, "travel", slots="trains"), "trains"),
        "no struct": (lambda: save(frame, "slots", slots="a,b"), "each a struct"),
        "overwrite": (
            lambda: frame.write.format("quiver").option("topic", "types").mode("overwrite").save(),
            "only be appended to",
        ),
        "no node": (lambda: save(frame, "types", runDir="/nowhere/at/all", pushTimeout="1s"), "/nowhere/at/all"),
    }


@pytest.mark.parametrize(
    "case", ["unknown option", "unknown topic", "unknown slot", "no struct", "overwrite", "no node"]
)
def test_a_write_that_cannot_work_says_why(spark: SparkSession, case: str) -> None:
    write, message = refused_writes(spark)[case]
    with pytest.raises(Exception, match=message):
        write()


def test_a_missing_topic_is_said_by_the_driver_before_anything_runs(spark: SparkSession) -> None:
    """A task found it out behind 20 frames of a traceback, when the query had computed its rows."""
    tasks_run = spark.sparkContext.accumulator(0)
    frame = spark.range(10).rdd.map(lambda row: (tasks_run.add(1), row[0])[1:]).toDF("id BIGINT")
    for attempt in (lambda: save(frame, "travle"), lambda: load(spark, "travle").count()):
        with pytest.raises(
            Exception, match="topic 'travle' does not exist on this node; did you mean 'travel'"
        ) as told:
            attempt()
        assert "Traceback" not in str(told.value)
        assert "did you mean 'travel'?" in str(told.value).splitlines()[0]
    assert tasks_run.value == 0


def test_a_session_outlives_a_restart_of_its_node_and_waits_for_it(spark: SparkSession, node: Node) -> None:
    def write() -> None:
        use(spark)
        save(spark.range(10, 20), "restart")

    save(spark.range(0, 10), "restart")
    node.stop()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(write)
        node.start()
        waiting.result(timeout=120)
    assert rows(load(spark, "restart")) == sorted(({"id": n} for n in range(20)), key=repr)
