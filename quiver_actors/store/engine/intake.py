"""Pushes on their way into a log: whether one can be taken, why not, and its bundles' numbers.

Owner: the engine, on the loop thread. Nothing staged here is written before the engine's `write`.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiver_actors.base.clock import Clock
from quiver_actors.base.protocol.messages import AckRun, KeyedPush, Push
from quiver_actors.base.units import format_size
from quiver_actors.errors import Draining, EngineFailed, ProtocolError, QuiverError, StorageFull, Throttled
from quiver_actors.store.engine.condition import Condition, EngineState
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.engine.producers import Producers, picked
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.staged.keys import gaps
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.admission import PUSH_ENTRIES_MAX, check_push
from quiver_actors.store.wal.log import Log


class Intake:
    """Checks the pushes to one engine, numbers their bundles, and stages them in a log.

    Attributes:
        bundles_in, rows_in, bytes_in: ingested since the engine was opened.
        refused: pushes that the worker refused on the engine's behalf.
    """

    def __init__(
        self,
        place: str,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
        logs: LogQueue,
        producers: Producers,
    ) -> None:
        """
        Args:
            place: topic and core, for errors.
        """
        self.bundles_in = self.rows_in = self.bytes_in = self.refused = 0
        self._place = place
        self._clock = clock
        self._condition = condition
        self._numbers = numbers
        self._logs = logs
        self._producers = producers

    def can_stage(self, span_bytes: int) -> bool:
        """Whether `stage` of a push of that size can go on now; if not, ask again after any `finish` or `tick` of the engine."""
        return self._log_for(span_bytes) is not None

    def _log_for(self, span_bytes: int) -> Log | None:
        if not self._condition.takes_bundles or not self._numbers.has_sequences(PUSH_ENTRIES_MAX):
            return None
        return self._logs.log_for(span_bytes)

    def note_refused(self) -> None:
        """Count a push that the worker refused on the engine's behalf."""
        self.refused += 1
        self._logs.spare.has_refused = self._logs.spare.is_throttled

    def note_gone(self) -> None:
        """Note that a push which waited is not going to be staged: the room that it asked for is no measure for those that still wait."""
        self._logs.spare.abandon()

    def refusal(self) -> QuiverError | None:
        """Why no push can be taken, None if it only has to wait. StorageFull is for pushes that have waited long enough."""
        state = self._condition.state
        if state is EngineState.FAILED:
            return EngineFailed(self._failure)
        if state in (EngineState.DRAINING, EngineState.CLOSED):
            return Draining(f"{self._place} is shutting down; push to another core or later")
        spare = self._logs.spare
        if state is not EngineState.FULL and not spare.is_throttled:
            return None
        no_room = f"{self._place}: no room for a log file of {format_size(spare.length_bytes)}: {spare.limit_met}"
        advice = "pushes go on by themselves (`quiver status` says who keeps what is stored)"
        if state is EngineState.FULL:
            return StorageFull(f"{no_room}; free space on that file system, {advice}")
        return Throttled(f"{no_room}; let subscribers catch up or raise that limit, {advice}")

    @property
    def _failure(self) -> str:
        return f"{self._place} has failed ({self._condition.failure}); its worker is being restarted"

    def stage(self, span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]) -> list[AckRun]:
        """Check a push, give its bundles their numbers, complete them in place and queue them for the engine's `write`.

        Args:
            span: private, writable copy of the arena bytes; untouched by others until `write`.
            schemas: what the connection declared, by handle.

        Raises:
            ProtocolError: the push is broken; nothing was staged.
            EngineFailed: as for `refusal`; or a dictionary that an earlier bundle brought, and that has to be compared, cannot be read
                back: the engine has failed by it, and nothing of the push is ever written.
            Draining, StorageFull: see `refusal`.
        """
        if isinstance(push, KeyedPush):
            return self._stage_keyed(span, push, schemas)
        return self._stage(span, push, schemas)

    def _stage_keyed(self, span: memoryview, push: KeyedPush, schemas: Mapping[int, StreamSchema]) -> list[AckRun]:
        """Stage what was not stored before, in one piece. Raises SequenceGap, SequenceTooOld and ProducerUnsettled, too."""
        known = self._producers.stored(push)
        missing = gaps(push.first_number, push.first_number + push.entry_count, known)
        if not known:
            runs = self._stage(span, push, schemas)
            self._producers.note(push, missing, runs[0])
            return runs
        answers = [(run, True) for run in known]
        if missing:
            rest, left = picked(push, span, missing)
            (staged,) = self._stage(left, rest, schemas)
            answers += [(run, False) for run in self._producers.note(push, missing, staged)]
        return [
            AckRun(push.tag, run.segment_seq, run.bundle_index, run.sequence, run.bundles, is_duplicate, run.core)
            for run, is_duplicate in sorted(answers)
        ]

    def _stage(self, span: memoryview, push: Push, schemas: Mapping[int, StreamSchema]) -> list[AckRun]:
        log = self._log_for(len(span))
        if log is None:
            raise self.refusal() or ProtocolError("stage was called although can_stage is false")
        entries, row_count = check_push(span, log.end or layout.HEADER_BYTES, push, schemas)
        if log is not self._logs.active:
            self._logs.activate_spare()
        bundle_index, sequence = log.builder.bundle_count, log.sequence_end
        try:
            log.stage(span, entries, self._clock.unix_ns(), self._clock.monotonic_ns())
        except QuiverError as error:
            # A dictionary of an earlier bundle cannot be read back. The log holds a part of this push now, which is never written.
            self._condition.fail(error)
            raise EngineFailed(f"{self._failure}; nothing of this push was written") from error
        count = log.sequence_end - sequence
        self._numbers.advance(log.sequence_end, log.position_end)
        self.bundles_in += count
        self.rows_in += row_count
        self.bytes_in += len(span)
        return [AckRun(push.tag, log.segment_seq, bundle_index, sequence, count)]
