"""What is claimable goes out to those who have credit: bundles, gap notices, and the files that they are read from.

Owner: the loop thread. Invariants:
- a connection has no more bundles claimed through credit than it asked for, and no more than its window allows;
- connections of one subscriber share evenly what there is; a gap notice goes to one of them, where its bundles would have come;
- the descriptor of a segment arrives before the first bundle of that segment, once a connection until the segment is retired;
- a connection that does not read its answers gets no more deliveries, and holds up nobody else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import numpy as np

from quiver_actors.clock import Clock
from quiver_actors.engine import Engine
from quiver_actors.errors import QuiverError
from quiver_actors.events import Retired
from quiver_actors.metrics.latency import Histogram
from quiver_actors.protocol.messages import Deliver, Gap, SegmentOpened, SegmentRetired
from quiver_actors.subscriber.claim_order import OLDEST
from quiver_actors.subscriber.grants import Grant
from quiver_actors.units import SECOND_NS
from quiver_actors.worker.attachments import Attachment, Attachments
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.session import Session

UNREADABLE_DELAY_NS = SECOND_NS
"""When bundles of a segment that could not be opened or read are tried again."""
_LATENCIES_MAX = 64
"""Segments whose first announcement is waited for."""


class HandingOut:
    """See the module."""

    def __init__(
        self, engine: Engine, attachments: Attachments, journal: Journal, latency: Histogram, clock: Clock
    ) -> None:
        """
        Args:
            latency: gets the time from each segment's seal to its first announcement.
        """
        self._engine = engine
        self._topic = engine.topic
        self._attachments = attachments
        self._journal = journal
        self._latency = latency
        self._clock = clock
        self._sealed_ns: dict[int, int] = {}
        """When the newest segments were sealed that nobody has been told of yet."""
        self._due: set[str] = set()
        """Subscribers that something may be claimable for, or to be told."""
        self._all_are_due = False
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

    def deliver(self) -> None:
        """Hand out what is claimable to those who have credit and read their answers, evenly, round by round."""
        if not self.is_due:
            return
        due = self._attachments.subscribers if self._all_are_due else self._due
        self._due, self._all_are_due = set(), False
        while self.is_open and self._round(due):
            self._attachments.rotate()

    def hand_over(self, session: Session, subscriber: str, grant: Grant, tag: int = 0) -> bool:
        """Send claimed bundles; if their file cannot be opened they go back and it is checked."""
        segment_seq = grant.segment_seq
        try:
            self._announce(session, segment_seq)
        except QuiverError as error:
            # It was not delivered, and does not count as such: nothing may be given up that nobody has seen.
            self._engine.resolve(
                subscriber, session, segment_seq, grant.token, "return", grant.indexes, UNREADABLE_DELAY_NS
            )
            self._journal.error("segment.unreadable", str(error), topic=self._topic, segment=segment_seq)
            self._engine.check_segment(segment_seq, str(error))
            return False
        indexes = np.array(grant.indexes, dtype=np.uint32).tobytes()
        lease = grant.lease_until_ns
        session.send(Deliver(self._topic, subscriber, segment_seq, indexes, grant.token, grant.counts, lease, tag))
        return True

    def retired(self, event: Retired) -> None:
        """The subscriber has finished a segment: its connections can unmap it."""
        key = (self._topic, event.segment_seq)
        for session in [attachment.session for attachment in self._attachments.of(event.subscriber)]:
            if key in session.announced:
                session.announced.discard(key)
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
        for session in self._attachments.sessions:
            if key in session.announced:
                session.announced.discard(key)
                # Where it cannot be opened now it is announced with the next bundles of it.
                with contextlib.suppress(QuiverError):
                    self._announce(session, segment_seq)

    # --- private -------------------------------------------------------------------------------------------------------

    def _round(self, due: Collection[str]) -> bool:
        """Give everybody of these subscribers who can take something a fair share; whether anything was given."""
        ready: dict[str, list[Attachment]] = {}
        for attachment in self._attachments:
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
            if self.hand_over(attachment.session, subscriber, grant):
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
