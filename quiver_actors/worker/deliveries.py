"""The subscribers' side of one engine: attachments, credit, claims out, acks in.

Owner: the loop thread. Invariants:
- a connection has no more bundles claimed through credit than it asked for, and no more than its window allows;
- connections of one subscriber share evenly what there is; a gap notice goes to one of them, where its bundles would have come;
- the descriptor of a segment arrives before the first bundle of that segment, once a connection until the segment is retired;
- a connection that does not read its answers gets no more deliveries, and holds up nobody else;
- what a connection holds is given back the moment it ends.
"""

from __future__ import annotations

import array
import logging
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from quiver_actors.clock import Clock, SystemClock
from quiver_actors.engine import Engine
from quiver_actors.errors import (
    InvalidFormat,
    ProtocolError,
    QuiverError,
    UnknownSubscriber,
    UsageError,
)
from quiver_actors.events import Retired
from quiver_actors.metrics.latency import Histogram
from quiver_actors.model import check_id
from quiver_actors.protocol.messages import (
    AckThrough,
    ClaimRef,
    Credit,
    Deliver,
    Done,
    Extend,
    Extended,
    FlushProgress,
    Gap,
    GapAck,
    NotResolved,
    Pending,
    PendingInfo,
    Refusal,
    Register,
    Resolve,
    Seek,
    SegmentOpened,
    SegmentRetired,
    Sought,
    SubscriberInfo,
    SubscriberList,
    Terms,
    Unreadable,
    Unregister,
)
from quiver_actors.subscriber.claim_order import OLDEST, ORDERS
from quiver_actors.subscriber.grants import BACKFILL_CYCLE, Grant
from quiver_actors.subscriber.outcomes import EXHAUSTED_TARGETS
from quiver_actors.units import SECOND_NS
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.session import Attachment, Session

OUTCOMES = ("ack", "reject", "defer", "return")
UNREADABLE_DELAY_NS = SECOND_NS
"""When bundles of a segment that could not be opened or read are tried again."""
_LATENCIES_MAX = 64
"""Segments whose first announcement is waited for."""


