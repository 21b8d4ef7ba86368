"""The parts of one engine, put together: each owns a piece of its state, and knows only those above it in the list."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.ballast import Ballast
from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.condition import Condition
from quiver_actors.engine.group_commit import GroupCommit
from quiver_actors.engine.intake import Intake
from quiver_actors.engine.log_queue import LogQueue
from quiver_actors.engine.mending import Mending
from quiver_actors.engine.numbers import Numbers
from quiver_actors.engine.producers import Producers
from quiver_actors.engine.progress import Progress
from quiver_actors.engine.retention import Retention
from quiver_actors.engine.shelf import Shelf
from quiver_actors.engine.stages import Stages
from quiver_actors.paths import EnginePaths
from quiver_actors.recovery import Recovered
from quiver_actors.upkeep import Upkeep


@dataclass(frozen=True, slots=True)
class Parts:
    """See the module."""

    core: int
    clock: Clock
    condition: Condition
    numbers: Numbers
    logs: LogQueue
    group_commit: GroupCommit
    producers: Producers
    intake: Intake
    progress: Progress
    upkeep: Upkeep
    shelf: Shelf
    mending: Mending
    retention: Retention
    stages: Stages
    ballast: Ballast

    def change_settings(self, settings: TopicSettings) -> None:
        """Name and slots are as they were."""
        self.logs.change_settings(settings)
        self.group_commit.change_settings(settings)
        self.progress.change_settings(settings)
        self.stages.change_settings(settings)
        self.mending.change_settings(settings)
        self.retention.settings = settings.retention
        self.shelf.search_again()
        free_bytes_min, compacts = settings.retention.min_free_bytes, settings.segment.compaction == "auto"
        self.ballast.change_reserve(free_bytes_min)
        self.upkeep.change_limits(compacts=compacts, free_bytes_min=free_bytes_min)

    @property
    def is_bare(self) -> bool:
        """Nothing was ever put in, and nobody waits for anything: nothing that a full disk could hold up."""
        return not (
            len(self.logs) or self.shelf.segments or len(self.progress.registry) or any(True for _ in self.stages)
        )

    def unannounced(self) -> list[int]:
        """Segment numbers that subscribers have not been told of yet, and of damaged ones that they may be told of again."""
        coming = [*self.logs.bundle_counts(), *self.stages.publishing]
        return [*self.shelf.waiting, *self.mending.under_rescue, *coming]

    def oldest_unannounced(self) -> int:
        """The lowest of these, or the next number there will be."""
        return min(self.unannounced(), default=self.numbers.next_segment_seq)

    def unlisted(self) -> set[int]:
        """Segment numbers that are not on the shelf yet, or not any more before somebody was told why."""
        return {*self.unannounced()} - self.shelf.segments.keys()


def assemble(
    disk: Disk, paths: EnginePaths, settings: TopicSettings, core: int, clock: Clock, recovered: Recovered
) -> Parts:
    """The parts of an engine that starts from what was recovered."""
    place = f"topic {settings.name!r} on core {core}"
    free_bytes_min, compacts = settings.retention.min_free_bytes, settings.segment.compaction == "auto"
    condition, numbers = Condition(), Numbers(disk, paths, recovered)
    logs = LogQueue(disk, paths, settings, clock, condition, numbers)
    producers = Producers(disk, paths, recovered.windows)
    progress = Progress(disk, paths, settings, clock, condition, recovered.registry)
    upkeep = Upkeep(disk, paths, clock, compacts=compacts, free_bytes_min=free_bytes_min)
    shelf = Shelf(disk, paths, recovered, progress, upkeep)
    ballast = Ballast(disk, paths.ballast, free_bytes_min)
    retention = Retention(disk, paths, settings, clock, progress, logs, shelf, ballast)
    shelf.spool = retention.spool
    return Parts(
        core=core,
        clock=clock,
        condition=condition,
        numbers=numbers,
        logs=logs,
        group_commit=GroupCommit(disk, paths, settings, clock, condition, numbers, logs),
        producers=producers,
        intake=Intake(place, clock, condition, numbers, logs, producers),
        progress=progress,
        upkeep=upkeep,
        shelf=shelf,
        mending=Mending(disk, paths, settings, recovered, progress, shelf, upkeep),
        retention=retention,
        stages=Stages(disk, paths, settings, clock, condition, numbers, logs, shelf, recovered.stages),
        ballast=ballast,
    )
