"""The stages of one engine, and the journal that tells which of them were published or dropped.

Owner: the engine, on the loop thread. Numbers rise for ever. A stage stays in the table until its publish or its drop is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from quiver_actors.base.clock import Clock
from quiver_actors.errors import TransactionLost, UnknownTransaction
from quiver_actors.store.engine.publishes import Publishes
from quiver_actors.store.retention.limits import ROOM
from quiver_actors.store.staged.records import DroppedRecord, JournalRecord
from quiver_actors.store.staged.recovery import RecoveredStages
from quiver_actors.store.staged.stage import Stage
from quiver_actors.store.staged.states import StageState


class StageTable:
    """All stages of one engine that are not forgotten, and what its journal says.

    Attributes:
        by_number: the stages by their numbers, oldest first; always the same dict.
        publishes: the publishes that are under way.
        limit_met: the limit for which a stage gets no room, `ROOM` while none waits for it.
        allocating_bytes: bytes that are being allocated for a part of a stage.
    """

    def __init__(self, place: str, clock: Clock, publishes: Publishes, recovered: RecoveredStages) -> None:
        """
        Args:
            place: names the engine in errors.
        """
        self.place = place
        self.publishes = publishes
        self.by_number = {stage.number: stage for stage in recovered.stages}
        self.allocating_bytes = 0
        self.limit_met = ROOM
        self._clock = clock
        self._journal = recovered.journal
        self._next_number = max([recovered.journal.next_number, *(number + 1 for number in self.by_number)])

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.by_number.values())

    def take_number(self) -> int:
        """The number of a new stage."""
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way that a clean shutdown would cut off."""
        busy = (StageState.PREPARING, StageState.DROPPING)
        return not self.publishes.places and not any(stage.state in busy for stage in self)

    @property
    def prepared(self) -> list[Stage]:
        """Stages that wait for their decision."""
        return [stage for stage in self if stage.state is StageState.PREPARED]

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk that staged bundles take, with what is being allocated."""
        return sum(stage.disk_bytes for stage in self) + self.allocating_bytes

    # --- the journal -------------------------------------------------------------------------------------------------------

    def check_was_published(self, number: int) -> None:
        """Check that a stage which is not in the table was published.

        Raises:
            TransactionLost: it was dropped, or nobody can tell.
            UnknownTransaction: it never was.
        """
        if not 0 < number < self._next_number:
            raise UnknownTransaction(f"{self.place}: there was never a stage {number}")
        found = next((record for record in self._journal.dropped if record.number == number), None)
        if found is not None:
            raise TransactionLost(f"{self.place}: stage {number} of {found.txn_id!r} was dropped: {found.reason}")
        if self._journal.was_published(number) is None:
            raise TransactionLost(f"{self.place}: {self._journal.why_unknown(number)}")

    def with_dropped(self, stages: Sequence[Stage]) -> JournalRecord:
        """The journal's next record, with those of the stages as dropped that were prepared."""
        now_ns = self._clock.unix_ns()
        new = [
            DroppedRecord(stage.number, stage.order.txn_id, stage.order.epoch, stage.reason, now_ns)
            for stage in stages
            if stage.was_prepared
        ]
        return self._record(self._journal.with_dropped(new))

    def as_it_is(self) -> JournalRecord:
        """The journal's next record, with the publishes that have their numbers."""
        return self._record(self._journal)

    def _record(self, journal: JournalRecord) -> JournalRecord:
        places = self.publishes.places
        return msgspec.structs.replace(journal.with_published(places), next_number=self._next_number, publishing=places)

    def note_recorded(self, journal: JournalRecord) -> None:
        """Take the record for durable; its publishes may become segments now."""
        self._journal = msgspec.structs.replace(journal, publishing=[])
        self.publishes.note_recorded(journal.publishing)
