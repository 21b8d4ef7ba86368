"""Segment files as a client has them: mapped from a descriptor that a worker sent, read without a copy."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection

import pyarrow as pa

from quiver_actors.errors import DiskError, Truncated
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

    The mapping lives as long as this object or any batch that points into it.
    """

    __slots__ = ("_lock", "_mapping", "_reader", "segment_seq")

    def __init__(self, descriptor: int, size_bytes: int, segment_seq: int) -> None:
        """Takes ownership of the descriptor. Raises what `map_segment` raises."""
        self.segment_seq = segment_seq
        self._mapping = map_segment(descriptor, size_bytes, segment_seq)
        self._reader: SegmentReader | None = None
        self._lock = threading.Lock()

    @property
    def incarnation(self) -> bytes | None:
        """Of the engine that wrote it, None in a segment that another implementation wrote."""
        with self._lock:
            extension = self._opened().footer.extension
        return None if extension is None else extension.incarnation

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id; see `SegmentReader.bundle`."""
        with self._lock:
            return self._opened().bundle(index, slots)

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle; see `SegmentReader.batch`."""
        with self._lock:
            return self._opened().batch(index, slot_id)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        with self._lock:
            return self._opened().slot_ids(index)

    def row_count(self, index: int) -> int:
        """Rows of all slots of a bundle."""
        with self._lock:
            return sum(self._opened().row_counts(index).values())

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
