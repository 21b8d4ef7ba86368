"""The manifest of a segment, decoded: where the slots of each bundle are, and what is known of the bundle. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Manifest(NamedTuple):
    """The batch manifest. Slot references of bundle i are `[ref_ends[i], ref_ends[i + 1])` of the three columns behind it."""

    bundle_count: int
    ref_ends: Sequence[int]
    ref_slots: Sequence[int]
    ref_streams: Sequence[int]
    ref_chunks: Sequence[int]
    item_count: Sequence[int | None] | None
    byte_count: Sequence[int | None] | None
    sequence: Sequence[int | None] | None
    ingestion_ts_nanos: Sequence[int | None] | None
    bundle_crc32: Sequence[int | None] | None = None
    """See `segment.compaction`; only in segments that were compacted."""

    def refs(self, index: int) -> range:
        """The slot references of a bundle. Raises IndexError."""
        if not 0 <= index < self.bundle_count:
            raise IndexError(f"bundle {index} is not in 0..{self.bundle_count - 1}")
        return range(self.ref_ends[index], self.ref_ends[index + 1])

    def value(self, column: Sequence[int | None] | None, index: int) -> int | None:
        """The value of a bundle in one of the optional columns, None where unknown. Raises IndexError."""
        if not 0 <= index < self.bundle_count:
            raise IndexError(f"bundle {index} is not in 0..{self.bundle_count - 1}")
        return None if column is None else column[index]

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        refs = self.refs(index)
        return tuple(self.ref_slots[refs.start : refs.stop])

    def stream_ids(self, index: int) -> tuple[int, ...]:
        """The streams that a bundle's slots are in."""
        refs = self.refs(index)
        return tuple(self.ref_streams[refs.start : refs.stop])

    def chunks(self, index: int) -> tuple[tuple[int, int], ...]:
        """Where each slot of a bundle is, as (stream, chunk)."""
        return tuple((self.ref_streams[ref], self.ref_chunks[ref]) for ref in self.refs(index))

    def is_lost(self, index: int) -> bool:
        """Whether the bundle holds nothing: it was lost to damage before the segment was sealed, or rescued."""
        return self.ref_ends[index] == self.ref_ends[index + 1]

    def lost(self) -> tuple[int, ...]:
        """Indexes of the bundles that hold nothing."""
        return tuple(index for index in range(self.bundle_count) if self.is_lost(index))


class ManifestColumns(NamedTuple):
    """Properties of a writer's bundles, as numpy arrays of one length (and `refs` of the slots behind each other)."""

    slot_counts: npt.NDArray[np.int32]
    refs: npt.NDArray[np.uint32]
    """The slot references, n x 3: slot id, stream id, chunk index."""
    item_count: npt.NDArray[np.int64]
    """-1 where unknown."""
    byte_count: npt.NDArray[np.uint64]
    sequence: npt.NDArray[np.uint64]
    ingestion_ts_nanos: npt.NDArray[np.int64]
    bundle_crc32: npt.NDArray[np.uint32] | None = None
    """See `segment.compaction`; None for no such column."""
