"""The common part of readers that read each bundle by itself: out of a segment, a log, an archive, a message, or two copies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from quiver_actors.errors import SlotNotInBundle
from quiver_actors.store.segment.runs import Run


class SingleReads(ABC):
    """Methods that follow from `decode` and `slot_ids`, which the reader has. `SegmentReader` reads runs together, the others do not."""

    @abstractmethod
    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, for a caller that has called `check` before."""

    @abstractmethod
    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""

    def decode_batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle. Raises SlotNotInBundle, and as `decode`."""
        found = self.decode(index, (slot_id,))
        if slot_id not in found:
            raise SlotNotInBundle(f"bundle {index} has no slot {slot_id}: it has {list(self.slot_ids(index))}")
        return found[slot_id]

    def runs(
        self,
        indexes: Sequence[int],
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Run]:
        """Return none: no bundles are read together."""
        return []
