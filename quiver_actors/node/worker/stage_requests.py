"""Carries out the messages of transactions. See `requests`.

Owner: the loop thread. Decision logs are asked by a thread of their own, because they may be far away.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from quiver_actors.base.model import check_id
from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.messages import (
    AbandonStage,
    BeginStage,
    Decide,
    Decided,
    Done,
    DropStages,
    ListStages,
    PrepareStage,
    PublishStages,
    StagePush,
)
from quiver_actors.errors import DecisionUnavailable, QuiverError, TransactionDecided
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.staging import Staging
from quiver_actors.node.worker.threads import Submit
from quiver_actors.store.staged.retired import RetiredJob
from quiver_actors.store.staged.stage import Stage
from quiver_actors.transactions.asking import Answer, DecideJob, FindJob, Question

_Handler = Callable[[Session, Any, int], None]


class StageRequests:
    """Handles the transaction messages of clients."""

    def __init__(self, staging_of: Callable[[str, Session], Staging], own_log: str, ask: Submit) -> None:
        """
        Args:
            staging_of: of a topic for a connection; the topic is touched by it. Raises UnknownTopic, TopicRecreated.
            own_log: the node's own decision log.
            ask: where decision logs are asked.
        """
        self._staging_of = staging_of
        self._own_log = own_log
        self._ask = ask

    def handlers(self) -> dict[type[Message], _Handler]:
        """Return the handlers by message, for the table of `Requests`.

        The table of rights keeps these messages for the node's own user: who decides a transaction decides for all its producers.
        """
        return {
            BeginStage: lambda session, message, _: self._staging_of(message.topic, session).begin(session, message),
            StagePush: self._push,
            AbandonStage: lambda session, message, _: self._staging_of(message.topic, session).abandon(
                session, message
            ),
            PrepareStage: lambda session, message, _: self._staging_of(message.topic, session).prepare(
                session, message
            ),
            DropStages: self._drop,
            PublishStages: self._publish,
            ListStages: lambda session, message, _: self._staging_of(message.topic, session).list_all(session, message),
            Decide: self._decide,
        }

    def _push(self, session: Session, message: StagePush, now_ns: int) -> None:
        try:
            staging = self._staging_of(message.topic, session)
        except Exception:
            session.arena.release(message)
            raise
        staging.push(session, message, now_ns)

    def _publish(self, session: Session, message: PublishStages, now_ns: int) -> None:
        if message.retired_core < 0:
            staging = self._staging_of(message.topic, session)
            staging.publish(session, message)
            if message.drop_others and (rivals := staging.rivals(message)):
                self._drop_rivals(session, message, rivals)
            return
        data_dir = os.path.dirname(self._own_log)
        job = RetiredJob(
            data_dir, check_id("topic", message.topic), message.retired_core, message.incarnation, message.numbers
        )

        def answer() -> None:
            if job.error is not None:
                session.refuse(message.tag, job.error)
            else:
                session.send(Done(message.tag))

        self._ask(job, answer)

    def _drop(self, session: Session, message: DropStages, now_ns: int) -> None:
        """Drop stages, except those that a commit names, which must be published.

        The decision logs are therefore asked first, and an undecided epoch is aborted there: a commit may be under way at this moment,
        and of it and the abort only one comes to be. After that nobody can commit what is dropped.
        """
        staging = self._staging_of(message.topic, session)
        asked = {stage.number: self._question(stage) for stage in staging.prepared(message.numbers)}
        if not asked:
            staging.drop(session, message)
            return
        job = FindJob(asked.values(), aborts=not message.only_decided)

        def answer() -> None:
            try:
                losers = {
                    number for number, question in asked.items() if _is_loser(message, number, job.answers[question])
                }
                self._staging_of(message.topic, session).drop(session, message, losers)
            except QuiverError as error:
                session.refuse(message.tag, error)

        self._ask(job, answer)

    def _drop_rivals(self, session: Session, message: PublishStages, rivals: Sequence[Stage]) -> None:
        """Drop what a decision was made without, but nothing that a commit names: a publisher may have left a winner out.

        What is undecided, or nobody can tell of now, is asked about again when its time is over.
        """
        asked = {stage.number: self._question(stage) for stage in rivals}
        job = FindJob(asked.values())

        def drop() -> None:
            losers = []
            for number, question in asked.items():
                with contextlib.suppress(TransactionDecided, DecisionUnavailable):
                    if _is_loser(message, number, job.answers[question]):
                        losers.append(number)
            with contextlib.suppress(QuiverError):
                self._staging_of(message.topic, session).drop_rivals(message, losers)

        self._ask(job, drop)

    def _question(self, stage: Stage) -> Question:
        return Question(stage.order.decisions or self._own_log, stage.order.txn_id, stage.order.epoch)

    def _decide(self, session: Session, message: Decide, now_ns: int) -> None:
        job = DecideJob(self._own_log, message.txn_id, message.epoch, message.outcome, message.tokens)
        self._ask(job, lambda: self._decided(session, message.tag, job))

    @staticmethod
    def _decided(session: Session, tag: int, job: DecideJob) -> None:
        if job.error is not None:
            session.refuse(tag, job.error)
        else:
            session.send(Decided(tag, "" if job.decision is None else msgspec.json.encode(job.decision).decode()))


def _is_loser(message: DropStages | PublishStages, number: int, answer: Answer) -> bool:
    """Whether a stage may be dropped: nobody can commit it any more, as its epoch was decided without it.

    Raises:
        TransactionDecided: a commit names it.
        DecisionUnavailable: its decision log does not say.
    """
    if answer.problem:
        raise DecisionUnavailable(
            f"stage {number} of topic {message.topic!r} is kept, as nobody can tell whether it was committed: {answer.problem}"
        )
    decision = answer.decision
    if decision is not None and decision.is_commit and decision.lists(message.incarnation, number):
        raise TransactionDecided(
            f"stage {number} of topic {message.topic!r} was committed by transaction {decision.txn_id!r}, epoch {decision.epoch}, and "
            "cannot be dropped: publish the tokens of that decision"
        )
    return decision is not None
