"""The parts of one engine, put together: each owns a piece of its state, and knows only those above it in the list."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.homes import ProducerHomes
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_segments import ColdSegments
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.disk_account import DiskAccount
from quiver_actors.store.engine.group_commit import GroupCommit
from quiver_actors.store.engine.held_files import HeldFiles
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.lone_pushes import LonePushes
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.engine.open_checks import OpenChecks
from quiver_actors.store.engine.producers import Producers
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.publishes import Publishes
from quiver_actors.store.engine.quarantine import Quarantine
from quiver_actors.store.engine.readable_end import ReadableEnd
from quiver_actors.store.engine.relocation import Relocation
from quiver_actors.store.engine.repair import Repair
from quiver_actors.store.engine.retention import Retention
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.engine.stage_jobs import StageJobs
from quiver_actors.store.engine.stage_table import StageTable
from quiver_actors.store.engine.stages import Stages
from quiver_actors.store.files.ballast import Ballast
from quiver_actors.store.files.cold_directory import ColdDisks
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.upkeep import Upkeep
from quiver_actors.store.recovery import Recovered
from quiver_actors.store.retention.limits import Allowance


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one engine; each refers only to those above it."""

    clock: Clock
    condition: Condition
    numbers: Numbers
    logs: LogQueue
    group_commit: GroupCommit
    producers: Producers
    intake: LonePushes
    progress: Progress
    sealed_segments: SealedSegments
    quarantine: Quarantine
    repair: Repair
    retention: Retention
    relocation: Relocation
    disk_account: DiskAccount
    stages: Stages
    stage_jobs: StageJobs
    ballast: Ballast
    allowance: Allowance
    readable_end: ReadableEnd
    open_checks: OpenChecks

    def change_settings(self, settings: TopicSettings) -> None:
        """Give the parts new settings of the same topic: its name and its slots are as they were."""
        self.logs.change_settings(settings)
        self.group_commit.change_settings(settings)
        self.progress.change_settings(settings)
        self.stages.change_settings(settings)
        self.stage_jobs.change_settings(settings)
        self.quarantine.change_settings(settings)
        self.retention.settings = settings.retention
        self.cold.settings = settings.tier
        self.sealed_segments.deletions.search_again()
        free_bytes_min, compacts = settings.retention.min_free_bytes, settings.segment.compaction == "auto"
        self.sealed_segments.summaries.change_settings(settings)
        self.ballast.change_reserve(free_bytes_min)
        self.upkeep.change_limits(compacts=compacts, free_bytes_min=free_bytes_min)

    @property
    def cold(self) -> ColdSegments:
        """The segments on the cold disk."""
        return self.relocation.cold

    @property
    def upkeep(self) -> Upkeep:
        """Compaction and scrub."""
        return self.repair.upkeep

    @property
    def is_bare(self) -> bool:
        """Whether nothing was ever pushed and nobody waits for anything, so that a full disk could hold up nothing."""
        return not (
            len(self.logs)
            or self.sealed_segments.segments
            or len(self.progress.registry)
            or any(True for _ in self.stages)
        )

    def unannounced(self) -> list[int]:
        """Segment numbers that subscribers have not been told of yet, and of damaged ones that they may be told of again."""
        coming = [*self.logs.bundle_counts(), *self.stage_jobs.publishing]
        return [*self.sealed_segments.waiting, *self.repair.under_rescue, *coming]

    def oldest_unannounced(self) -> int:
        """The lowest number of `unannounced`, or the next number that a segment gets."""
        return min(self.unannounced(), default=self.numbers.next_segment_seq)

    def unlisted(self) -> set[int]:
        """Segment numbers in use that `sealed_segments` lacks: not sealed yet, or taken out before subscribers were told why."""
        return {number for number in self.unannounced() if number not in self.sealed_segments.segments}


def assemble(
    disk: Disk,
    paths: EnginePaths,
    settings: TopicSettings,
    core: int,
    clock: Clock,
    recovered: Recovered,
    homes: ProducerHomes,
    cold_disks: ColdDisks,
) -> Parts:
    """The parts of an engine that starts from what was recovered."""
    place = f"topic {settings.name!r} on core {core}"
    free_bytes_min, compacts = settings.retention.min_free_bytes, settings.segment.compaction == "auto"
    condition, numbers = Condition(), Numbers(disk, paths, recovered)
    allowance = Allowance()
    logs = LogQueue(disk, paths, settings, clock, condition, numbers, allowance)
    producers = Producers(disk, paths, recovered.windows, core, homes)
    progress = Progress(disk, paths, settings, clock, condition, recovered.registry)
    upkeep = Upkeep(disk, paths, clock, compacts=compacts, free_bytes_min=free_bytes_min)
    segments = SegmentTable(recovered.segments, recovered.cold.segments if recovered.cold else ())
    cold = ColdSegments(disk, paths, clock, settings.tier, recovered, segments, cold_disks)
    sealed_segments = SealedSegments(disk, paths, clock, recovered, progress, upkeep, segments, cold)
    sealed_segments.summaries.change_settings(settings)
    ballast = Ballast(disk, paths.ballast, free_bytes_min)
    retention = Retention(settings, clock, progress, logs, sealed_segments)
    held_files = HeldFiles(disk, paths, clock)
    disk_account = DiskAccount(disk, paths, clock, logs, sealed_segments.segments, ballast, held_files)
    quarantine = Quarantine(disk, paths, settings, recovered, progress, sealed_segments.foreign)
    repair = Repair(disk, paths, settings, recovered, progress, sealed_segments, quarantine, upkeep, clock)
    disk_account.miss = repair.miss
    relocation = Relocation(disk, paths, clock, condition, cold, sealed_segments, repair, retention, upkeep)
    publishes = Publishes(disk, paths, numbers, logs)
    table = StageTable(f"topic {settings.name!r}", clock, publishes, recovered.stages)
    stage_jobs = StageJobs(disk, paths, settings, clock, condition, numbers, sealed_segments, table, allowance)
    group_commit = GroupCommit(disk, paths, settings, clock, condition, numbers, logs)
    intake = LonePushes(place, clock, condition, numbers, logs, producers, group_commit)
    readable_end = ReadableEnd(logs, progress, sealed_segments.waiting, clock, publishes, numbers)
    return Parts(
        clock=clock,
        condition=condition,
        numbers=numbers,
        logs=logs,
        group_commit=group_commit,
        producers=producers,
        intake=intake,
        progress=progress,
        sealed_segments=sealed_segments,
        relocation=relocation,
        quarantine=quarantine,
        repair=repair,
        retention=retention,
        disk_account=disk_account,
        stages=Stages(settings, clock, condition, numbers, table),
        stage_jobs=stage_jobs,
        ballast=ballast,
        allowance=allowance,
        readable_end=readable_end,
        open_checks=OpenChecks(disk, paths, clock, progress, readable_end, sealed_segments, quarantine, repair),
    )
