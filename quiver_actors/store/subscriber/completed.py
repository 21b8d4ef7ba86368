"""The segments that a subscriber has completed, and which of them are so for certain after a crash. Pure.

Owner: one `ProgressState`. Complete are the segments below `floor` and those that were added here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiver_actors.store.subscriber.changes import Changes


class Completed:
    """The segments of which a subscriber needs nothing any more.

    Attributes:
        floor: segments with lower numbers are complete.
        counts: bundle counts of other complete segments; 0 where no progress entry is needed.
    """

    def __init__(self, changes: Changes, on_complete: Callable[[], object]) -> None:
        """
        Args:
            changes: those of the progress.
            on_complete: called with every segment that is completed. It must not refer to the owner of this object.
        """
        self.floor = 0
        self.counts: dict[int, int] = {}
        self._changes = changes
        self._on_complete = on_complete
        self._begun_version = changes.version
        self._news: list[int] = []
        self._unflushed: dict[int, int] = {}
        """Completed segments, and the version with which the progress file will say so. A journal can be lost without its directory, and
        may be unknown to another program; the file of a segment goes only once the progress file needs none of it."""

    def __contains__(self, segment_seq: int) -> bool:
        return segment_seq < self.floor or segment_seq in self.counts

    def begin(self) -> None:
        """Segments follow. What was said of them until now is as good as unsaid before it is flushed."""
        self._begun_version = self._changes.version

    def add(self, segment_seq: int, bundle_count: int, *, is_flushed: bool = False) -> None:
        """Note that a segment was completed, by the last change or, where that `is_flushed`, before it."""
        self.counts[segment_seq] = bundle_count
        self._news.append(segment_seq)
        if not is_flushed:
            self._unflushed[segment_seq] = self._changes.version
        self._on_complete()

    def find(self, segment_seq: int, bundle_count: int) -> None:
        """Note that a segment was complete when it was added."""
        self.counts[segment_seq] = bundle_count
        if not self._changes.is_filed:
            self._unflushed[segment_seq] = self._changes.version

    def raise_floor(self, floor: int) -> None:
        """Count everything below that segment as complete."""
        self.floor = floor
        self.counts = {seq: count for seq, count in self.counts.items() if seq >= floor}

    def take_new(self) -> list[int]:
        """Take the segments that became complete since the last call, in that order."""
        news, self._news = self._news, []
        return news

    def durable(self, segment_seqs: Sequence[int]) -> list[int]:
        """The segments among these that are complete and of which the progress file says so: only their files may go.

        For a subscriber that is behind all of them that costs what it has completed, not what there is.
        """
        if not segment_seqs or self._changes.filed_version < self._begun_version:
            return []
        counts, unflushed, floor = self.counts, self._unflushed, self.floor
        if len(counts) < len(segment_seqs) and floor <= min(segment_seqs):
            asked = set(segment_seqs) if counts else set()
            return [seq for seq in sorted(counts) if seq in asked and seq not in unflushed]
        return [seq for seq in segment_seqs if (seq < floor or seq in counts) and seq not in unflushed]

    def unfiled(self) -> list[int]:
        """Completed segments of which only the journal says so."""
        return [seq for seq, at in self._unflushed.items() if at <= self._changes.flushed_version]

    def is_durable(self, segment_seq: int) -> bool:
        """Whether a segment is complete, and the progress file or the journal says so."""
        return segment_seq in self and self._unflushed.get(segment_seq, 0) <= self._changes.flushed_version

    def mark_flushed(self, version: int) -> list[int] | None:
        """A snapshot that was taken at `version` is durable in the progress file.

        Returns:
            The segments that `durable` may name by it and did not name before; None: it may be any.
        """
        is_first = self._changes.filed_version < self._begun_version
        self._changes.mark_flushed(version)
        settled = [seq for seq, at in self._unflushed.items() if at <= self._changes.filed_version]
        for segment_seq in settled:
            del self._unflushed[segment_seq]
        return None if is_first else settled
