"""The sealed segments of one engine: which there are, which may be claimed, and which nobody needs any more.

Owner: the engine, on the loop thread. Segments become claimable strictly in order, each after it was found whole: those sealed since
the engine was opened are, those found at open are checked first. A file is unlinked only after progress that needs none of it is
durable for every subscriber.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from quiver_actors import jobs
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.progress import Progress
from quiver_actors.engine.segment_table import SegmentTable
from quiver_actors.errors import DiskError, NotStored, QuiverError
from quiver_actors.events import Event, GapFound, Resumed, Sealed
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.recovery import Recovered
from quiver_actors.retention.losses import Losses
from quiver_actors.segment.codec import Manifest, decode_manifest
from quiver_actors.segment.reader import read_footer
from quiver_actors.subscriber.sizes import BundleSizes
from quiver_actors.units import MIB
from quiver_actors.upkeep import Upkeep

DELETE_BYTES_MAX = 64 * MIB
DELETE_FILES_MAX = 64
"""Deleted by one job: to unlink 32 MiB takes the kernel some 2.5 ms, and seals, progress and new logs wait behind a job."""

Runs = list[tuple[int, int]]
"""Bundles of one segment as (first index, count); count 0 for nobody knows how many."""


class Shelf:
    """See the module.

    Attributes:
        segments: by number, with what they amount to.
        waiting: segments that subscribers have not been told of yet, in the order in which they will be; also damaged ones.
        begun_ns: of new segments: when the first bundle came, on the monotonic clock, where that was since the engine was opened.
        deleted: how many segments were deleted since the engine was opened; `losses` says why, and what was lost.
        spool: says which of the processed segments are kept all the same.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, recovered: Recovered, progress: Progress, upkeep: Upkeep
    ) -> None:
        self.segments = SegmentTable(recovered.segments)
        self.waiting: deque[int] = deque(sorted([*recovered.segments, *recovered.damaged]))
        self.new: list[int] = list(recovered.segments)
        self.gone: list[int] = []
        self.begun_ns: dict[int, int] = {}
        self.deleted = 0
        self.losses = Losses()
        self.spool: Callable[[Collection[int]], set[int]] = lambda _: set()
        self._disk = disk
        self._paths = paths
        self._progress = progress
        self._upkeep = upkeep
        progress.registry.sizes_of = self.bundle_sizes
        self._put_off: set[int] = set()
        """Damaged segments that those behind them no longer wait for: there is no room to rescue them."""
        self._whole: dict[int, Runs] = {}
        """Segments among the waiting that were found whole, and what they record as lost."""
        self._doomed: dict[int, None] = {}
        """Chosen to be deleted, oldest first; some of the first have their job out."""
        self._released: dict[int, str] = {}
        """Processed segments that go although the spool would keep them, and why."""
        self._dropped: dict[int, tuple[str, int]] = {}
        """Segments that were given up: why, and the ticket of the progress that must be durable before the file goes."""
        self._cursor_owed: int | None = None
        self._searched = -1
        """After so many flushes there was nothing to delete."""
        self._kept: set[int] = set()
        """What was processed then."""

    def __iter__(self) -> Iterator[SegmentInfo]:
        """Oldest first."""
        return (self.segments[segment_seq] for segment_seq in sorted(self.segments))

    # --- segments come -----------------------------------------------------------------------------------------------------

    def put(self, info: SegmentInfo, cursor_owed: int | None, begun_ns: int) -> list[Event]:
        """A segment was sealed; its cursor still has to be written where there was no room for it. `begun_ns` 0: not known."""
        self._cursor_owed = cursor_owed
        if begun_ns:
            self.begun_ns[info.segment_seq] = begun_ns
        self.segments[info.segment_seq] = info
        self.waiting.append(info.segment_seq)
        return self.approve(info.segment_seq, [])

    def approve(self, segment_seq: int, lost: Runs) -> list[Event]:
        """A waiting segment is whole, but for the bundles that it records as lost."""
        self._whole[segment_seq] = lost
        self.new.append(segment_seq)
        self._upkeep.checked(segment_seq)
        return self.announce()

    def pass_over(self, segment_seq: int) -> None:
        """A waiting segment keeps those behind it waiting no longer."""
        self._put_off.discard(segment_seq)
        if segment_seq in self.waiting:
            self.waiting.remove(segment_seq)

    def put_off(self, segment_seq: int) -> None:
        """The same, but that subscribers are to be told of it all the same, later."""
        if segment_seq in self.waiting:
            self.waiting.remove(segment_seq)
            self._put_off.add(segment_seq)

    def announce(self) -> list[Event]:
        """Make what was found whole claimable, in order."""
        events: list[Event] = []
        while self.waiting and self.waiting[0] in self._whole:
            segment_seq = self.waiting.popleft()
            lost = self._whole.pop(segment_seq)
            events.append(self.offer(self.segments[segment_seq], lost))
        return [*events, *self._progress.retired(), *self._progress.take_events()]

    def offer(self, info: SegmentInfo, lost: Runs) -> Event:
        """Subscribers can claim it from now on, but for what is lost of it."""
        self._progress.registry.add_segment(info.segment_seq, info.bundle_count, info.size_bytes)
        if info.segment_seq in self._put_off:
            self._put_off.remove(info.segment_seq)
            self.new.append(info.segment_seq)  # its age is known now
        if lost:
            self.give_up(info.segment_seq, info, "damaged", lost)
        # A start offers thousands in turn: only for one that may go at once are all looked at again.
        if self._progress.registry.deletable([info.segment_seq]):
            self.search_again()
        return Sealed(info.segment_seq, info.bundle_count)

    def waiting_counts(self) -> dict[int, int]:
        """Bundle counts of what subscribers have not been told of yet, where they are known."""
        return {seq: self.segments[seq].bundle_count for seq in (*self.waiting, *self._put_off) if seq in self.segments}

    def uncounted(self) -> list[int]:
        """The others of these: damaged ones that do not say how many bundles they have."""
        return [seq for seq in (*self.waiting, *self._put_off) if seq not in self.segments]

    # --- segments go -------------------------------------------------------------------------------------------------------

    def take_out(self, segment_seq: int) -> SegmentInfo | None:
        """A segment is not one any more, whatever had been decided about it: its file is not deleted here. What was known of it."""
        self._doomed.pop(segment_seq, None)
        self._released.pop(segment_seq, None)
        self._dropped.pop(segment_seq, None)
        return self.segments.pop(segment_seq, None)

    def drop(self, segment_seq: int, reason: str) -> None:
        """See `Engine.drop_segment`."""
        info = self.segments.get(segment_seq)
        if info is None or segment_seq in self.waiting or segment_seq in self.going:
            return
        self.give_up(segment_seq, info, reason)
        self._dropped[segment_seq] = (reason, self._progress.ticket)
        self.search_again()

    def release(self, segment_seq: int, reason: str) -> None:
        """A processed segment goes, whatever the spool says."""
        self._released[segment_seq] = reason
        self.search_again()

    def hold_back(self) -> None:
        """A subscriber has come, or was moved: what was processed may be owed again. What is to go all the same is decided anew."""
        self._released = {seq: reason for seq, reason in self._released.items() if seq in self._doomed}

    def take_new(self) -> list[int]:
        """Segments that have come since the last call; some may be gone again."""
        new, self.new = self.new, []
        return new

    def take_gone(self) -> list[int]:
        """Segments that were deleted since the last call."""
        gone, self.gone = self.gone, []
        return gone

    def processed(self) -> list[int]:
        """Segments that every subscriber is durably done with; none while there is no subscriber, or one that is not gone for good."""
        return [] if self._progress.is_forgetting else self._progress.registry.deletable(self.segments)

    def droppable(self) -> list[int]:
        """Segments that could be let go now: whole, announced, and not on their way out."""
        waiting, going = set(self.waiting), self.going
        return [seq for seq in self.segments if seq not in waiting and seq not in going]

    @property
    def going(self) -> set[int]:
        """Segments that are on their way out."""
        return {*self._doomed, *self._released, *self._dropped}

    def give_up(self, segment_seq: int, info: SegmentInfo, reason: str, lost: Runs | None = None) -> None:
        """Nobody who has not resolved them gets the `lost` bundles any more (None: the whole segment); each is told why."""

        def rows(first: int, count: int) -> int:
            whole = lost is None and count == info.bundle_count and info.row_count
            return info.row_count if whole else -1

        given_up = self._progress.registry.give_up(segment_seq, info.bundle_count, reason, rows, lost)
        runs = [(notice.bundle_index_first, notice.bundle_count) for _, notice in given_up]
        if not len(self._progress.registry):
            runs = [(0, info.bundle_count)]  # nobody was done with anything
        if runs:
            self.losses.note(reason, runs, info.bundle_count, info.row_count, info.size_bytes)
        for subscriber, notice in given_up:
            position = (segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._progress.tell(GapFound(subscriber, *position, reason))
        self._progress.note_resolved()
        self._progress.hurry()

    def delete_job(self, spared: Container[int]) -> jobs.DeleteJob | None:
        """Delete some of what nobody needs, but for the `spared`. Looked for only if something has changed that can make a segment go."""
        for segment_seq in [seq for seq in self._doomed if seq in spared]:
            del self._doomed[segment_seq]
        if not self._doomed:
            self._doomed = dict.fromkeys(self._deletable(spared))
        if not self._doomed:
            return None
        return jobs.DeleteJob(self._disk, self._paths, self._next_doomed(), self._cursor_owed)

    def _deletable(self, spared: Container[int]) -> list[int]:
        """Oldest first."""
        if self._searched == self._progress.flushes:
            return []
        durable = self._progress.durable
        processed = self._processed_now()
        kept = self.spool(processed) - self._released.keys() if processed else set()
        wanted = {seq for seq in processed if seq not in kept}
        wanted.update(seq for seq, (_, ticket) in self._dropped.items() if ticket <= durable)
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
            size_bytes += self.segments[segment_seq].size_bytes
            if found and (size_bytes > DELETE_BYTES_MAX or len(found) == DELETE_FILES_MAX):
                break
            found.append(segment_seq)
        return found

    def _processed_now(self) -> list[int]:
        """As `processed`, unless there can be nothing new in it: then nothing. Asked after every flush, so that it does not ask the
        subscribers about everything that there is, but about what flushes have settled and what was processed before."""
        if self._progress.is_forgetting:
            return []
        settled, registry = self._progress.registry.take_settled(), self._progress.registry
        if settled is None or self._searched < 0:
            processed = registry.deletable(self.segments)
        elif settled:
            processed = registry.deletable(seq for seq in settled | self._kept if seq in self.segments)
        else:
            return []
        self._kept = set(processed)
        return processed

    def search_again(self) -> None:
        """Something other than a flush has changed that can make a segment go."""
        self._searched = -1

    @property
    def doomed(self) -> list[int]:
        """Segments whose files may be gone at any moment: nobody new gets them."""
        return sorted({*self._doomed, *self._dropped})

    def finish_delete(self, segment_seqs: Sequence[int]) -> list[Event]:
        self._cursor_owed = None
        self.search_again()
        for segment_seq in segment_seqs:
            del self._doomed[segment_seq], self.segments[segment_seq]
            reason, _ = self._dropped.pop(segment_seq, ("processed", 0))
            self.losses.evictions[self._released.pop(segment_seq, reason)] += 1
            self._whole.pop(segment_seq, None)
            self.pass_over(segment_seq)
            self._upkeep.forget(segment_seq)
            self._progress.registry.forget_segment(segment_seq, file_is_gone=True)
        self.deleted += len(segment_seqs)
        self.gone += segment_seqs
        return [Resumed()]

    # --- reading -----------------------------------------------------------------------------------------------------------

    def open(self, segment_seq: int) -> tuple[int, int]:
        """See `Engine.open_segment`; the segment is here."""
        try:
            file = self._disk.open_read(self._paths.segment(segment_seq))
        except DiskError as error:
            if error.errno == errno.ENOENT and segment_seq in self.going:
                raise NotStored(f"segment {segment_seq} is being deleted: everybody is done with it") from error
            raise
        try:
            # Its own size: a compaction may have put another file there, and not be finished here yet.
            size_bytes = file.size()
            return os.dup(file.fileno()), size_bytes
        except OSError as error:
            raise DiskError("dup", self._paths.segment(segment_seq), error.errno or 0) from error
        finally:
            file.close()

    def ingestion_times(self, segment_seq: int) -> npt.NDArray[np.int64]:
        """UNIX nanoseconds of its bundles, from its manifest only; 0 where it does not say."""
        manifest = self._manifest(segment_seq)
        times = manifest.ingestion_ts_nanos
        return np.array([time or 0 for time in times] if times else [0] * manifest.bundle_count, dtype=np.int64)

    def bundle_sizes(self, segment_seq: int) -> BundleSizes | None:
        """Of the log entries of its bundles; None where its manifest does not say, or cannot be read now."""
        try:
            sizes = self._manifest(segment_seq).byte_count
        except QuiverError:
            return None
        return BundleSizes(1, np.array([size or 0 for size in sizes], dtype=np.int64)) if sizes else None

    def _manifest(self, segment_seq: int) -> Manifest:
        file = self._disk.open_read(self._paths.segment(segment_seq))
        try:
            footer = read_footer(file.read, file.size())
            return decode_manifest(file.read(footer.manifest_length, footer.manifest_offset))
        finally:
            file.close()
