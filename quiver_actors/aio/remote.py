"""The client for asyncio of a node on another host: `flight.client.RemoteClient`, whose calls run in threads of its own.

Guarantees and errors are those of the client for threads. A call that is cancelled goes on in its thread: a bundle may be stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar, Unpack

import pyarrow as pa

from quiver_actors.aio.client import Client
from quiver_actors.aio.remote_subscription import RemoteDelivery, RemoteSubscription
from quiver_actors.base.model import DEFAULT_TOPIC, BundleId, Receipt
from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.known_topics import TopicInfos
from quiver_actors.client.push_options import PushOptions
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.slots import Bundle
from quiver_actors.client.subscribe_request import Gaps, SubscribeOptions
from quiver_actors.errors import ClosedError
from quiver_actors.flight import client as threads
from quiver_actors.flight.not_remote import not_there
from quiver_actors.flight.remote_dataset import RemoteDataset
from quiver_actors.query.span import Bound
from quiver_actors.store.status.node_status import NodeStatus

CALLS_MAX = 32
"""Most calls of one client that are under way beside those of its subscriptions; others wait for one of them."""

P = ParamSpec("P")
T = TypeVar("T")


async def connect_remote(url: str, **options: Any) -> RemoteClient:
    """Open a client of a node on another host. Arguments and errors are those of `quiver_actors.connect_remote`."""
    return RemoteClient(await asyncio.to_thread(threads.connect_remote, url, **options))


class RemoteClient:
    """See `connect_remote`. An asynchronous context manager; `close` is idempotent. Each method does what its namesake of
    `quiver_actors.RemoteClient` does."""

    def __init__(self, made: threads.RemoteClient) -> None:
        self._made = made
        self._threads = ThreadPoolExecutor(CALLS_MAX, "quiver-remote")

    @property
    def url(self) -> str:
        """The place of the server."""
        return self._made.url

    @property
    def node(self) -> str:
        """Name of the node among several nodes."""
        return self._made.node

    async def push(self, bundle: Bundle, *, item_count: int | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Store one bundle; it is as durable as the receipt says when this returns."""
        return await self._run(partial(self._made.push, bundle, item_count=item_count, **options))

    async def push_many(
        self,
        bundles: Iterable[Bundle],
        *,
        item_counts: Iterable[int | None] | None = None,
        **options: Unpack[PushOptions],
    ) -> Receipts:
        """Store bundles in order, up to 768 or 4 MiB in one message. The iterable is read in a thread."""
        return await self._run(partial(self._made.push_many, bundles, item_counts=item_counts, **options))

    async def subscribe(
        self, subscriber: str, *, topic: str = DEFAULT_TOPIC, gaps: Gaps = "log", **options: Unpack[SubscribeOptions]
    ) -> RemoteSubscription:
        """Attach to a durable subscriber. The callbacks may be coroutine functions."""
        attach = partial(self._made.subscribe, subscriber, topic=topic, gaps=gaps, kind=RemoteDelivery)
        return RemoteSubscription(await self._run(partial(attach, **options)))

    async def read(
        self, topic: str, core: int, start: BundleId | None = None, end: BundleId | None = None, **asked: Any
    ) -> list[StoredBundle]:
        """Read stored bundles of one core from `start` up to and not including `end`: all of them, once they are here."""
        return await self._run(lambda: list(self._made.read(topic, core, start, end, **asked)))

    async def dataset(self, topic: str = DEFAULT_TOPIC, slot: str | int | None = None, **choice: Any) -> RemoteDataset:
        """Return what a slot of a topic holds now as a `pyarrow.dataset.Dataset`. Its scans wait for the node: call them in threads."""
        return await self._run(self._made.dataset, topic, slot, **choice)

    async def sql(self, statement: str, *, start: Bound = None, end: Bound = None) -> pa.RecordBatchReader:
        """Run one reading SQL statement at the node. Reading on waits for the node: it belongs into a thread."""
        return await self._run(partial(self._made.sql, statement, start=start, end=end))

    async def schema(self, topic: str = DEFAULT_TOPIC, slot: str | int | None = None) -> pa.Schema:
        """Return the one schema to which everything that is stored in a slot conforms."""
        return await self._run(self._made.schema, topic, slot)

    async def topics(self) -> TopicInfos:
        """Return the node's topics that the token names, by name."""
        return await self._run(self._made.topics)

    async def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """Return the sealed segments of a topic by core, oldest first."""
        return await self._run(self._made.segments, topic)

    async def subscribers(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SubscriberInfo]]:
        """Return the durable subscribers of a topic and how they stand, by core."""
        return await self._run(self._made.subscribers, topic)

    async def status(self) -> NodeStatus:
        """Return how the node is: the document of `quiver status --json`, as far as the token's topics go."""
        return await self._run(self._made.status)

    async def ack_through(self, bundle_id: BundleId, *, subscriber: str) -> None:
        """Resolve every bundle of the core up to and including this one for a subscriber; durable on return."""
        await self._run(self._made.ack_through, bundle_id, subscriber=subscriber)

    async def flush(self, topic: str = DEFAULT_TOPIC) -> None:
        """Seal what is open on all workers of the node."""
        await self._run(self._made.flush, topic)

    async def close(self) -> None:
        """Close all subscriptions and datasets, and the connection. Idempotent."""
        await asyncio.to_thread(self._made.close)
        self._threads.shutdown(wait=False)

    def __getattr__(self, name: str) -> NoReturn:
        raise not_there("remote client", Client, name)

    def __reduce__(self) -> NoReturn:
        self._made.__reduce__()

    async def __aenter__(self) -> RemoteClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._made)

    async def _run(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        try:
            future = self._threads.submit(call, *arguments, **named)
        except RuntimeError:
            raise ClosedError("it was closed: connect again") from None
        return await asyncio.wrap_future(future)
