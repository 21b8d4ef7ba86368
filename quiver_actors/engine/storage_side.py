"""What a worker asks of an engine about room on the disk and about load, and what it tells it to do without.

Owner: the engine, on the loop thread. It owns no state: the engine's parts and its work do.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.config import TopicSettings
from quiver_actors.engine.parts import Parts
from quiver_actors.engine.work import Work
from quiver_actors.retention.losses import Losses


class StorageSide:
    """See the module; an engine is one.

    Attributes:
        settings: of its topic.
        retention: what it keeps and what goes.
        stages: staged bundles.
    """

    def __init__(self, settings: TopicSettings, parts: Parts, work: Work) -> None:
        self.settings = settings
        self.retention = parts.retention
        self.stages = parts.stages
        self._parts = parts
        self._work = work

    # --- room --------------------------------------------------------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """Everything in its directory, as `du` counts it, with what is being allocated."""
        return self.retention.used_bytes + self.stages.disk_bytes

    def share_room(self, room: Callable[[int], bool]) -> None:
        """From now on no log file is made without leave.

        Args:
            room: says whether the engine's worker may take so many bytes more of the disk.
        """
        self._parts.logs.room = self.stages.room = room

    @property
    def wanted_bytes(self) -> int:
        """What it was refused leave for; asked again with every `next_background`."""
        return self._parts.logs.wanted_bytes + self.stages.refused_bytes

    @property
    def is_throttled(self) -> bool:
        """A push waits for that leave."""
        return self._parts.logs.is_throttled

    @property
    def is_short(self) -> bool:
        """A push waits for that leave, or what is pushed into a transaction."""
        return self.is_throttled or self.stages.refused_bytes > 0

    @property
    def step_bytes(self) -> int:
        """What it takes at once of the disk."""
        return self._parts.logs.next_capacity_bytes

    @property
    def is_delivered(self) -> bool:
        """Nothing is in it that anybody is, or could be, owed: neither bundle nor notice nor stage, and nothing in quarantine."""
        logs, shelf, registry = self._parts.logs, self._parts.shelf, self._parts.progress.registry
        holds_bundles = len(logs) or shelf.segments or shelf.waiting or list(self.stages)
        has_quarantine = self.retention.disk_use().small.quarantine_bytes
        return not holds_bundles and not has_quarantine and not any(state.gaps.untold_count for state in registry)

    @property
    def seals_early(self) -> bool:
        """Its topic lets open segments be sealed near the cap."""
        return self.retention.settings.early_seal

    @property
    def has_open_bundles(self) -> bool:
        return self._parts.logs.active is not None and not self._parts.logs.active.is_empty

    @property
    def is_taking(self) -> bool:
        """Something is in a log."""
        return len(self._parts.logs) > 0

    @property
    def losses(self) -> Losses:
        """What was deleted and lost since the engine was opened."""
        return self._parts.shelf.losses

    @property
    def releases_spare(self) -> bool:
        """Whether the spare log file is given up while nothing is pushed."""
        return self._work.releases_spare

    @releases_spare.setter
    def releases_spare(self, releases: bool) -> None:
        self._work.releases_spare = releases

    # --- load --------------------------------------------------------------------------------------------------------------

    @property
    def sealing_lag(self) -> float:
        """How much of what may wait for its seal does, 0 to 1."""
        return min(1.0, max(0, len(self._parts.logs) - 1) / self.settings.wal.max_rotated_files)

    @property
    def sync_ns(self) -> int:
        """How long the last group commit took."""
        return self._parts.group_commit.sync_ns_last

    @property
    def defers_upkeep(self) -> bool:
        """Whether compaction and scrub are left for later."""
        return self._work.defers_upkeep

    @defers_upkeep.setter
    def defers_upkeep(self, defers: bool) -> None:
        self._work.defers_upkeep = defers
