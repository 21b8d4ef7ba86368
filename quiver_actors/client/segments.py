"""Segment files as a client has them: mapped from a descriptor that a worker sent, read without a copy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from quiver_actors.base.envelope import trace_in
from quiver_actors.base.locks import new_lock
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import DataLost, FormatError, NotStored, ProtocolError, Truncated
from quiver_actors.store.segment.checked import TellDamage, open_reader, tell_nobody
from quiver_actors.store.segment.mapping import SegmentMapping
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.runs import Run
from quiver_actors.store.wal.entry_reader import EntryReader, LogEntries, Place, TellDamaged
from quiver_actors.store.wal.entry_reader import tell_nobody as tell_nobody_of

_new_place: Callable[[tuple[int, int, int]], Place] = partial(tuple.__new__, Place)
"""Makes a place without the constructor's Python code."""


class BundleReader(Protocol):
    """Reads the bundles of one segment, sealed or not; see `SegmentReader`."""

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the segment, lost ones included."""

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine wrote the segment; None: not known."""

    def check(self, index: int) -> None:
        """Prove a bundle against its checksum."""

    def is_lost(self, index: int) -> bool:
        """Whether the bundle holds nothing."""

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, after `check`."""

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id."""

    def decode_batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle."""

    def runs(
        self, indexes: Sequence[int], slots: Collection[int] | None, columns: Mapping[int, Sequence[str]] | None
    ) -> list[Run]:
        """Return the bundles that can be read together, each of them proven; see `SegmentReader.runs`."""

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry."""

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds."""

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds."""


SecondCopy = Callable[[BundleReader | None], BundleReader]
"""Makes a reader that has another copy of a segment beside that reader, or instead of it where it cannot be made. Raises NotStored: there
is no other copy."""


class ReadableSegments(NamedTuple):
    """What one worker has of a topic that can be read now."""

    sealed: list[SegmentInfo]
    """Oldest first."""
    unsealed: list[SegmentInfo]
    """Oldest first, behind them: the bundles that can be read already. Rows are not counted: `row_count` is -1."""
    is_complete: bool
    """Everything that was acknowledged is in one of the two lists. False: some of it can be read only once it is sealed, as where
    `durability` is "segment_only", and `flush` makes it so; or see `obstacle`."""
    incarnation: str = ""
    """Incarnation of the core's directory; empty: not known."""
    next_segment_seq: int = -1
    """No segment has had this number or a higher one; -1: not known."""
    obstacle: str = ""
    """Why some of what was acknowledged could not be read within seconds, as while a publish in front of it is stuck; empty: nothing is in
    the way."""
    unlisted: tuple[int, ...] = ()
    """Numbers of segments that are there and not in the first list: not sealed, or damaged and not rescued yet."""
    unsealed_from: tuple[int, int] | None = None
    """Segment number and log position at which begins what is not sealed, or the next log will; None: not known."""

    @property
    def infos(self) -> list[SegmentInfo]:
        """All of them, oldest first."""
        return [*self.sealed, *self.unsealed]

    @property
    def next_log(self) -> SegmentInfo | None:
        """The log behind them, as a segment without bundles: it tells whether the newest one is missing. None: an unsealed one tells it, or
        the positions are not known."""
        if self.unsealed or self.unsealed_from is None or not all(info.position_end for info in self.sealed[-1:]):
            return None
        segment_seq, position = self.unsealed_from
        return SegmentInfo(segment_seq, 0, -1, 0, 0, 0, position_start=position, position_end=position)

    @property
    def bounded(self) -> list[SegmentInfo]:
        """All of them, and behind them the next log."""
        return [*self.infos, *filter(None, [self.next_log])]


def map_segment(descriptor: int, size_bytes: int, segment_seq: int, *, is_log: bool = False) -> SegmentMapping:
    """Map a segment's file and close the descriptor. Raises what `SegmentMapping` raises."""
    try:
        return SegmentMapping(descriptor, size_bytes, segment_seq, is_log=is_log)
    finally:
        os.close(descriptor)


def reader_of(
    descriptor: int, size_bytes: int, segment_seq: int, *, verifies_checksums: bool, tell_damage: TellDamage
) -> SegmentReader:
    """A reader of a segment's file, which is mapped; closes the descriptor. Raises what `map_segment` and the readers raise."""
    mapping = map_segment(descriptor, size_bytes, segment_seq)
    return open_reader(mapping, segment_seq, verifies_checksums=verifies_checksums, tell_damage=tell_damage)


