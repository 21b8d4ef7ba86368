"""What subscribers ask of one engine: to come and go, for credit, to have claims settled, and to be told how they stand.

Owner: the loop thread. What a connection holds is given back the moment it ends, and an answer that speaks of progress is sent when that is
durable.
"""

from __future__ import annotations

import array
import logging
from collections import deque

from quiver_actors.clock import Clock
from quiver_actors.engine import Engine
from quiver_actors.errors import (
    InvalidFormat,
    ProtocolError,
    QuiverError,
    UnknownSubscriber,
    UsageError,
)
from quiver_actors.model import SEGMENT_BUNDLES_MAX, check_id
from quiver_actors.protocol.messages import (
    AckThrough,
    ClaimRef,
    Credit,
    Done,
    Extend,
    Extended,
    FlushProgress,
    GapAck,
    NotResolved,
    Pending,
    PendingInfo,
    Refusal,
    Register,
    Resolve,
    Seek,
    Sought,
    SubscriberInfo,
    SubscriberList,
    Unreadable,
    Unregister,
)
from quiver_actors.worker.attachments import Attachment, Attachments, check_terms
from quiver_actors.worker.handing_out import UNREADABLE_DELAY_NS, HandingOut
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.session import Session

OUTCOMES = ("ack", "reject", "defer", "return")


