"""The background work of staged bundles: room for them, their durable preparation, their publish and their drop.

Owner: the engine, on the loop thread. The schedule (`work`) asks for one job of a kind at a time, and hands it back when it has ended.
"""

from __future__ import annotations

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.events import Event, Resumed, StageDropped, StagePrepared, StagesPublished
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.engine.stage_table import StageTable
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.retention.limits import ROOM, Allowance
from quiver_actors.store.staged.jobs import (
    JournalJob,
    PrepareJob,
    PublishJob,
    StageAllocateJob,
    StageDropJob,
    StageReadJob,
)
from quiver_actors.store.staged.states import StageState


class StageJobs:
    """Makes and ends the jobs of one engine's stages.

    Attributes:
        refused_bytes: how many bytes the allowance has refused last; 0: nothing is refused.
        published_bundles, published_rows, published_bytes: how much became visible since the engine was opened.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
        sealed_segments: SealedSegments,
        table: StageTable,
        allowance: Allowance,
    ) -> None:
        self.refused_bytes = 0
        self.published_bundles = self.published_rows = self.published_bytes = 0
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._condition = condition
        self._numbers = numbers
        self._sealed_segments = sealed_segments
        self._table = table
        self._allowance = allowance
        self.change_settings(settings)

    def change_settings(self, settings: TopicSettings) -> None:
        """Use these settings for what is allocated from now on."""
        self._target_bytes = settings.segment.target_size_bytes
        self._free_bytes_min = settings.retention.min_free_bytes

    def allocate_job(self) -> StageAllocateJob | None:
        """Return the job that makes room for a stage that asked for it; None if none did or no bundles are taken."""
        stage = next((stage for stage in self._table if stage.wanted_bytes and stage.state is StageState.OPEN), None)
        if stage is None or not self._condition.takes_bundles:
            self.refused_bytes, self._table.limit_met = 0, ROOM
            return None
        # Where the usual step does not fit under the cap, what the push needs may.
        steps = (stage.next_capacity_bytes(self._target_bytes), stage.wanted_bytes)
        capacity_bytes = next((step for step in steps if self._allowance.admits(step)), 0)
        self.refused_bytes = 0 if capacity_bytes else stage.wanted_bytes
        if self.refused_bytes:
            self._table.limit_met = self._allowance.which_limit()
            return None
        stage.is_allocating = True
        self._table.allocating_bytes = capacity_bytes
        return StageAllocateJob(self._disk, self._paths, stage, capacity_bytes, self._free_bytes_min)

    def finish_allocate(self, job: StageAllocateJob) -> list[Event]:
        """Take back the room of a stage; a failure drops the stage."""
        stage = job.stage
        stage.is_allocating, stage.wanted_bytes, self._table.allocating_bytes, self._table.limit_met = False, 0, 0, ROOM
        if job.part is not None:
            stage.parts.append(job.part)
        if job.failure and stage.state is StageState.OPEN:
            stage.drop(job.failure)
        return [Resumed()]

    def no_room(self, job: StageAllocateJob) -> list[Event]:
        """Take back a job that met a limit; the stage goes on waiting."""
        job.stage.is_allocating, self._table.allocating_bytes, self._table.limit_met = False, 0, job.limit_met
        return []

    def prepare_job(self) -> PrepareJob | None:
        """Return the job that makes a stage durable; None if no stage is to be prepared."""
        stage = next((stage for stage in self._table if stage.state is StageState.PREPARING), None)
        if stage is None:
            return None
        unused = stage.take_empty_part()
        record = stage.record(self._numbers.incarnation, self._clock.unix_ns())
        return PrepareJob(self._disk, self._paths, stage, record, unused)

    def finish_prepare(self, job: PrepareJob) -> list[Event]:
        """Take back a prepared stage; a failure drops the stage."""
        stage = job.stage
        stage.was_prepared = True
        stage.expires_unix_ns = job.record.expires_unix_ns
        if job.failure:
            stage.drop(job.failure)
            return []
        stage.move(StageState.PREPARED)
        return [StagePrepared(stage.number)]

    def read_job(self) -> StageReadJob | None:
        """The job that reads back a stage which somebody wants to publish."""
        stage = next((stage for stage in self._table.prepared if stage.wants_reading), None)
        if stage is None or stage.unread is None:
            return None
        return StageReadJob(self._disk, self._paths, stage, stage.unread)

    def finish_read(self, job: StageReadJob) -> list[Event]:
        """Take back the reading of a stage; a problem is kept as the stage's reason."""
        stage = job.stage
        stage.wants_reading = False
        if stage.state is StageState.PREPARED:
            stage.reason = job.problem
            if job.parts:
                stage.parts, stage.unread = job.parts, None
        return []

    def drop_job(self) -> StageDropJob | None:
        """Return the job that drops all stages that are to be dropped; None if there are none."""
        stages = [stage for stage in self._table if stage.state is StageState.DROPPING and not stage.is_allocating]
        if not stages:
            return None
        journal = self._table.with_dropped(stages) if any(stage.was_prepared for stage in stages) else None
        return StageDropJob(self._disk, self._paths, stages, journal)

    def finish_drop(self, job: StageDropJob) -> list[Event]:
        """Take back a drop: the stages are gone, and their producers are told."""
        if job.journal is not None:
            self._table.note_recorded(job.journal)
        for stage in job.stages:
            stage.move(StageState.DROPPED)
            del self._table.by_number[stage.number]
        return [StageDropped(stage.number, stage.reason) for stage in job.stages]

    def journal_job(self) -> JournalJob | None:
        """The job that records the oldest unrecorded publish: from then on only a failed disk keeps it from becoming visible."""
        self._table.publishes.take_numbers()
        if not self._table.publishes.has_unrecorded:
            return None
        return JournalJob(self._disk, self._paths, self._table.as_it_is())

    def finish_journal(self, job: JournalJob) -> list[Event]:
        """Take back the job that wrote the record of publishes and drops."""
        self._table.note_recorded(job.journal)
        return []

    def publish_job(self) -> PublishJob | None:
        """Return the job of the oldest publish that can begin; None if there is none."""
        return self._table.publishes.job()

    def finish_publish(self, job: PublishJob) -> list[Event]:
        """Take back a publish: its parts are segments now, and subscribers get them."""
        publish = self._table.publishes.finish()
        for _, _, part in publish.parts:
            self.published_bundles += part.builder.bundle_count
            self.published_rows += part.builder.row_count
            self.published_bytes += part.entry_bytes
        events: list[Event] = []
        begun_ns = {part.segment_seq: part.first_append_ns for _, _, part in publish.parts}
        for stage in publish.stages:
            stage.move(StageState.PUBLISHED)
            del self._table.by_number[stage.number]
        for info in publish.infos.values():
            events += self._sealed_segments.put(info, None, begun_ns[info.segment_seq])
        return [Resumed(), *events, StagesPublished(publish.ticket)]

    @property
    def first_publishing(self) -> int | None:
        """The lowest segment number that a publish under way has taken."""
        return self._table.publishes.first_segment_seq

    @property
    def publishing(self) -> list[int]:
        """The segment numbers that publishes under way have taken."""
        return [place.segment_seq for place in self._table.publishes.places]
