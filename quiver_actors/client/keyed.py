"""Pushing as an idempotent producer: bundles carry their number, and what the worker has stored already it does not store again.

Guarantees
- Each bundle is stored once, however often connections, workers and this process are lost, as long as the producer pushes what it is not
  sure of again under the same numbers: within one call that is done here.
- Bundles of one producer go to one worker and stay in the order of their numbers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from quiver_actors.client.channel import Call
from quiver_actors.client.channels import ChannelSet, unavailable_error
from quiver_actors.client.exchange import Flow, Steps, deadline_after
from quiver_actors.client.grouping import GROUP_BUNDLES_MAX, GROUP_BYTES_MAX
from quiver_actors.client.producer import Producer
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.retry import is_retried, retry_at_ns
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.client.targets import Key
from quiver_actors.encoding.entries import BundlePlan, PlannedBundles, plan
from quiver_actors.envelope import TraceContext, parse_trace
from quiver_actors.errors import DurabilityUnknown, PushTimeout, QuiverError, SequenceGap, UsageError
from quiver_actors.model import ENVELOPE_SLOT, Durability
from quiver_actors.protocol.messages import ListTopics
from quiver_actors.transactions.keys import check_key, with_key


def pushing_keyed(
    producer: Producer,
    channels: ChannelSet[PushChannel],
    bundles: Iterable[tuple[Bundle, int | None]],
    topic: str,
    key: str | bytes | None,
    name: str | None,
    first: int | None,
    timeout_seconds: float,
    trace_context: TraceContext | None = None,
) -> Steps[Receipts]:
    """Push bundles with their item counts as producer `name`, numbered from `first` on, and wait for all receipts.

    Raises:
        UsageError: a key without its other half, or a key to route by, which only the producer's name may be.
        SequenceGap, SequenceTooOld: the numbers do not follow what is stored.
        And as `Client.push`.
    """
    if name is None or first is None or key is not None:
        raise UsageError(
            "an idempotent push needs both producer and sequence, and goes where its producer's bundles go: no key"
        )
    check_key(name, first)
    trace = parse_trace(trace_context)
    run = _KeyedRun(producer, channels, topic, name, timeout_seconds)
    slots = yield run.opening()
    for number, plans in run.grouped(slots.traced(trace), bundles, first):
        yield run.submitting(PushGroup(number, PlannedBundles(plans), Key(name, number)))
    yield run.finishing()
    return run.receipts


class _KeyedRun:
    """One call. Groups wait, are under way, and end as receipts, always in the order of their numbers. Owned by one thread."""

    def __init__(
        self, producer: Producer, channels: ChannelSet[PushChannel], topic: str, name: str, timeout_seconds: float
    ) -> None:
        self.receipts = Receipts(topic)
        self._producer = producer
        self._channels = channels
        self._topic = topic
        self._name = name
        self._core = producer.core_for(name)
        self._timeout_seconds = timeout_seconds
        self._deadline_ns = deadline_after(timeout_seconds)
        self._waiting: deque[PushGroup] = deque()
        self._under_way: deque[PushGroup] = deque()
        self._retry_at_ns = 0
        self._refusal: QuiverError | None = None
        self._is_known = False
        """The worker has told that it stores bundles of this producer, since the connection was lost last."""

    def opening(self) -> Flow[TopicSlots]:
        """Wait until the worker is there. While nothing is sent, the node may come back with other workers.

        Raises:
            UnknownTopic: the node does not have the run's topic.
        """
        topics = Call(ListTopics)
        # A connection that has ended while nobody looked is no way any more, and what is sent over it may have been stored or not.
        self._channels.exchange.look()
        while True:
            channel = self._channels.channel(self._core)
            channel.connect_if_due(time.monotonic_ns())
            core, self._core = self._core, self._producer.core_for(self._name)
            if self._core != core:
                continue
            channel.check_usable()
            if channel.is_open and not channel.is_learning(self._topic, topics):
                return channel.slots_of(self._topic)
            yield self._wake_at(channel)

    def grouped(
        self, slots: TopicSlots, bundles: Iterable[tuple[Bundle, int | None]], first: int
    ) -> Iterator[tuple[int, list[BundlePlan]]]:
        """As many bundles as go into one message, with the number of the first of them."""
        streams = self._producer.streams(self._topic)
        group: list[BundlePlan] = []
        group_bytes, number = 0, first
        for bundle, item_count in bundles:
            batches = dict(slots.batches_of(bundle))
            batches[ENVELOPE_SLOT] = with_key(batches.get(ENVELOPE_SLOT), self._name, number + len(group))
            planned = plan(sorted(batches.items()), streams, item_count)
            if group and (len(group) == GROUP_BUNDLES_MAX or group_bytes + planned.entry_bytes > GROUP_BYTES_MAX):
                yield number, group
                number += len(group)
                group, group_bytes = [], 0
            group.append(planned)
            group_bytes += planned.entry_bytes
        if group:
            yield number, group

    def submitting(self, group: PushGroup) -> Flow[None]:
        """Send a group behind the others; wait while there is no room for it."""
        if not self._under_way and not self._waiting:
            self._deadline_ns = deadline_after(self._timeout_seconds)
        self._waiting.append(group)
        yield from self._until(lambda: not self._waiting)

    def finishing(self) -> Flow[None]:
        """Wait until everything is acknowledged."""
        yield from self._until(lambda: not self._waiting and not self._under_way)

    def _until(self, is_done: Callable[[], bool]) -> Flow[None]:
        channel = self._channels.channel(self._core)
        if self._under_way:
            # What was answered while the caller made its bundles: as long as there is room for them nobody waits, and nobody reads.
            self._channels.exchange.look()
        try:
            while True:
                self._collect()
                self._send(channel)
                if is_done():
                    return
                yield self._wake_at(channel)
        except BaseException:
            for group in self._waiting:
                channel.withdraw(group)
            raise

    def _send(self, channel: PushChannel) -> None:
        now_ns = time.monotonic_ns()
        channel.connect_if_due(now_ns)
        channel.check_usable()
        # While one of an earlier message is to be sent again, nothing behind it may go first.
        if not channel.is_open or now_ns < self._retry_at_ns or (self._refusal and self._under_way):
            return
        if self._waiting:
            self._waiting[0].deadline_ns = self._deadline_ns
        # Nor behind the first: for a worker that does not know the producer it begins with what comes first, if that one is refused.
        while self._waiting and self._may_follow and channel.try_send(self._waiting[0], self._topic):
            self._under_way.append(self._waiting.popleft())

    @property
    def _may_follow(self) -> bool:
        return self._is_known or not self._under_way

    def _collect(self) -> None:
        again: list[PushGroup] = []
        while self._under_way:
            group = self._under_way[0]
            if not (group.is_acked or group.is_lost or group.error is not None):
                break
            self._under_way.popleft()
            self._take_receipts(group)
            self._is_known = not group.is_lost and (self._is_known or bool(group.acks))
            if group.error is not None:
                self._note_refusal(group.error)
            if not group.is_acked:
                again.append(self._rest_of(group))
        if again:
            self._waiting = deque(sorted([*self._waiting, *again], key=lambda group: group.number))

    def _note_refusal(self, error: QuiverError) -> None:
        """A worker that is being replaced is asked again; so is what came behind such a refusal, and was a gap by that. What may have been
        stored is not stored again."""
        is_behind = isinstance(error, SequenceGap) and self._refusal is not None
        if not is_retried(error) and not is_behind and not isinstance(error, DurabilityUnknown):
            raise error
        self._refusal = self._refusal or error
        self._retry_at_ns = retry_at_ns(error)

    def _rest_of(self, group: PushGroup) -> PushGroup:
        streams = self._producer.streams(self._topic)
        unsent = group.planned.bundles_from(group.acked_count)
        plans = [plan(batches, streams, item_count) for batches, item_count in unsent]
        number = group.number + group.acked_count
        return PushGroup(number, PlannedBundles(plans), Key(self._name, number))

    def _take_receipts(self, group: PushGroup) -> None:
        for run, durability in group.acks:
            self.receipts.add(self._core, run, Durability(durability))
        if group.acks:
            self._refusal = None
            self._deadline_ns = deadline_after(self._timeout_seconds)

    def _wake_at(self, channel: PushChannel) -> int:
        now_ns = time.monotonic_ns()
        if now_ns >= self._deadline_ns:
            raise self._timeout_error(channel)
        retry_ns = self._retry_at_ns if self._retry_at_ns > now_ns else self._deadline_ns
        return min(self._deadline_ns, channel.retry_at_ns, retry_ns)

    def _timeout_error(self, channel: PushChannel) -> QuiverError:
        if self._refusal is not None:
            return self._refusal
        if not channel.is_open or not (self._under_way or self._waiting):
            return unavailable_error(channel, self._timeout_seconds)
        return PushTimeout(
            f"bundles of producer {self._name!r} for topic {self._topic!r}, worker {self._core} were not acknowledged within "
            f"{self._timeout_seconds} s: push them again under the same numbers, and look at `quiver status`"
        )
