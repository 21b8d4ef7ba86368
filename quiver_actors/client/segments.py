"""Segment files as a client has them: mapped from a descriptor that a worker sent, read without a copy."""

from __future__ import annotations

import mmap
import os
import threading

import pyarrow as pa

from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.slots import TopicSlots
from quiver_actors.envelope import trace_in
from quiver_actors.errors import DiskError, Truncated
from quiver_actors.model import ENVELOPE_SLOT
from quiver_actors.segment.reader import SegmentReader


def map_segment(descriptor: int, size_bytes: int, segment_seq: int) -> mmap.mmap:
    """Map a segment's file read-only and close the descriptor.

    Raises:
        Truncated: the file is shorter than announced; reading the mapping would kill this process.
        DiskError: it cannot be mapped.
    """
    try:
        found_bytes = os.fstat(descriptor).st_size
        if found_bytes < size_bytes:
            raise Truncated(f"segment {segment_seq} has {found_bytes} bytes: the worker announced {size_bytes}")
        return mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    except OSError as error:
        raise DiskError("mmap", f"segment {segment_seq}", error.errno or 0) from error
    finally:
        os.close(descriptor)


class MappedSegment:
    """One mapped segment whose reader is made when it is first needed. Any number of threads may read bundles.

    The mapping lives as long as this object or any batch that points into it. All methods raise FormatError where the file cannot be
    read, IndexError for a bundle that it does not hold.
    """

    __slots__ = ("_lock", "_mapping", "_reader", "core", "projection", "segment_seq", "slots")

    def __init__(
        self,
        descriptor: int,
        size_bytes: int,
        segment_seq: int,
        slots: TopicSlots,
        core: int,
        projection: Projection = EVERYTHING,
    ) -> None:
        """Takes ownership of the descriptor. Raises what `map_segment` raises.

        Args:
            slots, core: the topic and the worker that it is of.
        """
        self.segment_seq = segment_seq
        self.slots = slots
        self.core = core
        self.projection = projection
        self._mapping = map_segment(descriptor, size_bytes, segment_seq)
        self._reader: SegmentReader | None = None
        self._lock = threading.Lock()

    @property
    def bundle_count(self) -> int:
        with self._lock:
            return self._opened().bundle_count

    @property
    def incarnation(self) -> bytes | None:
        """Of the engine that wrote it, None in a segment that another implementation wrote."""
        with self._lock:
            extension = self._opened().footer.extension
        return None if extension is None else extension.incarnation

    def bundle(self, index: int) -> dict[int, pa.RecordBatch]:
        """What is asked for of a bundle, by slot id; see `SegmentReader.bundle`."""
        projection = self.projection
        with self._lock:
            found = (self._reader or self._opened()).bundle(index, projection.slots)
        if projection.columns:
            return {slot_id: projection.of_slot(slot_id, batch) for slot_id, batch in found.items()}
        return found

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """What is asked for of one slot of a bundle; see `SegmentReader.batch`.

        Raises:
            UsageError: the slot is not asked for.
        """
        self.projection.check(slot_id)
        with self._lock:
            found = (self._reader or self._opened()).batch(index, slot_id)
        return self.projection.of_slot(slot_id, found)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has, as far as they are asked for."""
        with self._lock:
            found = self._opened().slot_ids(index)
        slots = self.projection.slots
        return found if slots is None else tuple(slot_id for slot_id in found if slot_id in slots)

    def trace_context(self, index: int) -> dict[str, str]:
        """What the envelope of a bundle says of its trace, whatever slots are asked for; empty if nothing."""
        with self._lock:
            reader = self._opened()
            if ENVELOPE_SLOT not in reader.slot_ids(index):
                return {}
            return trace_in(reader.batch(index, ENVELOPE_SLOT))

    def item_count(self, index: int) -> int | None:
        with self._lock:
            return self._opened().item_count(index)

    def ingestion_ts_nanos(self, index: int) -> int | None:
        with self._lock:
            return self._opened().ingestion_ts(index)

    def _opened(self) -> SegmentReader:
        if self._reader is None:
            self._reader = SegmentReader(self._mapping, segment_seq=self.segment_seq)
        return self._reader
