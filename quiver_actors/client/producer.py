"""Plain pushes: from bundles to receipts. `sender` has the window of a call and its guarantees.

Bundles of one call stay in order, and so do those of one thread of a client as long as its core stays the same.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from itertools import repeat

from quiver_actors.base.envelope import TraceContext, parse_trace
from quiver_actors.base.homes import place_of
from quiver_actors.base.model import Receipt
from quiver_actors.base.units import format_size
from quiver_actors.client.channels import ChannelSet
from quiver_actors.client.exchange import Steps
from quiver_actors.client.grouping import Grouping, Planned
from quiver_actors.client.lone_lane import LoneLane, unacknowledged_text
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.retry import is_retried
from quiver_actors.client.sender import Sender, SendRules
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.client.tabular import bundles_of
from quiver_actors.errors import InvalidBundle, QuiverError, UsageError, WorkerUnavailable
from quiver_actors.store.encoding.entries import PlannedBundles, plan
from quiver_actors.store.encoding.runs import RunMemory
from quiver_actors.store.encoding.streams import StreamTable

_clients = itertools.count()


class Producer:
    """The state that all pushes of one client share. Its methods may be called by several threads at once."""

    def __init__(self, channels: ChannelSet[PushChannel]) -> None:
        self._channels = channels
        self._turn = next(_clients)
        self._streams: dict[str, StreamTable] = {}
        self._memory = RunMemory()
        self.lanes: dict[str, LoneLane] = {}
        """The short ways of pushes without a key, by topic; each says itself whether it is still open."""
        self.calls = itertools.count(1)
        """Numbers of calls, as in `Push`."""

    def pushing(
        self,
        bundles: Iterable[Bundle],
        *,
        topic: str,
        key: str | bytes | None,
        item_counts: Iterable[int | None] | None,
        timeout_seconds: float,
        trace_context: TraceContext | None = None,
    ) -> Steps[Receipts]:
        """Push bundles in order to one core and wait for all receipts. Bundles are planned between the steps, outside of the lock.

        The timeout is the longest time without an acknowledgement.
        """
        trace = parse_trace(trace_context)
        sender = self._sender(topic, key, timeout_seconds)
        wrong: list[UsageError] = []
        try:
            slots = yield sender.opening()
            counted = with_counts(bundles, item_counts)
            yield from sender.sending(self._valid_groups(topic, slots.traced(trace), counted, wrong))
        except WorkerUnavailable:
            self._look_elsewhere(key)
            raise
        if wrong:
            stored = len(sender.receipts)
            if stored:
                wrong[0].add_note(f"bundle {stored} of this push_many: the {stored} before it are stored")
            raise wrong[0]
        return sender.receipts

    def pushing_one(
        self,
        bundle: Bundle,
        *,
        topic: str,
        key: str | bytes | None,
        item_count: int | None,
        timeout_seconds: float,
        trace_context: TraceContext | None = None,
    ) -> Steps[Receipt]:
        """`pushing` of one bundle, which is grouped with no other, and the lock is taken twice instead of three times."""
        trace = parse_trace(trace_context)
        sender = self._sender(topic, key, timeout_seconds)
        try:
            slots = yield sender.opening()
            planned = plan(slots.traced(trace).batches_of(bundle), sender.streams, item_count)
            yield sender.storing(PlannedBundles([planned]))
        except WorkerUnavailable:
            self._look_elsewhere(key)
            raise
        finally:
            sender.withdraw()
        if key is None:
            self._open_lane(topic, slots, sender)
        return sender.receipts[0]

    def _open_lane(self, topic: str, slots: TopicSlots, sender: Sender) -> None:
        """Let the next pushes that travel alone go the short way, if there is one that leads where this push went."""
        lane = self.lanes.get(topic)
        if lane is None or not lane.is_open:
            directory, channel = self._channels.directory, sender.channel
            lane = LoneLane(self._channels.exchange, directory, channel, slots, sender.streams)
            if lane.is_open and channel.core == self.core_for(None):
                self.lanes[topic] = lane
            else:
                self.lanes.pop(topic, None)

    def _sender(self, topic: str, key: str | bytes | None, timeout_seconds: float) -> Sender:
        return Sender(
            self._channels, _PlainRules(self, self._channels.directory, key), self.streams(topic), timeout_seconds
        )

    def _look_elsewhere(self, key: str | bytes | None) -> None:
        """The next call without a key goes to another worker."""
        if key is None:
            self._turn += 1
            self.lanes.clear()

    def streams(self, topic: str) -> StreamTable:
        """The streams that were pushed to a topic."""
        found = self._streams.get(topic)
        return self._streams.setdefault(topic, StreamTable(topic)) if found is None else found

    def core_for(self, key: str | bytes | None) -> int:
        """Return the core that a key belongs to; without a key, the client's default core."""
        cores = self._channels.directory.push_cores
        if key is None:
            # By process id, so that forked workers, which have neighbouring ids and inherit the rest, spread over the cores.
            return cores[(os.getpid() + self._turn) % len(cores)]
        if not isinstance(key, str | bytes | bytearray | memoryview):
            raise UsageError(
                f"key={key!r} is not possible: expected a text or bytes; bundles with equal keys stay in order"
            )
        key_bytes = key.encode() if isinstance(key, str) else key
        return cores[place_of(key_bytes, len(cores))]

    def grouped(self, topic: str, slots: TopicSlots, bundles: Iterable[tuple[Bundle, int | None]]) -> Iterator[Planned]:
        """Encode bundles with their item counts, and give out as many as go into one message.

        Raises:
            UsageError: a bundle cannot be pushed; everything in front of it has been given out.
        """
        return Grouping(slots, self.streams(topic), self._memory).groups(bundles)

    def _valid_groups(
        self, topic: str, slots: TopicSlots, bundles: Iterable[tuple[Bundle, int | None]], wrong: list[UsageError]
    ) -> Iterator[Planned]:
        """Yield the groups in front of the first bundle that cannot be pushed. Its error goes into `wrong`: the bundles in front of it are
        acknowledged first."""
        try:
            yield from self.grouped(topic, slots, bundles)
        except UsageError as error:
            wrong.append(error)


