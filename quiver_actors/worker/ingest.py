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

from quiver_actors.engine import Engine
from quiver_actors.errors import (
    DurabilityUnknown,
    EngineFailed,
    HardPressed,
    ProtocolError,
    QuiverError,
    StorageFull,
    Throttled,
)
from quiver_actors.metrics.latency import Histogram
from quiver_actors.protocol.messages import Acked, AckRun, Done, Flush, Push
from quiver_actors.retention.pressure import Pressure
from quiver_actors.retention.rules import REJECT
from quiver_actors.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.wal.foreign import check_foreign_push
from quiver_actors.worker.session import Session
from quiver_actors.worker.turn_buffer import TurnBuffer
from quiver_actors.worker.waiting import Waiting, WaitingLine

FULL_DISK_PATIENCE_NS = 25 * SECOND_NS
"""How long a push that says nothing of its own timeout waits for room before it is refused."""
_PATIENCE_SHARE = 0.9
"""Of its timeout that a push waits: its client is to hear why."""
RETRY_AFTER_NS = 200 * MILLISECOND_NS
"""When a client that was refused for now should come again."""


class Ingest:
    """See the module."""

    def __init__(self, engine: Engine, written: Callable[[], None], latency: Histogram) -> None:
        """
        Args:
            written: called after a write in the middle of a turn, so that its sync can start.
            latency: gets the time from each push's arrival to its acknowledgement.
        """
        self._latency = latency
        self._engine = engine
        self._written = written
        self._buffer = TurnBuffer()
        self._waiting = WaitingLine()
        self.pressure = Pressure()
        """Of the worker: shared by all of its engines."""
        self._unacknowledged: deque[tuple[int, Session, list[AckRun], int]] = deque()
        """(sequence behind the highest of its bundles, who pushed, where they are, when it arrived), in the order of arrival. Of what
        was stored before, too: the first copy may not be durable yet."""
        self._flushes: list[tuple[int, Session, int]] = []
        """(segment_seq that must be sealed, who asked, tag)."""
        self._segment_staged = -1
        """Highest segment that a push went into."""
        self._segment_sealed = -1
        self._closed_by: QuiverError | None = None

    @property
    def waiting_count(self) -> int:
        return self._waiting.count

    @property
    def is_flowing(self) -> bool:
        """True while pushes are taken as they come: none waits, and nobody asked for an end."""
        return not self._waiting.count and self._closed_by is None

    @property
    def closed_by(self) -> QuiverError | None:
        """Why no pushes are taken, None if they are."""
        return self._closed_by

    @property
    def is_settled(self) -> bool:
        """True when every push so far has been answered."""
        return not self._waiting.count and not self._unacknowledged

    @property
    def deadline_ns(self) -> int | None:
        """When a push has waited long enough."""
        return self._waiting.next_until_ns

    @property
    def waiting_since_ns(self) -> int:
        """Since when the push that waits longest does; 0 if none waits."""
        return self._waiting.oldest_since_ns

    @property
    def unacknowledged_since_ns(self) -> int:
        """When the oldest push that was taken and is not acknowledged arrived; 0 if there is none."""
        return self._unacknowledged[0][3] if self._unacknowledged else 0

    # --- requests ------------------------------------------------------------------------------------------------------

    def push(self, session: Session, push: Push, now_ns: int) -> None:
        """
        Raises:
            ProtocolError: the span is not in the session's arena.
        """
        source = session.span(push)
        if session.is_behind_refusal(push):
            session.release(push)
            session.refuse_call(push)
            self._refuse(session, push.tag, self._hard_pressed())
        elif self._waiting.count or not self._has_room(push.length):
            self._waiting.append(Waiting(session, push, session.hold(push), now_ns, now_ns + patience_ns(push)))
        else:
            span = self._buffer.copy(source)
            session.release(push)
            self._stage(session, push, span, now_ns)

    def flush(self, session: Session, flush: Flush, now_ns: int) -> None:
        """Answer once everything pushed before is in a sealed segment."""
        if self._waiting.count:
            self._waiting.append(Waiting(session, flush, None, now_ns, now_ns + FULL_DISK_PATIENCE_NS))
        else:
            self._seal(session, flush.tag)

    # --- turns ---------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what this turn staged, with one call. A failure shows in the engine's state."""
        self._engine.write()
        self._buffer.clear()

    def retry(self, now_ns: int) -> bool:
        """Take or refuse what waits, as far as the engine lets; True if something was staged."""
        was_staged = False
        while self._waiting.count and self._admits(self._waiting.next):
            waiting = self._waiting.take()
            if isinstance(waiting.request, Push):
                was_staged |= self._take_held(waiting, waiting.request)
            elif not waiting.session.is_closed:
                self._seal(waiting.session, waiting.request.tag)
        if self._waiting.count:
            self._refuse_overdue(now_ns)
        return was_staged

    def acknowledge(self) -> None:
        """Answer every push that has reached what its topic promises: one message a session."""
        pending = self._unacknowledged
        if not pending:
            return
        sequence, durability = self._engine.acknowledges
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
            session.send(Acked(int(durability), runs))

    def sealed(self, segment_seq: int) -> None:
        self._segment_sealed = max(self._segment_sealed, segment_seq)
        due = [flush for flush in self._flushes if flush[0] <= self._segment_sealed]
        if due:
            self._flushes = [flush for flush in self._flushes if flush[0] > self._segment_sealed]
            for _, session, tag in due:
                session.send(Done(tag))

    def trim(self) -> bool:
        """Give memory back that was not needed of late; whether there is nothing more to give back."""
        return self._buffer.trim()

    # --- ends ----------------------------------------------------------------------------------------------------------

    def close(self, reason: QuiverError) -> None:
        """Take no more pushes; those that wait and those that come are refused with the reason."""
        self._closed_by = self._closed_by or reason

    def give_up(self, reason: QuiverError) -> None:
        """The topic is deleted: refuse everything, also what was taken and not acknowledged yet."""
        self._refuse_all(reason, reason)

    def fail(self, reason: str) -> None:
        """The engine has failed: tell everybody who waits for it. What was durable before has been acknowledged."""
        place = f"topic {self._engine.topic!r}, core {self._engine.core}: {reason}"
        self._refuse_all(
            EngineFailed(f"{place}; push again, the worker restarts"),
            DurabilityUnknown(f"{place}; the bundle may or may not survive, push it again"),
        )

    def _refuse_all(self, closed_by: QuiverError, of_taken: QuiverError) -> None:
        self.close(closed_by)
        assert self._closed_by is not None
        while self._unacknowledged:
            _, session, runs, _ = self._unacknowledged.popleft()
            self._refuse(session, runs[0].tag, of_taken)
        for _, session, tag in self._flushes:
            session.refuse(tag, self._closed_by, RETRY_AFTER_NS if self._closed_by.retriable else 0)
        self._flushes.clear()
        self._refuse_waiting(self._closed_by, until_ns=None)

    # --- private -------------------------------------------------------------------------------------------------------

    def _has_room(self, size_bytes: int) -> bool:
        """Whether a span of that size can be copied and staged now."""
        if self._closed_by is not None:
            return False
        if not self._buffer.fits(size_bytes):
            # Before the engine is asked: what it can stage may change with a write.
            self.write()
            self._written()
        return self._engine.can_stage(size_bytes)

    def _stage(self, session: Session, push: Push, span: memoryview, arrived_ns: int) -> None:
        schemas = session.schemas_of(push.topic)
        try:
            if session.guest is not None:
                check_foreign_push(span, push, schemas)
            runs = self._engine.stage(span, push, schemas)
        except QuiverError as error:
            self._refuse(session, push.tag, error)
            return
        # Bundles that were stored before lie anywhere between the others.
        last = runs[0] if len(runs) == 1 else max(runs, key=_sequence_of)
        self._segment_staged = max(self._segment_staged, last.segment_seq)
        self._unacknowledged.append((last.sequence + last.count, session, runs, arrived_ns))

    def _admits(self, waiting: Waiting) -> bool:
        if waiting.session.is_closed or isinstance(waiting.request, Flush):
            return True
        return self._has_room(waiting.request.length)

    def _take_held(self, waiting: Waiting, push: Push) -> bool:
        session, held = waiting.session, waiting.held
        if session.is_closed or held is None:
            return False
        try:
            span = self._buffer.copy(session.span(push))
            session.release_held(held)
        except ProtocolError as error:
            self._refuse(session, push.tag, error)
            return False
        self._stage(session, push, span, waiting.since_ns)
        return True

    def _refuse_overdue(self, now_ns: int) -> None:
        refusal = self._closed_by or self._engine.refusal()
        if isinstance(refusal, Throttled):
            self._count_throttled()
            rejects = self._engine.retention.settings.size_cap_policy == REJECT
            self._refuse_waiting(refusal, until_ns=None if rejects else now_ns)
        elif isinstance(refusal, StorageFull):
            self._refuse_waiting(refusal, until_ns=now_ns)
        elif refusal is not None:
            self._refuse_waiting(refusal, until_ns=None)
        elif self.pressure.refuses:
            self._refuse_waiting(self._hard_pressed(), until_ns=None)

    def _hard_pressed(self) -> HardPressed:
        place = f"topic {self._engine.topic!r}, core {self._engine.core}"
        return HardPressed(f"{place}: the worker is hard pressed; nothing was stored")

    def _count_throttled(self) -> None:
        for waiting in self._waiting:
            if not waiting.is_counted:
                waiting.is_counted = True
                self._engine.losses.throttled += 1

    def refuse_rejected(self, now_ns: int) -> None:
        """The engine has just found that there is no room: refuse at once where that is the policy."""
        if self._waiting.count and self._engine.is_throttled:
            self._refuse_overdue(now_ns)

    def _refuse_waiting(self, error: QuiverError, *, until_ns: int | None) -> None:
        """Refuse what waits, if its patience ends at `until_ns` or before (None: all of it)."""
        for waiting in self._waiting.take_where(lambda each: until_ns is None or each.until_ns <= until_ns):
            if waiting.held is not None:
                waiting.session.release_refused(waiting.held)
            if isinstance(error, HardPressed) and isinstance(waiting.request, Push):
                waiting.session.refuse_call(waiting.request)
            self._refuse(waiting.session, waiting.request.tag, error)

    def _refuse(self, session: Session, tag: int, error: QuiverError) -> None:
        self._engine.note_refused()
        retry_after_ns = self.pressure.retry_after_ns if isinstance(error, Throttled) else RETRY_AFTER_NS
        session.refuse(tag, error, retry_after_ns if error.retriable else 0)

    def _seal(self, session: Session, tag: int) -> None:
        self.write()
        try:
            sealing = self._engine.seal_now()
        except QuiverError as error:
            session.refuse(tag, error)
            return
        target = self._segment_staged if sealing is None else max(sealing, self._segment_staged)
        if target <= self._segment_sealed:
            session.send(Done(tag))
        else:
            self._flushes.append((target, session, tag))


def _sequence_of(run: AckRun) -> int:
    return run.sequence


def patience_ns(push: Push) -> int:
    """How long a push waits before it is refused: a little less than its client does."""
    return int(push.patience_ms * MILLISECOND_NS * _PATIENCE_SHARE) if push.patience_ms else FULL_DISK_PATIENCE_NS
