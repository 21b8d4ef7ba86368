"""What readers without a claim wait for in one engine.

Owner: the engine's host, on the loop thread.
"""

from __future__ import annotations

from quiver_actors.base.protocol.messages import OpenSegment
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.segment_answers import send_segment
from quiver_actors.node.worker.segment_lists import SegmentLists
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable


class ColdAnswers:
    """Answers requests for sealed segments, those on the cold disk later.

    A request waits while the thread of the cold disk opens its file. It is refused with the reason once the cold disk is known to be away.
    """

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


class Readers:
    """Readers of one engine.

    Attributes:
        lists: answers which segments there are, once all that was acknowledged can be read.
        files: answers with the files of segments, those on the cold disk when they are open.
    """

    def __init__(self, engine: Engine) -> None:
        self.lists = SegmentLists(engine)
        self.files = ColdAnswers(engine)

    def give_up(self, reason: QuiverError) -> None:
        """Refuse everything that waits: the topic is deleted."""
        self.lists.give_up(reason)
        self.files.give_up(reason)
