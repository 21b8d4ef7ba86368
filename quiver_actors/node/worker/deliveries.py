"""The requests of subscribers to one engine: attach, detach, credit, resolutions, questions. Owner: the loop thread.

What a connection holds is given back when the connection ends. An answer about progress is sent when that progress is durable.
"""

from __future__ import annotations

import array
import logging

from quiver_actors.base.clock import Clock
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX, check_id
from quiver_actors.base.protocol.messages import (
    AckThrough,
    ClaimRef,
    Credit,
    Done,
    Extend,
    Extended,
    FlushProgress,
    GapAck,
    NotResolved,
    Refusal,
    Register,
    Resolve,
    Seek,
    ShareSubscriber,
    Sought,
    Taken,
    Unreadable,
    Unregister,
)
from quiver_actors.base.rights import OF_TOPICS_OWNER, Verdict, is_guests, require, verdict
from quiver_actors.errors import (
    NotAllowed,
    NotClaimed,
    ProtocolError,
    QuiverError,
    StorageUnavailable,
    UnknownSubscriber,
    UsageError,
)
from quiver_actors.node.worker.access import may_set_terms
from quiver_actors.node.worker.archive_readers import note_readers, refuse_others
from quiver_actors.node.worker.attachments import Attachments, check_terms
from quiver_actors.node.worker.dispatcher import UNREADABLE_DELAY_NS, Dispatcher
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.progress_answers import ProgressAnswers
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.subscriber_questions import SubscriberQuestions
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.read_failures import TRIES_MAX
from quiver_actors.store.subscriber.progress import JOINED_MAX

EXTEND_TOKENS_MAX = 1 << 18
"""Most tokens in one Extend message: each is looked up."""
OUTCOMES = ("ack", "reject", "defer", "return")
_UIDS_END = (1 << 32) - 1


