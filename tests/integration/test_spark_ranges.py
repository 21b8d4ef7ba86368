"""Where reads begin and end: by time and by offsets, as Spark's planner asks for them. No session is needed for that."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors.errors import DataLost, UnknownSubscriber
from quiver_actors.spark import offsets
from quiver_actors.spark.options import READ, parse_options
from quiver_actors.spark.reader import TopicReader
from tests.integration.spark_node import Node, micro_batch, wait_until

pytestmark = pytest.mark.spark

TOPIC = "ranges"
SCHEMA = StructType([StructField("n", LongType())])
COUNT = 10


class Stored(NamedTuple):
    """Bundle n holds the row n. Two segments of one worker."""

    node: Node
    place: offsets.Place
    positions: list[int]
    times_ns: list[int]

    def at(self, bundle: int) -> str:
        """Offsets before that bundle."""
        return json.dumps(offsets.to_json({self.place: self.positions[bundle]}))

    def options(self, **options: str) -> dict[str, str]:
        return {"topic": TOPIC, "runDir": str(self.node.run_dir), **options}

    def read(self, **options: str) -> list[int]:
        reader = TopicReader(parse_options(self.options(**options), READ), SCHEMA)
        return rows(reader, reader.partitions())

    def read_stream(self, **options: str) -> list[int]:
        """The rows of a new query's first micro-batch."""
        reader, _, partitions = micro_batch(self.options(**options), SCHEMA)
        return rows(reader, partitions)


def rows(reader: Any, partitions: list[Any]) -> list[int]:
    return [n for each in partitions for batch in reader.read(each) for n in batch.column("n").to_pylist()]


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    node = Node(f"[topics.{TOPIC}]\n[topics.expired]\n")
    try:
        with node.client() as client:
            for n in range(COUNT):
                client.push(pa.record_batch({"n": [n]}), topic=TOPIC, key="one worker")
                if n == COUNT // 2:
                    client.flush(TOPIC)
            client.flush(TOPIC)
            ((core, infos),) = ((core, infos) for core, infos in client.segments(TOPIC).items() if infos)
            segments = [(info.segment_seq, client.read_segment(core, TOPIC, info.segment_seq)) for info in infos]
            times_ns = [
                segment.ingestion_ts(index) or 0 for _, segment in segments for index in range(segment.bundle_count)
            ]
            positions = [
                offsets.position(seq, index) for seq, segment in segments for index in range(segment.bundle_count)
            ]
            assert (len(segments), len(times_ns)) == (2, COUNT)
            yield Stored(node, offsets.Place(client.node, core), positions, times_ns)
    finally:
        node.remove()


def as_text(unix_ns: int) -> str:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (epoch + datetime.timedelta(microseconds=unix_ns // 1000)).isoformat()


@pytest.mark.parametrize("bundle", range(COUNT))
def test_a_read_begins_with_the_first_bundle_of_its_time(stored: Stored, bundle: int) -> None:
    begin = as_text(stored.times_ns[bundle])
    assert stored.read(startingTimestamp=begin) == list(range(bundle, COUNT))
    assert stored.read_stream(startingTimestamp=begin) == list(range(bundle, COUNT))


def test_times_outside_of_what_is_stored(stored: Stored) -> None:
    before, behind = stored.times_ns[0] // 10**6, stored.times_ns[-1] // 10**6 + 1
    assert stored.read(startingTimestamp=str(before)) == list(range(COUNT))
    assert stored.read(startingTimestamp=str(behind)) == []
    assert stored.read_stream(startingTimestamp=str(behind)) == []


@pytest.mark.parametrize(("start", "end"), [(0, 1), (3, 8), (5, 6), (6, 7), (9, 9)])
def test_offsets_include_their_start_and_not_their_end(stored: Stored, start: int, end: int) -> None:
    wanted = list(range(start, end))
    assert stored.read(startingOffsets=stored.at(start), endingOffsets=stored.at(end)) == wanted
    assert stored.read(startingOffsets=stored.at(start)) == list(range(start, COUNT))
    assert stored.read(endingOffsets=stored.at(end)) == list(range(end))
    assert stored.read_stream(startingOffsets=stored.at(start)) == list(range(start, COUNT))


def test_a_stream_begins_behind_everything_or_before_it(stored: Stored) -> None:
    assert stored.read_stream(startingOffsets="latest") == stored.read_stream() == []
    assert stored.read_stream(startingOffsets="earliest") == list(range(COUNT))


def test_what_was_deleted_while_the_subscriber_was_gone_is_told_each_time(stored: Stored) -> None:
    options = stored.options(topic="expired", startingOffsets="earliest", subscriber="reader")
    with stored.node.client() as client:

        def push(n: int) -> None:
            client.push(pa.record_batch({"n": [n]}), topic="expired", key="one worker")
            client.flush("expired")

        push(0)
        begun = micro_batch(options, SCHEMA)
        assert rows(begun.reader, begun.partitions) == [0]
        client.unsubscribe("reader", topic="expired")
        push(1)
        with client.subscribe("other", topic="expired", start="earliest") as others:
            for _ in range(2):
                delivery = others.get(60)
                assert delivery is not None
                delivery.ack()
        wait_until(lambda: not any(client.segments("expired").values()), "the end of the segments")
        push(2)
        with pytest.raises(UnknownSubscriber):
            micro_batch(options, SCHEMA, begun.end)
        # As often as the query is started again: it must not pass it over because it was told once.
        for _ in range(2):
            with pytest.raises(DataLost, match=r"'reader' was dropped meanwhile.*failOnDataLoss=false"):
                micro_batch(options, SCHEMA, begun.end)
        going_on = micro_batch({**options, "failOnDataLoss": "false"}, SCHEMA, begun.end)
        assert rows(going_on.reader, going_on.partitions) == [2]
