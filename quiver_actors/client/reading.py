"""The reading side of a client: what is stored, without a claim. Mixed into `Client`.

Guarantee: unless the client was connected with `verify_checksums=False`, no value of a stored bundle is shown before it has been proven
against its checksum. Damage raises, and the worker is told: it checks the file and saves what can be saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.archived_reads import ArchivedReads, ArchivedStream
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.projection import EVERYTHING, Asked, Projection
from quiver_actors.client.ranges import SegmentPart, check_bounds, parts_of
from quiver_actors.client.requests import OnDisk, Requests, WantedRange
from quiver_actors.client.retired import nothing_on_disk, retired_or_raise
from quiver_actors.client.schemas import HeldSchema
from quiver_actors.client.segments import BundleReader, MappedSegment, ReadableSegments, reader_of
from quiver_actors.client.statistics import SegmentStatistics
from quiver_actors.client.stored_range import StoredRange
from quiver_actors.client.two_copies import has_lost
from quiver_actors.errors import FormatError, NotStored, UnknownCore
from quiver_actors.store.segment.reader import SegmentReader


class ReadingClient:
    """Methods of `Client` that read stored bundles without claiming them."""

    _archived: ArchivedReads
    _exchange: Exchange
    _requests: Requests
    _verifies_checksums: bool

    def segments(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """The sealed segments of a topic, oldest first, by the core that has them. Raises as `flush`."""
        return self._exchange.run(self._requests.segments(topic))

    def readable(self, topic: str = DEFAULT_TOPIC) -> dict[int, ReadableSegments]:
        """What can be read of a topic, sealed or not, by the core that has it: everything that was acknowledged before the call, but for
        what its topic syncs at the seal only (`ReadableSegments.is_complete`). Raises as `flush`.
        """
        return self._exchange.run(self._requests.readable(topic))

    @property
    def archived_reads(self) -> ArchivedReads:
        """The archived part of what this client reads, for those who plan reads. Its methods wait for the archiver of the node."""
        return self._archived

    def archived(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SegmentInfo]]:
        """The segments of a topic that have left the disk, as the node's archive knows them, oldest first, by core.

        Those of which nothing is archived are among them, with 0 bytes. `read` reads them; there are none where the node has no archive.
        Cores that the node does not have any more are among these.

        Raises:
            NotAllowed, StorageUnavailable: the archiver cannot tell.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        found = self.readable(topic)
        retired = self._archived.retired(topic, found)
        gone = {core: self._archived.gone(topic, core, each.bounded, each.incarnation) for core, each in found.items()}
        return gone | {each.core: self._archived.gone(topic, each.core, (), each.incarnation) for each in retired}

    def schemas(self, topic: str = DEFAULT_TOPIC) -> list[HeldSchema]:
        """Every distinct schema that a topic has stored, by core, sealed or not. Raises as `flush`."""
        return self._exchange.run(self._requests.schemas(topic))

    def statistics(self, topic: str = DEFAULT_TOPIC) -> dict[int, dict[int, SegmentStatistics]]:
        """How many rows and nulls the columns of sealed segments have, and their smallest and largest values, by core and segment.

        They are made in the background, ten seconds after a seal at the earliest. Who leaves out segments by them reads those that are not
        named; see `SegmentStatistics.may_have`. Raises as `flush`.
        """
        return self._exchange.run(self._requests.statistics(topic))

    def tell_pruned(self, topic: str, segment_counts: Mapping[int, int]) -> None:
        """Tell workers, by core, how many segments a reader has left out by these statistics: their metrics count them. Waits for nobody.

        Datasets and statements tell it by themselves.
        """
        self._requests.teller_of_pruned(topic)(segment_counts)

    def schema(self, topic: str = DEFAULT_TOPIC, slot: str | int | None = None) -> pa.Schema:
        """The one schema to which everything that is stored in a slot conforms, sealed or not; docs/delivery.md has the rules.

        It costs the same however many segments there are, and narrows when segments go.

        Args:
            slot: its name or id; None: the only one that bundles have.

        Raises:
            SchemaConflict: a column has types that no type holds; the message names segments that have them.
            NotStored: nothing is stored in the slot.
            InvalidBundle: several slots have something, and none was named.
            UnknownSlot, UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        return self._exchange.run(self._requests.schema(topic, slot))

    def read_segment(
        self, core: int, topic: str, segment_seq: int, *, verify_checksums: bool | None = None
    ) -> SegmentReader:
        """Map one sealed segment and read it without claiming anything. It stays readable when it is deleted meanwhile.

        Args:
            verify_checksums: whether each bundle is proven against its checksum before it is returned; None: as the client was connected.

        Raises:
            QuiverError: the segment is not there (any more).
            ChecksumMismatch: it is damaged; the methods of the reader raise it too. The worker is told.
            FormatError: it cannot be read.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        opened = self._exchange.run(self._requests.opened_segment(core, topic, segment_seq))
        verifies = self._verifies_checksums if verify_checksums is None else verify_checksums
        tell = self._requests.teller_of_damage(core, topic, segment_seq)
        return reader_of(*opened, segment_seq, verifies_checksums=verifies, tell_damage=tell)

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
        """Map the bundles `[first, end)` of one segment, sealed or not, and read them without claiming anything.

        What was lost on the disk is read in the node's archive.

        A reader of a segment that is not sealed knows no other bundles. It stays readable whatever becomes of the segment.

        Args:
            verify_checksums: whether each bundle is proven against its checksum before it is returned; None: as the client was connected.

        Raises:
            NotStored, StorageUnavailable: the segment is neither there nor in the node's archive (any more), or cannot be read now.
            UsageError: it is not sealed, and some of these bundles cannot be read yet.
            ChecksumMismatch: it is damaged; the methods of the reader raise it too. The worker is told.
            FormatError: it cannot be read.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        verifies = self._verifies_checksums if verify_checksums is None else verify_checksums
        part = SegmentPart(segment_seq, first, end)
        reader: BundleReader | None = None
        failure: NotStored | FormatError | None = None
        try:
            reader = self._exchange.run(self._requests.part_reader(core, topic, part, verifies_checksums=verifies))
            if not has_lost(reader, first, end):
                return reader
        except (NotStored, FormatError) as error:
            failure = error
        except UnknownCore:
            pass  # it may be one that the node has had
        found = self._on_disk(topic, core, Asked.parse())
        stream = ArchivedStream(topic, core, found.incarnation)
        try:
            return self._archived.second_copy(stream, part, projection if reader is None else EVERYTHING)(reader)
        except NotStored as error:
            if reader is None:
                raise (failure or error) from error
            return reader

    def read(
        self,
        topic: str,
        core: int,
        start: BundleId | None = None,
        end: BundleId | None = None,
        *,
        slots: Iterable[str | int] | None = None,
        columns: Mapping[str | int, Iterable[str]] | None = None,
    ) -> StoredRange:
        """Read stored bundles of one core in order, from `start` up to and not including `end`, without claiming anything.

        The same range gives the same bytes again, at least until every subscriber has resolved it. The segments are fixed and checked by
        this call, and mapped one after the other as the iterator comes to them. Where the range begins before what is on the disk, a
        segment leaves the disk meanwhile, or bundles were lost there or are found damaged, what the node has archived is read
        (docs/archive.md). The worker is told of damage. A bundle that is lost in both is among those of the range: it raises DataLost when
        anything is asked of it. A damaged one that the archive does not have raises ChecksumMismatch.

        Of a core that the node does not have any more the archive has what there is: name the `start`.

        What is returned is an iterator, and a table for whoever takes Arrow streams: `polars.DataFrame(client.read(...))`.

        Args:
            start: None: the first that is on the disk.
            end: None: up to the last that was acknowledged before the call; of a topic with `durability = "segment_only"`, up to the last
                that can be read: it syncs at the seal.
            slots, columns: as of `subscribe`.

        Raises:
            NotStored: a bundle of the range is not stored any more, or cannot be read yet.
            UnknownCore: the node has never had this core, or has no archiver and does not have it any more.
            StorageUnavailable: there is no `end`, and something acknowledged could not be read for seconds; the message says why.
            UnknownTopic, UnknownSlot, UsageError, WorkerUnavailable: see `quiver_actors.errors`.
        """
        check_bounds(topic, core, start, end)
        found = self._on_disk(topic, core, Asked.parse(slots, columns))
        found.check_end(end)
        archived = self._archived.before(topic, core, start, found.segments, found.incarnation, end=end)
        parts = parts_of(archived.and_disk(found.segments), start, end, topic, core, archived.through)
        wanted = WantedRange(parts, core, found.slots, found.projection)
        return StoredRange(lambda: self._read(wanted, archived))

    def _on_disk(self, topic: str, core: int, asked: Asked) -> OnDisk:
        """What the disk has of a core; nothing of one that the node does not have any more. Raises UnknownCore: it has never had it."""
        try:
            return self._exchange.run(self._requests.on_disk(topic, core, asked))
        except UnknownCore as error:
            retired = retired_or_raise(self._archived.retired(topic, (), [core]), error)
        return self._exchange.run(nothing_on_disk(self._requests, topic, retired, asked))

    def _read(self, wanted: WantedRange, archived: ArchivedStream) -> Iterator[StoredBundle]:
        gone = [part for part in wanted.parts if part.segment_seq in archived.gone]
        ahead = self._archived.segments(archived, gone, wanted.slots, wanted.projection)
        for part in wanted.parts:
            segment = next(ahead) if part.segment_seq in archived.gone else self._segment(wanted, part, archived)
            for index in range(part.first, part.end):
                yield StoredBundle(segment, index)

    def _segment(self, wanted: WantedRange, part: SegmentPart, archived: ArchivedStream) -> MappedSegment:
        """The segment of a part that was on the disk: from there, else from the archive."""
        try:
            flow = self._requests.mapped_part(wanted, part, verifies_checksums=self._verifies_checksums)
            segment = self._exchange.run(flow)
        except NotStored:
            archived = self._archived.again(archived, part.segment_seq)
        else:
            segment.have_second_copy(self._archived.second_copy(archived, part, wanted.projection))
            return segment
        return self._archived.segment(archived, part, wanted.slots, wanted.projection)
