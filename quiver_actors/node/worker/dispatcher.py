"""Delivery of claimable bundles to connections with credit: bundles, gap notices, and the descriptors of segment files.

Owner: the loop thread. Invariants:
- a connection has no more bundles claimed through credit than it asked for, and no more than its window allows;
- connections of one subscriber share evenly what there is; a gap notice goes to one of them, where its bundles would have come;
- whoever loses claims without having ended them is told before others get the bundles;
- the descriptor of a segment arrives before the first bundle of that segment, once a connection until the segment is retired;
- a connection that does not read its answers gets no more deliveries, and holds up nobody else.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Collection, Sequence

import numpy as np

from quiver_actors.base.clock import Clock
from quiver_actors.base.metrics.latency import Histogram
from quiver_actors.base.protocol.messages import Deliver, Gap, SegmentArchived, SegmentOpened, SegmentRetired, Withdrawn
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.attachments import Attachment, Attachments
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from quiver_actors.store.engine.events import LeftDisk, Retired
from quiver_actors.store.subscriber.claim_order import OLDEST
from quiver_actors.store.subscriber.grants import ONCE, Grant
from quiver_actors.store.wal.log import Log

UNREADABLE_DELAY_NS = SECOND_NS
"""When bundles of a segment that could not be opened or read are tried again."""
_INDEX = struct.Struct("<I")
_LATENCIES_MAX = 64
"""Segments whose next delivery is waited for."""


class Dispatcher:
    """Delivers what is claimable in one engine to the connections that have credit."""

    def __init__(
        self, engine: Engine, attachments: Attachments, journal: Journal, latency: Histogram, clock: Clock
    ) -> None:
        """
        Args:
            latency: gets the time from when bundles can be read to the next delivery of their segment.
        """
        self._engine = engine
        self._topic = engine.topic
        self._attachments = attachments
        self._journal = journal
        self._latency = latency
        self._clock = clock
        self._readable_ns: dict[int, int] = {}
        """The monotonic times at which bundles of the newest segments became readable of which nothing was delivered since."""
        self._live: set[int] = set()
        """Segments that are not sealed and can be read."""
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

    def look_again(self) -> bool:
        """Make up for wake-ups that were lost: find the subscribers that something is claimable for, by somebody with credit.

        Returns:
            Whether there is one that nobody knew of.
        """
        if not self.is_open or self._all_are_due:
            return False
        known = len(self._due)
        for attachment in self._attachments:
            if self._room(attachment) and self._engine.claims.has_news(attachment.subscriber):
                self._due.add(attachment.subscriber)
        return len(self._due) > known

    def deliver(self) -> None:
        """Deliver claimable bundles to connections that have credit and read their answers, evenly, round by round."""
        if not self.is_due:
            return
        due = self._attachments.subscribers if self._all_are_due else self._due
        self._due, self._all_are_due = set(), False
        while self.is_open and self._round(due):
            self._attachments.rotate()

    def _give_back(self, session: Session, subscriber: str, grant: Grant, delay_ns: int) -> None:
        arguments = grant.segment_seq, grant.token, "return", grant.indexes, delay_ns
        self._engine.claims.resolve(subscriber, session, *arguments)

    def cold_changed(self) -> None:
        """A file on the cold disk was opened, or the cold disk went away or came back: whoever waits for one asks again."""
        for attachment in self._attachments:
            if attachment.awaits_cold:
                attachment.awaits_cold = False
                self.wake(attachment.subscriber)

    def hand_over(
        self, session: Session, subscriber: str, grant: Grant, tag: int = 0, attachment: Attachment | None = None
    ) -> bool:
        """Send claimed bundles; if their file cannot be opened, the claims are released and the file is checked. A file on the cold disk is
        opened by a job, and is waited for.

        Args:
            attachment: the bundles are delivered on its credit.
        """
        segment_seq = grant.segment_seq
        places = self._engine.readable_end.places(segment_seq, grant.indexes)
        try:
            if self._engine.registrations.is_archived(subscriber, segment_seq):
                self._announce_archived(session, segment_seq)
            else:
                self._announce(session, segment_seq, is_sealed=not places)
        except ColdStorageUnavailable:
            # It stays the next one in order where it is to be delivered in order: nothing behind it is delivered before.
            in_order = attachment is not None and attachment.terms.order == OLDEST
            if attachment is not None:
                attachment.awaits_cold = in_order
            self._give_back(session, subscriber, grant, 0 if in_order else UNREADABLE_DELAY_NS)
            return False
        except QuiverError as error:
            # The bundle was not delivered and does not count as delivered: a bundle that no consumer saw must not be lost.
            self._give_back(session, subscriber, grant, UNREADABLE_DELAY_NS)
            self._journal.error("segment.unreadable", str(error), topic=self._topic, segment=segment_seq)
            self._engine.check_segment(segment_seq)
            return False
        indexes = np.array(grant.indexes, dtype=np.uint32).tobytes()
        lease = grant.lease_until_ns
        session.send(
            Deliver(self._topic, subscriber, segment_seq, indexes, grant.token, grant.counts, lease, tag, places)
        )
        readable_ns = self._readable_ns.pop(segment_seq, None)
        if readable_ns is not None:
            self._latency.observe(self._clock.monotonic_ns() - readable_ns)
        return True

    def retired(self, event: Retired | LeftDisk) -> None:
        """The subscriber has finished a segment, or gets the rest of it from the archive: its connections can unmap it."""
        key = (self._topic, event.segment_seq)
        for session in [attachment.session for attachment in self._attachments.of(event.subscriber)]:
            if not session.announced.forget(key):
                continue
            if isinstance(event, LeftDisk):
                self._announce_archived(session, event.segment_seq)
            else:
                session.send(SegmentRetired(self._topic, event.subscriber, event.segment_seq))

    def shown(self, segment_seq: int) -> bool:
        """More bundles of a segment that is not sealed can be read. Returns whether anybody is attached."""
        self._live.add(segment_seq)
        if not self._attachments.subscribers:
            return False
        self.wake()
        self._note_readable(segment_seq)
        return True

    def pass_on(self, log: Log, item_count: int) -> bool:
        """Deliver the bundle of a log that has just become durable to the only consumer, if that waits with credit and nothing else is new:
        `shown` and `deliver` with fewer calls. False: nothing has happened, and they have to be called.

        Args:
            item_count: of that bundle.
        """
        attachment, segment_seq = self._attachments.only, log.identity.segment_seq
        if attachment is None or not attachment.takes_next or attachment.given >= attachment.credit_total:
            return False
        session, subscriber = attachment.session, attachment.subscriber
        if self._all_are_due or self._due or not self.is_open or attachment.awaits_cold:
            return False
        if session.connection.unsent_bytes or (self._topic, segment_seq) not in session.announced.logs:
            return False
        readable_ns = self._clock.monotonic_ns()
        live = self._engine.readable_end.show_to(log, subscriber, session)
        if live is None:
            return False
        size_bytes, lease_ns = live.held_bytes, live.lease_until_ns
        place = PLACE.pack(log.synced_end - size_bytes, size_bytes, item_count)
        index = _INDEX.pack(live.start)
        session.send_at_once(Deliver(self._topic, subscriber, segment_seq, index, live.token, ONCE, lease_ns, 0, place))
        attachment.given += 1
        self._live.add(segment_seq)
        readable_ns = self._readable_ns.pop(segment_seq, readable_ns)
        self._latency.observe(self._clock.monotonic_ns() - readable_ns)
        return True

    def sealed(self, segment_seq: int) -> None:
        """A segment is sealed, and can be read."""
        self.wake()
        if segment_seq not in self._live:
            self._note_readable(segment_seq)
        self._live.discard(segment_seq)

    def _note_readable(self, segment_seq: int) -> None:
        self._readable_ns.setdefault(segment_seq, self._clock.monotonic_ns())
        if len(self._readable_ns) > _LATENCIES_MAX:
            # Nobody reads this topic: how long its oldest segments wait says nothing about delivery.
            del self._readable_ns[next(iter(self._readable_ns))]

    def replaced(self, segment_seq: int) -> None:
        """A segment has another file: whoever has mapped the old one gets the new one, and lets go of the old one's blocks."""
        key = (self._topic, segment_seq)
        for session in self._attachments.sessions:
            if key not in session.announced.archived and session.announced.forget(key):
                if session.connection.is_congested:
                    continue  # It is announced with the next bundles of it, as where it cannot be opened now.
                with contextlib.suppress(QuiverError):
                    self._announce(session, segment_seq, is_sealed=True)

    def tell_withdrawn(self) -> None:
        """Tell the holders of claims that have ended without them."""
        for claims in self._engine.claims.take_withdrawn():
            if isinstance(claims.owner, Session):
                claims.owner.send(Withdrawn(self._topic, claims.subscriber, *claims[2:]))

    # --- private -------------------------------------------------------------------------------------------------------

    def _round(self, due: Collection[str]) -> bool:
        """Deliver a fair share to each connection of these subscribers that can take bundles. Returns whether anything was delivered."""
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
            share = -(-self._engine.claims.claimable_count(subscriber) // max(1, len(takers)))
            for attachment in attachments:
                has_given |= self._tell_gaps(attachment)
                if share and attachment in takers:
                    has_given |= self._deliver_to(attachment, share)
        return has_given

    def _room(self, attachment: Attachment) -> int:
        """Return how many bundles credit and window allow now. Notes whether the window is the limit."""
        terms, credit = attachment.terms, attachment.credit
        if attachment.awaits_cold:
            return 0
        if not terms.max_in_flight_bundles and not terms.max_in_flight_bytes:
            return credit
        bundles, size_bytes = self._engine.claims.held(attachment.subscriber, attachment.session)
        room = terms.max_in_flight_bundles - bundles if terms.max_in_flight_bundles else credit
        if terms.max_in_flight_bytes and size_bytes >= terms.max_in_flight_bytes:
            room = 0
        attachment.is_window_full = room <= 0 < credit
        return max(0, min(room, credit))

    def _room_bytes(self, attachment: Attachment) -> int | None:
        limit = attachment.terms.max_in_flight_bytes
        if not limit:
            return None
        return limit - self._engine.claims.held(attachment.subscriber, attachment.session)[1]

    def _tell_gaps(self, attachment: Attachment) -> bool:
        subscriber, session = attachment.subscriber, attachment.session
        in_order, has_told = attachment.terms.order == OLDEST, False
        while (notice := self._engine.claims.take_gap(subscriber, session, in_order=in_order)) is not None:
            has_told = True
            first, count = notice.bundle_index_first, notice.bundle_count
            last = first + max(0, count - 1)
            position = (notice.segment_seq, first, last)
            rows, reason = notice.row_count, notice.reason
            session.send(Gap(self._topic, subscriber, notice.notice, *position, count, rows, reason, notice.retry_ns))
        return has_told

    def _deliver_to(self, attachment: Attachment, share: int) -> bool:
        terms, subscriber = attachment.terms, attachment.subscriber
        # Each bundle may be of another segment, whose descriptor goes with it.
        room = min(share, self._room(attachment), attachment.session.connection.descriptors_max)
        if not room:
            return False
        size_limit = self._room_bytes(attachment)
        if size_limit is not None and not self._engine.claims.held(subscriber, attachment.session)[0]:
            size_limit = None if room == 1 else size_limit
        granted = self._claim(attachment, room, size_limit)
        if not granted and size_limit is not None and not self._engine.claims.held(subscriber, attachment.session)[0]:
            granted = self._claim(attachment, 1, None)  # one bundle is always allowed, however large
        has_given = False
        for grant in granted:
            if attachment.awaits_cold:
                self._give_back(attachment.session, subscriber, grant, 0)
            elif self.hand_over(attachment.session, subscriber, grant, attachment=attachment):
                attachment.given += len(grant.indexes)
                has_given = True
        if not granted and terms.max_in_flight_bytes and self._engine.claims.claimable_count(subscriber):
            attachment.is_window_full = True
        return has_given

    def _claim(self, attachment: Attachment, bundles: int, size_limit_bytes: int | None) -> Sequence[Grant]:
        terms = attachment.terms
        return self._engine.claims.claim(
            attachment.subscriber,
            attachment.session,
            bundles,
            order=terms.order,
            backfill_ratio=terms.backfill_ratio,
            size_limit_bytes=size_limit_bytes,
        )

    def _announce_archived(self, session: Session, segment_seq: int) -> None:
        key = (self._topic, segment_seq)
        if key not in session.announced.archived:
            session.send(SegmentArchived(*key, self._engine.incarnation.hex()))
            session.announced.forget(key)
            session.announced.archived.add(key)

    def _announce(self, session: Session, segment_seq: int, *, is_sealed: bool) -> None:
        key = (self._topic, segment_seq)
        announced = session.announced.sealed if is_sealed else session.announced.logs
        if key in announced:
            return
        # Opened anew for each connection: a duplicate would share its file position, and keep a deleted file's blocks in use.
        open_file = self._engine.open_segment if is_sealed else self._engine.readable_end.open
        descriptor, size_bytes = open_file(segment_seq, for_guest=session.guest is not None)
        session.send_with_descriptor(SegmentOpened(0, *key, size_bytes, is_sealed), descriptor)
        session.announced.forget(key)
        announced.add(key)