class MappedSegment:
    """One mapped segment, or some bundles of a log that becomes one. Any number of threads may read bundles.

    The mapping lives as long as this object or any batch that points into it. All methods raise FormatError where the file cannot be
    read, IndexError for a bundle that it does not hold. A bundle is proven by `check` alone: whoever asks for something of a bundle has
    called it before.
    """

    __slots__ = (
        "_lock",
        "_open_reader",
        "_reader",
        "_second_copy",
        "core",
        "projection",
        "segment_seq",
        "slots",
    )

    def __init__(
        self,
        open_reader: Callable[[], BundleReader],
        segment_seq: int,
        slots: TopicSlots,
        core: int,
        projection: Projection = EVERYTHING,
    ) -> None:
        """
        Args:
            open_reader: makes the reader, when it is first needed.
            slots, core: the topic and the worker that it is of.
        """
        self.segment_seq = segment_seq
        self.slots = slots
        self.core = core
        self.projection = projection
        self._open_reader = open_reader
        self._reader: BundleReader | None = None
        self._second_copy: SecondCopy | None = None
        self._lock = new_lock()

    @classmethod
    def sealed(
        cls,
        descriptor: int,
        size_bytes: int,
        segment_seq: int,
        slots: TopicSlots,
        core: int,
        projection: Projection = EVERYTHING,
        *,
        verifies_checksums: bool = True,
        tell_damage: TellDamage = tell_nobody,
    ) -> MappedSegment:
        """A sealed segment. Takes ownership of the descriptor. Raises what `map_segment` raises.

        Args:
            verifies_checksums: False: `check` proves nothing.
            tell_damage: called with what is wrong when the file is found to be damaged, before that is raised.
        """
        mapping = map_segment(descriptor, size_bytes, segment_seq)
        reader = partial(
            open_reader, mapping, segment_seq, verifies_checksums=verifies_checksums, tell_damage=tell_damage
        )
        return cls(reader, segment_seq, slots, core, projection)

    def have_second_copy(self, second_copy: SecondCopy) -> None:
        """Read what is lost or damaged here in another copy, from when the first such bundle is met: that waits for the archive."""
        self._second_copy = second_copy

    def check(self, index: int) -> None:
        """Prove a bundle, whole, whatever of it is asked for; see `SegmentReader.check`.

        Raises:
            DataLost: nothing of it is stored any more.
        """
        reader = self._reader
        if reader is None:
            with self._lock:
                reader = self._opened()
        # Not under the lock: a large bundle must not hold up others.
        try:
            reader.check(index)
            if not reader.is_lost(index):
                return
            failure: FormatError | DataLost = self._loss(index)
        except (FormatError, DataLost) as error:
            failure = error
        other = self._beside(reader)
        if other is None:
            raise failure
        other.check(index)
        if other.is_lost(index):
            raise self._loss(index)

    def _beside(self, reader: BundleReader) -> BundleReader | None:
        """What reads another copy, too, from now on; None: there is no other."""
        with self._lock:
            if self._reader is not reader:
                return self._reader  # another thread has met damage, too
            if self._second_copy is None:
                return None
            found = None
            with contextlib.suppress(NotStored):
                found = self._second_copy(reader)
            self._reader, self._second_copy = found or reader, None
            return found

    def _loss(self, index: int) -> DataLost:
        return DataLost(
            f"bundle {index} of segment {self.segment_seq} of topic {self.slots.topic!r}, core {self.core}, was lost to damage: "
            "nothing of it is stored any more; subscribers got a gap notice"
        )

    @property
    def reader(self) -> BundleReader:
        """What reads the bundles; it proves those that are asked for, and knows nothing of a projection."""
        with self._lock:
            return self._opened()

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the segment, lost ones included."""
        with self._lock:
            return self._opened().bundle_count

    @property
    def incarnation(self) -> bytes | None:
        """Incarnation of the engine that wrote the segment; None in a segment that another implementation wrote."""
        with self._lock:
            return self._opened().incarnation

    def bundle(self, index: int) -> dict[int, pa.RecordBatch]:
        """Return the requested slots of a bundle, by slot id, with the requested columns; see `SegmentReader.decode`."""
        projection = self.projection
        with self._lock:
            found = (self._reader or self._opened()).decode(index, projection.slots)
        if projection.columns:
            return {slot_id: projection.of_slot(slot_id, batch) for slot_id, batch in found.items()}
        return found

    @property
    def is_mapped(self) -> bool:
        """Whether it is a mapped file, which it is."""
        return True

    def narrowed(self, slot_id: int, columns: Sequence[str] | None) -> MappedSegment:
        """The same bundles: what a scan does not name of a mapped file costs nothing."""
        return self

    def runs(self, indexes: Sequence[int]) -> list[Run]:
        """Return what is requested of those bundles that can be read together, and prove them by that; see `RunReader.read`."""
        projection = self.projection
        # Not under the lock: it may read megabytes.
        return self.reader.runs(indexes, projection.slots, projection.columns)

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """Return the requested columns of one slot of a bundle; see `SegmentReader.decode_batch`.

        Raises:
            UsageError: the slot is not asked for.
        """
        self.projection.check(slot_id)
        with self._lock:
            found = (self._reader or self._opened()).decode_batch(index, slot_id)
        return self.projection.of_slot(slot_id, found)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has, as far as they are asked for."""
        with self._lock:
            found = self._opened().slot_ids(index)
        slots = self.projection.slots
        return found if slots is None else tuple(slot_id for slot_id in found if slot_id in slots)

    def trace_context(self, index: int) -> dict[str, str]:
        """Return the trace context in the envelope of a bundle, whatever slots are asked for; empty if there is none."""
        with self._lock:
            reader = self._opened()
            if ENVELOPE_SLOT not in reader.slot_ids(index):
                return {}
            return trace_in(reader.decode_batch(index, ENVELOPE_SLOT))

    def item_count(self, index: int) -> int | None:
        """Return the item count that the producer gave a bundle, or None if it gave none."""
        with self._lock:
            return self._opened().item_count(index)

    def ingestion_ts_nanos(self, index: int) -> int | None:
        """Return when the worker took a bundle in, UNIX nanoseconds; None where the writer did not record it."""
        with self._lock:
            return self._opened().ingestion_ts(index)

    def _opened(self) -> BundleReader:
        if self._reader is None:
            try:
                self._reader = self._open_reader()
            except FormatError as error:
                if self._second_copy is None:
                    raise
                try:
                    self._reader, self._second_copy = self._second_copy(None), None
                except NotStored:
                    raise error from None
        return self._reader


