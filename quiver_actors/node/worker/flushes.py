"""The flushes of one engine: each is answered once everything that was pushed before it is in a sealed segment.

Owner: the engine's ingest, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.base.protocol.messages import Done
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine import Engine


class Flushes:
    """Flushes that wait for a segment to be sealed, and the archiver, for whose segments pushes wait.

    Attributes:
        segment_staged: the highest segment number that a push went into; the ingest's note.
        ring_archiver: wakes the archiver.
    """

    def __init__(self, engine: Engine) -> None:
        self.segment_staged = -1
        self.ring_archiver: Callable[[], None] = _nobody
        self._engine = engine
        self._segment_sealed = -1
        self._waiting: list[tuple[int, Session, int]] = []
        """(segment_seq that must be sealed, session that asked, tag of its request)."""

    def seal(self, session: Session, tag: int) -> None:
        """Seal what has been written, and answer once it is sealed."""
        try:
            sealing = self._engine.seal_now()
        except QuiverError as error:
            session.owed -= 1
            session.refuse(tag, error)
            return
        target = self.segment_staged if sealing is None else max(sealing, self.segment_staged)
        self._waiting.append((target, session, tag))
        self._answer()

    def sealed(self, segment_seq: int) -> None:
        """Answer the flushes that waited for the segment or one before it, and tell the archiver of a segment that pushes wait for."""
        self._segment_sealed = max(self._segment_sealed, segment_seq)
        if self._engine.settings.is_archived:
            self.ring_archiver()
        if self._waiting:
            self._answer()

    def refuse_all(self, error: QuiverError, retry_after_ns: int) -> None:
        """Refuse what waits: nothing more is sealed here."""
        for _, session, tag in self._waiting:
            session.owed -= 1
            session.refuse(tag, error, retry_after_ns)
        self._waiting.clear()

    def _answer(self) -> None:
        due = [flush for flush in self._waiting if flush[0] <= self._segment_sealed]
        self._waiting = [flush for flush in self._waiting if flush[0] > self._segment_sealed]
        for _, session, tag in due:
            session.owed -= 1
            session.send(Done(tag))


def _nobody() -> None:
    pass
