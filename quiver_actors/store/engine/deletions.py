"""The segments of one engine that are on their way out, and when their files may go.

Owner: the engine's `SealedSegments`, on the loop thread. A file is unlinked only after progress that needs none of it is durable for
every subscriber.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence

from quiver_actors.base.units import MIB
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_segments import ColdSegments
from quiver_actors.store.engine.foreign_segments import ForeignSegments
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.removal import DeleteJob
from quiver_actors.store.retention.losses import Losses

DELETE_BYTES_MAX = 64 * MIB
DELETE_FILES_MAX = 64
"""The most that one job deletes: to unlink 32 MiB takes the kernel some 2.5 ms, and seals, progress and new logs wait behind a job."""

Spool = Callable[[Collection[int]], set[int]]


class Deletions:
    """Decides which segments of one engine are deleted, and has their files deleted.

    Attributes:
        count: how many segments were deleted since the engine was opened; `losses` says why.
        kept: segments that everybody was done with at the last look and that it did not delete; a new set after each look.
        cursor_owed: the log position that is to be written before the next file goes, None if it is written.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        progress: Progress,
        segments: SegmentTable,
        foreign: ForeignSegments,
        losses: Losses,
        cold: ColdSegments,
    ) -> None:
        self.count = 0
        self.kept: set[int] = set()
        self.cursor_owed: int | None = None
        self._disk = disk
        self._paths = paths
        self._progress = progress
        self._segments = segments
        self._foreign = foreign
        self._losses = losses
        self._cold = cold
        self._gone: list[int] = []
        self._doomed: dict[int, None] = {}
        """Segments that are to be deleted, oldest first; a job may be deleting some of the first now."""
        self._released: dict[int, str] = {}
        """Processed segments that go although the spool would keep them, and why."""
        self._dropped: dict[int, tuple[str, int]] = {}
        """Segments recorded as lost: why, and the ticket of the progress that must be in its files before the file goes."""
        self._searched = -1
        """The number of flushes at the last search, which found nothing to delete; -1: search again."""

    @property
    def going(self) -> set[int]:
        """Segments that are on their way out."""
        return {*self._doomed, *self._released, *self._dropped}

    @property
    def doomed(self) -> list[int]:
        """Segments whose files may be gone at any moment: nobody new gets them."""
        return sorted({*self._doomed, *self._dropped})

    def processed(self) -> list[int]:
        """Segments that every subscriber is durably done with; none while there is no subscriber, or one that is not gone for good."""
        return [] if self._progress.is_forgetting else self._progress.registry.deletable(self._segments)

    # --- what may go -------------------------------------------------------------------------------------------------------

    def release(self, segment_seq: int, reason: str) -> None:
        """Let a processed segment go, whatever the spool says."""
        self._released[segment_seq] = reason
        self.search_again()

    def drop(self, segment_seq: int, reason: str) -> None:
        """Let a segment go that was just recorded as lost, once all progress and all notices up to now are durable."""
        self._dropped[segment_seq] = (reason, self._progress.settle())
        self.search_again()

    def hold_back(self) -> None:
        """Withdraw releases of segments that are not to be deleted yet: a subscriber has come or was moved, and may be owed them again."""
        self._released = {seq: reason for seq, reason in self._released.items() if seq in self._doomed}

    def forget(self, segment_seq: int) -> None:
        """Forget whatever was decided about a segment."""
        self._doomed.pop(segment_seq, None)
        self._released.pop(segment_seq, None)
        self._dropped.pop(segment_seq, None)

    def search_again(self) -> None:
        """Note a change other than a flush that can make a segment go."""
        self._searched = -1

    # --- jobs --------------------------------------------------------------------------------------------------------------

    def job(self, spared: Container[int], spool: Spool) -> DeleteJob | None:
        """Delete some of what nobody needs, but for the `spared`. Looked for only if something has changed that can make a segment go.

        Args:
            spool: says which of the processed segments are kept all the same.
        """
        for segment_seq in [seq for seq in self._doomed if seq in spared]:
            del self._doomed[segment_seq]
        if not self._doomed:
            self._doomed = dict.fromkeys(self._deletable(spared, spool))
        if not self._doomed:
            return None
        going = self._next_doomed()
        records = self._foreign.without(going), self._cold.list_without(going)
        return DeleteJob(self._disk, self._paths, going, self.cursor_owed, *records)

    def _deletable(self, spared: Container[int], spool: Spool) -> list[int]:
        """Return the segments of the next delete job, oldest first."""
        if self._searched == self._progress.flushes:
            return []
        filed = self._progress.filed
        processed = self._processed_now()
        kept = spool(processed) - self._released.keys() if processed else set()
        wanted = {seq for seq in processed if seq not in kept}
        wanted.update(seq for seq, (_, ticket) in self._dropped.items() if ticket <= filed)
        deletable = sorted(seq for seq in wanted if seq not in spared)
        if deletable:
            self.search_again()  # also should its job find no room for its cursor
        else:
            self._searched = self._progress.flushes
        return deletable

    def _next_doomed(self) -> list[int]:
        found: list[int] = []
        size_bytes = 0
        for segment_seq in self._doomed:
            size_bytes += self._segments[segment_seq].size_bytes
            if found and (size_bytes > DELETE_BYTES_MAX or len(found) == DELETE_FILES_MAX):
                break
            found.append(segment_seq)
        return found

    def _processed_now(self) -> list[int]:
        """The same as `processed`, or an empty list if that can have nothing new. Called after every flush, so it asks the subscribers
        only about segments that flushes have settled and those that were processed before."""
        if self._progress.is_forgetting:
            return []
        settled, registry = self._progress.registry.flushes.take_settled(), self._progress.registry
        if settled is None or self._searched < 0:
            processed = registry.deletable(self._segments)
        elif settled:
            processed = registry.deletable(seq for seq in settled | self.kept if seq in self._segments)
        else:
            return []
        self.kept = set(processed)
        return processed

    def finish(self, segment_seqs: Sequence[int]) -> None:
        """Note that the files of these segments are deleted."""
        self.cursor_owed = None
        self._foreign.forget(segment_seqs)
        self._cold.forget(segment_seqs)
        self.search_again()
        for segment_seq in segment_seqs:
            del self._doomed[segment_seq], self._segments[segment_seq]
            reason, _ = self._dropped.pop(segment_seq, ("processed", 0))
            self._losses.evictions[self._released.pop(segment_seq, reason)] += 1
        self.count += len(segment_seqs)
        self._gone += segment_seqs

    def take_gone(self) -> list[int]:
        """Take the segments that were deleted since the last call."""
        gone, self._gone = self._gone, []
        return gone