class MappedLog:
    """A mapped log that becomes a segment. Its bundles are read by their places, which come with each delivery."""

    def __init__(
        self,
        descriptor: int,
        size_bytes: int,
        segment_seq: int,
        slots: TopicSlots,
        core: int,
        projection: Projection = EVERYTHING,
        *,
        verifies_checksums: bool = True,
        tell_damage: TellDamaged = tell_nobody_of,
    ) -> None:
        """Takes ownership of the descriptor. An empty file holds none of the bundles: each counts as damaged when it is read.

        Args:
            size_bytes: of the file when the worker opened it; its seal may have made it shorter since.

        Raises:
            DiskError: it cannot be mapped.
        """
        try:
            memory = map_segment(descriptor, size_bytes, segment_seq, is_log=True).memory
        except Truncated:
            memory = memoryview(b"")
        self._entries = LogEntries(memory)
        self._segment_seq = segment_seq
        self._of_topic = slots, core, projection
        self._verifies_checksums = verifies_checksums
        self._tell_damage = tell_damage

    def part(self, indexes: Sequence[int], places: bytes) -> MappedSegment:
        """The bundles of these indexes.

        Args:
            places: a `base.protocol.places.PLACE` for each of them.

        Raises:
            ProtocolError: the places are not those of the bundles.
        """
        if len(places) != len(indexes) * PLACE.size:
            raise ProtocolError(
                f"{len(indexes)} bundles of segment {self._segment_seq} came with {len(places)} bytes of places"
            )
        # A place behind the file's end is found by the reader, as damage of that bundle alone: somebody may have cut the file off.
        found = dict(zip(indexes, map(_new_place, PLACE.iter_unpack(places)), strict=True))
        reader = EntryReader(
            self._entries,
            found,
            self._segment_seq,
            verifies_checksums=self._verifies_checksums,
            tell_damage=self._tell_damage,
        )
        return MappedSegment(lambda: reader, self._segment_seq, *self._of_topic)
