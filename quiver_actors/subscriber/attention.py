"""Which subscribers of one engine are to be looked at, and when: those that nothing happens to cost nothing in a turn.

Owner: one registry. Its subscribers note here what happens to them.

Each subscriber with a lease or a delay has one alarm that is not later than the first of them; one that rings too early is set anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Subject(Protocol):
    """A subscriber's state, as far as this module knows it."""

    def next_due_ns(self) -> int | None: ...


S = TypeVar("S", bound=Subject)


class Attention(Generic[S]):
    """See the module.

    Attributes:
        changed: ids of those whose files may be behind: all that are, and perhaps others.
        completing: ids of those that have completed segments which nobody has asked about, in that order.
    """

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        self.completing: dict[str, None] = {}
        self._alarms: list[tuple[int, int, S]] = []
        self._alarm_ns: dict[S, int] = {}
        self._count = 0

    def call_at(self, subject: S, at_ns: int) -> None:
        """Something of it ends then."""
        known_ns = self._alarm_ns.get(subject)
        if known_ns is None or at_ns < known_ns:
            self._alarm_ns[subject] = at_ns
            self._count += 1
            heapq.heappush(self._alarms, (at_ns, self._count, subject))

    def forget(self, subject: S) -> None:
        """It is not there any more."""
        self._alarm_ns.pop(subject, None)

    def next_due_ns(self) -> int | None:
        """When the first lease or delay of any of them ends."""
        while self._alarms:
            at_ns, _, subject = self._alarms[0]
            due_ns = subject.next_due_ns() if self._alarm_ns.get(subject) == at_ns else None
            if due_ns == at_ns:
                return at_ns
            self._ring()
            if due_ns is not None:
                self.call_at(subject, due_ns)
        return None

    def due(self, now_ns: int) -> Iterator[S]:
        """Those whose alarm has come; each is to be looked at before the next is asked for."""
        while self._alarms and self._alarms[0][0] <= now_ns:
            subject = self._ring()
            if subject is not None:
                yield subject
                due_ns = subject.next_due_ns()
                if due_ns is not None:
                    self.call_at(subject, due_ns)

    def _ring(self) -> S | None:
        """Take the first alarm off; whose it is, None if it was set anew since."""
        at_ns, _, subject = heapq.heappop(self._alarms)
        if self._alarm_ns.get(subject) != at_ns:
            return None
        del self._alarm_ns[subject]
        return subject
