"""A consumer of another host's node in asyncio: `flight.remote_subscription`, whose waiting is done by threads.

Nothing is lost where a waiting task is cancelled: the thread only brings bundles here, and they are taken in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

from quiver_actors.aio.consuming import called, called_with_each, events_of, gathered
from quiver_actors.aio.delivery import Delivery, Ticket
from quiver_actors.base.model import BundleId
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.batches import ROWS_MAX_DEFAULT, WAIT_SECONDS_DEFAULT, BaseBatch
from quiver_actors.client.consuming import check_bundles_max
from quiver_actors.client.exchange import deadline_after
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.gathering import Gathering
from quiver_actors.client.grants import Bundles, Parcel, Portion
from quiver_actors.client.refused import RefusedResolution
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.errors import ClosedError, WorkerUnavailable
from quiver_actors.flight.consumer_link import ConsumerLink
from quiver_actors.flight.received_delivery import ReceivedDelivery
from quiver_actors.flight.received_parcel import ReceivedParcel
from quiver_actors.flight.remote_subscription import RemoteSubscription as Subscription
from quiver_actors.flight.subscription_state import KnownSubscription, portion_of

T = TypeVar("T")

_FILL_NS = SECOND_NS
"""A thread waits so long at a time, so that it ends soon after nobody waits any more."""


class RemoteTicket(Ticket):
    """The receipt of a resolution: ask it whether the worker has it for good."""

    __slots__ = ("_link", "_parcel")

    def __init__(self, resolutions: Any, delivery: Any) -> None:
        super().__init__(resolutions, delivery)
        self._link: ConsumerLink = resolutions
        self._parcel: ReceivedParcel = delivery.parcel

    async def wait(self, timeout: float = 10.0) -> None:
        """Return when the resolution is durable; raises as `quiver_actors.client.Ticket.wait`."""
        await asyncio.to_thread(self._link.settle, [self._parcel], timeout)


class RemoteDelivery(ReceivedDelivery[Ticket], Delivery):
    """A bundle that is claimed for this consumer; see `quiver_actors.client.Delivery`."""

    __slots__ = ()

    _ticket_type = RemoteTicket

    async def extend(self, timeout: float = 10.0) -> None:
        """Begin the lease anew; raises as `quiver_actors.client.Delivery.extend`."""
        await asyncio.to_thread(self.extend_lease, timeout)


class RemoteBatchTicket:
    """The receipt of a batch's acknowledgement."""

    def __init__(self, resolutions: Any, bundles: Sequence[Bundles], number: int) -> None:
        self._link: ConsumerLink = resolutions
        self._parcels = [cast(ReceivedParcel, parcel) for parcel, _ in bundles]

    async def wait(self, timeout: float = 10.0) -> None:
        """Return when the acknowledgement of every bundle is durable; raises as `quiver_actors.client.BatchTicket.wait`."""
        await asyncio.to_thread(self._link.settle, self._parcels, timeout)


class RemoteBatch(BaseBatch[RemoteDelivery, RemoteBatchTicket]):
    """See `quiver_actors.client.DeliveryBatch`. Used as `with batch:`, also around code that awaits."""

    _delivery_type = RemoteDelivery
    _ticket_type = RemoteBatchTicket


