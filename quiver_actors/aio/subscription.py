"""A durable subscriber's consumer in asyncio: bundles from all workers of a topic, in one stream. Any number of tasks may share it."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, TypeVar

from quiver_actors.aio.delivery import Delivery
from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.client.consumer import Consumer
from quiver_actors.client.exchange import deadline_after
from quiver_actors.client.gaps import GapNotice, WaitingGap
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.questions import oldest_of, pending_of
from quiver_actors.client.subscription import CLOSE_TIMEOUT_SECONDS
from quiver_actors.client.subscription_base import SubscriptionBase
from quiver_actors.client.wanted import StartPoints, Wanted
from quiver_actors.errors import ClosedError, QuiverError, UsageError
from quiver_actors.model import BundleId

E = TypeVar("E")

logger = logging.getLogger("quiver.client")


class BaseSubscription(SubscriptionBase[Delivery, LoopExchange, E]):
    """What `Subscription` and `GapSubscription` have in common. Each method does what its namesake of `quiver_actors.client` does."""

    def __init__(self, directory: NodeDirectory, client_name: str, wanted: Wanted, starts: StartPoints) -> None:
        """Nothing is connected yet; `register` does that."""
        exchange = LoopExchange()
        consumer: Consumer[Delivery, LoopExchange] = Consumer(
            exchange, directory, client_name, wanted, starts, Delivery
        )
        super().__init__(exchange, consumer, wanted)

    async def register(self, timeout_seconds: float) -> None:
        await self._exchange.complete(self._consumer.registering(timeout_seconds))

    # --- bundles -------------------------------------------------------------------------------------------------------------

    async def get(self, timeout: float | None = None) -> E | None:
        deadline_ns = deadline_after(timeout)
        while True:
            with self._exchange.lock:
                self._exchange.check_open()
                item = self._consumer.take(time.monotonic_ns())
            if item is None:
                item = await self._exchange.complete(self._consumer.taking(deadline_ns))
            if item is None:
                return None
            event = await self._tell(item) if isinstance(item, WaitingGap) else self._event(item)
            if event is not None:
                return event

    async def get_many(self, bundles_max: int, timeout: float | None = None) -> list[E]:
        if bundles_max < 1:
            raise UsageError(f"bundles_max {bundles_max} is not possible: expected at least 1")
        first = await self.get(timeout)
        if first is None:
            return []
        if isinstance(first, GapNotice):
            return [first]
        with self._exchange.lock:
            self._exchange.check_open()
            more = self._consumer.take_more(bundles_max - 1)
        return [first, *map(self._event, more)]

    async def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> Delivery:
        return await self._exchange.complete(self._consumer.claiming(bundle_id, timeout))

    async def run(self) -> int:
        """Call `on_bundle`, a function or a coroutine function, with one delivery after the other."""
        on_bundle = self._wanted.on_bundle
        if on_bundle is None:
            raise UsageError("run needs a callback: subscribe with on_bundle=")
        count = 0
        async for event in self:
            if isinstance(event, Delivery):
                try:
                    with event:
                        await _called(on_bundle, event)
                except ClosedError:
                    if not self._exchange.is_closed:
                        raise
                count += 1
        return count

    # --- resolving -----------------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float = 10.0) -> None:
        await self._exchange.complete(self._consumer.flushing(timeout))

    async def ack_through(self, bundle_id: BundleId, timeout: float = 10.0) -> None:
        await self._exchange.complete(self._consumer.acking_through(bundle_id, timeout))

    async def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> list[Delivery]:
        return await self._exchange.complete(self._consumer.extending(deliveries, timeout))

    # --- questions -----------------------------------------------------------------------------------------------------------

    async def pending_count(self, timeout: float = 10.0) -> int:
        return pending_of(await self._exchange.complete(self._consumer.asking(timeout)))

    async def oldest_incomplete(self, timeout: float = 10.0) -> dict[int, BundleId]:
        return oldest_of(await self._exchange.complete(self._consumer.asking(timeout)), self.topic)

    async def all_drained(self, timeout: float = 10.0) -> bool:
        infos = await self._exchange.complete(self._consumer.asking(timeout))
        return all(info.drained for info in infos.values())

    async def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        return await self._exchange.complete(self._consumer.asking_range(start, end, timeout))

    # --- life ----------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        try:
            await self._exchange.complete(self._consumer.closing(CLOSE_TIMEOUT_SECONDS))
        except ClosedError:
            return
        except QuiverError as error:
            logger.warning("quiver.subscription.close subscriber=%s error=%s", self.subscriber, error)
        finally:
            self.abort()

    def abort(self) -> None:
        if not self._exchange.is_closed:
            with self._exchange.lock:
                self._consumer.end()
            self._exchange.close()

    async def __aiter__(self) -> AsyncIterator[E]:
        while True:
            try:
                event = await self.get(self._wanted.idle_timeout)
            except ClosedError:
                return
            if event is None:
                return
            yield event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _tell(self, gap: WaitingGap) -> E | None:
        notice = gap.notice
        logger.warning("quiver.subscription.gap subscriber=%s %s", self.subscriber, notice)
        if self._wanted.on_gap is not None:
            try:
                await _called(self._wanted.on_gap, notice)
            except BaseException:
                self._consumer.put_back(gap)
                raise
        self._consumer.confirm_gap(gap)
        return self._gap_event(notice)


class Subscription(BaseSubscription[Delivery]):
    """Deliveries of one subscriber: iterate, or call `get`. Made by `Client.subscribe`."""

    async def __aenter__(self) -> Subscription:
        return self

    def _event(self, delivery: Delivery) -> Delivery:
        return delivery


class GapSubscription(BaseSubscription["Delivery | GapNotice"]):
    """As `Subscription`, with gap notices among the deliveries: `subscribe(..., gaps="deliver")`."""

    async def __aenter__(self) -> GapSubscription:
        return self

    def _event(self, delivery: Delivery) -> Delivery | GapNotice:
        return delivery

    def _gap_event(self, notice: GapNotice) -> Delivery | GapNotice | None:
        return notice


AnySubscription = BaseSubscription[Any]


async def _called(callback: Any, argument: object) -> None:
    result = callback(argument)
    if inspect.isawaitable(result):
        await result
