"""Archived segments that rot on the disk of a running node: whoever can read the archive misses nothing of them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, GapNotice
from quiver_actors.client.subscribe_request import Start
from quiver_actors.spark.connection import forget_client
from quiver_actors.spark.options import READ, READ_STREAM, parse_options
from quiver_actors.spark.reader import TopicReader, stored_schema
from quiver_actors.spark.stream_readers import stream_reader
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode
from tests.integration.spark_node import micro_batch
from tests.integration.test_archive import archiving_node
from tests.integration.test_archive_one_read import beginning, bundle, ids, push
from tests.integration.test_archive_queries import viewed

TOPIC = "[topics.wide.slots]\npage = 0\nview = 1\n"
SCHEMA = StructType([StructField("id", LongType())])
PUSHED = 30
DAMAGED, GONE = 1, 4
"""Segments: of the first one bundle rots, of the second everything, and of the newest, too. The two lie apart, so that who looks for one
does not find the other."""


def overwrite(path: Path, at: int, content: bytes) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def rot(node: ClientNode, client: Client) -> BundleId:
    """Returns a bundle that is damaged now."""
    (directory,) = (node.directories.data / "wide" / "core_0").glob("segments")
    lost = [each.bundle_id for each in client.read("wide", 0) if each.bundle_id.segment_seq == DAMAGED][1]
    number = next(number for number, each in enumerate(client.read("wide", 0)) if each.bundle_id == lost)
    path = directory / f"{DAMAGED:016}.qseg"
    overwrite(path, path.read_bytes().index(f"{number}".encode() * 4), b"?")
    for path in (directory / f"{GONE:016}.qseg", max(directory.glob("*.qseg"))):
        overwrite(path, 0, bytes(path.stat().st_size))
    return lost


def everything(client: Client) -> list[list[int]]:
    """The numbers of all bundles, as each kind of read has them."""
    statement = "SELECT id FROM wide.view"
    return [
        ids(client),
        ids(client, beginning()),
        viewed(client.dataset("wide", "view").to_table()),
        viewed(client.dataset("wide", "view", start=0).to_table()),
        viewed(client.sql(statement).read_all()),
    ]


def taken(client: Client, name: str, start: Start, gaps: list[GapNotice]) -> list[int]:
    found: list[int] = []
    with client.subscribe(name, topic="wide", start=start, on_gap=gaps.append) as deliveries:
        while not deliveries.all_drained():
            delivery = deliveries.get(1)
            with delivery or contextlib.nullcontext():
                found += [] if delivery is None else [delivery["view"].column(0)[0].as_py()]
            deliveries.flush()
    return found


class Spark:
    """Reads as Spark plans and carries them out, and a micro-batch that was planned when everything was whole."""

    def __init__(self, node: ClientNode) -> None:
        self._options = {"topic": "wide", "runDir": str(node.directories.run), "slots": "view", "subscriber": "query"}
        self._batch = micro_batch({**self._options, "startingOffsets": "earliest"}, SCHEMA)
        self._start: Any = self._batch.reader.initialOffset()

    def batch(self, **options: str) -> list[int]:
        reader = TopicReader(parse_options({**self._read_options(), **options}, READ), SCHEMA)
        return _values(reader, reader.partitions())

    def columns(self) -> list[str]:
        found: list[str] = stored_schema(parse_options(self._read_options(), READ)).names
        return found

    def replay(self) -> list[int]:
        """The rows of the micro-batch when another process plans it again."""
        options = parse_options({**self._options, "startingOffsets": "earliest"}, READ_STREAM)
        reader: Any = stream_reader(options, SCHEMA)
        return _values(reader, reader.partitions(self._start, self._batch.end))

    def planned(self) -> list[int]:
        """The rows of the micro-batch as it was planned."""
        return _values(self._batch.reader, self._batch.partitions)

    def _read_options(self) -> dict[str, str]:
        return {name: value for name, value in self._options.items() if name != "subscriber"}


def _values(reader: Any, partitions: Any) -> list[int]:
    return [n for each in partitions for rows in reader.read(each) for n in rows.column(0).to_pylist()]


def test_what_rots_on_the_disk_is_read_in_the_archive(tmp_path: Path) -> None:
    async def asynchronously() -> list[int]:
        async with aio.connect(str(node.directories.run)) as client:
            return [each["view"].column(0)[0].as_py() async for each in client.read("wide", 0)]

    gaps: list[GapNotice] = []
    with archiving_node(f"file://{tmp_path}/archive", TOPIC) as node, node.connect() as client:
        client.subscribe("slow", topic="wide", start="earliest").close()
        push(client, PUSHED)
        client.flush("wide", until="archived")
        newest = client.segments("wide")[0][-1].segment_seq
        spark = Spark(node)
        lost = rot(node, client)
        whole = [list(range(PUSHED))] * 5
        assert everything(client) == whole, "before anybody knows of the damage"
        wait_until(
            lambda: {GONE, newest}.isdisjoint(info.segment_seq for info in client.segments("wide")[0]), "quarantine"
        )
        wait_until(lambda: client.segments("wide")[0][DAMAGED].lost_count == 1, "rescue")
        assert everything(client) == whole
        assert spark.batch() == spark.batch(minPartitions="9") == spark.planned() == spark.replay() == whole[0]
        number = ids(client, lost)[0]
        assert spark.batch(where=f"id = {number}") == [number]
        assert spark.columns() == ["id"]
        forget_client(str(node.directories.run))
        assert asyncio.run(asynchronously()) == whole[0]
        reader = client.read_part(0, "wide", DAMAGED, lost.bundle_index, lost.bundle_index + 1)
        assert reader.bundle(lost.bundle_index)[1].column(0)[0].as_py() == number
        assert reader.bundle(lost.bundle_index) == dict(zip((0, 1), bundle(number).values(), strict=True))
        assert taken(client, "slow", "earliest", gaps) == whole[0]
        assert taken(client, "new", 0, gaps) == whole[0]
        assert gaps == []