class Deliveries:
    """Handles the requests of subscribers to one engine: attach, credit, resolve, seek, flush.

    Attributes:
        answers: answers that wait for durable progress.
        questions: answers what changes nothing.
    """

    def __init__(
        self, engine: Engine, attachments: Attachments, dispatcher: Dispatcher, journal: Journal, clock: Clock
    ) -> None:
        self._engine = engine
        self._topic = engine.topic
        self.attachments = attachments
        self._dispatcher = dispatcher
        self._journal = journal
        self._clock = clock
        self.answers = ProgressAnswers(engine)
        self.questions = SubscriberQuestions(engine, attachments)

    # --- subscribers come and go -----------------------------------------------------------------------------------------

    def register(self, session: Session, message: Register) -> None:
        """
        Raises:
            QuiverError: an id, start or terms that are not allowed, or the engine refuses.
        """
        subscriber, terms = message.subscriber, message.terms
        check_id("subscriber", subscriber)
        check_terms(message.topic, terms)
        if not message.reads_archive:
            refuse_others(self._engine, subscriber)
        known = self._engine.registrations.ownership_of(subscriber)
        is_new, guest, settings = known is None, session.guest, self._engine.settings
        sets_terms = guest is None or may_set_terms(guest.caller(settings, subscriber, known))
        ownership = guest.user.owns_when_new(settings, subscriber) if guest is not None else OF_TOPICS_OWNER
        named, reads = (subscriber, message.start, ownership, message.archived), message.reads_archive
        ticket = self._engine.registrations.register(*named, reads_archive=reads)
        is_taken = known is not None and is_guests(known, settings) and (guest is None or guest.user.rules(settings))
        if is_taken:
            # Its progress stays, the rights of the guest that came first end.
            ticket = self._engine.registrations.give(subscriber, ownership)
            warning = logging.WARNING
            self._journal.event("subscriber.taken_over", level=warning, topic=self._topic, subscriber=subscriber)
        level = logging.INFO if is_new else logging.DEBUG
        self._journal.event("subscriber.register", level=level, topic=self._topic, subscriber=subscriber, new=is_new)
        before = self.attachments.terms.get(subscriber)
        self.attachments.attach(session, subscriber, terms, sets_terms=sets_terms, reads_archive=message.reads_archive)
        note_readers(self._engine, self.attachments, [subscriber])
        self._engine.claims.expect_taken(subscriber, session, tells=message.tells_taken)
        # Taken before the leases begin anew: nobody is told a later end than the worker knows.
        now_ns = self._clock.monotonic_ns()
        self._set_terms(subscriber)
        if is_taken:
            # After the new terms: what the guest held must not count as exhausted by its own terms.
            self.detach_refused()
        self.attachments.tell_terms(self._topic, session, message, before, now_ns)
        self._dispatcher.wake(subscriber)
        self.answers.wait(ticket, session, Done(message.tag))

    def unregister(self, session: Session, message: Unregister) -> None:
        """
        Raises:
            UnknownSubscriber: there is none.
            UsageError: only an orphan was meant, and it is none.
        """
        connections = len(self.attachments.of(message.subscriber))
        if message.only_orphan and connections:
            raise UsageError(
                f"subscriber {message.subscriber!r} of topic {self._topic!r} is no orphan: {connections} connections of core"
                f" {self._engine.core} are attached to it; close them or unregister it"
            )
        ticket, owed = self._unregister(message.subscriber)
        self.answers.wait(ticket, session, Done(message.tag, owed))

    def _unregister(self, subscriber: str) -> tuple[int, int]:
        ticket, owed = self._engine.registrations.unregister(subscriber)
        self.attachments.forget(subscriber)
        self._journal.event("subscriber.unregister", topic=self._topic, subscriber=subscriber, dropped=owed)
        return ticket, owed

    def share(self, session: Session, message: ShareSubscriber) -> None:
        """
        Raises:
            UnknownSubscriber: there is none.
            UsageError: too many users, or a number that no user has.
        """
        uids = message.uids
        if len(uids) > JOINED_MAX or not all(0 <= uid < _UIDS_END for uid in uids):
            raise UsageError(f"a subscriber is shared with at most {JOINED_MAX} users, by number, 0..{_UIDS_END - 1}")
        ticket = self._engine.registrations.share(message.subscriber, uids)
        self._journal.event("subscriber.share", topic=self._topic, subscriber=message.subscriber, users=len(uids))
        self.detach_refused()
        self.answers.wait(ticket, session, Done(message.tag))

    def detach_refused(self) -> None:
        """Rights have changed: whoever may not be attached any more gets nothing more, and is told."""
        for attachment in list(self.attachments):
            session, subscriber = attachment.session, attachment.subscriber
            if session.guest is None:
                continue
            ownership = self._engine.registrations.ownership_of(subscriber)
            caller = session.guest.caller(self._engine.settings, subscriber, ownership)
            try:
                require(session.guest.user, caller, "Register", f"topic {self._topic!r}, subscriber {subscriber!r}")
            except NotAllowed as error:
                self.attachments.detach(attachment)
                self._engine.claims.release_of(subscriber, session)
                self._dispatcher.wake(subscriber)
                session.refuse(0, error)

    def seek(self, session: Session, message: Seek) -> None:
        """
        Raises:
            UnknownSubscriber, UsageError, QuiverError: nothing was changed.
        """
        subscriber = message.subscriber
        ticket, skipped, again = self._engine.registrations.seek(subscriber, message.start, is_dry=message.is_dry)
        answer = Sought(message.tag, skipped, again)
        if message.is_dry:
            session.send(answer)
            return
        if subscriber in self.attachments.terms:
            self._set_terms(subscriber)
        self._dispatcher.wake(subscriber)
        self._journal.event(
            "subscriber.seek",
            topic=self._topic,
            subscriber=subscriber,
            start=message.start,
            skipped=skipped,
            again=again,
        )
        self.answers.wait(ticket, session, answer)

    def _set_terms(self, subscriber: str) -> None:
        terms = self.attachments.terms[subscriber]
        self._engine.registrations.set_terms(
            subscriber, lease_ns=terms.lease_ns, max_deliveries=terms.max_deliveries, exhausted=terms.exhausted
        )

    def drop_orphans(self) -> bool:
        """Unregister subscribers that nobody was attached to for their orphan time. Returns whether there were any."""
        now_ns = self._clock.monotonic_ns()
        late = [subscriber for at_ns, subscriber in self._orphans() if at_ns <= now_ns]
        for subscriber in late:
            self._journal.event(
                "subscriber.orphan_dropped", level=logging.WARNING, topic=self._topic, subscriber=subscriber
            )
            self._unregister(subscriber)
        return bool(late)

    def next_orphan_ns(self) -> int | None:
        """Return the monotonic time when the next orphan is due; None if no orphan's time runs."""
        return min((at_ns for at_ns, _ in self._orphans()), default=None)

    def _orphans(self) -> list[tuple[int, str]]:
        """Return (monotonic time of expiry, subscriber) of each orphan whose time runs."""
        if not self._dispatcher.is_open:
            return []
        return self.attachments.orphans(self._engine.registrations.names(), self._engine.settings.orphan_ttl_ns)

    def detach(self, session: Session) -> bool:
        """Release all claims of an ended connection: others can claim the bundles at once. Returns whether it had any, or an attachment."""
        left = {attachment.subscriber for attachment in self.attachments if attachment.session is session}
        was_attached = self.attachments.leave(session)
        note_readers(self._engine, self.attachments, left)
        # Also without an attachment: bundles claimed by reference.
        released = self._engine.claims.release(session)
        if released or was_attached:
            self._dispatcher.wake()
            return True
        return False

    # --- claims ------------------------------------------------------------------------------------------------------------

    def credit(self, session: Session, message: Credit) -> None:
        """Set how much may be delivered in all.

        Raises:
            UnknownSubscriber: the connection is not attached to it (any more).
        """
        attachment = self.attachments.get(session, message.subscriber)
        if attachment is None:
            raise UnknownSubscriber(
                f"this connection is not attached to subscriber {message.subscriber!r} of topic {self._topic!r} on core"
                f" {self._engine.core}: it was unregistered, or Register is missing"
            )
        attachment.credit_total = message.total
        self._dispatcher.wake(message.subscriber)

    def claim_ref(self, session: Session, message: ClaimRef) -> None:
        """
        Raises:
            UnknownSubscriber, AlreadyResolved, NotClaimed: nothing was claimed.
            QuiverError: the segment cannot be opened.
        """
        subscriber = message.subscriber
        is_attached = self.attachments.get(session, subscriber) is not None
        if not is_attached:
            refuse_others(self._engine, subscriber, message.segment_seq)
        grant = self._engine.claims.claim_ref(subscriber, session, message.segment_seq, message.bundle_index)
        if not self._dispatcher.hand_over(session, subscriber, grant, message.tag):
            raise StorageUnavailable(
                f"segment {message.segment_seq} of topic {self._topic!r} cannot be opened now: it is being checked; try again"
            )
        self._dispatcher.wake(message.subscriber)

    def taken(self, session: Session, message: Taken) -> None:
        """
        Raises:
            UnknownSubscriber: no such subscriber.
            ProtocolError: the message makes no sense.
        """
        indexes = _indexes(message.bundle_indexes)
        self._engine.claims.note_taken(message.subscriber, session, message.segment_seq, message.token, indexes)

    def resolve(self, session: Session, message: Resolve) -> None:
        """
        Raises:
            UnknownSubscriber: no such subscriber.
            ProtocolError: the message makes no sense.
        """
        if message.outcome not in OUTCOMES or message.delay_ns < 0:
            raise ProtocolError(f"resolve {message.tag}: outcome {message.outcome!r} or its bundles are not valid")
        indexes = _indexes(message.bundle_indexes)
        refused = self._engine.claims.resolve(
            message.subscriber,
            session,
            message.segment_seq,
            message.token,
            message.outcome,
            indexes,
            message.delay_ns,
        )
        attachment = self.attachments.get(session, message.subscriber)
        if message.outcome in ("defer", "return") or (attachment is not None and attachment.is_window_full):
            self._dispatcher.wake(message.subscriber)
        self._refuse(session, message, refused)
        if message.durable:
            self.answers.wait(self._engine.progress.flush(), session, Done(message.tag))

    def extend(self, session: Session, message: Extend) -> None:
        """Begin the leases of the tokens (a u64 array) again, and answer with the tokens that have no claim any more."""
        if len(message.tokens) % 8 or len(message.tokens) > 8 * EXTEND_TOKENS_MAX:
            raise ProtocolError(
                f"extend {message.tag}: {len(message.tokens)} bytes are not 1 to {EXTEND_TOKENS_MAX} tokens of 8 bytes"
            )
        until_ns, ended = self._engine.claims.extend(message.subscriber, session, array.array("Q", message.tokens))
        session.send(Extended(message.tag, until_ns, array.array("Q", ended).tobytes()))

    def ack_through(self, session: Session, message: AckThrough) -> None:
        """Resolve everything up to and including a bundle, and answer when the progress is durable."""
        ticket = self._engine.claims.ack_through(message.subscriber, message.segment_seq, message.bundle_index)
        self._dispatcher.wake(message.subscriber)
        self.answers.wait(ticket, session, Done(message.tag))

    def gap_ack(self, session: Session, message: GapAck) -> None:
        """
        Raises:
            UnknownSubscriber: no such subscriber.
            NotClaimed: the caller may acknowledge only notices that this connection was given, and it was not.
        """
        guest, subscriber = session.guest, message.subscriber
        if guest is not None:
            caller = guest.caller(
                self._engine.settings, subscriber, self._engine.registrations.ownership_of(subscriber)
            )
            is_held = self._engine.claims.has_gap(subscriber, session, message.notice)
            if verdict("GapAck", caller) is Verdict.HELD and not is_held:
                raise NotClaimed(
                    f"notice {message.notice} of subscriber {subscriber!r} was not given to this connection, or was taken back since"
                )
        self.answers.wait(self._engine.claims.ack_gap(message.subscriber, message.notice), session, Done(message.tag))
        self._dispatcher.wake(message.subscriber)

    def unreadable(self, session: Session, message: Unreadable) -> None:
        """Handle a consumer's report of unreadable bundles: release the claims, and have the file checked."""
        indexes = _indexes(message.bundle_indexes)
        subscriber, segment_seq = message.subscriber, message.segment_seq
        if message.lost:
            self._engine.claims.lose_archived(subscriber, session, segment_seq, message.token, indexes, message.lost)
            self._dispatcher.wake(subscriber)
            return
        refused, set_aside = self._engine.cannot_read(
            subscriber, session, segment_seq, message.token, indexes, UNREADABLE_DELAY_NS
        )
        self._journal.error("segment.unreadable", message.reason, topic=self._topic, segment=segment_seq)
        for index in set_aside:
            reason = (
                f"subscriber {subscriber!r} of topic {self._topic!r} could not read bundle {segment_seq}/{index} {TRIES_MAX} times: it is"
                f" not damaged on the disk, and is set aside as the subscriber's terms say, others get it ({message.reason})"
            )
            self._journal.error("subscriber.set_aside", reason, topic=self._topic, subscriber=subscriber)
        self._refuse(session, message, refused)

    def check_segment(self, segment_seq: int, reason: str, bundle_index: int) -> None:
        """A reader without a claim found a file damaged: have it looked at, and that bundle of it (-1: the reader named none)."""
        self._journal.error("segment.unreadable", reason, topic=self._topic, segment=segment_seq)
        self._engine.check_segment(segment_seq, [bundle_index] if bundle_index >= 0 else ())

    def flush_progress(self, session: Session, message: FlushProgress) -> None:
        """Answer when everything that was resolved before is durable."""
        self.answers.wait(self._engine.progress.flush(), session, Done(message.tag))

    # --- ends ----------------------------------------------------------------------------------------------------------

    def fail(self, error: QuiverError) -> None:
        """The engine has failed: progress that is not durable will not become so here."""
        self._dispatcher.is_open = False
        self.answers.fail(error)

    def give_up(self, error: QuiverError) -> None:
        """The topic is deleted: tell every consumer, also those that wait for nothing in particular."""
        self.fail(error)
        for session in self.attachments.sessions:
            session.refuse(0, error)
        self.attachments.clear()

    # --- private -------------------------------------------------------------------------------------------------------

    def _refuse(self, session: Session, message: Resolve | Unreadable, refused: list[tuple[str, list[int]]]) -> None:
        if refused:
            refusals = [Refusal(code, array.array("I", indexes).tobytes()) for code, indexes in refused]
            session.send(
                NotResolved(message.tag, self._topic, message.subscriber, message.segment_seq, message.token, refusals)
            )


def _indexes(packed: bytes) -> array.array[int]:
    """
    Raises:
        ProtocolError: no whole number of indexes, or more than a segment can have.
    """
    if len(packed) % 4 or len(packed) > 4 * SEGMENT_BUNDLES_MAX:
        raise ProtocolError(
            f"{len(packed)} bytes of bundle indexes are not valid: expected 4 bytes each for at most {SEGMENT_BUNDLES_MAX} bundles"
        )
    return array.array("I", packed)
