"""The log files of one engine, oldest first: retired and closed ones wait for their seal or commit, the last one may be active, and
behind them a spare stands ready.

Owner: the engine, on the loop thread. A file is allocated in full before its first entry, so that a full disk is met here and not at a
write. A push stays in one log, and a log becomes one segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from quiver_actors import jobs
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.condition import Condition, EngineState
from quiver_actors.engine.numbers import Numbers
from quiver_actors.events import Event, Resumed
from quiver_actors.paths import EnginePaths
from quiver_actors.retention.account import block_bytes
from quiver_actors.units import KIB, MIB, SECOND_NS
from quiver_actors.wal import layout
from quiver_actors.wal.contract import segment_cfg_hash
from quiver_actors.wal.log import Log

_TAIL_SLACK_BYTES = 1 * MIB
"""Allocated beyond the target, so that the last push and the tail of the seal usually fit; a small target needs less."""
_TAIL_SLACK_BYTES_MIN = 64 * KIB
_SPARE_TAKEN_NS = SECOND_NS


class LogQueue:
    """See the module.

    Attributes:
        active: the log that takes entries, None if the next push begins one.
        sequence_written: bundles below it are written to their log.
        seals, seal_ns_last: how many logs became segments, and how long the last of them took.
        room: says whether the engine's worker may take so many bytes more of the disk.
        wanted_bytes: what `room` has refused last; 0 = nothing is refused.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
    ) -> None:
        self.active: Log | None = None
        self.sequence_written = numbers.next_sequence
        self.seals = self.seal_ns_last = 0
        self._disk = disk
        self._paths = paths
        self._settings = settings
        self._cfg_hash = segment_cfg_hash(settings)
        self._clock = clock
        self._condition = condition
        self._numbers = numbers
        self._logs: deque[Log] = deque()
        self._spare: Log | None = None
        self._wanted_capacity = 0
        self._spare_until_ns = 0
        """When whoever asked for the spare has had time enough to take it."""
        self._allocating_bytes = 0
        self.room: Callable[[int], bool] = lambda _: True
        self.wanted_bytes = 0

    def __iter__(self) -> Iterator[Log]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def close(self) -> None:
        for log in [*self._logs, *([self._spare] if self._spare else [])]:
            log.file.close()

    def unlink_spare(self) -> None:
        if self._spare is not None:
            self._disk.unlink(self._spare.path)

    # --- room for a push ---------------------------------------------------------------------------------------------------

    def log_for(self, span_bytes: int) -> Log | None:
        """The log that a push of that size goes into: the active one, else the spare, None if it has to wait.

        What is missing is asked for, so that it is there after some `finish`.
        """
        active, spare = self.active, self._spare
        if active is not None and self._fits(active, span_bytes):
            return active
        needed = layout.HEADER_BYTES + span_bytes + layout.END_MARK_BYTES
        self._wanted_capacity = max(self._wanted_capacity, needed)
        if self._is_at_limit(needed):
            if len(self._logs) == 1:
                # Nothing else is being sealed: without an end to this one the push would wait until it is old.
                self.close_active()
            return None
        is_ready = spare is not None and spare.capacity_bytes >= needed and self._numbers.has_segment_seq
        return spare if is_ready else None

    def _is_at_limit(self, needed_bytes: int) -> bool:
        """Whether the seals lag so far behind that no further log may be begun. One log always may, however large."""
        limits, unsealed = self._settings.wal, len(self._logs)
        unsealed_bytes = sum(log.end for log in self._logs)
        return unsealed > limits.max_rotated_files or (
            unsealed > 0 and unsealed_bytes + needed_bytes > limits.max_size_bytes
        )

    def change_settings(self, settings: TopicSettings) -> None:
        """From the next log on, and for the age of the active one. The slots stay."""
        self._settings = settings

    def _fits(self, log: Log, span_bytes: int) -> bool:
        """A push stays in one log: it fits if the log is below its target with it, or empty and large enough."""
        end = log.end + span_bytes
        if log.closed or end + layout.END_MARK_BYTES > log.capacity_bytes:
            return False
        if log.is_empty:
            return True
        is_full = end - layout.HEADER_BYTES > self._settings.segment.target_size_bytes
        return not is_full and log.holds_another_push

    def activate_spare(self) -> None:
        """Begin the next segment in the spare, which `log_for` has just promised."""
        self.close_active()
        log, self._spare = self._spare, None
        assert log is not None, "log_for promised a spare log"
        log.activate(self._cfg_hash, self._numbers.position, self._numbers.identity())
        self._numbers.take_segment_seq()
        self._wanted_capacity = 0
        self._logs.append(log)
        self.active = log

    def close_active(self) -> None:
        """Its next commit rotates it."""
        if self.active is not None and not self.active.is_empty:
            self.active.closed = True
            self.active = None

    # --- writing -----------------------------------------------------------------------------------------------------------

    @property
    def has_staged(self) -> bool:
        return any(log.has_staged for log in self._logs)

    def write(self) -> None:
        """Write everything staged, one call per log (there is one, except in the turn of a rotation)."""
        for log in self._logs:
            if log.has_staged:
                log.write()
        self.sequence_written = self._numbers.next_sequence
        self._close_if_full()

    def _close_if_full(self) -> None:
        log, limits = self.active, self._settings.segment
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
        """Close an active log that is old enough to be sealed, and forget who has not taken the spare that he asked for."""
        active = self.active
        if self._is_spare_left and self._clock.monotonic_ns() >= self._spare_until_ns:
            self._wanted_capacity = 0
        if active is None or active.is_empty or active.has_staged:
            return
        if self._clock.monotonic_ns() - active.first_append_ns >= self._settings.segment.max_open_duration_ns:
            self.close_active()

    def deadlines_ns(self) -> list[int]:
        """When the active log is old, and when it is to be synced."""
        active, flush_interval_ns = self.active, self._settings.wal.flush_interval_ns
        is_synced = self._settings.durability == "wal"
        if active is None or active.is_empty:
            return [self._spare_until_ns] if self._is_spare_left else []
        deadlines = [active.first_append_ns + self._settings.segment.max_open_duration_ns]
        if is_synced and active.written_end > active.synced_end and flush_interval_ns:
            deadlines.append(active.dirty_since_ns + flush_interval_ns)
        return deadlines

    @property
    def _is_spare_left(self) -> bool:
        """The spare that was asked for is there, and nobody has taken it."""
        return bool(
            self.active is None
            and self._wanted_capacity
            and self._spare
            and self._spare.capacity_bytes >= self._wanted_capacity
        )

    # --- the spare ---------------------------------------------------------------------------------------------------------

    @property
    def next_capacity_bytes(self) -> int:
        """Of the next log file."""
        target = self._settings.segment.target_size_bytes
        usual = layout.HEADER_BYTES + target + min(_TAIL_SLACK_BYTES, max(_TAIL_SLACK_BYTES_MIN, target))
        return max(usual, self._wanted_capacity)

    def allocate_job(self) -> jobs.AllocateJob | None:
        """A spare is made when one is asked for, and kept ready while the engine takes bundles."""
        spare = self._spare
        is_wanted = self.active is not None or self._wanted_capacity or self._condition.state is EngineState.FULL
        if not is_wanted if spare is None else spare.capacity_bytes >= self._wanted_capacity:
            self.wanted_bytes = 0
            return None
        more_bytes = self.next_capacity_bytes - (spare.capacity_bytes if spare else 0)
        self.wanted_bytes = 0 if self.room(more_bytes) else more_bytes
        if self.wanted_bytes:
            return None
        self._allocating_bytes = self.next_capacity_bytes
        self._spare = None  # the job has it until it comes back
        return self._allocation(self._paths.spare(self._numbers.take_spare()) if spare is None else spare.path, spare)

    def _allocation(self, path: str, grow: Log | None) -> jobs.AllocateJob:
        free_bytes_min = self._settings.retention.min_free_bytes
        return jobs.AllocateJob(self._disk, path, self.next_capacity_bytes, grow, free_bytes_min=free_bytes_min)

    def finish_allocate(self, job: jobs.AllocateJob) -> list[Event]:
        self._spare, self._allocating_bytes = job.spare, 0
        self._spare_until_ns = self._clock.monotonic_ns() + _SPARE_TAKEN_NS
        self._condition.set_roomy()
        return [Resumed()]

    @property
    def is_throttled(self) -> bool:
        """A push waits for a log that there is no leave for."""
        return bool(self.wanted_bytes and self._wanted_capacity)

    def release_spare_job(self) -> jobs.UnlinkJob | None:
        """Give up a spare that nothing is about to be written to."""
        spare = self._spare
        if spare is None or self.active is not None or self._wanted_capacity:
            return None
        self._spare, self._allocating_bytes = None, spare.capacity_bytes
        spare.file.close()
        return jobs.UnlinkJob(self._disk, spare.path)

    def finish_release_spare(self, _: jobs.UnlinkJob) -> list[Event]:
        self._allocating_bytes = 0
        return []

    def no_room_for_spare(self, job: jobs.AllocateJob) -> list[Event]:
        self._spare, self._allocating_bytes = job.spare, 0
        self._condition.set_full()
        return []

    # --- seals -------------------------------------------------------------------------------------------------------------

    def seal_now(self) -> int | None:
        """Close the active log. Returns the newest segment that is on its way to be sealed, None if there is none."""
        self.close_active()
        closed = [log.segment_seq for log in self._logs if log.closed]
        return closed[-1] if closed else None

    @property
    def oldest_segment_seq(self) -> int | None:
        """Of the segment that is sealed next; None if nothing waits for it."""
        return self._logs[0].segment_seq if self._logs else None

    @property
    def sealed_next(self) -> int | None:
        """The oldest log's segment, if the log is complete and synced: its seal is the next one."""
        return self._logs[0].segment_seq if self._logs and self._logs[0].retired else None

    def seal_job(self, before: int | None = None) -> jobs.SealJob | None:
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
        return jobs.SealJob(self._disk, self._paths, self._logs[0], self._numbers.incarnation)

    def finish_seal(self, job: jobs.SealJob) -> None:
        """The oldest log is a segment now."""
        log = self._logs.popleft()
        assert log is job.log
        self.seals += 1
        self.seal_ns_last = job.took_ns

    # --- what is in them ---------------------------------------------------------------------------------------------------

    @property
    def end(self) -> tuple[int, int]:
        """(segment_seq, bundle index) behind everything appended so far."""
        active = self.active
        return (active.segment_seq, active.builder.bundle_count) if active else (self._numbers.next_segment_seq, 0)

    def bundle_counts(self) -> dict[int, int]:
        """By segment number, oldest first."""
        return {log.segment_seq: log.builder.bundle_count for log in self._logs}

    def ingestion_times(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """(segment_seq, UNIX nanoseconds of its bundles), oldest first."""
        return ((log.segment_seq, log.builder.bundle_summaries().ingestion_ts_nanos) for log in self._logs)

    def ingestion_times_of(self, segment_seq: int) -> npt.NDArray[np.int64] | None:
        """UNIX nanoseconds of its bundles, None if it is not in a log."""
        return next((times for seq, times in self.ingestion_times() if seq == segment_seq), None)

    def first_ingestion_unix_ns(self) -> int:
        """Of the oldest bundle in any log; 0 if there is none."""
        return next((log.builder.first_ingestion_ts_nanos for log in self._logs if not log.is_empty), 0)

    @property
    def entry_bytes(self) -> int:
        return sum(log.entry_bytes for log in self._logs)

    @property
    def allocated_bytes(self) -> int:
        """What the files take of the disk, the spare included."""
        return self.open_bytes + self.sealing_bytes

    @property
    def open_bytes(self) -> int:
        """Of the active log and the spare, as preallocated, also while the spare is being made or removed."""
        spare_bytes = self._spare.capacity_bytes if self._spare else 0
        logs = sum(block_bytes(log.capacity_bytes) for log in self._logs if not log.closed)
        return logs + block_bytes(max(spare_bytes, self._allocating_bytes))

    @property
    def sealing_bytes(self) -> int:
        """Of the logs that take nothing more."""
        return sum(block_bytes(log.capacity_bytes) for log in self._logs if log.closed)
