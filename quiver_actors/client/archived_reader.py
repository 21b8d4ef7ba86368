"""Reads the bundles of one archived segment: from its object, from another copy where that is damaged, or not at all.

Guarantees: no value is shown that is not proven against the checksums of the archive. A bundle that is lost raises DataLost, which says
why; one that is damaged in every copy raises the error of the first. Any thread may read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

import pyarrow as pa

from quiver_actors.errors import (
    DataLost,
    FormatError,
    InvalidFormat,
    NotStored,
    SlotNotInBundle,
    StreamNotFound,
    WorkerUnavailable,
)
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.ranged import RangedReader
from quiver_actors.store.segment.single_reads import SingleReads

T = TypeVar("T")

OpenCopy = Callable[[int], RangedReader]
"""`open_copy(number)`: a reader of one copy, 0 for the one that the manifest names. Raises NotStored: there is none of that number."""


class ArchiveLost(DataLost):
    """Nothing of a bundle is in the archive. `reason` is that of the hole."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ArchivedSegment(NamedTuple):
    """A segment, as far as it is known before anything of it is fetched."""

    where: str
    """Names it in errors."""
    bundle_count: int
    row_count: int
    is_archived: bool
    """False: nothing of it is."""
    loss_reason: Callable[[int], str]
    """Why a bundle is lost."""
    ingestion_span: tuple[int, int] = (0, 0)
    """The ingestion times of its first and last push, UNIX nanoseconds; both 0: not known."""

    def check(self, reader: RangedReader, *, is_named: bool) -> None:
        """Raise InvalidFormat if a copy of it has other bundles: those that a copy of the data directory has stored under the same number.

        Args:
            is_named: the manifest names the copy, by its checksum.
        """
        if reader.bundle_count != self.bundle_count:
            raise InvalidFormat(
                f"a copy of {self.where} has {reader.bundle_count} bundles: expected {self.bundle_count}"
            )
        if not is_named and any(self.ingestion_span) and reader.ingestion_span not in (None, self.ingestion_span):
            raise InvalidFormat(
                f"a copy of {self.where} has bundles of other times: it is another segment of this number"
            )


class ArchivedReader(SingleReads):
    """A `BundleReader` of one segment; it also has the segment's streams."""

    def __init__(
        self, segment: ArchivedSegment, open_copy: OpenCopy, note_read: Callable[[], None] | None = None
    ) -> None:
        """`note_read` is called for each bundle that was proven, and must not raise."""
        self._segment = segment
        self._open_copy = open_copy
        self._note_read = note_read
        self._lock = threading.RLock()
        self._reader: RangedReader | None = None
        self._copy = 0
        """Number of the copy that is read, or is to be opened."""

    @property
    def bundle_count(self) -> int:
        """Number of bundles, lost ones included; 1 where nobody knows how many a lost segment had."""
        return self._segment.bundle_count

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles that are archived."""
        return self._segment.row_count

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory that the segment lay in; None where nothing says it."""
        return None if not self._segment.is_archived else self._ask(lambda reader: reader.incarnation)

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The segment's stream directory; empty where nothing of it is archived."""
        return () if not self._segment.is_archived else self._ask(lambda reader: reader.streams)

    def schema(self, stream_id: int) -> pa.Schema:
        """The Arrow schema of a stream. Raises StreamNotFound, FormatError."""
        if not self._segment.is_archived:
            raise StreamNotFound(f"{self._segment.where} has no streams: nothing of it is archived")
        return self._ask(lambda reader: reader.schema(stream_id))

    def is_lost(self, index: int) -> bool:
        """Whether nothing of the bundle is archived."""
        if not self._segment.is_archived:
            return True
        return self._ask(lambda reader: reader.is_lost(index))

    def check(self, index: int) -> None:
        """Fetch and prove what is wanted of a bundle.

        Raises:
            DataLost: nothing of it is archived; the error says why.
            ChecksumMismatch: every copy of it is damaged.
            ArchiveError: the store cannot be read.
        """
        if not self._segment.is_archived or not self._ask(lambda reader: _has_proven(reader, index)):
            raise self._loss(index)
        if self._note_read is not None:
            self._note_read()

    def fetch(self, index: int) -> None:
        """Fetch what `check` will want of a bundle and of those that follow. Raises as `check`, but nothing for a lost bundle."""
        if not self.is_lost(index):
            self._ask(lambda reader: reader.fetch(index))

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, after `check`; none of a lost one."""
        if self.is_lost(index):
            return {}
        self.check(index)
        return self.decode(index, slots)

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """Read the record batches of a bundle by slot id; empty for a lost bundle."""
        if not self._segment.is_archived:
            return {}
        return self._ask(lambda reader: reader.decode(index, slots))

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has; none of a lost one."""
        return () if not self._segment.is_archived else self._ask(lambda reader: reader.slot_ids(index))

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry."""
        return None if not self._segment.is_archived else self._ask(lambda reader: reader.byte_count(index))

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds."""
        return None if not self._segment.is_archived else self._ask(lambda reader: reader.item_count(index))

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds."""
        return None if not self._segment.is_archived else self._ask(lambda reader: reader.ingestion_ts(index))

    # --- copies --------------------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[RangedReader], T]) -> T:
        """Put a question to the copy that is read; to another one if it turns out to be damaged or missing."""
        with self._lock:
            first: FormatError | NotStored | None = None
            may_reopen = True
            while True:
                try:
                    return question(self._opened())
                except WorkerUnavailable:
                    # What fetched for this reader is gone, and another one may be there.
                    if self._reader is None or not may_reopen:
                        raise
                    self._reader, may_reopen = None, False
                except SlotNotInBundle:
                    raise
                except (FormatError, NotStored) as error:
                    first = first or error
                    is_last = isinstance(error, NotStored) and self._copy > 0
                    # After the last one the next question goes to the first again: it may have been mended.
                    self._reader, self._copy = None, 0 if is_last else self._copy + 1
                    if is_last:
                        raise first from None

    def _opened(self) -> RangedReader:
        if self._reader is None:
            reader = self._open_copy(self._copy)
            self._segment.check(reader, is_named=self._copy == 0)
            self._reader = reader
        return self._reader

    def _loss(self, index: int) -> ArchiveLost:
        reason = self._segment.loss_reason(index)
        return ArchiveLost(
            f"bundle {index} of {self._segment.where} is not archived ({reason}): nothing of it is stored in the archive",
            reason,
        )


def _has_proven(reader: RangedReader, index: int) -> bool:
    """Prove a bundle; False where nothing of it is archived."""
    if reader.is_lost(index):
        return False
    reader.check(index)
    return True
