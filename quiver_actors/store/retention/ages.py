"""The age of segments, by ingestion time, on a machine whose clock may be set.

A segment's age is read off the wall clock once, when the engine first sees it; from then on it grows with the monotonic clock. One whose
bundles have come since the engine was opened is no older than the first of them, by the monotonic clock. So a clock that jumps ahead
expires nothing, and one that jumps back keeps nothing longer, while the engine runs. A time that lies in the future counts as now.
"""

from __future__ import annotations

import heapq

FORGOTTEN_MAX = 64
"""Entries of deleted segments that the heap may hold beyond twice the number of segments; without `max_age` nothing else removes them."""


class Ages:
    """The ages of the segments of one engine. Pure; times are nanoseconds."""

    def __init__(self) -> None:
        self._born: dict[int, int] = {}
        """Monotonic time at which each segment was ingested, as far as the wall clock told."""
        self._oldest: list[tuple[int, int]] = []
        """Heap of (time, segment), which also holds some segments that are forgotten."""

    def see(
        self, segment_seq: int, ingestion_unix_ns: int, unix_ns: int, monotonic_ns: int, begun_ns: int | None = None
    ) -> None:
        """Note that a segment is there. Seen again, nothing changes.

        Args:
            begun_ns: when its first bundle came, on the monotonic clock, as far as that is known.
        """
        if segment_seq not in self._born:
            born = monotonic_ns - max(0, unix_ns - ingestion_unix_ns)
            born = self._born[segment_seq] = born if begun_ns is None else max(born, begun_ns)
            heapq.heappush(self._oldest, (born, segment_seq))
            if len(self._oldest) > 2 * len(self._born) + FORGOTTEN_MAX:
                self._oldest = [(born, seq) for seq, born in self._born.items()]
                heapq.heapify(self._oldest)

    def forget(self, segment_seq: int) -> None:
        """Drop the ages of a segment that is gone."""
        self._born.pop(segment_seq, None)

    def age_ns(self, segment_seq: int, monotonic_ns: int) -> int:
        """How old the segment is; 0 for a segment that was never seen."""
        return monotonic_ns - self._born.get(segment_seq, monotonic_ns)

    def expired(self, max_age_ns: int, monotonic_ns: int) -> list[int]:
        """Segments older than that, lowest number first."""
        due_ns = self.next_expiry_ns(max_age_ns)
        if due_ns is None or monotonic_ns < due_ns:
            return []
        return sorted(seq for seq, born in self._born.items() if monotonic_ns - born > max_age_ns)

    def next_expiry_ns(self, max_age_ns: int) -> int | None:
        """The monotonic time at which the next one is over age; None without segments."""
        while self._oldest and self._born.get(self._oldest[0][1]) != self._oldest[0][0]:
            heapq.heappop(self._oldest)
        return self._oldest[0][0] + max_age_ns + 1 if self._oldest else None
