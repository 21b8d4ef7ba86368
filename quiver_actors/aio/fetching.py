"""Fetches what is archived of bundles in a thread, before they are handed out: an event loop does not wait for the archiver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from quiver_actors.aio.delivery import Delivery
from quiver_actors.client.archived_bundles import ArchivedBundles
from quiver_actors.client.segments import MappedSegment


async def fetch_bundles(segment: MappedSegment, indexes: Sequence[int]) -> None:
    """Fetch bundles of an archived segment. What fails is raised when somebody asks for their values."""
    if isinstance(segment, ArchivedBundles):
        await asyncio.to_thread(segment.fetch, indexes)


async def fetch_deliveries(deliveries: Iterable[Delivery]) -> None:
    """Fetch the bundles of deliveries, as far as they are archived."""
    for delivery in deliveries:
        if delivery.is_archived:
            claim = delivery.claim
            await fetch_bundles(claim.parcel.segment, [claim.bundle_index])
