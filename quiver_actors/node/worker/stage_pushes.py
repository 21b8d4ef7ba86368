"""Pushes into the stages of one engine: copied, written together once a turn, and acknowledged.

Owner: the loop thread. Invariants: a span is copied before it is looked at; pushes into one stage are taken in their order, and one that
has to wait makes only its own stage wait; every push is answered once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from quiver_actors.base.model import Durability
from quiver_actors.base.protocol.messages import Acked, AckRun, StagePush
from quiver_actors.errors import ProtocolError, QuiverError, StorageFull, TransactionAborted
from quiver_actors.node.worker.ingest import patience_ns
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.session_arena import HeldSpan
from quiver_actors.node.worker.turn_buffer import TurnBuffer
from quiver_actors.store.engine.stages import Stages
from quiver_actors.store.staged.stage import Stage
from quiver_actors.store.staged.states import StageState


@dataclass(slots=True)
class _Waiting:
    session: Session
    push: StagePush
    held: HeldSpan
    since_ns: int
    until_ns: int


class StagePushes:
    """Takes the pushes into the stages of one engine."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._buffer = TurnBuffer(usual_bytes=1 << 16)
        self._waiting: dict[int, deque[_Waiting]] = {}
        """Waiting pushes, by stage."""
        self._written: list[tuple[Session, Stage, AckRun]] = []
        """Staged since the last write."""

    @property
    def waiting_stages(self) -> list[int]:
        """Numbers of the stages into which pushes wait for room."""
        return list(self._waiting)

    def push(self, session: Session, push: StagePush, now_ns: int) -> None:
        """Take a push, or let it wait for room.

        Raises:
            ProtocolError: the span is not in the session's arena.
        """
        source = session.arena.span(push)
        try:
            stage = self._stages.get(push.stage, session)
        except QuiverError as error:
            session.arena.release(push)
            session.refuse(push.tag, error)
            return
        if push.stage in self._waiting or not self._has_room(stage, push.length):
            waiting = _Waiting(session, push, session.arena.hold(push), now_ns, now_ns + patience_ns(push))
            self._waiting.setdefault(push.stage, deque()).append(waiting)
        else:
            span = self._buffer.copy(source)
            session.arena.release(push)
            self._stage(session, stage, push, span)

    def turn(self, now_ns: int) -> None:
        """Take what waits, as far as there is room, and write."""
        self.write()
        for number in list(self._waiting):
            self._retry(number, now_ns)
        self.write()

    def refuse(self, number: int, error: QuiverError) -> None:
        """Refuse every push that waits for a stage."""
        for waiting in self._waiting.pop(number, ()):
            waiting.session.arena.release_refused(waiting.held)
            waiting.session.refuse(waiting.push.tag, error)

    @property
    def deadline_ns(self) -> int | None:
        """Monotonic time when the oldest waiting push has waited too long for a full disk."""
        return min((line[0].until_ns for line in self._waiting.values()), default=None)

    @property
    def waiting_since_ns(self) -> int:
        """Monotonic time since when the oldest waiting push waits; 0 if none waits."""
        return min((line[0].since_ns for line in self._waiting.values()), default=0)

    def _has_room(self, stage: Stage, size_bytes: int) -> bool:
        if not self._buffer.fits(size_bytes):
            self.write()
        return self._stages.can_stage(stage, size_bytes)

    def _stage(self, session: Session, stage: Stage, push: StagePush, span: memoryview) -> None:
        try:
            run = self._stages.stage(stage, span, push, session.schemas.of(push.topic))
        except QuiverError as error:
            session.refuse(push.tag, error)
            return
        self._written.append((session, stage, run))

    def write(self) -> None:
        """Write the staged bundles, and acknowledge them."""
        written, self._written = self._written, []
        for stage in {stage.number: stage for _, stage, _ in written}.values():
            self._stages.write(stage)
        self._buffer.clear()
        for session, stage, run in written:
            if stage.state is StageState.DROPPING:
                session.refuse(run.tag, TransactionAborted(f"stage {stage.number} was dropped: {stage.reason}"))
            else:
                session.send(Acked(int(Durability.OPEN_SEGMENT), [run]))

    def _retry(self, number: int, now_ns: int) -> None:
        line = self._waiting[number]
        while line:
            waiting = line[0]
            try:
                stage = self._stages.get(number, waiting.session)
            except QuiverError as error:
                self.refuse(number, error)
                return
            if not self._has_room(stage, waiting.push.length):
                if now_ns >= waiting.until_ns:
                    self.refuse(
                        number,
                        StorageFull(
                            f"no room for stage {number}: {self._stages.table.limit_met}; make room, then run it again"
                        ),
                    )
                return
            self._take(line.popleft(), stage)
        del self._waiting[number]

    def _take(self, waiting: _Waiting, stage: Stage) -> None:
        try:
            span = self._buffer.copy(waiting.session.arena.span(waiting.push))
            waiting.session.arena.release_held(waiting.held)
        except ProtocolError as error:
            waiting.session.refuse(waiting.push.tag, error)
            return
        self._stage(waiting.session, stage, waiting.push, span)
