"""Reads of bundles that are not sealed, as Spark's planner and tasks ask for them: what is planned on an open segment stays.

No session is needed for that; `test_spark_live` has one.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from quiver_actors.cli.main import main
from quiver_actors.errors import ChecksumMismatch, DataLost
from quiver_actors.flight.contract import AskSchemas, Look
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote import RemoteNode
from quiver_actors.flight.server import NodeServer
from quiver_actors.spark.connection import forget_client
from quiver_actors.spark.options import READ, READ_STREAM, parse_options
from quiver_actors.spark.reader import TopicReader, everything, stored_schema
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL, stream_reader
from tests.integration.spark_node import MicroBatch, Node, wait_until
from tests.integration.test_spark_ranges import as_text, rows

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("n", LongType())])
needs_limits = pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="needs Spark 4.2")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(
        "[segment]\nmax_open_duration = '1h'\nmax_unsynced_duration = '1h'\n[topics.lazy]\ndurability = 'segment_only'\n"
    )
    try:
        yield node
    finally:
        node.remove()


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "").replace("_", "-")[-60:]
    with node.client() as client:
        client.create_topic(name)
    return name


def push(node: Node, topic: str, *numbers: int) -> None:
    """A bundle a number, all on one worker."""
    with node.client() as client:
        bundles = [pa.record_batch({"n": pa.array([n], pa.int64())}) for n in numbers]
        client.push_many(bundles, topic=topic, key="one worker")


def sealed_count(node: Node, topic: str) -> int:
    with node.client() as client:
        return sum(len(infos) for infos in client.segments(topic).values())


def flush(node: Node, topic: str) -> None:
    with node.client() as client:
        client.flush(topic)


def options_of(node: Node, topic: str, **options: str) -> dict[str, str]:
    return {"topic": topic, "runDir": str(node.run_dir), **options}


def read(node: Node, topic: str, **options: str) -> list[int]:
    reader = TopicReader(parse_options(options_of(node, topic, **options), READ), SCHEMA)
    return rows(reader, reader.partitions())


class Query:
    """A streaming query as its driver runs it, micro-batch for micro-batch; nothing is committed unless a test does."""

    def __init__(self, node: Node, topic: str, **options: str) -> None:
        given = options_of(node, topic, **{"startingOffsets": "earliest", "subscriber": "query", **options})
        self.reader: Any = stream_reader(parse_options(given, READ_STREAM), SCHEMA)
        self.at = self.reader.initialOffset()

    def latest(self) -> dict[str, Any]:
        reader = self.reader
        found: dict[str, Any] = (
            reader.latestOffset(self.at, reader.getDefaultReadLimit())
            if HAS_ADMISSION_CONTROL
            else reader.latestOffset()
        )
        return found

    def plan(self) -> MicroBatch:
        start, self.at = self.at, self.latest()
        return MicroBatch(self.reader, self.at, self.reader.partitions(start, self.at))

    def next(self) -> list[int]:
        planned = self.plan()
        return rows(self.reader, planned.partitions)


def test_a_batch_read_sees_what_is_not_sealed_and_seals_nothing(node: Node, topic: str) -> None:
    push(node, topic, 0, 1)
    flush(node, topic)
    push(node, topic, 2, 3)
    assert read(node, topic) == [0, 1, 2, 3]
    assert read(node, topic, minPartitions="4") == [0, 1, 2, 3]
    assert sealed_count(node, topic) == 1


def test_a_batch_read_sees_what_was_acknowledged_before_its_sync(node: Node) -> None:
    """It seals then, as that cannot be read before; the first commit of a log is synced in any case."""
    push(node, "lazy", 0)
    push(node, "lazy", 1)
    assert read(node, "lazy") == [0, 1]
    assert sealed_count(node, "lazy") == 1


def test_every_push_is_a_micro_batch_and_a_seal_is_none(node: Node, topic: str) -> None:
    query = Query(node, topic)
    assert query.next() == []
    for n in range(3):
        push(node, topic, n)
        assert query.next() == [n]
        assert json.dumps(query.latest()) == json.dumps(query.at)
    assert sealed_count(node, topic) == 0
    flush(node, topic)
    assert json.dumps(query.latest()) == json.dumps(query.at)
    push(node, topic, 3)
    assert query.next() == [3]


@needs_limits
def test_limits_cut_open_segments(node: Node, topic: str) -> None:
    push(node, topic, *range(5))
    query = Query(node, topic, maxRowsPerTrigger="2")
    assert [query.next(), query.next()] == [[0, 1], [2, 3]]
    push(node, topic, 5)
    assert [query.next(), query.next()] == [[4, 5], []]
    flush(node, topic)
    assert json.dumps(query.latest()) == json.dumps(query.at)


@needs_limits
@pytest.mark.parametrize("is_sealed", [False, True])
def test_available_now_ends_where_an_open_segment_ended_when_it_began(node: Node, topic: str, is_sealed: bool) -> None:
    push(node, topic, 0, 1)
    query = Query(node, topic)
    query.reader.prepareForTriggerAvailableNow()
    push(node, topic, 2)
    if is_sealed:
        flush(node, topic)
    assert [query.next(), query.next()] == [[0, 1], []]


def compact(node: Node) -> None:
    node.stop()
    assert main(["compact", "--data-dir", str(node.directories.data)]) == 0
    node.start()


def kill(node: Node) -> None:
    node.kill()
    node.start()


AFTERWARDS: dict[str, list[Callable[[Node, str], None]]] = {
    "more": [lambda node, topic: push(node, topic, 100)],
    "sealed": [flush],
    "grown_and_sealed": [lambda node, topic: push(node, topic, 100), flush],
    "killed": [lambda node, _: kill(node)],
    "compacted": [flush, lambda node, _: compact(node)],
    "killed_and_compacted": [lambda node, _: kill(node), flush, lambda node, _: compact(node)],
}


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_what_was_planned_on_an_open_segment_reads_the_same_afterwards(node: Node, topic: str, afterwards: str) -> None:
    """The tasks of that plan read it, and a driver that is started again plans the micro-batch from its offsets."""
    push(node, topic, *range(40))
    query = Query(node, topic)
    query.next()
    push(node, topic, *range(40, 90))
    start = query.at
    planned = query.plan()
    batch = TopicReader(parse_options(options_of(node, topic), READ), SCHEMA)
    batch_partitions = batch.partitions()
    assert sealed_count(node, topic) == 0
    for happen in AFTERWARDS[afterwards]:
        happen(node, topic)
    assert rows(query.reader, planned.partitions) == list(range(40, 90))
    assert rows(batch, batch_partitions) == list(range(90))
    forget_client(str(node.run_dir))
    again = Query(node, topic)
    assert rows(again.reader, again.reader.partitions(start, planned.end)) == list(range(40, 90))
    again.at = planned.end
    assert again.next() == ([100] if "more" in afterwards or "grown" in afterwards else [])


def test_a_commit_on_an_open_segment_retires_nothing_before_its_seal(node: Node, topic: str) -> None:
    push(node, topic, 0, 1)
    query = Query(node, topic)
    assert query.next() == [0, 1]
    query.reader.commit(query.at)
    push(node, topic, 2)
    assert query.next() == [2]
    flush(node, topic)
    assert sealed_count(node, topic) == 1
    query.reader.commit(query.at)
    wait_until(lambda: not sealed_count(node, topic), "the end of the segment")


def test_columns_and_slots_of_open_segments(node: Node, topic: str) -> None:
    with node.client() as client:
        client.push({0: pa.record_batch({"n": [1]})}, topic=topic, key="one worker")
        client.push({0: pa.record_batch({"n": [2], "name": ["two"]})}, topic=topic, key="one worker")
        client.push({0: pa.record_batch({"n": [3]}), 4: pa.record_batch({"x": [0.5]})}, topic=topic, key="one worker")
    found = stored_schema(parse_options(options_of(node, topic, slots="0"), READ))
    assert found == StructType([StructField("n", LongType()), StructField("name", StringType())])
    assert read(node, topic, slots="0") == [1, 2, 3]
    reader = TopicReader(
        parse_options(options_of(node, topic, slots="4"), READ),
        stored_schema(parse_options(options_of(node, topic, slots="4"), READ)),
    )
    assert [batch.column("x").to_pylist() for each in reader.partitions() for batch in reader.read(each)] == [[0.5]]
    assert sealed_count(node, topic) == 0


def test_a_read_begins_with_a_bundle_in_the_middle_of_an_open_segment(node: Node, topic: str) -> None:
    times_ns = []
    for n in range(4):
        push(node, topic, n)
        with node.client() as client:
            (infos,) = (each.unsealed for each in client.readable(topic).values() if each.unsealed)
            times_ns.append(infos[-1].last_ingestion_ts_nanos)
    assert times_ns == sorted(times_ns)
    for n in range(4):
        assert read(node, topic, startingTimestamp=as_text(times_ns[n])) == list(range(n, 4))
        assert Query(node, topic, subscriber=f"from-{n}", startingOffsets="earliest").next() == list(range(4))
    behind = Query(node, topic, subscriber="behind", startingOffsets="latest")
    assert behind.next() == []
    push(node, topic, 4)
    assert behind.next() == [4]


def test_more_bundles_than_the_places_of_one_answer(node: Node, topic: str) -> None:
    push(node, topic, *range(9000))
    assert read(node, topic, minPartitions="1") == list(range(9000))
    assert Query(node, topic).next() == list(range(9000))
    assert sealed_count(node, topic) == 0


def damage_open_log(node: Node, topic: str, number: int) -> None:
    """Flip a byte of the one row of a bundle, in the log under the running node."""
    wanted = (0x5EED0000 + number).to_bytes(8, "little")
    for path in (node.directories.data / topic).glob("core_*/wal/*"):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            at = memory.find(wanted)
            if at >= 0:
                memory[at] ^= 1
                return
    raise AssertionError("the bundle is in no log")


@needs_limits
def test_a_damaged_bundle_of_an_open_segment_ends_the_query_or_is_passed_over(node: Node, topic: str) -> None:
    numbers = [0x5EED0000 + n for n in range(5)]
    push(node, topic, *numbers)
    strict, lossy = Query(node, topic), Query(node, topic, subscriber="lossy", failOnDataLoss="false")
    assert strict.next() == numbers
    strict.at = strict.reader.initialOffset()
    damage_open_log(node, topic, 3)
    with pytest.raises(ChecksumMismatch):
        strict.next()
    with pytest.raises(ChecksumMismatch):
        read(node, topic)
    rest = [n for n in numbers if n != 0x5EED0003]

    def is_told() -> bool:
        strict.at = strict.reader.initialOffset()
        try:
            strict.plan()
        except DataLost as error:
            return "damaged" in str(error)
        return False

    wait_until(is_told, "the notice")
    assert lossy.next() == rest
    assert read(node, topic, failOnDataLoss="false") == rest


def test_a_node_answers_others_about_its_open_segments(node: Node, topic: str) -> None:
    """Through Flight as on its own host; who does not know of unsealed segments gets sealed ones, as ever."""
    push(node, topic, 0, 1, 2)
    with node.client() as client, NodeServer(LocalNode(client.node, lambda: client), "grpc://127.0.0.1:0") as server:
        local, location = LocalNode(client.node, lambda: client), f"grpc://127.0.0.1:{server.port}"
        remote = RemoteNode(client.node, location)
        contents = remote.look(everything(topic))
        assert contents == local.look(everything(topic))
        assert [info.bundle_count for core in contents.cores for info in core.unsealed] == [3]
        assert remote.schemas(AskSchemas(topic).topic) == local.schemas(topic)
        elsewhere = {"runDir": str(node.run_dir / "no-node-here"), "nodes": f"{client.node}={location}"}
        assert read(node, topic, **elsewhere) == [0, 1, 2]
        query = Query(node, topic, **elsewhere)
        assert query.next() == [0, 1, 2]
        push(node, topic, 3)
        assert query.next() == [3]
        assert sealed_count(node, topic) == 0
        assert all(not core.unsealed and not core.segments for core in remote.look(Look(topic)).cores)
        former = remote.look(Look(topic, flush=True))
        assert [info.bundle_count for core in former.cores for info in core.segments] == [4]
        remote.close()
