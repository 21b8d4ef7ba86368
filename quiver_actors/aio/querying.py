"""The questions of an asynchronous client to what is stored, as datasets and in SQL. Mixed into `Client`; see `client.querying`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.requests import Requests

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from quiver_actors.query.dataset import TopicDataset
    from quiver_actors.query.event_times import EventBound
    from quiver_actors.query.limits import SqlLimits
    from quiver_actors.query.snapshot import Progress
    from quiver_actors.query.span import Bound


class QueryingClient:
    """Methods of `Client` that ask."""

    _archived: ArchivedReads
    _exchange: LoopExchange
    _requests: Requests
    _verifies_checksums: bool

    async def dataset(
        self,
        topic: str = DEFAULT_TOPIC,
        slot: str | int | None = None,
        *,
        start: Bound = None,
        end: Bound = None,
        where: str | pc.Expression | None = None,
        event_start: EventBound = None,
        event_end: EventBound = None,
        metadata: bool | Iterable[str] = False,
        skip_damaged: bool = False,
    ) -> TopicDataset:
        """Return what a slot of a topic holds now as a `pyarrow.dataset.Dataset`; see `quiver_actors.client.Client.dataset`.

        A scan reads mapped files and does not wait for the node, but it fetches what is archived; a large one belongs into a thread.
        """
        from quiver_actors.client.querying import dataset_from, taking_dataset

        span, flow = taking_dataset(self._requests, topic, start, end, verifies_checksums=self._verifies_checksums)
        taken = await self._exchange.complete(flow)
        choice = {"slot": slot, "where": where, "event_start": event_start, "event_end": event_end}
        choice |= {"metadata": metadata, "skip_damaged": skip_damaged}
        return await asyncio.to_thread(dataset_from, self._archived, taken, span, **choice)

    async def sql(
        self,
        statement: str,
        *,
        engine: str = "duckdb",
        topics: Collection[str] | None = None,
        start: Bound = None,
        end: Bound = None,
        skip_damaged: bool = False,
        progress: Progress | None = None,
        limits: SqlLimits | None = None,
    ) -> pa.RecordBatchReader:
        """Run one reading SQL statement over what is stored now; see `quiver_actors.client.Client.sql`."""
        from quiver_actors.client.querying import answer, span_of_times, taking_material

        span = span_of_times(start, end)
        flow = taking_material(self._requests, statement, topics, span, verifies_checksums=self._verifies_checksums)
        gathered = await self._exchange.complete(flow)
        choice = {"skip_damaged": skip_damaged, "progress": progress, "limits": limits}
        return await asyncio.to_thread(answer, self._archived, statement, gathered, engine, **choice)
