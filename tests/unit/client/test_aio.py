"""The asyncio twins over real sockets: the same flows, driven by an event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import Credit, FlushProgress, GapAck
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import (
    AlreadyResolved,
    ClosedError,
    InvalidBundle,
    PushTimeout,
    UnknownTopic,
    WorkerUnavailable,
)
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, batch, gap, resolved
from tests.unit.client.peer import Peer


def run(peer: Peer, body: Callable[[aio.Client], Awaitable[None]]) -> None:
    """Run a test's body in an event loop of its own, with nothing left open."""

    async def main() -> None:
        async with aio.connect(peer.run_dir, timeout=60.0) as client:
            await asyncio.wait_for(body(client), 60)

    asyncio.run(main(), debug=False)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_push_and_push_many(peer: Peer) -> None:
    async def body(client: aio.Client) -> None:
        receipt = await client.push(batch(1), key="k")
        assert receipt.bundle_id.core == 0
        receipts = await client.push_many((batch(n) for n in range(500)), item_counts=range(500))
        assert len(receipts) == 500
        threads = threading.active_count()
        many = await asyncio.gather(*(client.push(batch(n)) for n in range(50)))
        assert len(many) == 50
        assert threading.active_count() == threads
        assert "default" in await client.topics()
        await client.flush()

    run(peer, body)
    assert len(peer.stored) == 551


def test_tasks_go_on_while_a_push_waits(peer: Peer) -> None:
    peer.holds_acks = True

    async def body(client: aio.Client) -> None:
        waiting = asyncio.create_task(client.push(batch(1)))
        await until(lambda: bool(peer.unacknowledged))
        assert not waiting.done()
        peer.acknowledge()
        await waiting
        with pytest.raises(PushTimeout):
            await client.push(batch(1), timeout=0.05)

    run(peer, body)


def test_errors_are_those_of_the_other_client(peer: Peer, clock: ClientClock) -> None:
    async def body(client: aio.Client) -> None:
        with pytest.raises(UnknownTopic):
            await client.push(batch(1), topic="nosuch")
        with pytest.raises(InvalidBundle) as raised:
            await client.push_many([batch(1), {}])
        assert raised.value.__notes__
        with pytest.raises(UnknownTopic):
            await client.subscribe("exporter", topic="nosuch")
        peer.kill(0)
        subscribing = asyncio.create_task(client.subscribe("exporter"))
        await asyncio.sleep(0)  # it has begun to wait
        clock.ahead_ns += 61 * SECOND_NS
        with pytest.raises(WorkerUnavailable):
            await subscribing
        await client.close()
        with pytest.raises(ClosedError):
            await client.push(batch(1))
        peer.listen(0)

    run(peer, body)


def test_cancelled_push_leaves_the_client_usable(peer: Peer) -> None:
    peer.holds_acks = True

    async def body(client: aio.Client) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.push(batch(1)), 0.05)
        peer.holds_acks = False
        peer.acknowledge()
        await client.push(batch(2))

    run(peer, body)


def test_deliveries_are_iterated_and_acknowledged(peer: Peer, segment: Path, clock: ClientClock) -> None:
    feeder = Feeder(peer, segment)

    async def body(client: aio.Client) -> None:
        clock.stop()
        async with await client.subscribe("exporter", topic="travel", idle_timeout=0.1) as subscription:
            found = []
            async for delivery in subscription:
                with delivery:
                    found.append(delivery.bundle_id.bundle_index)
                if len(found) == BUNDLES:
                    clock.go_on()
            assert found == list(range(BUNDLES))
            await subscription.flush()
            assert feeder.resolved == set(range(BUNDLES))

    run(peer, body)


