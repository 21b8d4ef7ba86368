"""The attachments of connections to the subscribers of one engine, their terms, and since when a subscriber has none.

Owner: the loop thread. Of those who are served in turn, another one comes first in every round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from quiver_actors.base.clock import Clock
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER
from quiver_actors.base.protocol.messages import GroupTerms, Register, Terms
from quiver_actors.base.rights import User
from quiver_actors.errors import UnknownSubscriber, UsageError
from quiver_actors.node.worker.session import Session
from quiver_actors.store.subscriber.claim_order import OLDEST, ORDERS
from quiver_actors.store.subscriber.grants import BACKFILL_CYCLE
from quiver_actors.store.subscriber.outcomes import EXHAUSTED_TARGETS

_NUMBER_MAX = (1 << 63) - 1
"""Largest number accepted in terms; sums with it still fit into the protocol's numbers."""


@dataclass(slots=True, eq=False)
class Attachment:
    """Attachment of one connection to a subscriber of one engine: its order, window and credit."""

    session: Session
    subscriber: str
    terms: Terms = field(default_factory=Terms)
    credit_total: int = 0
    """Bundles that may be delivered in all."""
    given: int = 0
    """Bundles that were delivered on credit."""
    reads_archive: bool = False
    """Whether the consumer reads archived segments by itself."""
    awaits_cold: bool = False
    """Whether the next bundle in order is of a segment whose file on the cold disk is not open yet."""
    is_window_full: bool = False
    """Whether the connection holds as much as its terms allow, and has credit for more."""
    takes_next: bool = False
    """Whether its next bundle is the oldest one, whatever else it holds, and the connection is of the node's own user."""

    @property
    def credit(self) -> int:
        """How many more bundles the consumer takes now."""
        return max(0, self.credit_total - self.given)


