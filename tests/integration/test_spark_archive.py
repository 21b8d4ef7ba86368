"""Spark reads the archives of nodes: without a node, and through a node what has left its disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors.base.model import BundleId
from quiver_actors.errors import ConfigError, DataLost, UnknownTopic, UsageError
from quiver_actors.flight.archived_contents import ArchiveTerms
from quiver_actors.flight.contract import AskSlotRows, Look
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote import RemoteNode
from quiver_actors.flight.server import NodeServer
from quiver_actors.spark import offsets
from quiver_actors.spark.connection import forget_client
from quiver_actors.spark.options import READ, READ_STREAM, parse_options
from quiver_actors.spark.reader import TopicReader, stored_schema
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL
from tests.integration.spark_node import Node, micro_batch, wait_until
from tests.integration.test_spark_ranges import as_text
from tests.integration.test_spark_stream import Stream
from tests.support.archived import ArchiveWriter, hole, sealed_segments

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("n", LongType())])


def numbers(*bundles: int) -> list[pa.RecordBatch]:
    """A bundle of three rows for each number."""
    return [pa.record_batch({"n": pa.array(range(3 * number, 3 * number + 3), pa.int64())}) for number in bundles]


def archived(directory: Path, holes: bool = False) -> str:
    """The URL of an archive of two nodes: bundles 0 to 5 of one, 6 to 8 of the other; with holes the second segment is lost."""
    url = f"file://{directory}/archive"
    one, two = sealed_segments(directory / "a", [numbers(0, 1, 2), numbers(3, 4, 5)])
    if holes:
        ArchiveWriter(url).archive({0: one}, [hole(1, 0, 3, "evicted")])
    else:
        ArchiveWriter(url).archive({0: one, 1: two})
    ArchiveWriter(url, node="node-b").archive(dict(enumerate(sealed_segments(directory / "b", [numbers(6, 7, 8)]))))
    return url


def read(url: str, **options: str) -> list[int]:
    reader = TopicReader(parse_options({"topic": "default", "archive": url, **options}, READ), SCHEMA)
    return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.column(0).to_pylist()]


def test_a_session_reads_all_archives_without_a_node(spark: SparkSession, tmp_path: Path) -> None:
    url = archived(tmp_path)
    frame = spark.read.format("quiver").option("topic", "default").option("archive", url).load()
    assert frame.schema == SCHEMA
    assert sorted(row.n for row in frame.collect()) == list(range(27))
    assert frame.where("n >= 20").count() == 7


def test_ranges_times_and_partitions_are_planned_as_with_nodes(tmp_path: Path) -> None:
    url = archived(tmp_path)
    assert stored_schema(parse_options({"topic": "default", "archive": url}, READ)) == SCHEMA
    assert sorted(read(url, minPartitions="7")) == list(range(27))
    assert read(url, slots="0") == list(range(27))
    position = json.dumps({"v": 1, "cores": {"node-a/0": offsets.position(1, 1)}})
    assert read(url, endingOffsets="latest", startingTimestamp="2999-01-01T00:00:00+00:00") == []
    assert read(url, startingOffsets=position)[:6] == list(range(12, 18))


def test_a_hole_fails_the_read_or_is_left_out(tmp_path: Path) -> None:
    url = archived(tmp_path, holes=True)
    with pytest.raises(DataLost, match="3 bundles of segment 1 are lost"):
        read(url)
    with pytest.raises(DataLost):
        read(url, slots="0")
    assert read(url, failOnDataLoss="false") == [*range(9), *range(18, 27)]


def test_what_is_archived_later_is_read_later(tmp_path: Path) -> None:
    first, second = sealed_segments(tmp_path / "a", [numbers(0), numbers(1)])
    writer = ArchiveWriter(f"file://{tmp_path}/archive")
    writer.archive({0: first})
    assert read(f"file://{tmp_path}/archive") == [0, 1, 2]
    writer.archive({1: second})
    assert read(f"file://{tmp_path}/archive") == list(range(6))


def test_only_batch_reads_of_one_place_take_an_archive(tmp_path: Path) -> None:
    url = archived(tmp_path)
    with pytest.raises(ConfigError, match="'archive' is unknown"):
        parse_options({"topic": "default", "archive": url}, READ_STREAM)
    with pytest.raises(ConfigError, match="leave out 'nodes'"):
        read(url, nodes=str(tmp_path))
    with pytest.raises(UnknownTopic, match="did you mean 'default'"):
        TopicReader(parse_options({"topic": "defaults", "archive": url}, READ), SCHEMA).partitions()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no archive"):
        read(f"file://{tmp_path}/empty")


PUSHED = 60
"""Bundles of one row and about 20 KiB: three of them fill a segment."""


class ArchivedTopic:
    """A topic of one core whose oldest segments are in the archive alone. Bundle n holds the row n."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.count = 0

    def push(self, count: int) -> None:
        with self.node.client() as client:
            for n in range(self.count, self.count + count):
                rows = pa.record_batch({"n": pa.array([n], pa.int64()), "pad": [f"{n}".ljust(20_000, "x")]})
                client.push(rows, topic="kept", key="one worker")
        self.count += count

    def first_on_disk(self) -> int:
        with self.node.client() as client:
            return min((info.segment_seq for infos in client.segments("kept").values() for info in infos), default=0)

    def wait_gone(self, behind: int) -> None:
        """Wait until segments up to that one have left the disk."""
        wait_until(lambda: self.first_on_disk() > behind, f"segment {behind} has left the disk")

    def drop_subscribers(self) -> None:
        """Let nobody keep anything on the disk any more."""
        with self.node.client() as client:
            names = {info.subscriber for infos in client.subscribers("kept").values() for info in infos}
            for name in names - {"quiver-archive"}:
                client.unsubscribe(name, topic="kept")

    def place(self) -> offsets.Place:
        with self.node.client() as client:
            (core,) = (core for core, infos in client.segments("kept").items() if infos)
            return offsets.Place(client.node, core)

    def options(self, **options: str) -> dict[str, str]:
        return {"topic": "kept", "runDir": str(self.node.run_dir), **options}

    def reader(self, **options: str) -> TopicReader:
        return TopicReader(parse_options(self.options(**options), READ), SCHEMA)

    def read(self, **options: str) -> list[int]:
        reader = self.reader(**options)
        return values(reader, reader.partitions())