class Deliveries:
    """See the module."""

    def __init__(self, engine: Engine, journal: Journal, latency: Histogram, clock: Clock | None = None) -> None:
        """
        Args:
            latency: gets the time from each segment's seal to its first announcement.
        """
        self._latency = latency
        self._sealed_ns: dict[int, int] = {}
        """When the newest segments were sealed that nobody has been told of yet."""
        self._engine = engine
        self._topic = engine.topic
        self._journal = journal
        self._clock = clock or SystemClock()
        self._attachments: dict[tuple[Session, str], Attachment] = {}
        self._order: deque[Attachment] = deque()
        """All attachments; who is served first changes with every round."""
        self._of_subscriber: dict[str, list[Attachment]] = {}
        """The same by subscriber, without empty lists."""
        self.terms: dict[str, Terms] = {}
        """By subscriber: those of its newest Register."""
        self._detached: dict[str, tuple[int, int]] = {}
        """(monotonic, UNIX) time since when nobody is attached to a subscriber."""
        self._started = (self._clock.monotonic_ns(), self._clock.unix_ns())
        self._due: set[str] = set()
        """Subscribers that something may be claimable for, or to be told."""
        self._all_are_due = False
        self._awaited: deque[tuple[int, Session, Done | Sought]] = deque()
        """(progress ticket, who waits for it, the answer), rising."""
        self._failed_by: QuiverError | None = None
        self.is_open = True
        """False: nothing new is delivered."""

    @property
    def is_due(self) -> bool:
        """Something may be claimable for somebody with credit."""
        return self._all_are_due or bool(self._due)

    def wake(self, subscriber: str | None = None) -> None:
        """Something has happened by which that subscriber, None: any of them, may get something."""
        if subscriber is None:
            self._all_are_due = True
        else:
            self._due.add(subscriber)

    @property
    def attached(self) -> Collection[str]:
        """Subscribers with a connection."""
        return self._of_subscriber

    def connections(self, subscriber: str) -> int:
        return len(self._of_subscriber.get(subscriber, ()))

    def windows_full(self, subscriber: str) -> int:
        """Connections that could have more but for the window of their terms."""
        return sum(attachment.is_window_full for attachment in self._of_subscriber.get(subscriber, ()))

    def detached_since_unix_ns(self, subscriber: str) -> int:
        """0 while a connection is attached."""
        return 0 if self.connections(subscriber) else self._detached.get(subscriber, self._started)[1]

    # --- subscribers come and go -----------------------------------------------------------------------------------------

    def register(self, session: Session, message: Register) -> None:
        """
        Raises:
            QuiverError: an id, start or terms that are not allowed, or the engine refuses.
        """
        subscriber, terms = message.subscriber, message.terms
        check_id("subscriber", subscriber)
        _check_terms(terms)
        is_new = subscriber not in self._engine.subscribers()
        ticket = self._engine.register(subscriber, message.start)
        level = logging.INFO if is_new else logging.DEBUG
        self._journal.event("subscriber.register", level=level, topic=self._topic, subscriber=subscriber, new=is_new)
        self.terms[subscriber] = terms
        self._set_terms(subscriber)
        self._detached.pop(subscriber, None)
        key = (session, subscriber)
        if key not in self._attachments:
            attachment = self._attachments[key] = Attachment(session, subscriber)
            self._order.append(attachment)
            self._of_subscriber.setdefault(subscriber, []).append(attachment)
        self._attachments[key].terms = terms
        self.wake(subscriber)
        self._await(ticket, session, Done(message.tag))

    def unregister(self, session: Session, message: Unregister) -> None:
        """
        Raises:
            UnknownSubscriber: there is none.
            UsageError: only an orphan was meant, and it is none.
        """
        connections = self.connections(message.subscriber)
        if message.only_orphan and connections:
            raise UsageError(
                f"subscriber {message.subscriber!r} of topic {self._topic!r} is no orphan: {connections} connections of core"
                f" {self._engine.core} are attached to it; close them or unregister it"
            )
        ticket, owed = self._unregister(message.subscriber)
        self._await(ticket, session, Done(message.tag, owed))

    def _unregister(self, subscriber: str) -> tuple[int, int]:
        ticket, owed = self._engine.unregister(subscriber)
        for attachment in list(self._of_subscriber.get(subscriber, ())):
            self._drop(attachment)
        self._detached.pop(subscriber, None)
        self.terms.pop(subscriber, None)
        self._journal.event("subscriber.unregister", topic=self._topic, subscriber=subscriber, dropped=owed)
        return ticket, owed

    def seek(self, session: Session, message: Seek) -> None:
        """
        Raises:
            UnknownSubscriber, UsageError, QuiverError: nothing was changed.
        """
        subscriber = message.subscriber
        ticket, skipped, again = self._engine.seek(subscriber, message.start, is_dry=message.is_dry)
        answer = Sought(message.tag, skipped, again)
        if message.is_dry:
            session.send(answer)
            return
        if subscriber in self.terms:
            self._set_terms(subscriber)
        self.wake(subscriber)
        self._journal.event(
            "subscriber.seek",
            topic=self._topic,
            subscriber=subscriber,
            start=message.start,
            skipped=skipped,
            again=again,
        )
        self._await(ticket, session, answer)

    def _set_terms(self, subscriber: str) -> None:
        terms = self.terms[subscriber]
        self._engine.set_terms(
            subscriber, lease_ns=terms.lease_ns, max_deliveries=terms.max_deliveries, exhausted=terms.exhausted
        )

    def drop_orphans(self) -> bool:
        """Unregister those that nobody was attached to for their time to live, or the topic's; whether there were any."""
        if not self.is_open:
            return False
        now_ns = self._clock.monotonic_ns()
        idle = [name for name in self._engine.subscribers() if name not in self._of_subscriber]
        late = [
            name
            for name in idle
            if (ttl_ns := self._orphan_ttl_ns(name)) and self._detached.get(name, self._started)[0] <= now_ns - ttl_ns
        ]
        for subscriber in late:
            self._journal.event(
                "subscriber.orphan_dropped", level=logging.WARNING, topic=self._topic, subscriber=subscriber
            )
            self._unregister(subscriber)
        return bool(late)

    def _orphan_ttl_ns(self, subscriber: str) -> int:
        """Its own, else the topic's; 0 = for ever."""
        terms = self.terms.get(subscriber)
        return (terms.orphan_ttl_ns if terms else 0) or self._engine.settings.orphan_ttl_ns

    def detach(self, session: Session) -> bool:
        """The connection has ended: everything that it held can be claimed by others at once. Whether it had to do with the topic."""
        mine = [attachment for attachment in self._order if attachment.session is session]
        for attachment in mine:
            self._drop(attachment)
            if not self.connections(attachment.subscriber):
                self._detached[attachment.subscriber] = self._clock.monotonic_ns(), self._clock.unix_ns()
        # Also without an attachment: bundles claimed by reference.
        released = self._engine.release(session)
        if released or mine:
            self.wake()
            return True
        return False

    # --- claims ------------------------------------------------------------------------------------------------------------

    def credit(self, session: Session, message: Credit) -> None:
        """Set how much may be delivered in all.

        Raises:
            UnknownSubscriber: the connection is not attached to it (any more).
        """
        self._attachment(session, message.subscriber).credit_total = message.total
        self.wake(message.subscriber)

    def claim_ref(self, session: Session, message: ClaimRef) -> None:
        """
        Raises:
            UnknownSubscriber, AlreadyResolved, NotClaimed: nothing was claimed.
            QuiverError: the segment cannot be opened.
        """
        grant = self._engine.claim_ref(message.subscriber, session, message.segment_seq, message.bundle_index)
        if not self._hand_over(session, message.subscriber, grant, message.tag):
            raise InvalidFormat(
                f"segment {message.segment_seq} of topic {self._topic!r} cannot be read now: it is being checked"
            )
        self.wake(message.subscriber)

    def resolve(self, session: Session, message: Resolve) -> None:
        """
        Raises:
            UnknownSubscriber: no such subscriber.
            ProtocolError: the message makes no sense.
        """
        if message.outcome not in OUTCOMES or message.delay_ns < 0:
            raise ProtocolError(f"resolve {message.tag}: outcome {message.outcome!r} or its bundles make no sense")
        indexes = _indexes(message.bundle_indexes)
        refused = self._engine.resolve(
            message.subscriber,
            session,
            message.segment_seq,
            message.token,
            message.outcome,
            indexes,
            message.delay_ns,
        )
        if message.outcome in ("defer", "return") or self._has_window(session, message.subscriber):
            self.wake(message.subscriber)
        self._refuse(session, message, refused)
        if message.durable:
            self._await(self._engine.flush_progress(), session, Done(message.tag))

    def extend(self, session: Session, message: Extend) -> None:
        if len(message.tokens) % 8:
            raise ProtocolError(f"extend {message.tag}: {len(message.tokens)} bytes are no tokens")
        until_ns, ended = self._engine.extend(message.subscriber, session, array.array("Q", message.tokens))
        session.send(Extended(message.tag, until_ns, array.array("Q", ended).tobytes()))

    def ack_through(self, session: Session, message: AckThrough) -> None:
        ticket = self._engine.ack_through(message.subscriber, message.segment_seq, message.bundle_index)
        self.wake(message.subscriber)
        self._await(ticket, session, Done(message.tag))

    def gap_ack(self, session: Session, message: GapAck) -> None:
        self._await(self._engine.ack_gap(message.subscriber, message.notice), session, Done(message.tag))
        self.wake(message.subscriber)

    def unreadable(self, session: Session, message: Unreadable) -> None:
        """A consumer cannot read what it was given: give it back, and have the file looked at."""
        indexes = _indexes(message.bundle_indexes)
        refused = self._engine.resolve(
            message.subscriber, session, message.segment_seq, message.token, "defer", indexes, UNREADABLE_DELAY_NS
        )
        self._journal.error("segment.unreadable", message.reason, topic=self._topic, segment=message.segment_seq)
        self._engine.check_segment(message.segment_seq, message.reason)
        self._refuse(session, message, refused)

    def flush_progress(self, session: Session, message: FlushProgress) -> None:
        self._await(self._engine.flush_progress(), session, Done(message.tag))

    # --- questions -----------------------------------------------------------------------------------------------------------

    def pending(self, session: Session, message: Pending) -> None:
        end = (message.to_segment_seq, message.to_bundle_index) if message.to_segment_seq >= 0 else None
        start = message.from_segment_seq, message.from_bundle_index
        counts = self._engine.pending(message.subscriber, start, end)
        session.send(
            PendingInfo(
                message.tag,
                counts.pending,
                counts.claimed,
                counts.deferred,
                counts.blocked,
                counts.unsealed,
                counts.gaps,
                *(counts.oldest or (-1, 0)),
                counts.in_range,
                counts.drained,
            )
        )

    def list_all(self, session: Session, tag: int) -> None:
        session.send(SubscriberList(tag, [self._info(subscriber) for subscriber in self._engine.subscribers()]))

    def _info(self, subscriber: str) -> SubscriberInfo:
        counts, figures = self._engine.pending(subscriber), self._engine.figures_of(subscriber)
        return SubscriberInfo(
            subscriber,
            self.connections(subscriber),
            self.detached_since_unix_ns(subscriber),
            counts.pending,
            counts.claimed,
            counts.deferred,
            counts.blocked,
            counts.unsealed,
            counts.gaps,
            figures.delivered,
            figures.redelivered,
            figures.acked,
            figures.rejected,
            figures.dead_lettered,
            *(counts.oldest or (-1, 0)),
            figures.oldest_unix_ns,
        )

    # --- turns ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Answer whoever waited for progress that is durable now."""
        awaited = self._awaited
        while awaited and awaited[0][0] <= self._engine.progress_durable:
            _, session, answer = awaited.popleft()
            session.send(answer)

    def deliver(self) -> None:
        """Hand out what is claimable to those who have credit and read their answers, evenly, round by round."""
        if not self.is_due:
            return
        due = self._of_subscriber.keys() if self._all_are_due else self._due
        self._due, self._all_are_due = set(), False
        if not self.is_open:
            return
        while self._round(due):
            self._order.rotate(-1)

    def _round(self, due: Collection[str]) -> bool:
        """Give everybody of these subscribers who can take something a fair share; whether anything was given."""
        ready: dict[str, list[Attachment]] = {}
        for attachment in self._order:
            if attachment.subscriber not in due:
                continue
            if attachment.session.connection.is_congested:
                self.wake(attachment.subscriber)
            else:
                ready.setdefault(attachment.subscriber, []).append(attachment)
        has_given = False
        for subscriber, attachments in ready.items():
            takers = [attachment for attachment in attachments if self._room(attachment)]
            share = -(-self._engine.claimable_count(subscriber) // max(1, len(takers)))
            for attachment in attachments:
                has_given |= self._tell_gaps(attachment)
                if share and attachment in takers:
                    has_given |= self._deliver_to(attachment, share)
        return has_given

    def retired(self, event: Retired) -> None:
        """The subscriber has finished a segment: its connections can unmap it."""
        for session in self._sessions_of(event.subscriber):
            if (self._topic, event.segment_seq) in session.announced:
                session.announced.discard((self._topic, event.segment_seq))
                session.send(SegmentRetired(self._topic, event.subscriber, event.segment_seq))

    def sealed(self, segment_seq: int) -> None:
        """A segment can be read."""
        self.wake()
        self._sealed_ns[segment_seq] = self._clock.monotonic_ns()
        if len(self._sealed_ns) > _LATENCIES_MAX:
            # Nobody reads this topic: how long its oldest segments wait says nothing about delivery.
            del self._sealed_ns[next(iter(self._sealed_ns))]

    def replaced(self, segment_seq: int) -> None:
        """A segment has another file: whoever has mapped the old one gets the new one, and lets go of the old one's blocks."""
        key = (self._topic, segment_seq)
        for session in {attachment.session for attachment in self._order}:
            if key in session.announced:
                session.announced.discard(key)
                self._announce(session, segment_seq)

    def fail(self, error: QuiverError) -> None:
        """The engine has failed: progress that is not durable will not become so here."""
        self.is_open = False
        self._failed_by = error
        while self._awaited:
            _, session, answer = self._awaited.popleft()
            session.refuse(answer.tag, error)

    def give_up(self, error: QuiverError) -> None:
        """The topic is deleted: tell every consumer, also those that wait for nothing in particular."""
        self.fail(error)
        for session in {attachment.session for attachment in self._order}:
            session.refuse(0, error)
        self._attachments.clear()
        self._order.clear()
        self._of_subscriber.clear()

    # --- private -------------------------------------------------------------------------------------------------------

    def _room(self, attachment: Attachment) -> int:
        """How many bundles credit and window let it have now. Notes whether it is the window that holds it up."""
        terms, credit = attachment.terms, attachment.credit
        if not terms.max_in_flight_bundles and not terms.max_in_flight_bytes:
            return credit
        bundles, size_bytes = self._engine.held(attachment.subscriber, attachment.session)
        room = terms.max_in_flight_bundles - bundles if terms.max_in_flight_bundles else credit
        if terms.max_in_flight_bytes and size_bytes >= terms.max_in_flight_bytes:
            room = 0
        attachment.is_window_full = room <= 0 < credit
        return max(0, min(room, credit))

    def _room_bytes(self, attachment: Attachment) -> int | None:
        limit = attachment.terms.max_in_flight_bytes
        if not limit:
            return None
        return limit - self._engine.held(attachment.subscriber, attachment.session)[1]

    def _tell_gaps(self, attachment: Attachment) -> bool:
        subscriber, session = attachment.subscriber, attachment.session
        in_order, has_told = attachment.terms.order == OLDEST, False
        while (notice := self._engine.take_gap(subscriber, session, in_order=in_order)) is not None:
            has_told = True
            first, count = notice.bundle_index_first, notice.bundle_count
            last = first + max(0, count - 1)
            position = (notice.segment_seq, first, last)
            rows, reason = notice.row_count, notice.reason
            session.send(Gap(self._topic, subscriber, notice.notice, *position, count, rows, reason))
        return has_told

    def _deliver_to(self, attachment: Attachment, share: int) -> bool:
        terms, subscriber = attachment.terms, attachment.subscriber
        room = min(share, self._room(attachment))
        if not room:
            return False
        size_limit = self._room_bytes(attachment)
        if size_limit is not None and not self._engine.held(subscriber, attachment.session)[0]:
            size_limit = None if room == 1 else size_limit
        granted = self._claim(attachment, room, size_limit)
        if not granted and size_limit is not None and not self._engine.held(subscriber, attachment.session)[0]:
            granted = self._claim(attachment, 1, None)  # one bundle is always allowed, however large
        has_given = False
        for grant in granted:
            if self._hand_over(attachment.session, subscriber, grant):
                attachment.given += len(grant.indexes)
                has_given = True
        if not granted and terms.max_in_flight_bytes and self._engine.claimable_count(subscriber):
            attachment.is_window_full = True
        return has_given

    def _claim(self, attachment: Attachment, bundles: int, size_limit_bytes: int | None) -> Sequence[Grant]:
        terms = attachment.terms
        return self._engine.claim(
            attachment.subscriber,
            attachment.session,
            bundles,
            order=terms.order,
            backfill_ratio=terms.backfill_ratio,
            size_limit_bytes=size_limit_bytes,
        )

    def _hand_over(self, session: Session, subscriber: str, grant: Grant, tag: int = 0) -> bool:
        """Send claimed bundles; if their file cannot be opened they go back and it is checked."""
        segment_seq = grant.segment_seq
        try:
            self._announce(session, segment_seq)
        except QuiverError as error:
            self._engine.resolve(
                subscriber, session, segment_seq, grant.token, "defer", grant.indexes, UNREADABLE_DELAY_NS
            )
            self._journal.error("segment.unreadable", str(error), topic=self._topic, segment=segment_seq)
            self._engine.check_segment(segment_seq, str(error))
            return False
        indexes = np.array(grant.indexes, dtype=np.uint32).tobytes()
        lease = grant.lease_until_ns
        session.send(Deliver(self._topic, subscriber, segment_seq, indexes, grant.token, grant.counts, lease, tag))
        return True

    def _announce(self, session: Session, segment_seq: int) -> None:
        if (self._topic, segment_seq) in session.announced:
            return
        # Opened anew for each connection: a duplicate would share its file position, and keep a deleted file's blocks in use.
        descriptor, size_bytes = self._engine.open_segment(segment_seq)
        session.send_with_descriptor(SegmentOpened(0, self._topic, segment_seq, size_bytes), descriptor)
        session.announced.add((self._topic, segment_seq))
        sealed_ns = self._sealed_ns.pop(segment_seq, None)
        if sealed_ns is not None:
            self._latency.observe(self._clock.monotonic_ns() - sealed_ns)

    def _refuse(self, session: Session, message: Resolve | Unreadable, refused: list[tuple[str, list[int]]]) -> None:
        if refused:
            refusals = [Refusal(code, array.array("I", indexes).tobytes()) for code, indexes in refused]
            session.send(
                NotResolved(message.tag, self._topic, message.subscriber, message.segment_seq, message.token, refusals)
            )

    def _await(self, ticket: int, session: Session, answer: Done | Sought) -> None:
        if self._failed_by is not None:
            session.refuse(answer.tag, self._failed_by)
        else:
            self._awaited.append((ticket, session, answer))

    def _has_window(self, session: Session, subscriber: str) -> bool:
        attachment = self._attachments.get((session, subscriber))
        return attachment is not None and attachment.is_window_full

    def _attachment(self, session: Session, subscriber: str) -> Attachment:
        attachment = self._attachments.get((session, subscriber))
        if attachment is None:
            raise UnknownSubscriber(
                f"this connection is not attached to subscriber {subscriber!r} of topic {self._topic!r} on core"
                f" {self._engine.core}: it was unregistered, or Register is missing"
            )
        return attachment

    def _drop(self, attachment: Attachment) -> None:
        del self._attachments[attachment.session, attachment.subscriber]
        self._order.remove(attachment)
        others = self._of_subscriber[attachment.subscriber]
        others.remove(attachment)
        if not others:
            del self._of_subscriber[attachment.subscriber]

    def _sessions_of(self, subscriber: str) -> list[Session]:
        return [attachment.session for attachment in self._of_subscriber.get(subscriber, ())]


def _indexes(packed: bytes) -> array.array[int]:
    """
    Raises:
        ProtocolError: no whole number of indexes.
    """
    if len(packed) % 4:
        raise ProtocolError(f"{len(packed)} bytes of bundle indexes make no sense")
    return array.array("I", packed)


def _check_terms(terms: Terms) -> None:
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
    if min(numbers) < 0:
        raise UsageError(f"terms with a negative number: {terms}")
