"""A store in an event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.errors import AlreadyRunning, ClosedError
from tests.unit.embedded.batches import PATIENCE_SECONDS, number_of, numbered


def test_tasks_push_and_subscribe_in_one_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "data") as store:
            with pytest.raises(AlreadyRunning):
                await aio.open(tmp_path / "data")
            await store.create_topic("flights")
            receipts = await asyncio.gather(*(store.push(numbered(number), topic="flights") for number in range(50)))
            assert len({receipt.bundle_id for receipt in receipts}) == 50
            await store.push_many(map(numbered, range(50, 100)), topic="flights")
            found: list[int] = []
            async with await store.subscribe("s", topic="flights", start="earliest") as deliveries:
                while len(found) < 100:
                    delivery = await deliveries.get(timeout=PATIENCE_SECONDS)
                    assert delivery is not None
                    with delivery:
                        found.append(number_of(delivery))
            assert sorted(found) == list(range(100))
            waiting = asyncio.create_task((await store.subscribe("idle")).get())
            await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await store.push(numbered(1))

    asyncio.run(main())


def test_a_store_whose_opening_was_cancelled_is_closed_again(tmp_path: Path) -> None:
    """Regression: nobody had the store, and its directory was in use until the process ended."""

    async def main() -> None:
        opening = asyncio.ensure_future(aio.open(tmp_path / "data"))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with await aio.open(tmp_path / "data") as store:
            await store.push(numbered(1))

    asyncio.run(main())
