"""The window of one call that pushes: its groups wait, are under way, and end as receipts.

Plain, numbered and staged pushes are sent by the same `Sender`; their `SendRules` say where the bundles go, how they are marked, and which
refusals are final.

Guarantees:
- A receipt is only made from the worker's acknowledgement of that bundle.
- Bundles are sent in the order of their numbers. What was under way when a connection was lost is sent again, in order, in front of what
  follows: at least once, never lost unannounced.
- After a refusal nothing is sent until everything under way is answered, as a worker refuses what is behind a refused message.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable

from quiver_actors.base.model import Durability
from quiver_actors.base.protocol.messages import ListTopics
from quiver_actors.client.archived import incarnations_of
from quiver_actors.client.archiving import archiving
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import ChannelSet, unavailable_error
from quiver_actors.client.exchange import FOREVER_NS, Flow, Steps, deadline_after
from quiver_actors.client.grouping import Planned
from quiver_actors.client.known_topics import recreated_error
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.requests import Requests
from quiver_actors.client.retry import retry_at_ns
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.targets import Target
from quiver_actors.errors import ClosedError, DurabilityUnknown, PushTimeout, QuiverError, SequenceGap
from quiver_actors.store.encoding.entries import PlannedBundles, plan
from quiver_actors.store.encoding.streams import StreamTable

_NO_GENERATION = -1


class SendRules(ABC):
    """The difference between plain, numbered and staged pushes, for the time of one call."""

    call = 0
    """Number of the call, sent as `Push.call`; 0: the worker need not know which messages belong together."""
    awaits_first = False
    """Whether nothing follows the first group until the worker has acknowledged a bundle of the call on the current connection."""

    @abstractmethod
    def core(self) -> int:
        """Return the core that the bundles go to now."""

    @abstractmethod
    def may_use(self, channel: PushChannel) -> bool:
        """Return whether more bundles may be sent over this channel, open or not; False: look for another one.

        Raises:
            TransactionAborted: the bundles are bound to a connection that is lost.
        """

    def target(self, number: int) -> Target | None:
        """Return the mark of a group whose first bundle has this number; None: the group is plainly pushed."""
        return None

    @abstractmethod
    def final_error(self, refusal: QuiverError, *, is_first: bool) -> QuiverError | None:
        """Return the error that ends the call after a refusal; None: the group is sent again.

        Args:
            is_first: whether everything in front of what was refused is acknowledged.
        """

    @abstractmethod
    def timeout_text(
        self, topic: str, core: int, unsent: PushGroup | None, bundles: int, timeout_seconds: float
    ) -> str:
        """Return the message of PushTimeout.

        Args:
            unsent: the group that waits for room in the arena while nothing is under way.
            bundles: number of bundles under way without an acknowledgement.
        """


class Sender:
    """The window of one call. Owned by one thread; methods that return a `Flow` are driven by the exchange.

    Only the oldest group under way is looked at: the worker answers in order, and a lost connection takes all groups at once.
    """

    def __init__(
        self,
        channels: ChannelSet[PushChannel],
        rules: SendRules,
        streams: StreamTable,
        timeout_seconds: float,
        first_number: int = 0,
    ) -> None:
        """
        Args:
            streams: the streams of the topic that is pushed to.
            timeout_seconds: the longest time without an acknowledgement.
            first_number: number of the first bundle; the others follow it.
        """
        self.receipts = Receipts(streams.topic)
        self._channels = channels
        self._rules = rules
        self.streams = streams
        """Streams of the topic, which name it."""
        self._timeout_seconds = timeout_seconds
        now_ns = time.monotonic_ns()
        self._deadline_ns = deadline_after(timeout_seconds)
        self._timeout_ns = self._remaining_ns = self._deadline_ns - now_ns
        """Time left until the next acknowledgement must arrive, while no group is under way."""
        self._next_number = first_number
        self._waiting: deque[PushGroup] = deque()
        self._under_way: deque[PushGroup] = deque()
        self._channel = channels.channel(rules.core())
        self._generation = _NO_GENERATION
        """Generation of the channel when the topic was found; as long as it lasts, the channel is open."""
        self._slots: TopicSlots | None = None
        self._incarnation = ""
        """Incarnation of the topic on the connection of `_generation`; empty: the worker does not say."""
        self._topics: Call | None = None
        """Request for the worker's topics, made where the topic is newer than the connection."""
        self._is_confirmed = False
        """Whether a bundle of the call was acknowledged on the current connection."""
        self._is_after_refusal = False
        """Whether the next message is the first one after a refusal: messages that were under way behind it are refused, too."""
        self._retry_at_ns = 0
        self._refusal: QuiverError | None = None
        """The newest refusal since the last acknowledgement, raised when the time is over. A SequenceGap follows from another one, and
        after DurabilityUnknown no other refusal says that nothing was stored."""

    @property
    def channel(self) -> PushChannel:
        """The channel that is used now."""
        return self._channel

    def opening(self) -> Flow[TopicSlots]:
        """Wait until the channel is open. While nothing is sent, the node may come back with other workers.

        Raises:
            UnknownTopic: the node does not have the call's topic.
        """
        while not self._connect():
            yield self._wake_at_ns()
        self._remaining_ns = max(0, self._deadline_ns - time.monotonic_ns())
        assert self._slots is not None, "the channel has found the topic"
        return self._slots

    def sending(self, groups: Iterable[Planned]) -> Steps[Receipts]:
        """Send groups in order and wait for the receipts of all their bundles. Groups are made between the steps, outside of the lock."""
        try:
            for planned in groups:
                yield self.submitting(planned)
            yield self.finishing()
        finally:
            self.withdraw()
        return self.receipts

    def submitting(self, planned: Planned) -> Flow[None]:
        """Send bundles behind the others; wait while the arena has no room for them."""
        self._look()
        if not self._under_way and not self._waiting:
            self._deadline_ns = time.monotonic_ns() + self._remaining_ns
        number = self._next_number
        self._next_number += len(planned)
        self._waiting.append(PushGroup(number, planned, self._rules.target(number)))
        while not self._advance():
            yield self._wake_at_ns()

    def finishing(self) -> Flow[None]:
        """Wait until everything is as durable as the topic promises."""
        yield from self._acknowledging()
        if self.receipts.archives_as:
            yield from self._archiving(is_progress_waited_for=True)

    def _acknowledging(self) -> Flow[None]:
        if time.monotonic_ns() >= self._deadline_ns:
            self._look()
        while not self._advance() or self._under_way:
            yield self._wake_at_ns()

    def storing(self, planned: Planned) -> Flow[None]:
        """Send the only group, and wait until it is acknowledged: the lock is taken once instead of twice."""
        yield from self.submitting(planned)
        yield from self._acknowledging()
        if self.receipts.archives_as:
            yield from self._archiving(is_progress_waited_for=False)

    def _archiving(self, *, is_progress_waited_for: bool) -> Flow[None]:
        incarnations, timeout_seconds = self.receipts.archives_as, self._timeout_seconds
        if not all(incarnations.values()):
            asked = yield from incarnations_of(Requests(self._channels, timeout_seconds), self.streams.topic)
            incarnations.update({core: asked.get(core, "") for core, known in incarnations.items() if not known})
        run_dir = self._channels.directory.run_dir
        yield from archiving(run_dir, self.receipts, timeout_seconds, is_progress_waited_for=is_progress_waited_for)

    def withdraw(self) -> None:
        """Give up whatever was not sent, at the end of the call. Takes the lock."""
        if self._waiting:
            with contextlib.suppress(ClosedError), self._channels.exchange.lock:
                self._channels.exchange.check_open()
                for group in self._waiting:
                    self._channel.withdraw(group)

    def _look(self) -> None:
        """Collect the answers that arrived while the caller made its bundles: while they fit, no call waits, so no call reads."""
        if self._under_way:
            self._channels.exchange.look()
            self._collect()

    # --- the way out ---------------------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        """Whether the channel is open to a worker that takes the bundles and knows their topic; if not, see to it."""
        channel = self._channel
        may_use = self._rules.may_use(channel)
        if may_use and channel.generation == self._generation:
            return True
        if channel.is_open and (may_use or self._under_way):
            # Of a core whose worker is gone, this client may have been the last to hear: first come the refusals of what is under way.
            return may_use and self._finds_topic()
        for group in self._waiting:
            channel.withdraw(group)
        # The node may have come back with other workers.
        self._channel = channel = self._channels.channel(self._rules.core())
        self._generation, self._topics = _NO_GENERATION, None
        channel.connect_if_due(time.monotonic_ns())
        channel.check_usable()
        return channel.is_open and self._finds_topic()

    def _finds_topic(self) -> bool:
        """Whether the worker of the open channel, which is another one than before, has the topic.

        Raises:
            UnknownTopic, TopicRecreated: it does not, or it has another one of that name.
        """
        channel, topics = self._channel, self._channel.topics
        if self.streams.topic not in topics:
            self._topics = self._topics or Call(ListTopics)
            if channel.is_learning(self.streams.topic, self._topics):
                return False
        self._slots = topics.slots_of(self.streams.topic)
        former = self._incarnation
        self._incarnation = topics.incarnation_of(self.streams.topic) or former
        if former and self._incarnation != former:
            raise recreated_error(self.streams.topic)
        self._generation, self._is_confirmed = channel.generation, False
        return True

    def _advance(self) -> bool:
        """Collect the answers, send the groups that can be sent, and return whether every group is sent."""
        self._collect()
        waiting, under_way = self._waiting, self._under_way
        if not waiting:
            return True
        if not self._connect() or time.monotonic_ns() < self._retry_at_ns or (self._is_after_refusal and under_way):
            return False
        # Keep the order: stop at the first group that cannot be sent.
        while waiting and (self._is_confirmed or not under_way or not self._rules.awaits_first):
            group, call = waiting[0], self._rules.call
            group.deadline_ns = self._deadline_ns if self._deadline_ns < FOREVER_NS else 0
            group.call = -call if self._is_after_refusal else call
            if not self._channel.try_send(group, self.streams.topic):
                break
            self._is_after_refusal = False
            under_way.append(waiting.popleft())
        return not waiting

    # --- answers -------------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        under_way = self._under_way
        unsent: list[PushGroup] = []
        while under_way:
            group = under_way[0]
            if not (group.is_acked or group.is_lost or group.error is not None):
                break
            under_way.popleft()
            if group.acks:
                self._take_receipts(group)
            if group.error is not None:
                is_behind = bool(unsent) or (bool(self._waiting) and self._waiting[0].number < group.number)
                self._note_refusal(group.error, is_first=not is_behind)
            if not group.is_acked:
                unsent.append(self._rest_of(group))
        if unsent:
            self._waiting = deque(sorted([*self._waiting, *unsent], key=_number_of))

    def _take_receipts(self, group: PushGroup) -> None:
        for run, durability in group.acks:
            core = self._channel.core if run.core < 0 else run.core
            self.receipts.add(core, run, Durability(durability))
            if group.archives_as:
                self.receipts.archives_as[core] = group.archives_as if run.core < 0 else ""
        self._refusal = None
        self._is_confirmed = True
        self._remaining_ns = self._timeout_ns
        self._deadline_ns = time.monotonic_ns() + self._timeout_ns

    def _note_refusal(self, error: QuiverError, *, is_first: bool) -> None:
        final = self._rules.final_error(error, is_first=is_first)
        if final is not None:
            raise final
        is_told = isinstance(self._refusal, DurabilityUnknown) or isinstance(error, SequenceGap)
        if self._refusal is None or not is_told:
            self._refusal = error
        self._is_after_refusal = True
        self._retry_at_ns = retry_at_ns(error)

    def _rest_of(self, group: PushGroup) -> PushGroup:
        """Return a group of the bundles that were not acknowledged, planned anew: what was sent has lost its encoded parts."""
        unsent = group.planned.bundles_from(group.acked_count)
        plans = [plan(batches, self.streams, item_count) for batches, item_count in unsent]
        number = group.number + group.acked_count
        return PushGroup(number, PlannedBundles(plans), self._rules.target(number))

    # --- the clock -----------------------------------------------------------------------------------------------------------

    def _wake_at_ns(self) -> int:
        """Return when the next wait ends at the latest; raises when the time is over."""
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
        unsent = None if self._under_way else self._waiting[0]
        bundles = sum(len(group.planned) - group.acked_count for group in self._under_way)
        return PushTimeout(
            self._rules.timeout_text(self.streams.topic, channel.core, unsent, bundles, self._timeout_seconds)
        )


def _number_of(group: PushGroup) -> int:
    return group.number
