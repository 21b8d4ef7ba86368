"""The calls of an asynchronous client that attach to durable subscribers; see `client.subscribing`. Mixed into `Client`."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace
from typing import Literal, Unpack, overload

from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.aio.subscription import AnySubscription, GapSubscription, Subscription
from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.archived_start import Looked, looking, names_a_place, warn_of, with_archive
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.requests import Requests
from quiver_actors.client.subscribe_request import Gaps, StartPoints, SubscribeOptions, SubscribeRequest
from quiver_actors.client.subscribing import STARTS_TRIED_MAX
from quiver_actors.errors import NotStored


class SubscribingClient:
    """Methods of `Client` by which consumers attach to a subscriber. The archiver is asked in a thread."""

    _reads_archive: bool = True
    """Whether there can be an archiver to read through."""

    _archived: ArchivedReads
    _directory: WorkerDirectory
    _exchange: LoopExchange
    _name: str
    _requests: Requests
    _subscriptions: weakref.WeakSet[AnySubscription]
    _timeout_seconds: float
    _verifies_checksums: bool

    def _new_exchange(self) -> LoopExchange:
        raise NotImplementedError

    @overload
    async def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["log"] = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription: ...

    @overload
    async def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Literal["deliver"],
        **options: Unpack[SubscribeOptions],
    ) -> GapSubscription: ...

    async def subscribe(
        self,
        subscriber: str,
        *,
        topic: str = DEFAULT_TOPIC,
        gaps: Gaps = "log",
        **options: Unpack[SubscribeOptions],
    ) -> Subscription | GapSubscription:
        """Attach to a durable subscriber; the options are those of `SubscribeOptions`. The callbacks may be coroutine functions.

        What a bundle has in the archive is fetched before `get` returns it, which may take longer than the time that `get` was given.
        """
        wanted = SubscribeRequest.parse(topic, subscriber, gaps, options, verifies_checksums=self._verifies_checksums)
        wanted = replace(wanted, archive=self._archived if self._reads_archive else None)
        kind = GapSubscription if wanted.are_gaps_delivered else Subscription
        tries = 0
        while True:
            starts = await self._starts(wanted)
            subscription = kind(self._new_exchange(), self._directory.another(), self._name, wanted, starts)
            try:
                await subscription.register(self._timeout_seconds)
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

    async def _starts(self, wanted: SubscribeRequest) -> StartPoints:
        """Where a new subscriber begins on each core, and what of the archive each is to be told."""
        is_in_archive = names_a_place(wanted) and await asyncio.to_thread(lambda: self._archived.has_archiver)
        looked = await self._exchange.complete(looking(self._requests, wanted)) if is_in_archive else Looked()
        starts = await self._exchange.complete(self._requests.starting(wanted.topic, wanted.start))
        return await asyncio.to_thread(with_archive, self._archived, wanted, starts, looked) if looked.found else starts
