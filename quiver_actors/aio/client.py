"""The client of one node for asyncio. See `quiver_actors.client.Client`, whose namesakes these methods are."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver_actors.aio.archived import ArchiveWaiting
from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.aio.querying import QueryingClient
from quiver_actors.aio.reading import ReadingClient
from quiver_actors.aio.subscribing import SubscribingClient
from quiver_actors.aio.subscription import AnySubscription
from quiver_actors.base.envelope import TraceContext
from quiver_actors.base.model import DEFAULT_TOPIC, BundleId, Receipt
from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo
from quiver_actors.client.archived import ARCHIVE_TIMEOUT_SECONDS, check_until, flushed_through
from quiver_actors.client.client import PUSH_TIMEOUT_SECONDS
from quiver_actors.client.client_base import ClientBase
from quiver_actors.client.keyed import pushing_keyed
from quiver_actors.client.known_topics import TopicInfos
from quiver_actors.client.node_view import NodeDirectory, WorkerDirectory
from quiver_actors.client.producer import with_counts
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.schemas import HeldSchema
from quiver_actors.client.segments import ReadableSegments, reader_of
from quiver_actors.client.slots import Bundle
from quiver_actors.client.statistics import SegmentStatistics
from quiver_actors.client.subscribe_request import SeekReport, Start
from quiver_actors.client.topic_commands import TopicCommands, TopicCommandsOf
from quiver_actors.store.segment.reader import SegmentReader

if TYPE_CHECKING:
    from quiver_actors.store.status.node_status import NodeStatus


def connect(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    timeout: float = 10.0,
    trusted_uid: int | None = None,
    verify_checksums: bool = True,
) -> Client:
    """Open a client of the node whose run directory this is, in the running event loop. Reads a file, but connects to nothing yet.

    Args and raises: as `quiver_actors.client.connect`.
    """
    directory = NodeDirectory(None if run_dir is None else os.fspath(run_dir), trusted_uid)
    return Client(directory, timeout=timeout, verify_checksums=verify_checksums)


class Client(ClientBase[LoopExchange], ReadingClient, SubscribingClient, QueryingClient, ArchiveWaiting):
    """See `connect`. An asynchronous context manager; `close` is idempotent."""

    def __init__(self, directory: WorkerDirectory, *, timeout: float, verify_checksums: bool = True) -> None:
        super().__init__(directory, timeout=timeout, verify_checksums=verify_checksums)
        self._subscriptions: weakref.WeakSet[AnySubscription] = weakref.WeakSet()

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
        """Store bundles in order, many at a time. The event loop gets its turn between messages: up to 768 bundles or 1 MiB each.

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

    async def unsubscribe(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        """Delete a subscriber with its progress on all workers, and return how many bundles it had not resolved.

        Raises UnknownSubscriber, UnknownTopic or WorkerUnavailable, like `quiver_actors.client.Client.unsubscribe`.
        """
        return await self._exchange.complete(self._requests.unregister(subscriber, topic))

    async def drop_orphan(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        """Delete a subscriber like `unsubscribe`, but raise UsageError if a consumer is attached to it."""
        return await self._exchange.complete(self._requests.drop_orphan(subscriber, topic))

    async def seek(
        self, subscriber: str, start: Start, *, topic: str = DEFAULT_TOPIC, dry_run: bool = False
    ) -> SeekReport:
        """Move a subscriber to another position on all workers; durable on return.

        Args:
            start: as `subscribe` takes it.
            dry_run: change nothing, only report what would be skipped and what would be delivered again.
        """
        return await self._exchange.complete(self._requests.seek(subscriber, start, topic, is_dry=dry_run))

    async def share_subscriber(self, subscriber: str, uids: Iterable[int], *, topic: str = DEFAULT_TOPIC) -> None:
        """Let exactly these users join a subscriber; durable on all workers on return. An empty `uids` lets nobody join."""
        await self._exchange.complete(self._requests.share_subscriber(subscriber, uids, topic))

    async def subscribers(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SubscriberInfo]]:
        """Return the durable subscribers of a topic and their progress, by core."""
        return await self._exchange.complete(self._requests.subscribers(topic))

    async def ack_through(self, bundle_id: BundleId, *, subscriber: str) -> None:
        """Resolve every bundle of the core up to and including this one for a subscriber; durable on return."""
        await self._exchange.complete(self._requests.ack_through(bundle_id, subscriber))

    async def topics(self) -> TopicInfos:
        """Return the node's topics by name, with their slots, durability and incarnation."""
        return await self._exchange.complete(self._requests.topics())

    async def status(self) -> NodeStatus:
        """Look at the node: the document of `quiver status --json`; see `client.Client.status`. Runs in a thread."""
        return await asyncio.to_thread(self._topic_commands.status)

    async def create_topic(
        self, topic: str, settings: Mapping[str, Any] | None = None, *, if_missing: bool = False, **misplaced: object
    ) -> None:
        """See `client.Client.create_topic`, as for the other two. The supervisor is asked in a thread."""
        create = self._topic_commands.create_topic
        await asyncio.to_thread(create, topic, settings, if_missing=if_missing, **misplaced)

    async def set_topic(self, topic: str, settings: Mapping[str, Any], *, unset: Iterable[str] = ()) -> None:
        """Change settings of a topic, by their keys in docs/configuration.md; `unset` ones get their configured value again.

        Durable and in force on all workers on return. Raises UnknownTopic or ConfigError. Runs in a thread, so the loop does not wait.
        """
        await asyncio.to_thread(self._topic_commands.set_topic, topic, settings, unset=unset)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its bundles and subscribers; its name is free on return. Runs in a thread."""
        await asyncio.to_thread(self._topic_commands.delete_topic, topic)

    @property
    def _topic_commands(self) -> TopicCommands:
        return TopicCommandsOf(self.run_dir, self._timeout_seconds, self._directory.trusted_uid)

    async def flush(
        self, topic: str = DEFAULT_TOPIC, *, until: str = "sealed", timeout: float = ARCHIVE_TIMEOUT_SECONDS
    ) -> None:
        """Seal what is open on all workers: everything acknowledged before can be read and delivered on return.

        Args:
            until: `archived`: wait also until all of it is in the archive, for `timeout` seconds. Raises NotArchived.
        """
        if check_until(until):
            wanted = await self._exchange.complete(flushed_through(self._requests, topic))
            await self._await_archived(wanted, timeout)
        else:
            await self._exchange.complete(self._requests.flush(topic))

    async def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """Return the sealed segments of a topic by core, oldest first."""
        return await self._exchange.complete(self._requests.segments(topic))

    async def readable(self, topic: str = DEFAULT_TOPIC) -> dict[int, ReadableSegments]:
        """Return what can be read of a topic, sealed or not, by core; see `Client.readable` of threads."""
        return await self._exchange.complete(self._requests.readable(topic))

    async def schemas(self, topic: str = DEFAULT_TOPIC) -> list[HeldSchema]:
        """Return every distinct schema that a topic has stored, by core, sealed or not."""
        return await self._exchange.complete(self._requests.schemas(topic))

    async def statistics(self, topic: str = DEFAULT_TOPIC) -> dict[int, dict[int, SegmentStatistics]]:
        """Return what is known of the columns of sealed segments; see `Client.statistics` of threads."""
        return await self._exchange.complete(self._requests.statistics(topic))

    def tell_pruned(self, topic: str, segment_counts: Mapping[int, int]) -> None:
        """Tell workers how many segments a reader has left out; see `Client.tell_pruned` of threads. Waits for nobody."""
        self._requests.teller_of_pruned(topic)(segment_counts)

    async def schema(self, topic: str = DEFAULT_TOPIC, slot: str | int | None = None) -> pa.Schema:
        """Return the one schema to which everything that is stored in a slot conforms; see `Client.schema` of threads."""
        return await self._exchange.complete(self._requests.schema(topic, slot))

    async def read_segment(
        self, core: int, topic: str, segment_seq: int, *, verify_checksums: bool | None = None
    ) -> SegmentReader:
        """Open one sealed segment for reading, without a claim; the reader owns the mapping and is closed by the caller.

        Args:
            verify_checksums: check each bundle before it is returned; None: as the client was connected.
        """
        opened = await self._exchange.complete(self._requests.opened_segment(core, topic, segment_seq))
        verifies = self._verifies_checksums if verify_checksums is None else verify_checksums
        tell = self._requests.teller_of_damage(core, topic, segment_seq)
        return reader_of(*opened, segment_seq, verifies_checksums=verifies, tell_damage=tell)

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
            self._archived.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _new_exchange(self) -> LoopExchange:
        return LoopExchange()
