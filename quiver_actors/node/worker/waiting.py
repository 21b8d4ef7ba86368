"""Pushes and flushes that wait for an engine, served fairly: one of each connection in turn, each connection's own in their order.

Owner: the ingest of one engine. Whoever is next is not passed by others while it does not fit, so a large push is not starved by small
ones, and a connection with a thousand waiting pushes takes no more turns than one with a single push.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quiver_actors.base.protocol.messages import Flush, Push
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.session_arena import HeldSpan


@dataclass(slots=True)
class Waiting:
    """One push or flush that waits for an engine, with the span that a push holds in the arena."""

    session: Session
    request: Push | Flush
    held: HeldSpan | None
    since_ns: int
    until_ns: int
    """Monotonic time when the request is refused."""
    is_counted: bool = False
    """Whether the request was counted as waiting for space under the size cap."""


class WaitingLine:
    """Pushes and flushes that wait for one engine, in the order in which they are served.

    Attributes:
        count: how many wait.
    """

    def __init__(self) -> None:
        self._by_session: dict[Session, deque[Waiting]] = {}
        self._turns: deque[Session] = deque()
        self.count = 0

    def __iter__(self) -> Iterator[Waiting]:
        return (waiting for line in self._by_session.values() for waiting in line)

    def append(self, waiting: Waiting) -> None:
        """Add a request behind its connection's others; a connection that had none waits for its turn behind the other connections."""
        line = self._by_session.get(waiting.session)
        if line is None:
            line = self._by_session[waiting.session] = deque()
            self._turns.append(waiting.session)
        line.append(waiting)
        self.count += 1

    @property
    def next(self) -> Waiting:
        """The waiting request that is served next; there must be one."""
        return self._by_session[self._turns[0]][0]

    def take(self) -> Waiting:
        """Take `next` out; its connection's following one waits for another turn."""
        session = self._turns.popleft()
        line = self._by_session[session]
        waiting = line.popleft()
        self.count -= 1
        if line:
            self._turns.append(session)
        else:
            del self._by_session[session]
        return waiting

    def has(self, session: Session) -> bool:
        """Whether a request of that connection waits: later requests of the connection have to wait too."""
        return session in self._by_session

    def take_where(self, is_wanted: Callable[[Waiting], bool]) -> list[Waiting]:
        """Take out the wanted requests, in the order of each connection; the others keep their places."""
        taken = [waiting for waiting in self if is_wanted(waiting)]
        if taken:
            left = [waiting for waiting in self if not is_wanted(waiting)]
            turns, self._turns, self._by_session, self.count = self._turns, deque(), {}, 0
            order = {session: place for place, session in enumerate(turns)}
            for waiting in sorted(left, key=lambda each: order[each.session]):
                self.append(waiting)
        return taken

    @property
    def oldest_since_ns(self) -> int:
        """Monotonic time since when the oldest request waits; 0 if none waits."""
        return min((line[0].since_ns for line in self._by_session.values()), default=0)

    @property
    def next_until_ns(self) -> int | None:
        """Monotonic time when the next request must be refused; None if none waits."""
        return min((waiting.until_ns for waiting in self), default=None)
