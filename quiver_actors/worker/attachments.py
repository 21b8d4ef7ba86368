"""Which connections are attached to which subscribers of one engine, under which terms, and since when nobody is.

Owner: the loop thread. Of those who are served in turn, another one comes first in every round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from quiver_actors.clock import Clock
from quiver_actors.errors import UsageError
from quiver_actors.protocol.messages import Terms
from quiver_actors.subscriber.claim_order import ORDERS
from quiver_actors.subscriber.grants import BACKFILL_CYCLE
from quiver_actors.subscriber.outcomes import EXHAUSTED_TARGETS
from quiver_actors.worker.session import Session

_NUMBER_MAX = (1 << 63) - 1
"""What is added to it still fits into the protocol's numbers."""


@dataclass(slots=True, eq=False)
class Attachment:
    """One connection's share in a subscriber of one engine."""

    session: Session
    subscriber: str
    terms: Terms = field(default_factory=Terms)
    credit_total: int = 0
    """Bundles that may be delivered in all."""
    given: int = 0
    """Bundles that were delivered on credit."""
    is_window_full: bool = False
    """It holds as much as its terms allow, and has credit for more."""

    @property
    def credit(self) -> int:
        return max(0, self.credit_total - self.given)


class Attachments:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_connection: dict[tuple[Session, str], Attachment] = {}
        self._in_turn: deque[Attachment] = deque()
        self._of_subscriber: dict[str, list[Attachment]] = {}
        """Without empty lists."""
        self.terms: dict[str, Terms] = {}
        """By subscriber: those of its newest Register."""
        self._detached: dict[str, tuple[int, int]] = {}
        """(monotonic, UNIX) time since when nobody is attached to a subscriber."""
        self._started = (clock.monotonic_ns(), clock.unix_ns())

    def __iter__(self) -> Iterator[Attachment]:
        """In the order in which they are served."""
        return iter(self._in_turn)

    @property
    def subscribers(self) -> Collection[str]:
        """Those with a connection."""
        return self._of_subscriber.keys()

    @property
    def sessions(self) -> set[Session]:
        return {attachment.session for attachment in self._in_turn}

    def of(self, subscriber: str) -> Sequence[Attachment]:
        return self._of_subscriber.get(subscriber, ())

    def get(self, session: Session, subscriber: str) -> Attachment | None:
        return self._by_connection.get((session, subscriber))

    def attach(self, session: Session, subscriber: str, terms: Terms) -> None:
        """Again by one that is attached: its terms are new, and the subscriber's are."""
        self.terms[subscriber] = terms
        self._detached.pop(subscriber, None)
        attachment = self._by_connection.get((session, subscriber))
        if attachment is None:
            attachment = self._by_connection[session, subscriber] = Attachment(session, subscriber)
            self._in_turn.append(attachment)
            self._of_subscriber.setdefault(subscriber, []).append(attachment)
        attachment.terms = terms

    def rotate(self) -> None:
        """Somebody else comes first from now on."""
        self._in_turn.rotate(-1)

    def leave(self, session: Session) -> bool:
        """The connection has ended. Whether it was attached to anything."""
        mine = [attachment for attachment in self._in_turn if attachment.session is session]
        for attachment in mine:
            self._drop(attachment)
            if attachment.subscriber not in self._of_subscriber:
                self._detached[attachment.subscriber] = self._clock.monotonic_ns(), self._clock.unix_ns()
        return bool(mine)

    def forget(self, subscriber: str) -> None:
        """The subscriber is no more."""
        for attachment in list(self.of(subscriber)):
            self._drop(attachment)
        self._detached.pop(subscriber, None)
        self.terms.pop(subscriber, None)

    def clear(self) -> None:
        """Nobody is attached any more."""
        self._by_connection.clear()
        self._in_turn.clear()
        self._of_subscriber.clear()

    def windows_full(self, subscriber: str) -> int:
        """Connections that could have more but for the window of their terms."""
        return sum(attachment.is_window_full for attachment in self.of(subscriber))

    def detached_since_ns(self, subscriber: str) -> tuple[int, int]:
        """(monotonic, UNIX) time; of one that nobody was attached to yet, the start's."""
        return self._detached.get(subscriber, self._started)

    def detached_since_unix_ns(self, subscriber: str) -> int:
        """0 while a connection is attached."""
        return 0 if self.of(subscriber) else self.detached_since_ns(subscriber)[1]

    def _drop(self, attachment: Attachment) -> None:
        del self._by_connection[attachment.session, attachment.subscriber]
        self._in_turn.remove(attachment)
        others = self._of_subscriber[attachment.subscriber]
        others.remove(attachment)
        if not others:
            del self._of_subscriber[attachment.subscriber]


def check_terms(topic: str, terms: Terms) -> None:
    """
    Raises:
        UsageError: a value that makes no sense.
    """
    if terms.order not in ORDERS:
        raise UsageError(f"order {terms.order!r} is unknown: expected one of {', '.join(ORDERS)}")
    if terms.exhausted not in EXHAUSTED_TARGETS:
        raise UsageError(f"exhausted {terms.exhausted!r} is unknown: expected one of {', '.join(EXHAUSTED_TARGETS)}")
    if not 0 <= terms.backfill_ratio <= BACKFILL_CYCLE:
        raise UsageError(f"backfill_ratio {terms.backfill_ratio}: expected 0..{BACKFILL_CYCLE} of {BACKFILL_CYCLE}")
    numbers = (
        terms.lease_ns,
        terms.max_in_flight_bundles,
        terms.max_in_flight_bytes,
        terms.max_deliveries,
        terms.orphan_ttl_ns,
    )
    if not 0 <= min(numbers) <= max(numbers) <= _NUMBER_MAX:
        raise UsageError(f"terms with a number that is not 0..{_NUMBER_MAX}: {terms}")
    if terms.max_deliveries and terms.dead_letter_topic == topic:
        raise UsageError(f"dead_letter_topic {topic!r} is the topic itself: its subscriber would get the letters, too")
