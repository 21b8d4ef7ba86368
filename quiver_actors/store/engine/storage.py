"""The calls of a worker to an engine about space on the disk and about load.

Owner: the engine, on the loop thread. It owns no state: the engine's parts and its work do.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.store.engine.parts import Parts
from quiver_actors.store.engine.work import Tasks
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.retention.limits import ROOM, NoRoom
from quiver_actors.store.retention.losses import Losses


class Storage:
    """Answers and takes what concerns the room of one engine on the disk, and its load."""

    def __init__(self, parts: Parts, tasks: Tasks) -> None:
        self._parts = parts
        self._tasks = tasks

    # --- room --------------------------------------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """Bytes of everything in the engine's directory, as `du` counts it, with what is being allocated."""
        return self._parts.disk_account.used_bytes + self._parts.stages.table.disk_bytes

    def share_room(self, room: Callable[[int], bool], which_limit: Callable[[], NoRoom] = lambda: ROOM) -> None:
        """Ask `room` from now on before any log file is made.

        Args:
            room: says whether the engine's worker may take so many bytes more of the disk.
            which_limit: names the limit by which `room` has just said no.
        """
        allowance = self._parts.allowance
        allowance.admits, allowance.which_limit = room, which_limit

    @property
    def wanted_bytes(self) -> int:
        """Bytes that `room` has refused; the engine asks for them again with every `next_background`."""
        return self._parts.logs.spare.wanted_bytes + self._parts.stage_jobs.refused_bytes

    def waited_bytes(self, *, by_pushes: bool, by_stages: bool) -> int:
        """Bytes of `wanted_bytes` that somebody waits for; the others are wishes ahead of need, or of pushes that have gone.

        Args:
            by_pushes: whether pushes wait.
            by_stages: whether pushes into transactions wait.
        """
        of_logs = self._parts.logs.spare.wanted_bytes if by_pushes else 0
        return of_logs + (self._parts.stage_jobs.refused_bytes if by_stages else 0)

    @property
    def is_throttled(self) -> bool:
        """Whether a push waits for room that was refused."""
        return self._parts.logs.spare.is_throttled

    @property
    def is_being_shared(self) -> bool:
        """Whether the limit that refused room leaves enough of it, which other workers have to give back first."""
        spare = self._parts.logs.spare
        return spare.limit_met.leaves(spare.wanted_bytes)

    @property
    def is_short(self) -> bool:
        """Whether a push waits for room that was refused, also one into a transaction."""
        return self.is_throttled or self._parts.stage_jobs.refused_bytes > 0

    @property
    def step_bytes(self) -> int:
        """The most bytes of disk that the engine takes at once, for its next log file."""
        return self._parts.logs.spare.length_bytes

    @property
    def is_delivered(self) -> bool:
        """Whether the engine has nothing that anybody is or could be owed: no bundle, no notice, no stage, and nothing in quarantine."""
        logs, sealed_segments, registry = self._parts.logs, self._parts.sealed_segments, self._parts.progress.registry
        holds_bundles = len(logs) or sealed_segments.segments or sealed_segments.waiting or list(self._parts.stages)
        has_quarantine = self._parts.disk_account.disk_use().small.quarantine_bytes
        holds_blocks = self._parts.disk_account.held_files.size_bytes
        return (
            not holds_bundles
            and not has_quarantine
            and not holds_blocks
            and not any(state.gaps.untold_count for state in registry)
        )

    @property
    def seals_early(self) -> bool:
        """Whether the topic lets open segments be sealed early near the cap."""
        return self._parts.retention.settings.early_seal

    @property
    def has_open_bundles(self) -> bool:
        """Whether the log that takes entries holds any."""
        return self._parts.logs.active is not None and not self._parts.logs.active.is_empty

    @property
    def is_taking(self) -> bool:
        """Whether there is any log."""
        return len(self._parts.logs) > 0

    @property
    def losses(self) -> Losses:
        """Segments that were deleted, and bundles that were lost, since the engine was opened."""
        return self._parts.sealed_segments.losses

    @property
    def releases_spare(self) -> bool:
        """Whether the spare log file is deleted while nothing is pushed."""
        return self._tasks.releases_spare

    @releases_spare.setter
    def releases_spare(self, releases: bool) -> None:
        self._tasks.releases_spare = releases

    # --- the cold disk -------------------------------------------------------------------------------------------------------

    def next_cold(self) -> Job | None:
        """The next job for the thread of the cold disk; None if there is nothing to do or one is under way. Nothing else waits for it."""
        return self._parts.relocation.next()

    def is_cold(self, segment_seq: int) -> bool:
        """Whether the file of a sealed segment is on the cold disk."""
        return segment_seq in self._parts.sealed_segments.segments.cold

    def remove_cold(self) -> Job | None:
        """The job that deletes everything that the engine has on the cold disk, as its topic is deleted; None if there is nothing."""
        cold = self._parts.cold
        return cold.tenure.remove_job(cold.directory, cold.known)

    # --- load --------------------------------------------------------------------------------------------------------------

    @property
    def sealing_lag(self) -> float:
        """The share of the logs that may wait for their seal which do wait, from 0 to 1."""
        return min(1.0, max(0, len(self._parts.logs) - 1) / self._parts.logs.settings.wal.max_rotated_files)

    @property
    def sync_ns(self) -> int:
        """How long the last group commit took, in nanoseconds."""
        return self._parts.group_commit.sync_ns_last

    @property
    def defers_upkeep(self) -> bool:
        """Whether compaction and scrub are postponed."""
        return self._tasks.defers_upkeep

    @defers_upkeep.setter
    def defers_upkeep(self, defers: bool) -> None:
        self._tasks.defers_upkeep = defers
