"""What each message of a transaction does. See `requests`.

Owner: the loop thread. Decision logs are asked by a thread of their own, because they may be far away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from quiver_actors.errors import NotAllowed
from quiver_actors.model import check_id
from quiver_actors.protocol.base import Message
from quiver_actors.protocol.messages import (
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
from quiver_actors.transactions.asking import DecideJob
from quiver_actors.transactions.retired import RetiredJob
from quiver_actors.worker.session import Session
from quiver_actors.worker.staging import Staging
from quiver_actors.worker.threads import Submit

_Handler = Callable[[Session, Any, int], None]


class StageRequests:
    """See the module."""

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
        """By message, for the table of `Requests`. For the node's own user: who decides a transaction decides for all its producers."""
        return {message: _of_own_user(handler) for message, handler in self._table().items()}

    def _table(self) -> dict[type[Message], _Handler]:
        return {
            BeginStage: lambda session, message, _: self._staging_of(message.topic, session).begin(session, message),
            StagePush: self._push,
            AbandonStage: lambda session, message, _: self._staging_of(message.topic, session).abandon(
                session, message
            ),
            PrepareStage: lambda session, message, _: self._staging_of(message.topic, session).prepare(
                session, message
            ),
            DropStages: lambda session, message, _: self._staging_of(message.topic, session).drop(session, message),
            PublishStages: self._publish,
            ListStages: lambda session, message, _: self._staging_of(message.topic, session).list_all(session, message),
            Decide: self._decide,
        }

    def _push(self, session: Session, message: StagePush, now_ns: int) -> None:
        try:
            staging = self._staging_of(message.topic, session)
        except Exception:
            session.release(message)
            raise
        staging.push(session, message, now_ns)

    def _publish(self, session: Session, message: PublishStages, now_ns: int) -> None:
        if message.retired_core < 0:
            self._staging_of(message.topic, session).publish(session, message)
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

    def _decide(self, session: Session, message: Decide, now_ns: int) -> None:
        job = DecideJob(self._own_log, message.txn_id, message.epoch, message.outcome, message.tokens)
        self._ask(job, lambda: self._decided(session, message.tag, job))

    @staticmethod
    def _decided(session: Session, tag: int, job: DecideJob) -> None:
        if job.error is not None:
            session.refuse(tag, job.error)
        else:
            session.send(Decided(tag, "" if job.decision is None else msgspec.json.encode(job.decision).decode()))


def _of_own_user(handler: _Handler) -> _Handler:
    def handle(session: Session, message: Any, now_ns: int) -> None:
        if session.guest is not None:
            raise NotAllowed("transactions are for the node's own user: push without one, or run as that user")
        handler(session, message, now_ns)

    return handle
