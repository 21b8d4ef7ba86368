"""The client of one node: pushing, subscribing, and looking at what is stored.

Owner of the connections for pushes and requests; each subscription has its own. Safe to share between threads. A forked child may go on
using it: it connects anew, and the parent does not notice.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Iterable
from types import TracebackType

from quiver_actors.base.envelope import TraceContext
from quiver_actors.base.model import DEFAULT_TOPIC, Receipt
from quiver_actors.client.archived import ARCHIVE_TIMEOUT_SECONDS, ArchiveWaiting, check_until, flushed_through
from quiver_actors.client.client_base import ClientBase
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.keyed import pushing_keyed
from quiver_actors.client.known_topics import TopicInfos
from quiver_actors.client.node_view import NodeDirectory, WorkerDirectory
from quiver_actors.client.producer import with_counts
from quiver_actors.client.querying import QueryingClient
from quiver_actors.client.reading import ReadingClient
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.slots import Bundle
from quiver_actors.client.staging import StagingClient
from quiver_actors.client.subscriber_commands import SubscriberCommands
from quiver_actors.client.subscribing import SubscribingClient
from quiver_actors.client.subscription import AnySubscription
from quiver_actors.client.topic_commands import TopicCommands
from quiver_actors.errors import ClosedError

PUSH_TIMEOUT_SECONDS = 30.0


def connect(
    run_dir: str | os.PathLike[str] | None = None,
    *,
    timeout: float = 10.0,
    trusted_uid: int | None = None,
    verify_checksums: bool = True,
) -> Client:
    """Open a client of the node whose run directory this is.

    Workers are connected to when they are first needed, and again whenever a connection is lost.

    Args:
        run_dir: None: `$QUIVER_RUN_DIR`, else the user's default (`quiver_actors.base.config.default_run_dir`).
        timeout: seconds that calls other than `push` wait for a worker.
        trusted_uid: a user whose node may be used beside those of this user and root, as `$QUIVER_TRUSTED_UID`. It is needed where the
            run directory lies where others than root can make directories (docs/security.md).
        verify_checksums: prove each bundle against its checksum before anything of it is shown, to subscribers and to readers of ranges.
            False saves the reading of what nobody looks at; damage that comes to a file after the last scrub is delivered then.

    Raises:
        NotRunning: no node was started there.
        UntrustedNode: the run directory is of another user.
    """
    directory = NodeDirectory(None if run_dir is None else os.fspath(run_dir), trusted_uid)
    return Client(directory, timeout=timeout, verify_checksums=verify_checksums)


class Client(
    ClientBase[Exchange],
    SubscribingClient,
    StagingClient,
    ReadingClient,
    QueryingClient,
    ArchiveWaiting,
    SubscriberCommands,
    TopicCommands,
):
    """See `connect`. A context manager; `close` is idempotent."""

    def __init__(
        self, directory: WorkerDirectory, *, timeout: float, verify_checksums: bool = True, name: str | None = None
    ) -> None:
        super().__init__(directory, timeout=timeout, verify_checksums=verify_checksums, name=name)
        self._subscriptions: weakref.WeakSet[AnySubscription] = weakref.WeakSet()

    @property
    def _trusted_uid(self) -> int | None:
        return self._directory.trusted_uid

    @property
    def node(self) -> str:
        """Name of the node among several nodes; by default its host's name."""
        return self._directory.node_name or socket.gethostname()

    @property
    def data_dir(self) -> str:
        """Path of the node's data directory, as the node's view in the run directory names it."""
        return self._directory.data_dir

    def core_for(self, key: str | bytes | None = None) -> int:
        """Return the core that bundles of a key go to; without a key, the client's default core."""
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
            bundle: slot name or id to `RecordBatch` or `Table`; or one of those alone, for its only slot (0 if it declares none).
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
        lane = self._producer.lanes.get(topic)
        if lane is not None and key is None and trace_context is None:
            found = lane.push(bundle, item_count, timeout)
            if isinstance(found, Receipt):
                return found
            timeout = found
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

    # --- what is stored ------------------------------------------------------------------------------------------------------

    def topics(self) -> TopicInfos:
        """The node's topics by name, with their slots, durability and incarnation.

        Raises:
            WorkerUnavailable: no worker answered in time.
        """
        return self._exchange.run(self._requests.topics())

    def flush(
        self, topic: str = DEFAULT_TOPIC, *, until: str = "sealed", timeout: float = ARCHIVE_TIMEOUT_SECONDS
    ) -> None:
        """Seal what is open on all workers: all that was acknowledged before can be delivered and read when this returns.

        Args:
            until: `archived`: wait also until all of it is in the archive, as far as it still exists.
            timeout: how many seconds to wait for that.

        Raises:
            NotArchived: it is not in the archive in time.
            UnknownTopic: no such topic.
            WorkerUnavailable: a worker did not answer in time.
            EngineFailed, Draining, StorageFull: what a worker could not do.
        """
        if check_until(until):
            self._await_archived(self._exchange.run(flushed_through(self._requests, topic)), timeout)
        else:
            self._exchange.run(self._requests.flush(topic))

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
        self._archived.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- private -------------------------------------------------------------------------------------------------------------

    def _new_exchange(self) -> Exchange:
        return Exchange()
