"""The subscriber's side of one worker connection: registration, credit, leases, mapped segments, and resolutions that wait to be sent.

Used under the lock of its consumer's exchange. Nothing here waits.

Guarantees: what the worker claims for this connection is put into the inbox once, with the segment that holds it mapped; claims of a
connection that was lost are told by their generation and never resolved over another one. The worker's view of a claim decides: what it
withdraws leaves the inbox, and a lease that is over by the clock is asked about before the bundles under it are given up.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quiver_actors.base.protocol.messages import (
    Credit,
    Deliver,
    Done,
    Extend,
    Extended,
    FlushProgress,
    Gap,
    GapAck,
    GroupTerms,
    Message,
    NotResolved,
    Refused,
    Register,
    Resolve,
    SegmentArchived,
    SegmentOpened,
    SegmentRetired,
    Unreadable,
    Withdrawn,
    WorkerMessage,
)
from quiver_actors.client.archived_reads import ArchivedStream
from quiver_actors.client.calls import Call, refusal_error
from quiver_actors.client.credit_line import CreditLine
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.gaps import GapNotices, WaitingGap
from quiver_actors.client.grants import ClaimChannel, Grant, Parcel
from quiver_actors.client.handed_over import HandedOver
from quiver_actors.client.held_claims import HeldClaims
from quiver_actors.client.inbox import Inbox
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.refused import Refusals
from quiver_actors.client.segments import MappedLog, MappedSegment
from quiver_actors.client.subscribe_request import StartPoints, SubscribeRequest
from quiver_actors.client.unconfirmed import Unconfirmed
from quiver_actors.errors import ProtocolError, QuiverError

UNCONFIRMED_MAX = 65_536
"""Number of unconfirmed resolutions after which the channel asks the worker whether they are durable, to forget them."""
_RETURN = "return"
_LASTING = ("ack", "reject")
"""Outcomes after which a bundle does not come again."""

logger = logging.getLogger("quiver.client")


class SubscriberChannel(ClaimChannel):
    """A channel that bundles of one subscriber come through."""

    def __init__(
        self,
        exchange: Exchange,
        directory: WorkerDirectory,
        core: int,
        client_name: str,
        *,
        wanted: SubscribeRequest,
        starts: StartPoints,
        inbox: Inbox[Any],
    ) -> None:
        super().__init__(exchange, directory, core, client_name)
        self.segments: dict[int, MappedSegment | MappedLog] = {}
        self.claims = HeldClaims(wanted.terms, inbox)
        self.handed: HandedOver = HandedOver(wanted.topic, wanted.subscriber, self.claims)
        self.is_registered = False
        self.refusals = Refusals(core, wanted.topic, wanted.subscriber)
        self.durable_counts = {}
        self.unconfirmed = Unconfirmed()
        self.claimed: dict[int, Parcel] = {}
        """Bundles that were claimed by reference, by the tag of the request."""
        self.gaps = GapNotices(wanted.topic, wanted.subscriber)
        self._wanted = wanted
        self._starts = starts
        self._inbox = inbox
        self._projection = EVERYTHING
        self._register_tag = 0
        self._credit = CreditLine(wanted.prefetch)
        self._resolutions: dict[tuple[int, int, str, int], array[int]] = {}
        """Bundle indexes that were not sent yet, by segment, token, outcome and delay."""

    @property
    def may_come_later(self) -> bool:
        """Whether the worker has said that the topic's directory cannot be opened now, and nothing is pushed there: the bundles of other
        cores do not wait for it. It is asked again as long as bundles are waited for."""
        return self.refusals.unopened(self.failure) is not None and self.core not in self._directory.push_cores

    def take(self, bundles: int = 1) -> None:
        """Bundles of this channel have left the inbox: let the worker send others, in portions. Below zero: so many came back."""
        if self._credit.take(bundles):
            self._give_credit()

    def resolve(self, parcel: Parcel, bundle_indexes: Sequence[int], outcome: str, delay_ns: int = 0) -> None:
        """Note resolutions; the parcel is of this generation."""
        grant = parcel.grant
        key = (parcel.segment.segment_seq, grant.token, outcome, delay_ns)
        indexes = self._resolutions.get(key)
        if indexes is None:
            indexes = self._resolutions[key] = array("I")
        indexes.extend(bundle_indexes)
        self.claims.release(grant, bundle_indexes)

    def give_back(self, parcel: Parcel) -> None:
        """Return the untaken bundles of a parcel to the worker with the next resolutions, if the parcel is of this connection."""
        key = (parcel.segment.segment_seq, parcel.grant.token, _RETURN, 0)
        self._resolutions.setdefault(key, array("I")).extend(parcel.indexes[parcel.position :])
        self.claims.release(parcel.grant, parcel.indexes[parcel.position :])

    def report_unreadable(self, parcel: Parcel, bundle_index: int, reason: str, lost: str = "") -> None:
        """Tell the worker, at once."""
        wanted = self._wanted
        self.claims.release(parcel.grant, (bundle_index,))
        segment_seq, token = parcel.segment.segment_seq, parcel.grant.token
        index = array("I", [bundle_index]).tobytes()
        tag = self.next_tag()
        self.refusals.ignore(tag)
        self.send([Unreadable(tag, wanted.topic, wanted.subscriber, segment_seq, token, index, reason[:1000], lost)])

    def confirm_gap(self, gap: WaitingGap) -> None:
        """A notice of this generation was handed over; the worker is told with the next resolutions."""
        self.gaps.confirm(gap.number)

    def send_resolutions(self) -> None:
        """Send the resolutions and confirmed notices that were noted."""
        wanted = self._wanted
        if self._resolutions:
            messages: list[Message] = []
            for (segment_seq, token, outcome, delay_ns), indexes in self._resolutions.items():
                tag = self.next_tag()
                packed = indexes.tobytes()
                if outcome in _LASTING:
                    self.unconfirmed.note(segment_seq, indexes)
                elif outcome == _RETURN:
                    self.refusals.ignore(tag)
                messages.append(
                    Resolve(tag, wanted.topic, wanted.subscriber, segment_seq, token, outcome, packed, delay_ns)
                )
            self._resolutions.clear()
            self.send(messages)
            if self.unconfirmed.noted_count >= UNCONFIRMED_MAX:
                self.flush_progress()
        for call in self.gaps.confirmations():
            self.call(call)

    def resolve_late(self, parcel: Parcel, bundle_indexes: Sequence[int], outcome: str) -> None:
        """The connection that the parcel came by was lost: the worker cannot be told."""
        if outcome in _LASTING:
            self.unconfirmed.note_late(parcel.segment.segment_seq, bundle_indexes)

    def flush_progress(self) -> Call:
        """Ask the worker to make all resolutions sent so far durable."""
        topic, subscriber = self._wanted.topic, self._wanted.subscriber
        call = Call(lambda tag: FlushProgress(tag, topic, subscriber))
        self.call(call)
        self.unconfirmed.asked(call.tag)
        return call

    def forget(self, call: Call) -> None:
        """Forget the call like the base class, but keep a GapAck: the next flush waits for it. Bundles that arrived for the call, and that
        nobody took, go back to the worker."""
        parcel = self.claimed.pop(call.tag, None)
        if parcel is not None:
            self.give_back(parcel)
            self.send_resolutions()
        if not isinstance(call.request, GapAck):
            super().forget(call)

    def tend(self, now_ns: int) -> None:
        """Extend the leases of bundles that wait in the inbox, as far as it is time."""
        due = self.claims.due(now_ns) if self.is_registered else ()
        if due:
            self.call(self.extension(due, now_ns))

    def ask(self, grant: Grant, now_ns: int) -> None:
        """Ask the worker whether a grant is held whose lease is over by the clock, once until it has answered."""
        if not grant.is_asked:
            grant.is_asked = True
            self.call(self.extension([grant], now_ns))

    def extension(self, grants: Iterable[Grant], now_ns: int) -> Call:
        """Return a request that begins the leases anew; `_answered` handles the answer."""
        wanted = self._wanted
        tokens = array("Q")
        for grant in grants:
            grant.asked_at_ns = now_ns
            tokens.append(grant.token)
        return Call(lambda tag: Extend(tag, wanted.topic, wanted.subscriber, tokens.tobytes()))

    def start_deliveries(self) -> None:
        """Let the worker send bundles from now on, as soon as it has registered the subscriber."""
        self._credit.release()
        if self.is_registered:
            self._give_credit()

    def stop_deliveries(self) -> None:
        """Take back unused credit for good: bundles returned from now on go to other consumers."""
        self._credit.stop()
        if self.is_registered:
            self._give_credit()

    def _give_credit(self) -> None:
        if self._credit.is_held:
            return
        total = self._credit.give()
        self.send([Credit(self._wanted.topic, self._wanted.subscriber, total)])

    # --- what the worker says --------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        wanted = self._wanted
        try:
            self._projection = wanted.asked.resolve(self.topics.slots_of(wanted.topic))
        except QuiverError as error:
            self._fail_connection(error)
            return
        self._register_tag = self.next_tag()
        known_as = self.topics.incarnation_of(wanted.topic)
        tells_taken = self.handed.welcomed(self.features)
        place = wanted.topic, wanted.subscriber, self._starts.on(self.core)
        named = Register(self._register_tag, *place, wanted.terms, known_as, tells_taken)
        archived, reads = self._starts.archived.get(self.core), wanted.archive is not None
        self.send([msgspec.structs.replace(named, archived=archived, reads_archive=reads)])

    def _received(self, message: WorkerMessage, descriptor: int | None) -> bool:
        if isinstance(message, Deliver):
            self._deliver(message)
        elif isinstance(message, SegmentOpened | SegmentArchived):
            self._map(message, descriptor)
        elif isinstance(message, SegmentRetired):
            # Whatever waits of it was evicted, expired, or resolved by another consumer.
            self.take(self.claims.retire(message.segment_seq))
            self.segments.pop(message.segment_seq, None)
        elif isinstance(message, Withdrawn):
            grant = self.claims.get(message.token)
            if grant is not None:
                self.take(self.claims.withdraw(grant, message.first, message.stop))
        elif isinstance(message, GroupTerms):
            logger.info(
                "quiver.subscription.terms subscriber=%s core=%d %s", message.subscriber, self.core, message.terms
            )
            self.send(self.handed.take_over(message, self._inbox))
        elif isinstance(message, Gap):
            self._gap(message)
        elif isinstance(message, Done) and message.tag == self._register_tag:
            self.is_registered, self.refusals.registering = True, None
            self._credit.begin()
            self._give_credit()
        elif isinstance(message, NotResolved):
            self.refusals.note(message)
        elif isinstance(message, Refused):
            self._refused(message)
        else:
            return False
        return True

    def _answered(self, call: Call) -> None:
        if isinstance(call.request, FlushProgress) and call.error is None:
            self.unconfirmed.confirmed(call.request.tag)
            self.refusals.answered(call.request.tag)
        if isinstance(call.request, Extend):
            tokens, answer = array("Q", call.request.tokens), call.answer
            if isinstance(answer, Extended):
                self.take(self.claims.extended(tokens, set(array("Q", answer.ended)), answer.lease_until_ns))
            else:
                # It knows of no such claims.
                self.take(self.claims.extended(tokens, set(tokens), 0))

    def _deliver(self, message: Deliver) -> None:
        segment = self.segments.get(message.segment_seq)
        if segment is None or len(message.delivery_counts) * 2 != len(message.bundle_indexes):
            self._fail_connection(
                ProtocolError(
                    f"worker {self.core} delivered bundles of segment {message.segment_seq} without its file or their counts"
                )
            )
            return
        if isinstance(segment, MappedLog):
            try:
                segment = segment.part(array("I", message.bundle_indexes), message.places)
            except ProtocolError as error:
                self._fail_connection(error)
                return
        grant = self.claims.granted(message.token, message.segment_seq, message.lease_until_ns, time.monotonic_ns())
        parcel = Parcel(self, grant, segment, message)
        if not message.tag:
            self._inbox.append(parcel)
        elif self._answer(message, None):
            self.claimed[message.tag] = parcel
        else:
            # The call that asked for it has timed out.
            self.give_back(parcel)
            self.send_resolutions()

    def _map(self, message: SegmentOpened | SegmentArchived, descriptor: int | None) -> None:
        wanted, seq = self._wanted, message.segment_seq
        if isinstance(message, SegmentArchived):
            # Nothing is read before somebody asks for a bundle of it: that waits for the archiver, and nothing may wait here.
            assert wanted.archive is not None, "the worker refuses who has not said that it reads the archive"
            stream = ArchivedStream(wanted.topic, self.core, message.incarnation)
            self.segments[seq] = wanted.archive.later(stream, seq, self.topics[wanted.topic], self._projection)
            return
        assert descriptor is not None, "the connection checks that this message carries a descriptor"
        try:
            map_file = MappedSegment.sealed if message.is_sealed else MappedLog
            self.segments[seq] = map_file(
                descriptor,
                message.size_bytes,
                seq,
                self.topics[wanted.topic],
                self.core,
                self._projection,
                verifies_checksums=wanted.verifies_checksums,
            )
        except QuiverError as error:
            # Its bundles cannot be read here and now: end the connection, so that they go to whoever can.
            self._fail_connection(error)

    def _gap(self, message: Gap) -> None:
        if self.gaps.is_new(message.notice, message.lease_until_ns):
            self._inbox.append(WaitingGap(self, message))
        elif self.gaps.was_told(message.notice):
            # The worker has not heard that it was: say it again.
            self.call(self.gaps.confirmation(message.notice))

    def _refused(self, message: Refused) -> None:
        error = refusal_error(message)
        if message.tag == self._register_tag:
            self.refusals.registering = error.with_traceback(None)
            self._fail_connection(error)
            return
        self.refusals.note_message(error)

    def _lost(self) -> None:
        if self.is_registered:
            # Should the node come back without knowing the subscriber, nothing that was pushed meanwhile may be skipped.
            self._starts = StartPoints("earliest")
        self.is_registered = False
        self.segments.clear()
        self.claims.clear()
        self.claimed.clear()
        self.gaps.lose()
        self.refusals.lose()
        for (segment_seq, _, outcome, _), indexes in self._resolutions.items():
            if outcome in _LASTING:
                self.unconfirmed.note_late(segment_seq, indexes)
        self._resolutions.clear()
        self.unconfirmed.connection_lost()
        self._credit.lose()
