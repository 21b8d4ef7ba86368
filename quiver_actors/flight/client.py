"""The client of a node on another host: the methods of the local `Client` that make sense over a network, through the node's Flight server.

Owner of one connection, shared by its subscriptions. Safe to share between threads; a forked child connects anew.

Guarantee: a push that was not acknowledged says which of the two is so: nothing was stored, or it may be. What may be stored is pushed
again by this client only where it cannot be stored twice, which is with `producer` and `sequence`.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NoReturn, Unpack

import msgspec

from quiver_actors.base.envelope import TraceContext, parse_trace
from quiver_actors.base.locks import new_lock
from quiver_actors.base.model import DEFAULT_TOPIC, BundleId, Receipt
from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo
from quiver_actors.client import Client, Receipts
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.known_topics import TopicInfos
from quiver_actors.client.producer import with_counts
from quiver_actors.client.push_options import PushOptions
from quiver_actors.client.ranges import check_bundle_id
from quiver_actors.client.slots import Bundle
from quiver_actors.client.subscribe_request import Gaps, SubscribeOptions
from quiver_actors.errors import ConfigError, ProtocolError, UsageError
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FlightConnection
from quiver_actors.flight.contract import Acknowledge, Contents, Done, Look
from quiver_actors.flight.not_remote import not_there
from quiver_actors.flight.received_delivery import ReceivedDelivery
from quiver_actors.flight.remote_delivery import RemoteDelivery
from quiver_actors.flight.remote_push import RemotePush
from quiver_actors.flight.remote_reading import RemoteReading
from quiver_actors.flight.remote_subscription import RemoteSubscription
from quiver_actors.flight.token_file import read_token
from quiver_actors.store.status.node_status import NodeStatus

PUSH_TIMEOUT_SECONDS = 30.0


def connect_remote(
    url: str,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls_roots: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
) -> RemoteClient:
    """Open a client of a node on another host, through its `quiver serve`.

    Args:
        url: `grpc+tls://HOST:PORT`, or `grpc://HOST:PORT` without TLS.
        token: what the server knows this client by; None: the content of `token_file`, else `$QUIVER_TOKEN`, else none.
        token_file: a file that holds the token; only this user or root may be able to change or read it.
        tls_roots: PEM file of the certificates to trust; None: those of the system.
        timeout: seconds that calls other than `push` and `get` wait for the server, also while it is being started anew.

    Raises:
        WorkerUnavailable: the server cannot be reached.
        NotAllowed: it does not take the token.
        ProtocolError: it speaks another version.
        ConfigError, DiskError: a file is not what it should be.
        UsageError: the call is wrong.
    """
    nanoseconds("timeout", timeout)
    if token is not None and token_file is not None:
        raise ConfigError("token and token_file were both given: give one of them")
    if token_file is not None:
        token = read_token(os.fspath(token_file))
    roots = None if tls_roots is None else os.fspath(tls_roots)
    connection = FlightConnection(
        url, url, token=token or os.environ.get("QUIVER_TOKEN"), tls_roots=roots, advice="tls_roots="
    )
    try:
        return RemoteClient(connection, timeout)
    except BaseException:
        connection.close()
        raise


class RemoteClient(RemoteReading):
    """See `connect_remote`. A context manager; `close` is idempotent. A method of `Client` that is not here refuses by its name."""

    def __init__(self, connection: FlightConnection, timeout: float) -> None:
        """Greets the server. Raises as `connect_remote`."""
        super().__init__(connection, timeout)
        self._key = secrets.token_bytes(8)
        """Key of pushes that name none: they stay in order, on one core of the node, and clients spread over the cores."""
        self._known: dict[str, TopicInfo] = {}
        """Topics that were pushed to, as the server described them."""
        self._subscriptions: weakref.WeakSet[RemoteSubscription] = weakref.WeakSet()
        self._lock = new_lock()
        self._node = self._greet(is_retried=False).node

    @property
    def url(self) -> str:
        """The place of the server."""
        return self._connection.location

    @property
    def node(self) -> str:
        """Name of the node among several nodes."""
        return self._node

    def push(self, bundle: Bundle, *, item_count: int | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Store one bundle; it is as durable as the receipt says when this returns. Arguments are those of `Client.push`.

        Where the server goes away before it has taken the bundle, it is pushed again until the timeout is over. Where the server goes away
        before it has answered, a bundle with `producer` and `sequence` is pushed again, and is not stored twice; any other one raises
        `DurabilityUnknown`.

        Raises:
            DurabilityUnknown: the answer was lost; the bundle may be stored.
            PushTimeout: no answer came in time; the bundle may be stored.
            WorkerUnavailable: the server could not be reached; nothing was stored.
            NotAllowed: the token may not push to the topic.
            As `Client.push`: what the node says.
        """
        return self.push_many((bundle,), item_counts=(item_count,), **options)[0]

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
        """Store bundles in order, up to 768 or 4 MiB in one message, and return their receipts. Arguments are those of `Client.push_many`.

        Raises:
            As `push`. The bundles of earlier messages are stored then.
        """
        trace = parse_trace(trace_context)
        push = RemotePush(self._connection, self._terms(topic, key, producer, sequence), timeout, self._known)
        return push.run(with_counts(bundles, item_counts), trace)

    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Gaps = "log",
        kind: type[ReceivedDelivery[Any]] = RemoteDelivery,
        **options: Unpack[SubscribeOptions],
    ) -> RemoteSubscription:
        """Attach to a durable subscriber, creating it if it is new. Arguments are those of `Client.subscribe`;
        `kind` is the class of the deliveries, which is another one for asyncio.

        The token needs the role `admin` for the topic: an acknowledgement may let data be deleted.

        Raises:
            InvalidId, UnknownTopic, UnknownSlot, UsageError: the call is wrong.
            NotAllowed: the token may not subscribe to the topic.
            WorkerUnavailable: the server or a worker cannot be reached.
        """
        made = RemoteSubscription(self._connection, subscriber, topic, gaps, options, self._timeout_seconds, kind)
        with self._lock:
            self._subscriptions.add(made)
        return made

    def topics(self) -> TopicInfos:
        """The node's topics that the token names, by name. Raises WorkerUnavailable."""
        return TopicInfos({info.name: info for info in self._greet(is_retried=True).topics})

    def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """The sealed segments of a topic by core, oldest first. Raises as `Client.segments`."""
        found = self._connection.ask(Look(topic), Contents, self._timeout_seconds, is_retried=True)
        return {core.core: core.segments for core in found.cores}

    def subscribers(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SubscriberInfo]]:
        """The durable subscribers of a topic and how they stand, by core. Raises as `Client.subscribers`."""
        return self._connection.ask(
            rc.AskSubscribers(topic), rc.Subscribers, self._timeout_seconds, is_retried=True
        ).by_core

    def status(self) -> NodeStatus:
        """How the node is: the document of `quiver status --json`, without what is about topics that the token does not name.

        Raises:
            NotAllowed: the token has the role `write` alone.
            NotRunning: the node has ended.
            WorkerUnavailable: the server cannot be reached.
        """
        return NodeStatus(
            self._connection.ask(rc.AskStatus(), rc.Status, self._timeout_seconds, is_retried=True).document
        )

    def ack_through(self, bundle_id: BundleId, *, subscriber: str) -> None:
        """Resolve everything of the core up to and including a bundle for a subscriber. Raises as `Client.ack_through`."""
        check_bundle_id(bundle_id)
        request = Acknowledge(bundle_id.topic, subscriber, *bundle_id[1:])
        self._connection.ask(request, Done, self._timeout_seconds, is_retried=True)

    def flush(self, topic: str = DEFAULT_TOPIC) -> None:
        """Seal what is open on all workers of the node. Raises as `Client.flush`."""
        self._connection.ask(Look(topic, flush=True), Contents, self._timeout_seconds, is_retried=True)

    def close(self) -> None:
        """Close all subscriptions and datasets, and the connection. Idempotent."""
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()
        self._datasets.close()
        self._connection.close()

    def __getattr__(self, name: str) -> NoReturn:
        raise not_there("remote client", Client, name)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"a remote client cannot be pickled: it owns a connection. Call quiver_actors.connect_remote({self.url!r}) in the other process"
        )

    def __enter__(self) -> RemoteClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteClient {self.url}>"

    def _greet(self, *, is_retried: bool) -> rc.Greeting:
        request = rc.Greet(rc.REMOTE_VERSION)
        try:
            found = self._connection.ask(request, rc.Greeting, self._timeout_seconds, is_retried=is_retried)
        except ProtocolError as error:
            raise ProtocolError(
                f"{error}; this client speaks version {rc.REMOTE_VERSION} of the remote protocol"
            ) from error
        if found.version != rc.REMOTE_VERSION:
            raise ProtocolError(
                f"{self.url} speaks version {found.version} of the remote protocol, this client version {rc.REMOTE_VERSION}: install "
                "the same version of quiver-actors on both hosts"
            )
        return found

    def _terms(self, topic: str, key: str | bytes | None, producer: str | None, sequence: int | None) -> rc.PushTerms:
        terms = rc.PushTerms(rc.REMOTE_VERSION, topic, 0, producer=producer, sequence=sequence)
        if producer is None and sequence is None:
            found = self._key if key is None else key.encode() if isinstance(key, str) else key
            return msgspec.structs.replace(terms, key=found)
        if producer is None or sequence is None or key is not None:
            raise UsageError(
                "an idempotent push needs both producer and sequence, and goes where its producer's bundles go: no key"
            )
        return terms
