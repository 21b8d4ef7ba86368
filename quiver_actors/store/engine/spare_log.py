"""The log file that stands ready for the next pushes of one engine, and the room on the disk that it takes.

Owner: the engine's `LogQueue`, on the loop thread. The file has its full length from the beginning. Blocks are reserved before an entry is
written into them, so that a full disk is met here and not at a write: as many as the log before it took, more of them by `LogGrowth`.
"""

from __future__ import annotations

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import KIB, MIB, SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.condition import Condition, EngineState
from quiver_actors.store.engine.events import Event, Resumed
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.removal import UnlinkJob
from quiver_actors.store.jobs.room import AllocateJob
from quiver_actors.store.retention.account import block_bytes
from quiver_actors.store.retention.limits import ROOM, Allowance
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.log import Log

_TAIL_SLACK_BYTES = 1 * MIB
"""Length beyond the target, so that the last push and the tail of the seal usually fit; a small target needs less."""
_TAIL_SLACK_BYTES_MIN = 64 * KIB
_FIRST_BYTES = 64 * KIB
"""Blocks of the first log of a topic: many topics that get little do not reserve the disk."""
GROWTH = 4
"""A log has so many times its blocks after a step."""
_TAKEN_NS = SECOND_NS


class SpareLog:
    """The next log file: whether one is asked for, whether it may be made, and the file itself once it is there.

    Attributes:
        settings: the topic's; they may be replaced while the engine runs.
        wanted_bytes: how many bytes the allowance has refused last; 0 = nothing is refused.
        limit_met: the limit for which there is no next log, `ROOM` while there is one.
        has_refused: a push was refused for that limit, and there was no room since.
        ended_bytes: bytes of the log that ended last: the next one is expected to take as much.
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
        self.settings = settings
        self.wanted_bytes = 0
        self.limit_met = ROOM
        self.has_refused = False
        self.ended_bytes = 0
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._condition = condition
        self._numbers = numbers
        self._allowance = allowance
        self._log: Log | None = None
        self._wanted_capacity = 0
        self._is_abandoned = False
        """Whether the push that `_wanted_capacity` is for has gone without a file, and nobody has asked since."""
        self._until_ns = 0
        """Monotonic time until which a spare that was asked for is kept for whoever asked."""
        self._allocating_bytes = 0

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.file.close()

    def unlink(self) -> None:
        """Delete the file, as a clean stop does."""
        if self._log is not None:
            self._disk.unlink(self._log.path)

    @property
    def block_bytes(self) -> int:
        """Bytes of disk that the file takes, as reserved, also while it is being made or removed."""
        return block_bytes(max(self._log.capacity_bytes if self._log else 0, self._allocating_bytes))

    # --- who asks for it ---------------------------------------------------------------------------------------------------

    def want(self, capacity_bytes: int) -> None:
        """Ask for a file of at least that size, so that it is there after some `finish_allocate`."""
        if self._is_abandoned and capacity_bytes < self._wanted_capacity:
            # What was refused for the larger file may be there for this one: the allowance is asked again.
            self._wanted_capacity = self.wanted_bytes = 0
        self._wanted_capacity, self._is_abandoned = max(self._wanted_capacity, capacity_bytes), False

    def abandon(self) -> None:
        """Note that a push has gone without the file that it asked for: whoever asks next says anew how large the file must be.

        Until then the file is still wanted, as the push may come again."""
        self._is_abandoned = True

    def ready(self, capacity_bytes: int) -> Log | None:
        """The file, if it is there and large enough, and there is a number for its segment."""
        log = self._log
        is_ready = log is not None and log.capacity_bytes >= capacity_bytes and self._numbers.has_segment_seq
        return log if is_ready else None

    def take(self) -> Log:
        """Take the file, which `ready` has just promised."""
        log, self._log = self._log, None
        assert log is not None, "there is no spare log"
        self._wanted_capacity = 0
        return log

    @property
    def _is_left(self) -> bool:
        """Whether the file that was asked for is there, and nobody has taken it."""
        return bool(self._wanted_capacity and self._log and self._log.capacity_bytes >= self._wanted_capacity)

    def tick(self) -> None:
        """Stop keeping a file that was asked for and not taken in time."""
        if self._is_left and self._clock.monotonic_ns() >= self._until_ns:
            self._wanted_capacity = 0

    def deadlines_ns(self) -> list[int]:
        """When `tick` has something to do."""
        return [self._until_ns] if self._is_left else []

    @property
    def is_throttled(self) -> bool:
        """Whether a push waits for a file that the allowance does not permit."""
        return bool(self.wanted_bytes and self._wanted_capacity)

    # --- making and removing it --------------------------------------------------------------------------------------------

    @property
    def length_bytes(self) -> int:
        """Length in bytes of the next file: the most that it takes of the disk, without the tail of a seal that is longer than usual."""
        target = self.settings.segment.target_size_bytes
        usual = layout.HEADER_BYTES + target + min(_TAIL_SLACK_BYTES, max(_TAIL_SLACK_BYTES_MIN, target))
        return max(usual, self._wanted_capacity)

    def _first_bytes(self, active: Log | None) -> int:
        """Bytes of the next file whose blocks are reserved at first: the step that holds what the last log took, and what the present one
        has taken."""
        expected = max(self.ended_bytes, active.end if active is not None else 0)
        step = _FIRST_BYTES
        while step < expected:
            step *= GROWTH
        return max(min(step, self.length_bytes), self._wanted_capacity)

    def allocate_job(self, active: Log | None) -> AllocateJob | None:
        """A spare is made when one is asked for, and kept ready while another log takes entries.

        Args:
            active: the log that takes entries.
        """
        spare, capacity_bytes = self._log, self._first_bytes(active)
        if spare is None:
            is_wanted = active is not None or self._wanted_capacity or self._condition.state is EngineState.FULL
        else:
            is_wanted = spare.capacity_bytes < (self._wanted_capacity if active is None else capacity_bytes)
        if not is_wanted:
            self._found_room()
            return None
        more_bytes = capacity_bytes - (spare.capacity_bytes if spare else 0)
        if not self._allowance.admits(more_bytes):
            self._refused(more_bytes)
            return None
        self.wanted_bytes = 0
        self._allocating_bytes = capacity_bytes
        self._log = None  # the job owns it until it comes back
        path = self._paths.spare(self._numbers.take_spare()) if spare is None else spare.path
        return AllocateJob(
            self._disk,
            path,
            capacity_bytes,
            spare,
            length_bytes=self.length_bytes,
            free_bytes_min=self.settings.retention.min_free_bytes,
        )

    def _refused(self, more_bytes: int) -> None:
        """The allowance does not admit so many bytes. A file that is there, and only not as large as expected, is room enough."""
        if self._suffices(self._log):
            self._found_room()
        else:
            self.wanted_bytes, self.limit_met = more_bytes, self._allowance.which_limit()

    def _suffices(self, log: Log | None) -> bool:
        """Whether the file is there, and large enough for the push that has asked for it."""
        return log is not None and log.capacity_bytes >= self._wanted_capacity

    def finish_allocate(self, job: AllocateJob) -> list[Event]:
        """Take back the job that made the file; the engine takes bundles again."""
        self._log, self._allocating_bytes = job.spare, 0
        self._until_ns = self._clock.monotonic_ns() + _TAKEN_NS
        self._condition.set_roomy()
        self._found_room()
        return [Resumed()]

    def _found_room(self) -> None:
        if self._log is not None:
            self._condition.set_roomy()
        self.wanted_bytes, self.limit_met, self.has_refused = 0, ROOM, False

    def no_room(self, job: AllocateJob) -> list[Event]:
        """Take back the job that found no room for the file; the engine is full."""
        self._log, self._allocating_bytes = job.spare, 0
        if self._suffices(job.spare):
            self._found_room()
        else:
            self.limit_met = job.limit_met
            self._condition.set_full()
        return []

    def is_oversized(self, active: Log | None) -> bool:
        """Whether the file takes far more of the disk than the next log is expected to, as after a burst of pushes.

        Args:
            active: the log that takes entries.
        """
        return self._log is not None and self._log.capacity_bytes > GROWTH * self._first_bytes(active)

    def release_job(self) -> UnlinkJob | None:
        """Delete a file that nothing is about to be written to."""
        log = self._log
        if log is None or self._wanted_capacity:
            return None
        self._log, self._allocating_bytes = None, log.capacity_bytes
        log.file.close()
        return UnlinkJob(self._disk, log.path)

    def finish_release(self, _: UnlinkJob) -> list[Event]:
        """Take back the job that deleted the file."""
        self._allocating_bytes = 0
        return []
