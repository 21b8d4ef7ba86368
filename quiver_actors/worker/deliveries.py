"""The subscribers' side of one engine: attachments, credit, claims out, acks in.

Owner: the loop thread. Invariants:
- a connection has no more bundles claimed through credit than it asked for;
- the descriptor of a segment arrives before the first bundle of that segment, once a connection until the segment is retired;
- a connection that does not read its answers gets no more deliveries, and holds up nobody else;
- what a connection holds is given back the moment it ends.
"""

from __future__ import annotations

import array
from collections import deque

from quiver_actors.engine import Engine
from quiver_actors.errors import NotClaimed, ProtocolError, QuiverError, UnknownSubscriber, UsageError
from quiver_actors.events import GapFound, Retired
from quiver_actors.model import check_id
from quiver_actors.protocol.messages import (
    Credit,
    Deliver,
    Done,
    FlushProgress,
    Gap,
    Register,
    Resolve,
    SegmentOpened,
    SegmentRetired,
    Unregister,
)
from quiver_actors.units import SECOND_NS
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.session import Attachment, Session

STARTS = ("latest", "earliest")
OUTCOMES = ("ack", "reject", "defer")
UNREADABLE_DELAY_NS = SECOND_NS
"""When bundles of a segment that could not be opened are tried again."""


