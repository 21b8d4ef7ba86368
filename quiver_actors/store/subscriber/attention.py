"""The subscribers of one engine that need attention, and when: a subscriber without an event costs nothing in a turn.

Owner: one registry. Its subscribers note here what happens to them.

Each subscriber with a lease or a delay has one alarm that is not later than the first of them; one that rings too early is set anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from quiver_actors.store.subscriber.grants import Live


class WithdrawnClaims(NamedTuple):
    """Bundles `first..stop` that an owner held under a token and holds no more."""

    subscriber: str
    owner: object
    segment_seq: int
    token: int
    first: int
    stop: int
    """The index behind the last of the bundles."""


class Subject(Protocol):
    """A subscriber's state, as far as this module knows it."""

    def next_due_ns(self) -> int | None:
        """Return the monotonic time at which the subject needs attention next; None if it needs none."""


S = TypeVar("S", bound=Subject)


class Attention(Generic[S]):
    """Keeps which subscribers of one engine have changed, completed segments, lost claims, or set an alarm.

    Attributes:
        changed: ids of subscribers whose files may be behind: all that are, and perhaps others.
        completing: ids of subscribers that have completed segments which nobody has asked about, in that order.
        withdrawn: claims that ended without their owners having ended them, and that nobody has asked about, in that order.
    """

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        self.completing: dict[str, None] = {}
        self.withdrawn: list[WithdrawnClaims] = []
        self._alarms: list[tuple[int, int, S]] = []
        self._alarm_ns: dict[S, int] = {}
        self._count = 0

    def note_withdrawn(self, subscriber: str, live: Live, first: int, stop: int) -> None:
        """Note that nothing of a grant is held in that range of bundles any more, so that its owner is told."""
        self.withdrawn.append(WithdrawnClaims(subscriber, live.owner_key, live.segment_seq, live.token, first, stop))

    def take_withdrawn(self) -> list[WithdrawnClaims]:
        """The claims that ended since the last call without their owners having ended them."""
        withdrawn, self.withdrawn = self.withdrawn, []
        return withdrawn

    def call_at(self, subject: S, at_ns: int) -> None:
        """Set the alarm of a subscriber to that time, when one of its leases or delays ends; an earlier alarm stays."""
        known_ns = self._alarm_ns.get(subject)
        if known_ns is None or at_ns < known_ns:
            self._alarm_ns[subject] = at_ns
            self._count += 1
            heapq.heappush(self._alarms, (at_ns, self._count, subject))

    def forget(self, subject: S) -> None:
        """Forget a subscriber that is gone."""
        self._alarm_ns.pop(subject, None)

    def next_due_ns(self) -> int | None:
        """When the first lease or delay of any subscriber ends."""
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
        """Subscribers whose alarm has come; each is to be looked at before the next is asked for."""
        while self._alarms and self._alarms[0][0] <= now_ns:
            subject = self._ring()
            if subject is not None:
                yield subject
                due_ns = subject.next_due_ns()
                if due_ns is not None:
                    self.call_at(subject, due_ns)

    def _ring(self) -> S | None:
        """Take the first alarm off, and return whose it is; None if that one has set another alarm since."""
        at_ns, _, subject = heapq.heappop(self._alarms)
        if self._alarm_ns.get(subject) != at_ns:
            return None
        del self._alarm_ns[subject]
        return subject