def test_tickets_batches_leases_and_questions(peer: Peer, segment: Path) -> None:
    feeder = Feeder(peer, segment)

    async def body(client: aio.Client) -> None:
        async with await client.subscribe("exporter", topic="travel") as subscription:
            one, two, *_ = await subscription.get_many(5, 60)
            ticket = one.ack()
            await ticket.wait()
            assert feeder.resolved == {0}
            await two.extend()
            assert await subscription.extend([one, two]) == [one]
            two.defer(1.5)
            with pytest.raises(AlreadyResolved):
                two.ack()
            await subscription.ack_through(BundleId("travel", 0, 4, 3))
            await subscription.flush()
            assert (4, "defer", 1_500_000_000, [1]) in resolved(peer)
            assert subscription.claims_lost == 0
        with pytest.raises(ClosedError):
            await subscription.get()

    run(peer, body)


def test_several_tasks_share_a_subscription(peer: Peer, segment: Path) -> None:
    Feeder(peer, segment)

    found: list[int] = []

    async def consume(subscription: aio.Subscription) -> None:
        while len(found) < BUNDLES:
            if (delivery := await subscription.get(0.05)) is not None:
                with delivery:
                    await asyncio.sleep(0)
                    found.append(delivery.bundle_id.bundle_index)

    async def body(client: aio.Client) -> None:
        async with await client.subscribe("exporter", topic="travel") as subscription:
            await asyncio.gather(*(consume(subscription) for _ in range(4)))
        assert sorted(found) == list(range(BUNDLES))

    run(peer, body)


def test_callbacks_may_be_coroutines(peer: Peer, segment: Path, clock: ClientClock) -> None:
    Feeder(peer, segment)
    seen: list[object] = []

    async def note(event: object) -> None:
        await asyncio.sleep(0)
        seen.append(event)
        if len(seen) == BUNDLES + 1:
            clock.go_on()

    async def body(client: aio.Client) -> None:
        clock.stop()
        subscription = await client.subscribe("exporter", topic="travel", on_bundle=note, on_gap=note, idle_timeout=0.1)
        await until(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap(3))
        assert await subscription.run() == BUNDLES
        await subscription.close()

    run(peer, body)
    assert len(seen) == BUNDLES + 1
    assert len(peer.of_type(GapAck)) == 1


def test_a_callback_that_is_cancelled_as_the_subscription_is_closed_stays_cancelled(peer: Peer) -> None:
    async def body(client: aio.Client) -> None:
        entered = asyncio.Event()

        async def wait(_: object) -> None:
            entered.set()
            await asyncio.sleep(3600)

        subscription = await client.subscribe("exporter", topic="travel", on_gap=wait)
        reading = asyncio.create_task(anext(aiter(subscription), None))
        await until(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap(3))
        await entered.wait()
        subscription.abort()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()

    run(peer, body)


def test_lost_worker_is_registered_with_again(peer: Peer, segment: Path) -> None:
    Feeder(peer, segment)

    async def body(client: aio.Client) -> None:
        async with await client.subscribe("exporter", topic="travel") as subscription:
            assert await subscription.get(60) is not None
            await asyncio.to_thread(peer.kill, 0)
            peer.listen(0)
            found: set[int] = set()
            while len(found) < BUNDLES:
                delivery = await subscription.get(60)
                assert delivery is not None
                found.add(delivery.bundle_id.bundle_index)

    run(peer, body)


def test_closing_ends_a_task_that_waits(peer: Peer) -> None:
    async def body(client: aio.Client) -> None:
        subscription = await client.subscribe("exporter", topic="travel")

        async def iterate() -> list[object]:
            return [delivery async for delivery in subscription]

        waiting = asyncio.create_task(iterate())
        await asyncio.sleep(0)
        await subscription.close()
        assert await waiting == []
        await subscription.close()

    run(peer, body)
    assert len(peer.of_type(FlushProgress)) == 1


def test_nothing_is_left_open(peer: Peer, segment: Path) -> None:
    Feeder(peer, segment)

    async def body(client: aio.Client) -> None:
        async with await client.subscribe("exporter", topic="travel") as subscription:
            await subscription.get(60)
        await client.push(batch(1))

    run(peer, body)
    peer.wait_for(lambda: not peer.sessions)
    gc.collect()  # What other tests left behind in reference cycles.
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run(peer, body)
        peer.wait_for(lambda: not peer.sessions)
    assert len(os.listdir("/proc/self/fd")) == before
