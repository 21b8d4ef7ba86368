"""Reading stored bundles on an event loop, on the disk and in the archive. Mixed into the asynchronous client.

The archiver is asked in a thread. What is archived of a bundle is fetched in a thread, too, before the bundle is handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.aio.fetching import fetch_bundles
from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.projection import Asked
from quiver_actors.client.ranges import SegmentPart, check_bounds, parts_of
from quiver_actors.client.requests import OnDisk, Requests, WantedRange
from quiver_actors.client.retired import nothing_on_disk, retired_or_raise
from quiver_actors.client.segments import BundleReader, MappedSegment
from quiver_actors.errors import NotStored, UnknownCore


class ReadingClient:
    """Methods of `Client` that read stored bundles by range."""

    _archived: ArchivedReads
    _exchange: LoopExchange
    _requests: Requests
    _verifies_checksums: bool

    async def archived(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """The segments of a topic that have left the disk, as the node's archive knows them; see `Client.archived` of threads."""
        found = await self._exchange.complete(self._requests.readable(topic))
        retired = await asyncio.to_thread(self._archived.retired, topic, found)
        cores = {core: (each.bounded, each.incarnation) for core, each in found.items()}
        cores |= {each.core: ([], each.incarnation) for each in retired}
        return {core: await asyncio.to_thread(self._archived.gone, topic, core, *each) for core, each in cores.items()}

    async def read_part(
        self, core: int, topic: str, segment_seq: int, first: int, end: int, *, verify_checksums: bool | None = None
    ) -> BundleReader:
        """Open the bundles `[first, end)` of one segment, sealed or not, without a claim; see `Client.read_part` of threads.

        The reader of a segment that has left the disk fetches what it is asked for: it belongs into a thread.
        """
        verifies = self._verifies_checksums if verify_checksums is None else verify_checksums
        part = SegmentPart(segment_seq, first, end)
        try:
            flow = self._requests.part_reader(core, topic, part, verifies_checksums=verifies)
            return await self._exchange.complete(flow)
        except (NotStored, UnknownCore):
            found = await self._on_disk(topic, core, Asked.parse())
            stream = ArchivedStream(topic, core, found.incarnation)
            stream = await asyncio.to_thread(self._archived.again, stream, segment_seq)
            return self._archived.reader(stream, part, found.projection)

    async def read(
        self,
        topic: str,
        core: int,
        start: BundleId | None = None,
        end: BundleId | None = None,
        *,
        slots: Iterable[str | int] | None = None,
        columns: Mapping[str | int, Iterable[str]] | None = None,
    ) -> AsyncIterator[StoredBundle]:
        """Read stored bundles with `async for`, archived ones too; see `Client.read` of threads.

        The range is fixed and checked when the first bundle is asked for.
        """
        check_bounds(topic, core, start, end)
        found = await self._on_disk(topic, core, Asked.parse(slots, columns))
        found.check_end(end)
        asked = (topic, core, start, found.segments, found.incarnation)
        archived = await asyncio.to_thread(self._archived.before, *asked, end=end)
        parts = parts_of(archived.and_disk(found.segments), start, end, topic, core, archived.through)
        wanted = WantedRange(parts, core, found.slots, found.projection)
        gone = [part for part in parts if part.segment_seq in archived.gone]
        ahead = self._archived.segments(archived, gone, wanted.slots, wanted.projection)
        for part in parts:
            segment = next(ahead) if part.segment_seq in archived.gone else await self._mapped(wanted, part)
            if segment is None:
                stream = await asyncio.to_thread(self._archived.again, archived, part.segment_seq)
                segment = self._archived.segment(stream, part, wanted.slots, wanted.projection)
            for index in range(part.first, part.end):
                await fetch_bundles(segment, [index])
                yield StoredBundle(segment, index)

    async def _on_disk(self, topic: str, core: int, asked: Asked) -> OnDisk:
        """What the disk has of a core; nothing of one that the node does not have any more. Raises UnknownCore: it has never had it."""
        try:
            return await self._exchange.complete(self._requests.on_disk(topic, core, asked))
        except UnknownCore as error:
            retired = retired_or_raise(await asyncio.to_thread(self._archived.retired, topic, (), [core]), error)
        return await self._exchange.complete(nothing_on_disk(self._requests, topic, retired, asked))

    async def _mapped(self, wanted: WantedRange, part: SegmentPart) -> MappedSegment | None:
        """Map the segment of a part; None: it has left the disk."""
        flow = self._requests.mapped_part(wanted, part, verifies_checksums=self._verifies_checksums)
        try:
            return await self._exchange.complete(flow)
        except NotStored:
            return None
