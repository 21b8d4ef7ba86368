"""The client of one node: pushing, subscribing, and looking at what is stored.

Owner of the connections for pushes and requests; each subscription has its own. Safe to share between threads. A forked child may go on
using it: it connects anew, and the parent does not notice.
"""

from __future__ import annotations

import os
import socket
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Literal, Unpack, overload

from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.channels import ChannelSet
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.hold import Hold
from quiver_actors.client.keyed import pushing_keyed
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.producer import Producer, with_counts
from quiver_actors.client.projection import Asked
from quiver_actors.client.push_channel import PushChannel
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.requests import Requests, WantedRange
from quiver_actors.client.segments import map_segment
from quiver_actors.client.slots import Bundle
from quiver_actors.client.staging import StagingClient
from quiver_actors.client.subscription import AnySubscription, GapSubscription, Subscription
from quiver_actors.client.topic_commands import TopicCommands
from quiver_actors.client.wanted import Gaps, SeekReport, Start, SubscribeOptions, Wanted, start_text
from quiver_actors.envelope import TraceContext
from quiver_actors.errors import ClosedError
from quiver_actors.model import DEFAULT_TOPIC, BundleId, Receipt
from quiver_actors.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo
from quiver_actors.segment.reader import SegmentReader

PUSH_TIMEOUT_SECONDS = 30.0


def connect(run_dir: str | os.PathLike[str] | None = None, *, timeout: float = 10.0) -> Client:
    """Open a client of the node whose run directory this is.

    Workers are connected to when they are first needed, and again whenever a connection is lost.

    Args:
        run_dir: None: `$QUIVER_RUN_DIR`, else the user's default (`quiver_actors.config.default_run_dir`).
        timeout: seconds that calls other than `push` wait for a worker.

    Raises:
        NotRunning: no node was started there.
    """
    return Client(NodeDirectory(None if run_dir is None else os.fspath(run_dir)), timeout=timeout)


