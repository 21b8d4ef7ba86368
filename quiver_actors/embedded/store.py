"""`quiver_actors.open`: a client whose node is in the same process."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from quiver_actors.base.config.reading import check_settings, resolve
from quiver_actors.base.envelope import TraceContext
from quiver_actors.base.model import DEFAULT_TOPIC, Receipt
from quiver_actors.base.protocol.topic_requests import Change, Create, Delete
from quiver_actors.client.archived import Wanted
from quiver_actors.client.client import PUSH_TIMEOUT_SECONDS, Client
from quiver_actors.client.exchange import Exchange, closed_error
from quiver_actors.client.grouping import Planned
from quiver_actors.client.producer import with_counts
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.slots import Bundle
from quiver_actors.client.subscribe_request import SubscribeRequest
from quiver_actors.client.subscription import AnySubscription
from quiver_actors.client.topic_commands import TopicCommands
from quiver_actors.embedded.directory import StoreDirectory
from quiver_actors.embedded.exchange import StoreExchange
from quiver_actors.embedded.lane import Lane
from quiver_actors.embedded.node import EmbeddedNode, with_one_core
from quiver_actors.embedded.opened import Opening
from quiver_actors.embedded.push_channel import DirectPushChannel
from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.shm.counters import RegionSnapshot

if TYPE_CHECKING:
    from quiver_actors.store.status.node_status import NodeStatus

S = TypeVar("S", bound=AnySubscription)


def open(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
    verify_checksums: bool = True,
) -> Store:
    """Open a data directory in this process: a store that does what a node with one core does, without a node.

    The directory is made where it is missing, and recovered where its last owner was killed. One process has it open at a time; a node can
    take it over later, and the other way round. Directories that a node with more cores has left are adopted.

    Args:
        path: the data directory.
        settings: by key, as in docs/configuration.md: `{"retention.size_cap": "1GiB", "topics": {"flights": {"slots": {"page": 0}}}}`.
        config: a TOML file with settings; those of `settings` win. The environment is not looked at.
        timeout: seconds that calls other than `push` wait for the disk.
        verify_checksums: as of `connect`.

    Raises:
        AlreadyRunning: a node or a store has it open; names the process.
        ConfigError: the path names no directory, a setting is wrong, or others could tamper with the directory.
        UnsupportedVersion, FormatError, DiskError, StorageFull: the directory cannot be opened; nothing is lost by that.
    """
    opening = opening_of(path, settings, config)
    try:
        return Store(opening.wait(), timeout=timeout, verify_checksums=verify_checksums)
    except BaseException:
        opening.give_up()
        raise


def opening_of(
    path: str | os.PathLike[str], settings: Mapping[str, Any] | None, config: str | os.PathLike[str] | None
) -> Opening:
    """Return what opens the directory alone. Arguments as of `open`. Raises ConfigError."""
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings {settings!r} are not possible: expected them by key, such as {{'retention.size_cap': '1GiB'}}"
        )
    resolved = with_one_core(
        resolve(None if config is None else os.fspath(config), None, {}, settings), os.fspath(path)
    )
    check_settings(resolved.settings)
    data_dir = os.path.abspath(path)
    return Opening(data_dir, lambda: EmbeddedNode(with_one_core(resolved, data_dir)))


class _User:
    """Stands for all who use a store: its object, and the subscriptions that it has made. The last one closes it."""


class Store(Client):
    """See `open`. A client with all calls of `Client`; closing it closes the data directory. A context manager."""

    _channel_kind = DirectPushChannel
    _reads_archive = False

    def __init__(self, node: EmbeddedNode, *, timeout: float, verify_checksums: bool = True) -> None:
        self._node = node
        self._lanes: dict[str, Lane] = {}
        super().__init__(StoreDirectory(node.drive, node.data_dir), timeout=timeout, verify_checksums=verify_checksums)
        self._user = _User()
        self._abandon = weakref.finalize(self._user, node.abandon)
        self._abandon.atexit = False

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
        """Store one bundle; it is as durable as the receipt says when this returns. See `Client.push`."""
        if producer is None and sequence is None and trace_context is None:
            lane = self._lane(topic)
            receipt = None if lane is None else lane.push(bundle, item_count, timeout)
            if receipt is not None:
                return receipt
        return super().push(
            bundle,
            topic=topic,
            key=key,
            item_count=item_count,
            producer=producer,
            sequence=sequence,
            trace_context=trace_context,
            timeout=timeout,
        )

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
        """Store bundles in order, and return their receipts in the same order. See `Client.push_many`."""
        is_plain = producer is None and sequence is None and trace_context is None
        if is_plain and item_counts is None and isinstance(bundles, list | tuple):
            lane = self._lane(topic)
            receipts = None if lane is None else lane.push_many(bundles, timeout)
            if receipts is not None:
                return receipts
        return super().push_many(
            bundles,
            topic=topic,
            key=key,
            item_counts=item_counts,
            producer=producer,
            sequence=sequence,
            trace_context=trace_context,
            timeout=timeout,
        )

    def _lane(self, topic: str) -> Lane | None:
        """A short way into the topic, if there is one now.

        Raises:
            ClosedError: the store was closed.
        """
        self._exchange.check_open()
        lane = self._lanes.get(topic)
        return self._lane_to(topic) if lane is None or not lane.is_open else lane

    def attach(self, kind: type[S], wanted: SubscribeRequest) -> S:
        """Open a subscription of some class, for which the store stays open. See `Client.attach`."""
        subscription = super().attach(kind, wanted)
        subscription.keep(self._user)
        return subscription

    def _lane_to(self, topic: str) -> Lane | None:
        """A short way into a topic that this store has pushed to, else None."""
        drive = self._node.drive
        with drive.lock:
            self._exchange.check_open()
            channel, worker = self._channels.channel(0), drive.worker
            host = worker.topic_host(topic) if worker is not None else None
            if worker is None or host is None or not channel.is_open or topic not in channel.topics:
                return None
            slots = channel.topics.slots_of(topic)

            def grouped(bundles: Sequence[Bundle]) -> Iterator[Planned]:
                return self._producer.grouped(topic, slots, with_counts(bundles, None))

            lane = Lane(drive, worker, host, slots, self._producer.streams(topic), grouped)
            self._lanes[topic] = lane
            return lane

    def close(self) -> None:
        """Seal what is open, make all progress durable, and give the directory back. Idempotent."""
        try:
            super().close()
        finally:
            self._node.close()
            self._abandon.detach()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

    def __repr__(self) -> str:
        return f"<Store {self._node.data_dir} {'closed' if self._exchange.is_closed else 'open'}>"

    def figures(self) -> list[RegionSnapshot]:
        """The figures of the store, as a node's counters page has them: the first region is the supervisor's, the second the worker's."""
        self._exchange.check_open()
        return self._node.figures()

    def status(self) -> NodeStatus:
        """Look at the store: the document of `quiver status --json` (docs/cli.md), in which the store is a node with one worker.

        Raises:
            ClosedError: the store was closed.
        """
        return _status(self._node)

    def _await_archived(self, wanted: list[Wanted], timeout_seconds: float) -> None:
        refuse_archive()

    # --- what differs from a client of a node ----------------------------------------------------------------------------------

    def _new_exchange(self) -> Exchange:
        return StoreExchange(self._node.drive)

    def _change_topics(self, request: Create | Change | Delete, gone: str = "") -> None:
        self._exchange.check_open()
        _change_topics(self._node, self._exchange, request, gone, self._timeout_seconds)


