"""Transactions of one engine, as its connections see them: spans into stages, and answers when stages are prepared, published or dropped.

Owner: the loop thread. Every request is answered once. `stage_pushes` takes the bundles.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import partial

from quiver_actors.base.protocol.messages import (
    AbandonStage,
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
from quiver_actors.errors import (
    Draining,
    EngineFailed,
    QuiverError,
    StageUnreadable,
    TransactionAborted,
    TransactionLost,
    UsageError,
)
from quiver_actors.node.worker.ingest import RETRY_AFTER_NS
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.stage_pushes import StagePushes
from quiver_actors.node.worker.threads import Submit
from quiver_actors.store.engine import Engine, events
from quiver_actors.store.staged.records import StageOrder
from quiver_actors.store.staged.stage import Stage
from quiver_actors.store.staged.states import StageState
from quiver_actors.transactions.asking import AskJob
from quiver_actors.transactions.model import check_txn_id

LOCATION_BYTES_MAX = 4096


class Staging:
    """Stages, publishes and drops the transactions of one engine for its connections."""

    def __init__(
        self,
        engine: Engine,
        touch: Callable[[], None],
        closed_by: Callable[[], QuiverError | None],
        ask: Submit,
        own_log: str,
    ) -> None:
        """
        Args:
            touch: makes the next turn look at what was asked here.
            closed_by: why no stage may begin, None if one may.
            ask: where decision logs of transactions are asked.
            own_log: the node's own one.
        """
        self._ask = ask
        self._own_log = own_log
        self._is_given_up = False
        self._closed_by = closed_by
        self._engine = engine
        self._stages = engine.stages
        self._touch = touch
        self.pushes = StagePushes(engine.stages)
        self._preparing: dict[int, tuple[Session, int]] = {}
        """(session that asked, tag of its request), by stage."""
        self._publishing: list[tuple[int, Session, int]] = []
        """Ticket, who asked, tag."""
        self._dropping: list[tuple[set[int], Session, int]] = []
        """Stages that are still to go, who asked, tag."""

    def let_go(self) -> None:
        """Release the host, whose turns nobody asks for here any more."""
        self._touch = _nothing

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
        if self._engine.settings.is_archived:
            raise UsageError(
                f"topic {self._engine.topic!r} has durability 'archived', and transactions do not wait for the archive: push without one, "
                "or stage into a topic with durability 'wal' and archive.enabled"
            )
        order = StageOrder(
            message.txn_id, message.epoch, message.partition, message.attempt, message.decisions, message.ttl_ns
        )
        session.send(Done(message.tag, self._stages.begin(order, session)))

    def push(self, session: Session, push: StagePush, now_ns: int) -> None:
        """See `StagePushes.push`."""
        self.pushes.push(session, push, now_ns)
        self._touch()

    def prepare(self, session: Session, message: PrepareStage) -> None:
        """
        Raises:
            UnknownTransaction, TransactionAborted, UsageError: it cannot be prepared.
        """
        stage = self._stages.get(message.stage, session)
        if message.stage in self.pushes.waiting_stages:
            raise UsageError(f"stage {message.stage} still has pushes that wait: prepare it once they are acknowledged")
        if message.is_awaited and not self._engine.settings.archive.enabled:
            raise UsageError(
                f"topic {self._engine.topic!r} is not archived (archive.enabled): prepare without waiting for the archive"
            )
        self.pushes.write()
        if stage.state is not StageState.OPEN:
            raise TransactionAborted(f"stage {message.stage} could not be written: {stage.reason}")
        if stage.is_empty:
            self._stages.drop([stage.number], self._engine.incarnation, "it was empty")
            session.send(StageReady(message.tag, self._engine.incarnation.hex(), 0, 0, 0, 0, 0))
            return
        self._preparing[stage.number] = (session, message.tag)
        stage.is_awaited = message.is_awaited
        self._stages.prepare(stage)

    def drop_rivals(self, message: PublishStages, numbers: Collection[int]) -> None:
        """Drop stages that a decision was made without."""
        with contextlib.suppress(TransactionLost):
            reason = "the transaction was decided without it"
            self._stages.drop(list(numbers), _incarnation(message.incarnation), reason)
        self._touch()

    def abandon(self, session: Session, message: AbandonStage) -> None:
        """Drop an open stage of this session; a stage of another session or state stays."""
        stage = next((stage for stage in self._stages if stage.number == message.stage), None)
        if stage is not None and stage.owner is session and stage.state is StageState.OPEN:
            stage.drop("its producer gave it up")

    def prepared(self, numbers: Collection[int]) -> list[Stage]:
        """Return the stages among `numbers` that a commit may name and that are not published yet."""
        return [stage for stage in self._stages if stage.number in numbers and stage.state is StageState.PREPARED]

    def drop(self, session: Session, message: DropStages, asked: Collection[int] = ()) -> None:
        """
        Args:
            asked: prepared stages that no commit names, as their decision logs say. Others that are prepared stay.

        Raises:
            TransactionLost: the stages are of another directory.
        """
        stays = {stage.number for stage in self.prepared(message.numbers)} - set(asked)
        numbers = [number for number in message.numbers if number not in stays]
        self._stages.drop(numbers, _incarnation(message.incarnation), message.reason)
        going = {stage.number for stage in self._stages if stage.state is StageState.DROPPING}
        self._dropping.append((going & set(message.numbers), session, message.tag))
        self._answer_dropped()

    def rivals(self, message: PublishStages) -> list[Stage]:
        """Stages of the transaction that the message does not publish, prepared or open."""
        states = (StageState.PREPARED, StageState.OPEN)
        others = [stage for stage in self._stages if stage.number not in message.numbers and stage.state in states]
        return [stage for stage in others if stage.order.txn_id == message.txn_id]

    def publish(self, session: Session, message: PublishStages) -> None:
        """
        Raises:
            TransactionLost, UnknownTransaction: nothing was published by this message.
            EngineFailed: ask again when the worker is back.
        """
        self._check_alive()
        incarnation = _incarnation(message.incarnation)
        ticket = self._stages.publish(message.txn_id, incarnation, message.numbers)
        if ticket:
            self._publishing.append((ticket, session, message.tag))
        else:
            session.send(Done(message.tag))

    def list_all(self, session: Session, message: ListStages) -> None:
        """Answer with every stage of the engine."""
        infos = [_info_of(stage) for stage in self._stages]
        session.send(StageList(message.tag, self._engine.incarnation.hex(), infos))

    # --- the decision log's answers ----------------------------------------------------------------------------------------

    def ask_about_expired(self) -> None:
        """Ask the decision logs about prepared stages whose time is over."""
        for stage in self._stages.take_expired():
            order = stage.order
            job = AskJob(order.decisions or self._own_log, order.txn_id, order.epoch)
            self._ask(job, partial(self._answered, stage, job))

    def _answered(self, stage: Stage, job: AskJob) -> None:
        """Do what the decision log says."""
        if self._is_given_up:
            return
        self._touch()
        if stage.state is not StageState.PREPARED:
            return
        answer, incarnation = job.answer, self._engine.incarnation
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

    def apply(self, event: events.Event) -> None:
        """Answer the requests that wait for the event."""
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

    # --- ends ----------------------------------------------------------------------------------------------------------

    def detach(self, session: Session) -> None:
        """The connection has ended: its open stages with it."""
        self._stages.release(session)

    def fail(self, reason: str) -> None:
        """The engine has failed: what was asked may come true at recovery."""
        place = f"topic {self._engine.topic!r}, core {self._engine.core}"
        self.refuse_all(EngineFailed(f"{place}: {reason}; ask again, the worker restarts"))

    def give_up(self, error: QuiverError) -> None:
        """The topic is deleted: tell everybody who waits, and act on no answer any more."""
        self._is_given_up = True
        self.refuse_all(error)

    def refuse_all(self, error: QuiverError) -> None:
        """Tell everybody who waits for something."""
        for number in [*self.pushes.waiting_stages, *self._preparing]:
            self._refuse_stage(number, error)
        for _, session, tag in self._publishing:
            session.refuse(tag, error, RETRY_AFTER_NS if error.retriable else 0)
        for _, session, tag in self._dropping:
            session.refuse(tag, error, RETRY_AFTER_NS if error.retriable else 0)
        self._publishing.clear()
        self._dropping.clear()

    # --- private -------------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        refusal = self._engine.intake.refusal()
        if isinstance(refusal, (EngineFailed, Draining)):
            raise refusal

    def _refuse_stage(self, number: int, error: QuiverError) -> None:
        """Refuse everything that waits for a stage."""
        self.pushes.refuse(number, error)
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


def _nothing() -> None:
    """Stand in for `touch` when there are no turns any more."""
