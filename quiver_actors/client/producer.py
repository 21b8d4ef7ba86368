"""Pushing: from bundles to receipts, over connections that may be lost on the way.

Guarantees:
- A receipt is only made from the worker's acknowledgement of that bundle.
- What was under way when a connection was lost is pushed again, in order, in front of what follows: at least once, never lost unannounced.
- Bundles of one call stay in order, and so do those of one thread of a client as long as its core stays the same. Where a worker that is
  hard pressed refuses a message it refuses those behind it, and they are sent again when all of them are answered.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat

import xxhash

from quiver_actors.client.channel import Call
from quiver_actors.client.channels import ChannelSet, unavailable_error
from quiver_actors.client.exchange import FOREVER_NS, Flow, Steps, deadline_after
from quiver_actors.client.grouping import Grouping, Planned
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.retry import is_retried, retry_at_ns
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.encoding.entries import PlannedBundles, plan
from quiver_actors.encoding.runs import RunMemory
from quiver_actors.encoding.streams import StreamTable
from quiver_actors.envelope import TraceContext, parse_trace
from quiver_actors.errors import (
    ClosedError,
    InvalidBundle,
    PushTimeout,
    QuiverError,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.model import Durability, Receipt
from quiver_actors.protocol.messages import ListTopics
from quiver_actors.units import SECOND_NS, format_size

_clients = itertools.count()


class Producer:
    """What all pushes of one client share. Its methods may be called by several threads at once."""

    def __init__(self, channels: ChannelSet[PushChannel]) -> None:
        self._channels = channels
        self._turn = next(_clients)
        self._streams: dict[str, StreamTable] = {}
        self._memory = RunMemory()
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
        run = _PushRun(self, self._channels, topic, key, timeout_seconds)
        try:
            slots = yield run.opening()
            for planned in self._grouped(run, slots.traced(trace), bundles, item_counts):
                yield run.submitting(planned)
            yield run.finishing()
        except WorkerUnavailable:
            self._look_elsewhere(key)
            raise
        finally:
            run.withdraw()
        run.check_bundles()
        return run.receipts

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
        """`pushing` of one bundle: no neighbours to look for, and the lock is taken twice instead of three times."""
        trace = parse_trace(trace_context)
        run = _PushRun(self, self._channels, topic, key, timeout_seconds)
        try:
            slots = yield run.opening()
            planned = plan(slots.traced(trace).batches_of(bundle), self.streams(topic), item_count)
            yield run.storing(PlannedBundles([planned]))
        except WorkerUnavailable:
            self._look_elsewhere(key)
            raise
        finally:
            run.withdraw()
        return run.receipts[0]

    def _look_elsewhere(self, key: str | bytes | None) -> None:
        """The next call without a key goes to another worker."""
        if key is None:
            self._turn += 1

    def streams(self, topic: str) -> StreamTable:
        """The streams that were pushed to a topic."""
        return self._streams.setdefault(topic, StreamTable(topic))

    def core_for(self, key: str | bytes | None) -> int:
        """The core that a key belongs to; without a key, the one that this client has settled on."""
        cores = self._channels.directory.push_cores
        if key is None:
            # By process id, so that forked workers, which have neighbouring ids and inherit the rest, spread over the cores.
            return cores[(os.getpid() + self._turn) % len(cores)]
        key_bytes = key.encode() if isinstance(key, str) else key
        return cores[xxhash.xxh3_64_intdigest(key_bytes) % len(cores)]

    def grouped(self, topic: str, slots: TopicSlots, bundles: Iterable[tuple[Bundle, int | None]]) -> Iterator[Planned]:
        """Encode bundles with their item counts, and give out as many as go into one message.

        Raises:
            UsageError: a bundle cannot be pushed; everything in front of it has been given out.
        """
        return Grouping(slots, self.streams(topic), self._memory).groups(bundles)

    def _grouped(
        self, run: _PushRun, slots: TopicSlots, bundles: Iterable[Bundle], item_counts: Iterable[int | None] | None
    ) -> Iterator[Planned]:
        """The groups of a run. A bundle that cannot be pushed is the last one, and left in the run: those in front of it are to be
        acknowledged first."""
        try:
            yield from self.grouped(run.topic, slots, with_counts(bundles, item_counts))
        except UsageError as error:
            run.bundle_error = error


class _PushRun:
    """One call of push or push_many: its groups, oldest first, and the receipts so far. Owned by one thread.

    Groups wait, are under way, and end as receipts. Only the oldest one under way is looked at: the worker answers in order, and a
    lost connection takes all of them at once.
    """

    def __init__(
        self, producer: Producer, channels: ChannelSet[PushChannel], topic: str, key: str | bytes | None, timeout: float
    ) -> None:
        self.topic = topic
        self.receipts = Receipts(topic)
        self.bundle_error: UsageError | None = None
        """What is wrong with the bundle behind those that were submitted."""
        self._producer = producer
        self._channels = channels
        self._exchange = channels.exchange
        self._key = key
        self._timeout_seconds = timeout
        self._remaining_seconds = timeout
        """Of the time to the next acknowledgement, while nothing is under way."""
        self._deadline_ns = deadline_after(timeout)
        self._waiting: deque[PushGroup] = deque()
        self._under_way: deque[PushGroup] = deque()
        self._channel = channels.channel(producer.core_for(key))
        self._numbers = itertools.count()
        self._call = next(producer.calls)
        self._goes_on_again = False
        """The next message is the first one behind a refusal: those that were under way behind it are refused, too."""
        self._retry_at_ns = 0
        self._refusal: QuiverError | None = None

    def opening(self) -> Flow[TopicSlots]:
        """Wait until the channel is open.

        Raises:
            UnknownTopic: the node does not have the run's topic.
        """
        topics = Call(ListTopics)
        while not self._connect() or self._channel.is_learning(self.topic, topics):
            yield self._wake_at_ns()
        self._remaining_seconds = max(0, self._deadline_ns - time.monotonic_ns()) / SECOND_NS
        return self._channel.slots_of(self.topic)

    def submitting(self, planned: Planned) -> Flow[None]:
        """Send bundles behind the others; wait while there is no room for them."""
        self._look()
        if not self._under_way and not self._waiting:
            self._deadline_ns = deadline_after(self._remaining_seconds)
        self._waiting.append(PushGroup(next(self._numbers), planned))
        while not self._advance():
            yield self._wake_at_ns()

    def finishing(self) -> Flow[None]:
        """Wait until everything is acknowledged."""
        if time.monotonic_ns() >= self._deadline_ns:
            self._look()
        while not self._advance() or self._under_way:
            yield self._wake_at_ns()

    def storing(self, planned: Planned) -> Flow[None]:
        """`submitting` and `finishing` of the only group."""
        yield from self.submitting(planned)
        yield from self.finishing()

    def check_bundles(self) -> None:
        """Raise what was wrong with a bundle."""
        if self.bundle_error is None:
            return
        stored = len(self.receipts)
        if stored:
            self.bundle_error.add_note(f"bundle {stored} of this push_many: the {stored} before it are stored")
        raise self.bundle_error

    def withdraw(self) -> None:
        """Give up whatever is not acknowledged."""
        if self._waiting:
            with contextlib.suppress(ClosedError), self._exchange.lock:
                self._exchange.check_open()
                for group in self._waiting:
                    self._channel.withdraw(group)

    def _connect(self) -> bool:
        """Whether the channel is open to a worker that takes bundles; if not, see to it."""
        channel = self._channel
        takes_bundles = channel.core in self._channels.directory.push_cores
        if channel.is_open and (takes_bundles or self._under_way):
            # Of a core whose worker is gone, this client may have been the last to hear: first come the refusals of what is under way.
            return takes_bundles
        for group in self._waiting:
            channel.withdraw(group)
        # The node may have come back with other workers.
        self._channel = channel = self._channels.channel(self._producer.core_for(self._key))
        channel.connect_if_due(time.monotonic_ns())
        channel.check_usable()
        return channel.is_open

    def _advance(self) -> bool:
        """Take in what was answered, send what can be sent, and say whether everything is sent."""
        self._collect()
        waiting = self._waiting
        if not waiting:
            return True
        if not self._connect() or time.monotonic_ns() < self._retry_at_ns or (self._goes_on_again and self._under_way):
            return False
        # In order: behind one that has to wait, nothing is tried.
        while waiting:
            waiting[0].deadline_ns = self._deadline_ns if self._deadline_ns < FOREVER_NS else 0
            waiting[0].call = -self._call if self._goes_on_again else self._call
            if not self._channel.try_send(waiting[0], self.topic):
                break
            self._goes_on_again = False
            self._under_way.append(waiting.popleft())
        return not waiting

    def _look(self) -> None:
        """Take in what was answered while the caller made its bundles: as long as there is room for them nobody waits, and nobody reads."""
        if self._under_way:
            self._exchange.look()
            self._collect()

    def _collect(self) -> None:
        under_way = self._under_way
        while under_way:
            group = under_way[0]
            if not (group.is_acked or group.is_lost or group.error is not None):
                return
            under_way.popleft()
            self._take_receipts(group)
            if group.error is not None:
                self._note_refusal(group.error)
            if not group.is_acked:
                self._send_again(group)

    def _note_refusal(self, error: QuiverError) -> None:
        if not is_retried(error):
            raise error
        self._refusal = error
        self._goes_on_again = True
        self._retry_at_ns = retry_at_ns(error)

    def _send_again(self, group: PushGroup) -> None:
        """Let what a group has not been acknowledged for wait in its old place."""
        streams = self._producer.streams(self.topic)
        unsent = group.planned.bundles_from(group.acked_count)
        plans = [plan(batches, streams, item_count) for batches, item_count in unsent]
        rest = PushGroup(group.number, PlannedBundles(plans))
        self._waiting = deque(sorted([*self._waiting, rest], key=_number_of))

    def _take_receipts(self, group: PushGroup) -> None:
        for run, durability in group.acks:
            self.receipts.add(self._channel.core, run, Durability(durability))
        if group.acks:
            self._refusal = None
            self._remaining_seconds = self._timeout_seconds
            self._deadline_ns = deadline_after(self._timeout_seconds)

    def _wake_at_ns(self) -> int:
        """Until when to wait for something to happen; raises when the time is over."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._deadline_ns:
            raise self._timeout_error()
        wake_at_ns = self._channel.retry_at_ns
        if self._retry_at_ns > now_ns:
            wake_at_ns = min(wake_at_ns, self._retry_at_ns)
        return min(self._deadline_ns, wake_at_ns)

    def _timeout_error(self) -> QuiverError:
        if self._refusal is not None:
            return self._refusal
        channel = self._channel
        if not channel.is_open or not (self._under_way or self._waiting):
            return unavailable_error(channel, self._timeout_seconds)
        where = f"topic {self.topic!r}, worker {channel.core}"
        if not self._under_way:
            size = format_size(self._waiting[0].size_bytes)
            return PushTimeout(
                f"no room for {size} in the shared memory of {where} within {self._timeout_seconds} s: the worker is stopped, "
                "waits for the disk, or other pushes of this client come first; nothing of it was sent"
            )
        bundles = sum(len(group.planned) - group.acked_count for group in self._under_way)
        return PushTimeout(
            f"{bundles} bundles for {where} were not acknowledged within {self._timeout_seconds} s: they may still become "
            "durable; push them again if they must not be missing, and look at `quiver status`"
        )


def _number_of(group: PushGroup) -> int:
    return group.number


def with_counts(
    bundles: Iterable[Bundle], item_counts: Iterable[int | None] | None
) -> Iterator[tuple[Bundle, int | None]]:
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
