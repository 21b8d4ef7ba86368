"""Answers to subscribers' requests that wait until the progress of one engine is durable.

Owner: the engine's deliveries, on the loop thread.
"""

from __future__ import annotations

from collections import deque

from quiver_actors.base.protocol.messages import Done, Sought
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine import Engine


class ProgressAnswers:
    """Answers that are sent once the progress that they speak of is durable."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[tuple[int, Session, Done | Sought]] = deque()
        """Answers that wait for a flush: (progress ticket, session that waits, answer), by rising ticket."""
        self._failed_by: QuiverError | None = None

    def wait(self, ticket: int, session: Session, answer: Done | Sought) -> None:
        """Send the answer once the progress with that ticket is durable."""
        if self._failed_by is not None:
            session.refuse(answer.tag, self._failed_by)
        else:
            session.owed += 1
            self._waiting.append((ticket, session, answer))

    def settle(self) -> None:
        """Answer whoever waited for progress that is durable now."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._engine.progress.durable:
            _, session, answer = waiting.popleft()
            session.owed -= 1
            session.send(answer)

    def fail(self, error: QuiverError) -> None:
        """The engine has failed: progress that is not durable will not become so here."""
        self._failed_by = error
        while self._waiting:
            _, session, answer = self._waiting.popleft()
            session.owed -= 1
            session.refuse(answer.tag, error)
