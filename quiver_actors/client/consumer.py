"""A subscriber's consumer without its waiting: what threads (`subscription`) and asyncio (`aio`) have in common.

Methods that return a `Flow` are driven by the exchange; the others are called with its lock held, except where they say that they take
it. Nothing here waits or starts a thread.

A resolution leaves at once when none left in the last 20 ms; otherwise it is collected with others, which leave when 256 wait, when the
20 ms are over (noticed by a call that waits, else at the next call), when nothing is there to be taken, and at `flushing`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

from quiver_actors.client.channel import Call, refusal_error
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.delivery import ClaimedBundle
from quiver_actors.client.exchange import FOREVER_NS, Exchange, Flow, deadline_after, seconds_until
from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.grants import Grant, Parcel
from quiver_actors.client.inbox import Inbox
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.questions import Request, answering, counting_unresolved
from quiver_actors.client.subscriber_channel import WATCHDOG_NS, SubscriberChannel
from quiver_actors.client.wanted import StartPoints, Wanted
from quiver_actors.errors import (
    AlreadyResolved,
    ClosedError,
    LeaseExpired,
    NotClaimed,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.model import BundleId
from quiver_actors.protocol.messages import (
    AckThrough,
    ClaimRef,
    Pending,
    PendingInfo,
    Refused,
)
from quiver_actors.units import MILLISECOND_NS

RESOLUTIONS_WAITING_MAX = 256
RESOLUTION_WAIT_NS = 20 * MILLISECOND_NS
_TEND_NS_MIN = 10 * MILLISECOND_NS

D = TypeVar("D", bound=ClaimedBundle[Any])
X = TypeVar("X", bound=Exchange)

logger = logging.getLogger("quiver.client")


class Consumer(Generic[D, X]):
    """One consumer of a durable subscriber, over connections of its own to all workers."""

    def __init__(
        self,
        exchange: X,
        directory: NodeDirectory,
        client_name: str,
        wanted: Wanted,
        starts: StartPoints,
        make: Callable[[Consumer[D, X], Parcel, int, int], D],
    ) -> None:
        self.exchange = exchange
        self.wanted = wanted
        self.channels = ChannelSet(exchange, directory, self._make_channel)
        self.inbox: Inbox[D] = Inbox(partial(make, self), wanted.prefetch)
        self.gap_count = 0
        self._directory = directory
        self._client_name = client_name
        self._starts = starts
        self._make = make
        self._acked: list[D] = []
        """Not noted in their channels yet."""
        self._late_count = 0
        self._number = 0
        """Of the last resolution."""
        self._waiting_count = 0
        """Resolutions that were not sent."""
        self._sent_at_ns = 0
        self._tend_at_ns = 0
        self._due_ns = 0
        """When `take` has something else to do first."""
        self._tend_every_ns = WATCHDOG_NS // 4
        if wanted.terms.lease_ns:
            self._tend_every_ns = max(_TEND_NS_MIN, min(self._tend_every_ns, wanted.terms.lease_ns // 6))

    @property
    def claims_lost(self) -> int:
        """Claims that were resolved too late, as the connection had been lost, or not given out, as their lease was over."""
        return self._late_count + self.inbox.lost_count

    # --- bundles -------------------------------------------------------------------------------------------------------------

    def registering(self, timeout_seconds: float) -> Flow[None]:
        """Attach to the subscriber on every worker, creating it where it is new; durable at the end.

        Raises:
            UnknownTopic, QuiverError: a worker refused.
            WorkerUnavailable: a worker did not answer in time.
        """
        yield from self._attaching(lambda channel: True, timeout_seconds)
        # Workers that the node gets later may hold bundles that were pushed since: those are wanted too.
        self._starts = StartPoints("earliest")

    def _attaching(self, is_needed: Callable[[SubscriberChannel], bool], timeout_seconds: float | None) -> Flow[None]:
        deadline_ns = deadline_after(timeout_seconds)
        while True:
            now_ns = time.monotonic_ns()
            missing = [each for each in self._connected(now_ns) if is_needed(each) and not each.is_registered]
            if not missing:
                return
            if now_ns >= deadline_ns:
                raise unavailable_error(missing[0], timeout_seconds)
            # Not when something is due: that is for calls that take bundles, and a time that has passed would be waited for without rest.
            yield min(deadline_ns, self._retry_at_ns())

    def take(self, now_ns: int) -> D | WaitingGap | None:
        """What comes next, if it is there."""
        if now_ns >= self._due_ns:
            self._do_what_is_due(now_ns)
        return self.inbox.take(now_ns)

    def taking(self, deadline_ns: int) -> Flow[D | WaitingGap | None]:
        """What comes next; None when nothing came in time."""
        has_looked = False
        while True:
            now_ns = time.monotonic_ns()
            found = self.take(now_ns)
            if found is not None:
                return found
            if has_looked and now_ns >= deadline_ns:
                self.send_resolutions(now_ns)
                return None
            # What has arrived may not have been read yet: look once, even if it is time.
            has_looked = True
            self._connected(now_ns)
            yield min(deadline_ns, self._wake_at_ns())

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

    def claiming(self, bundle_id: BundleId, timeout_seconds: float) -> Flow[D]:
        """Claim one bundle by its id.

        Raises:
            AlreadyResolved, NotClaimed: it is done with; or somebody holds it, or it is not sealed yet.
        """
        topic, subscriber = self.wanted.topic, self.wanted.subscriber
        segment_seq, bundle_index = self._checked(bundle_id)[2:]
        call = Call(lambda tag: ClaimRef(tag, topic, subscriber, segment_seq, bundle_index))
        yield from self.channels.completing({bundle_id.core: call}, timeout_seconds)
        raise_refusals([call])
        channel = self.channels.channel(bundle_id.core)
        parcel = channel.claimed.pop(call.tag, None)
        if parcel is None:
            raise WorkerUnavailable(f"worker {bundle_id.core} was lost while {bundle_id} was being claimed: try again")
        parcel.take(1)
        return self._make(self, parcel, parcel.indexes[0], parcel.counts[0])

    # --- resolving -------------------------------------------------------------------------------------------------------------

    def ack(self, bundle: D) -> None:
        """Note that a bundle is done with. Takes the lock."""
        exchange = self.exchange
        with exchange.lock:
            if exchange.is_closed:
                exchange.check_open()
            bundle._outcome = "ack"
            self._acked.append(bundle)
            self._number += 1
            bundle._number = self._number
            self._noted()

    def resolve(self, bundle: ClaimedBundle[Any], outcome: str, delay_ns: int) -> None:
        """Note what else becomes of a bundle. Takes the lock."""
        with self.exchange.lock:
            self.exchange.check_open()
            bundle._outcome = outcome
            parcel = bundle._parcel
            if not parcel.is_current:
                self._late_count += 1
                parcel.channel.resolve_late(parcel, (bundle._bundle_index,), outcome)
                return
            self._number += 1
            bundle._number = self._number
            parcel.channel.resolve(parcel, (bundle._bundle_index,), outcome, delay_ns)
            self._noted()

    def report_unreadable(self, bundle: ClaimedBundle[Any], reason: str) -> None:
        """Give back a bundle that cannot be read, and have its segment checked. Takes the lock."""
        with self.exchange.lock:
            self.exchange.check_open()
            bundle._outcome = "unreadable"
            if bundle._parcel.is_current:
                bundle._parcel.channel.report_unreadable(bundle._parcel, bundle._bundle_index, reason)
        logger.warning("quiver.subscription.unreadable bundle=%s error=%s", bundle.bundle_id, reason)

    def confirm_gap(self, gap: WaitingGap) -> None:
        """A notice was handed over. Takes the lock."""
        with self.exchange.lock:
            self.exchange.check_open()
            self.gap_count += 1
            if gap.is_current:
                gap.channel.confirm_gap(gap)
                self._noted()

    def put_back(self, gap: WaitingGap) -> None:
        """A notice could not be handed over: it comes next again, to another consumer if this one was closed. Takes the lock."""
        with contextlib.suppress(ClosedError), self.exchange.lock:
            self.exchange.check_open()
            self.inbox.put_back(gap)

    def send_resolutions(self, now_ns: int) -> None:
        if self._waiting_count:
            self._waiting_count = 0
            self._sent_at_ns = now_ns
            self._note_acked()
            for channel in self.channels.opened():
                channel.send_resolutions()

    def closing(self, timeout_seconds: float) -> Flow[None]:
        """Return what was not taken, not counted as delivered, and wait until what was resolved over the connections of now is durable.
        Raises as `flushing`."""
        for channel in self.channels.opened():
            channel.stop_deliveries()
        self._give_back()
        yield from self._settling(timeout_seconds)
        if self.inbox.waiting:
            # What was under way to us; nothing more comes.
            self._give_back()
            yield from self._settling(timeout_seconds)

    def _give_back(self) -> None:
        self._waiting_count += self.inbox.give_back()

    def end(self) -> None:
        """Close the connections, and let go of all mapped segments."""
        self.channels.close()
        self.inbox.clear()
        self._acked.clear()

    def flushing(self, timeout_seconds: float) -> Flow[None]:
        """Wait until everything resolved so far is durable. A worker that was lost since is waited for, and asked what it knows of that.

        Raises:
            WorkerUnavailable: what was resolved went with a connection and is delivered again, which is told once; or a worker did not
                answer in time.
            EngineFailed, QuiverError: a worker could not make it durable.
        """
        deadline_ns, count = deadline_after(timeout_seconds), 0
        while True:
            generations = {channel: channel.generation for channel in self.channels.opened()}
            try:
                count += yield from self._flushing_once(deadline_ns)
                if not any(channel.unconfirmed.has_lost for channel in self.channels.opened()):
                    break
                # A worker was lost while another one was asked: it was not asked itself.
            except WorkerUnavailable:
                is_lost = any(channel.generation != number for channel, number in generations.items())
                if not is_lost or time.monotonic_ns() >= deadline_ns:
                    raise
        if count:
            raise WorkerUnavailable(
                f"a worker was lost before it had made durable what was resolved: {count} bundles are delivered again"
            )

    def _flushing_once(self, deadline_ns: int) -> Flow[int]:
        """Returns how many bundles are owed again whose resolution was lost with an earlier connection: they are forgotten with that."""
        self.send_resolutions(time.monotonic_ns())
        if any(channel.unconfirmed.has_lost for channel in self.channels.opened()):
            yield from self._attaching(lambda channel: channel.unconfirmed.has_lost, seconds_until(deadline_ns))
        lost = {channel: places for channel in self.channels.opened() if (places := channel.unconfirmed.lost())}
        topic, subscriber = self.wanted.topic, self.wanted.subscriber
        count = yield from counting_unresolved(lost, topic, subscriber, seconds_until(deadline_ns))
        # What somebody else has resolved since is made durable too.
        yield from self._settling(seconds_until(deadline_ns))
        for channel, places in lost.items():
            channel.unconfirmed.settle(places)
        return count

    def _settling(self, timeout_seconds: float | None) -> Flow[None]:
        """Wait until what was resolved over the connections of now is durable. Raises as `flushing`."""
        self.send_resolutions(time.monotonic_ns())
        channels = [channel for channel in self.channels.opened() if channel.is_registered]
        requests = [Request(channel, channel.generation, call) for channel in channels for call in channel.gap_acks]
        requests += [Request(channel, channel.generation, channel.flush_progress()) for channel in channels]
        number, generations = self._number, [channel.generation for channel in channels]
        yield from answering(requests, timeout_seconds)
        raise_refusals(request.call for request in requests)
        for channel, generation in zip(channels, generations, strict=True):
            channel.durable_counts[generation] = max(number, channel.durable_counts.get(generation, 0))

    def confirming(self, bundle: ClaimedBundle[Any], timeout_seconds: float) -> Flow[None]:
        """Wait until one bundle's resolution is durable; raise if the worker refused it."""
        parcel = bundle._parcel
        if parcel.is_current and not self._is_answered(bundle):
            yield from self._settling(timeout_seconds)
        if not self._is_answered(bundle):
            raise WorkerUnavailable(
                f"worker {parcel.channel.core} was lost before it had confirmed {bundle!r}: it may be delivered again"
            )
        key = (parcel.segment.segment_seq, parcel.grant.token, bundle._bundle_index)
        code = parcel.channel.refusals.get(key)
        if code is not None:
            raise refusal_error(
                Refused(0, code, f"{bundle!r} is not held any more: it was {_MEANINGS.get(code, code)}")
            )

    def _is_answered(self, bundle: ClaimedBundle[Any]) -> bool:
        parcel = bundle._parcel
        return 0 < bundle._number <= parcel.channel.durable_counts.get(parcel.generation, 0)

    def acking_through(self, bundle_id: BundleId, timeout_seconds: float) -> Flow[None]:
        """Resolve everything of a core up to and including a bundle; durable at the end."""
        topic, subscriber = self.wanted.topic, self.wanted.subscriber
        segment_seq, bundle_index = self._checked(bundle_id)[2:]
        call = Call(lambda tag: AckThrough(tag, topic, subscriber, segment_seq, bundle_index))
        yield from self.channels.completing({bundle_id.core: call}, timeout_seconds)
        raise_refusals([call])

    # --- leases --------------------------------------------------------------------------------------------------------------

    def extending(self, bundles: Iterable[D], timeout_seconds: float) -> Flow[list[D]]:
        """Begin leases anew; returns the bundles that are not held any more, among them those that were resolved."""
        bundles = list(bundles)
        now_ns = time.monotonic_ns()
        grants: dict[SubscriberChannel, set[Grant]] = {}
        for bundle in bundles:
            if self._is_held(bundle, now_ns):
                grants.setdefault(bundle._parcel.channel, set()).add(bundle._parcel.grant)
        requests = []
        for channel, held in grants.items():
            requests.append(Request(channel, channel.generation, channel.extension(held, now_ns)))
            channel.call(requests[-1].call)
        yield from answering(requests, timeout_seconds, is_loss_an_error=False)
        raise_refusals(request.call for request in requests)
        now_ns = time.monotonic_ns()
        return [bundle for bundle in bundles if not self._is_held(bundle, now_ns)]

    def extending_one(self, bundle: D, timeout_seconds: float) -> Flow[None]:
        """Begin the lease of a bundle anew, or raise."""
        lost = yield from self.extending([bundle], timeout_seconds)
        if bundle.is_resolved:
            raise AlreadyResolved(f"{bundle!r} is not held any more")
        if lost:
            raise LeaseExpired(
                f"{bundle!r}: its lease was over, or its connection lost; it may be with another consumer"
            )

    def _is_held(self, bundle: ClaimedBundle[Any], now_ns: int) -> bool:
        parcel = bundle._parcel
        return not bundle.is_resolved and parcel.is_current and not parcel.grant.is_over(now_ns)

    # --- questions -----------------------------------------------------------------------------------------------------------

    def asking(self, timeout_seconds: float) -> Flow[dict[int, PendingInfo]]:
        """What the subscriber is owed, worker by worker. What this consumer resolved before counts as resolved."""
        topic, subscriber = self.wanted.topic, self.wanted.subscriber
        self.send_resolutions(time.monotonic_ns())
        calls = yield from self.channels.asking_all(
            lambda core: Call(lambda tag: Pending(tag, topic, subscriber)), timeout_seconds
        )
        return _infos_in(calls)

    def asking_range(self, start: BundleId, end: BundleId, timeout_seconds: float) -> Flow[int]:
        """Unresolved bundles from `start` up to and not including `end`, on one core."""
        topic, core, from_segment, from_bundle = self._checked(start)
        subscriber, (to_segment, to_bundle) = self.wanted.subscriber, self._checked(end)[2:]
        if end.core != core:
            raise UsageError(f"a range lies on one core: {start} and {end} do not")
        self.send_resolutions(time.monotonic_ns())
        call = Call(lambda tag: Pending(tag, topic, subscriber, from_segment, from_bundle, to_segment, to_bundle))
        yield from self.channels.completing({core: call}, timeout_seconds)
        return _infos_in({core: call})[core].in_range

    # --- private -------------------------------------------------------------------------------------------------------------

    def _checked(self, bundle_id: BundleId) -> BundleId:
        if bundle_id.topic != self.wanted.topic or bundle_id.core not in self._directory.cores:
            raise UsageError(
                f"{bundle_id} is not of topic {self.wanted.topic!r} and one of the cores {list(self._directory.cores)}"
            )
        return bundle_id

    def _noted(self) -> None:
        """One more resolution waits to be sent."""
        self._waiting_count += 1
        now_ns = time.monotonic_ns()
        if self._waiting_count >= RESOLUTIONS_WAITING_MAX or now_ns - self._sent_at_ns >= RESOLUTION_WAIT_NS:
            self.send_resolutions(now_ns)
        elif self._waiting_count == 1:
            self._due_ns = min(self._due_ns, self._sent_at_ns + RESOLUTION_WAIT_NS)
            # Whoever waits for bundles is to send it in time.
            self.exchange.notify()

    def _note_acked(self) -> None:
        """Tell the channels what was acknowledged, all of one parcel together."""
        acked, self._acked = self._acked, []
        parcels: dict[Parcel, list[int]] = {}
        for bundle in acked:
            parcels.setdefault(bundle._parcel, []).append(bundle._bundle_index)
        for parcel, indexes in parcels.items():
            if parcel.is_current:
                parcel.channel.resolve(parcel, indexes, "ack")
            else:
                self._late_count += len(indexes)
                parcel.channel.resolve_late(parcel, indexes, "ack")

    def _do_what_is_due(self, now_ns: int) -> None:
        """What nobody asks for: resolutions that have waited long enough, the watchdog, leases of what waits in the inbox."""
        # Nobody else reads while the inbox has something: leases that were extended, segments that were retired.
        self.exchange.look()
        if self._waiting_count and now_ns - self._sent_at_ns >= RESOLUTION_WAIT_NS:
            self.send_resolutions(now_ns)
        if now_ns >= self._tend_at_ns:
            self._tend_at_ns = now_ns + self._tend_every_ns
            self.inbox.count_taken()
            for channel in self.channels.opened():
                channel.tend(now_ns)
        self._due_ns = self._tend_at_ns
        if self._waiting_count:
            self._due_ns = min(self._due_ns, self._sent_at_ns + RESOLUTION_WAIT_NS)

    def _connected(self, now_ns: int) -> list[SubscriberChannel]:
        """A channel to every worker that the node has, connecting where it is due.

        Raises:
            QuiverError: a worker refused for good.
        """
        cores = self._directory.cores
        for channel in self.channels.opened():
            if channel.core not in cores:
                self.channels.drop(channel.core)
        channels = [self.channels.channel(core) for core in cores]
        for channel in channels:
            channel.connect_if_due(now_ns)
            channel.check_usable()
        return channels

    def _wake_at_ns(self) -> int:
        """When there is something to do even if nothing arrives: connect again, send resolutions, tend the channels."""
        wake_at_ns = min(self._retry_at_ns(), self._tend_at_ns)
        return min(wake_at_ns, self._sent_at_ns + RESOLUTION_WAIT_NS) if self._waiting_count else wake_at_ns

    def _retry_at_ns(self) -> int:
        return min((channel.retry_at_ns for channel in self.channels.opened()), default=FOREVER_NS)

    def _make_channel(self, core: int) -> SubscriberChannel:
        return SubscriberChannel(
            self.exchange,
            self._directory,
            core,
            self._client_name,
            wanted=self.wanted,
            start=self._starts.on(core),
            inbox=self.inbox,
        )


def _infos_in(calls: dict[int, Call]) -> dict[int, PendingInfo]:
    raise_refusals(calls.values())
    return {core: call.answer for core, call in calls.items() if isinstance(call.answer, PendingInfo)}


_MEANINGS = {
    LeaseExpired.code: "too late: its lease was over",
    "fenced": "given to another consumer",
    AlreadyResolved.code: "resolved in another way",
    NotClaimed.code: "given back",
}
