"""Requests for files on the cold disk that wait until the files are open.

Owner: the engine's host, on the loop thread. A request waits here while the thread of the cold disk opens its file. It is refused with the
reason once the cold disk is known to be away.
"""

from __future__ import annotations

from quiver_actors.base.protocol.messages import OpenSegment
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.segment_answers import send_segment
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from quiver_actors.store.engine.engine import Engine


class ColdAnswers:
    """Answers requests for sealed segments, those on the cold disk later."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[tuple[Session, OpenSegment]] = []

    def answer(self, session: Session, message: OpenSegment) -> None:
        """Send the file of a segment, at once or when it is open. Raises as `send_segment`."""
        try:
            send_segment(session, self._engine, message)
        except ColdStorageUnavailable as error:
            if not error.is_coming:
                raise
            self._waiting.append((session, message))

    def look_again(self) -> None:
        """Answer what can be answered now: a file was opened, or the cold disk is away."""
        waiting, self._waiting = self._waiting, []
        for session, message in waiting:
            if session.is_closed:
                continue
            try:
                self.answer(session, message)
            except QuiverError as error:
                session.refuse(message.tag, error)

    def give_up(self, reason: QuiverError) -> None:
        """Refuse everything that waits: the topic is deleted."""
        waiting, self._waiting = self._waiting, []
        for session, message in waiting:
            if not session.is_closed:
                session.refuse(message.tag, reason)
