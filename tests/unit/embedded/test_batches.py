"""Batches of a subscription whose reader stops in the middle: whatever was taken for the next batch comes again, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors import aio
from quiver_actors.embedded import Store
from tests.unit.embedded.batches import PATIENCE_SECONDS, number_of

BUNDLES = 60


def several_rows(number: int) -> pa.RecordBatch:
    """A bundle of one to five rows, so that nobody knows how many of them fit into a batch."""
    return pa.record_batch({"number": pa.array([number] * (1 + number * 7 % 5), pa.int64())})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with quiver_actors.open(tmp_path / "data") as opened:
        opened.push_many(map(several_rows, range(BUNDLES)))
        yield opened


def test_a_reader_who_begins_anew_for_each_batch_gets_every_bundle_in_order(store: Store) -> None:
    """Regression: what had been taken for the next batch stayed with the reader who was gone, until its lease was over."""
    found: list[int] = []
    with store.subscribe("s", start="earliest", lease=None, idle_timeout=PATIENCE_SECONDS) as subscription:
        for _ in range(8):
            batch = next(iter(subscription.batches(max_rows=10)))
            found += dict.fromkeys(batch.table["number"].to_pylist())
            batch.ack()
        while len(found) < BUNDLES:
            delivery = subscription.get(timeout=PATIENCE_SECONDS)
            assert delivery is not None
            found.append(number_of(delivery))
            delivery.ack()
        subscription.flush(PATIENCE_SECONDS)
        assert subscription.pending_count() == 0
    assert found == list(range(BUNDLES))


def test_what_a_cancelled_task_had_gathered_comes_again(tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with await aio.open(tmp_path / "data") as store:
            await store.push_many(map(several_rows, range(BUNDLES)))
            async with await store.subscribe("s", start="earliest", lease=None, prefetch=BUNDLES) as subscription:
                batches = subscription.batches(max_rows=1000, max_wait=PATIENCE_SECONDS)
                waiting = asyncio.ensure_future(anext(batches))
                (channel,) = subscription._consumer.channels.opened()
                while channel.claims.bundle_count < BUNDLES or subscription._consumer.inbox.waiting:
                    await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                found: list[int] = []
                while len(found) < BUNDLES:
                    delivery = await subscription.get(timeout=PATIENCE_SECONDS)
                    assert delivery is not None
                    found.append(number_of(delivery))
                return found

    assert asyncio.run(main()) == list(range(BUNDLES))
