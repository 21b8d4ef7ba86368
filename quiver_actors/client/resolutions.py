"""The resolutions of a consumer on their way to the worker's disk: acknowledgements, rejections and deferrals.

A resolution leaves at once when none left in the last 20 ms; otherwise it is collected with others, which leave when 256 wait, when the
20 ms are over (also while no call runs), when nothing is there to be taken, at `flushing`, and when the process ends.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Generic, TypeVar

from quiver_actors.base.model import BundleId
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import later
from quiver_actors.client.channels import raise_refusals
from quiver_actors.client.exchange import FOREVER_NS, Exchange, Flow, deadline_after, seconds_until
from quiver_actors.client.grants import Bundles, Claim, Parcel
from quiver_actors.client.questions import Request, answering, counting_unresolved
from quiver_actors.client.refused import RefusedResolution, refusal
from quiver_actors.client.subscribe_request import SubscribeRequest
from quiver_actors.client.subscriber_channels import SubscriberChannels
from quiver_actors.errors import WorkerUnavailable

RESOLUTIONS_WAITING_MAX = 256
RESOLUTION_WAIT_NS = 20 * MILLISECOND_NS
_SETTLE_SECONDS = 5.0
"""How long the end of the process waits for the disk."""

X = TypeVar("X", bound=Exchange)

logger = logging.getLogger("quiver.client")


class Resolutions(Generic[X]):
    """The resolutions of one consumer, numbered in their order. Used under the lock of its exchange, except where it says otherwise."""

    def __init__(self, exchange: X, channels: SubscriberChannels, wanted: SubscribeRequest) -> None:
        self.exchange = exchange
        self.late_count = 0
        """Bundles that were resolved after the connection of their claim was lost."""
        self._channels = channels
        self._wanted = wanted
        self._acked: dict[Parcel, list[int]] = {}
        """Acknowledged bundles that their channels have not recorded yet."""
        self._number = 0
        """Number of the last resolution."""
        self._waiting_count = 0
        """Resolutions that were not sent."""
        self._sent_at_ns = 0
        self._scheduled_under: threading.Lock | None = None
        """The lock under which `_send_due` is going to be called. What a forked child inherits is not called there: its lock is another."""
        later.at_exit(self)

    @property
    def lock(self) -> threading.Lock:
        """The lock of the exchange: another one in a forked child."""
        return self.exchange.lock

    @property
    def due_at_ns(self) -> int:
        """When what waits is to be sent, monotonic time."""
        return self._sent_at_ns + RESOLUTION_WAIT_NS if self._waiting_count else FOREVER_NS

    def ack(self, parcel: Parcel, bundle_index: int) -> int:
        """Note that a bundle is done with, and return the number of that. Takes the lock.

        Raises:
            ClosedError: the subscription was closed; nothing was noted.
        """
        exchange = self.exchange
        with exchange.lock:
            if exchange.is_closed:
                exchange.check_open()
            try:
                indexes = self._acked.get(parcel)
                if indexes is None:
                    self._acked[parcel] = [bundle_index]
                else:
                    indexes.append(bundle_index)
                self._number += 1
                number = self._number
                self.note(1)
            except BaseException:
                exchange.break_off()
                raise
        return number

    def ack_many(self, bundles: Iterable[Bundles]) -> int:
        """Note that many bundles are done with, under one number, and return it. Takes the lock. Raises as `ack`."""
        count = 0
        with self.exchange.lock:
            self.exchange.check_open()
            try:
                for parcel, indexes in bundles:
                    self._acked.setdefault(parcel, []).extend(indexes)
                    count += len(indexes)
                self._number += 1
                number = self._number
                self.note(count)
            except BaseException:
                self.exchange.break_off()
                raise
        return number

    def resolve(self, parcel: Parcel, bundle_index: int, outcome: str, delay_ns: int) -> int:
        """Note what else becomes of a bundle, and return the number of that; 0: its claim is gone. Takes the lock. Raises as `ack`."""
        with self.exchange.lock:
            self.exchange.check_open()
            if not parcel.is_current:
                self._note_late(parcel, [bundle_index], outcome)
                return 0
            try:
                self._number += 1
                number = self._number
                parcel.channel.resolve(parcel, (bundle_index,), outcome, delay_ns)
                self.note(1)
            except BaseException:
                self.exchange.break_off()
                raise
        return number

    def report_unreadable(
        self, parcel: Parcel, bundle_index: int, bundle_id: BundleId, reason: str, lost: str = ""
    ) -> None:
        """Give back a bundle that cannot be read, and have its segment checked; `lost`: as of `Unreadable`. Takes the lock. Raises as
        `ack`."""
        with self.exchange.lock:
            self.exchange.check_open()
            if parcel.is_current:
                try:
                    parcel.channel.report_unreadable(parcel, bundle_index, reason, lost)
                except BaseException:
                    self.exchange.break_off()
                    raise
        logger.warning("quiver.subscription.unreadable bundle=%s error=%s", bundle_id, reason)

    def note(self, count: int) -> None:
        """Note that so many more resolutions, or confirmations of notices, wait to be sent."""
        self._waiting_count += count
        now_ns = time.monotonic_ns()
        if self._waiting_count >= RESOLUTIONS_WAITING_MAX or now_ns - self._sent_at_ns >= RESOLUTION_WAIT_NS:
            self.send(now_ns)
        elif self._scheduled_under is not self.exchange.lock:
            self._schedule()

    def note_returned(self, parcels: int) -> None:
        """Note that the channels have bundles of so many parcels to give back, to be sent with the next resolutions."""
        self._waiting_count += parcels

    def send(self, now_ns: int) -> None:
        """Send what waits. What an interrupt leaves still counts as waiting."""
        if self._waiting_count:
            self._sent_at_ns = now_ns
            self._record_acked()
            for channel in self._channels.opened():
                channel.send_resolutions()
            self._waiting_count = 0

    def send_all(self) -> None:
        """Send what waits, as the process ends."""
        if not self.exchange.is_closed:
            self.send(time.monotonic_ns())

    def settle(self) -> None:
        """Wait until everything resolved so far is durable, if the worker ends with this process: then nobody else makes it so. Takes the
        lock. Raises as `settling`."""
        if self.exchange.has_worker_inside and not self.exchange.is_closed:
            self.exchange.run(self.settling(_SETTLE_SECONDS))

    def end(self) -> None:
        """Forget what was not sent."""
        self._acked.clear()
        self._waiting_count = 0

    def flushing(self, timeout_seconds: float) -> Flow[list[RefusedResolution]]:
        """Wait until everything resolved so far is durable. A worker that was lost since is waited for, and asked what it knows of that.

        Returns:
            What workers have refused since the last time that this returned; see `RefusedResolution`.

        Raises:
            WorkerUnavailable: what was resolved went with a connection and is delivered again, which is told once; or a worker did not
                answer in time.
            EngineFailed, QuiverError: a worker could not make it durable.
        """
        deadline_ns, count = deadline_after(timeout_seconds), 0
        while True:
            generations = {channel: channel.generation for channel in self._channels.opened()}
            try:
                count += yield from self._flushing_once(deadline_ns)
                if not any(channel.unconfirmed.has_lost for channel in self._channels.opened()):
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
        return [refused for channel in self._channels.opened() for refused in channel.refusals.take()]

    def settling(self, timeout_seconds: float | None) -> Flow[None]:
        """Wait until what was resolved over the connections of now is durable. Raises as `flushing`."""
        self.send(time.monotonic_ns())
        channels = [channel for channel in self._channels.opened() if channel.is_registered]
        requests = [
            Request(channel, channel.generation, call) for channel in channels for call in channel.gaps.under_way
        ]
        requests += [Request(channel, channel.generation, channel.flush_progress()) for channel in channels]
        number, generations = self._number, [channel.generation for channel in channels]
        yield from answering(requests, timeout_seconds)
        raise_refusals(request.call for request in requests)
        for channel, generation in zip(channels, generations, strict=True):
            channel.durable_counts[generation] = max(number, channel.durable_counts.get(generation, 0))

    def confirming_many(self, bundles: Iterable[Bundles], number: int, timeout_seconds: float) -> Flow[None]:
        """Wait until what `ack_many` noted under a number is durable; raise for the first bundle that the worker refused."""
        for parcel, indexes in bundles:
            for index in indexes:
                claim = Claim(parcel, index, number)
                yield from self.confirming(claim, claim, timeout_seconds)

    def confirming(self, claim: Claim, what: object, timeout_seconds: float) -> Flow[None]:
        """Wait until one bundle's resolution is durable; raise if the worker refused it.

        Args:
            what: the bundle, as messages name it.
        """
        if claim.parcel.is_current and not claim.is_answered:
            yield from self.settling(timeout_seconds)
        if not claim.is_answered:
            raise WorkerUnavailable(
                f"worker {claim.parcel.channel.core} was lost before it had confirmed {what}: it may be delivered again"
            )
        code = claim.refusal_code
        if code is not None:
            raise refusal(str(what), code)

    def _flushing_once(self, deadline_ns: int) -> Flow[int]:
        """Returns how many bundles are owed again whose resolution was lost with an earlier connection: they are forgotten with that."""
        self.send(time.monotonic_ns())
        channels = self._channels
        if any(channel.unconfirmed.has_lost for channel in channels.opened()):
            yield from channels.attaching(lambda channel: channel.unconfirmed.has_lost, seconds_until(deadline_ns))
        lost = {channel: places for channel in channels.opened() if (places := channel.unconfirmed.lost())}
        topic, subscriber = self._wanted.topic, self._wanted.subscriber
        count = yield from counting_unresolved(lost, topic, subscriber, seconds_until(deadline_ns))
        # What somebody else has resolved since is made durable too.
        yield from self.settling(seconds_until(deadline_ns))
        for channel, places in lost.items():
            channel.unconfirmed.settle(places)
        return count

    def _schedule(self) -> None:
        """Have what waits sent in time, also while no call runs."""
        self._scheduled_under = self.exchange.lock
        send_due = weakref.WeakMethod(self._send_due)

        def send_if_alive() -> None:
            send = send_due()
            if send is not None:
                send()

        # A subscription that nobody refers to any more is not kept alive for it, with its mapped files.
        self.exchange.call_at(self.due_at_ns, send_if_alive)

    def _send_due(self) -> None:
        """Send what has waited long enough; what came later waits for its own time."""
        self._scheduled_under = None
        now_ns = time.monotonic_ns()
        if now_ns >= self.due_at_ns:
            self.send(now_ns)
        elif self._waiting_count:
            self._schedule()

    def _record_acked(self) -> None:
        """Tell the channels what was acknowledged, all of one parcel together. What an interrupt leaves is told by the next call."""
        acked = self._acked
        for parcel, indexes in list(acked.items()):
            if parcel.is_current:
                parcel.channel.resolve(parcel, indexes, "ack")
            else:
                self._note_late(parcel, indexes, "ack")
            del acked[parcel]

    def _note_late(self, parcel: Parcel, indexes: list[int], outcome: str) -> None:
        self.late_count += len(indexes)
        parcel.channel.resolve_late(parcel, indexes, outcome)
