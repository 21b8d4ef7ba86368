"""A durable subscriber's consumer: bundles from all workers of a topic, in one stream.

Guarantees:
- Every bundle is delivered at least once, to one of the consumers that share the subscriber id, or named in a gap notice.
- What this consumer holds goes back at once when it is closed or dies; when a worker dies, its bundles are delivered again.
- Any number of threads may call `get` and resolve deliveries.

A resolution leaves at once when none left in the last 20 ms; otherwise it is collected with others, which leave when 64 wait, when the
20 ms are over (noticed by a `get` that waits, else at the next call), when `get` returns nothing, and at `flush` and `close`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType

from quiver_actors.client.channel import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.delivery import Claim, Delivery, GapNotice
from quiver_actors.client.exchange import FOREVER_NS, Exchange, deadline_after
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.subscriber_channel import SubscriberChannel, Terms
from quiver_actors.errors import ClosedError, NotClaimed, QuiverError, UsageError, WorkerUnavailable
from quiver_actors.model import BundleId, check_id
from quiver_actors.protocol.messages import FlushProgress
from quiver_actors.units import MILLISECOND_NS

RESOLUTIONS_WAITING_MAX = 64
RESOLUTION_WAIT_NS = 20 * MILLISECOND_NS
STARTS = ("latest", "earliest")
CLOSE_TIMEOUT_SECONDS = 5.0

logger = logging.getLogger("quiver.client")


class Subscription:
    """Deliveries of one subscriber: iterate, or call `get`. Made by `Client.subscribe`.

    with client.subscribe("exporter") as deliveries:
        for delivery in deliveries:
            with delivery:
                write(delivery.batch)
    """

    def __init__(
        self,
        directory: NodeDirectory,
        client_name: str,
        subscriber: str,
        *,
        topic: str,
        start: str,
        prefetch: int,
        idle_timeout: float | None,
        on_gap: Callable[[GapNotice], None] | None,
    ) -> None:
        """Check the arguments; `register` does the rest."""
        check_id("topic", topic)
        if start not in STARTS:
            raise UsageError(f"start {start!r} is unknown: expected one of {', '.join(STARTS)}")
        if prefetch < 1:
            raise UsageError(f"prefetch {prefetch} is not possible: expected at least 1")
        self._terms = Terms(topic, check_id("subscriber", subscriber), prefetch)
        self._start = start
        self._idle_timeout = idle_timeout
        self._on_gap = on_gap
        self._directory = directory
        self._client_name = client_name
        self._exchange = Exchange()
        self._channels = ChannelSet(self._exchange, directory, self._make_channel)
        self._inbox: deque[Claim] = deque()
        self._gaps: deque[GapNotice] = deque()
        self._waiting_count = 0
        self._sent_at_ns = 0
        self._claims_lost = 0

    @property
    def topic(self) -> str:
        return self._terms.topic

    @property
    def subscriber(self) -> str:
        return self._terms.subscriber

    @property
    def claims_lost(self) -> int:
        """Resolutions that came too late, because the worker of the bundle was lost meanwhile: it is delivered again."""
        return self._claims_lost

    def register(self, timeout_seconds: float) -> None:
        """Attach to the subscriber on every worker, creating it where it is new; durable on return.

        Raises:
            UnknownTopic, QuiverError: a worker refused.
            WorkerUnavailable: a worker did not answer in time.
        """
        deadline_ns = deadline_after(timeout_seconds)
        with self._exchange:
            while True:
                now_ns = time.monotonic_ns()
                missing = [channel for channel in self._connected(now_ns) if not channel.is_registered]
                if not missing:
                    # Workers that the node gets later may hold bundles that were pushed since: those are wanted too.
                    self._start = "earliest"
                    return
                if now_ns >= deadline_ns:
                    raise unavailable_error(missing[0], timeout_seconds)
                self._exchange.wait(min(deadline_ns, self._wake_at_ns()))

    def get(self, timeout: float | None = None) -> Delivery | None:
        """The next bundle; None when none came within `timeout` seconds (None: wait for ever, 0: do not wait).

        While a worker is away the others are read on, and it is tried again and again.

        Raises:
            QuiverError: a worker refuses this subscriber now, such as UnknownSubscriber after it was unregistered.
            ClosedError: the subscription was closed.
        """
        deadline_ns = None
        while True:
            if self._gaps:
                self._tell_gaps()
            with self._exchange:
                now_ns = time.monotonic_ns()
                delivery = self._next(now_ns)
                if delivery is not None:
                    return delivery
                if deadline_ns is None:
                    deadline_ns = deadline_after(timeout)
                elif now_ns >= deadline_ns:
                    self._send_resolutions(now_ns)
                    return None
                self._connected(now_ns)
                self._exchange.wait(min(deadline_ns, self._wake_at_ns()))

    def flush(self, timeout: float = 10.0) -> None:
        """Return when everything resolved so far is durable.

        Raises:
            WorkerUnavailable: a worker was lost or did not answer: some of its bundles may be delivered again.
            EngineFailed, QuiverError: a worker could not make it durable.
        """
        with self._exchange:
            self._send_resolutions(time.monotonic_ns())
            calls = self._start_flush()
            self._await_flush(calls, timeout)
        raise_refusals(call for _, _, call in calls)

    def close(self) -> None:
        """Send and flush what was resolved, give everything else back, and end. Idempotent.

        A worker that does not answer within a few seconds is left alone.
        """
        if self._exchange.is_closed:
            return
        try:
            self.flush(CLOSE_TIMEOUT_SECONDS)
        except ClosedError:
            return
        except QuiverError as error:
            logger.warning("quiver.subscription.close subscriber=%s error=%s", self.subscriber, error)
        self.abort()

    def abort(self) -> None:
        """End at once: what was not resolved, and resolutions that wait to be sent, go back to be delivered again. Idempotent."""
        try:
            with self._exchange:
                self._channels.close()
                self._inbox.clear()
        except ClosedError:
            return
        self._exchange.close()

    def __iter__(self) -> Iterator[Delivery]:
        """Deliveries until the subscription is closed, or until none came for its `idle_timeout`."""
        while True:
            try:
                delivery = self.get(self._idle_timeout)
            except ClosedError:
                return
            if delivery is None:
                return
            yield delivery

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._exchange.is_closed else f"waiting={len(self._inbox)}"
        return f"<Subscription {self.subscriber} topic={self.topic} {state}>"

    # --- for deliveries -----------------------------------------------------------------------------------------------------

    def _resolve(self, delivery: Delivery, outcome: str, delay_ns: int) -> None:
        with self._exchange:
            if delivery._is_resolved:
                raise NotClaimed(f"{delivery!r} was resolved before: a delivery is resolved once")
            delivery._is_resolved = True
            claim = delivery._claim
            channel = self._channels.channel(claim.core)
            if claim.generation != channel.generation:
                self._claims_lost += 1
                return
            channel.resolve(claim, outcome, delay_ns)
            self._waiting_count += 1
            now_ns = time.monotonic_ns()
            if self._waiting_count >= RESOLUTIONS_WAITING_MAX or now_ns - self._sent_at_ns >= RESOLUTION_WAIT_NS:
                self._send_resolutions(now_ns)
            elif self._waiting_count == 1:
                # A thread that waits in `get` is to send it in time.
                self._exchange.notify()

    # --- private, with the lock held -----------------------------------------------------------------------------------------

    def _next(self, now_ns: int) -> Delivery | None:
        if self._waiting_count and now_ns - self._sent_at_ns >= RESOLUTION_WAIT_NS:
            self._send_resolutions(now_ns)
        inbox = self._inbox
        while inbox:
            claim = inbox.popleft()
            channel = self._channels.channel(claim.core)
            if claim.generation == channel.generation:
                channel.take()
                topic = self._terms.topic
                bundle_id = BundleId(topic, claim.core, claim.segment_seq, claim.bundle_index)
                return Delivery(self, channel.topics[topic], channel.segments[claim.segment_seq], bundle_id, claim)
        return None

    def _connected(self, now_ns: int) -> list[SubscriberChannel]:
        """A channel to every worker that the node has, connecting where it is due.

        Raises:
            QuiverError: a worker refused for good.
        """
        cores = self._directory.cores
        for channel in self._channels.opened():
            if channel.core not in cores:
                self._channels.drop(channel.core)
        channels = [self._channels.channel(core) for core in cores]
        for channel in channels:
            channel.connect_if_due(now_ns)
            channel.check_usable()
        return channels

    def _wake_at_ns(self) -> int:
        """When there is something to do even if nothing arrives: connect again, or send resolutions."""
        wake_at_ns = min((channel.retry_at_ns for channel in self._channels.opened()), default=FOREVER_NS)
        if self._waiting_count:
            wake_at_ns = min(wake_at_ns, self._sent_at_ns + RESOLUTION_WAIT_NS)
        return wake_at_ns

    def _send_resolutions(self, now_ns: int) -> None:
        if self._waiting_count:
            self._waiting_count = 0
            self._sent_at_ns = now_ns
            for channel in self._channels.opened():
                channel.send_resolutions()

    def _start_flush(self) -> list[tuple[SubscriberChannel, int, Call]]:
        topic, subscriber, _ = self._terms
        started = []
        for channel in self._channels.opened():
            if channel.is_registered:
                call = Call(lambda tag: FlushProgress(tag, topic, subscriber))
                channel.call(call)
                started.append((channel, channel.generation, call))
        return started

    def _await_flush(self, calls: list[tuple[SubscriberChannel, int, Call]], timeout_seconds: float) -> None:
        deadline_ns = deadline_after(timeout_seconds)
        try:
            for channel, generation, call in calls:
                while not call.is_done:
                    if channel.generation != generation:
                        raise WorkerUnavailable(
                            f"worker {channel.core} was lost before it had confirmed what was resolved: "
                            "some of its bundles may be delivered again"
                        )
                    if time.monotonic_ns() >= deadline_ns:
                        raise unavailable_error(channel, timeout_seconds)
                    self._exchange.wait(deadline_ns)
        finally:
            for channel, _, call in calls:
                channel.forget(call)

    def _make_channel(self, core: int) -> SubscriberChannel:
        return SubscriberChannel(
            self._exchange,
            self._directory,
            core,
            self._client_name,
            terms=self._terms,
            start=self._start,
            inbox=self._inbox,
            gaps=self._gaps,
        )

    def _tell_gaps(self) -> None:
        """Outside the lock: what the caller does with a notice is its own business."""
        while self._gaps and self._on_gap is not None:
            self._on_gap(self._gaps.popleft())
        self._gaps.clear()
