"""Holding a topic for a reader of ranges: a durable subscriber that claims nothing, and keeps from deletion what it has not acknowledged.

Guarantees: as long as the hold's subscriber lives, nothing behind its last `ack_through` is deleted without a gap notice to it. Workers
that were restarted are attached to again before they are asked anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from quiver_actors.client.channel import Call, Channel, refusal_error
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.exchange import Exchange, Flow, deadline_after
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.errors import ClosedError
from quiver_actors.model import check_id
from quiver_actors.protocol.messages import (
    AckThrough,
    Flush,
    Gap,
    GapAck,
    ListSegments,
    Message,
    Pending,
    PendingInfo,
    Refused,
    Register,
    SegmentInfo,
    SegmentList,
    Terms,
    WorkerMessage,
)

_Make: TypeAlias = "Callable[[int], Message]"


class HeldCore(NamedTuple):
    """What one worker has for the holder."""

    segments: list[SegmentInfo]
    """Sealed and found whole, oldest first, up to the first one that is still to be checked."""
    gaps: list[Gap]
    """Notices that were not confirmed: these bundles the holder will never get."""
    oldest: tuple[int, int] | None
    """(segment, bundle) of the oldest sealed bundle that is not acknowledged."""
    unsettled: list[int]
    """Numbers of other segments, which are to come, or a notice of their loss: not sealed, not checked, or to be rescued. Rising."""
    next_segment_seq: int
    """No segment has had this number or a higher one; -1: the worker does not say."""
    incarnation: str
    """Of the directory that these numbers are of; empty: the worker does not say."""
    is_leaving: bool
    """Nothing more will come: the node is being drained, and waits for what is not acknowledged."""


class _HoldChannel(Channel):
    """Attaches to the subscriber on every new connection; collects gap notices."""

    def __init__(self, hold: Hold, core: int) -> None:
        super().__init__(hold._exchange, hold._directory, core, hold._client_name)
        self.gaps: dict[int, Gap] = {}
        self._hold = hold
        self._start = hold._starts.get(core, hold._start)
        self._register_tag = 0

    def _opened(self) -> None:
        hold = self._hold
        self.slots_of(hold.topic)
        self._register_tag = self.next_tag()
        self.send([Register(self._register_tag, hold.topic, hold.subscriber, self._start, hold._terms)])
        # Should the worker ever come back without the subscriber, nothing that was stored meanwhile may be skipped.
        self._start = "earliest"

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
    """See the module. Connections of its own; made by `Client.hold`. Close it, or let its process end: the subscriber stays."""

    def __init__(
        self,
        directory: NodeDirectory,
        client_name: str,
        topic: str,
        subscriber: str,
        *,
        start: str,
        starts: Mapping[int, str],
        ttl_ns: int,
        timeout_seconds: float,
    ) -> None:
        """`start`: of a new subscriber, as `Register` has it; `starts`: the same where a core has another one."""
        self.topic = check_id("topic", topic)
        self.subscriber = check_id("subscriber", subscriber)
        self._directory = directory
        self._client_name = client_name
        self._start = start
        self._starts = starts
        # Not "oldest": that one tells a gap only after the bundles in front of it were claimed.
        self._terms = Terms(lease_ns=0, order="newest", orphan_ttl_ns=ttl_ns)
        self._timeout_seconds = timeout_seconds
        self._exchange = Exchange()
        self._channels = ChannelSet(self._exchange, directory, lambda core: _HoldChannel(self, core))

    def look(self, *, flush: bool = False) -> dict[int, HeldCore]:
        """What every worker of the node has now, attached to where it was not.

        Args:
            flush: seal what is open first, so that all that was acknowledged before is there.

        Raises:
            UnknownTopic, WorkerUnavailable: as everywhere.
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
        """Wait until the notices have arrived that the workers owe."""
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
    """What is in front of the first segment that is not checked: a notice about that one may still come."""
    unchecked = [info.segment_seq for info in listed.segments if not info.is_checked]
    first_unchecked = min(unchecked, default=None)

    def is_in_front(segment_seq: int) -> bool:
        return first_unchecked is None or segment_seq < first_unchecked

    return HeldCore(
        [info for info in listed.segments if is_in_front(info.segment_seq)],
        [gap for gap in channel.gaps.values() if is_in_front(gap.segment_seq)],
        None if info.oldest_segment_seq < 0 else (info.oldest_segment_seq, info.oldest_bundle_index),
        sorted([*unchecked, *listed.unlisted]),
        listed.next_segment_seq,
        listed.incarnation,
        info.is_leaving,
    )