class Deliveries:
    """See the module."""

    def __init__(
        self, engine: Engine, attachments: Attachments, handing_out: HandingOut, journal: Journal, clock: Clock
    ) -> None:
        self._engine = engine
        self._topic = engine.topic
        self._attachments = attachments
        self._handing_out = handing_out
        self._journal = journal
        self._clock = clock
        self._awaited: deque[tuple[int, Session, Done | Sought]] = deque()
        """(progress ticket, who waits for it, the answer), rising."""
        self._failed_by: QuiverError | None = None
        self.is_leaving = False
        """True: nothing new will ever be pushed."""

    # --- subscribers come and go -----------------------------------------------------------------------------------------

    def register(self, session: Session, message: Register) -> None:
        """
        Raises:
            QuiverError: an id, start or terms that are not allowed, or the engine refuses.
        """
        subscriber, terms = message.subscriber, message.terms
        check_id("subscriber", subscriber)
        check_terms(message.topic, terms)
        is_new = subscriber not in self._engine.subscribers()
        ticket = self._engine.register(subscriber, message.start)
        level = logging.INFO if is_new else logging.DEBUG
        self._journal.event("subscriber.register", level=level, topic=self._topic, subscriber=subscriber, new=is_new)
        self._attachments.attach(session, subscriber, terms)
        self._set_terms(subscriber)
        self._handing_out.wake(subscriber)
        self._await(ticket, session, Done(message.tag))

    def unregister(self, session: Session, message: Unregister) -> None:
        """
        Raises:
            UnknownSubscriber: there is none.
            UsageError: only an orphan was meant, and it is none.
        """
        connections = len(self._attachments.of(message.subscriber))
        if message.only_orphan and connections:
            raise UsageError(
                f"subscriber {message.subscriber!r} of topic {self._topic!r} is no orphan: {connections} connections of core"
                f" {self._engine.core} are attached to it; close them or unregister it"
            )
        ticket, owed = self._unregister(message.subscriber)
        self._await(ticket, session, Done(message.tag, owed))

    def _unregister(self, subscriber: str) -> tuple[int, int]:
        ticket, owed = self._engine.unregister(subscriber)
        self._attachments.forget(subscriber)
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
        if subscriber in self._attachments.terms:
            self._set_terms(subscriber)
        self._handing_out.wake(subscriber)
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
        terms = self._attachments.terms[subscriber]
        self._engine.set_terms(
            subscriber, lease_ns=terms.lease_ns, max_deliveries=terms.max_deliveries, exhausted=terms.exhausted
        )

    def drop_orphans(self) -> bool:
        """Unregister those that nobody was attached to for their time to live, or the topic's; whether there were any."""
        if not self._handing_out.is_open:
            return False
        now_ns = self._clock.monotonic_ns()
        late = [subscriber for at_ns, subscriber in self._orphans() if at_ns <= now_ns]
        for subscriber in late:
            self._journal.event(
                "subscriber.orphan_dropped", level=logging.WARNING, topic=self._topic, subscriber=subscriber
            )
            self._unregister(subscriber)
        return bool(late)

    def next_orphan_ns(self) -> int | None:
        """When the next of them is due; None if nobody's time runs."""
        return min((at_ns for at_ns, _ in self._orphans()), default=None) if self._handing_out.is_open else None

    def _orphans(self) -> list[tuple[int, str]]:
        """Whose time runs, and when it is over."""
        idle = [name for name in self._engine.subscribers() if not self._attachments.of(name)]
        return [
            (self._attachments.detached_since_ns(name)[0] + ttl_ns, name)
            for name in idle
            if (ttl_ns := self._orphan_ttl_ns(name))
        ]

    def _orphan_ttl_ns(self, subscriber: str) -> int:
        """Its own, else the topic's; 0 = for ever."""
        terms = self._attachments.terms.get(subscriber)
        return (terms.orphan_ttl_ns if terms else 0) or self._engine.settings.orphan_ttl_ns

    def detach(self, session: Session) -> bool:
        """The connection has ended: everything that it held can be claimed by others at once. Whether it had to do with the topic."""
        was_attached = self._attachments.leave(session)
        # Also without an attachment: bundles claimed by reference.
        released = self._engine.release(session)
        if released or was_attached:
            self._handing_out.wake()
            return True
        return False

    # --- claims ------------------------------------------------------------------------------------------------------------

    def credit(self, session: Session, message: Credit) -> None:
        """Set how much may be delivered in all.

        Raises:
            UnknownSubscriber: the connection is not attached to it (any more).
        """
        self._attachment(session, message.subscriber).credit_total = message.total
        self._handing_out.wake(message.subscriber)

    def claim_ref(self, session: Session, message: ClaimRef) -> None:
        """
        Raises:
            UnknownSubscriber, AlreadyResolved, NotClaimed: nothing was claimed.
            QuiverError: the segment cannot be opened.
        """
        grant = self._engine.claim_ref(message.subscriber, session, message.segment_seq, message.bundle_index)
        if not self._handing_out.hand_over(session, message.subscriber, grant, message.tag):
            raise InvalidFormat(
                f"segment {message.segment_seq} of topic {self._topic!r} cannot be read now: it is being checked"
            )
        self._handing_out.wake(message.subscriber)

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
        attachment = self._attachments.get(session, message.subscriber)
        if message.outcome in ("defer", "return") or (attachment is not None and attachment.is_window_full):
            self._handing_out.wake(message.subscriber)
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
        self._handing_out.wake(message.subscriber)
        self._await(ticket, session, Done(message.tag))

    def gap_ack(self, session: Session, message: GapAck) -> None:
        self._await(self._engine.ack_gap(message.subscriber, message.notice), session, Done(message.tag))
        self._handing_out.wake(message.subscriber)

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
        """
        Raises:
            UnknownSubscriber: no such subscriber.
            UsageError: the range begins or ends where no bundle can be.
        """
        first, stop = message.from_bundle_index, message.to_bundle_index
        if min(first, stop) < 0:
            raise UsageError(f"a range from bundle {first} of a segment to bundle {stop} of one: expected 0 or more")
        end = (message.to_segment_seq, min(stop, SEGMENT_BUNDLES_MAX)) if message.to_segment_seq >= 0 else None
        start = message.from_segment_seq, first
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
                self.is_leaving,
            )
        )

    def list_all(self, session: Session, tag: int) -> None:
        session.send(SubscriberList(tag, [self._info(subscriber) for subscriber in self._engine.subscribers()]))

    def _info(self, subscriber: str) -> SubscriberInfo:
        counts, figures = self._engine.pending(subscriber), self._engine.figures_of(subscriber)
        return SubscriberInfo(
            subscriber,
            len(self._attachments.of(subscriber)),
            self._attachments.detached_since_unix_ns(subscriber),
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

    def fail(self, error: QuiverError) -> None:
        """The engine has failed: progress that is not durable will not become so here."""
        self._handing_out.is_open = False
        self._failed_by = error
        while self._awaited:
            _, session, answer = self._awaited.popleft()
            session.refuse(answer.tag, error)

    def give_up(self, error: QuiverError) -> None:
        """The topic is deleted: tell every consumer, also those that wait for nothing in particular."""
        self.fail(error)
        for session in self._attachments.sessions:
            session.refuse(0, error)
        self._attachments.clear()

    # --- private -------------------------------------------------------------------------------------------------------

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

    def _attachment(self, session: Session, subscriber: str) -> Attachment:
        attachment = self._attachments.get(session, subscriber)
        if attachment is None:
            raise UnknownSubscriber(
                f"this connection is not attached to subscriber {subscriber!r} of topic {self._topic!r} on core"
                f" {self._engine.core}: it was unregistered, or Register is missing"
            )
        return attachment


def _indexes(packed: bytes) -> array.array[int]:
    """
    Raises:
        ProtocolError: no whole number of indexes.
    """
    if len(packed) % 4:
        raise ProtocolError(f"{len(packed)} bytes of bundle indexes make no sense")
    return array.array("I", packed)
