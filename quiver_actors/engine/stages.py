"""Staged bundles of one engine: begun, filled, prepared, and then published or dropped. See docs/transactions.md.

Owner: the engine, on the loop thread. Guarantees
- Nothing of a stage is visible before its publish, and then all of one publish is at once, behind everything that was pushed before it.
- A prepared stage stays, through every crash, until it is published or its drop is recorded.
- A stage whose files cannot be written is dropped alone; what publishing or recording needs fails the engine, and recovery goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from quiver_actors.clock import Clock
from quiver_actors.config import TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.condition import Condition
from quiver_actors.engine.log_queue import LogQueue
from quiver_actors.engine.numbers import Numbers
from quiver_actors.engine.publishes import Publishes
from quiver_actors.engine.shelf import Shelf
from quiver_actors.errors import (
    Draining,
    EngineFailed,
    QuiverError,
    StageUnreadable,
    TransactionAborted,
    TransactionLost,
    UnknownTransaction,
    UsageError,
)
from quiver_actors.events import Event, Resumed, StageDropped, StagePrepared, StagesPublished
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import AckRun, Push
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.transactions.jobs import (
    JournalJob,
    PrepareJob,
    PublishJob,
    StageAllocateJob,
    StageDropJob,
    StageReadJob,
)
from quiver_actors.transactions.records import DroppedRecord, JournalRecord, StageOrder
from quiver_actors.transactions.recovery import RecoveredStages, trim_dropped
from quiver_actors.transactions.stage import Stage, begin_part
from quiver_actors.transactions.states import StageState
from quiver_actors.units import SECOND_NS
from quiver_actors.wal import layout
from quiver_actors.wal.admission import check_push
from quiver_actors.wal.contract import segment_cfg_hash

STAGES_MAX = 4096
"""Stages of one engine that take bundles at a time."""
ASK_AGAIN_NS = 60 * SECOND_NS
"""How long to wait before a decision log that gave no answer is asked again."""


class Stages:
    """See the module. A publish is named by a ticket: it is done once a `StagesPublished` with that ticket has come."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
        logs: LogQueue,
        shelf: Shelf,
        recovered: RecoveredStages,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._place = f"topic {settings.name!r}"
        self._target_bytes = settings.segment.target_size_bytes
        self._free_bytes_min = settings.retention.min_free_bytes
        self._cfg_hash = segment_cfg_hash(settings)
        self._clock = clock
        self._condition = condition
        self._numbers = numbers
        self._shelf = shelf
        self._journal = recovered.journal
        self.by_number = {stage.number: stage for stage in recovered.stages}
        """All that are not forgotten, oldest first; changed here only."""
        self._next_number = max([recovered.journal.next_number, *(number + 1 for number in self.by_number)])
        self._publishes = Publishes(disk, paths, numbers, logs)
        self._allocating_bytes = 0
        self.room: Callable[[int], bool] = lambda _: True
        """Says whether the engine's worker may take so many bytes more of the disk."""
        self.refused_bytes = 0
        """What `room` has refused last."""

    def change_settings(self, settings: TopicSettings) -> None:
        """For what is begun from now on. The slots stay."""
        self._target_bytes = settings.segment.target_size_bytes
        self._free_bytes_min = settings.retention.min_free_bytes

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.by_number.values())

    def close(self) -> None:
        for stage in self:
            stage.close_files()

    def drain(self) -> None:
        """Open stages end; prepared ones stay on disk."""
        for stage in list(self):
            if stage.state is StageState.OPEN:
                stage.drop("the worker is shutting down")

    @property
    def is_settled(self) -> bool:
        """Nothing is under way that a clean shutdown would cut off."""
        busy = (StageState.PREPARING, StageState.DROPPING)
        return not self._publishes.places and not any(stage.state in busy for stage in self)

    @property
    def prepared(self) -> list[Stage]:
        """Those that wait for their decision."""
        return [stage for stage in self if stage.state is StageState.PREPARED]

    @property
    def dropped(self) -> Sequence[DroppedRecord]:
        """What is remembered of those that were prepared and will never be visible."""
        return self._journal.dropped

    @property
    def disk_bytes(self) -> int:
        """What staged bundles take of the disk, with what is being allocated."""
        return sum(stage.disk_bytes for stage in self) + self._allocating_bytes

    # --- taking bundles --------------------------------------------------------------------------------------------------------

    def begin(self, order: StageOrder, owner: object) -> int:
        """Open a stage that ends with `owner`, unless it is prepared. Returns its number.

        Raises:
            EngineFailed, Draining: no work is taken.
            UsageError: too many are open.
        """
        if self._condition.is_over:
            raise EngineFailed(f"{self._place} has failed ({self._condition.failure}); its worker is being restarted")
        if not self._condition.takes_bundles:
            raise Draining(f"{self._place} is shutting down; stage on another core or later")
        if sum(stage.state is StageState.OPEN for stage in self) >= STAGES_MAX:
            raise UsageError(f"{self._place} has {STAGES_MAX} open stages, its limit: prepare or abort some")
        number, self._next_number = self._next_number, self._next_number + 1
        self.by_number[number] = Stage(number, order, owner, self._cfg_hash, self._clock.unix_ns())
        return number

    def get(self, number: int, owner: object) -> Stage:
        """An open stage of that owner.

        Raises:
            UnknownTransaction: it has none of that number.
            TransactionAborted: it was dropped.
        """
        stage = self.by_number.get(number)
        if stage is None or stage.owner is not owner:
            raise UnknownTransaction(f"{self._place}: stage {number} is not open on this connection")
        if stage.state is StageState.DROPPING:
            raise TransactionAborted(f"{self._place}: stage {number} was dropped: {stage.reason}")
        if stage.state is not StageState.OPEN:
            raise UsageError(f"{self._place}: stage {number} is {stage.state.value} and takes no more bundles")
        return stage

    def can_stage(self, stage: Stage, span_bytes: int) -> bool:
        """Whether a push of that size can be taken now; if not, ask again after any `finish`."""
        return stage.part_for(span_bytes, self._target_bytes) is not None

    def stage(self, stage: Stage, span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]) -> AckRun:
        """Check a push and lay it behind the others of the stage, which has room for it (`can_stage`).

        Raises:
            ProtocolError: the push is broken; nothing was staged.
            TransactionAborted: a dictionary of an earlier bundle, which has to be compared, cannot be read back. The stage is dropped.
        """
        part = stage.part_for(len(span), self._target_bytes)
        assert part is not None, "can_stage promised room"
        entries, _ = check_push(span, part.end or layout.HEADER_BYTES, push, schemas)
        if not part.end:
            begin_part(part, stage.cfg_hash, self._numbers.incarnation)
        run = AckRun(push.tag, 0, stage.bundle_count, part.sequence_end, len(entries))
        try:
            part.stage(span, entries, self._clock.unix_ns(), self._clock.monotonic_ns())
        except QuiverError as error:
            # The part holds a piece of this push now.
            stage.drop(str(error))
            raise TransactionAborted(f"{self._place}: stage {stage.number} was dropped: {error}") from error
        stage.wanted_bytes = 0
        return run

    def write(self, stage: Stage) -> None:
        """Write what was staged, with one call a part. Where that fails the stage is dropped."""
        try:
            for part in stage.parts:
                if part.has_staged:
                    part.write()
        except QuiverError as error:
            if stage.state is StageState.OPEN:
                stage.drop(str(error))

    # --- ends ------------------------------------------------------------------------------------------------------------------

    def prepare(self, stage: Stage) -> None:
        """Make what was written durable: a `StagePrepared` or `StageDropped` says how that ended."""
        stage.move(StageState.PREPARING)

    def release(self, owner: object) -> None:
        """A connection is gone: its open stages are."""
        for stage in list(self):
            if stage.owner is owner:
                stage.owner = None
                if stage.state is StageState.OPEN:
                    stage.drop("its connection was lost")

    def drop(self, numbers: Sequence[int], incarnation: bytes, reason: str) -> None:
        """Drop those of the stages that are open or prepared. What was dropped or published before is left as it is.

        Raises:
            TransactionLost: the numbers are of another directory.
        """
        self._check_incarnation(incarnation)
        for number in numbers:
            stage = self.by_number.get(number)
            if stage is not None and stage.state in (StageState.OPEN, StageState.PREPARED):
                stage.drop(reason)

    def publish(self, txn_id: str, incarnation: bytes, numbers: Sequence[int], *, drop_others: bool = False) -> int:
        """Make prepared stages of one transaction visible, all at once. The same call again is no error, at any time.

        Args:
            drop_others: the decision is known to name no other stage of this engine: those of the transaction are dropped.

        Returns:
            The ticket of the publish, 0 if all was published before.

        Raises:
            TransactionLost: a stage was dropped, or its directory replaced; nothing was published by this call.
            UnknownTransaction: a stage is of another transaction, or was never prepared.
            StageUnreadable: the disk does not give a stage back; nothing was published by this call.
        """
        self._check_incarnation(incarnation)
        wanted = [stage for number in numbers if (stage := self._publishable(txn_id, number)) is not None]
        others = [stage for stage in self if stage.order.txn_id == txn_id and stage.number not in numbers]
        for stage in others if drop_others else ():
            if stage.state in (StageState.OPEN, StageState.PREPARED):
                stage.drop("the transaction was decided without it")
        prepared = [stage for stage in wanted if stage.state is StageState.PREPARED]
        return self._publishes.begin(prepared) if prepared else self._publishes.ticket_of(wanted)

    def _check_incarnation(self, incarnation: bytes) -> None:
        if incarnation != self._numbers.incarnation:
            raise TransactionLost(
                f"{self._place}: the token is of directory {incarnation.hex()}, this one is {self._numbers.incarnation.hex()}: "
                "the data directory was replaced, and what was prepared in it is gone"
            )

    def _publishable(self, txn_id: str, number: int) -> Stage | None:
        """The stage, None if it was published before."""
        stage = self.by_number.get(number)
        if stage is None:
            self._check_was_published(number)
            return None
        if stage.order.txn_id != txn_id:
            raise UnknownTransaction(
                f"{self._place}: stage {number} is of transaction {stage.order.txn_id!r}, not {txn_id!r}"
            )
        if stage.state is StageState.DROPPING:
            raise TransactionLost(f"{self._place}: stage {number} of {txn_id!r} was dropped: {stage.reason}")
        if stage.state not in (StageState.PREPARED, StageState.PUBLISHING):
            raise UnknownTransaction(f"{self._place}: stage {number} of {txn_id!r} is not prepared")
        if stage.unread is not None:
            stage.wants_reading = True
            raise StageUnreadable(
                f"{self._place}: stage {number} of {txn_id!r} is kept, and cannot be read back now ({stage.reason}); it is read again: "
                "ask again, and look at the disk"
            )
        return stage

    def _check_was_published(self, number: int) -> None:
        if not 0 < number < self._next_number:
            raise UnknownTransaction(f"{self._place}: there was never a stage {number}")
        found = next((record for record in self._journal.dropped if record.number == number), None)
        if found is not None:
            raise TransactionLost(f"{self._place}: stage {number} of {found.txn_id!r} was dropped: {found.reason}")
        if number < self._journal.dropped_floor:
            raise TransactionLost(
                f"{self._place}: stage {number} is too old to tell whether it was published or dropped"
            )

    # --- time ------------------------------------------------------------------------------------------------------------------

    def take_expired(self) -> list[Stage]:
        """Prepared stages past their time whose decision log is to be asked now."""
        unix_ns, now_ns = self._clock.unix_ns(), self._clock.monotonic_ns()
        due = [
            stage
            for stage in self
            if stage.state is StageState.PREPARED and stage.expires_unix_ns <= unix_ns and stage.ask_again_ns <= now_ns
        ]
        for stage in due:
            stage.ask_again_ns = now_ns + ASK_AGAIN_NS
        return due

    # --- background work: what the schedule asks for -----------------------------------------------------------------------------

    def allocate_job(self) -> StageAllocateJob | None:
        stage = next((stage for stage in self if stage.wanted_bytes and stage.state is StageState.OPEN), None)
        if stage is None or not self._condition.takes_bundles:
            self.refused_bytes = 0
            return None
        # Where the usual step does not fit under the cap, what the push needs may.
        steps = (stage.next_capacity_bytes(self._target_bytes), stage.wanted_bytes)
        capacity_bytes = next((step for step in steps if self.room(step)), 0)
        self.refused_bytes = 0 if capacity_bytes else stage.wanted_bytes
        if self.refused_bytes:
            return None
        stage.is_allocating = True
        self._allocating_bytes = capacity_bytes
        return StageAllocateJob(self._disk, self._paths, stage, capacity_bytes, self._free_bytes_min)

    def finish_allocate(self, job: StageAllocateJob) -> list[Event]:
        stage = job.stage
        stage.is_allocating, stage.wanted_bytes, self._allocating_bytes = False, 0, 0
        if job.part is not None:
            stage.parts.append(job.part)
        if job.failure and stage.state is StageState.OPEN:
            stage.drop(job.failure)
        return [Resumed()]

    def no_room(self, job: StageAllocateJob) -> list[Event]:
        job.stage.is_allocating, self._allocating_bytes = False, 0
        return []

    def prepare_job(self) -> PrepareJob | None:
        stage = next((stage for stage in self if stage.state is StageState.PREPARING), None)
        if stage is None:
            return None
        unused = stage.take_empty_part()
        record = stage.record(self._numbers.incarnation, self._clock.unix_ns())
        return PrepareJob(self._disk, self._paths, stage, record, unused)

    def finish_prepare(self, job: PrepareJob) -> list[Event]:
        stage = job.stage
        stage.was_prepared = True
        stage.expires_unix_ns = job.record.expires_unix_ns
        if job.failure:
            stage.drop(job.failure)
            return []
        stage.move(StageState.PREPARED)
        return [StagePrepared(stage.number)]

    def read_job(self) -> StageReadJob | None:
        """Reads back a stage that somebody wants to publish."""
        stage = next((stage for stage in self.prepared if stage.wants_reading), None)
        if stage is None or stage.unread is None:
            return None
        return StageReadJob(self._disk, self._paths, stage, stage.unread)

    def finish_read(self, job: StageReadJob) -> list[Event]:
        stage = job.stage
        stage.wants_reading = False
        if stage.state is StageState.PREPARED:
            stage.reason = job.problem
            if job.parts:
                stage.parts, stage.unread = job.parts, None
        return []

    def drop_job(self) -> StageDropJob | None:
        stages = [stage for stage in self if stage.state is StageState.DROPPING and not stage.is_allocating]
        if not stages:
            return None
        journal = self._with_dropped(stages) if any(stage.was_prepared for stage in stages) else None
        return StageDropJob(self._disk, self._paths, stages, journal)

    def finish_drop(self, job: StageDropJob) -> list[Event]:
        if job.journal is not None:
            self._recorded(job.journal)
        for stage in job.stages:
            stage.move(StageState.DROPPED)
            del self.by_number[stage.number]
        return [StageDropped(stage.number, stage.reason) for stage in job.stages]

    def journal_job(self) -> JournalJob | None:
        """Records the oldest publish that is not recorded yet: from then on nothing but a failed disk keeps it from becoming visible."""
        self._publishes.take_numbers()
        if not self._publishes.has_unrecorded:
            return None
        return JournalJob(self._disk, self._paths, self._current(self._journal.dropped, self._journal.dropped_floor))

    def finish_journal(self, job: JournalJob) -> list[Event]:
        self._recorded(job.journal)
        return []

    def publish_job(self) -> PublishJob | None:
        return self._publishes.job()

    def finish_publish(self, job: PublishJob) -> list[Event]:
        publish = self._publishes.finish()
        events: list[Event] = []
        begun_ns = {part.segment_seq: part.first_append_ns for _, _, part in publish.parts}
        for stage in publish.stages:
            stage.move(StageState.PUBLISHED)
            del self.by_number[stage.number]
        for info in publish.infos.values():
            events += self._shelf.put(info, None, begun_ns[info.segment_seq])
        return [Resumed(), *events, StagesPublished(publish.ticket)]

    @property
    def first_publishing(self) -> int | None:
        """The lowest segment number that a publish under way has taken."""
        return self._publishes.first_segment_seq

    @property
    def publishing(self) -> list[int]:
        """The segment numbers that publishes under way have taken."""
        return [place.segment_seq for place in self._publishes.places]

    # --- private -------------------------------------------------------------------------------------------------------------

    def _with_dropped(self, stages: Sequence[Stage]) -> JournalRecord:
        now_ns = self._clock.unix_ns()
        new = [
            DroppedRecord(stage.number, stage.order.txn_id, stage.order.epoch, stage.reason, now_ns)
            for stage in stages
            if stage.was_prepared
        ]
        return self._current(*trim_dropped([*self._journal.dropped, *new], self._journal.dropped_floor))

    def _current(self, dropped: list[DroppedRecord], floor: int) -> JournalRecord:
        return JournalRecord(self._next_number, self._publishes.places, dropped, floor)

    def _recorded(self, journal: JournalRecord) -> None:
        self._journal = msgspec.structs.replace(journal, publishing=[])
        self._publishes.note_recorded(journal.publishing)
