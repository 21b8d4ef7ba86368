"""The client of one node for asyncio. See `quiver_actors.client.Client`, whose namesakes these methods are."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Unpack, overload

from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.aio.subscription import AnySubscription, GapSubscription, Subscription
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.channels import ChannelSet
from quiver_actors.client.client import PUSH_TIMEOUT_SECONDS
from quiver_actors.client.keyed import pushing_keyed
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.producer import Producer, with_counts
from quiver_actors.client.projection import Asked
from quiver_actors.client.push_channel import PushChannel
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.requests import Requests
from quiver_actors.client.segments import map_segment
from quiver_actors.client.slots import Bundle
from quiver_actors.client.topic_commands import TopicCommandsOf
from quiver_actors.client.wanted import Gaps, SeekReport, Start, SubscribeOptions, Wanted
from quiver_actors.envelope import TraceContext
from quiver_actors.model import DEFAULT_TOPIC, BundleId, Receipt
from quiver_actors.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo
from quiver_actors.segment.reader import SegmentReader


def connect(run_dir: str | os.PathLike[str] | None = None, *, timeout: float = 10.0) -> Client:
    """Open a client of the node whose run directory this is, in the running event loop. Reads a file, but connects to nothing yet.

    Args and raises: as `quiver_actors.client.connect`.
    """
    return Client(NodeDirectory(None if run_dir is None else os.fspath(run_dir)), timeout=timeout)


class Client:
    """See `connect`. An asynchronous context manager; `close` is idempotent."""

    def __init__(self, directory: NodeDirectory, *, timeout: float) -> None:
        self._directory = directory
        self._timeout_seconds = timeout
        self._name = os.path.basename(sys.argv[0] or "python") if sys.argv else "python"
        self._exchange = LoopExchange()
        self._channels = ChannelSet(self._exchange, directory, self._make_channel)
        self._producer = Producer(self._channels)
        self._requests = Requests(self._channels, timeout)
        self._subscriptions: weakref.WeakSet[AnySubscription] = weakref.WeakSet()

    @property
    def run_dir(self) -> str:
        return self._directory.run_dir

    async def push(
        self,
        bundle: Bundle,
        *,
        topic: str = DEFAULT_TOPIC,
        key: str | bytes | None = None,
        item_count: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        trace_context: TraceContext | None = None,
        timeout: float = PUSH_TIMEOUT_SECONDS,
    ) -> Receipt:
        """Store one bundle. Any number of tasks may push at once: their bundles share the worker's syncs.

        Cancelling does not take back what was sent.
        """
        if producer is not None or sequence is not None:
            receipts = await self.push_many(
                (bundle,),
                topic=topic,
                key=key,
                item_counts=(item_count,),
                producer=producer,
                sequence=sequence,
                trace_context=trace_context,
                timeout=timeout,
            )
            return receipts[0]
        steps = self._producer.pushing_one(
            bundle, topic=topic, key=key, item_count=item_count, timeout_seconds=timeout, trace_context=trace_context
        )
        return await self._exchange.complete_steps(steps)

    async def push_many(
        self,
        bundles: Iterable[Bundle],
        *,
        topic: str = DEFAULT_TOPIC,
        key: str | bytes | None = None,
        item_counts: Iterable[int | None] | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        trace_context: TraceContext | None = None,
        timeout: float = PUSH_TIMEOUT_SECONDS,
    ) -> Receipts:
        """Store bundles in order, many at a time. The event loop gets its turn between groups of up to 64 bundles or 1 MiB.

        `producer`, `sequence`, `trace_context`: as of `Client.push_many`.
        """
        if producer is not None or sequence is not None:
            counted = with_counts(bundles, item_counts)
            shared = (self._producer, self._channels)
            steps = pushing_keyed(*shared, counted, topic, key, producer, sequence, timeout, trace_context)
            return await self._exchange.complete_steps(steps)
        steps = self._producer.pushing(
            bundles,
            topic=topic,
            key=key,
            item_counts=item_counts,
            timeout_seconds=timeout,
            trace_context=trace_context,
        )
        return await self._exchange.complete_steps(steps)

    @overload
    async def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["log"] = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription: ...

    @overload
    async def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["deliver"],
        **options: Unpack[SubscribeOptions],
    ) -> GapSubscription: ...

    async def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Gaps = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription | GapSubscription:
        """Attach to a durable subscriber; the options are those of `SubscribeOptions`. The callbacks may be coroutine functions."""
        wanted = Wanted.parse(topic, subscriber, gaps, options)
        starts = await self._exchange.complete(self._requests.starting(topic, wanted.start))
        kind = GapSubscription if wanted.are_gaps_delivered else Subscription
        subscription = kind(NodeDirectory(self.run_dir), self._name, wanted, starts)
        try:
            await subscription.register(self._timeout_seconds)
        except BaseException:
            subscription.abort()
            raise
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        return await self._exchange.complete(self._requests.unregister(subscriber, topic))

    async def drop_orphan(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        return await self._exchange.complete(self._requests.drop_orphan(subscriber, topic))

    async def seek(
        self, subscriber: str, start: Start, *, topic: str = DEFAULT_TOPIC, dry_run: bool = False
    ) -> SeekReport:
        return await self._exchange.complete(self._requests.seek(subscriber, start, topic, is_dry=dry_run))

    async def subscribers(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SubscriberInfo]]:
        return await self._exchange.complete(self._requests.subscribers(topic))

    async def ack_through(self, bundle_id: BundleId, *, subscriber: str) -> None:
        await self._exchange.complete(self._requests.ack_through(bundle_id, subscriber))

    async def topics(self) -> dict[str, TopicInfo]:
        return await self._exchange.complete(self._requests.topics())

    async def create_topic(
        self, topic: str, settings: Mapping[str, Any] | None = None, *, if_missing: bool = False
    ) -> None:
        """See `client.Client.create_topic`, as for the other two. The supervisor is asked in a thread."""
        await asyncio.to_thread(self._topic_commands.create_topic, topic, settings, if_missing=if_missing)

    async def set_topic(self, topic: str, settings: Mapping[str, Any], *, unset: Iterable[str] = ()) -> None:
        await asyncio.to_thread(self._topic_commands.set_topic, topic, settings, unset=unset)

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._topic_commands.delete_topic, topic)

    @property
    def _topic_commands(self) -> TopicCommandsOf:
        return TopicCommandsOf(self.run_dir, self._timeout_seconds)

    async def flush(self, topic: str = DEFAULT_TOPIC) -> None:
        await self._exchange.complete(self._requests.flush(topic))

    async def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        return await self._exchange.complete(self._requests.segments(topic))

    async def read_segment(self, core: int, topic: str, segment_seq: int) -> SegmentReader:
        descriptor, size_bytes = await self._exchange.complete(self._requests.opened_segment(core, topic, segment_seq))
        return SegmentReader(map_segment(descriptor, size_bytes, segment_seq), segment_seq=segment_seq)

    async def read(
        self,
        topic: str,
        core: int,
        start: BundleId | None = None,
        end: BundleId | None = None,
        *,
        slots: Iterable[str | int] | None = None,
        columns: Mapping[str | int, Iterable[str]] | None = None,
    ) -> AsyncIterator[StoredBundle]:
        """For `async for`; the range is fixed and checked when the first bundle is asked for."""
        asked = Asked.parse(slots, columns)
        wanted = await self._exchange.complete(self._requests.wanted_range(topic, core, start, end, asked))
        for part in wanted.parts:
            segment = await self._exchange.complete(self._requests.mapped_part(wanted, part))
            for index in range(part.first, part.end):
                yield StoredBundle(segment, index)

    async def close(self) -> None:
        """Close all connections and subscriptions, also where it is cancelled. Idempotent."""
        subscriptions = list(self._subscriptions)
        try:
            for subscription in subscriptions:
                await subscription.close()
        finally:
            for subscription in subscriptions:
                subscription.abort()
            if not self._exchange.is_closed:
                with self._exchange.lock:
                    self._channels.close()
                self._exchange.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Client run_dir={self.run_dir} {'closed' if self._exchange.is_closed else 'open'}>"

    def _make_channel(self, core: int) -> PushChannel:
        return PushChannel(self._exchange, self._directory, core, self._name)
