"""Transactions of one engine, as its connections see them: spans into stages, and answers when stages are prepared, published or dropped.

Owner: the loop thread. Invariants: as of `ingest`, a span is copied before it is looked at; pushes into one stage are taken in their
order, and one that has to wait makes only its own stage wait; every request is answered once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors import events
from quiver_actors.engine import Engine
from quiver_actors.errors import (
    Draining,
    EngineFailed,
    ProtocolError,
    QuiverError,
    StageUnreadable,
    StorageFull,
    TransactionAborted,
    UsageError,
)
from quiver_actors.model import Durability
from quiver_actors.protocol.messages import (
    AbandonStage,
    Acked,
    AckRun,
    BeginStage,
    Done,
    DropStages,
    ListStages,
    PrepareStage,
    PublishStages,
    StageInfo,
    StageList,
    StagePush,
    StageReady,
)
from quiver_actors.transactions.asking import Answer
from quiver_actors.transactions.model import check_txn_id
from quiver_actors.transactions.records import StageOrder
from quiver_actors.transactions.stage import Stage
from quiver_actors.transactions.states import StageState
from quiver_actors.worker.ingest import RETRY_AFTER_NS, patience_ns
from quiver_actors.worker.session import HeldSpan, Session
from quiver_actors.worker.turn_buffer import TurnBuffer

LOCATION_BYTES_MAX = 4096


@dataclass(slots=True)
class _Waiting:
    session: Session
    push: StagePush
    held: HeldSpan
    since_ns: int
    until_ns: int


class Staging:
    """See the module."""

    def __init__(self, engine: Engine, touch: Callable[[], None], closed_by: Callable[[], QuiverError | None]) -> None:
        """
        Args:
            touch: makes the next turn look at what was asked here.
            closed_by: why no stage may begin, None if one may.
        """
        self._closed_by = closed_by
        self._engine = engine
        self._stages = engine.stages
        self._touch = touch
        self._buffer = TurnBuffer(usual_bytes=1 << 16)
        self._waiting: dict[int, deque[_Waiting]] = {}
        """By stage."""
        self._written: list[tuple[Session, Stage, AckRun]] = []
        """Staged since the last write."""
        self._preparing: dict[int, tuple[Session, int]] = {}
        """Who asked, and the tag, by stage."""
        self._publishing: list[tuple[int, Session, int]] = []
        """Ticket, who asked, tag."""
        self._dropping: list[tuple[set[int], Session, int]] = []
        """Stages that are still to go, who asked, tag."""

    # --- requests ------------------------------------------------------------------------------------------------------

    def begin(self, session: Session, message: BeginStage) -> None:
        """
        Raises:
            QuiverError: the order is not one, or no work is taken.
        """
        if (reason := self._closed_by()) is not None:
            raise reason
        check_txn_id(message.txn_id)
        if min(message.epoch, message.partition, message.attempt) < 0 or not 0 < message.ttl_ns < 1 << 62:
            raise UsageError(
                "epoch, partition and attempt of a stage must not be negative, and its ttl must be more than 0"
            )
        if len(message.decisions) > LOCATION_BYTES_MAX:
            raise UsageError(
                f"the decision log's location has {len(message.decisions)} characters, more than {LOCATION_BYTES_MAX}"
            )
        order = StageOrder(
            message.txn_id, message.epoch, message.partition, message.attempt, message.decisions, message.ttl_ns
        )
        session.send(Done(message.tag, self._stages.begin(order, session)))

    def push(self, session: Session, push: StagePush, now_ns: int) -> None:
        """
        Raises:
            ProtocolError: the span is not in the session's arena.
        """
        source = session.span(push)
        self._touch()
        try:
            stage = self._stages.get(push.stage, session)
        except QuiverError as error:
            session.release(push)
            session.refuse(push.tag, error)
            return
        if push.stage in self._waiting or not self._has_room(stage, push.length):
            waiting = _Waiting(session, push, session.hold(push), now_ns, now_ns + patience_ns(push))
            self._waiting.setdefault(push.stage, deque()).append(waiting)
        else:
            span = self._buffer.copy(source)
            session.release(push)
            self._stage(session, stage, push, span)

    def prepare(self, session: Session, message: PrepareStage) -> None:
        """
        Raises:
            UnknownTransaction, TransactionAborted, UsageError: it cannot be prepared.
        """
        stage = self._stages.get(message.stage, session)
        if message.stage in self._waiting:
            raise UsageError(f"stage {message.stage} still has pushes that wait: prepare it once they are acknowledged")
        self._write()
        if stage.state is not StageState.OPEN:
            raise TransactionAborted(f"stage {message.stage} could not be written: {stage.reason}")
        if stage.is_empty:
            self._stages.drop([stage.number], self._engine.incarnation, "it was empty")
            session.send(StageReady(message.tag, self._engine.incarnation.hex(), 0, 0, 0, 0, 0))
            return
        self._preparing[stage.number] = (session, message.tag)
        self._stages.prepare(stage)

    def abandon(self, session: Session, message: AbandonStage) -> None:
        stage = next((stage for stage in self._stages if stage.number == message.stage), None)
        if stage is not None and stage.owner is session and stage.state is StageState.OPEN:
            stage.drop("its producer gave it up")

    def drop(self, session: Session, message: DropStages) -> None:
        """
        Raises:
            TransactionLost: the stages are of another directory.
        """
        self._stages.drop(message.numbers, _incarnation(message.incarnation), message.reason)
        going = {stage.number for stage in self._stages if stage.state is StageState.DROPPING}
        self._dropping.append((going & set(message.numbers), session, message.tag))
        self._answer_dropped()

    def publish(self, session: Session, message: PublishStages) -> None:
        """
        Raises:
            TransactionLost, UnknownTransaction: nothing was published by this message.
            EngineFailed: ask again when the worker is back.
        """
        self._check_alive()
        incarnation = _incarnation(message.incarnation)
        ticket = self._stages.publish(message.txn_id, incarnation, message.numbers, drop_others=message.drop_others)
        if ticket:
            self._publishing.append((ticket, session, message.tag))
        else:
            session.send(Done(message.tag))

    def list_all(self, session: Session, message: ListStages) -> None:
        infos = [_info_of(stage) for stage in self._stages]
        session.send(StageList(message.tag, self._engine.incarnation.hex(), infos))

    # --- the decision log's answers ----------------------------------------------------------------------------------------

    def answered(self, stage: Stage, answer: Answer) -> None:
        """Do what the decision log says about a prepared stage whose time is over."""
        self._touch()
        if stage.state is not StageState.PREPARED:
            return
        incarnation = self._engine.incarnation
        if answer.decision is None:
            stage.reason = answer.problem
        elif answer.decision.lists(incarnation.hex(), stage.number):
            numbers = [token.number for token in answer.decision.tokens if token.incarnation == incarnation.hex()]
            here = [number for number in numbers if any(found.number == number for found in self._stages)]
            try:
                self._stages.publish(stage.order.txn_id, incarnation, here)
            except StageUnreadable as error:
                stage.reason = str(error)
        elif answer.decision.is_commit:
            self._stages.drop([stage.number], incarnation, "the transaction was decided without it")
        else:
            self._stages.drop(
                [stage.number], incarnation, f"its time was over and it was not decided ({answer.decision.by})"
            )

    # --- turns ---------------------------------------------------------------------------------------------------------

    def turn(self, now_ns: int) -> None:
        """Take what waits, as far as there is room, and write."""
        self._write()
        for number in list(self._waiting):
            self._retry(number, now_ns)
        self._write()

    def apply(self, event: events.Event) -> None:
        """Tell those who wait for it."""
        match event:
            case events.StagePrepared():
                self._tell_prepared(event.number)
            case events.StagesPublished():
                done = [waiting for waiting in self._publishing if waiting[0] <= event.ticket]
                self._publishing = [waiting for waiting in self._publishing if waiting[0] > event.ticket]
                for _, session, tag in done:
                    session.send(Done(tag))
            case events.StageDropped():
                error = TransactionAborted(f"stage {event.number} was dropped: {event.reason}")
                self._refuse_stage(event.number, error)
                self._answer_dropped(event.number)
            case _:
                pass

    @property
    def deadline_ns(self) -> int | None:
        """When the push that waits longest has waited too long for a full disk."""
        return min((line[0].until_ns for line in self._waiting.values()), default=None)

    @property
    def waiting_since_ns(self) -> int:
        """Since when the push that waits longest does; 0 if none waits."""
        return min((line[0].since_ns for line in self._waiting.values()), default=0)

    # --- ends ----------------------------------------------------------------------------------------------------------

    def detach(self, session: Session) -> None:
        """The connection has ended: its open stages with it."""
        self._stages.release(session)

    def fail(self, reason: str) -> None:
        """The engine has failed: what was asked may come true at recovery."""
        place = f"topic {self._engine.topic!r}, core {self._engine.core}"
        self.refuse_all(EngineFailed(f"{place}: {reason}; ask again, the worker restarts"))

    def refuse_all(self, error: QuiverError) -> None:
        """Tell everybody who waits for something."""
        for number in [*self._waiting, *self._preparing]:
            self._refuse_stage(number, error)
        for _, session, tag in self._publishing:
            session.refuse(tag, error, RETRY_AFTER_NS if error.retriable else 0)
        for _, session, tag in self._dropping:
            session.refuse(tag, error, RETRY_AFTER_NS if error.retriable else 0)
        self._publishing.clear()
        self._dropping.clear()

    # --- private -------------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        refusal = self._engine.refusal()
        if isinstance(refusal, (EngineFailed, Draining)):
            raise refusal

    def _has_room(self, stage: Stage, size_bytes: int) -> bool:
        if not self._buffer.fits(size_bytes):
            self._write()
        return self._stages.can_stage(stage, size_bytes)

    def _stage(self, session: Session, stage: Stage, push: StagePush, span: memoryview) -> None:
        try:
            run = self._stages.stage(stage, span, push, session.schemas_of(push.topic))
        except QuiverError as error:
            session.refuse(push.tag, error)
            return
        self._written.append((session, stage, run))

    def _write(self) -> None:
        """Write what was staged, and acknowledge it."""
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
                self._refuse_stage(number, error)
                return
            if not self._has_room(stage, waiting.push.length):
                if now_ns >= waiting.until_ns:
                    self._refuse_stage(
                        number, StorageFull(f"no room on the disk for stage {number}: free space, then run it again")
                    )
                return
            self._take(line.popleft(), stage)
        del self._waiting[number]

    def _take(self, waiting: _Waiting, stage: Stage) -> None:
        try:
            span = self._buffer.copy(waiting.session.span(waiting.push))
            waiting.session.release_held(waiting.held)
        except ProtocolError as error:
            waiting.session.refuse(waiting.push.tag, error)
            return
        self._stage(waiting.session, stage, waiting.push, span)

    def _refuse_stage(self, number: int, error: QuiverError) -> None:
        """Nothing more comes of what waits for that stage."""
        for waiting in self._waiting.pop(number, ()):
            waiting.session.release_refused(waiting.held)
            waiting.session.refuse(waiting.push.tag, error)
        if number in self._preparing:
            session, tag = self._preparing.pop(number)
            session.refuse(tag, error)

    def _tell_prepared(self, number: int) -> None:
        if number not in self._preparing:
            return  # the engine failed meanwhile: refused, and recovery finds it prepared
        session, tag = self._preparing.pop(number)
        stage = next(stage for stage in self._stages if stage.number == number)
        stage.owner = None
        session.send(
            StageReady(
                tag,
                self._engine.incarnation.hex(),
                number,
                stage.bundle_count,
                stage.row_count,
                stage.size_bytes,
                stage.expires_unix_ns,
            )
        )

    def _answer_dropped(self, number: int = 0) -> None:
        for going, _, _ in self._dropping:
            going.discard(number)
        for going, session, tag in self._dropping:
            if not going:
                session.send(Done(tag))
        self._dropping = [waiting for waiting in self._dropping if waiting[0]]


def _incarnation(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"incarnation {text!r} is not hex") from error


def _info_of(stage: Stage) -> StageInfo:
    order = stage.order
    return StageInfo(
        stage.number,
        order.txn_id,
        order.epoch,
        order.partition,
        order.attempt,
        stage.state.value,
        stage.bundle_count,
        stage.row_count,
        stage.size_bytes,
        stage.begun_unix_ns,
        stage.expires_unix_ns,
        order.decisions,
        stage.reason,
    )
