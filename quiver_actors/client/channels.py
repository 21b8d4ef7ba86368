"""The channels of a client or subscription: one per worker, made when first needed, and requests to several of them at once.

Used under the lock of the exchange, except where it says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NoReturn, TypeVar

from quiver_actors.base.protocol.messages import ListTopics
from quiver_actors.client.calls import Call
from quiver_actors.client.channel import Channel
from quiver_actors.client.exchange import FOREVER_NS, Exchange, Flow, closed_error, deadline_after
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import NotRunning, QuiverError, QuotaExceeded, UnknownCore, WorkerUnavailable

C = TypeVar("C", bound=Channel)


class ChannelSet(Generic[C]):
    """The channels of a client or subscription by core, each made when it is first asked for."""

    def __init__(self, exchange: Exchange, directory: WorkerDirectory, make: Callable[[int], C]) -> None:
        self.exchange = exchange
        self.directory = directory
        self._make: Callable[[int], C] = make
        self._channels: dict[int, C] = {}

    def channel(self, core: int) -> C:
        """The channel to a core's worker, connected or not."""
        found = self._channels.get(core)
        if found is None:
            found = self._channels[core] = self._make(core)
        return found

    def opened(self) -> list[C]:
        """All channels that were ever asked for."""
        return list(self._channels.values())

    def drop(self, core: int) -> None:
        """Close and forget one channel."""
        channel = self._channels.pop(core, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Close all channels, and make no more. Drops the factory, which refers to the set's owner and would keep the owner in memory."""
        for channel in self._channels.values():
            channel.close()
        self._make = _refuse_closed

    def telling(self, core: int, call: Call, features: int = 0) -> None:
        """Send a request to a core's worker and wait for no answer, with the lock held. A worker that is not there, or lacks one of these
        features, is not told."""
        channel = None if self.exchange.is_closed else self.channel(core)
        if channel is None or not channel.is_open or channel.features & features != features:
            return
        try:
            channel.call(call)
        except BaseException:
            self.exchange.break_off()
            raise

    def finding(self, core: int, topic: str, timeout_seconds: float | None) -> Flow[TopicSlots]:
        """Wait until the channel to a core's worker is open, and return a topic's slots, also of one that is newer than the channel.

        Raises:
            UnknownTopic: the node has no such topic.
            UnknownCore: the node runs without that core.
            WorkerUnavailable: the worker did not answer in time.
        """
        deadline_ns, topics = deadline_after(timeout_seconds), Call(ListTopics)
        channel = self.channel(core)
        while True:
            now_ns = time.monotonic_ns()
            channel.connect_if_due(now_ns)
            if channel.is_open and not channel.is_learning(topic, topics):
                return channel.topics.slots_of(topic)
            channel.check_usable()
            self._check_known([core])
            if now_ns >= deadline_ns:
                raise unavailable_error(channel, timeout_seconds)
            yield min(deadline_ns, channel.retry_at_ns)

    def asking_all(self, make: Callable[[int], Call], timeout_seconds: float | None) -> Flow[dict[int, Call]]:
        """Have every worker answer the call that is made for its core. The node may come back with more or fewer workers meanwhile:
        all workers that it has at the end have answered.

        A refusal is left in its call.

        Raises:
            WorkerUnavailable: a worker did not answer in time.
        """
        deadline_ns = deadline_after(timeout_seconds)
        calls: dict[int, Call] = {}
        try:
            while True:
                cores = self.directory.cores
                calls |= {core: make(core) for core in cores if core not in calls}
                pending = {core: calls[core] for core in cores}
                is_left = self._advance(pending)
                if self.directory.cores != cores:
                    continue
                if not is_left:
                    return {core: calls[core] for core in cores}
                yield self._wake_at_ns(pending, deadline_ns, timeout_seconds)
        finally:
            for core, call in calls.items():
                if not call.is_done:
                    self.channel(core).forget(call)

    def asking_any(self, call: Call, timeout_seconds: float | None) -> Flow[None]:
        """Have a worker answer a call that any of them can: the first that is there. A refusal is left in the call.

        Raises:
            WorkerUnavailable: none answered in time.
        """
        deadline_ns = deadline_after(timeout_seconds)
        asked = self.channel(self.directory.cores[0])
        try:
            while not call.is_done:
                now_ns, wake_at_ns = time.monotonic_ns(), FOREVER_NS
                if not call.tag:
                    asked, wake_at_ns = self._first_there(now_ns)
                    if asked.is_open:
                        asked.call(call)
                if now_ns >= deadline_ns:
                    raise unavailable_error(asked, timeout_seconds)
                yield min(deadline_ns, wake_at_ns)
        finally:
            asked.forget(call)

    def _first_there(self, now_ns: int) -> tuple[C, int]:
        """The first channel that is open, or about to be, and when to look again if it is not. The first one of all if all have failed."""
        channels, wake_at_ns = [self.channel(core) for core in self.directory.cores], FOREVER_NS
        for channel in channels:
            channel.connect_if_due(now_ns)
            wake_at_ns = min(wake_at_ns, channel.retry_at_ns)
            if channel.failure is None:
                return channel, wake_at_ns
        for channel in channels:
            channel.check_usable()
        return channels[0], wake_at_ns

    def completing(self, calls: Mapping[int, Call], timeout_seconds: float | None) -> Flow[None]:
        """Send each call to the core that it is filed under, again after each loss, until all are done.

        A refusal is left in its call.

        Raises:
            WorkerUnavailable: a worker did not answer in time.
            UnknownCore: the node runs without that core. A core whose worker is being restarted is waited for.
        """
        deadline_ns = deadline_after(timeout_seconds)
        pending = dict(calls)
        try:
            while self._advance(pending):
                self._check_known(pending)
                yield self._wake_at_ns(pending, deadline_ns, timeout_seconds)
        finally:
            for core, call in pending.items():
                self.channel(core).forget(call)

    def _check_known(self, cores: Iterable[int]) -> None:
        """Raise UnknownCore if the node that runs now does not have one of these cores."""
        for core in cores:
            if isinstance(self.channel(core).failure, UnknownCore):
                # That may be 0.2 s old, and of another node.
                with contextlib.suppress(NotRunning):
                    self.directory.check_core(core)

    def _wake_at_ns(self, pending: Mapping[int, Call], deadline_ns: int, timeout_seconds: float | None) -> int:
        if time.monotonic_ns() >= deadline_ns:
            raise unavailable_error(self.channel(next(iter(pending))), timeout_seconds)
        return min(deadline_ns, *(self.channel(core).retry_at_ns for core in pending))

    def _advance(self, pending: dict[int, Call]) -> bool:
        """Send the calls that are not under way, take out the finished ones, and return whether any are left."""
        now_ns = time.monotonic_ns()
        for core, call in list(pending.items()):
            channel = self.channel(core)
            channel.connect_if_due(now_ns)
            if call.is_done:
                del pending[core]
            elif channel.is_open and not call.tag:
                channel.call(call)
            else:
                channel.check_usable()
        return bool(pending)


def _refuse_closed(core: int) -> NoReturn:
    raise closed_error()


def unavailable_error(channel: Channel, timeout_seconds: float | None) -> QuiverError:
    """Return the error for a worker that did not answer in time; the quota error if it refuses the user's connections."""
    if isinstance(channel.failure, QuotaExceeded) and not channel.is_open:
        return channel.failure
    if channel.is_open:
        reason = "it is connected, but is stopped or busy"
    else:
        reason = str(channel.failure or "it took the connection, but does not answer")
    return WorkerUnavailable(
        f"worker {channel.core} did not answer within {timeout_seconds} s: {reason}; look at `quiver status`"
    )


def raise_refusals(calls: Iterable[Call]) -> None:
    """Raise the first refusal; descriptors that other answers carried are closed then."""
    refused: QuiverError | None = next((call.error for call in calls if call.error is not None), None)
    if refused is None:
        return
    for call in calls:
        if call.descriptor is not None:
            os.close(call.descriptor)
    raise refused
