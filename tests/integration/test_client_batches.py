"""Batches of a subscription: many bundles as one table for each slot, with their ids, and one acknowledgement for all."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, DeliveryBatch, GapNotice, Subscription
from quiver_actors.errors import AlreadyResolved, InvalidBundle, SlotNotInBundle, UsageError
from quiver_actors.store.segment.reader import SegmentReader
from tests.integration.client_node import ClientNode, client_fixture, client_node, node_fixture, numbers, take
from tests.integration.test_client_leaves import wait_until_nothing_is_owed
from tests.unit.store.segment.test_runs import random_bundles

ROWS = 3


node = node_fixture()
client = client_fixture()


@pytest.fixture
def subscriber(client: Client, request: pytest.FixtureRequest) -> str:
    """A subscriber of both topics that gets what is pushed from now on."""
    name = request.node.name.replace("[", "-").replace("]", "")[-64:]
    for topic in ("default", "travel"):
        client.subscribe(name, topic=topic).close()
    return str(name)


def values(table: pa.Table) -> list[int]:
    return table.column(0).to_pylist()


def test_bundles_come_as_one_table_with_their_ids(client: Client, subscriber: str) -> None:
    receipts = client.push_many([numbers(n) for n in range(40)])
    with client.subscribe(subscriber) as subscription:
        batch = next(subscription.batches(max_rows=40 * ROWS, max_wait=60))
        assert len(batch) == 40
        assert batch.bundle_ids == [receipt.bundle_id for receipt in receipts]
        assert values(batch.table) == [value for n in range(40) for value in numbers(n).column(0).to_pylist()]
        assert batch.row_counts(0) == [ROWS] * 40
        assert batch.row_count == 40 * ROWS
        batch.ack().wait(60)
    wait_until_nothing_is_owed(client, subscriber)


def test_no_batch_has_too_many_rows_and_no_bundle_is_left_out(client: Client, subscriber: str) -> None:
    sizes = [1, 2, 3, 50, 4, 1, 1, 9, 2, 7, 10, 1]
    client.push_many([numbers(n, size) for n, size in enumerate(sizes)])
    with client.subscribe(subscriber, idle_timeout=1) as subscription:
        found = []
        for batch in subscription.batches(max_rows=10, max_wait=0.2):
            with batch:
                assert batch.row_count <= 10 or len(batch) == 1
                found += batch.row_counts(0)
    assert found == sizes
    wait_until_nothing_is_owed(client, subscriber)


def test_a_batch_that_is_not_full_is_handed_over_in_time(client: Client, subscriber: str) -> None:
    client.push(numbers(1))
    with client.subscribe(subscriber) as subscription:
        batch = next(subscription.batches(max_wait=0.05))
        assert len(batch) == 1
        assert isinstance(batch, DeliveryBatch)


def test_slots_are_tables_of_their_own(client: Client, subscriber: str) -> None:
    bundles = [{"flights": numbers(1)}, {"flights": numbers(2), "weather": numbers(3, 2)}, {"weather": numbers(4, 1)}]
    client.push_many(bundles, topic="travel")
    with client.subscribe(subscriber, topic="travel") as subscription:
        batch = next(subscription.batches(max_rows=2 * ROWS + 3, max_wait=60))
        assert batch.slot_ids == (3, 7)
        assert batch.row_counts("flights") == [ROWS, ROWS, 0]
        assert batch.row_counts(7) == [0, 2, 1]
        assert values(batch["weather"]) == values(pa.Table.from_batches([numbers(3, 2), numbers(4, 1)]))
        with pytest.raises(InvalidBundle, match="choose one"):
            _ = batch.table
        batch.ack()


def test_a_slot_that_no_bundle_has_is_refused(client: Client, subscriber: str) -> None:
    client.push({"flights": numbers(1)}, topic="travel")
    with client.subscribe(subscriber, topic="travel") as subscription:
        batch = next(subscription.batches())
        with pytest.raises(SlotNotInBundle, match="none of the 1 bundles has slot 7"):
            batch["weather"]


def test_missing_columns_are_null_and_conflicting_types_end_a_batch(client: Client, subscriber: str) -> None:
    narrow = pa.record_batch({"a": pa.array([1, 2])})
    wide = pa.record_batch({"a": pa.array([3]), "b": pa.array(["x"])})
    other = pa.record_batch({"a": pa.array(["text"])})
    client.push_many([narrow, wide, narrow, other, other])
    with client.subscribe(subscriber, idle_timeout=1) as subscription:
        tables = []
        for batch in subscription.batches():
            with batch:
                tables.append(batch.table)
    first, second = tables
    assert first.to_pydict() == {"a": [1, 2, 3, 1, 2], "b": [None, None, "x", None, None]}
    assert second.to_pydict() == {"a": ["text", "text"]}


def test_a_block_that_raises_gives_all_of_them_back(client: Client, subscriber: str) -> None:
    client.push_many([numbers(n) for n in range(3)])
    with client.subscribe(subscriber) as subscription:
        batch = next(subscription.batches(max_rows=3 * ROWS, max_wait=60))
        batch.deliveries[0].ack()
        with pytest.raises(ZeroDivisionError), batch:
            _ = 1 // 0
        again = next(subscription.batches(max_rows=2 * ROWS, max_wait=60))
        assert again.bundle_ids == batch.bundle_ids[1:]
        assert [delivery.delivery_count for delivery in again.deliveries] == [2, 2]
        again.reject()
    wait_until_nothing_is_owed(client, subscriber)


def test_gap_notices_stand_between_batches(client: Client, subscriber: str) -> None:
    receipts = client.push_many([numbers(n) for n in range(20)])
    client.seek(subscriber, receipts[10].bundle_id)
    with client.subscribe(subscriber, gaps="deliver") as subscription:
        items = list(itertools.islice(subscription.batches(max_rows=10 * ROWS, max_wait=60), 2))
    notice, batch = items
    assert isinstance(notice, GapNotice)
    assert isinstance(batch, DeliveryBatch)
    assert batch.bundle_ids == [receipt.bundle_id for receipt in receipts[10:]]


@pytest.mark.parametrize("arguments", [{"max_rows": 0}, {"max_wait": float("nan")}])
def test_impossible_sizes_are_refused(client: Client, subscriber: str, arguments: dict[str, float]) -> None:
    with client.subscribe(subscriber) as subscription, pytest.raises(UsageError, match="max_"):
        subscription.batches(**arguments)  # type: ignore[arg-type]


def test_coroutines_have_the_same_batches(node: ClientNode, client: Client, subscriber: str) -> None:
    receipts = client.push_many([numbers(n) for n in range(7)])

    async def read() -> list[object]:
        async with (
            aio.connect(node.directories.run) as connected,
            await connected.subscribe(subscriber) as subscription,
        ):
            async for batch in subscription.batches(max_rows=7 * ROWS, max_wait=60):
                await batch.ack().wait(60)
                return list(batch.bundle_ids)
        return []

    assert asyncio.run(read()) == [receipt.bundle_id for receipt in receipts]
    wait_until_nothing_is_owed(client, subscriber)


def slots_by_id(subscription: Subscription, count: int) -> dict[BundleId, dict[int, pa.RecordBatch]]:
    """What the next bundles hold, one by one, without their envelopes."""
    found = {}
    for delivery in take(subscription, count):
        with delivery:
            found[delivery.bundle_id] = {slot: batch for slot, batch in delivery.slots.items() if slot != 63}
    return found


def columns(table: pa.Table) -> list[list[object]]:
    return [column.to_pylist() for column in table.columns]


def check_batch(batch: DeliveryBatch, known: dict[BundleId, dict[int, pa.RecordBatch]]) -> None:
    """Compare a batch with its bundles."""
    bundles = [known[bundle_id] for bundle_id in batch.bundle_ids]
    assert set(batch.slot_ids) == {slot for bundle in bundles for slot in bundle}
    for slot in batch.slot_ids:
        parts = [pa.Table.from_batches([bundle[slot]]) for bundle in bundles if slot in bundle]
        table = batch[slot]
        table.validate(full=True)
        assert batch.row_counts(slot) == [bundle[slot].num_rows if slot in bundle else 0 for bundle in bundles]
        assert all(part.schema.equals(parts[0].schema) for part in parts) or table.schema.equals(
            pa.unify_schemas([part.schema for part in parts])
        )
        at = 0
        for part in parts:
            rows = table.slice(at, part.num_rows)
            if part.schema.equals(table.schema):
                assert columns(rows) == columns(part)
            for name in part.schema.names if len({*part.schema.names}) == part.num_columns else ():
                assert rows.column(name).to_pylist() == part.column(name).to_pylist()
            at += part.num_rows
        assert at == table.num_rows
    assert [delivery.bundle_id for delivery in batch.deliveries] == batch.bundle_ids


@pytest.mark.parametrize("seed", range(6))
def test_batches_hold_what_the_deliveries_hold(open_node: ClientNode, seed: int) -> None:
    """Random bundles out of logs and out of segments; some consumers ask for a part of them."""
    random = Random(seed)
    bundles = [{slot: batch for slot, batch in bundle.items() if slot != 63} for bundle in random_bundles(random)]
    bundles = [bundle or {1: numbers(n)} for n, bundle in enumerate(bundles)]
    asked: list[dict[str, Any]] = [{}, {"slots": [1, 2]}, {"columns": {1: ["c0"]}}]
    with open_node.connect() as client:
        for number in range(len(asked)):
            for kind in ("singles", "batches"):
                client.subscribe(f"{kind}-{seed}-{number}").close()
        client.push_many(bundles)
        if seed % 2:
            client.flush()
        for number, request in enumerate(asked):
            with client.subscribe(f"singles-{seed}-{number}", **request) as subscription:
                known = slots_by_id(subscription, len(bundles))
            seen: list[BundleId] = []
            with client.subscribe(f"batches-{seed}-{number}", **request) as subscription:
                for batch in subscription.batches(max_rows=random.choice((1, 7, 100, 10_000)), max_wait=0.2):
                    with batch:
                        check_batch(batch, known)
                        seen += batch.bundle_ids
                    if len(seen) == len(bundles):
                        break
                assert subscription.flush(60) == []
                assert subscription.pending_count(60) == 0
            assert seen == list(known)


@pytest.fixture(scope="module")
def open_node() -> Iterator[ClientNode]:
    """A node whose logs stay open until somebody asks for their seal."""
    with client_node(config='[segment]\nmax_open_duration = "1h"\n') as started:
        yield started


def spoil(node: ClientNode, bundle_id: BundleId) -> None:
    """Damage a value of a sealed bundle."""
    path = node.directories.data / f"default/core_0/segments/{bundle_id.segment_seq:016x}.qseg"
    content = path.read_bytes()
    values = SegmentReader(content).decode(bundle_id.bundle_index)[0].column(0).buffers()[1]
    at = values.address - pa.py_buffer(content).address
    os.chmod(path, 0o600)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))


def test_a_damaged_bundle_is_left_out_and_told(open_node: ClientNode) -> None:
    with open_node.connect() as client:
        client.subscribe("spoiled").close()
        receipts = client.push_many([numbers(n) for n in range(60)])
        client.flush()
        bundle_ids = [receipt.bundle_id for receipt in receipts]
        spoil(open_node, bundle_ids[30])
        read: list[int] = []
        notices: list[GapNotice] = []
        with client.subscribe("spoiled", gaps="deliver") as subscription:
            for item in subscription.batches(max_wait=0.05):
                if isinstance(item, GapNotice):
                    notices.append(item)
                else:
                    with item:
                        read += values(item.table)[::ROWS]
                if notices and len(read) == 59:
                    break
            assert subscription.flush(60) == []
        assert sorted(read) == [n for n in range(60) if n != 30]
        assert [(notice.bundle_index_first, notice.bundle_count) for notice in notices] == [
            (bundle_ids[30].bundle_index, 1)
        ]


def test_a_batch_that_was_acknowledged_says_so_of_its_deliveries(client: Client, subscriber: str) -> None:
    client.push_many([numbers(n) for n in range(40)])
    with client.subscribe(subscriber) as subscription:
        batch = next(subscription.batches(max_rows=40 * ROWS, max_wait=60))
        batch.ack().wait(60)
        assert all(delivery.is_resolved for delivery in batch.deliveries)
        with pytest.raises(AlreadyResolved):
            batch.deliveries[7].reject()
        batch.reject()
        batch.ack().wait(60)
        assert subscription.flush(60) == []
    wait_until_nothing_is_owed(client, subscriber)


def test_bundles_of_a_batch_can_be_resolved_one_by_one_before_the_rest(client: Client, subscriber: str) -> None:
    client.push_many([numbers(n) for n in range(40)])
    with client.subscribe(subscriber) as subscription:
        batch = next(subscription.batches(max_rows=40 * ROWS, max_wait=60))
        batch.deliveries[3].reject()
        batch.deliveries[5].defer()
        with batch:
            assert batch.deliveries[3].is_resolved
        assert all(delivery.is_resolved for delivery in batch.deliveries)
        again = next(subscription.batches(max_rows=ROWS, max_wait=60))
        assert again.bundle_ids == [batch.bundle_ids[5]]
        again.ack().wait(60)
    wait_until_nothing_is_owed(client, subscriber)
