"""Holding a topic for a reader of ranges: a durable subscriber that claims nothing, and keeps from deletion what it has not acknowledged.

Guarantees: as long as the hold's subscriber lives, nothing behind its last `ack_through` is deleted without a gap notice to it. Workers
that were restarted are attached to again before they are asked anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from quiver_actors.base.model import check_id
from quiver_actors.base.protocol.messages import (
    AckThrough,
    CheckSegment,
    Flush,
    Gap,
    GapAck,
    ListSegments,
    Message,
    OpenSegment,
    Pending,
    PendingInfo,
    Refused,
    Register,
    SegmentInfo,
    SegmentList,
    SegmentOpened,
    Terms,
    WorkerMessage,
)
from quiver_actors.client.calls import Call, refusal_error
from quiver_actors.client.channel import Channel
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.exchange import Exchange, Flow, deadline_after
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.errors import ClosedError

_REASON_CHARS = 1000
_Make: TypeAlias = "Callable[[int], Message]"


class HeldCore(NamedTuple):
    """Segments and notices that one worker has for the holder."""

    segments: list[SegmentInfo]
    """Sealed and found whole, oldest first, up to the first one that is still to be checked."""
    unsealed: list[SegmentInfo]
    """Not sealed, oldest first: what can be read of them, up to there too. Nothing comes to any but the last of them."""
    gaps: list[Gap]
    """Unconfirmed gap notices: bundles that the holder will never get."""
    oldest: tuple[int, int] | None
    """(segment, bundle) of the oldest bundle that can be read and is not acknowledged."""
    unsettled: list[int]
    """Rising numbers of segments that will still come, or a notice of their loss: not sealed, not checked, or to be rescued."""
    next_segment_seq: int
    """No segment has had this number or a higher one; -1: the worker does not say."""
    incarnation: str
    """Incarnation of the directory that these segment numbers belong to; empty: the worker does not say."""
    is_leaving: bool
    """Whether the node is being drained: nothing more will come, and the node waits for what is not acknowledged."""
    unsealed_from: tuple[int, int] | None = None
    """Segment number and log position at which begins what is not sealed, or the next log will; None: the worker does not say."""


class _HoldChannel(Channel):
    """Attaches to the subscriber on every new connection; collects gap notices."""

    def __init__(
        self, exchange: Exchange, directory: WorkerDirectory, core: int, client_name: str, register: Register
    ) -> None:
        """
        Args:
            register: the request that attaches; its tag is not used.
        """
        super().__init__(exchange, directory, core, client_name)
        self.gaps: dict[int, Gap] = {}
        self._register = register
        self._register_tag = 0

    def _opened(self) -> None:
        self.topics.slots_of(self._register.topic)
        self._register_tag = self.next_tag()
        self.send([msgspec.structs.replace(self._register, tag=self._register_tag)])
        # Should the worker ever come back without the subscriber, nothing that was stored meanwhile may be skipped.
        self._register = msgspec.structs.replace(self._register, start="earliest")

    def _received(self, message: WorkerMessage, descriptor: int | None) -> bool:
        if isinstance(message, Refused) and message.tag == self._register_tag:
            self._fail_connection(refusal_error(message))
        elif isinstance(message, Gap):
            self.gaps[message.notice] = message
        else:
            return False
        return True

    def _lost(self) -> None:
        self.gaps.clear()


class Hold:
    """A durable subscriber that keeps bundles from deletion and claims none. It has its own connections; `Client.hold` makes it.

    Close it, or let its process end: the subscriber stays.
    """

    def __init__(
        self,
        exchange: Exchange,
        directory: WorkerDirectory,
        client_name: str,
        topic: str,
        subscriber: str,
        *,
        start: str,
        starts: Mapping[int, str],
        ttl_ns: int,
        timeout_seconds: float,
    ) -> None:
        """`start`: where a new subscriber begins, in the form of `Register.start`; `starts`: the exceptions, by core."""
        self.topic = check_id("topic", topic)
        self.subscriber = check_id("subscriber", subscriber)
        self._directory = directory
        self._timeout_seconds = timeout_seconds
        self._exchange = exchange
        # Not "oldest": that one tells a gap only after the bundles in front of it were claimed.
        terms = Terms(lease_ns=0, order="newest", orphan_ttl_ns=ttl_ns)

        def make_channel(core: int) -> _HoldChannel:
            register = Register(0, topic, subscriber, starts.get(core, start), terms)
            return _HoldChannel(exchange, directory, core, client_name, register)

        self._channels = ChannelSet(exchange, directory, make_channel)

    def look(self, *, flush: bool = False) -> dict[int, HeldCore]:
        """Return what every worker of the node has now; attaches to workers where the hold is not attached.

        Args:
            flush: seal open segments first, so that everything acknowledged before is included.

        Raises:
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        self._directory.refresh()
        if flush:
            self._ask_all(lambda tag: Flush(tag, self.topic))
        # In this order: of what leaves the list the notice has been made then, and is waited for.
        listed = self._ask_all(lambda tag: ListSegments(tag, self.topic))
        pending = self._ask_all(lambda tag: Pending(tag, self.topic, self.subscriber))
        infos = {core: call.answer for core, call in pending.items() if isinstance(call.answer, PendingInfo)}
        self._exchange.run(self._hearing({core: info.gaps for core, info in infos.items()}))
        return {
            core: _held(self._channels.channel(core), call.answer, infos[core])
            for core, call in listed.items()
            if isinstance(call.answer, SegmentList)
        }

    def ack_through(self, core: int, segment_seq: int, bundle_index: int) -> None:
        """Resolve everything of a core up to and including a bundle; durable on return. The same or less again is no error."""
        self._ask({core: Call(lambda tag: AckThrough(tag, self.topic, self.subscriber, segment_seq, bundle_index))})

    def confirm(self, core: int, notice: int) -> None:
        """A gap notice was taken note of; it does not come again."""
        self._ask({core: Call(lambda tag: GapAck(tag, self.topic, self.subscriber, notice))})
        self._channels.channel(core).gaps.pop(notice, None)

    def open_segment(self, core: int, segment_seq: int) -> tuple[int, int]:
        """The descriptor of a sealed segment's file, for the caller to close, and the file's size.

        Raises:
            NotStored, StorageUnavailable: the segment is not there (any more), or cannot be read now.
        """
        call = Call(lambda tag: OpenSegment(tag, self.topic, segment_seq))
        self._ask({core: call})
        assert isinstance(call.answer, SegmentOpened), "only this answers OpenSegment"
        assert call.descriptor is not None, "the connection checks that this message carries a descriptor"
        return call.descriptor, call.answer.size_bytes

    def report_damage(self, core: int, segment_seq: int, reason: str) -> None:
        """Have the worker check the file of a segment that was found damaged; it rescues what it can, and notices tell the rest."""
        self._ask({core: Call(lambda tag: CheckSegment(tag, self.topic, segment_seq, reason[:_REASON_CHARS]))})

    def close(self) -> None:
        """End the connections. The subscriber goes on holding until its time to live is over. Idempotent."""
        try:
            with self._exchange.lock:
                self._exchange.check_open()
                self._channels.close()
        except ClosedError:
            return
        self._exchange.close()

    def _hearing(self, owed: Mapping[int, int]) -> Flow[None]:
        """Wait until the notices that the workers owe have arrived. `owed` has their numbers by core."""
        deadline_ns = deadline_after(self._timeout_seconds)
        for core, count in owed.items():
            channel = self._channels.channel(core)
            while channel.is_open and len(channel.gaps) < count:
                if time.monotonic_ns() >= deadline_ns:
                    raise unavailable_error(channel, self._timeout_seconds)
                yield deadline_ns

    def _ask_all(self, make: _Make) -> dict[int, Call]:
        calls = {core: Call(make) for core in self._directory.cores}
        self._ask(calls)
        return calls

    def _ask(self, calls: dict[int, Call]) -> None:
        self._exchange.run(self._channels.completing(calls, self._timeout_seconds))
        for core, call in calls.items():
            failure = self._channels.channel(core).failure
            if call.error is not None and failure is not None:
                # Who may not attach hears why, not what a worker says to those it does not know.
                raise failure from call.error
        raise_refusals(calls.values())


def _held(channel: _HoldChannel, listed: SegmentList, info: PendingInfo) -> HeldCore:
    """Return what lies before the first unchecked segment: a gap notice about that segment may still come.

    What lies behind it is still to come too, even if it was checked: segments that are wanted are checked first.
    """
    first_unchecked = min((info.segment_seq for info in listed.segments if not info.is_checked), default=None)

    def is_in_front(segment_seq: int) -> bool:
        return first_unchecked is None or segment_seq < first_unchecked

    return HeldCore(
        [info for info in listed.segments if is_in_front(info.segment_seq)],
        [info for info in listed.open_segments if is_in_front(info.segment_seq)],
        [gap for gap in list(channel.gaps.values()) if is_in_front(gap.segment_seq)],
        None if info.oldest_segment_seq < 0 else (info.oldest_segment_seq, info.oldest_bundle_index),
        sorted(
            {*(each.segment_seq for each in listed.segments if not is_in_front(each.segment_seq)), *listed.unlisted}
        ),
        listed.next_segment_seq,
        listed.incarnation,
        info.is_leaving,
        listed.unsealed_from,
    )