class RemoteSubscription(KnownSubscription):
    """Deliveries of one subscriber: iterate, or call `get`. Made by `RemoteClient.subscribe`. Each method does what its namesake of
    `quiver_actors.client.Subscription` does. Any number of tasks may share it."""

    def __init__(self, made: Subscription) -> None:
        """`made`: attached, with deliveries of the class `RemoteDelivery`."""
        super().__init__(made.state)
        self._made = made
        self._fetching = ThreadPoolExecutor(1, "quiver-remote-fetch")

    async def get(self, timeout: float | None = None) -> Any:
        """The next bundle, or None if none came within `timeout` seconds; see `quiver_actors.client.Subscription.get`."""
        deadline_ns, inbox = deadline_after(timeout), self.state.inbox
        while True:
            if due := inbox.due():
                await self._in_thread(inbox.extend, due)
            item = inbox.take()
            if item is None:
                if not await self._filled(deadline_ns):
                    return None
            elif not isinstance(item, GapNotice) or await self._tell(item):
                return item

    async def get_many(self, bundles_max: int, timeout: float | None = None) -> list[Any]:
        """Return 1 to `bundles_max` bundles that are there, or an empty list if none came in time."""
        check_bundles_max(bundles_max)
        found = [first] if (first := await self.get(timeout)) is not None else []
        while 0 < len(found) < bundles_max and not isinstance(found[-1], GapNotice):
            item = self.state.inbox.take(only_bundles=True)
            if item is None:
                break
            found.append(item)
        return found

    def batches(self, max_rows: int = ROWS_MAX_DEFAULT, max_wait: float = WAIT_SECONDS_DEFAULT) -> AsyncIterator[Any]:
        """Yield many bundles at a time; with gaps="deliver" notices come between them."""
        link = cast("Resolutions[Any]", self.state.link)

        def make(parcel: Parcel, index: int, delivery_count: int) -> RemoteDelivery:
            return RemoteDelivery(link, parcel, index, delivery_count)

        gathering = Gathering(max_rows, max_wait, self.state.wanted.idle_timeout, make)
        take_back = self.state.inbox.take_back
        return gathered(
            gathering,
            self._portion,
            lambda parts, tables: RemoteBatch(link, parts, tables),
            lambda left: take_back(left, make),
        )

    async def claim(self, bundle_id: BundleId, timeout: float = 10.0) -> RemoteDelivery:
        """Claim one bundle by its id, also a deferred or blocked one."""
        return cast(RemoteDelivery, await asyncio.to_thread(self._made.claim, bundle_id, timeout))

    async def run(self) -> int:
        """Call `on_bundle`, a function or a coroutine function, with one delivery after the other."""
        return await called_with_each(self, self.state.wanted.on_bundle, lambda: self.state.link.is_closed)

    async def flush(self, timeout: float = 10.0) -> list[RefusedResolution]:
        """Return when everything acknowledged or rejected so far is durable."""
        return await asyncio.to_thread(self._made.flush, timeout)

    async def ack_through(self, bundle_id: BundleId, timeout: float = 10.0) -> None:
        """Resolve every bundle of the core up to and including this one, claimed or not; durable on return."""
        await asyncio.to_thread(self._made.ack_through, bundle_id, timeout)

    async def extend(self, deliveries: Iterable[RemoteDelivery], timeout: float = 10.0) -> list[RemoteDelivery]:
        """Begin the leases of deliveries again, and return those that are not held any more."""
        return await asyncio.to_thread(self._made.extend, deliveries, timeout)

    async def pending_count(self, timeout: float = 10.0) -> int:
        """Return how many bundles on all workers the subscriber has not resolved."""
        return await asyncio.to_thread(self._made.pending_count, timeout)

    async def oldest_incomplete(self, timeout: float = 10.0) -> dict[int, BundleId]:
        """Return the oldest bundle that is not resolved, for each core that has one."""
        return await asyncio.to_thread(self._made.oldest_incomplete, timeout)

    async def all_drained(self, timeout: float = 10.0) -> bool:
        """Return whether nothing is owed on any worker."""
        return await asyncio.to_thread(self._made.all_drained, timeout)

    async def pending_in_range(self, start: BundleId, end: BundleId, timeout: float = 10.0) -> int:
        """Return how many bundles from `start` up to and not including `end`, both of one core, are not resolved."""
        return await asyncio.to_thread(self._made.pending_in_range, start, end, timeout)

    async def close(self) -> None:
        """Send and flush what was resolved, give everything else back, and end. Idempotent."""
        await asyncio.to_thread(self._made.close)

    def __aiter__(self) -> AsyncIterator[Any]:
        return events_of(self.get, self.state.wanted.idle_timeout)

    async def __aenter__(self) -> RemoteSubscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _filled(self, deadline_ns: int) -> bool:
        """Wait until a bundle or notice is here; returns whether there is one. Raises as `get`."""
        while True:
            until_ns = min(deadline_ns, time.monotonic_ns() + _FILL_NS)
            try:
                if await self._in_thread(self.state.inbox.fill, until_ns):
                    return True
            except WorkerUnavailable:
                if until_ns == deadline_ns:
                    raise
            if until_ns == deadline_ns:
                return False

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        # A thread of its own: a wait for bundles must not take one from other calls.
        if self.state.link.is_closed:
            raise ClosedError("it was closed: subscribe again")
        return await asyncio.get_running_loop().run_in_executor(self._fetching, partial(call, *arguments))

    async def _portion(self, bundles_max: int, timeout: float | None) -> Portion | GapNotice | None:
        found: Portion | GapNotice | None = portion_of(await self.get(timeout))
        return found

    async def _tell(self, notice: GapNotice) -> bool:
        on_gap = self.state.wanted.on_gap
        if on_gap is not None:
            try:
                await called(on_gap, notice)
            except BaseException:
                self.state.inbox.put_back(notice)
                raise
        return self.state.note_told(notice)
