"""Where reads begin and end: by time and by offsets, as Spark's planner asks for them. No session is needed for that."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors.client import Client
from quiver_actors.errors import DataLost, UnknownSubscriber, UnknownTopic, WorkerUnavailable
from quiver_actors.flight.contract import Contents, Look
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from quiver_actors.spark import offsets
from quiver_actors.spark.connection import forget_client
from quiver_actors.spark.options import READ, READ_STREAM, parse_options
from quiver_actors.spark.reader import TopicReader
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL, stream_reader
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
    node = Node(f"[topics.{TOPIC}]\n[topics.expired]\n[topics.shared]\n")
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


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark 4.1 does not say where it stands")
def test_what_another_query_of_the_name_has_acknowledged_is_read_or_told(stored: Stored) -> None:
    """A query that begins with a copied or an older checkpoint: what it has not read is read while it is stored, then told each time."""
    options = stored.options(topic="shared", startingOffsets="earliest", subscriber="reader")
    with stored.node.client() as client:

        def push(n: int) -> None:
            client.push(pa.record_batch({"n": [n]}), topic="shared", key="one worker")
            client.flush("shared")

        def begin(start: dict[str, Any] | None = None, **more: str) -> tuple[list[int], Any, dict[str, Any]]:
            found = micro_batch({**options, **more}, SCHEMA, start)
            return rows(found.reader, found.partitions), found.reader, found.end

        push(0)
        read, first, older = begin()
        push(1)
        push(2)
        assert (read, begin(older)[0]) == ([0], [1, 2])
        newer = first.latestOffset(older, first.getDefaultReadLimit())
        first.commit(newer)
        wait_until(lambda: not any(client.segments("shared").values()), "the end of the segments")
        told = "bundles of segments 1 to 2 are deleted that this query has not read.*'reader'.*failOnDataLoss=false"
        with pytest.raises(DataLost, match=told):
            begin(older)
        assert begin(older, failOnDataLoss="false")[0] == []
        assert begin(newer)[0] == []
        push(3)
        for _ in range(2):
            with pytest.raises(DataLost, match=told):
                begin(older)
        assert begin(older, failOnDataLoss="false")[0] == begin(newer)[0] == [3]


class Starting(LocalNode):
    """A node whose worker says, some times, what one says that was just started: all but the first segment is still to be checked."""

    def __init__(self, client: Client, looks: int) -> None:
        super().__init__(client.node, lambda: client)
        self._looks = looks

    def look(self, request: Look) -> Contents:
        contents = super().look(request)
        if request.hold is None or not self._looks:
            return contents
        self._looks -= 1
        cores = [
            msgspec.structs.replace(
                core,
                segments=core.segments[:1],
                unsettled=[*(info.segment_seq for info in core.segments[1:]), *core.unsettled],
            )
            for core in contents.cores
        ]
        return msgspec.structs.replace(contents, cores=cores)


@contextmanager
def starting(stored: Stored, directory: Path, looks: int, **options: str) -> Iterator[dict[str, str]]:
    """Options of a query whose node has just been started."""
    with stored.node.client() as client, NodeServer(Starting(client, looks), "grpc://127.0.0.1:0") as server:
        nodes = f"{client.node}=grpc://127.0.0.1:{server.port}"
        yield {"topic": TOPIC, "runDir": str(directory), "nodes": nodes, "subscriber": directory.name, **options}


@pytest.mark.parametrize("is_first", [False, True])
def test_a_replayed_micro_batch_waits_for_segments_to_be_checked(
    stored: Stored, tmp_path: Path, is_first: bool
) -> None:
    """A node that is started with the query has not read through yet what the query had planned before."""
    begun = micro_batch(stored.options(startingOffsets="earliest", subscriber=tmp_path.name), SCHEMA)
    with starting(stored, tmp_path, 2, startingOffsets="earliest" if is_first else stored.at(0)) as options:
        replaying: Any = stream_reader(parse_options(options, READ_STREAM), SCHEMA)
        start = replaying.initialOffset() if is_first else begun.reader.initialOffset()
        assert rows(replaying, replaying.partitions(start, begun.end)) == list(range(COUNT))


def test_a_replay_whose_segments_are_not_checked_in_time_fails(stored: Stored, tmp_path: Path) -> None:
    begun = micro_batch(stored.options(startingOffsets="earliest", subscriber=tmp_path.name), SCHEMA)
    with (
        starting(stored, tmp_path, 1 << 30, pushTimeout="2s") as options,
        pytest.raises(WorkerUnavailable, match="still has segments to check"),
    ):
        stream_reader(parse_options(options, READ_STREAM), SCHEMA).partitions(begun.reader.initialOffset(), begun.end)


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="limits need Spark 4.2")
def test_a_limited_query_passes_over_nothing_when_its_node_is_started_anew(stored: Stored, tmp_path: Path) -> None:
    """It has seen both segments, and read one bundle; then the worker has not checked any again."""
    with starting(stored, tmp_path, 0, startingOffsets="earliest", maxRowsPerTrigger="1") as options:
        query = micro_batch(options, SCHEMA)
        assert rows(query.reader, query.partitions) == [0]
        found, at = [0], query.end
        reader: Any = query.reader
        with starting(stored, tmp_path, 12) as again:
            reader._options = parse_options({**options, "nodes": again["nodes"]}, READ_STREAM)
            for _ in range(2 * COUNT + 12):
                end = reader.latestOffset(at, reader.getDefaultReadLimit())
                found += rows(reader, reader.partitions(at, end))
                at = end
        assert found == list(range(COUNT))


@pytest.mark.parametrize(
    ("place", "reason"), [("gone/0", "not announced any more"), ("{}/77", "does not have that core any more")]
)
def test_a_replay_tells_that_a_node_or_core_has_left_with_what_was_planned(
    stored: Stored, place: str, reason: str
) -> None:
    place = place.format(stored.place.node)
    options = stored.options(startingOffsets="earliest", subscriber="left")
    begun = micro_batch(options, SCHEMA)
    start = begun.reader.initialOffset()
    planned = {**begun.end, "cores": {**begun.end["cores"], place: offsets.position(3, 0)}}
    with pytest.raises(DataLost, match=f"{place} .* {reason}"):
        stream_reader(parse_options(options, READ_STREAM), SCHEMA).partitions(start, planned)
    lossy: Any = stream_reader(parse_options({**options, "failOnDataLoss": "false"}, READ_STREAM), SCHEMA)
    assert rows(lossy, lossy.partitions(start, planned)) == list(range(COUNT))
    # What was drained had nothing more for the query.
    done = {**start, "cores": {**start["cores"], place: offsets.position(3, 0)}}
    after: Any = stream_reader(parse_options(options, READ_STREAM), SCHEMA)
    assert rows(after, after.partitions(done, planned)) == list(range(COUNT))


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="limits need Spark 4.2")
def test_what_is_lost_behind_the_middle_of_a_segment_is_told(stored: Stored) -> None:
    """A query acknowledges one micro-batch late, so the notice of the rest begins with what it has read already."""
    options = stored.options(topic="middle", startingOffsets="earliest", subscriber="reader", maxRowsPerTrigger="1")
    with stored.node.client() as client:
        client.create_topic("middle")
        client.push_many([pa.record_batch({"n": [n]}) for n in range(3)], topic="middle", key="one worker")
        client.flush("middle")
        begun = micro_batch(options, SCHEMA)
        assert rows(begun.reader, begun.partitions) == [0]
        client.seek("reader", "latest", topic="middle")
    with pytest.raises(DataLost, match="lost 3 bundles of segment 0 from bundle 0: dropped"):
        micro_batch(options, SCHEMA, begun.end)


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
def test_a_query_does_not_go_on_in_another_store_under_the_same_name(stored: Stored, options: dict[str, str]) -> None:
    """The store was replaced: its topic was deleted and created anew, or the node got an empty disk. Numbers begin at 0 again."""
    given = stored.options(startingOffsets="earliest", subscriber="former", **options)
    begun = micro_batch(given, SCHEMA)
    former = {**begun.end, "cores": {str(stored.place): offsets.position(500, 0)}}
    with pytest.raises(DataLost, match="stands at segment 500, but none from 2 on was ever there"):
        micro_batch(given, SCHEMA, former)


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
def test_a_query_knows_another_store_whose_numbers_have_passed_it(stored: Stored, options: dict[str, str]) -> None:
    topic = f"anew-{len(options)}"

    def fill(count: int) -> None:
        with stored.node.client() as client:
            client.create_topic(topic)
            for n in range(count):
                client.push(pa.record_batch({"n": [n]}), topic=topic, key="one worker")
                client.flush(topic)

    def given(subscriber: str) -> dict[str, str]:
        return stored.options(topic=topic, startingOffsets="earliest", subscriber=subscriber, **options)

    fill(2)
    begun = micro_batch(given("a"), SCHEMA)
    after = micro_batch(given("a"), SCHEMA, begun.end)
    assert (len(rows(begun.reader, begun.partitions)), after.partitions) == (2, [])
    with stored.node.client() as client:
        client.delete_topic(topic)
    fill(4)
    forget_client(str(stored.node.run_dir))  # As a query that is started again: another process.
    with pytest.raises(DataLost, match=r"of directory \w{32}, and this one is \w{32}: the topic was deleted"):
        micro_batch(given("b"), SCHEMA, begun.end)
    replay: Any = stream_reader(parse_options(given("c"), READ_STREAM), SCHEMA)
    with pytest.raises(DataLost, match="of directory"):
        replay.partitions(begun.reader.initialOffset(), begun.end)
    # Offsets of an earlier version do not say of what store they are.
    former = {key: value for key, value in begun.end.items() if key != "stores"}
    goes_on = micro_batch(given("d"), SCHEMA, former)
    assert rows(goes_on.reader, goes_on.partitions) == [2, 3]


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark 4.1 does not say where it stands")
def test_where_nothing_came_offsets_of_an_earlier_version_make_no_micro_batch(stored: Stored) -> None:
    given = stored.options(startingOffsets="earliest", subscriber="idle")
    end = micro_batch(given, SCHEMA).end
    assert "stores" in end
    former = {key: value for key, value in end.items() if key != "stores"}
    for start in (end, former):
        assert json.dumps(micro_batch(given, SCHEMA, start).end) == json.dumps(start)


def test_a_query_of_a_topic_that_is_not_there(stored: Stored) -> None:
    with pytest.raises(UnknownTopic, match=f"'nowhere' does not exist on this node; its topics are .*{TOPIC}"):
        micro_batch(stored.options(topic="nowhere", startingOffsets="earliest"), SCHEMA)
