"""The calls of a client that attach to durable subscribers. Mixed into `Client`.

Guarantee: a new subscriber that names a place gets everything from there on, on each core that the node has: what has left the disk from
the archive, then what is on the disk, then what comes. If that cannot be, nothing is begun. What is archived of cores that the node does
not have any more does not come: `not_delivered` of the subscription names it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeVar, Unpack, overload

from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.archived_start import Looked, looking, names_a_place, warn_of, with_archive
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.hold import Hold
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.requests import Requests
from quiver_actors.client.subscribe_request import (
    Gaps,
    Start,
    StartPoints,
    SubscribeOptions,
    SubscribeRequest,
    start_text,
)
from quiver_actors.client.subscription import AnySubscription, GapSubscription, Subscription
from quiver_actors.errors import NotStored

STARTS_TRIED_MAX = 5
"""How often a new subscriber's place in the archive is looked for, while segments leave the disk."""

S = TypeVar("S", bound=AnySubscription)


class SubscribingClient:
    """Methods of `Client` by which consumers and holders of ranges attach to a subscriber."""

    _reads_archive: bool = True
    """Whether there can be an archiver to read through."""

    _archived: ArchivedReads
    _directory: WorkerDirectory
    _exchange: Exchange
    _name: str
    _requests: Requests
    _subscriptions: weakref.WeakSet[AnySubscription]
    _timeout_seconds: float
    _verifies_checksums: bool

    def _new_exchange(self) -> Exchange:
        raise NotImplementedError

    @overload
    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["log"] = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["deliver"],
        **options: Unpack[SubscribeOptions],
    ) -> GapSubscription: ...

    def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Gaps = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription | GapSubscription:
        """Attach to a durable subscriber on all workers, creating it if it is new.

        Args:
            gaps: what becomes of notices of bundles that will never come: `log` (default) logs and counts them and calls `on_gap`;
                `deliver` gives them out too, among the deliveries, where the bundles would have come.
            options: `start`, `order`, `backfill_ratio`, `prefetch`, `max_in_flight`, `max_in_flight_bytes`, `lease`, `max_deliveries`,
                `exhausted`, `dead_letter_topic`, `slots`, `columns`, `idle_timeout`, `on_bundle`, `on_gap`: see `SubscribeOptions`.

        Raises:
            InvalidId, UnknownTopic, UnknownSlot, UsageError: the call is wrong; or too much lies in the archive behind the start.
            NotAllowed, StorageUnavailable: the start of a new subscriber may lie in the archive, which cannot be asked.
            WorkerUnavailable: a worker was away; the subscriber needs all of them.
            NotRunning: the node was stopped.
        """
        self._exchange.check_open()
        wanted = SubscribeRequest.parse(topic, subscriber, gaps, options, verifies_checksums=self._verifies_checksums)
        if wanted.are_gaps_delivered:
            return self.attach(GapSubscription, wanted)
        return self.attach(Subscription, wanted)

    def attach(self, kind: type[S], wanted: SubscribeRequest) -> S:
        """Open a subscription of some class, as `subscribe` does; for who serves consumers of other hosts. Raises as `subscribe`."""
        wanted = replace(wanted, archive=self._archived if self._reads_archive else None)
        tries = 0
        while True:
            subscription = kind(
                self._new_exchange(), self._directory.another(), self._name, wanted, self._starts(wanted)
            )
            try:
                subscription.register(self._timeout_seconds)
            except BaseException as error:
                subscription.abort()
                tries += 1
                if not isinstance(error, NotStored) or tries == STARTS_TRIED_MAX:
                    raise
                # A segment has left the disk between the looks at it and at the archive.
                continue
            self._subscriptions.add(subscription)
            warn_of(wanted.subscriber, subscription.not_delivered)
            return subscription

    def _starts(self, wanted: SubscribeRequest) -> StartPoints:
        """Where a new subscriber begins on each core, and what of the archive each is to be told."""
        is_in_archive = names_a_place(wanted) and self._archived.has_archiver
        looked = self._exchange.run(looking(self._requests, wanted)) if is_in_archive else Looked()
        starts = self._exchange.run(self._requests.starting(wanted.topic, wanted.start))
        return with_archive(self._archived, wanted, starts, looked) if looked.found else starts

    def hold(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        start: Start = "earliest",
        starts: Mapping[int, BundleId] | None = None,
        ttl: float = 0.0,
    ) -> Hold:
        """Attach to a durable subscriber that reads ranges and claims nothing: what it has not acknowledged stays stored.

        Args:
            start: of a new subscriber, as `subscribe` has it; `starts`: for some cores, the first bundle that it needs.
            ttl: seconds after which the subscriber is dropped when no hold is attached to it; 0: the topic's `orphan_ttl`.

        Raises:
            InvalidId, UsageError: the call is wrong. Workers are asked when they are first looked at.
        """
        self._exchange.check_open()
        return Hold(
            self._new_exchange(),
            self._directory.another(),
            self._name,
            topic,
            subscriber,
            start=start_text(start),
            starts={core: start_text(bundle_id) for core, bundle_id in (starts or {}).items()},
            ttl_ns=nanoseconds("ttl", ttl),
            timeout_seconds=self._timeout_seconds,
        )
