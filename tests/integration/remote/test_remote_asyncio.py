"""Clients on other hosts for asyncio: the same calls, and what becomes of a wait that is cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pyarrow as pa
import pytest

from quiver_actors import aio
from quiver_actors.client import Client
from quiver_actors.errors import ClosedError, UnknownTopic, UsageError, WorkerUnavailable
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.not_remote import NotRemote
from quiver_actors.flight.server import NodeServer
from tests.integration.client_node import first_id, numbers
from tests.integration.remote.servers import DEADLINE_SECONDS


@pytest.fixture
def server(local: Client) -> Iterator[NodeServer]:
    with NodeServer(LocalNode("node-a", lambda: local), "grpc://127.0.0.1:0") as made:
        yield made


def in_loop(server: NodeServer, work: Callable[[aio.RemoteClient], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def connected() -> AsyncIterator[aio.RemoteClient]:
        async with await aio.connect_remote(f"grpc://127.0.0.1:{server.port}") as client:
            yield client

    async def run() -> None:
        async with connected() as client:
            await work(client)

    asyncio.run(run())


def test_the_calls_are_those_of_threads(server: NodeServer, local: Client) -> None:
    local.create_topic("aio")
    told: list[int] = []

    async def note(delivery: aio.Delivery) -> None:
        await asyncio.sleep(0)
        told.append(first_id(cast(Any, delivery)))

    async def work(client: aio.RemoteClient) -> None:
        async with await client.subscribe("a", topic="aio", on_bundle=note) as deliveries:
            receipts = await asyncio.gather(*(client.push(numbers(number), topic="aio") for number in range(0, 30, 3)))
            await client.push_many(map(numbers, (100, 200)), topic="aio", producer="p", sequence=0)
            first = await deliveries.get(DEADLINE_SECONDS)
            assert isinstance(first, aio.Delivery)
            assert first.bundle_id.topic == "aio"
            await first.extend()
            await first.ack().wait()
            (second,) = await deliveries.get_many(1, DEADLINE_SECONDS)
            second.defer()
            running = asyncio.create_task(deliveries.run())
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(told) < 11:
                assert time.monotonic() < deadline
                await client.topics()
            assert await deliveries.flush() == []
            assert await deliveries.all_drained()
            assert await deliveries.pending_count() == 0
        assert await running == 11
        assert sorted([*told, first_id(cast(Any, first))]) == [*range(0, 30, 3), 100, 200]
        core = receipts[0].bundle_id.core
        assert len(await client.read("aio", core)) >= 10
        dataset = await client.dataset("aio", where="id >= 100")
        assert await asyncio.to_thread(dataset.count_rows) == 6
        rows = await client.sql("SELECT count(*) AS n FROM aio")
        assert (await asyncio.to_thread(rows.read_all)).to_pylist() == [{"n": 36}]
        assert (await client.schema("aio")).names == ["id"]
        await client.flush("aio")
        assert (await client.segments("aio")).keys() == local.segments("aio").keys()
        assert await client.subscribers("aio") == local.subscribers("aio")
        assert await client.topics() == local.topics()
        with pytest.raises(UnknownTopic):
            await client.push(numbers(1), topic="nowhere")
        with pytest.raises(NotRemote, match="create_topic"):
            client.create_topic("x")
        with pytest.raises(UsageError, match="pickled"):
            client.__reduce__()

    in_loop(server, work)
    local.delete_topic("aio")


def test_a_cancelled_wait_loses_no_bundle(server: NodeServer, local: Client) -> None:
    local.create_topic("cancelled")

    async def work(client: aio.RemoteClient) -> None:
        async with await client.subscribe("c", topic="cancelled") as deliveries:
            for number in range(5):
                waiting = asyncio.create_task(deliveries.get())
                await client.topics()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                # The thread that waited is still there, and brings this one.
                await client.push(numbers(number), topic="cancelled")
                delivery = await deliveries.get(DEADLINE_SECONDS)
                assert (first_id(delivery), delivery.delivery_count) == (number, 1)
                delivery.ack()
            assert await deliveries.flush() == []

    in_loop(server, work)
    local.delete_topic("cancelled")


def test_batches_and_the_end_of_a_subscription(server: NodeServer, local: Client) -> None:
    local.create_topic("batched")

    async def work(client: aio.RemoteClient) -> None:
        deliveries = await client.subscribe("b", topic="batched", idle_timeout=DEADLINE_SECONDS)
        await client.push_many(map(numbers, range(0, 60, 3)), topic="batched")
        ids: list[int] = []
        async for batch in deliveries.batches():
            assert isinstance(batch.table, pa.Table)
            ids += batch.table["id"].to_pylist()
            await batch.ack().wait()
            if len(ids) == 60:
                break
        assert ids == list(range(60))
        waiting = asyncio.create_task(deliveries.get())
        await asyncio.sleep(0)
        await deliveries.close()
        for late in (waiting, deliveries.get(0)):
            with pytest.raises(ClosedError):
                await late
        assert [event async for event in deliveries] == []

    in_loop(server, work)
    local.delete_topic("batched")


@pytest.mark.long
def test_a_closed_client_and_a_server_that_is_gone(local: Client) -> None:
    async def work() -> None:
        with NodeServer(LocalNode("node-a", lambda: local), "grpc://127.0.0.1:0") as server:
            client = await aio.connect_remote(f"grpc://127.0.0.1:{server.port}", timeout=1.0)
            deliveries = await client.subscribe("gone", topic="other")
        with pytest.raises(WorkerUnavailable):
            await deliveries.get(1.5)
        await client.close()
        await client.close()
        for call in (client.push(numbers(1)), client.topics()):
            with pytest.raises(ClosedError):
                await call

    asyncio.run(work())
