"""A durable subscriber's consumer in asyncio: bundles from all workers of a topic, in one stream. Any number of tasks may share it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from quiver_actors.aio.consuming import called, called_with_each, events_of, gathered
from quiver_actors.aio.delivery import Delivery, DeliveryBatch
from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.aio.fetching import fetch_bundles, fetch_deliveries
from quiver_actors.base.model import BundleId
from quiver_actors.client.batches import ROWS_MAX_DEFAULT, WAIT_SECONDS_DEFAULT
from quiver_actors.client.consumer import Consumer
from quiver_actors.client.consuming import check_bundles_max
from quiver_actors.client.exchange import deadline_after
from quiver_actors.client.gaps import GapNotice, WaitingGap
from quiver_actors.client.gathering import Gathering, Part
from quiver_actors.client.grants import Portion
from quiver_actors.client.leases import extending
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.questions import oldest_of, pending_of
from quiver_actors.client.refused import RefusedResolution
from quiver_actors.client.subscribe_request import StartPoints, SubscribeRequest
from quiver_actors.client.subscription import CLOSE_TIMEOUT_SECONDS
from quiver_actors.client.subscription_base import SubscriptionBase
from quiver_actors.client.told_gaps import ToldGaps
from quiver_actors.errors import ClosedError, QuiverError

E = TypeVar("E")

logger = logging.getLogger("quiver.client")


class BaseSubscription(SubscriptionBase[Delivery, LoopExchange, E]):
    """The common base of `Subscription` and `GapSubscription`. Each method does what its namesake of `quiver_actors.client` does."""

    def __init__(
        self,
        exchange: LoopExchange,
        directory: WorkerDirectory,
        client_name: str,
        wanted: SubscribeRequest,
        starts: StartPoints,
    ) -> None:
        """Nothing is connected yet; `register` does that."""
        consumer: Consumer[Delivery, LoopExchange] = Consumer(
            exchange, directory, client_name, wanted, starts, Delivery
        )
        super().__init__(exchange, consumer, wanted, starts.not_delivered)
        self._fetched_later: deque[Delivery] = deque()
        """Archived bundles that were taken and not handed out, as the call was cancelled that fetched them."""

    async def register(self, timeout_seconds: float) -> None:
        """Attach to the subscriber on every worker, and create it where it is new; durable on return."""
        await self._exchange.complete(self._consumer.connections.registering(timeout_seconds))

    # --- bundles -------------------------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> E | None:
        """Return the next bundle, or None if none came within `timeout` seconds (None: wait for ever, 0: do not wait).

        Raises:
            ClosedError: the subscription was closed.
            QuiverError: a worker refuses this subscriber now.
        """
        deadline_ns = deadline_after(timeout)
        while True:
            with self._exchange.lock:
                self._exchange.check_open()
                later = self._fetched_later
                item = later.popleft() if later else self._consumer.take(time.monotonic_ns())
            if item is None:
                item = await self._exchange.complete(self._consumer.taking(deadline_ns))
            if item is None:
                return None
            if isinstance(item, WaitingGap):
                event = await self._tell(item)
            else:
                if item.is_archived:
                    await self._fetch([item])
                event = self._event(item)
            if event is not None:
                return event

    async def get_many(self, bundles_max: int, timeout: float | None = None) -> list[E]:
        """Return 1 to `bundles_max` bundles that are there, or an empty list if none came in time.

        With gaps="deliver" a gap notice comes as a list of its own or ends the list.
        """
        check_bundles_max(bundles_max)
        first = await self.get(timeout)
        if not isinstance(first, Delivery):
            return [] if first is None else [first]
        with self._exchange.lock:
            self._exchange.check_open()
            later = self._fetched_later
            more = [later.popleft() for _ in range(min(len(later), bundles_max - 1))]
            more += self._consumer.take_more(bundles_max - 1 - len(more)) if not later else []
        if any(delivery.is_archived for delivery in more):
            # The first one, too, is the next again if this is cancelled.
            await self._fetch([first, *more])
        return [first, *map(self._event, more)]

    async def _fetch(self, deliveries: Sequence[Delivery]) -> None:
        """Fetch archived bundles before they are handed out. If that is cancelled, they are the next ones again."""
        try:
            await fetch_deliveries(deliveries)
        except BaseException:
            self._fetched_later.extendleft(reversed(deliveries))
            raise

    async def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> Delivery:
        """Claim one bundle by its id, also a deferred or blocked one.

        Raises:
            AlreadyResolved: the bundle is resolved, or gone.
            NotClaimed: another consumer holds it, or it is not sealed yet.
        """
        delivery = await self._exchange.complete(self._consumer.claiming(bundle_id, timeout))
        try:
            await fetch_deliveries([delivery])
        except BaseException:
            # Cancelled: nobody has it, and it would be held until its lease is over.
            with contextlib.suppress(ClosedError):
                delivery.defer()
            raise
        return delivery

    async def run(self) -> int:
        """Call `on_bundle`, a function or a coroutine function, with one delivery after the other."""
        return await called_with_each(self, self._wanted.on_bundle, lambda: self._exchange.is_closed)

    # --- resolving -----------------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float = 10.0) -> list[RefusedResolution]:
        """Return when everything acknowledged or rejected so far is durable, also over connections lost since then.

        Returns the resolutions that workers refused because the claim had ended; an empty list means that all count.
        """
        return await self._exchange.complete(self._consumer.resolutions.flushing(timeout))

    async def ack_through(self, bundle_id: BundleId, timeout: float = 10.0) -> None:
        """Resolve every bundle of the core up to and including this one, claimed or not; durable on return."""
        await self._exchange.complete(self._consumer.requests.acking_through(bundle_id, timeout))

    async def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> list[Delivery]:
        """Begin the leases of deliveries again, and return those that are not held any more."""
        return await self._exchange.complete(extending(deliveries, timeout))

    # --- questions -----------------------------------------------------------------------------------------------------------

    async def pending_count(self, timeout: float = 10.0) -> int:
        """Return how many bundles on all workers the subscriber has not resolved."""
        return pending_of(await self._exchange.complete(self._consumer.requests.asking(timeout)))

    async def oldest_incomplete(self, timeout: float = 10.0) -> dict[int, BundleId]:
        """Return the oldest bundle that is not resolved, by core; a core without one is left out."""
        return oldest_of(await self._exchange.complete(self._consumer.requests.asking(timeout)), self.topic)

    async def all_drained(self, timeout: float = 10.0) -> bool:
        """Return whether no worker owes the subscriber a bundle, sealed or not, or a gap notice."""
        infos = await self._exchange.complete(self._consumer.requests.asking(timeout))
        return all(info.drained for info in infos.values())

    async def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        """Return how many bundles from `start` up to, not including, `end` are not resolved; both are of one core."""
        return await self._exchange.complete(self._consumer.requests.asking_range(start, end, timeout))

    # --- life ----------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send and flush what was resolved, give the rest back, and end. Idempotent.

        A worker that does not answer within a few seconds is left alone, with a warning in the log; call `flush` before to be sure.
        """
        try:
            await self._exchange.complete(self._consumer.closing(CLOSE_TIMEOUT_SECONDS))
        except ClosedError:
            return
        except QuiverError as error:
            logger.warning("quiver.subscription.close subscriber=%s error=%s", self.subscriber, error)
        finally:
            self.abort()

    def abort(self) -> None:
        """End at once: bundles that were not resolved, and resolutions that were not sent, are delivered again. Idempotent."""
        if not self._exchange.is_closed:
            with self._exchange.lock:
                self._consumer.end()
            self._exchange.close()

    def __aiter__(self) -> AsyncIterator[E]:
        return events_of(self.get, self._wanted.idle_timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _gathered(self, max_rows: int, max_wait: float) -> AsyncIterator[DeliveryBatch | GapNotice]:
        gathering = Gathering(max_rows, max_wait, self._wanted.idle_timeout, self._consumer.make)
        told = ToldGaps()
        take_back = self._consumer.take_back
        return gathered(
            gathering, partial(self._portion, told), self._batch, lambda left: take_back(told.with_gaps(left))
        )

    def _batch(self, parts: Sequence[Part], tables: Mapping[int, pa.Table]) -> DeliveryBatch:
        self._consumer.tell_taken((part.portion.parcel, part.portion.indexes) for part in parts)
        return DeliveryBatch(self._consumer.resolutions, parts, tables)

    async def _portion(self, told: ToldGaps, bundles_max: int, timeout: float | None) -> Portion | GapNotice | None:
        """Return the next bundles, all of one parcel, or the next notice that `get` would return; None when nothing came in time."""
        deadline_ns, consumer = deadline_after(timeout), self._consumer
        while True:
            item = await self._exchange.complete(consumer.taking_portion(bundles_max, deadline_ns))
            if isinstance(item, Portion):
                try:
                    await fetch_bundles(item.parcel.segment, item.indexes)
                except BaseException:
                    self._consumer.take_back([item])
                    raise
            if not isinstance(item, WaitingGap):
                return item
            notice = await self._tell(item)
            if isinstance(notice, GapNotice):
                told.last = item
                return notice

    async def _tell(self, gap: WaitingGap) -> E | None:
        notice = gap.notice
        logger.warning("quiver.subscription.gap subscriber=%s %s", self.subscriber, notice)
        if self._wanted.on_gap is not None:
            try:
                await called(self._wanted.on_gap, notice)
            except BaseException:
                self._consumer.put_back(gap)
                raise
        self._consumer.confirm_gap(gap)
        return self._gap_event(notice)


class Subscription(BaseSubscription[Delivery]):
    """Deliveries of one subscriber: iterate, or call `get`. Made by `Client.subscribe`."""

    async def batches(
        self, max_rows: int = ROWS_MAX_DEFAULT, max_wait: float = WAIT_SECONDS_DEFAULT
    ) -> AsyncIterator[DeliveryBatch]:
        """Yield many bundles at a time; see `quiver_actors.client.Subscription.batches`."""
        async for batch in self._gathered(max_rows, max_wait):
            if isinstance(batch, DeliveryBatch):
                yield batch

    async def __aenter__(self) -> Subscription:
        return self

    def _event(self, delivery: Delivery) -> Delivery:
        return delivery


class GapSubscription(BaseSubscription["Delivery | GapNotice"]):
    """A subscription that returns gap notices among the deliveries: `subscribe(..., gaps="deliver")`."""

    def batches(
        self, max_rows: int = ROWS_MAX_DEFAULT, max_wait: float = WAIT_SECONDS_DEFAULT
    ) -> AsyncIterator[DeliveryBatch | GapNotice]:
        """Yield many bundles at a time, and each gap notice between them; see `quiver_actors.client.GapSubscription.batches`."""
        return self._gathered(max_rows, max_wait)

    async def __aenter__(self) -> GapSubscription:
        return self

    def _event(self, delivery: Delivery) -> Delivery | GapNotice:
        return delivery

    def _gap_event(self, notice: GapNotice) -> Delivery | GapNotice | None:
        return notice


AnySubscription = BaseSubscription[Any]
