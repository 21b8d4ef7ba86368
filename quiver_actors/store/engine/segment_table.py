"""The sealed segments of one engine by their number, with sums over them.

Figures and limits ask for the sums ten times a second: they are kept as segments come, change and go, so that ten thousand cost no more
than ten.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.store.retention.account import block_bytes


class SegmentTable(UserDict[int, SegmentInfo]):
    """A mapping; `size_bytes`, `block_bytes` (what the files take of the hot disk), `bundle_count` and `row_count` are sums over it.

    A bundle that was lost to damage counts in `bundle_count`, as in the segment's manifest, and not in `stored_count`, from when its
    segment was rescued or checked.
    """

    def __init__(self, segments: dict[int, SegmentInfo], cold: Collection[int] = ()) -> None:
        """
        Args:
            cold: those whose files are on the cold disk.
        """
        self.size_bytes = self.block_bytes = self.cold_bytes = self.bundle_count = self.row_count = 0
        self.cold: set[int] = set(cold)
        """Segments whose files are on the cold disk; `move` changes it."""
        self.hot: set[int] = set()
        """All others: their files are beside the logs."""
        self.changed: set[int] = set()
        """Segments that have come, changed or gone since the reader of this set took it; it is theirs to empty."""
        self.lost: dict[int, int] = {}
        """Counts of lost bundles of segments whose manifest records any; `note_lost` changes it."""
        super().__init__(segments)

    def __setitem__(self, segment_seq: int, info: SegmentInfo) -> None:
        if segment_seq in self.data:
            self._count(self.data[segment_seq], -1)
        self.data[segment_seq] = info
        self.changed.add(segment_seq)
        self._count(info, 1)
        if segment_seq not in self.cold:
            self.hot.add(segment_seq)

    def __delitem__(self, segment_seq: int) -> None:
        self._count(self.data.pop(segment_seq), -1)
        self.cold.discard(segment_seq)
        self.hot.discard(segment_seq)
        self.changed.add(segment_seq)
        self.lost.pop(segment_seq, None)

    def move(self, segment_seq: int, *, to_cold: bool) -> None:
        """Note on which disk the file of a segment is now."""
        info = self.data[segment_seq]
        self._count(info, -1)
        left, entered = (self.hot, self.cold) if to_cold else (self.cold, self.hot)
        left.discard(segment_seq)
        entered.add(segment_seq)
        self._count(info, 1)

    @property
    def stored_count(self) -> int:
        """Bundles that can be read."""
        return self.bundle_count - sum(self.lost.values())

    def known_bundle_count(self, segment_seq: int) -> int:
        """Return how many bundles a segment has, 0 for a segment that is not here."""
        info = self.data.get(segment_seq)
        return info.bundle_count if info is not None else 0

    def note_lost(self, segment_seq: int, bundle_count: int) -> None:
        """Note how many bundles of a segment its manifest records as lost."""
        if bundle_count and segment_seq in self.data:
            self.lost[segment_seq] = bundle_count
        else:
            self.lost.pop(segment_seq, None)

    def _count(self, info: SegmentInfo, sign: int) -> None:
        self.size_bytes += sign * info.size_bytes
        if info.segment_seq in self.cold:
            self.cold_bytes += sign * info.size_bytes
        else:
            self.block_bytes += sign * block_bytes(info.size_bytes)
        self.bundle_count += sign * info.bundle_count
        self.row_count += sign * info.row_count
