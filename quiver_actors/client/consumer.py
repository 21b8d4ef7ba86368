"""A subscriber's consumer without its waiting: what threads (`subscription`) and asyncio (`aio`) have in common.

Methods that return a `Flow` are driven by the exchange; the others are called with its lock held, except where they say that they take
it. Nothing here waits or starts a thread.

The parts: `SubscriberChannels` connects, `Inbox` holds what has arrived, `Resolutions` brings what becomes of it to the workers, and
`SubscriberRequests` asks them everything else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from quiver_actors.base.model import BundleId
from quiver_actors.base.units import MICROSECOND_NS
from quiver_actors.client.delivery import ClaimedBundle
from quiver_actors.client.exchange import Exchange, Flow
from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.grants import Bundles, Parcel, Portion
from quiver_actors.client.inbox import Inbox
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.client.subscribe_request import StartPoints, SubscribeRequest
from quiver_actors.client.subscriber_channels import TEND_NS_MIN, SubscriberChannels
from quiver_actors.client.subscriber_requests import SubscriberRequests
from quiver_actors.errors import ClosedError

LOOK_NS = 50 * MICROSECOND_NS
"""Nothing is handed over without a look, not longer ago than this, at what the workers have said of it. Another consumer to whom the worker
gives a bundle cannot have made its acknowledgement durable sooner after the worker has withdrawn the bundle here."""

D = TypeVar("D", bound=ClaimedBundle[Any])
X = TypeVar("X", bound=Exchange)
T = TypeVar("T")


class Consumer(Generic[D, X]):
    """One consumer of a durable subscriber, over connections of its own to all workers."""

    def __init__(
        self,
        exchange: X,
        directory: WorkerDirectory,
        client_name: str,
        wanted: SubscribeRequest,
        starts: StartPoints,
        make: Callable[[Resolutions[X], Parcel, int, int], D],
    ) -> None:
        """
        Args:
            make: makes the delivery of a parcel's bundle, from its index and delivery count.
        """
        self.inbox: Inbox[D] = Inbox(wanted.prefetch)
        self.connections = SubscriberChannels(exchange, directory, client_name, wanted, starts, self.inbox)
        self.channels = self.connections.by_core
        self.resolutions = Resolutions(exchange, self.connections, wanted)
        self.requests = SubscriberRequests(self.connections, self.resolutions, wanted)
        self.gap_count = 0
        self._exchange = exchange
        self.make = self.inbox.make = partial(make, self.resolutions)
        self._tended_ns = 0
        self._due_ns = 0
        """Monotonic time from which `take` has other work to do first."""

    @property
    def claims_lost(self) -> int:
        """Claims that were resolved after their connection was lost, and claims that the worker ended before their bundle was delivered."""
        return self.resolutions.late_count + self.inbox.lost_count

    def take(self, now_ns: int) -> D | WaitingGap | None:
        """Return the next bundle or gap notice, if there is one."""
        if now_ns >= self._due_ns:
            self._do_what_is_due(now_ns)
        return self.inbox.take(now_ns)

    def take_portion(self, bundles_max: int, now_ns: int) -> Portion | WaitingGap | None:
        """Return the next bundles, all of one parcel, or the next gap notice, if there is one."""
        if now_ns >= self._due_ns:
            self._do_what_is_due(now_ns)
        return self.inbox.take_portion(now_ns, bundles_max)

    def taking(self, deadline_ns: int) -> Flow[D | WaitingGap | None]:
        """Return the next bundle or gap notice; None when nothing came in time."""
        return self._waiting_for(self.take, deadline_ns)

    def taking_portion(self, bundles_max: int, deadline_ns: int) -> Flow[Portion | WaitingGap | None]:
        """Return the next bundles, all of one parcel, or the next gap notice; None when nothing came in time."""
        return self._waiting_for(partial(self.take_portion, bundles_max), deadline_ns)

    def _waiting_for(self, take: Callable[[int], T | None], deadline_ns: int) -> Flow[T | None]:
        """Wait until `take(now_ns)` returns something, and return it; None at the deadline."""
        has_looked = False
        while True:
            now_ns = time.monotonic_ns()
            found = take(now_ns)
            if found is not None:
                return found
            if has_looked and now_ns >= deadline_ns:
                self.resolutions.send(now_ns)
                return None
            # What has arrived may not have been read yet: look once, even if it is time.
            has_looked = True
            self.connections.connected(now_ns)
            # There is work even if nothing arrives: connect again, tend the channels.
            yield min(deadline_ns, self.connections.retry_at_ns(), self._tend_at_ns())

    def take_more(self, bundles_max: int) -> list[D]:
        """Bundles that are there, up to the next gap notice."""
        found: list[D] = []
        now_ns = time.monotonic_ns()
        while len(found) < bundles_max and not self.inbox.is_at_gap:
            item = self.take(now_ns)
            if isinstance(item, WaitingGap):
                # It was behind parcels that were dropped: it waits for its turn.
                self.inbox.put_back(item)
                break
            if item is None:
                break
            found.append(item)
        return found

    def tell_taken(self, bundles: Iterable[Bundles]) -> None:
        """Note that the caller is about to be handed bundles that `take_portion` has returned. Takes the lock."""
        with self._exchange.lock:
            if self._exchange.is_closed:
                return
            try:
                for parcel, indexes in bundles:
                    channel = parcel.channel
                    if parcel.is_current and channel.handed.is_told:
                        channel.send([channel.handed.message(parcel.grant, indexes)])
            except BaseException:
                self._exchange.break_off()
                raise

    def claiming(self, bundle_id: BundleId, timeout_seconds: float) -> Flow[D]:
        """Claim one bundle by its id. Raises as `SubscriberRequests.claiming`."""
        parcel = yield from self.requests.claiming(bundle_id, timeout_seconds)
        return self.make(parcel, parcel.indexes[0], parcel.counts[0])

    def confirm_gap(self, gap: WaitingGap) -> None:
        """A notice was handed over. Takes the lock."""
        with self._exchange.lock:
            self._exchange.check_open()
            try:
                self.gap_count += 1
                if gap.is_current:
                    gap.channel.confirm_gap(gap)
                    self.resolutions.note(1)
            except BaseException:
                self._exchange.break_off()
                raise

    def put_back(self, gap: WaitingGap) -> None:
        """A notice could not be handed over: it comes next again, to another consumer if this one was closed. Takes the lock."""
        with contextlib.suppress(ClosedError), self._exchange.lock:
            self._exchange.check_open()
            self.inbox.put_back(gap)

    def take_back(self, left: Sequence[Portion | WaitingGap]) -> None:
        """What was taken and not handed over comes next again, in its order. Takes the lock, or leaves that to another thread: an iterator
        may be collected while this one holds it."""
        exchange = self._exchange
        if not left:
            return
        if exchange.lock.locked():
            exchange.call_at(0, partial(self._take_back, left))
        else:
            with exchange.lock:
                self._take_back(left)

    def _take_back(self, left: Sequence[Portion | WaitingGap]) -> None:
        if not self._exchange.is_closed:
            for item in reversed(left):
                self.inbox.put_back(item)
            self._exchange.notify()

    def closing(self, timeout_seconds: float) -> Flow[None]:
        """Return untaken bundles, which do not count as delivered, and wait until resolutions over the present connections are durable.
        Raises as `Resolutions.flushing`."""
        for channel in self.channels.opened():
            channel.stop_deliveries()
        self.resolutions.note_returned(self.inbox.give_back())
        yield from self.resolutions.settling(timeout_seconds)
        if self.inbox.waiting:
            # What was under way to us; nothing more comes.
            self.resolutions.note_returned(self.inbox.give_back())
            yield from self.resolutions.settling(timeout_seconds)

    def end(self) -> None:
        """Close the connections, and let go of all mapped segments."""
        self.channels.close()
        self.inbox.end()
        self.resolutions.end()

    def _do_what_is_due(self, now_ns: int) -> None:
        """Do what is due by the clock: send collected resolutions, tend the channels."""
        # Nobody else reads while the inbox has something: leases that were extended, segments that were retired.
        self._exchange.look()
        if now_ns >= self.resolutions.due_at_ns:
            self.resolutions.send(now_ns)
        if now_ns - self._tended_ns >= TEND_NS_MIN and now_ns >= self._tend_at_ns():
            self.inbox.count_taken()
            self.connections.tend(now_ns)
            self._tended_ns = now_ns
        self._due_ns = now_ns + LOOK_NS

    def _tend_at_ns(self) -> int:
        return self._tended_ns + self.connections.tend_interval_ns()
