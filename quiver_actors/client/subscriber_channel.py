"""The subscriber's side of one worker connection: registration, credit, mapped segments, and resolutions that wait to be sent.

Used under the lock of its subscription's exchange. Nothing here waits.

Guarantees: what the worker claims for this connection is put into the inbox once, with the segment that holds it mapped; claims of a
connection that was lost are told by their generation and never resolved over another one.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from typing import NamedTuple

from quiver_actors.client.channel import Channel, refusal_error
from quiver_actors.client.delivery import Claim, GapNotice
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.segments import MappedSegment
from quiver_actors.errors import ProtocolError, QuiverError, UnknownTopic
from quiver_actors.protocol.messages import (
    Credit,
    Deliver,
    Done,
    Gap,
    Message,
    Refused,
    Register,
    Resolve,
    SegmentOpened,
    SegmentRetired,
    WorkerMessage,
)

logger = logging.getLogger("quiver.client")


class Terms(NamedTuple):
    """What a subscription asks of every worker."""

    topic: str
    subscriber: str
    prefetch: int


class SubscriberChannel(Channel):
    """A channel that bundles of one subscriber come through."""

    def __init__(
        self,
        exchange: Exchange,
        directory: NodeDirectory,
        core: int,
        client_name: str,
        *,
        terms: Terms,
        start: str,
        inbox: deque[Claim],
        gaps: deque[GapNotice],
    ) -> None:
        super().__init__(exchange, directory, core, client_name)
        self.segments: dict[int, MappedSegment] = {}
        self.is_registered = False
        self.refused_count = 0
        """Resolutions of which the worker did not accept some or all: the bundles were not claimed by this connection."""
        self._terms = terms
        self._start = start
        self._inbox = inbox
        self._gaps = gaps
        self._register_tag = 0
        self._taken = 0
        """Bundles taken from the inbox since credit was last given."""
        self._resolutions: dict[tuple[int, str, int], array[int]] = {}

    def take(self) -> None:
        """One bundle of this channel has left the inbox: let the worker send others, in portions."""
        self._taken += 1
        if 2 * self._taken >= self._terms.prefetch:
            self._give_credit(self._taken)

    def resolve(self, claim: Claim, outcome: str, delay_ns: int) -> None:
        """Note a resolution; the claim is of this generation."""
        indexes = self._resolutions.setdefault((claim.segment_seq, outcome, delay_ns), array("I"))
        indexes.append(claim.bundle_index)

    def send_resolutions(self) -> None:
        """Send what was noted."""
        if not self._resolutions:
            return
        topic, subscriber, _ = self._terms
        messages: list[Message] = []
        for (segment_seq, outcome, delay_ns), indexes in self._resolutions.items():
            tag = self.next_tag()
            messages.append(Resolve(tag, topic, subscriber, segment_seq, outcome, indexes.tobytes(), delay_ns))
        self._resolutions.clear()
        self.send(messages)

    def _give_credit(self, bundles: int) -> None:
        self._taken = 0
        self.send([Credit(self._terms.topic, self._terms.subscriber, bundles)])

    # --- what the worker says --------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        try:
            self.slots_of(self._terms.topic)
        except UnknownTopic as error:
            self._fail_connection(error)
            return
        self._register_tag = self.next_tag()
        self.send([Register(self._register_tag, self._terms.topic, self._terms.subscriber, self._start)])

    def _received(self, message: WorkerMessage, descriptor: int | None) -> bool:
        if isinstance(message, Deliver):
            self._deliver(message)
        elif isinstance(message, SegmentOpened):
            self._map(message, descriptor)
        elif isinstance(message, SegmentRetired):
            self.segments.pop(message.segment_seq, None)
        elif isinstance(message, Gap):
            self._gap(message)
        elif isinstance(message, Done) and message.tag == self._register_tag:
            self.is_registered = True
            self._give_credit(self._terms.prefetch)
        elif isinstance(message, Refused):
            self._refused(message)
        else:
            return False
        return True

    def _deliver(self, message: Deliver) -> None:
        core, generation, segment_seq = self.core, self.generation, message.segment_seq
        if segment_seq not in self.segments:
            self._fail_connection(
                ProtocolError(f"worker {core} delivered bundles of segment {segment_seq} without its file")
            )
            return
        indexes = array("I", message.bundle_indexes)
        self._inbox.extend([Claim(core, generation, segment_seq, index) for index in indexes])

    def _map(self, message: SegmentOpened, descriptor: int | None) -> None:
        assert descriptor is not None, "the connection checks that this message carries a descriptor"
        try:
            self.segments[message.segment_seq] = MappedSegment(descriptor, message.size_bytes, message.segment_seq)
        except QuiverError as error:
            # Its bundles cannot be read here and now: end the connection, so that they go to whoever can.
            self._fail_connection(error)

    def _gap(self, message: Gap) -> None:
        notice = GapNotice(
            message.topic,
            self.core,
            message.segment_seq,
            message.bundle_index_first,
            message.bundle_count,
            message.reason,
        )
        self._gaps.append(notice)
        logger.warning("quiver.subscription.gap subscriber=%s %s", self._terms.subscriber, notice)

    def _refused(self, message: Refused) -> None:
        error = refusal_error(message)
        if message.tag == self._register_tag:
            self._fail_connection(error)
            return
        self.refused_count += 1
        logger.warning(
            "quiver.subscription.refused subscriber=%s core=%d error=%s", self._terms.subscriber, self.core, error
        )

    def _lost(self) -> None:
        if self.is_registered:
            # Should the node come back without knowing the subscriber, nothing that was pushed meanwhile may be skipped.
            self._start = "earliest"
        self.is_registered = False
        self.segments.clear()
        self._resolutions.clear()
        self._taken = 0
