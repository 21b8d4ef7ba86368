"""The readable end of an engine: how far the bundles of segments that are not sealed may be shown to subscribers.

Owner: the engine, on the loop thread.

Guarantees
- Everything that is shown is covered by a sync and lies in a log under a durable name: no crash takes it back.
- Bundles are shown in the order of their ids: nothing behind a segment that is being published.
- What is shown of a log stays where it is until the log is a segment, and stands in the segment at the same places.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quiver_actors.base.clock import Clock
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.errors import DiskError, NotStored
from quiver_actors.store.disk.held import lock_for_reader, unlock_for_guest
from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.engine.events import Event, Shown
from quiver_actors.store.subscriber.grants import Live
from quiver_actors.store.subscriber.lone_claims import claim_shown
from quiver_actors.store.subscriber.sizes import OpenSizes
from quiver_actors.store.wal.layout import HEADER_BYTES

if TYPE_CHECKING:
    from quiver_actors.store.engine.log_queue import LogQueue
    from quiver_actors.store.engine.numbers import Numbers
    from quiver_actors.store.engine.progress import Progress
    from quiver_actors.store.engine.publishes import Publishes
    from quiver_actors.store.engine.unchecked import Unchecked
    from quiver_actors.store.wal.log import Log

_PLACE = np.dtype([("offset", "<u8"), ("size_bytes", "<u4"), ("item_count", "<i8")])
"""The fields of `base.protocol.places.PLACE`."""
_FEW = 8
"""Up to so many places are packed one by one, which is faster than numpy."""


class OpenSegment(NamedTuple):
    """A log of which something is shown."""

    log: Log
    sizes: OpenSizes
    """Sizes of the bundles that are shown."""
    file: DiskFile
    """The log's file, for reading. Another thread may close the log's own at any time of its seal."""


class ReadableEnd:
    """What subscribers can have of the logs of one engine."""

    def __init__(
        self,
        logs: LogQueue,
        progress: Progress,
        unchecked: Unchecked,
        clock: Clock,
        publishes: Publishes,
        numbers: Numbers,
    ) -> None:
        """
        Args:
            unchecked: the segments that wait for their check.
            publishes: those that are under way.
        """
        self._logs = logs
        self._registry = progress.registry
        self._unchecked = unchecked
        self._clock = clock
        self._publishes = publishes
        self._numbers = numbers
        self._open: dict[int, OpenSegment] = {}
        """The logs of which something is shown, by segment number."""

    def advance(self, *, is_wanted: bool = False) -> list[Event]:
        """Show what has become durable since the last call, as far as its turn has come.

        Args:
            is_wanted: also while there is no subscriber.
        """
        if not len(self._logs) or not (is_wanted or len(self._registry)):
            return []
        shown: list[Event] = []
        before = self._publishes.first_segment_seq
        for log in self._logs:
            if not self._can_show(log) or (before is not None and log.segment_seq > before):
                break
            bundle_count = log.synced_sequence - log.identity.first_sequence
            if bundle_count and self._show(log, bundle_count):
                shown.append(Shown(log.segment_seq, bundle_count))
            if bundle_count < log.builder.bundle_count:
                break
        return shown

    def show_to(self, log: Log, subscriber: str, owner: object) -> Live | None:
        """Show the bundle of a log that has just become durable, and claim it for `owner`, a consumer of the only subscriber: `advance` and
        a claim, with fewer calls. None: nothing has happened, as more than that is to be done.

        Args:
            owner: as of `claim_shown`.
        """
        segment_seq = log.identity.segment_seq
        opened, state = self._open.get(segment_seq), self._registry.states.get(subscriber)
        if opened is None or state is None or len(self._registry.states) > 1 or self._unchecked.segment_seqs:
            return None
        ends = opened.sizes.ends
        bundle_count = len(ends)
        if (
            # Where something of the log is shown, so is everything in front of it, and no publish in front of it is under way.
            bundle_count == 1
            or log.builder.bundle_count != bundle_count
            or log.synced_sequence - log.identity.first_sequence != bundle_count
        ):
            return None
        end = log.synced_end - HEADER_BYTES
        now_ns = self._clock.monotonic_ns()
        live = claim_shown(state, segment_seq, bundle_count - 1, end - ends[-1], owner, now_ns)
        if live is not None:
            ends.append(end)
        return live

    def retired(self, logs: Sequence[Log]) -> None:
        """Open logs that the commit which was just taken back has retired, some of them as it published them: no seal has begun yet.
        Otherwise their bundles, which are acknowledged now, could not be read before the seal is done, also by those who are no
        subscribers."""
        for log in logs:
            if log.retired and log.segment_seq not in self._open:
                self._open_file(log)

    def _show(self, log: Log, bundle_count: int) -> bool:
        """Show the first so many bundles of a log. Returns whether any of them are new."""
        opened = self._open[log.segment_seq]
        ends = opened.sizes.ends
        first = len(ends) - 1
        if bundle_count <= first:
            return False
        for size_bytes in log.builder.byte_counts(first, bundle_count):
            ends.append(ends[-1] + size_bytes)
        self._registry.grow_segment(log.segment_seq, opened.sizes)
        return True

    def _can_show(self, log: Log) -> bool:
        """Whether the log can be read: it has its name, and its file could be opened before any seal may close it."""
        if log.segment_seq in self._open:
            return True
        if not log.published or log.retired:
            return False
        return self._open_file(log)

    def _open_file(self, log: Log) -> bool:
        try:
            file = log.file.reopen()
        except DiskError:
            return False  # no descriptor is left: the next commit tries again, and the seal shows it at the latest
        self._open[log.segment_seq] = OpenSegment(log, OpenSizes(), file)
        return True

    def sealed(self, segment_seq: int) -> None:
        """Forget a log: it is a segment now."""
        opened = self._open.pop(segment_seq, None)
        if opened is not None:
            opened.file.close()

    def close(self) -> None:
        """Close the files of all logs."""
        for segment_seq in list(self._open):
            self.sealed(segment_seq)

    # --- reading -----------------------------------------------------------------------------------------------------------

    def shown_count(self, segment_seq: int) -> int:
        """How many bundles of a segment that is not sealed are shown."""
        opened = self._open.get(segment_seq)
        return len(opened.sizes.ends) - 1 if opened is not None else 0

    def covers(self, sequence: int) -> bool:
        """Whether every bundle of the logs with a lower sequence is shown."""
        for log in self._logs:
            shown = log.identity.first_sequence + self.shown_count(log.segment_seq)
            if shown < min(sequence, log.sequence_end):
                return False
        return True

    def obstacle(self, sequence: int) -> str:
        """Why bundles of the logs with a lower sequence are not all shown, for an error; empty: they are."""
        before = self._publishes.first_segment_seq
        for log in self._logs:
            shown = log.identity.first_sequence + self.shown_count(log.segment_seq)
            if shown >= min(sequence, log.sequence_end):
                continue
            if before is not None and log.segment_seq > before:
                return f"segment {before}, in front of segment {log.segment_seq}, is still being published"
            if log.synced_sequence < min(sequence, log.sequence_end):
                return f"segment {log.segment_seq} is not synced yet"
            return (
                f"there was no file descriptor left for segment {log.segment_seq}, which can be read once it is sealed"
            )
        return ""

    def unsealed_from(self) -> tuple[int, int]:
        """Segment number and log position at which begins what is not sealed, shown or not; of the next log, where all is sealed."""
        places = [(log.segment_seq, log.position_start) for log in self._logs]
        places += [(place.segment_seq, place.position_start) for place in self._publishes.places]
        return min(places, default=(self._numbers.next_segment_seq, self._numbers.position))

    def infos(self) -> list[SegmentInfo]:
        """Counts, sizes and times of what can be read of each log, oldest first; rows are not counted (-1). See
        `SegmentList.open_segments`."""
        self.advance(is_wanted=True)
        return [_info(opened) for opened in self._open.values() if len(opened.sizes.ends) > 1]

    def places(self, segment_seq: int, indexes: Sequence[int]) -> bytes:
        """Where bundles that are shown lie in the log's file, as an array of `base.protocol.places.PLACE`; empty for a sealed segment."""
        opened = self._open.get(segment_seq)
        if opened is None:
            return b""
        ends, item_count = opened.sizes.ends, opened.log.builder.item_count
        if len(indexes) <= _FEW:
            return b"".join(
                PLACE.pack(HEADER_BYTES + ends[index], ends[index + 1] - ends[index], item_count(index))
                for index in indexes
            )
        chosen, counted = np.asarray(indexes, np.int64), np.frombuffer(ends, np.uint64)
        places = np.empty(len(chosen), _PLACE)
        places["offset"] = counted[chosen] + np.uint64(HEADER_BYTES)
        places["size_bytes"] = counted[chosen + 1] - counted[chosen]
        places["item_count"] = opened.log.builder.item_counts(chosen)
        return places.tobytes()

    def file_of(self, segment_seq: int) -> tuple[str, DiskFile]:
        """The path and the file of a log of which something is shown. The file stays open until the log is sealed. Raises NotStored."""
        opened = self._opened(segment_seq)
        return opened.log.path, opened.file

    def open(self, segment_seq: int, *, for_guest: bool = False) -> tuple[int, int]:
        """A read-only descriptor of the file of a log, which the caller closes, and the file's size now.

        Raises:
            NotStored: there is no such log, or nothing of it is shown.
            DiskError: there is no descriptor left, or the file cannot be opened.
        """
        opened = self._opened(segment_seq)
        file = opened.file.reopen()
        try:
            descriptor, size_bytes = os.dup(file.fileno()), file.size()
        except OSError as error:
            raise DiskError("dup", opened.log.path, error.errno or errno.EIO) from error
        finally:
            file.close()
        (unlock_for_guest if for_guest else lock_for_reader)(descriptor)
        return descriptor, size_bytes

    def _opened(self, segment_seq: int) -> OpenSegment:
        opened = self._open.get(segment_seq)
        if opened is None:
            raise NotStored(f"segment {segment_seq} is not open, or none of its bundles can be read yet")
        return opened


def _info(opened: OpenSegment) -> SegmentInfo:
    log, ends = opened.log, opened.sizes.ends
    times = log.builder.bundle_summaries().ingestion_ts_nanos[: len(ends) - 1]
    return SegmentInfo(
        log.segment_seq,
        len(ends) - 1,
        -1,
        ends[-1],
        int(times.min()),
        int(times.max()),
        position_start=log.position_start,
        position_end=log.position_start + ends[-1],
    )