class Deliveries:
    """See the module."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._topic = engine.topic
        self._journal = journal
        self._attachments: dict[tuple[Session, str], Attachment] = {}
        self._order: deque[Attachment] = deque()
        """All attachments; who is served first changes with every round."""
        self.is_due = False
        """Something may be claimable for somebody with credit."""
        self._awaited: deque[tuple[int, Session, int]] = deque()
        """(progress ticket, who waits for it, tag), rising."""
        self._failed_by: QuiverError | None = None
        self.is_open = True
        """False: nothing new is delivered."""

    def connections(self, subscriber: str) -> int:
        return sum(attachment.subscriber == subscriber for attachment in self._order)

    # --- requests ------------------------------------------------------------------------------------------------------

    def register(self, session: Session, message: Register) -> None:
        """
        Raises:
            QuiverError: an id or start that is not allowed, or the engine refuses.
        """
        check_id("subscriber", message.subscriber)
        if message.start not in STARTS:
            raise UsageError(f"start {message.start!r} is unknown: expected one of {', '.join(STARTS)}")
        ticket = self._engine.register(message.subscriber, message.start)
        key = (session, message.subscriber)
        if key not in self._attachments:
            self._attachments[key] = attachment = Attachment(session, message.subscriber)
            self._order.append(attachment)
        self._await(ticket, session, message.tag)

    def unregister(self, session: Session, message: Unregister) -> None:
        """
        Raises:
            QuiverError: no such subscriber.
        """
        ticket = self._engine.unregister(message.subscriber)
        for attachment in [a for a in self._order if a.subscriber == message.subscriber]:
            self._drop(attachment)
        self._await(ticket, session, message.tag)

    def credit(self, session: Session, message: Credit) -> None:
        """Add to the credit; a negative number takes it back, as far as it is unused.

        Raises:
            UnknownSubscriber: the connection is not attached to it (any more).
        """
        attachment = self._attachments.get((session, message.subscriber))
        if attachment is None:
            raise self._not_attached(message.subscriber)
        attachment.credit = max(0, attachment.credit + message.bundles)
        self.is_due = True

    def resolve(self, session: Session, message: Resolve) -> None:
        """
        Raises:
            NotClaimed: some of the bundles are not held by this connection; the others are resolved.
            QuiverError: no such subscriber.
            ProtocolError: the message makes no sense.
        """
        if message.outcome not in OUTCOMES or len(message.bundle_indexes) % 4 or message.delay_ns < 0:
            raise ProtocolError(f"resolve {message.tag}: outcome {message.outcome!r} or its bundles make no sense")
        indexes = array.array("I", message.bundle_indexes)
        missing = self._engine.resolve(
            message.subscriber, session, message.segment_seq, message.outcome, indexes, message.delay_ns
        )
        if message.outcome == "defer":
            self.is_due = True
        if missing:
            raise NotClaimed(
                f"{len(missing)} of {len(indexes)} bundles of segment {message.segment_seq} (the first is {missing[0]}) are not"
                f" claimed by this connection for subscriber {message.subscriber!r}: they were given back or resolved before"
            )

    def flush_progress(self, session: Session, message: FlushProgress) -> None:
        self._await(self._engine.flush_progress(), session, message.tag)

    def detach(self, session: Session) -> None:
        """The connection has ended: everything that it held can be claimed by others at once."""
        mine = [attachment for attachment in self._order if attachment.session is session]
        for attachment in mine:
            self._drop(attachment)
        if mine:
            self._engine.release(session)
            self.is_due = True

    # --- turns ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Answer whoever waited for progress that is durable now."""
        awaited = self._awaited
        while awaited and awaited[0][0] <= self._engine.progress_durable:
            _, session, tag = awaited.popleft()
            session.send(Done(tag))

    def deliver(self) -> None:
        """Hand out what is claimable to those who have credit and read their answers."""
        if not self.is_due:
            return
        self.is_due = False
        if not self.is_open:
            return
        for attachment in self._order:
            if not attachment.credit:
                continue
            if attachment.session.connection.is_congested:
                self.is_due = True
            else:
                self._deliver_to(attachment)
        self._order.rotate(-1)

    def retired(self, event: Retired) -> None:
        """The subscriber has finished a segment: its connections can unmap it."""
        for session in self._sessions_of(event.subscriber):
            if (self._topic, event.segment_seq) in session.announced:
                session.announced.discard((self._topic, event.segment_seq))
                session.send(SegmentRetired(self._topic, event.subscriber, event.segment_seq))

    def replaced(self, segment_seq: int) -> None:
        """A segment has another file: whoever has mapped the old one gets the new one, and lets go of the old one's blocks."""
        key = (self._topic, segment_seq)
        for session in {attachment.session for attachment in self._order}:
            if key in session.announced:
                session.announced.discard(key)
                self._announce(session, segment_seq)

    def gap(self, event: GapFound) -> None:
        for session in self._sessions_of(event.subscriber):
            session.send(
                Gap(
                    self._topic,
                    event.subscriber,
                    event.segment_seq,
                    event.bundle_index,
                    event.bundle_count,
                    event.reason,
                )
            )

    def fail(self, error: QuiverError) -> None:
        """The engine has failed: progress that is not durable will not become so here."""
        self.is_open = False
        self._failed_by = error
        while self._awaited:
            _, session, tag = self._awaited.popleft()
            session.refuse(tag, error)

    # --- private -------------------------------------------------------------------------------------------------------

    def _deliver_to(self, attachment: Attachment) -> None:
        session, subscriber = attachment.session, attachment.subscriber
        for segment_seq, indexes in self._engine.claim(subscriber, session, attachment.credit):
            try:
                self._announce(session, segment_seq)
            except QuiverError as error:
                self._engine.resolve(subscriber, session, segment_seq, "defer", indexes, UNREADABLE_DELAY_NS)
                self._journal.error("segment.unreadable", str(error), topic=self._topic, segment=segment_seq)
                continue
            attachment.credit -= len(indexes)
            session.send(Deliver(self._topic, subscriber, segment_seq, array.array("I", indexes).tobytes()))

    def _announce(self, session: Session, segment_seq: int) -> None:
        if (self._topic, segment_seq) in session.announced:
            return
        # Opened anew for each connection: a duplicate would share its file position, and keep a deleted file's blocks in use.
        descriptor, size_bytes = self._engine.open_segment(segment_seq)
        session.send_with_descriptor(SegmentOpened(0, self._topic, segment_seq, size_bytes), descriptor)
        session.announced.add((self._topic, segment_seq))

    def _await(self, ticket: int, session: Session, tag: int) -> None:
        if self._failed_by is not None:
            session.refuse(tag, self._failed_by)
        else:
            self._awaited.append((ticket, session, tag))

    def _drop(self, attachment: Attachment) -> None:
        del self._attachments[attachment.session, attachment.subscriber]
        self._order.remove(attachment)

    def _sessions_of(self, subscriber: str) -> list[Session]:
        return [attachment.session for attachment in self._order if attachment.subscriber == subscriber]

    def _not_attached(self, subscriber: str) -> UnknownSubscriber:
        return UnknownSubscriber(
            f"this connection is not attached to subscriber {subscriber!r} of topic {self._topic!r} on core"
            f" {self._engine.core}: it was unregistered, or Register is missing"
        )
