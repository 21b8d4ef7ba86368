"""The archived part of what a node of this host is asked by those who plan and carry out reads, through its archiver.

The disk is looked at first and the archive afterwards: what leaves the disk in between was archived before, and is found there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from quiver_actors.base.protocol.archive_messages import RetiredCore
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client import Client
from quiver_actors.client.archived_reader import ArchivedReader
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.ranges import SegmentPart
from quiver_actors.client.segments import BundleReader, ReadableSegments
from quiver_actors.client.statistics import SegmentStatistics, StreamStatistics, statistics_in
from quiver_actors.errors import NotStored, StorageUnavailable, UsageError, WorkerUnavailable
from quiver_actors.flight.archived_contents import (
    ArchivedNames,
    ArchivedPart,
    ArchiveTerms,
    end_of_retired,
    first_wanted,
    part_in_front,
)
from quiver_actors.flight.contract import CoreContents, Look, ReadTicket, schema_bytes
from quiver_actors.flight.stored import SegmentStreams
from quiver_actors.store.segment.codec import StreamInfo

logger = logging.getLogger("quiver.flight")


class KnownPart(NamedTuple):
    """What the archive answered for one core, and to which question."""

    question: tuple[object, ...]
    part: ArchivedPart | None
    """None: it has nothing of the core at all."""


def with_archive(
    client: Client,
    topic: str,
    core: CoreContents,
    terms: ArchiveTerms,
    known: dict[int, KnownPart] | None = None,
) -> CoreContents:
    """The contents of a core with what the archive has from where the asker begins; nothing is asked where the disk has all of it.

    Args:
        known: the answers to the same asker by core, which are kept there: one who waits for bundles asks again and again, and the object
            store is not to be asked each time.

    Raises:
        NotAllowed, StorageUnavailable, WorkerUnavailable: the archiver cannot tell.
    """
    disk, start = core.disk, terms.start(core.core)
    lost = {gap.segment_seq for gap in core.gaps}
    first = first_wanted(disk, terms, core.core, lost)
    if first is None:
        return core
    question = (core.incarnation, first, start, sorted(lost), disk.damaged(start), *disk.missing(start))
    kept = None if known is None else known.get(core.core)
    if kept is not None and kept.question == question:
        return msgspec.structs.replace(core, archived=kept.part)
    stream = ArchivedStream(topic, core.core, core.incarnation)
    # With the one in front, whose end says whether anything was stored between it and the next.
    found = _listed(client, stream, max(0, first - 1), disk.infos)
    part = None if found.through < 0 else part_in_front(disk, found.segments.values(), found.holes, found.through)
    # What is still to be recorded of what is in front of the disk is looked for again.
    is_recorded = part is None or core.is_retired or found.through + 1 >= disk.first or start[0] >= disk.first
    if known is not None and is_recorded:
        known[core.core] = KnownPart(question, part)
    return msgspec.structs.replace(core, archived=part)


def retired_cores(client: Client, request: Look, served: Collection[int]) -> list[RetiredCore]:
    """The cores that the node does not have any more and that the asker wants. `served`: those that it has. Raises as `with_archive`."""
    if request.retired is None:
        return []
    return client.archived_reads.retired(request.topic, served, request.retired.cores)


def retired_contents(
    client: Client, request: Look, retired: Iterable[RetiredCore], known: dict[int, KnownPart] | None = None
) -> list[CoreContents]:
    """What the archive has of such cores from where the asker begins. `known`: as of `with_archive`. Raises as that."""
    return [_retired(client, request, each, known) for each in retired]


def _retired(client: Client, request: Look, retired: RetiredCore, known: dict[int, KnownPart] | None) -> CoreContents:
    core = CoreContents(
        retired.core, [], incarnation=retired.incarnation, comes_next=retired.next_segment_seq, is_retired=True
    )
    terms = request.archive
    if terms is None and retired.next_segment_seq >= 0:
        return core
    # Where a core ended that was not closed cleanly, the archive alone can tell.
    found = with_archive(client, request.topic, core, terms or ArchiveTerms(), known)
    return msgspec.structs.replace(
        found,
        comes_next=end_of_retired(retired, found.archived),
        archived=None if terms is None else found.archived,
    )


def archived_schemas(client: Client, topic: str) -> Iterator[tuple[int, bytes]]:
    """Yield slot and schema message of what the archive has of a topic. Raises as `with_archive`."""
    cores = client.readable(topic)
    known = [(core, each.incarnation, each.infos) for core, each in cores.items()]
    known += [(each.core, each.incarnation, []) for each in client.archived_reads.retired(topic, cores)]
    for core, incarnation, on_disk in known:
        found = _listed(client, ArchivedStream(topic, core, incarnation), 0, on_disk, with_columns=True)
        columns = found.columns
        if columns is None:
            continue
        yield from columns.schemas
        described = {each.segment_seq for each in columns.segments}
        better = {info.segment_seq for info in on_disk if info.lost_count and found.has_more_of(info)}
        for seq in sorted((found.gone | better) - described):
            if found.segments[seq].size_bytes:
                yield from _schemas_of(client.archived_reads, found, found.segments[seq])


def archived_columns(client: Client, topic: str, named: Mapping[int, ArchivedNames]) -> Iterator[ArchivedColumns]:
    """Yield what is known of the columns of archived segments, by core. Raises as `with_archive`."""
    for core, names in named.items():
        stream = ArchivedStream(topic, core, names.incarnation)
        first = min(names.bundle_counts, default=0)
        found = client.archived_reads.since(stream, first, (), with_columns=True)
        known = {} if found.columns is None else statistics_in(found.columns)
        wanted = {seq: found.segments[seq] for seq in names.bundle_counts if seq in found.segments}
        described = {seq: known[seq] for seq in wanted if seq in known}
        yield ArchivedColumns(core, described, _rows_of(client.archived_reads, found, wanted, described))


class ArchivedColumns(NamedTuple):
    """Rows and statistics of some archived segments of a core."""

    core: int
    statistics: Mapping[int, SegmentStatistics]
    """Statistics of the segments that the archive has a description of, by number."""
    rows: Mapping[int, dict[int, int]]
    """Rows by segment and slot."""


class TicketSegments:
    """The segments of a ticket, on the disk or in the archive; see `stored.Stored`."""

    def __init__(self, client: Client, ticket: ReadTicket) -> None:
        self._client = client
        self._names = ticket.archived
        self._door = client.archived_reads.another_door()

    def readable(self, topic: str) -> dict[int, ReadableSegments]:
        """See `Client.readable`."""
        return self._client.readable(topic)

    def read_segment(self, core: int, topic: str, segment_seq: int) -> SegmentStreams:
        """See `Client.read_segment`."""
        return self._client.read_segment(core, topic, segment_seq)

    def read_part(
        self,
        core: int,
        topic: str,
        segment_seq: int,
        first: int,
        end: int,
        *,
        verify_checksums: bool | None = None,
        projection: Projection = EVERYTHING,
    ) -> BundleReader:
        """Open a part where the ticket says that it is; one that has left the disk since is in the archive, as far as it is known."""
        names = self._names
        if names is None or segment_seq not in names.bundle_counts:
            return self._client.read_part(
                core, topic, segment_seq, first, end, verify_checksums=verify_checksums, projection=projection
            )
        info = SegmentInfo(segment_seq, names.bundle_counts[segment_seq], 0, 1, 0, 0)
        stream = ArchivedStream(topic, core, names.incarnation, {segment_seq: info})
        return self._client.archived_reads.reader(stream, SegmentPart(segment_seq, first, end), projection, self._door)

    def close(self) -> None:
        """End the connection to the archiver. What was read stays readable."""
        self._door.close()


def _listed(
    client: Client,
    stream: ArchivedStream,
    first_segment_seq: int,
    on_disk: Sequence[SegmentInfo],
    *,
    with_columns: bool = False,
) -> ArchivedStream:
    """Ask the archiver what there is from a segment on. If it cannot tell, a topic that the node does not archive has nothing there.

    Raises:
        As `with_archive`, of a topic that the node archives.
    """
    try:
        return client.archived_reads.since(stream, first_segment_seq, on_disk, with_columns=with_columns)
    except (StorageUnavailable, UsageError, WorkerUnavailable) as error:
        if client.topics()[stream.topic].is_archived:
            raise
        logger.warning("quiver.flight.archive_not_asked topic=%s core=%d error=%s", stream.topic, stream.core, error)
        return stream


def _rows_of(
    reads: ArchivedReads,
    stream: ArchivedStream,
    wanted: Mapping[int, SegmentInfo],
    described: Mapping[int, SegmentStatistics],
) -> dict[int, dict[int, int]]:
    """Rows by segment and slot: as the archive's manifest describes them, else by the ends of the segments."""
    rows: dict[int, dict[int, int]] = {}
    for seq, info in wanted.items():
        # One that has left the archive, too, is not named: whoever reads its rows says so.
        with contextlib.suppress(NotStored):
            streams: Sequence[StreamStatistics | StreamInfo] = (
                described[seq].streams if seq in described else _reader_of(reads, stream, info).streams
            )
            of_slots = rows.setdefault(seq, {})
            for each in streams:
                of_slots[each.slot_id] = of_slots.get(each.slot_id, 0) + each.row_count
    return rows


def _schemas_of(reads: ArchivedReads, stream: ArchivedStream, info: SegmentInfo) -> Iterator[tuple[int, bytes]]:
    reader = _reader_of(reads, stream, info)
    with contextlib.suppress(NotStored):
        for each in reader.streams:
            yield each.slot_id, schema_bytes(reader.schema(each.stream_id))


def _reader_of(reads: ArchivedReads, stream: ArchivedStream, info: SegmentInfo) -> ArchivedReader:
    return reads.reader(stream, SegmentPart(info.segment_seq, 0, info.bundle_count), EVERYTHING)
