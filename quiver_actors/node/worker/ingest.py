"""The push side of one engine: spans in, acknowledgements out.

Owner: the loop thread. Invariants:
- a span is copied into private memory before anything in it is looked at, and its ring credit returns right after the copy;
- pushes of a connection are staged in the order in which they arrived; while one waits for the engine all later ones wait too, and
  connections take turns;
- every push is answered once: acknowledged, or refused with a reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic_ns

from quiver_actors.base.metrics.latency import Histogram
from quiver_actors.base.policies import REJECT
from quiver_actors.base.protocol.messages import Acked, AckRun, Flush, Push
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import (
    DurabilityUnknown,
    EngineFailed,
    HardPressed,
    ProtocolError,
    QuiverError,
    StorageFull,
    Throttled,
)
from quiver_actors.node.worker.flushes import Flushes
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.turn_buffer import TurnBuffer
from quiver_actors.node.worker.waiting import Waiting, WaitingLine
from quiver_actors.store.engine import Engine
from quiver_actors.store.retention.pressure import Pressure
from quiver_actors.store.wal.foreign import check_foreign_push

FULL_DISK_PATIENCE_NS = 25 * SECOND_NS
"""How long a push that says nothing of its own timeout waits for room before it is refused."""
_PATIENCE_SHARE = 0.9
"""Share of a push's timeout that the push waits for room; the rest lets the refusal reach the client."""
RETRY_AFTER_NS = 200 * MILLISECOND_NS
"""Time after which a client that was refused for now should try again."""


