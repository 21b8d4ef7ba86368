"""Reads the bundles of one segment number of an archive: from its object, from another copy where that is damaged, or not at all.

Guarantees: no value is shown that is not proven against the checksums of the archive. A bundle that is lost raises DataLost, which says
why; one that is damaged in every copy raises ChecksumMismatch. Any thread may read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.object_store import ObjectMissing
from quiver_actors.archive.reading.pieces import Numbered
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.errors import DataLost, FormatError, SlotNotInBundle, StreamNotFound
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.ranged import RangedReader
from quiver_actors.store.segment.runs import Run

T = TypeVar("T")

OpenCopy = Callable[[int, Projection, int], RangedReader]
"""`open_copy(generation, projection, end)`: a reader of one copy, which fetches nothing from bundle `end` on ahead."""
FindGenerations = Callable[[], Sequence[int]]
"""The generations of other copies that the store may have, the best first."""


class ArchivedReader:
    """A `BundleReader` of one segment number; it also has a segment's streams.

    Args:
        stream, numbered: what is read.
        other_generations: asked when the copy that the manifest names cannot be read.
    """

    def __init__(
        self,
        stream: StreamKey,
        numbered: Numbered,
        open_copy: OpenCopy,
        other_generations: FindGenerations,
        projection: Projection = EVERYTHING,
        end: int | None = None,
    ) -> None:
        self._stream = stream
        self._numbered = numbered
        self._open_copy = open_copy
        self._other_generations = other_generations
        self._projection = projection
        self._end = numbered.bundle_count if end is None else end
        self._lock = threading.RLock()
        self._reader: RangedReader | None = None
        self._left: list[int] | None = None
        """Generations that were not tried; None: nobody has looked for them."""

    @property
    def bundle_count(self) -> int:
        """Number of bundles, lost ones included; 1 where nobody knows how many a lost segment had."""
        return self._numbered.bundle_count

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles that are archived."""
        return 0 if self._numbered.segment is None else self._numbered.segment.row_count

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory that the segment lay in; None where nothing says it."""
        return None if self._numbered.segment is None else self._ask(lambda reader: reader.incarnation)

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The segment's stream directory; empty where nothing of it is archived."""
        return () if self._numbered.segment is None else self._ask(lambda reader: reader.streams)

    def schema(self, stream_id: int) -> pa.Schema:
        """The Arrow schema of a stream. Raises StreamNotFound, FormatError."""
        if self._numbered.segment is None:
            raise StreamNotFound(f"{self._where()} has no streams: nothing of it is archived")
        return self._ask(lambda reader: reader.schema(stream_id))

    def is_lost(self, index: int) -> bool:
        """Whether nothing of the bundle is archived."""
        if self._numbered.segment is None:
            return True
        return self._ask(lambda reader: reader.is_lost(index))

    def check(self, index: int) -> None:
        """Fetch and prove what is wanted of a bundle.

        Raises:
            DataLost: nothing of it is archived; the error says why.
            ChecksumMismatch: every copy of it is damaged.
            ArchiveError: the store cannot be read.
        """
        if not 0 <= index < self.bundle_count:
            raise IndexError(f"bundle {index} is not in 0..{self.bundle_count - 1}")
        if self.is_lost(index):
            raise DataLost(self._loss(index))
        self._ask(lambda reader: reader.check(index))

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, after `check`; none of a lost one."""
        if self.is_lost(index):
            return {}
        self.check(index)
        return self.decode(index, slots)

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id; none of a lost one."""
        if self._numbered.segment is None:
            return {}
        return self._ask(lambda reader: reader.decode(index, slots))

    def decode_batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle."""
        return self._ask(lambda reader: reader.decode_batch(index, slot_id))

    def runs(
        self,
        indexes: Sequence[int],
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Run]:
        """Return no runs: all bundles are read one by one."""
        return []

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has; none of a lost one."""
        return () if self._numbered.segment is None else self._ask(lambda reader: reader.slot_ids(index))

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry."""
        return None if self._numbered.segment is None else self._ask(lambda reader: reader.byte_count(index))

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds."""
        return None if self._numbered.segment is None else self._ask(lambda reader: reader.item_count(index))

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds."""
        return None if self._numbered.segment is None else self._ask(lambda reader: reader.ingestion_ts(index))

    # --- copies --------------------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[RangedReader], T]) -> T:
        """Put a question to the copy that is read; to another one if it turns out to be damaged or missing."""
        with self._lock:
            first: FormatError | ObjectMissing | None = None
            while True:
                try:
                    return question(self._opened())
                except SlotNotInBundle:
                    raise
                except (FormatError, ObjectMissing) as error:
                    first = first or error
                    if not self._take_another():
                        raise first from None

    def _opened(self) -> RangedReader:
        segment = self._numbered.segment
        assert segment is not None, "asked of what is archived only"
        if self._reader is None:
            self._reader = self._open_copy(segment.generation, self._projection, self._end)
        return self._reader

    def _take_another(self) -> bool:
        """Open the next copy that has the same bundles; False if there is none."""
        segment = self._numbered.segment
        assert segment is not None, "asked of what is archived only"
        if self._left is None:
            self._left = [each for each in self._other_generations() if each != segment.generation]
        while self._left:
            try:
                found = self._open_copy(self._left.pop(0), self._projection, self._end)
            except (FormatError, ObjectMissing):
                continue
            if found.bundle_count == segment.bundle_count:
                self._reader = found
                return True
        # The next question goes to the copy that the manifest names again: it may have been mended.
        self._reader, self._left = None, None
        return False

    def _loss(self, index: int) -> str:
        hole = self._numbered.loss(index)
        reason = "damaged" if hole is None else hole.reason
        return f"bundle {index} of {self._where()} is not archived ({reason}): nothing of it is stored in the archive"

    def _where(self) -> str:
        topic, _, core = self._stream
        return f"segment {self._numbered.segment_seq} of topic {topic!r}, core {core}"
