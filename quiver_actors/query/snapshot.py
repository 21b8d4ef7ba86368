"""What a topic held at one moment: the bundles of each segment, sealed or open, in the memory of this process.

Guarantee: a snapshot gives the same bundles however often it is read, whatever becomes of their segments: a file that is deleted, replaced
or cut meanwhile stays mapped. Its room on the disk comes back when the last snapshot that holds it goes. Archived segments are fetched when
they are read; they stay the same as long as the archive keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from quiver_actors.base.model import SlotTable
from quiver_actors.store.segment.statistics import ColumnStatistics

SEGMENTS_MAX = 16_384
"""Most segments of one snapshot: each is a mapping, of which Linux gives a process 65,530."""


class PinnedBundles(Protocol):
    """Bundles of one segment, mapped or archived. Any number of threads may read them."""

    @property
    def reader(self) -> Any:
        """What reads the file: a `SegmentReader` or one like it, or an `EntryReader` where it is not sealed."""

    @property
    def is_mapped(self) -> bool:
        """Whether they are in the memory of this process: reading them waits for nobody."""

    def narrowed(self, slot_id: int, columns: Sequence[str] | None) -> PinnedBundles:
        """The bundles for one scan of these columns of a slot; None: of all columns.

        Nothing else can be asked of what is returned; it may fetch no more.
        """

    def check(self, index: int) -> None:
        """Prove a bundle against its checksum. Raises FormatError, or DataLost where nothing of it is stored."""

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle, after `check`."""

    def ingestion_ts_nanos(self, index: int) -> int | None:
        """Return when a bundle was ingested, UNIX nanoseconds; None where its writer did not say."""


class SchemaStatistics(Protocol):
    """Statistics of the rows of one schema in one segment; see `client.statistics.StreamStatistics`."""

    @property
    def slot_id(self) -> int:
        """The slot of the rows."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""

    @property
    def row_count(self) -> int:
        """Rows of the schema in the segment."""

    @property
    def columns(self) -> Mapping[str, ColumnStatistics] | None:
        """Nulls and bounds by column; None: not known."""


TellPruned: TypeAlias = Callable[[Mapping[int, int]], None]
"""Is told how many segments of each core a scan leaves out by what is known of their values. Returns at once, from any thread."""


def tell_nobody(counts: Mapping[int, int]) -> None:
    """Do nothing: nobody counts what is left out."""


Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many bytes of segments have been read, and how many the topics of a statement have; some of these may be left out. Is called
from any thread, must return at once, and must not raise."""


def note_nothing(size_bytes: int) -> None:
    """Do nothing: nobody counts what is read."""


class SnapshotPart(NamedTuple):
    """The bundles `[first, end)` of one segment."""

    core: int
    segment_seq: int
    first: int
    end: int
    oldest_unix_ns: int
    """Earliest ingestion time of the segment's bundles; 0: not known."""
    newest_unix_ns: int
    bundles: PinnedBundles
    statistics: Sequence[SchemaStatistics] | None = None
    """One for each schema of the segment; None: not known."""
    size_bytes: int = 0
    """Their part of the segment's bytes; 0: not known."""

    def __str__(self) -> str:
        return f"segment {self.segment_seq} of core {self.core}"


class Snapshot(NamedTuple):
    """The bundles of a topic that could be read at one moment, core by core, oldest first."""

    topic: str
    slots: SlotTable
    parts: tuple[SnapshotPart, ...]
    is_complete: bool
    """Everything that had been acknowledged is in it. False: some of it could be read only once it is synced or sealed."""
    event_time: str = ""
    """The topic's column of event times; empty: there is none."""
    tell_pruned: TellPruned = tell_nobody
    tell_read: Callable[[int], None] = note_nothing
    """Is called with the bytes of a part when it has been read, from any thread."""


def names_of(table: SlotTable, slot_ids: Iterable[int]) -> list[str]:
    """The names of slots, or their numbers where they have none."""
    return [table.name_of(slot_id) or str(slot_id) for slot_id in slot_ids]