class Attachments:
    """Attachments of connections to the subscribers of one engine, with the terms of each subscriber."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_connection: dict[tuple[Session, str], Attachment] = {}
        self._in_turn: deque[Attachment] = deque()
        self._of_subscriber: dict[str, list[Attachment]] = {}
        """Attachments by subscriber; no list is empty."""
        self.terms: dict[str, Terms] = {}
        """Terms by subscriber, from the newest Register of a user who may set them."""
        self.set_by: dict[str, User] = {}
        """User who set the terms of a subscriber; only users other than the worker's own."""
        self.only: Attachment | None = None
        """The attachment, if there is exactly one."""
        self._detached: dict[str, tuple[int, int]] = {}
        """(monotonic, UNIX) time since when nobody is attached to a subscriber."""
        self._started = (clock.monotonic_ns(), clock.unix_ns())

    def __iter__(self) -> Iterator[Attachment]:
        """Iterate over the attachments in the order in which they are served."""
        return iter(self._in_turn)

    @property
    def subscribers(self) -> Collection[str]:
        """Subscribers with at least one connection."""
        return self._of_subscriber.keys()

    @property
    def sessions(self) -> set[Session]:
        """Sessions with at least one consumer of this topic."""
        return {attachment.session for attachment in self._in_turn}

    def of(self, subscriber: str) -> Sequence[Attachment]:
        """Return the consumers of a subscriber; empty if none is attached."""
        return self._of_subscriber.get(subscriber, ())

    def get(self, session: Session, subscriber: str) -> Attachment | None:
        """Return the consumer of a subscriber on a session, or None if there is none."""
        return self._by_connection.get((session, subscriber))

    def attach(
        self, session: Session, subscriber: str, terms: Terms, *, sets_terms: bool = True, reads_archive: bool = False
    ) -> None:
        """Attach a consumer; one that is attached already gets the new terms.

        Args:
            sets_terms: they hold for all consumers of the subscriber; else only the order and the window of this one do.
        """
        if sets_terms:
            self.terms[subscriber] = terms
            self.set_by.pop(subscriber, None)
            if session.guest is not None:
                self.set_by[subscriber] = session.guest.user
        else:
            self.terms.setdefault(subscriber, Terms())
        self._detached.pop(subscriber, None)
        attachment = self._by_connection.get((session, subscriber))
        if attachment is None:
            attachment = self._by_connection[session, subscriber] = Attachment(session, subscriber)
            self._in_turn.append(attachment)
            self._of_subscriber.setdefault(subscriber, []).append(attachment)
            self._note_only()
        attachment.terms = terms
        has_window = terms.max_in_flight_bundles or terms.max_in_flight_bytes
        attachment.takes_next = session.guest is None and terms.order == OLDEST and not has_window
        attachment.reads_archive = reads_archive

    def tell_terms(self, topic: str, joiner: Session, message: Register, before: Terms | None, now_ns: int) -> None:
        """One consumer's terms hold for all of a subscriber: tell everybody who is attached, also a joiner whose own ones do not hold."""
        subscriber, terms = message.subscriber, self.terms[message.subscriber]
        is_new = before is not None and shared_part(before) != shared_part(terms)
        until_ns = now_ns + terms.lease_ns if terms.lease_ns else 0
        if before is not None and before.lease_ns == terms.lease_ns:
            until_ns = -1
        for attachment in self.of(subscriber):
            is_misled = attachment.session is joiner and shared_part(message.terms) != shared_part(terms)
            if is_new or is_misled:
                attachment.session.send(GroupTerms(topic, subscriber, terms, until_ns))

    def rotate(self) -> None:
        """Let another attachment be the first one served."""
        self._in_turn.rotate(-1)

    def leave(self, session: Session) -> bool:
        """Detach a connection that has ended. Returns whether it was attached to anything."""
        mine = [attachment for attachment in self._in_turn if attachment.session is session]
        for attachment in mine:
            self.detach(attachment)
        return bool(mine)

    def detach(self, attachment: Attachment) -> None:
        """End the attachment of a connection to a subscriber."""
        self._drop(attachment)
        if attachment.subscriber not in self._of_subscriber:
            self._detached[attachment.subscriber] = self._clock.monotonic_ns(), self._clock.unix_ns()

    def forget(self, subscriber: str) -> None:
        """Forget a subscriber that was deleted. Its consumers are told: nothing would come to them any more, without a word."""
        gone = UnknownSubscriber(
            f"subscriber {subscriber!r} was dropped while it was consumed; subscribe again to begin anew"
        )
        for attachment in list(self.of(subscriber)):
            self._drop(attachment)
            attachment.session.refuse(0, gone)
        self._detached.pop(subscriber, None)
        self.terms.pop(subscriber, None)
        self.set_by.pop(subscriber, None)

    def clear(self) -> None:
        """Drop all attachments."""
        self._by_connection.clear()
        self._in_turn.clear()
        self._of_subscriber.clear()
        self._note_only()

    def windows_full(self, subscriber: str) -> int:
        """Connections that could have more but for the window of their terms."""
        return sum(attachment.is_window_full for attachment in self.of(subscriber))

    def detached_since_ns(self, subscriber: str) -> tuple[int, int]:
        """Return the (monotonic, UNIX) time of the last detachment; the worker's start time if nobody was ever attached."""
        return self._detached.get(subscriber, self._started)

    def detached_since_unix_ns(self, subscriber: str) -> int:
        """0 while a connection is attached."""
        return 0 if self.of(subscriber) else self.detached_since_ns(subscriber)[1]

    def orphans(self, subscribers: Iterable[str], ttl_ns: int) -> list[tuple[int, str]]:
        """Return (monotonic time of expiry, subscriber) of those that nobody is attached to and whose time runs.

        Args:
            subscribers: all of the topic.
            ttl_ns: the topic's orphan time, for terms that name none, in ns; 0: for ever.
        """
        # The archiver may be away for as long as its object store is: what it holds is not in the archive yet.
        idle = [name for name in subscribers if name not in self._of_subscriber and name != ARCHIVE_SUBSCRIBER]
        own = {name: self.terms[name].orphan_ttl_ns if name in self.terms else 0 for name in idle}
        return [(self.detached_since_ns(name)[0] + (own[name] or ttl_ns), name) for name in idle if own[name] or ttl_ns]

    def _drop(self, attachment: Attachment) -> None:
        del self._by_connection[attachment.session, attachment.subscriber]
        self._in_turn.remove(attachment)
        others = self._of_subscriber[attachment.subscriber]
        others.remove(attachment)
        if not others:
            del self._of_subscriber[attachment.subscriber]
        self._note_only()

    def _note_only(self) -> None:
        self.only = self._in_turn[0] if len(self._in_turn) == 1 else None


def shared_part(terms: Terms) -> tuple[object, ...]:
    """Return the part of the terms that holds for all consumers of a subscriber."""
    return terms.lease_ns, terms.max_deliveries, terms.exhausted, terms.dead_letter_topic, terms.orphan_ttl_ns


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
        raise UsageError(
            f"dead_letter_topic {topic!r} is the topic itself: the subscriber would receive its own dead letters; name another topic"
        )
