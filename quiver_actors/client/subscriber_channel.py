"""The subscriber's side of one worker connection: registration, credit, leases, mapped segments, and resolutions that wait to be sent.

Used under the lock of its consumer's exchange. Nothing here waits.

Guarantees: what the worker claims for this connection is put into the inbox once, with the segment that holds it mapped; claims of a
connection that was lost are told by their generation and never resolved over another one. A credit that got lost, or a wake-up inside
the worker, is made up for within `WATCHDOG_NS`, by saying the same again.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from quiver_actors.client.channel import Call, Channel, refusal_error
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.grants import Grant, Parcel
from quiver_actors.client.inbox import Inbox
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.projection import EVERYTHING
from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.unconfirmed import Unconfirmed
from quiver_actors.client.wanted import Wanted
from quiver_actors.errors import ProtocolError, QuiverError
from quiver_actors.protocol.messages import (
    Credit,
    Deliver,
    Done,
    Extend,
    Extended,
    FlushProgress,
    Gap,
    GapAck,
    Message,
    NotResolved,
    Refused,
    Register,
    Resolve,
    SegmentOpened,
    SegmentRetired,
    Unreadable,
    WorkerMessage,
)
from quiver_actors.units import MILLISECOND_NS

WATCHDOG_NS = 400 * MILLISECOND_NS
REFUSALS_KEPT = 65_536
"""Refused resolutions that a ticket can still ask about, per worker."""
UNCONFIRMED_MAX = 65_536
"""After so many resolutions that nobody asked about the worker is asked whether they are durable, so that they need not be remembered."""
_LASTING = ("ack", "reject")
"""Outcomes after which a bundle does not come again."""

logger = logging.getLogger("quiver.client")


class SubscriberChannel(Channel):
    """A channel that bundles of one subscriber come through."""

    def __init__(
        self,
        exchange: Exchange,
        directory: NodeDirectory,
        core: int,
        client_name: str,
        *,
        wanted: Wanted,
        start: str,
        inbox: Inbox[Any],
    ) -> None:
        super().__init__(exchange, directory, core, client_name)
        self.segments: dict[int, MappedSegment] = {}
        self.grants: dict[int, Grant] = {}
        """By token, those that hold anything."""
        self.is_registered = False
        self.refusals: dict[tuple[int, int, int], str] = {}
        """Codes of resolutions that were refused, by segment, token and bundle: the newest ones."""
        self.refused_count = 0
        self.durable_counts: dict[int, int] = {}
        """Up to which number of the consumer resolutions are known to be durable, or refused, by the generation of their connection."""
        self.unconfirmed = Unconfirmed()
        self.claimed: dict[int, Parcel] = {}
        """Bundles that were claimed by reference, by the tag of the request."""
        self.gap_acks: list[Call] = []
        """Under way."""
        self._wanted = wanted
        self._start = start
        self._inbox = inbox
        self._projection = EVERYTHING
        self._register_tag = 0
        self._credit_total = 0
        self._taken = 0
        """Bundles that left the inbox since credit was last given."""
        self._credit_sent_ns = 0
        self._is_stopping = False
        self._resolutions: dict[tuple[int, int, str, int], array[int]] = {}
        self._gaps_seen: list[int] = []
        self._gaps_known: dict[int, bool] = {}
        """Numbers of the notices that came by this connection, and whether they were handed over."""

    def take(self, bundles: int = 1) -> None:
        """Bundles of this channel have left the inbox: let the worker send others, in portions."""
        self._taken += bundles
        if 2 * self._taken >= self._wanted.prefetch:
            self._give_credit()

    def resolve(self, parcel: Parcel, bundle_indexes: Sequence[int], outcome: str, delay_ns: int = 0) -> None:
        """Note resolutions; the parcel is of this generation."""
        grant = parcel.grant
        key = (parcel.segment.segment_seq, grant.token, outcome, delay_ns)
        indexes = self._resolutions.get(key)
        if indexes is None:
            indexes = self._resolutions[key] = array("I")
        indexes.extend(bundle_indexes)
        self.release(grant, len(bundle_indexes))

    def give_back(self, parcel: Parcel) -> None:
        """Return what nobody has taken of a parcel of this generation, with the next resolutions."""
        key = (parcel.segment.segment_seq, parcel.grant.token, "return", 0)
        self._resolutions.setdefault(key, array("I")).extend(parcel.indexes[parcel.position :])
        self.release(parcel.grant, parcel.waiting)

    def report_unreadable(self, parcel: Parcel, bundle_index: int, reason: str) -> None:
        """Tell the worker, at once."""
        wanted = self._wanted
        self.release(parcel.grant, 1)
        segment_seq, token = parcel.segment.segment_seq, parcel.grant.token
        index = array("I", [bundle_index]).tobytes()
        self.send(
            [Unreadable(self.next_tag(), wanted.topic, wanted.subscriber, segment_seq, token, index, reason[:1000])]
        )

    def confirm_gap(self, gap: WaitingGap) -> None:
        """A notice of this generation was handed over; the worker is told with the next resolutions."""
        self._gaps_known[gap.number] = True
        self._gaps_seen.append(gap.number)

    def send_resolutions(self) -> None:
        """Send what was noted."""
        wanted = self._wanted
        if self._resolutions:
            messages: list[Message] = []
            for (segment_seq, token, outcome, delay_ns), indexes in self._resolutions.items():
                tag = self.next_tag()
                packed = indexes.tobytes()
                if outcome in _LASTING:
                    self.unconfirmed.note(segment_seq, indexes)
                messages.append(
                    Resolve(tag, wanted.topic, wanted.subscriber, segment_seq, token, outcome, packed, delay_ns)
                )
            self._resolutions.clear()
            self.send(messages)
            if self.unconfirmed.noted_count >= UNCONFIRMED_MAX:
                self.flush_progress()
        if self._gaps_seen:
            self.gap_acks = [call for call in self.gap_acks if not call.is_done]
            for number in self._gaps_seen:
                self.gap_acks.append(self._gap_ack(number))
                self.call(self.gap_acks[-1])
            self._gaps_seen.clear()

    def resolve_late(self, parcel: Parcel, bundle_indexes: Sequence[int], outcome: str) -> None:
        """The connection that the parcel came by was lost: the worker cannot be told."""
        if outcome in _LASTING:
            self.unconfirmed.note_late(parcel.segment.segment_seq, bundle_indexes)

    def flush_progress(self) -> Call:
        """Ask the worker to make durable what was sent to it."""
        topic, subscriber = self._wanted.topic, self._wanted.subscriber
        call = Call(lambda tag: FlushProgress(tag, topic, subscriber))
        self.call(call)
        self.unconfirmed.asked(call.tag)
        return call

    def forget(self, call: Call) -> None:
        """As the base class, but for what tells that a notice was handed over: the next flush waits for the same. A bundle that has just
        come for it, which nobody took, goes back."""
        parcel = self.claimed.pop(call.tag, None)
        if parcel is not None:
            self.give_back(parcel)
            self.send_resolutions()
        if not isinstance(call.request, GapAck):
            super().forget(call)

    def tend(self, now_ns: int) -> None:
        """What is due without anybody asking: the watchdog, and leases of bundles that wait in the inbox."""
        if not self.is_registered:
            return
        if now_ns - self._credit_sent_ns >= WATCHDOG_NS:
            self._give_credit()
        lease_ns = self._wanted.terms.lease_ns
        if lease_ns:
            due_ns = now_ns - lease_ns // 3
            due = [grant for grant in self.grants.values() if grant.waiting and grant.asked_at_ns <= due_ns]
            if due:
                self.call(self.extension(due, now_ns))

    def extension(self, grants: Iterable[Grant], now_ns: int) -> Call:
        """A request that begins the leases anew; `_answered` notes what comes of it."""
        wanted = self._wanted
        tokens = array("Q")
        for grant in grants:
            grant.asked_at_ns = now_ns
            tokens.append(grant.token)
        return Call(lambda tag: Extend(tag, wanted.topic, wanted.subscriber, tokens.tobytes()))

    def _gap_ack(self, number: int) -> Call:
        topic, subscriber = self._wanted.topic, self._wanted.subscriber
        return Call(lambda tag: GapAck(tag, topic, subscriber, number))

    def stop_deliveries(self) -> None:
        """Take the credit back that is unused, for good: what is returned from now on goes to others."""
        self._is_stopping = True
        if self.is_registered:
            self._give_credit()

    def _give_credit(self) -> None:
        self._credit_total = 0 if self._is_stopping else self._credit_total + self._taken
        self._taken = 0
        self._credit_sent_ns = time.monotonic_ns()
        self.send([Credit(self._wanted.topic, self._wanted.subscriber, self._credit_total)])

    def release(self, grant: Grant, bundles: int) -> None:
        """So many of its bundles are not held any more."""
        grant.unresolved -= bundles
        if grant.unresolved <= 0:
            self.grants.pop(grant.token, None)

    # --- what the worker says --------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        wanted = self._wanted
        try:
            self._projection = wanted.asked.resolve(self.slots_of(wanted.topic))
        except QuiverError as error:
            self._fail_connection(error)
            return
        self._register_tag = self.next_tag()
        known_as = self.topic_infos[wanted.topic].incarnation
        self.send([Register(self._register_tag, wanted.topic, wanted.subscriber, self._start, wanted.terms, known_as)])

    def _received(self, message: WorkerMessage, descriptor: int | None) -> bool:
        if isinstance(message, Deliver):
            self._deliver(message)
        elif isinstance(message, SegmentOpened):
            self._map(message, descriptor)
        elif isinstance(message, SegmentRetired):
            # Whatever waits of it was evicted, expired, or resolved by another consumer.
            self._inbox.withdraw(self, message.segment_seq)
            self.segments.pop(message.segment_seq, None)
        elif isinstance(message, Gap):
            self._gap(message)
        elif isinstance(message, Done) and message.tag == self._register_tag:
            self.is_registered = True
            self._credit_total = self._wanted.prefetch
            self._give_credit()
        elif isinstance(message, NotResolved):
            self._not_resolved(message)
        elif isinstance(message, Refused):
            self._refused(message)
        else:
            return False
        return True

    def _answered(self, call: Call) -> None:
        if isinstance(call.request, FlushProgress) and call.error is None:
            self.unconfirmed.confirmed(call.request.tag)
        if isinstance(call.answer, Extended) and isinstance(call.request, Extend):
            ended = set(array("Q", call.answer.ended))
            for token in array("Q", call.request.tokens):
                grant = self.grants.get(token)
                if grant is not None:
                    # 1: over for a long time.
                    grant.lease_until_ns = 1 if token in ended else call.answer.lease_until_ns

    def _deliver(self, message: Deliver) -> None:
        segment = self.segments.get(message.segment_seq)
        if segment is None or len(message.delivery_counts) * 2 != len(message.bundle_indexes):
            self._fail_connection(
                ProtocolError(
                    f"worker {self.core} delivered bundles of segment {message.segment_seq} without its file or their counts"
                )
            )
            return
        grant = self.grants.get(message.token)
        if grant is None:
            now_ns = time.monotonic_ns()
            grant = self.grants[message.token] = Grant(message.token, message.lease_until_ns, now_ns)
        parcel = Parcel(self, grant, segment, message)
        if not message.tag:
            self._inbox.append(parcel)
        elif self._answer(message, None):
            self.claimed[message.tag] = parcel
        else:
            # Whoever asked for it has given up waiting.
            self.give_back(parcel)
            self.send_resolutions()

    def _map(self, message: SegmentOpened, descriptor: int | None) -> None:
        assert descriptor is not None, "the connection checks that this message carries a descriptor"
        try:
            self.segments[message.segment_seq] = MappedSegment(
                descriptor,
                message.size_bytes,
                message.segment_seq,
                self.topics[self._wanted.topic],
                self.core,
                self._projection,
            )
        except QuiverError as error:
            # Its bundles cannot be read here and now: end the connection, so that they go to whoever can.
            self._fail_connection(error)

    def _gap(self, message: Gap) -> None:
        handed_over = self._gaps_known.get(message.notice)
        if handed_over is None:
            self._gaps_known[message.notice] = False
            self._inbox.append(WaitingGap(self, message))
        elif handed_over:
            # The worker has not heard that it was: say it again.
            self.gap_acks.append(self._gap_ack(message.notice))
            self.call(self.gap_acks[-1])

    def _not_resolved(self, message: NotResolved) -> None:
        for refusal in message.refusals:
            indexes = array("I", refusal.bundle_indexes)
            self.refused_count += len(indexes)
            for index in indexes:
                self.refusals[message.segment_seq, message.token, index] = refusal.code
            logger.warning(
                "quiver.subscription.not_resolved subscriber=%s core=%d segment=%d bundles=%d reason=%s",
                self._wanted.subscriber,
                self.core,
                message.segment_seq,
                len(indexes),
                refusal.code,
            )
        while len(self.refusals) > REFUSALS_KEPT:
            del self.refusals[next(iter(self.refusals))]

    def _refused(self, message: Refused) -> None:
        error = refusal_error(message)
        if message.tag == self._register_tag:
            self._fail_connection(error)
            return
        self.refused_count += 1
        logger.warning(
            "quiver.subscription.refused subscriber=%s core=%d error=%s", self._wanted.subscriber, self.core, error
        )

    def _lost(self) -> None:
        if self.is_registered:
            # Should the node come back without knowing the subscriber, nothing that was pushed meanwhile may be skipped.
            self._start = "earliest"
        self.is_registered = False
        self.segments.clear()
        self.grants.clear()
        self.claimed.clear()
        self.gap_acks.clear()
        for (segment_seq, _, outcome, _), indexes in self._resolutions.items():
            if outcome in _LASTING:
                self.unconfirmed.note_late(segment_seq, indexes)
        self._resolutions.clear()
        self.unconfirmed.connection_lost()
        self._gaps_seen.clear()
        self._gaps_known.clear()
        self._taken = 0