def values(reader: Any, partitions: list[Any]) -> list[int]:
    return [n for each in partitions for batch in reader.read(each) for n in batch.column("n").to_pylist()]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchivedTopic]:
    directory = tmp_path_factory.mktemp("kept")
    node = Node(
        f"[segment]\ntarget_size = '64KiB'\nmax_open_duration = '1h'\n[topics.kept]\n"
        f"[archive]\nurl = 'file://{directory}'\nenabled = true\nkeep_local_size = '250KiB'\n"
    )
    try:
        topic = ArchivedTopic(node)
        topic.push(PUSHED)
        topic.wait_gone(5)
        yield topic
    finally:
        forget_client(str(node.run_dir))
        node.remove()


def test_a_session_reads_archive_and_disk_through_a_node_and_goes_on_where_its_checkpoint_is_archived(
    spark: SparkSession, topic: ArchivedTopic, tmp_path: Path
) -> None:
    frame = spark.read.format("quiver").options(**topic.options()).load()
    assert frame.columns == ["n", "pad"]
    assert sorted(row.n for row in frame.select("n").collect()) == list(range(topic.count))
    limit = {"maxRowsPerTrigger": "35"} if HAS_ADMISSION_CONTROL else {}
    stream = Stream(spark, tmp_path, "kept", runDir=str(topic.node.run_dir), **limit)
    stream.run_available()
    assert stream.rows() == list(range(topic.count))
    # Nobody keeps for the query what it has not read, and its newest micro-batch is made again.
    forget_newest_commit(stream.checkpoint)
    topic.drop_subscribers()
    stood_at = max(map(offsets.bundle_of, offsets.from_json(stream.offsets()[-1]).values()))
    topic.push(PUSHED)
    topic.wait_gone(stood_at[0])
    stream.run_available()
    assert stream.rows() == list(range(topic.count))