class StoreTopicCommands(TopicCommands):
    """The calls about topics of a store, for any thread."""

    def __init__(self, node: EmbeddedNode, timeout_seconds: float) -> None:
        self._node = node
        self._timeout_seconds = timeout_seconds

    def status(self) -> NodeStatus:
        """See `Store.status`."""
        return _status(self._node)

    def _change_topics(self, request: Create | Change | Delete, gone: str = "") -> None:
        _change_topics(self._node, StoreExchange(self._node.drive), request, gone, self._timeout_seconds)


def _status(node: EmbeddedNode) -> NodeStatus:
    _check_open(node)
    return node.status()


def _check_open(node: EmbeddedNode) -> None:
    if node.is_closed:
        raise closed_error()


def _change_topics(
    node: EmbeddedNode, exchange: Exchange, request: Create | Change | Delete, gone: str, timeout_seconds: float
) -> None:
    _check_open(node)
    reply = node.change_topics(request)
    exchange.run(node.applying(reply.version, gone, timeout_seconds))


def refuse_archive() -> NoReturn:
    """Raise UsageError: such a store has no archiver."""
    raise UsageError(
        "a store in this process has no archiver: nothing of it comes into an archive; run a node (`quiver up`) with archive.url"
    )


def refuse_pickle() -> NoReturn:
    """Raise UsageError, which says what several processes use."""
    raise UsageError(
        "an open store cannot be pickled: one process has its directory open. For several processes start a node (`quiver up`), and "
        "use quiver_actors.connect() in each of them"
    )
