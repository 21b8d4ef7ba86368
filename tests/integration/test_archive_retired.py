"""A node that has fewer cores than it had: what the archive has of the others is part of every read, each bundle once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors import aio
from quiver_actors.base.core_dirs import find_core_dirs
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client
from quiver_actors.spark import offsets
from quiver_actors.spark.connection import forget_client
from quiver_actors.spark.options import READ, READ_STREAM, parse_options
from quiver_actors.spark.reader import TopicReader, stored_schema
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL, UnlimitedStreamReader
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node
from tests.integration.spark_node import MicroBatch, micro_batch
from tests.integration.test_archive import CONFIG

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not HAS_ADMISSION_CONTROL, reason="needs Spark 4.2: before, a source is not told where it stands"
    ),
]
SCHEMA = StructType([StructField("n", LongType())])
PUSHED = 24
GONE = 1
"""The core that the node has had."""


def push(client: Client, first: int, count: int) -> None:
    """Bundles of one row to each core that there is in turn, each core's in a few segments."""
    cores = len({client.core_for(str(n)) for n in range(64)})
    keys = {client.core_for(str(n)): str(n) for n in range(64)}
    for n in range(first, first + count):
        rows = pa.record_batch({"n": pa.array([n], pa.int64()), "pad": [f"{n}".ljust(20_000, "x")]})
        client.push(rows, topic="kept", key=keys[n % cores])


class Kept:
    """A topic of a node that was started with two cores, and runs with one by now."""

    def __init__(self, node: ClientNode) -> None:
        self.node = node
        with node.connect() as client:
            push(client, 0, PUSHED)
            client.flush("kept", until="archived")
        self.query = self.micro_batch(startingOffsets="earliest")
        self.rows = values(self.query)
        assert sorted(self.rows) == list(range(PUSHED))
        self.query.reader.commit(self.query.end)
        forget_client(str(node.directories.run))
        node.process.stop()
        node.restart(1)
        wait_until(lambda: set(find_core_dirs(str(node.directories.data))) == {0}, "core 1 is retired", 60)
        with node.connect() as client:
            wait_until(lambda: list(client.readable("kept")) == [0], "clients know it", 60)

    def options(self, **options: str) -> dict[str, str]:
        return {"topic": "kept", "runDir": str(self.node.directories.run), **options}

    def micro_batch(self, start: dict[str, Any] | None = None, **options: str) -> MicroBatch:
        return micro_batch(self.options(**options), SCHEMA, start)

    def read(self, **options: str) -> list[int]:
        reader = TopicReader(parse_options(self.options(**options), READ), SCHEMA)
        return [n for each in reader.partitions() for batch in reader.read(each) for n in batch.column(0).to_pylist()]


def values(batch: MicroBatch) -> list[int]:
    reader, _, partitions = batch
    return [n for each in partitions for rows in reader.read(each) for n in rows.column(0).to_pylist()]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    url = f"file://{tmp_path_factory.mktemp('retired')}/archive"
    with client_node(2, CONFIG.format(url=url) + "[topics.kept]\n") as node:
        yield Kept(node)
        forget_client(str(node.directories.run))


def test_every_read_has_what_is_left_of_a_core_that_is_gone(kept: Kept) -> None:
    whole = list(range(PUSHED))
    assert sorted(kept.read()) == whole
    assert sorted(kept.read(minPartitions="5", slots="0")) == whole
    assert sorted(kept.read(where="n < 7")) == whole[:7]
    assert stored_schema(parse_options(kept.options(), READ)).names == ["n", "pad"]
    assert sorted(values(kept.micro_batch(startingOffsets="earliest", maxRowsPerTrigger="100"))) == whole
    with kept.node.connect() as client:
        found = list(client.read("kept", GONE, BundleId("kept", GONE, 0, 0)))
        assert [each.batch.column(0)[0].as_py() for each in found] == whole[GONE::2]
        since = found[5].ingestion_unix_ns or 0
        assert sorted(client.dataset("kept", start=0).to_table().column("n").to_pylist()) == whole
        (row,) = client.sql("SELECT count(*) AS n, sum(n) AS total FROM kept", start=0).read_all().to_pylist()
        assert row == {"n": PUSHED, "total": sum(whole)}
        later = client.dataset("kept", start=found[5].bundle_id).to_table().column("n").to_pylist()
        assert [n for n in later if n % 2 == GONE] == whole[GONE::2][5:]
        assert sum(n % 2 == GONE for n in client.dataset("kept", start=since).to_table().column("n").to_pylist()) == 7
        place, other = offsets.Place(client.node, GONE), str(offsets.Place(client.node, 0))
    at = json.dumps(offsets.to_json({place: offsets.position(*found[5].bundle_id[2:])}))
    assert [n for n in kept.read(startingOffsets=at) if n % 2 == GONE] == whole[GONE::2][5:]
    assert [n for n in kept.read(endingOffsets=at) if n % 2 == GONE] == whole[GONE::2][:5]
    behind = json.dumps({"cores": {other: kept.query.end["cores"][other]}, "v": 1})
    assert kept.read(startingOffsets=behind) == whole[GONE::2], "a core that is not named begins with its first bundle"
    assert values(kept.micro_batch(startingOffsets=behind)) == whole[GONE::2]


