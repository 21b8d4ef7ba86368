"""Waiting for the archive on an event loop. Mixed into the asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.base.model import BundleId, Receipt
from quiver_actors.client.archived import (
    ARCHIVE_TIMEOUT_SECONDS,
    LOOK_SECONDS,
    Wanted,
    incarnations_of,
    looking,
    topics_of,
    wanted_of,
)
from quiver_actors.client.requests import Requests


class ArchiveWaiting:
    """Methods of `Client` that wait for the archive."""

    _exchange: LoopExchange
    _requests: Requests

    @property
    def run_dir(self) -> str:
        """Path of the node's run directory."""
        raise NotImplementedError

    async def wait_archived(
        self, receipts: Iterable[Receipt | BundleId], timeout: float = ARCHIVE_TIMEOUT_SECONDS
    ) -> None:
        """Wait until the bundles of these receipts are in the archive; see `Client.wait_archived` of threads. Raises NotArchived."""
        receipts = list(receipts)
        wanted: list[Wanted] = []
        for topic in topics_of(receipts):
            incarnations = await self._exchange.complete(incarnations_of(self._requests, topic))
            wanted += [each for each in wanted_of(receipts, incarnations) if each.topic == topic]
        await self._await_archived(wanted, timeout)

    async def _await_archived(self, wanted: list[Wanted], timeout_seconds: float) -> None:
        await awaiting_archived(self.run_dir, wanted, timeout_seconds)


async def awaiting_archived(run_dir: str, wanted: Iterable[Wanted], timeout_seconds: float) -> None:
    """Wait as `client.archived.await_archived`. A thread only looks: however many tasks wait, and are cancelled, none of them keeps one."""
    looks = looking(run_dir, wanted, timeout_seconds)
    while not await asyncio.to_thread(next, looks, True):
        await asyncio.sleep(LOOK_SECONDS)
