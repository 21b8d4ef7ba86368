"""Staged bundles of one engine: begun, filled, prepared, and then published or dropped. See docs/transactions.md.

Owner: the engine, on the loop thread. Guarantees
- Nothing of a stage is visible before its publish, and then all of one publish is at once, behind everything that was pushed before it.
- A prepared stage stays, through every crash, until it is published or its drop is recorded.
- A stage whose files cannot be written is dropped alone; what publishing or recording needs fails the engine, and recovery goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.protocol.messages import AckRun, Push
from quiver_actors.base.units import SECOND_NS
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
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.engine.stage_table import StageTable
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.staged.records import StageOrder
from quiver_actors.store.staged.stage import Stage, begin_part
from quiver_actors.store.staged.states import StageState
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.admission import check_push
from quiver_actors.store.wal.contract import segment_cfg_hash

STAGES_MAX = 4096
"""How many stages of one engine may take bundles at the same time."""
ASK_AGAIN_NS = 60 * SECOND_NS
"""How long to wait before a decision log that gave no answer is asked again."""


class Stages:
    """The staged bundles of one engine. A publish is named by a ticket: it is done once a `StagesPublished` with that ticket has come."""

    def __init__(
        self, settings: TopicSettings, clock: Clock, condition: Condition, numbers: Numbers, table: StageTable
    ) -> None:
        self.table = table
        """The stages themselves, and their journal."""
        self._target_bytes = settings.segment.target_size_bytes
        self._cfg_hash = segment_cfg_hash(settings)
        self._clock = clock
        self._condition = condition
        self._numbers = numbers

    def change_settings(self, settings: TopicSettings) -> None:
        """Use these settings for what is begun from now on. The topic's slots do not change."""
        self._target_bytes = settings.segment.target_size_bytes

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.table)

    def close(self) -> None:
        """Close the files of all stages."""
        for stage in self:
            stage.close_files()

    def drain(self) -> None:
        """Open stages end; prepared ones stay on disk."""
        for stage in list(self):
            if stage.state is StageState.OPEN:
                stage.drop("the worker is shutting down")

    # --- taking bundles --------------------------------------------------------------------------------------------------------

    def begin(self, order: StageOrder, owner: object) -> int:
        """Open a stage that ends with `owner`, unless it is prepared. Returns its number.

        Raises:
            EngineFailed, Draining: no work is taken.
            UsageError: too many are open.
        """
        if self._condition.is_over:
            raise EngineFailed(
                f"{self.table.place} has failed ({self._condition.failure}); its worker is being restarted"
            )
        if not self._condition.takes_bundles:
            raise Draining(f"{self.table.place} is shutting down; stage on another core or later")
        if sum(stage.state is StageState.OPEN for stage in self) >= STAGES_MAX:
            raise UsageError(f"{self.table.place} has {STAGES_MAX} open stages, its limit: prepare or abort some")
        number = self.table.take_number()
        self.table.by_number[number] = Stage(number, order, owner, self._cfg_hash, self._clock.unix_ns())
        return number

    def get(self, number: int, owner: object) -> Stage:
        """An open stage of that owner.

        Raises:
            UnknownTransaction: it has none of that number.
            TransactionAborted: it was dropped.
        """
        stage = self.table.by_number.get(number)
        if stage is None or stage.owner is not owner:
            raise UnknownTransaction(f"{self.table.place}: stage {number} is not open on this connection")
        if stage.state is StageState.DROPPING:
            raise TransactionAborted(f"{self.table.place}: stage {number} was dropped: {stage.reason}")
        if stage.state is not StageState.OPEN:
            raise UsageError(f"{self.table.place}: stage {number} is {stage.state.value} and takes no more bundles")
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
            raise TransactionAborted(f"{self.table.place}: stage {stage.number} was dropped: {error}") from error
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
        """Drop the open stages of a connection that is gone."""
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
            stage = self.table.by_number.get(number)
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
        return self.table.publishes.begin(prepared) if prepared else self.table.publishes.ticket_of(wanted)

    def _check_incarnation(self, incarnation: bytes) -> None:
        if incarnation != self._numbers.incarnation:
            raise TransactionLost(
                f"{self.table.place}: the token is of directory {incarnation.hex()}, this one is {self._numbers.incarnation.hex()}: "
                "the data directory was replaced, and what was prepared in it is gone"
            )

    def _publishable(self, txn_id: str, number: int) -> Stage | None:
        """The stage, None if it was published before."""
        stage = self.table.by_number.get(number)
        if stage is None:
            self.table.check_was_published(number)
            return None
        if stage.order.txn_id != txn_id:
            raise UnknownTransaction(
                f"{self.table.place}: stage {number} is of transaction {stage.order.txn_id!r}, not {txn_id!r}"
            )
        if stage.state is StageState.DROPPING:
            raise TransactionLost(f"{self.table.place}: stage {number} of {txn_id!r} was dropped: {stage.reason}")
        if stage.state not in (StageState.PREPARED, StageState.PUBLISHING):
            raise UnknownTransaction(f"{self.table.place}: stage {number} of {txn_id!r} is not prepared")
        if stage.unread is not None:
            stage.wants_reading = True
            raise StageUnreadable(
                f"{self.table.place}: stage {number} of {txn_id!r} is kept, and cannot be read back now "
                f"({stage.reason}); it is read again: ask again, and look at the disk"
            )
        return stage

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