class Ingest:
    """Takes the pushes of one engine out of shared memory, stages them, and acknowledges them.

    Attributes:
        buffer: where the spans of a turn are copied to.
        waiting: pushes and flushes that wait for room.
        flushes: flushes that wait for a seal.
        closed_by: why no pushes are taken; None while they are taken.
    """

    def __init__(self, engine: Engine, written: Callable[[], None], latency: Histogram, pressure: Pressure) -> None:
        """
        Args:
            written: called after a write in the middle of a turn, so that its sync can start.
            latency: gets the time from each push's arrival to its acknowledgement.
            pressure: of the worker, shared by all of its engines.
        """
        self._latency = latency
        self._engine = engine
        self._written = written
        self.buffer = TurnBuffer()
        self.waiting = WaitingLine()
        self.flushes = Flushes(engine)
        self.closed_by: QuiverError | None = None
        self._pressure = pressure
        self.unacknowledged: deque[tuple[int, Session, list[AckRun], int]] = deque()
        """(sequence behind the push's highest bundle, session, places of the bundles, arrival time), in the order of arrival. Pushes that
        were stored before are included: their first copy may not be durable yet."""

    def let_go(self) -> None:
        """Release the host, which is told after writes: nothing is written any more."""
        self._written = _nothing

    @property
    def is_flowing(self) -> bool:
        """True while pushes are taken as they arrive: no push waits, and intake is not closed."""
        return not self.waiting.count and self.closed_by is None

    @property
    def is_settled(self) -> bool:
        """True when every push so far has been answered."""
        return not self.waiting.count and not self.unacknowledged

    @property
    def may_be_lone(self) -> bool:
        """Whether pushes are taken as they arrive, and every push so far has been answered."""
        return not (self.waiting.count or self.unacknowledged or self.closed_by is not None)

    @property
    def unacknowledged_since_ns(self) -> int:
        """Arrival time (monotonic ns) of the oldest push that is taken and not acknowledged; 0 if there is none."""
        return self.unacknowledged[0][3] if self.unacknowledged else 0

    # --- requests ------------------------------------------------------------------------------------------------------

    def push(self, session: Session, push: Push, now_ns: int) -> None:
        """
        Raises:
            ProtocolError: the span is not in the session's arena.
        """
        source = session.arena.span(push)
        if session.is_behind_refusal(push):
            session.arena.release(push)
            session.refuse_call(push)
            self._refuse(session, push.tag, self._hard_pressed())
        elif self.waiting.count or not self._has_room(push.length):
            self.waiting.append(Waiting(session, push, session.arena.hold(push), now_ns, now_ns + patience_ns(push)))
        else:
            span = self.buffer.copy(source)
            session.arena.release(push)
            self._stage(session, push, span, now_ns)

    def flush(self, session: Session, flush: Flush, now_ns: int) -> None:
        """Answer once everything pushed before is in a sealed segment."""
        session.owed += 1
        if self.waiting.count:
            self.waiting.append(Waiting(session, flush, None, now_ns, now_ns + FULL_DISK_PATIENCE_NS))
        else:
            self.write()
            self.flushes.seal(session, flush.tag)

    # --- turns ---------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what this turn staged, with one call. A failure shows in the engine's state."""
        self._engine.write()
        self.buffer.clear()

    def retry(self, now_ns: int) -> bool:
        """Take or refuse what waits, as far as the engine lets; True if something was staged."""
        was_staged = False
        while self.waiting.count:
            if not self._admits(self.waiting.next):
                if self._refuse_overdue(now_ns):
                    continue  # those that still wait may need less room
                break
            waiting = self.waiting.take()
            if isinstance(waiting.request, Push):
                was_staged |= self._take_held(waiting, waiting.request)
            elif not waiting.session.is_closed:
                self.write()
                self.flushes.seal(waiting.session, waiting.request.tag)
        return was_staged

    def acknowledge(self) -> None:
        """Answer every push that has reached what its topic promises: one message a session."""
        pending = self.unacknowledged
        if not pending:
            return
        sequence, durability = self._engine.group_commit.acknowledges
        if pending[0][0] > sequence:
            return
        now_ns = monotonic_ns()
        reached: dict[Session, list[AckRun]] = {}
        while pending and pending[0][0] <= sequence:
            _, session, runs, arrived_ns = pending.popleft()
            self._latency.observe(now_ns - arrived_ns)
            if session in reached:
                reached[session] += runs
            else:
                reached[session] = runs
        for session, runs in reached.items():
            session.send(Acked(int(durability), runs, self._engine.group_commit.archives_as))

    # --- ends ----------------------------------------------------------------------------------------------------------

    def close(self, reason: QuiverError) -> None:
        """Take no more pushes; waiting and new pushes are refused with the reason."""
        self.closed_by = self.closed_by or reason

    def give_up(self, reason: QuiverError) -> None:
        """The topic is deleted: refuse everything, also what was taken and not acknowledged yet."""
        self._refuse_all(reason, reason)

    def fail(self, reason: str) -> None:
        """Refuse all waiting requests, as the engine has failed. Everything durable before has been acknowledged."""
        place = f"topic {self._engine.topic!r}, core {self._engine.core}: {reason}"
        self._refuse_all(
            EngineFailed(f"{place}; push again, the worker restarts"),
            DurabilityUnknown(f"{place}; the bundle may or may not survive, push it again"),
        )

    def _refuse_all(self, closed_by: QuiverError, of_taken: QuiverError) -> None:
        self.close(closed_by)
        assert self.closed_by is not None
        while self.unacknowledged:
            _, session, runs, _ = self.unacknowledged.popleft()
            self._refuse(session, runs[0].tag, of_taken)
        self.flushes.refuse_all(self.closed_by, RETRY_AFTER_NS if self.closed_by.retriable else 0)
        self._refuse_waiting(self.closed_by, until_ns=None)

    # --- private -------------------------------------------------------------------------------------------------------

    def _has_room(self, size_bytes: int) -> bool:
        """Whether a span of that size can be copied and staged now."""
        if self.closed_by is not None:
            return False
        if not self.buffer.fits(size_bytes):
            # Before the engine is asked: what it can stage may change with a write.
            self.write()
            self._written()
        return self._engine.intake.can_stage(size_bytes)

    def _stage(self, session: Session, push: Push, span: memoryview, arrived_ns: int) -> None:
        schemas = session.schemas.of(push.topic)
        try:
            if session.guest is not None:
                check_foreign_push(span, push, schemas)
            runs = self._engine.intake.stage(span, push, schemas)
        except QuiverError as error:
            self._refuse(session, push.tag, error)
            return
        # Bundles that were stored before lie anywhere between the others.
        last = runs[0] if len(runs) == 1 else max(runs, key=_sequence_of)
        if last.core >= 0:  # all are on other cores, and durable there
            self.unacknowledged.append((0, session, runs, arrived_ns))
            return
        self.flushes.segment_staged = max(self.flushes.segment_staged, last.segment_seq)
        self.unacknowledged.append((last.sequence + last.count, session, runs, arrived_ns))

    def _admits(self, waiting: Waiting) -> bool:
        if waiting.session.is_closed or isinstance(waiting.request, Flush):
            return True
        return self._has_room(waiting.request.length)

    def _take_held(self, waiting: Waiting, push: Push) -> bool:
        session, held = waiting.session, waiting.held
        if session.is_closed or held is None:
            self._engine.intake.note_gone()
            return False
        try:
            span = self.buffer.copy(session.arena.span(push))
            session.arena.release_held(held)
        except ProtocolError as error:
            self._refuse(session, push.tag, error)
            return False
        self._stage(session, push, span, waiting.since_ns)
        return True

    def _refuse_overdue(self, now_ns: int) -> bool:
        """Refuse what has waited long enough, or may not wait; return whether there was something."""
        count = self.waiting.count
        refusal = self.closed_by or self._engine.intake.refusal()
        if isinstance(refusal, Throttled):
            self._count_throttled()
            rejects = (
                self._engine.retention.settings.size_cap_policy == REJECT and not self._engine.storage.is_being_shared
            )
            self._refuse_waiting(refusal, until_ns=None if rejects else now_ns)
        elif isinstance(refusal, StorageFull):
            self._refuse_waiting(refusal, until_ns=now_ns)
        elif refusal is not None:
            self._refuse_waiting(refusal, until_ns=None)
        elif self._pressure.refuses:
            self._refuse_waiting(self._hard_pressed(), until_ns=None)
        return self.waiting.count < count

    def _hard_pressed(self) -> HardPressed:
        place = f"topic {self._engine.topic!r}, core {self._engine.core}"
        return HardPressed(f"{place}: the worker is hard pressed; nothing was stored")

    def _count_throttled(self) -> None:
        for waiting in self.waiting:
            if not waiting.is_counted:
                waiting.is_counted = True
                self._engine.storage.losses.throttled += 1

    def refuse_rejected(self, now_ns: int) -> bool:
        """The engine has just found that there is no room: refuse at once where that is the policy.

        Returns:
            Whether something was refused.
        """
        return bool(self.waiting.count and self._engine.storage.is_throttled and self._refuse_overdue(now_ns))

    def _refuse_waiting(self, error: QuiverError, *, until_ns: int | None) -> None:
        """Refuse waiting requests whose time ends at `until_ns` or before; None: all of them."""
        for waiting in self.waiting.take_where(lambda each: until_ns is None or each.until_ns <= until_ns):
            if waiting.held is not None:
                waiting.session.arena.release_refused(waiting.held)
                self._engine.intake.note_gone()
            if not isinstance(waiting.request, Push):
                waiting.session.owed -= 1
            elif isinstance(error, HardPressed):
                waiting.session.refuse_call(waiting.request)
            self._refuse(waiting.session, waiting.request.tag, error)

    def _refuse(self, session: Session, tag: int, error: QuiverError) -> None:
        self._engine.intake.note_refused()
        retry_after_ns = self._pressure.retry_after_ns if isinstance(error, Throttled) else RETRY_AFTER_NS
        session.refuse(tag, error, retry_after_ns if error.retriable else 0)


def _sequence_of(run: AckRun) -> int:
    """Return the log sequence that the run waits for; -1 for a run on another core, whose sequences do not compare with this engine's."""
    return run.sequence if run.core < 0 else -1


def patience_ns(push: Push) -> int:
    """How long a push waits before it is refused: a little less than its client does."""
    return int(push.patience_ms * MILLISECOND_NS * _PATIENCE_SHARE) if push.patience_ms else FULL_DISK_PATIENCE_NS


def _nothing() -> None:
    """Stand in for a callback that nobody needs."""
