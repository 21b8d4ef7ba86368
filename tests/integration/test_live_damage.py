"""Files that are damaged under a running node: no consumer sees a wrong value, and each is told what it will not get."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.cli.main import main
from quiver_actors.client import Client, Delivery
from quiver_actors.client.gaps import GapNotice
from quiver_actors.errors import ChecksumMismatch, DataLost, StorageUnavailable
from quiver_actors.flight.contract import BundleRange, ReadTicket, schema_bytes
from quiver_actors.flight.local import LocalNode
from quiver_actors.forward import Backoff, Deliverer, Forwarder, Outcome, ParquetFiles
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, node_fixture, take
from tests.support.commands import run_here
from tests.unit.forward.lakes import LAKES
from tests.unit.node.worker.harness import until

COUNT, ROWS, DAMAGED = 20, 1000, 7
CONFIG = "[segment]\ntarget_size = '8MiB'\nmax_open_duration = '50ms'\n"
SCHEMA = pa.schema([("id", pa.int64()), ("half", pa.float64())])


node = node_fixture(config=CONFIG)


@pytest.fixture
def topic(node: ClientNode, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with a subscriber that keeps everything."""
    name = request.node.name.replace("[", "-").replace("]", "")[-64:]
    with node.connect() as client:
        client.create_topic(name)
    with node.connect() as client:
        client.subscribe("keeper", topic=name).close()
    return name


def batch_of(number: int) -> pa.RecordBatch:
    ids = np.arange(number * ROWS, (number + 1) * ROWS, dtype=np.int64)
    return pa.record_batch({"id": ids, "half": ids / 2}, schema=SCHEMA)


def push_all(client: Client, topic: str) -> Sequence[BundleId]:
    receipts = client.push_many([batch_of(number) for number in range(COUNT)], topic=topic)
    client.flush(topic)
    return [receipt.bundle_id for receipt in receipts]


def damage(node: ClientNode, topic: str, column: str = "id") -> None:
    """Overwrite 40 bytes of a bundle's values where they are stored, under the running node."""
    values = batch_of(DAMAGED).column(column).buffers()[1].to_pybytes()
    found = 0
    for path in (node.directories.data / topic / "core_0" / "segments").glob("*.qseg"):
        at = path.read_bytes().find(values)
        if at >= 0:
            path.chmod(0o640)
            descriptor = os.open(path, os.O_WRONLY)
            os.pwrite(descriptor, b"\x2a" * 40, at + 800)
            os.close(descriptor)
            found += 1
    assert found == 1, "the bundle is in one segment"


def number_of(delivery: Delivery) -> int:
    """Which bundle it is; fails the test if a value is wrong."""
    batch = delivery.batch
    number = int(batch.column("id")[0].as_py()) // ROWS
    assert batch.equals(batch_of(number).select(batch.schema.names))
    return number


def until_told(events: Iterator[Delivery | GapNotice]) -> tuple[set[int], list[GapNotice], int]:
    """The bundles that were right, the notices, and how often damage was raised, until all bundles have come or were announced."""
    seen: set[int] = set()
    notices: list[GapNotice] = []
    raised = 0
    for event in events:
        if isinstance(event, GapNotice):
            notices.append(event)
        else:
            try:
                with event:
                    seen.add(number_of(event))
            except ChecksumMismatch:
                raised += 1
        if len(seen) + sum(notice.bundle_count or 0 for notice in notices) == COUNT:
            break
    return seen, notices, raised


def the_rest() -> set[int]:
    return set(range(COUNT)) - {DAMAGED}


@pytest.mark.parametrize("columns", [["id", "half"], ["id"]], ids=["all", "one_column"])
def test_a_consumer_gets_a_notice_instead_of_wrong_values(node: ClientNode, topic: str, columns: list[str]) -> None:
    with node.connect() as client:
        push_all(client, topic)
        damage(node, topic, "half")
        with client.subscribe("late", topic=topic, start="earliest", gaps="deliver", columns={0: columns}) as events:
            seen, notices, raised = until_told(iter(events))
    assert seen == the_rest()
    assert [(notice.bundle_count, notice.reason) for notice in notices] == [(1, "damaged")]
    assert raised >= 1


def test_damage_that_comes_between_two_deliveries_of_one_mapping_is_found(node: ClientNode, topic: str) -> None:
    with node.connect() as client, client.subscribe("s", topic=topic, gaps="deliver") as events:
        push_all(client, topic)
        first = [events.get(60) for _ in range(COUNT)]
        for event in first:
            assert isinstance(event, Delivery)
            number_of(event)
            event.defer()
        damage(node, topic)
        seen, notices, _ = until_told(iter(events))
    assert seen == the_rest()
    assert [notice.reason for notice in notices] == ["damaged"]


