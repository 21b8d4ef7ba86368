"""The log files of one engine, oldest first: retired and closed ones wait for their seal or commit, the last one may be active, and
behind them a spare stands ready.

Owner: the engine, on the loop thread. A push stays in one log, and a log becomes one segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.log_growth import LogGrowth
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.engine.spare_log import SpareLog
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.commits import SealJob
from quiver_actors.store.retention.limits import DISK_LIMITS, Allowance
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.contract import segment_cfg_hash
from quiver_actors.store.wal.log import Log

MAX_AGE_PART = 0.1
"""Part of `max_age` for which a log takes bundles at most."""


class LogQueue:
    """The log files of one engine, from the oldest that waits for its seal to the active one, and the spare behind them.

    Attributes:
        active: the log that takes entries, None if the next push begins one.
        growth: reserves blocks for the active log.
        sequence_written: bundles with a lower sequence are written to their log.
        seals, seal_ns_last: how many logs became segments, and how long the last of them took.
        spare: the file of the next log.
        settings: the topic's.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
        allowance: Allowance,
    ) -> None:
        self.active: Log | None = None
        self.growth = LogGrowth(disk, allowance)
        self.sequence_written = numbers.next_sequence
        self.seals = self.seal_ns_last = 0
        self.spare = SpareLog(disk, paths, settings, clock, condition, numbers, allowance)
        self._disk = disk
        self._paths = paths
        self.settings = settings
        self._open_duration_ns = _open_duration_ns(settings)
        self._cfg_hash = segment_cfg_hash(settings)
        self._clock = clock
        self._numbers = numbers
        self._logs: deque[Log] = deque()

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def close(self) -> None:
        """Close all open files of logs and the spare."""
        for log in self._logs:
            log.file.close()
        self.spare.close()

    # --- room for a push ---------------------------------------------------------------------------------------------------

    def log_for(self, span_bytes: int) -> Log | None:
        """The log that a push of that size goes into: the active one, else the spare, None if it has to wait.

        What is missing is asked for, so that it is there after some `finish`.
        """
        active = self.active
        if active is not None and self._fits(active, span_bytes):
            end = active.end + span_bytes + layout.END_MARK_BYTES
            if end <= active.capacity_bytes:
                return active
            self.growth.wanted_bytes = max(self.growth.wanted_bytes, end)
            return None
        needed = layout.HEADER_BYTES + span_bytes + layout.END_MARK_BYTES
        self.spare.want(needed)
        is_at_limit = self._is_at_limit(needed)
        if (is_at_limit and len(self._logs) == 1) or self.spare.limit_met.limit in DISK_LIMITS:
            # Nothing else is being sealed, or the disk is full: without an end to this one the push would wait until it is old.
            self.close_active()
        return None if is_at_limit else self.spare.ready(needed)

    def _is_at_limit(self, needed_bytes: int) -> bool:
        """Whether the seals lag so far behind that no further log may be begun. One log always may, however large."""
        limits, unsealed = self.settings.wal, len(self._logs)
        unsealed_bytes = sum(log.end for log in self._logs)
        return unsealed > limits.max_rotated_files or (
            unsealed > 0 and unsealed_bytes + needed_bytes > limits.max_size_bytes
        )

    def change_settings(self, settings: TopicSettings) -> None:
        """Use these settings from the next log on, and at once for the age limit of the active log. The topic's slots do not change."""
        self.settings = self.spare.settings = settings
        self._open_duration_ns = _open_duration_ns(settings)

    def _fits(self, log: Log, span_bytes: int) -> bool:
        """A push stays in one log: it fits if the log is below its target with it, or empty and large enough."""
        end = log.end + span_bytes
        if log.closed or end + layout.END_MARK_BYTES > log.length_bytes:
            return False
        if log.is_empty:
            return True
        is_full = end - layout.HEADER_BYTES > self.settings.segment.target_size_bytes
        return not is_full and log.holds_another_push

    def activate_spare(self) -> None:
        """Begin the next segment in the spare, which `log_for` has just promised."""
        self.close_active()
        log = self.spare.take()
        log.activate(self._cfg_hash, self._numbers.position, self._numbers.identity())
        self._numbers.take_segment_seq()
        self._logs.append(log)
        self.active = log

    def close_active(self) -> None:
        """Take no more bundles into the active log. Its next commit rotates it."""
        if self.active is not None and not self.active.is_empty:
            self.active.closed = True
            self.spare.ended_bytes, self.growth.wanted_bytes = self.active.end, 0
            self.active = None

    # --- writing -----------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write everything staged, one call per log (there is one, except in the turn of a rotation)."""
        for log in self._logs:
            if log.has_staged:
                log.write()
        self.sequence_written = self._numbers.next_sequence
        self._close_if_full()

    def _close_if_full(self) -> None:
        log, limits = self.active, self.settings.segment
        if log is None or not log.builder.bundle_count:
            return
        builder = log.builder
        if (
            log.end - layout.HEADER_BYTES >= limits.target_size_bytes
            or builder.bundle_count >= limits.max_bundle_count
            or builder.stream_count >= limits.max_stream_count
        ):
            self.close_active()

    # --- time --------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Close an active log that is old enough to be sealed, and stop keeping a spare that was asked for and not taken in time."""
        active = self.active
        if active is None:
            self.spare.tick()
        if active is None or active.is_empty or active.has_staged:
            return
        if self._clock.monotonic_ns() - active.first_append_ns >= self._open_duration_ns:
            self.close_active()

    def deadlines_ns(self) -> list[int]:
        """When the active log is old, and when it is to be synced."""
        active, flush_interval_ns = self.active, self.settings.wal.flush_interval_ns
        is_synced = self.settings.is_synced
        if active is None or active.is_empty:
            return self.spare.deadlines_ns() if active is None else []
        deadlines = [active.first_append_ns + self._open_duration_ns]
        if is_synced and active.written_end > active.synced_end and flush_interval_ns:
            deadlines.append(active.dirty_since_ns + flush_interval_ns)
        return deadlines

    # --- seals -------------------------------------------------------------------------------------------------------------

    def seal_now(self) -> int | None:
        """Close the active log. Returns the newest segment that is on its way to be sealed, None if there is none."""
        self.close_active()
        closed = [log.segment_seq for log in self._logs if log.closed]
        return closed[-1] if closed else None

    def find(self, segment_seq: int) -> Log | None:
        """The log that becomes that segment; None if there is none."""
        return next((log for log in self._logs if log.segment_seq == segment_seq), None)

    @property
    def sealed_next(self) -> int | None:
        """The oldest log's segment, if the log is complete and synced: its seal is the next one."""
        return self._logs[0].segment_seq if self._logs and self._logs[0].retired else None

    def seal_job(self, before: int | None = None) -> SealJob | None:
        """
        Args:
            before: only a segment below that number.
        """
        if not self._logs or not self._logs[0].retired:
            return None
        if before is not None and self._logs[0].segment_seq > before:
            return None
        # Here and not in the job's thread: this one may read the books while the job runs.
        self._logs[0].builder.pack()
        return SealJob(self._disk, self._paths, self._logs[0], self._numbers.incarnation)

    def finish_seal(self, job: SealJob) -> None:
        """Take out the oldest log, which is a segment now."""
        log = self._logs.popleft()
        assert log is job.log
        self.seals += 1
        self.seal_ns_last = job.took_ns

    # --- what is in them ---------------------------------------------------------------------------------------------------

    @property
    def end(self) -> tuple[int, int]:
        """The position, as (segment_seq, bundle index), behind everything appended so far."""
        active = self.active
        return (active.segment_seq, active.builder.bundle_count) if active else (self._numbers.next_segment_seq, 0)

    def bundle_counts(self) -> dict[int, int]:
        """How many bundles each log has, by segment number, oldest first."""
        return {log.segment_seq: log.builder.bundle_count for log in self._logs}

    def ingestion_times(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """The ingestion times of each log's bundles: (segment_seq, UNIX nanoseconds), oldest first."""
        return ((log.segment_seq, log.builder.bundle_summaries().ingestion_ts_nanos) for log in self._logs)

    def first_ingestion_unix_ns(self) -> int:
        """Ingestion time of the oldest bundle in any log, UNIX nanoseconds; 0 if the logs have no bundles."""
        return next((log.builder.first_ingestion_ts_nanos for log in self._logs if not log.is_empty), 0)

    @property
    def entry_bytes(self) -> int:
        """Bytes of entries in logs that are not sealed yet."""
        return sum(log.entry_bytes for log in self._logs)


def _open_duration_ns(settings: TopicSettings) -> int:
    """Return how long a log takes bundles.

    `max_age` reaches segments only and goes by their newest bundle, so no bundle outlives it by more than the part that is allowed here.
    """
    segment, max_age_ns = settings.segment, settings.retention.max_age_ns
    open_ns = segment.max_open_duration_ns
    if settings.durability == "segment_only":
        open_ns = min(open_ns, segment.max_unsynced_duration_ns)
    if settings.is_archived:
        open_ns = min(open_ns, settings.archive.commit_interval_ns)
    return min(open_ns, int(MAX_AGE_PART * max_age_ns)) if max_age_ns else open_ns
