"""A durable subscriber's consumer: bundles from all workers of a topic, in one stream.

Guarantees:
- Every bundle is delivered at least once, to one of the consumers that share the subscriber id, or named in a gap notice.
- What this consumer holds goes back at once when it is closed or dies, after its lease when it hangs; when a worker dies, its bundles are
  delivered again.
- Any number of threads may call `get` and resolve deliveries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.client.batches import ROWS_MAX_DEFAULT, WAIT_SECONDS_DEFAULT, DeliveryBatch
from quiver_actors.client.consumer import Consumer
from quiver_actors.client.consuming import called_with_each, check_bundles_max, events_of, gathered
from quiver_actors.client.delivery import Delivery
from quiver_actors.client.exchange import Exchange, deadline_after
from quiver_actors.client.gaps import GapNotice, WaitingGap
from quiver_actors.client.gathering import Gathering, Part
from quiver_actors.client.grants import Portion
from quiver_actors.client.leases import extending
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.questions import oldest_of, pending_of
from quiver_actors.client.refused import RefusedResolution
from quiver_actors.client.subscribe_request import StartPoints, SubscribeRequest
from quiver_actors.client.subscription_base import SubscriptionBase
from quiver_actors.client.told_gaps import ToldGaps
from quiver_actors.errors import ClosedError, QuiverError

CLOSE_TIMEOUT_SECONDS = 5.0

E = TypeVar("E")

logger = logging.getLogger("quiver.client")


class BaseSubscription(SubscriptionBase[Delivery, Exchange, E]):
    """The common base of `Subscription` and `GapSubscription`; `E` is the type of what `get` returns."""

    def __init__(
        self,
        exchange: Exchange,
        directory: WorkerDirectory,
        client_name: str,
        wanted: SubscribeRequest,
        starts: StartPoints,
    ) -> None:
        """Nothing is connected yet; `register` does that."""
        consumer: Consumer[Delivery, Exchange] = Consumer(exchange, directory, client_name, wanted, starts, Delivery)
        super().__init__(exchange, consumer, wanted, starts.not_delivered)

    def register(self, timeout_seconds: float) -> None:
        """Attach to the subscriber on every worker, creating it where it is new; durable on return.

        Raises:
            UnknownTopic, UnknownSlot, QuiverError: a worker refused.
            WorkerUnavailable: a worker did not answer in time.
        """
        self._exchange.run(self._consumer.connections.registering(timeout_seconds))

    # --- bundles -------------------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> E | None:
        """The next bundle; None when none came within `timeout` seconds (None: wait for ever, 0: do not wait).

        While a worker is away the others are read on, and it is tried again and again.

        Raises:
            QuiverError: a worker refuses this subscriber now, such as UnknownSubscriber after it was unregistered.
            ClosedError: the subscription was closed.
        """
        deadline_ns, exchange = 0, self._exchange
        while True:
            with exchange.lock:
                if exchange.is_closed:
                    exchange.check_open()
                try:
                    item = self._consumer.take(time.monotonic_ns())
                except BaseException:
                    exchange.break_off()
                    raise
            if item is None:
                deadline_ns = deadline_ns or deadline_after(timeout)
                item = self._exchange.run(self._consumer.taking(deadline_ns))
            if item is None:
                return None
            event = self._tell(item) if isinstance(item, WaitingGap) else self._event(item)
            if event is not None:
                return event

    def get_many(self, bundles_max: int, timeout: float | None = None) -> list[E]:
        """The next bundles, at least one and at most `bundles_max`, as they are there; empty when none came in time.

        With gaps="deliver" a notice ends the list early, so that it stays in its place. Raises as `get`.
        """
        check_bundles_max(bundles_max)
        first = self.get(timeout)
        if first is None:
            return []
        if isinstance(first, GapNotice):
            return [first]
        with self._exchange.lock:
            self._exchange.check_open()
            try:
                more = self._consumer.take_more(bundles_max - 1)
            except BaseException:
                self._exchange.break_off()
                raise
        return [first, *map(self._event, more)]

    def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> Delivery:
        """Claim one bundle by its id, also one that is deferred or blocked: for a caller with a retry schedule of its own.

        Raises:
            AlreadyResolved: it is done with, or gone.
            NotClaimed: a consumer holds it, or it is not sealed yet.
            UsageError, WorkerUnavailable: see `quiver_actors.errors`.
        """
        return self._exchange.run(self._consumer.claiming(bundle_id, timeout))

    def run(self) -> int:
        """Call `on_bundle` with each delivery, until the subscription is closed (by another thread, or by `on_bundle`) or nothing came for
        its `idle_timeout`; returns how many there were.

        Each is acknowledged when `on_bundle` returns, unless that resolved it; if it raises, the bundle is deferred and the error goes on.
        """
        return called_with_each(self, self._wanted.on_bundle, lambda: self._exchange.is_closed)

    # --- resolving -----------------------------------------------------------------------------------------------------------

    def flush(self, timeout: float = 10.0) -> list[RefusedResolution]:
        """Return when everything acknowledged or rejected so far is durable, also over connections that were lost since: the worker is
        waited for, and asked.

        Returns:
            What workers refused because the claim was gone when it came (`refused_count` in all), each once: those bundles are, or were,
            somebody else's to resolve. Empty when everything counts.

        Raises:
            WorkerUnavailable: some of it was not durable when its worker was lost, and is delivered again; or a worker is lost or does not
                answer, so that it may be. What is delivered again is told once.
            EngineFailed, QuiverError: a worker could not make it durable.
        """
        return self._exchange.run(self._consumer.resolutions.flushing(timeout))

    def ack_through(self, bundle_id: BundleId, timeout: float = 10.0) -> None:
        """Resolve everything of that bundle's core up to and including it, claimed or not; durable on return.

        Raises:
            UsageError: no such bundle was appended yet.
            WorkerUnavailable: see `quiver_actors.errors`.
        """
        self._exchange.run(self._consumer.requests.acking_through(bundle_id, timeout))

    def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> list[Delivery]:
        """Begin the leases of deliveries anew, and of those that were claimed with them.

        Returns:
            Those that are not held any more: resolved, or lost because the lease was over or the worker went away.

        Raises:
            WorkerUnavailable: a worker did not answer.
        """
        return self._exchange.run(extending(deliveries, timeout))

    # --- questions -----------------------------------------------------------------------------------------------------------

    def pending_count(self, timeout: float = 10.0) -> int:
        """Bundles on all workers that the subscriber has not resolved: waiting, claimed by any consumer, deferred, blocked or unsealed."""
        return pending_of(self._exchange.run(self._consumer.requests.asking(timeout)))

    def oldest_incomplete(self, timeout: float = 10.0) -> dict[int, BundleId]:
        """The oldest bundle that is not resolved, of each core that has one."""
        return oldest_of(self._exchange.run(self._consumer.requests.asking(timeout)), self.topic)

    def all_drained(self, timeout: float = 10.0) -> bool:
        """Whether nothing is owed on any worker: no bundle, sealed or not, and no gap notice."""
        return all(info.drained for info in self._exchange.run(self._consumer.requests.asking(timeout)).values())

    def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        """Unresolved bundles from `start` up to and not including `end`, both of one core."""
        return self._exchange.run(self._consumer.requests.asking_range(start, end, timeout))

    # --- life ----------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send and flush what was resolved, give everything else back, and end. Idempotent.

        A worker that does not answer within a few seconds, or is away, is left alone: whoever must know calls `flush` before.
        """
        try:
            self._exchange.run(self._consumer.closing(CLOSE_TIMEOUT_SECONDS))
        except ClosedError:
            return
        except QuiverError as error:
            logger.warning("quiver.subscription.close subscriber=%s error=%s", self.subscriber, error)
        finally:
            # Also where it is interrupted: nobody closes it again, and what it holds would stay with it.
            self.abort()

    def abort(self) -> None:
        """End at once: what was not resolved, and resolutions that wait to be sent, go back to be delivered again. Idempotent."""
        try:
            with self._exchange.lock:
                self._exchange.check_open()
                self._consumer.end()
        except ClosedError:
            return
        self._exchange.close()

    def __iter__(self) -> Iterator[E]:
        """Yield what `get` returns, until the subscription is closed, or until nothing came for its `idle_timeout`."""
        return events_of(self.get, self._wanted.idle_timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gathered(self, max_rows: int, max_wait: float) -> Iterator[DeliveryBatch | GapNotice]:
        gathering = Gathering(max_rows, max_wait, self._wanted.idle_timeout, self._consumer.make)
        told = ToldGaps()
        take_back = self._consumer.take_back
        return gathered(
            gathering, partial(self._portion, told), self._batch, lambda left: take_back(told.with_gaps(left))
        )

    def _batch(self, parts: Sequence[Part], tables: Mapping[int, pa.Table]) -> DeliveryBatch:
        self._consumer.tell_taken((part.portion.parcel, part.portion.indexes) for part in parts)
        return DeliveryBatch(self._consumer.resolutions, parts, tables)

    def _portion(self, told: ToldGaps, bundles_max: int, timeout: float | None) -> Portion | GapNotice | None:
        """The next bundles, all of one parcel, or the next notice that `get` would return; None when nothing came in time. Raises as
        `get`."""
        deadline_ns, consumer = deadline_after(timeout), self._consumer
        while True:
            item = self._exchange.run(consumer.taking_portion(bundles_max, deadline_ns))
            if not isinstance(item, WaitingGap):
                return item
            notice = self._tell(item)
            if isinstance(notice, GapNotice):
                told.last = item
                return notice

    def _tell(self, gap: WaitingGap) -> E | None:
        """Pass a notice to `on_gap`, outside the lock, since the caller may do anything there; then confirm the notice."""
        notice = gap.notice
        logger.warning("quiver.subscription.gap subscriber=%s %s", self.subscriber, notice)
        if self._wanted.on_gap is not None:
            try:
                self._wanted.on_gap(notice)
            except BaseException:
                self._consumer.put_back(gap)
                raise
        self._consumer.confirm_gap(gap)
        return self._gap_event(notice)


class Subscription(BaseSubscription[Delivery]):
    """Deliveries of one subscriber: iterate, or call `get`. Made by `Client.subscribe`.

    with client.subscribe("exporter") as deliveries:
        for delivery in deliveries:
            with delivery:
                write(delivery.batch)
    """

    def batches(
        self, max_rows: int = ROWS_MAX_DEFAULT, max_wait: float = WAIT_SECONDS_DEFAULT
    ) -> Iterator[DeliveryBatch]:
        """Yield many bundles at a time, with their rows as one Arrow table for each slot, until the subscription is closed or nothing
        came for its `idle_timeout`.

        A damaged bundle is left out; a gap notice comes in its place. Bundles whose schemas no common one fits are in different batches.

        Args:
            max_rows: most rows of a batch, of all slots together; a bundle that has more is a batch of its own.
            max_wait: seconds from the first bundle of a batch until it is handed over, full or not.

        Raises:
            UsageError: `max_rows` is less than 1, or `max_wait` is no number of seconds.
            QuiverError: as `get`.
        """
        return (batch for batch in self._gathered(max_rows, max_wait) if isinstance(batch, DeliveryBatch))

    def __enter__(self) -> Subscription:
        return self

    def _event(self, delivery: Delivery) -> Delivery:
        return delivery


class GapSubscription(BaseSubscription["Delivery | GapNotice"]):
    """A subscription that also returns gap notices, where the lost bundles would have come: `subscribe(..., gaps="deliver")`."""

    def batches(
        self, max_rows: int = ROWS_MAX_DEFAULT, max_wait: float = WAIT_SECONDS_DEFAULT
    ) -> Iterator[DeliveryBatch | GapNotice]:
        """Yield what `Subscription.batches` yields, and each gap notice between the batches where the lost bundles would have come."""
        return self._gathered(max_rows, max_wait)

    def __enter__(self) -> GapSubscription:
        return self

    def _event(self, delivery: Delivery) -> Delivery | GapNotice:
        return delivery

    def _gap_event(self, notice: GapNotice) -> Delivery | GapNotice | None:
        return notice


AnySubscription = BaseSubscription[Any]