def test_a_new_subscriber_says_what_it_does_not_get_of_such_a_core(kept: Kept) -> None:
    gone = list(range(GONE, PUSHED, 2))
    with kept.node.connect() as client:
        found = list(client.read("kept", GONE, BundleId("kept", GONE, 0, 0)))
        since = found[5].ingestion_unix_ns or 0
        with client.subscribe("new", topic="kept", start=0) as subscription:
            (left_out,) = subscription.not_delivered
            assert (left_out.topic, left_out.core, left_out.bundle_count) == ("kept", GONE, len(gone))
            read = client.read("kept", GONE, left_out.first)
            assert [each.batch.column(0)[0].as_py() for each in read] == gone
            assert subscription.get(timeout=30) is not None, "what is on the other core comes"
        with client.subscribe("new", topic="kept", start=0) as subscription:
            assert subscription.not_delivered == (), "it has begun before"
        with client.subscribe("later", topic="kept", start=since) as subscription:
            (left_out,) = subscription.not_delivered
            assert left_out.bundle_count == len(gone) - 5
            assert [each.bundle_id for each in client.read("kept", GONE, left_out.first)] == [
                each.bundle_id for each in found[5:]
            ]
        with client.subscribe("live", topic="kept") as subscription:
            assert subscription.not_delivered == ()

    async def look() -> None:
        async with (
            aio.connect(str(kept.node.directories.run)) as client,
            await client.subscribe("aio", topic="kept", start=0) as subscription,
        ):
            assert [each.core for each in subscription.not_delivered] == [GONE]

    asyncio.run(look())


def test_asyncio_reads_such_a_core(kept: Kept) -> None:
    async def look() -> None:
        async with aio.connect(str(kept.node.directories.run)) as client:
            start = BundleId("kept", GONE, 0, 0)
            found = [each.batch.column(0)[0].as_py() async for each in client.read("kept", GONE, start)]
            assert found == list(range(GONE, PUSHED, 2))
            assert sum(info.bundle_count for info in (await client.archived("kept"))[GONE]) == len(found)
            reader = await client.read_part(GONE, "kept", 0, 0, 1)
            assert reader.bundle(0)[0].column(0)[0].as_py() == GONE

    asyncio.run(look())


def test_a_query_goes_on_where_it_stood_and_its_micro_batches_have_the_same_rows(kept: Kept) -> None:
    assert values(kept.micro_batch(startingOffsets="latest")) == []
    end = kept.query.end
    start = {"cores": {}, "query": end["query"], "v": 1}
    reader = kept.micro_batch(startingOffsets="earliest", start=start).reader
    assert values(MicroBatch(reader, end, reader.partitions(start, end))) == kept.rows
    reader.commit(end)
    assert values(kept.micro_batch(startingOffsets="earliest", start=end)) == []


def test_a_checkpoint_that_does_not_name_the_core_does_not_read_it(kept: Kept) -> None:
    """It is of a program that did not know of such cores, or of a query that began after the core had gone."""
    with kept.node.connect() as client:
        name = str(offsets.Place(client.node, 0))
    unnamed = {"cores": {name: 0}, "query": "older", "v": 1}
    found = kept.micro_batch(startingOffsets="latest", start=unnamed)
    assert values(found) == [n for n in range(PUSHED) if n % 2 != GONE]
    assert list(found.end["cores"]) == [name]


def test_without_admission_control_nothing_comes_twice_either(kept: Kept) -> None:
    """Spark 4.1 does not say where a query stands when it asks for the latest offset."""
    options = parse_options(kept.options(startingOffsets="earliest", subscriber="old"), READ_STREAM)
    begun: Any = UnlimitedStreamReader(options, SCHEMA)
    start, end = begun.initialOffset(), begun.latestOffset()
    rows = values(MicroBatch(begun, end, begun.partitions(start, end)))
    assert sorted(rows) == list(range(PUSHED))
    assert values(MicroBatch(begun, end, begun.partitions(end, begun.latestOffset()))) == []
    replayed: Any = UnlimitedStreamReader(options, SCHEMA)
    assert values(MicroBatch(replayed, end, replayed.partitions(start, end))) == rows
    replayed.commit(end)
    resumed: Any = UnlimitedStreamReader(options, SCHEMA)
    for _ in range(2):
        start, end = end, resumed.latestOffset()
        assert values(MicroBatch(resumed, end, resumed.partitions(start, end))) == []