class _PlainRules(SendRules):
    """Bundles stay with the worker that they began with for as long as the connection holds, and go to another one after a loss."""

    def __init__(self, producer: Producer, directory: WorkerDirectory, key: str | bytes | None) -> None:
        self.call = next(producer.calls)
        self._producer = producer
        self._directory = directory
        self._key = key

    def core(self) -> int:
        return self._producer.core_for(self._key)

    def may_use(self, channel: PushChannel) -> bool:
        return channel.core in self._directory.push_cores

    def final_error(self, refusal: QuiverError, *, is_first: bool) -> QuiverError | None:
        return None if is_retried(refusal) else refusal

    def timeout_text(
        self, topic: str, core: int, unsent: PushGroup | None, bundles: int, timeout_seconds: float
    ) -> str:
        where = f"topic {topic!r}, worker {core}"
        if unsent is not None:
            return (
                f"no room for {format_size(unsent.size_bytes)} in the shared memory of {where} within {timeout_seconds} s: the worker "
                "is stopped, waits for the disk, or other pushes of this client come first; nothing of it was sent"
            )
        return unacknowledged_text(topic, core, bundles, timeout_seconds)


def with_counts(
    bundles: Iterable[Bundle], item_counts: Iterable[int | None] | None
) -> Iterator[tuple[Bundle, int | None]]:
    """Pair each bundle with its item count, None where none was given. A reader, table or frame gives a bundle for each of its batches."""
    bundles = bundles_of(bundles)
    if item_counts is None:
        return zip(bundles, repeat(None), strict=False)
    return _with_given_counts(bundles, item_counts)


def _with_given_counts(
    bundles: Iterable[Bundle], item_counts: Iterable[int | None]
) -> Iterator[tuple[Bundle, int | None]]:
    counts = iter(item_counts)
    for bundle in bundles:
        count = next(counts, _MISSING)
        if isinstance(count, _Missing):
            raise InvalidBundle("there are more bundles than item counts: give one for each bundle, None where unknown")
        yield bundle, count


class _Missing:
    pass


_MISSING = _Missing()