class Client(StagingClient, TopicCommands):
    """See `connect`. A context manager; `close` is idempotent."""

    def __init__(self, directory: NodeDirectory, *, timeout: float) -> None:
        self._directory = directory
        self._timeout_seconds = timeout
        self._name = os.path.basename(sys.argv[0] or "python") if sys.argv else "python"
        self._exchange = Exchange()
        self._channels = ChannelSet(self._exchange, directory, self._make_channel)
        self._producer = Producer(self._channels)
        self._requests = Requests(self._channels, timeout)
        self._subscriptions: weakref.WeakSet[AnySubscription] = weakref.WeakSet()

    @property
    def run_dir(self) -> str:
        return self._directory.run_dir

    @property
    def node(self) -> str:
        """What the node is called where there are several; by default its host's name."""
        return self._directory.view.node or socket.gethostname()

    @property
    def data_dir(self) -> str:
        return self._directory.view.data_dir

    def core_for(self, key: str | bytes | None = None) -> int:
        """The core that bundles of a key go to; without a key, the one that this client has settled on."""
        return self._producer.core_for(key)

    # --- pushing -------------------------------------------------------------------------------------------------------------

    def push(
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
        """Store one bundle; it is as durable as the receipt says when this returns.

        If the worker is lost meanwhile, the bundle is pushed again when it is back: at least once. One that is larger than
        the node's arena (64 MiB unless configured) gets shared memory of its own size for the time of its push.

        Args:
            bundle: slot name or id to `RecordBatch` or `Table`; or one of those alone, for slot 0 or the only slot of the topic.
            key: bundles of one key go to one worker, in order; None: all of this client do.
            item_count: how many items the producer counts in it, kept for subscribers.
            producer, sequence: the bundle's key, both or none. A bundle whose key was stored before is not stored again: its receipt says
                where it is, and `duplicate`. Numbers follow each other; all bundles of a producer go to one worker, so there is no `key`.
            trace_context: the trace that this belongs to: a W3C `traceparent`, or the dict that OpenTelemetry's `inject` filled
                (`traceparent`, `tracestate`, `baggage`). Subscribers find it in `Delivery.trace_context`.
            timeout: seconds.

        Raises:
            SequenceGap, SequenceTooOld: the number does not follow what the worker has stored of this producer.
            UnknownTopic, UnknownSlot, InvalidBundle: the call is wrong.
            BundleTooLarge: more than 256 MiB encoded.
            PushTimeout: not acknowledged in time; it may still become durable.
            WorkerUnavailable: the worker was away all the time.
            Throttled: the size cap or the load left no room for it within the timeout; nothing was stored, come again after its
                `retry_after_ns`.
            StorageFull, DurabilityUnknown, EngineFailed, Draining: what the worker could not do.
        """
        if producer is not None or sequence is not None:
            receipts = self.push_many(
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
        return self._exchange.run_steps(steps)

    def push_many(
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
        """Store bundles in order, many at a time, and return their receipts in the same order.

        The iterable is read as fast as the worker takes bundles, so it may be a generator of any length. Several
        messages are under way at once, each with up to 768 bundles or 1 MiB, the first with up to 64. What a bundle's buffers hold
        must not change until this returns: bundles wait for others before they are encoded, and are encoded again after a loss.

        Returns:
            One receipt a bundle: an unchangeable list, whose items are made when they are looked at.

        Args:
            item_counts: one for each bundle.
            producer, sequence: as of `push`; the sequence is that of the first bundle, the others follow it.
            trace_context: as of `push`; all of them belong to it.
            timeout: the longest time in seconds without an acknowledgement.

        Raises:
            As `push`. A bundle that cannot be pushed raises once those before it are stored; after any other error some
            of the bundles may have been stored.
        """
        if producer is not None or sequence is not None:
            counted = with_counts(bundles, item_counts)
            shared = (self._producer, self._channels)
            return self._exchange.run_steps(
                pushing_keyed(*shared, counted, topic, key, producer, sequence, timeout, trace_context)
            )
        steps = self._producer.pushing(
            bundles,
            topic=topic,
            key=key,
            item_counts=item_counts,
            timeout_seconds=timeout,
            trace_context=trace_context,
        )
        return self._exchange.run_steps(steps)

    # --- subscribing ---------------------------------------------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["log"] = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["deliver"],
        **options: Unpack[SubscribeOptions],
    ) -> GapSubscription: ...

    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Gaps = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription | GapSubscription:
        """Attach to a durable subscriber on all workers, creating it if it is new.

        Args:
            gaps: what becomes of notices of bundles that will never come: `log` (default) logs and counts them and calls `on_gap`;
                `deliver` gives them out too, among the deliveries, where the bundles would have come.
            options: `start`, `order`, `backfill_ratio`, `prefetch`, `max_in_flight`, `max_in_flight_bytes`, `lease`, `max_deliveries`,
                `exhausted`, `dead_letter_topic`, `slots`, `columns`, `idle_timeout`, `on_bundle`, `on_gap`: see `SubscribeOptions`.

        Raises:
            InvalidId, UnknownTopic, UnknownSlot, UsageError: the call is wrong.
            WorkerUnavailable: a worker was away; the subscriber needs all of them.
            NotRunning: the node was stopped.
        """
        self._exchange.check_open()
        wanted = Wanted.parse(topic, subscriber, gaps, options)
        starts = self._exchange.run(self._requests.starting(topic, wanted.start))
        kind = GapSubscription if wanted.are_gaps_delivered else Subscription
        subscription = kind(NodeDirectory(self.run_dir), self._name, wanted, starts)
        try:
            subscription.register(self._timeout_seconds)
        except BaseException:
            subscription.abort()
            raise
        self._subscriptions.add(subscription)
        return subscription

    def hold(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        start: Start = "earliest",
        starts: Mapping[int, BundleId] | None = None,
        ttl: float = 0.0,
    ) -> Hold:
        """Attach to a durable subscriber that reads ranges and claims nothing: what it has not acknowledged stays stored.

        Args:
            start: of a new subscriber, as `subscribe` has it; `starts`: for some cores, the first bundle that it needs.
            ttl: seconds after which the subscriber is dropped when no hold is attached to it; 0: the topic's `orphan_ttl`.

        Raises:
            InvalidId, UsageError: the call is wrong. Workers are asked when they are first looked at.
        """
        self._exchange.check_open()
        return Hold(
            NodeDirectory(self.run_dir),
            self._name,
            topic,
            subscriber,
            start=start_text(start),
            starts={core: start_text(bundle_id) for core, bundle_id in (starts or {}).items()},
            ttl_ns=nanoseconds("ttl", ttl),
            timeout_seconds=self._timeout_seconds,
        )

    def unsubscribe(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        """Delete a subscriber with its progress, on all workers. What only it had not resolved may be deleted then.

        Returns:
            How many bundles it had not resolved: they are dropped.

        Raises:
            UnknownSubscriber: no worker knows it.
            UnknownTopic, WorkerUnavailable: as everywhere.
        """
        return self._exchange.run(self._requests.unregister(subscriber, topic))

    def drop_orphan(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        """As `unsubscribe`, but only where no consumer is attached to it.

        Raises:
            UsageError: a consumer is; on workers that had none it may be gone now, and begins there anew with the next one that attaches.
            UnknownSubscriber, UnknownTopic, WorkerUnavailable: as `unsubscribe`.
        """
        return self._exchange.run(self._requests.drop_orphan(subscriber, topic))

    def seek(self, subscriber: str, start: Start, *, topic: str = DEFAULT_TOPIC, dry_run: bool = False) -> SeekReport:
        """Move a known subscriber to another position, on all workers; durable on return.

        Everything before counts as done: what it was owed of it is dropped, and announced by gap notices (`dropped`). Everything from
        there on is owed, also what it had resolved before, as far as it is still stored. Claims end: what consumers hold may still be
        worked on, but their acknowledgements are refused.

        Args:
            start: as of `subscribe`.
            dry_run: only say what would be done.

        Raises:
            UnknownSubscriber: no worker knows it.
            UsageError: `start` is not possible.
            UnknownTopic, WorkerUnavailable: as everywhere; after the latter some workers may have done it: repeat it.
        """
        return self._exchange.run(self._requests.seek(subscriber, start, topic, is_dry=dry_run))

    def subscribers(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SubscriberInfo]]:
        """The durable subscribers of a topic and how far they are, by core. Raises as `flush`."""
        return self._exchange.run(self._requests.subscribers(topic))

    def ack_through(self, bundle_id: BundleId, *, subscriber: str) -> None:
        """Resolve, for one subscriber, everything of that bundle's core up to and including it; durable on return.

        Raises:
            UsageError: no such bundle was appended yet.
            UnknownSubscriber, UnknownTopic, WorkerUnavailable: as everywhere.
        """
        self._exchange.run(self._requests.ack_through(bundle_id, subscriber))

    # --- what is stored ------------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """The node's topics by name, with their slots, durability and incarnation.

        Raises:
            WorkerUnavailable: no worker answered in time.
        """
        return self._exchange.run(self._requests.topics())

    def flush(self, topic: str = DEFAULT_TOPIC) -> None:
        """Seal what is open on all workers: all that was acknowledged before can be delivered and read when this returns.

        Raises:
            UnknownTopic: no such topic.
            WorkerUnavailable: a worker did not answer in time.
            EngineFailed, Draining, StorageFull: what a worker could not do.
        """
        self._exchange.run(self._requests.flush(topic))

    def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """The sealed segments of a topic, oldest first, by the core that has them. Raises as `flush`."""
        return self._exchange.run(self._requests.segments(topic))

    def read_segment(self, core: int, topic: str, segment_seq: int) -> SegmentReader:
        """Map one sealed segment and read it without claiming anything. It stays readable when it is deleted meanwhile.

        Raises:
            QuiverError: the segment is not there (any more).
            FormatError: it cannot be read.
            UnknownTopic, WorkerUnavailable: as everywhere.
        """
        descriptor, size_bytes = self._exchange.run(self._requests.opened_segment(core, topic, segment_seq))
        return SegmentReader(map_segment(descriptor, size_bytes, segment_seq), segment_seq=segment_seq)

    def read(
        self,
        topic: str,
        core: int,
        start: BundleId | None = None,
        end: BundleId | None = None,
        *,
        slots: Iterable[str | int] | None = None,
        columns: Mapping[str | int, Iterable[str]] | None = None,
    ) -> Iterator[StoredBundle]:
        """Read stored bundles of one core in order, from `start` up to and not including `end`, without claiming anything.

        The same range gives the same bytes again, at least until every subscriber has resolved it. The segments are fixed and checked by
        this call, and mapped one after the other as the iterator comes to them.

        Args:
            start: None: the first that is stored.
            end: None: up to the last that is sealed.
            slots, columns: as of `subscribe`.

        Raises:
            NotStored: a bundle of the range is not stored any more, or not sealed yet.
            UnknownTopic, UnknownSlot, UsageError, WorkerUnavailable: as everywhere.
        """
        asked = Asked.parse(slots, columns)
        return self._read(self._exchange.run(self._requests.wanted_range(topic, core, start, end, asked)))

    def _read(self, wanted: WantedRange) -> Iterator[StoredBundle]:
        for part in wanted.parts:
            segment = self._exchange.run(self._requests.mapped_part(wanted, part))
            for index in range(part.first, part.end):
                yield StoredBundle(segment, index)

    # --- life ----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections and subscriptions. Idempotent."""
        subscriptions = list(self._subscriptions)
        try:
            for subscription in subscriptions:
                subscription.close()
        finally:
            # Also where one of them is interrupted: nobody closes this again.
            for subscription in subscriptions:
                subscription.abort()
            self._end()

    def _end(self) -> None:
        try:
            with self._exchange.lock:
                self._exchange.check_open()
                self._channels.close()
        except ClosedError:
            return
        self._exchange.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client run_dir={self.run_dir} {'closed' if self._exchange.is_closed else 'open'}>"

    # --- private -------------------------------------------------------------------------------------------------------------

    def _make_channel(self, core: int) -> PushChannel:
        return PushChannel(self._exchange, self._directory, core, self._name)