def test_whoever_keeps_batches_can_verify_them_again(node: ClientNode, topic: str) -> None:
    with node.connect() as client, client.subscribe("s", topic=topic) as subscription:
        push_all(client, topic)
        deliveries = take(subscription, COUNT)
        kept = [delivery.batch for delivery in deliveries]
        damage(node, topic)
        found = []
        for delivery in deliveries:
            try:
                delivery.verify()
            except ChecksumMismatch:
                found.append(delivery.bundle_id.bundle_index)
        assert len(kept) == COUNT
        assert found == [DAMAGED]


async def _consume(node: ClientNode, topic: str) -> tuple[set[int], int]:
    """Which bundles came and were right, and how often damage was raised."""
    seen: set[int] = set()
    raised = announced = 0
    async with aio.connect(node.directories.run) as client:
        async with await client.subscribe("late", topic=topic, start="earliest", gaps="deliver") as events:
            while len(seen) + announced < COUNT:
                event = await events.get(60)
                assert event is not None
                if isinstance(event, GapNotice):
                    announced += event.bundle_count or 0
                    continue
                try:
                    with event:
                        assert event.batch.equals(batch_of(event.bundle_id.bundle_index))
                        seen.add(event.bundle_id.bundle_index)
                except ChecksumMismatch:
                    raised += 1
        with pytest.raises(DataLost):
            _ = [bundle.batch async for bundle in client.read(topic, 0)]
    return seen, raised


def test_the_same_with_asyncio(node: ClientNode, topic: str) -> None:
    with node.connect() as client:
        push_all(client, topic)
    damage(node, topic)
    seen, raised = asyncio.run(_consume(node, topic))
    assert seen == the_rest()
    assert raised >= 1


def test_a_range_raises_and_the_worker_rescues_the_rest(node: ClientNode, topic: str) -> None:
    with node.connect() as client, client.subscribe("told", topic=topic, gaps="deliver", max_in_flight=1) as events:
        ids = push_all(client, topic)
        damage(node, topic)
        bundles = list(client.read(topic, 0))
        assert [bundle.bundle_id for bundle in bundles] == list(ids)
        for number, bundle in enumerate(bundles):
            if number == DAMAGED:
                with pytest.raises(ChecksumMismatch, match=f"bundle {DAMAGED} is damaged"):
                    bundle.batch  # noqa: B018 - reading is what raises
            else:
                assert bundle.batch.equals(batch_of(number))
        seen, notices, _ = until_told(iter(events))
        assert seen == the_rest()
        assert [notice.bundle_index_first for notice in notices] == [DAMAGED]
        # The same range again: the lost bundle is in its place, and says so.
        again = list(client.read(topic, 0))
        assert [bundle.bundle_id for bundle in again] == list(ids)
        with pytest.raises(DataLost, match="lost to damage"):
            again[DAMAGED].slots  # noqa: B018
        with pytest.raises(DataLost):
            again[DAMAGED].row_count  # noqa: B018
        assert again[DAMAGED + 1].batch.equals(batch_of(DAMAGED + 1))


def test_spark_and_flight_read_no_wrong_row_and_never_fewer_in_silence(node: ClientNode, topic: str) -> None:
    with node.connect() as client:
        ids = push_all(client, topic)
        damage(node, topic)
        local = LocalNode("here", lambda: client)
        ranges = [BundleRange(0, ids[0].segment_seq, 0, COUNT)]

        def rows(**changes: Any) -> pa.Table:
            ticket = ReadTicket(topic, {"0": 0}, ranges, schema_bytes(SCHEMA), **changes)
            return pa.Table.from_batches(local.read(ticket))

        with pytest.raises(ChecksumMismatch, match=f"bundle {DAMAGED} is damaged"):
            rows()
        until(lambda: _is_said_to_be_lost(rows), "the worker to rescue the segment: the reader told it")
        left = rows(skip_missing=True)
    assert left.equals(pa.Table.from_batches([batch_of(number) for number in sorted(the_rest())]))


def _is_said_to_be_lost(rows: Callable[[], pa.Table]) -> bool:
    try:
        rows()
    except DataLost:
        return True
    except (ChecksumMismatch, StorageUnavailable):
        return False
    raise AssertionError("rows that were damaged came, or fewer came without a word")


def test_without_verification_the_bytes_come_as_they_are(node: ClientNode, topic: str) -> None:
    from quiver_actors.client import connect

    with node.connect() as client:
        push_all(client, topic)
    damage(node, topic)
    with connect(node.directories.run, verify_checksums=False) as client:
        with client.subscribe("careless", topic=topic, start="earliest") as subscription:
            wrong = [
                delivery.bundle_id.bundle_index
                for delivery in take(subscription, COUNT)
                if not delivery.batch.equals(batch_of(delivery.bundle_id.bundle_index))
            ]
        assert wrong == [DAMAGED]
        assert not client.read_segment(0, topic, 0).bundle(DAMAGED)[0].equals(batch_of(DAMAGED))
        with pytest.raises(ChecksumMismatch):
            client.read_segment(0, topic, 0, verify_checksums=True).bundle(DAMAGED)


