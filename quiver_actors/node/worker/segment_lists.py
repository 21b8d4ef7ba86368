"""Answers which segments of a topic can be read, at once or when everything can be read that was acknowledged before.

Owner: the engine's host, on the loop thread. What was acknowledged may not be readable for a moment: with a flush interval it is not synced
yet, or a publish in front of it is under way. A request with patience waits here for that, and has the log synced.
"""

from __future__ import annotations

from typing import NamedTuple

from quiver_actors.base.protocol.messages import ListSegments
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.segment_answers import segment_list
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine import Engine, EngineState

_PATIENCE_NS_MAX = 60 * SECOND_NS


class _Waiting(NamedTuple):
    session: Session
    tag: int
    acknowledged: int
    """Pushes below that sequence were acknowledged when the request came."""
    wanted: int
    """Those below this one are waited for."""
    until_ns: int


class SegmentLists:
    """Answers `ListSegments` for one engine.

    Attributes:
        deadline_ns: monotonic time at which the patience of a waiting request ends first; None: none waits.
    """

    def __init__(self, engine: Engine) -> None:
        self.deadline_ns: int | None = None
        self._engine = engine
        self._waiting: list[_Waiting] = []

    def answer(self, session: Session, message: ListSegments, now_ns: int) -> None:
        """Answer at once, or when everything can be read that can be without a seal."""
        commit = self._engine.group_commit
        until_ns = now_ns + min(message.patience_ms * MILLISECOND_NS, _PATIENCE_NS_MAX)
        request = _Waiting(session, message.tag, commit.acknowledges[0], commit.readable_unsealed, until_ns)
        if message.patience_ms <= 0:
            session.send(segment_list(self._engine, message.tag, request.acknowledged))
            return
        session.owed += 1
        self._waiting.append(request)
        self.look_again(now_ns)

    def look_again(self, now_ns: int) -> None:
        """Answer the requests whose bundles can be read now, or whose patience has ended."""
        self._engine.readable_end.advance(is_wanted=True)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if self._engine.readable_end.covers(each.wanted):
                self._send(each)
            elif now_ns >= each.until_ns or self._engine.state is EngineState.FAILED:
                self._send(each, self._engine.failure or self._engine.readable_end.obstacle(each.wanted))
            elif each.session.is_closed:
                each.session.owed -= 1
            else:
                self._waiting.append(each)
        self.deadline_ns = min((each.until_ns for each in self._waiting), default=None)
        if self._waiting:
            self._engine.group_commit.want_sync()

    def give_up(self, reason: QuiverError) -> None:
        """Refuse everything that waits: the topic is deleted."""
        waiting, self._waiting, self.deadline_ns = self._waiting, [], None
        for each in waiting:
            each.session.owed -= 1
            each.session.refuse(each.tag, reason)

    def _send(self, request: _Waiting, obstacle: str = "") -> None:
        request.session.owed -= 1
        request.session.send(segment_list(self._engine, request.tag, request.acknowledged, obstacle))
