"""Calls of the asyncio client that are cancelled when their answer has come and nobody has looked at it: what it grants is given back."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import (
    ClaimRef,
    ClientMessage,
    Credit,
    FlushProgress,
    OpenSegment,
    Resolve,
    SegmentOpened,
)
from quiver_actors.client.exchange import Exchange
from tests.unit.client.feeding import deliver, open_segment
from tests.unit.client.peer import Peer, PeerSession


class Held:
    """Requests of one kind that are answered later."""

    def __init__(self) -> None:
        self.requests: list[tuple[PeerSession, int]] = []

    def __call__(self, session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, ClaimRef | OpenSegment | FlushProgress)
        self.requests.append((session, message.tag))
        return True


def run(peer: Peer, body: Callable[[aio.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aio.connect(peer.run_dir, timeout=10.0) as client:
            await asyncio.wait_for(body(client), 60)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def hear(exchange: Exchange, condition: Callable[[], bool]) -> None:
    """Let what has arrived be handled, without letting any task go on."""
    while not condition():
        with exchange.lock:
            exchange.look()


def test_a_bundle_that_was_claimed_for_a_cancelled_call_goes_back(peer: Peer, segment: Path) -> None:
    """The consumer held it, and extended its lease, without ever having got it."""
    held = peer.handlers[ClaimRef] = Held()

    async def body(client: aio.Client) -> None:
        async with await client.subscribe("exporter", topic="travel") as subscription:
            task = asyncio.create_task(subscription.claim(BundleId("travel", 0, 4, 12)))
            await until(lambda: bool(held.requests))
            ((session, tag),) = held.requests
            open_segment(session, segment)
            deliver(session, 12, token=55, tag=tag)
            channel = subscription._consumer.channels.channel(0)
            hear(subscription._exchange, lambda: bool(channel.claimed))
            await cancelled(task)
            await until(lambda: bool(peer.of_type(Resolve)))
            (message,) = peer.of_type(Resolve)
            assert (message.outcome, message.token) == ("return", 55)
            assert array("I", message.bundle_indexes).tolist() == [12]
            assert not channel.claims.bundle_count

    run(peer, body)


def test_the_descriptor_that_came_for_a_cancelled_call_is_closed(peer: Peer) -> None:
    held = peer.handlers[OpenSegment] = Held()
    reading, writing = os.pipe()

    async def body(client: aio.Client) -> None:
        task = asyncio.create_task(client.read_segment(0, "travel", 4))
        await until(lambda: bool(held.requests))
        ((session, tag),) = held.requests
        session.send_with_descriptors([SegmentOpened(tag, "travel", 4, 100)], writing)
        os.close(writing)
        hear(client._exchange, lambda: not client._channels.channel(0)._calls)
        await cancelled(task)
        os.set_blocking(reading, False)
        assert os.read(reading, 1) == b"", "somebody has the other end still open"

    try:
        run(peer, body)
    finally:
        os.close(reading)


def test_a_client_whose_close_is_cancelled_is_closed(peer: Peer) -> None:
    """Its other subscriptions stayed open, with all that they held, and so did its own connections."""
    held = peer.handlers[FlushProgress] = Held()

    async def body(client: aio.Client) -> None:
        subscriptions = [await client.subscribe(name, topic="travel") for name in ("one", "two")]
        await client.flush("travel")
        await until(lambda: len(peer.of_type(Credit)) == 2)
        closing = asyncio.create_task(client.close())
        await until(lambda: bool(held.requests))
        await cancelled(closing)
        assert all(subscription._exchange.is_closed for subscription in subscriptions)
        assert client._exchange.is_closed
        await asyncio.to_thread(peer.wait_for, lambda: not peer.sessions)

    run(peer, body)