def forget_newest_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as if the query had been killed before it noted that its newest micro-batch was done."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_reads_begin_anywhere_in_the_archive(topic: ArchivedTopic) -> None:
    whole = list(range(topic.count))
    assert topic.read() == whole
    assert topic.read(slots="0", minPartitions="9") == whole
    place = topic.place()
    with topic.node.client() as client:
        stored = client.read("kept", place.core, BundleId("kept", place.core, 0, 0))
        bundles, times_ns = zip(*((each.bundle_id, each.ingestion_unix_ns or 0) for each in stored), strict=True)
    segments = [each.segment_seq for each in bundles]
    assert segments[11] < topic.first_on_disk()
    at = json.dumps(offsets.to_json({place: offsets.position(*bundles[7][2:])}))
    assert topic.read(startingOffsets=at) == whole[7:]
    assert topic.read(endingOffsets=at) == whole[:7]
    since = as_text(times_ns[11])
    assert topic.read(startingTimestamp=since) == whole[11:]
    assert topic.read(where="n < 5") == whole[:5]
    # The newest segments on the disk have no statistics yet.
    planned = [piece.segment_seq for each in topic.reader(where="n < 5").partitions() for piece in each.ticket.ranges]
    assert [seq for seq in planned if seq < topic.first_on_disk()] == sorted({segments[n] for n in range(5)})
    assert topic.read(where="n < 5", slots="0") == whole[:5]
    in_one = [n for n in whole if segments[n] == 1]
    told = topic.options(includeMetadata="true", where="_quiver_segment = 1")
    reader = TopicReader(parse_options(told, READ), StructType([*SCHEMA, StructField("_quiver_segment", LongType())]))
    assert values(reader, reader.partitions()) == in_one
    for options in ({"startingOffsets": "earliest"}, {"startingTimestamp": since}, {"startingOffsets": at}):
        reader, _, partitions = micro_batch(topic.options(**options), SCHEMA)
        assert values(reader, partitions) == topic.read(**options)
    reader, _, partitions = micro_batch(topic.options(startingOffsets="latest"), SCHEMA)
    assert values(reader, partitions) == []


def test_a_node_of_another_host_reads_its_archive_for_who_asks(topic: ArchivedTopic) -> None:
    reader = topic.reader(minPartitions="3")
    partitions: list[Any] = reader.partitions()
    archived = [each.ticket for each in partitions if each.ticket.archived is not None]
    assert archived
    look = Look("kept", reads_unsealed=True, archive=ArchiveTerms())
    rows = AskSlotRows("kept", {}, archived={each.place.core: each.ticket.archived for each in partitions[:1]})
    with topic.node.client() as client, NodeServer(LocalNode("other", lambda: client), "grpc://127.0.0.1:0") as server:
        local, remote = LocalNode("other", lambda: client), RemoteNode("other", f"grpc://127.0.0.1:{server.port}")
        assert any(core.archived for core in remote.look(look).cores)
        assert remote.look(look) == local.look(look)
        assert remote.schemas("kept", archive=True) == local.schemas("kept", archive=True)
        assert remote.slot_rows(rows) == local.slot_rows(rows)
        for ticket in archived:
            assert list(remote.read(ticket)) == list(local.read(ticket))
        remote.close()


def test_a_plan_has_the_same_rows_when_its_segments_have_left_the_disk(topic: ArchivedTopic) -> None:
    reader = topic.reader(minPartitions="4")
    partitions = reader.partitions()
    topic.drop_subscribers()
    before, first = topic.count, topic.first_on_disk()
    assert values(reader, partitions) == list(range(before))
    topic.push(PUSHED)
    topic.wait_gone(first + 3)
    assert values(reader, partitions) == list(range(before))
    assert topic.read() == list(range(topic.count))
