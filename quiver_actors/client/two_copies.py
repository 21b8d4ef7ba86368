"""Two copies of a segment, one on the disk and one in the archive: a bundle that is lost or damaged in the first is read in the second.

Guarantee: no value is shown that its copy has not proven. A bundle that is damaged in both raises the error of the first, which is also
raised where the archive has nothing of it. An archive that is away just now raises that, and nothing counts as lost for it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from quiver_actors.client.archived_reader import ArchivedReader
from quiver_actors.client.segments import BundleReader
from quiver_actors.errors import DataLost, FormatError, NotStored
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.single_reads import SingleReads


class TwoCopies(SingleReads):
    """A `BundleReader` of one segment. Any number of threads may read. Only what is lost or damaged here waits for the archive."""

    def __init__(self, here: BundleReader, archived: ArchivedReader) -> None:
        self._here = here
        self._archived = archived
        self._elsewhere: set[int] = set()
        """Bundles that are read in the archive."""

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the segment, lost ones included."""
        return self._here.bundle_count

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine wrote the segment; None: not known."""
        return self._here.incarnation

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The stream directory of the archived copy, which has the schemas of all bundles."""
        return self._archived.streams

    def schema(self, stream_id: int) -> pa.Schema:
        """The Arrow schema of a stream of the archived copy. Raises StreamNotFound, FormatError."""
        return self._archived.schema(stream_id)

    def check(self, index: int) -> None:
        """Prove a bundle in the copy that it is read in.

        Raises:
            FormatError: it is damaged here, and no copy of the archive is any better.
            ArchiveError: the store cannot be read.
        """
        damage: FormatError | None = None
        if index not in self._elsewhere:
            try:
                self._here.check(index)
            except FormatError as error:
                damage = error
            else:
                if not self._here.is_lost(index):
                    return
        try:
            self._archived.check(index)
        except (DataLost, NotStored, FormatError) as error:
            if damage is not None:
                raise damage from error
            if isinstance(error, FormatError):
                raise
        else:
            self._elsewhere.add(index)

    def is_lost(self, index: int) -> bool:
        """Whether neither copy holds anything of the bundle."""
        if index in self._elsewhere or not self._here.is_lost(index):
            return False
        try:
            if self._archived.is_lost(index):
                return True
        except NotStored:
            return True
        self._elsewhere.add(index)
        return False

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, after `check`."""
        self.check(index)
        return self._of(index).bundle(index, slots)

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id."""
        return self._of(index).decode(index, slots)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        return self._of(index).slot_ids(index)

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry."""
        return self._of(index).byte_count(index)

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds."""
        return self._of(index).item_count(index)

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds."""
        return self._of(index).ingestion_ts(index)

    def _of(self, index: int) -> BundleReader:
        """The copy that a bundle is read in."""
        self.is_lost(index)
        return self._archived if index in self._elsewhere else self._here


def has_lost(reader: BundleReader, first: int, end: int) -> bool:
    """Whether a sealed segment says that bundles `[first, end)` of it were lost before its file was written."""
    if not isinstance(reader, SegmentReader):
        return False
    ends = np.asarray(reader.manifest.ref_ends[first : end + 1])
    return bool((ends[1:] == ends[:-1]).any())
