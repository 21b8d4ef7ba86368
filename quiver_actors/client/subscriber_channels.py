"""The connections of one consumer: a channel to each worker of the node, attached to the subscriber."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client.channels import ChannelSet, unavailable_error
from quiver_actors.client.exchange import FOREVER_NS, Exchange, Flow, deadline_after
from quiver_actors.client.inbox import Inbox
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.subscribe_request import StartPoints, SubscribeRequest
from quiver_actors.client.subscriber_channel import SubscriberChannel
from quiver_actors.errors import QuiverError, StorageUnavailable, WorkerUnavailable

TEND_NS_MIN = 10 * MILLISECOND_NS
"""Shortest time between two calls of `tend`."""
_TENDS_PER_LEASE = 6


def _is_needed(channel: SubscriberChannel) -> bool:
    return not channel.may_come_later


class SubscriberChannels:
    """The channels of one consumer. Used under the lock of its exchange; methods that return a `Flow` are driven by the exchange."""

    def __init__(
        self,
        exchange: Exchange,
        directory: WorkerDirectory,
        client_name: str,
        wanted: SubscribeRequest,
        starts: StartPoints,
        inbox: Inbox[Any],
    ) -> None:
        self.by_core = ChannelSet(exchange, directory, self._make_channel)
        self._exchange = exchange
        self._directory = directory
        self._client_name = client_name
        self._wanted = wanted
        self._starts = starts
        self._inbox = inbox
        self._is_attached = False

    def opened(self) -> list[SubscriberChannel]:
        """Return all channels that were ever asked for and still exist."""
        return self.by_core.opened()

    def registering(self, timeout_seconds: float) -> Flow[None]:
        """Attach to the subscriber on every worker, creating it where it is new; durable at the end.

        No worker sends a bundle before all needed workers have registered the subscriber: if one of them does not, no bundle of the others
        counts as delivered.

        Raises:
            UnknownTopic, QuiverError: a worker refused.
            StorageUnavailable: a core that takes bundles could not open the topic's directory in all that time.
            WorkerUnavailable: a worker did not answer in time.
        """
        try:
            yield from self.attaching(_is_needed, timeout_seconds)
        except WorkerUnavailable as error:
            raise self._named(error, timeout_seconds) from error
        # Workers that the node gets later may hold bundles that were pushed since: those are wanted too.
        self._starts = StartPoints("earliest")
        self._is_attached = True
        for channel in self.opened():
            channel.start_deliveries()

    def _named(self, error: WorkerUnavailable, timeout_seconds: float) -> QuiverError:
        """Return the error of a `registering` that took too long: a directory that is away by its name.

        The absent core cannot be left out until it is back. It takes bundles from then on, and may delete those that the subscribers it
        knows have resolved, before this one is registered there.
        """
        for channel in self.opened():
            reason = channel.refusals.unopened(channel.failure)
            if reason is not None and _is_needed(channel) and not channel.is_registered:
                return StorageUnavailable(
                    f"subscriber {self._wanted.subscriber!r} could not be registered by worker {channel.core} within {timeout_seconds} s: "
                    f"{reason}. Nothing was delivered; bring the directory back, then subscribe again"
                )
        return error

    def attaching(self, is_needed: Callable[[SubscriberChannel], bool], timeout_seconds: float | None) -> Flow[None]:
        """Wait until every needed channel is registered. Raises as `registering`."""
        deadline_ns = deadline_after(timeout_seconds)
        while True:
            now_ns = time.monotonic_ns()
            missing = [each for each in self.connected(now_ns) if is_needed(each) and not each.is_registered]
            if not missing:
                return
            if now_ns >= deadline_ns:
                raise unavailable_error(missing[0], timeout_seconds)
            # Not when something is due: that is for calls that take bundles, and a time that has passed would be waited for without rest.
            yield min(deadline_ns, self.retry_at_ns())

    def connected(self, now_ns: int) -> list[SubscriberChannel]:
        """Return a channel to every worker that the node has, connecting where it is due.

        Raises:
            QuiverError: a worker refused for good.
        """
        cores = self._directory.cores
        for channel in self.opened():
            if channel.core not in cores:
                self.by_core.drop(channel.core)
        channels = [self.by_core.channel(core) for core in cores]
        for channel in channels:
            channel.check_usable(is_news=True)
            channel.connect_if_due(now_ns)
            channel.check_usable()
        return channels

    def tend(self, now_ns: int) -> None:
        """Do what is due by the clock: extend the leases of waiting bundles."""
        for channel in self.opened():
            channel.tend(now_ns)

    def tend_interval_ns(self) -> int:
        """Return how long after `tend` it is due again: a part of the shortest lease; for ever if there is none."""
        # The leases of now decide: another consumer may have set them.
        shortest_ns = FOREVER_NS
        for channel in self.by_core.opened():
            lease_ns = channel.claims.terms.lease_ns
            if 0 < lease_ns < shortest_ns:
                shortest_ns = lease_ns
        return max(TEND_NS_MIN, shortest_ns // _TENDS_PER_LEASE) if shortest_ns < FOREVER_NS else FOREVER_NS

    def retry_at_ns(self) -> int:
        """Return when the next connection is to be tried."""
        first_ns = FOREVER_NS
        for channel in self.by_core.opened():
            if channel.retry_at_ns < first_ns:
                first_ns = channel.retry_at_ns
        return first_ns

    def _make_channel(self, core: int) -> SubscriberChannel:
        channel = SubscriberChannel(
            self._exchange,
            self._directory,
            core,
            self._client_name,
            wanted=self._wanted,
            starts=self._starts,
            inbox=self._inbox,
        )
        if self._is_attached:
            channel.start_deliveries()
        return channel