def test_no_dead_letter_is_made_of_damaged_bytes(node: ClientNode, topic: str) -> None:
    with node.connect() as client:
        client.subscribe("picky", topic=topic, max_deliveries=1).close()
        push_all(client, topic)
        damage(node, topic)
        with client.subscribe("picky", topic=topic, max_deliveries=1, gaps="deliver") as events:
            for _ in range(COUNT):
                event = events.get(60)
                assert isinstance(event, Delivery)
                event.defer()
            notice = events.get(60)
            assert isinstance(notice, GapNotice)
            assert (notice.bundle_index_first, notice.bundle_count, notice.reason) == (DAMAGED, 1, "damaged")
    with node.connect() as client, client.subscribe("u", topic=f"{topic}-dead", start="earliest") as letters:
        found = [letter[0] for letter in take(letters, COUNT - 1)]
        assert sorted(int(batch.column("id")[0].as_py()) // ROWS for batch in found) == sorted(the_rest())
        assert all(batch.equals(batch_of(int(batch.column("id")[0].as_py()) // ROWS)) for batch in found)


class _Damaging:
    """A deliverer. Damage comes while it has collected all bundles and has written none."""

    def __init__(self, deliverer: Deliverer, node: ClientNode, topic: str) -> None:
        self._deliverer = deliverer
        self._offered = 0
        self._node, self._topic = node, topic

    def offer(self, delivery: Delivery) -> None:
        self._deliverer.offer(delivery)
        self._offered += 1
        if self._offered == COUNT:
            damage(self._node, self._topic)
            self.hurry()

    def hurry(self) -> None:
        self._deliverer.hurry()

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        return self._deliverer.outcomes(timeout_seconds)

    @property
    def finish_at_ns(self) -> int | None:
        return self._deliverer.finish_at_ns

    def close(self) -> None:
        self._deliverer.close()


@pytest.mark.parametrize("kind", ["parquet", *LAKES])
def test_targets_hold_nothing_that_was_damaged_while_it_waited(
    node: ClientNode, topic: str, tmp_path: Path, kind: str
) -> None:
    """Everything else arrives, once, although a table commits nothing past a bundle whose fate is not known."""
    with node.connect() as client, client.subscribe("s", topic=topic, start="earliest") as subscription:
        push_all(client, topic)
        collecting: dict[str, Any] = {"target_bytes": 1 << 30, "max_age": 3600}
        deliverer: Any = (
            ParquetFiles(tmp_path / "out", **collecting)
            if kind == "parquet"
            else LAKES[kind].deliverer(tmp_path, subscription, **collecting)
        )
        with deliverer:
            forwarder = Forwarder(subscription, _Damaging(deliverer, node, topic), retry=Backoff(initial=0.05))

            def is_drained() -> bool:
                forwarder.run(idle_timeout=0.3)
                return subscription.all_drained()

            until(is_drained, "the rest and the notice")
    found = (
        pa.concat_tables(map(pq.read_table, (tmp_path / "out").rglob("*.parquet")))
        if kind == "parquet"
        else LAKES[kind].read(tmp_path)
    )
    expected = pa.Table.from_batches([batch_of(number) for number in sorted(the_rest())])
    assert found.sort_by("id").replace_schema_metadata(None).equals(expected)


def test_published_stages_are_checked_too(node: ClientNode, topic: str) -> None:
    with node.connect() as client:
        with client.transaction("t-1") as transaction:
            for number in range(COUNT):
                transaction.push(batch_of(number), topic=topic)
        damage(node, topic)
        with client.subscribe("late", topic=topic, start="earliest", gaps="deliver") as events:
            seen, notices, _ = until_told(iter(events))
    assert seen == the_rest()
    assert sum(notice.bundle_count or 0 for notice in notices) == 1


def test_tail_leaves_a_damaged_bundle_out_and_goes_on(node: ClientNode, topic: str) -> None:
    with node.connect() as client:
        push_all(client, topic)
    damage(node, topic)
    run_dir = str(node.directories.run)
    found = run_here("tail", topic, "--from", "earliest", "--until-idle", "3s", "--run-dir", run_dir)
    assert found.returncode == 0
    assert f"bundle {DAMAGED} is damaged" in found.stderr
    assert len(set(found.stdout.splitlines())) == COUNT - 1


def test_export_leaves_a_damaged_bundle_out_before_and_after_its_rescue(
    node: ClientNode, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node.connect() as client:
        push_all(client, topic)
    damage(node, topic)
    for attempt in ("found", "rescued"):
        out = tmp_path / attempt
        assert main(["export", topic, "--out", str(out), "--run-dir", str(node.directories.run), "--json"]) == 5
        document = json.loads(capsys.readouterr().out)
        assert (document["lost_bundles"], [file["rows"] for file in document["files"]]) == (1, [(COUNT - 1) * ROWS])
        wait_until(lambda: any((node.directories.data / topic / "core_0").glob("quarantine/*")), "the rescue")
