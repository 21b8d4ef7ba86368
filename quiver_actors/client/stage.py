"""Staging: what one attempt of one partition pushes invisibly into one worker, and what becomes of it.

Guarantees
- A token stands for bundles that are durable at the worker and visible to nobody.
- A stage is bound to the connection that began it: when that is lost, so is the stage, and every call on it says so. It is never pushed
  again behind the caller's back.
- `publishing` and `dropping` may be repeated for ever, over any connection.

A stage belongs to one thread at a time; its client may be shared.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from quiver_actors.client.channel import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.exchange import Flow, deadline_after
from quiver_actors.client.grouping import Planned
from quiver_actors.client.producer import Producer, with_counts
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.retry import is_retried, retry_at_ns
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.client.targets import ToStage
from quiver_actors.envelope import TraceContext, parse_trace
from quiver_actors.errors import (
    DecisionUnavailable,
    PushTimeout,
    QuiverError,
    TransactionAborted,
    UnknownTransaction,
    UsageError,
)
from quiver_actors.protocol.base import Message
from quiver_actors.protocol.messages import (
    AbandonStage,
    BeginStage,
    Decide,
    Decided,
    Done,
    DropStages,
    ListTopics,
    PrepareStage,
    PublishStages,
    StageReady,
    WorkerMessage,
)
from quiver_actors.transactions.model import Decision, Token, check_txn_id

__all__ = ["Stage", "StagePlan", "deciding", "dropping", "publishing"]


class StagePlan(msgspec.Struct, frozen=True):
    """What a stage is begun for."""

    txn_id: str
    topic: str
    partition: int
    attempt: int
    epoch: int
    decisions: str
    ttl_seconds: float
    node: str


class Stage:
    """One open stage. See `Client.stage`; a context manager that aborts unless it was prepared."""

    def __init__(
        self, producer: Producer, channels: ChannelSet[PushChannel], wanted: StagePlan, key: str | bytes | None
    ) -> None:
        """Use `Client.stage`."""
        check_txn_id(wanted.txn_id)
        self.wanted = wanted
        self.token: Token | None = None
        """Once it is prepared."""
        self._producer = producer
        self._channels = channels
        self._exchange = channels.exchange
        self._key = key
        self._core = -1
        self._number = 0
        """Of the worker; 0: not open."""
        self._generation = -1
        self._slots: TopicSlots | None = None
        self._numbers = itertools.count()
        self._under_way: deque[PushGroup] = deque()

    @property
    def core(self) -> int:
        """The worker that it is on."""
        return self._core

    @property
    def is_open(self) -> bool:
        """Bundles may be pushed."""
        return self._number > 0

    def beginning(self, timeout_seconds: float) -> Flow[None]:
        """Open it, on the core that its key belongs to now. For `Client.stage`."""
        call = Call(self._begin_message, self._give_up_late)
        channel = yield from self._answered_by(call, timeout_seconds)
        raise_refusals([call])
        assert isinstance(call.answer, Done), "only this answers BeginStage"
        # Bound to the connection that the answer came by: another one, or none, may be there by now.
        self._core, self._number = channel.core, call.answer.value

    def _answered_by(self, call: Call, timeout_seconds: float) -> Flow[PushChannel]:
        """Send it until it is answered. Each time the node may have come back with other workers."""
        deadline_ns, topics = deadline_after(timeout_seconds), Call(ListTopics)
        channel = self._channels.channel(self._producer.core_for(self._key))
        try:
            while not call.is_done:
                now_ns = time.monotonic_ns()
                if not call.tag:
                    channel = self._channels.channel(self._producer.core_for(self._key))
                    channel.connect_if_due(now_ns)
                    channel.check_usable()
                    if channel.is_open and not channel.is_learning(self.wanted.topic, topics):
                        self._slots = channel.slots_of(self.wanted.topic)
                        self._generation = channel.generation
                        channel.call(call)
                if now_ns >= deadline_ns:
                    raise unavailable_error(channel, timeout_seconds)
                yield min(deadline_ns, channel.retry_at_ns)
        finally:
            channel.forget(call)
        return channel

    def _begin_message(self, tag: int) -> BeginStage:
        wanted = self.wanted
        ttl_ns = nanoseconds("ttl", wanted.ttl_seconds)
        return BeginStage(
            tag,
            wanted.topic,
            wanted.txn_id,
            wanted.epoch,
            wanted.partition,
            wanted.attempt,
            wanted.decisions,
            ttl_ns,
        )

    def _give_up_late(self, answer: WorkerMessage, _: int) -> AbandonStage | None:
        """A stage that was begun after nobody waited for it."""
        return AbandonStage(self.wanted.topic, answer.value) if isinstance(answer, Done) else None

    # --- pushing -------------------------------------------------------------------------------------------------------------

    def push(
        self,
        bundle: Bundle,
        *,
        item_count: int | None = None,
        trace_context: TraceContext | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Lay one bundle behind the others. The worker has it when this returns; it is durable with `prepare`.

        Raises:
            TransactionAborted: the stage is gone, and everything in it: run the task again.
            And as `Client.push`.
        """
        self.push_many((bundle,), item_counts=(item_count,), trace_context=trace_context, timeout=timeout)

    def push_many(
        self,
        bundles: Iterable[Bundle],
        *,
        item_counts: Iterable[int | None] | None = None,
        trace_context: TraceContext | None = None,
        timeout: float = 30.0,
    ) -> int:
        """Lay bundles behind the others, many at a time. Returns how many.

        Args:
            trace_context: as of `Client.push`; all of them belong to it.
            timeout: the longest time in seconds without an acknowledgement.

        Raises:
            As `push`. After any error the stage is aborted.
        """
        trace, count = parse_trace(trace_context), 0
        try:
            for planned in self._grouped(with_counts(bundles, item_counts), trace):
                count += len(planned)
                self._exchange.run(self._sending(planned, timeout))
            self._exchange.run(self._settling(timeout))
        except BaseException:
            self.abort()
            raise
        return count

    def _grouped(self, bundles: Iterable[tuple[Bundle, int | None]], trace: Mapping[str, str]) -> Iterator[Planned]:
        self._check_open()
        assert self._slots is not None
        return self._producer.grouped(self.wanted.topic, self._slots.traced(trace), bundles)

    def _sending(self, planned: Planned, timeout_seconds: float) -> Flow[None]:
        """Send bundles; wait while there is no room for them in the arena."""
        group = PushGroup(next(self._numbers), planned, ToStage(self._number))
        deadline_ns = group.deadline_ns = deadline_after(timeout_seconds)
        if self._under_way:
            # As long as there is room nobody waits, and nobody reads.
            self._exchange.look()
            self._collect()
        channel = self._channel()
        try:
            while not channel.try_send(group, self.wanted.topic):
                if self._collect():
                    deadline_ns = deadline_after(timeout_seconds)
                yield self._wake_at(deadline_ns, timeout_seconds)
                self._channel()
        except BaseException:
            channel.withdraw(group)
            raise
        self._under_way.append(group)

    def _settling(self, timeout_seconds: float) -> Flow[None]:
        """Wait until everything that was sent is acknowledged."""
        deadline_ns = deadline_after(timeout_seconds)
        while self._under_way:
            self._channel()
            if self._collect():
                deadline_ns = deadline_after(timeout_seconds)
            elif self._under_way:
                yield self._wake_at(deadline_ns, timeout_seconds)

    def _collect(self) -> bool:
        """Take in what was acknowledged; True if something was."""
        found = False
        while self._under_way and (self._under_way[0].is_acked or self._under_way[0].error is not None):
            group = self._under_way.popleft()
            if group.error is not None:
                raise _gone(group.error)
            found = True
        return found

    def _channel(self) -> PushChannel:
        """The connection that the stage is bound to.

        Raises:
            TransactionAborted: it is lost.
        """
        channel = self._channels.channel(self._core)
        if channel.generation != self._generation or any(group.is_lost for group in self._under_way):
            self._number = 0
            raise TransactionAborted(
                f"the connection to worker {self._core} was lost, and with it what was staged for transaction "
                f"{self.wanted.txn_id!r} (partition {self.wanted.partition}, attempt {self.wanted.attempt}): run it again"
            )
        return channel

    def _wake_at(self, deadline_ns: int, timeout_seconds: float) -> int:
        if time.monotonic_ns() >= deadline_ns:
            raise PushTimeout(
                f"worker {self._core} took no bundle of a stage for {timeout_seconds} s: it is stopped or waits for its disk; "
                "run the task again, and look at `quiver status`"
            )
        return deadline_ns

    def _check_open(self) -> None:
        if not self.is_open:
            raise UsageError(f"this stage of transaction {self.wanted.txn_id!r} is not open any more")

    # --- ends ----------------------------------------------------------------------------------------------------------------

    def prepare(self, timeout: float = 60.0) -> Token | None:
        """Make the stage durable. Nothing more can be pushed; it is visible to nobody until it is published.

        Returns:
            None if nothing was pushed: there is nothing to publish.

        Raises:
            TransactionAborted: the stage is gone. A token may exist all the same, if the connection was lost just now: nobody knows it,
                and its worker drops it after the ttl.
            WorkerUnavailable: no answer came in time. If one comes later to this client, the token is dropped then.
        """
        return self._exchange.run(self.preparing(timeout))

    def preparing(self, timeout_seconds: float) -> Flow[Token | None]:
        """As `prepare`."""
        self._check_open()
        try:
            answer = yield from self._preparing(timeout_seconds)
        finally:
            self._number = 0
        self.token = self._token(answer) if answer.bundles else None
        return self.token

    def _token(self, answer: StageReady) -> Token:
        wanted = self.wanted
        return Token(
            wanted.txn_id,
            wanted.epoch,
            wanted.partition,
            wanted.attempt,
            wanted.node,
            wanted.topic,
            self._core,
            answer.incarnation,
            answer.number,
            answer.bundles,
            answer.rows,
            answer.size_bytes,
            answer.expires_unix_ns,
        )

    def _preparing(self, timeout_seconds: float) -> Flow[StageReady]:
        deadline_ns = deadline_after(timeout_seconds)
        channel, number = self._channel(), self._number
        call = Call(lambda tag: PrepareStage(tag, self.wanted.topic, number), self._drop_late)
        channel.call(call)
        try:
            while not call.is_done:
                self._channel()
                if time.monotonic_ns() >= deadline_ns:
                    raise unavailable_error(channel, timeout_seconds)
                yield deadline_ns
        finally:
            channel.forget(call)
        if call.error is not None:
            raise _gone(call.error)
        assert isinstance(call.answer, StageReady), "only this answers PrepareStage"
        return call.answer

    def _drop_late(self, answer: WorkerMessage, tag: int) -> DropStages | None:
        """A token that nobody has got: nothing can decide for it."""
        if not isinstance(answer, StageReady) or not answer.bundles:
            return None
        return DropStages(tag, self.wanted.topic, answer.incarnation, [answer.number], "its producer had given it up")

    def abort(self) -> None:
        """Give the stage up, if it is still open. A prepared one is given up by `Client.abort_tokens`. Never raises for a lost worker."""
        number, self._number = self._number, 0
        if not number:
            return
        with self._exchange.lock:
            self._exchange.check_open()
            channel = self._channels.channel(self._core)
            self._under_way.clear()
            if channel.is_open and channel.generation == self._generation:
                channel.send([AbandonStage(self.wanted.topic, number)])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def __repr__(self) -> str:
        state = "prepared" if self.token else "open" if self.is_open else "closed"
        return f"<Stage {self.wanted.txn_id!r} partition={self.wanted.partition} worker={self._core} {state}>"


def _gone(error: QuiverError) -> QuiverError:
    """A worker that does not know the stage has been restarted, or the connection is another one."""
    if isinstance(error, UnknownTransaction):
        return TransactionAborted(f"{error}: the worker was restarted or the connection lost; run it again")
    return error


# --- tokens ----------------------------------------------------------------------------------------------------------------------


def _publish_message(
    topic: str, tokens: list[Token], *, drop_others: bool, retired_core: int = -1
) -> Callable[[int], PublishStages]:
    first, numbers = tokens[0], [token.number for token in tokens]
    if len({(token.txn_id, token.incarnation) for token in tokens}) > 1:
        raise UsageError(
            "tokens of several transactions, or of several lives of one directory, cannot be published together"
        )
    return lambda tag: PublishStages(tag, topic, first.txn_id, first.incarnation, numbers, drop_others, retired_core)


def _drop_message(topic: str, tokens: list[Token]) -> Callable[[int], DropStages]:
    incarnation, numbers = tokens[0].incarnation, [token.number for token in tokens]
    return lambda tag: DropStages(tag, topic, incarnation, numbers)


def publishing(
    channels: ChannelSet[PushChannel], tokens: Sequence[Token], *, drop_others: bool, timeout_seconds: float
) -> Flow[None]:
    """Make all tokens visible: workers in parallel, topics one after the other."""
    channels.directory.refresh()
    for topic, of_cores in _by_place(tokens).items():
        for core in of_cores.keys() - set(channels.directory.cores):
            # All of it was delivered, so nothing is left to publish: any worker can tell.
            make = _publish_message(topic, of_cores.pop(core), drop_others=False, retired_core=core)
            yield from _insisting(channels, {channels.directory.cores[0]: make}, timeout_seconds)
        makes = {core: _publish_message(topic, of_core, drop_others=drop_others) for core, of_core in of_cores.items()}
        yield from _insisting(channels, makes, timeout_seconds)


def dropping(channels: ChannelSet[PushChannel], tokens: Sequence[Token], timeout_seconds: float) -> Flow[None]:
    for topic, of_cores in _by_place(tokens).items():
        makes = {core: _drop_message(topic, of_core) for core, of_core in of_cores.items()}
        yield from _insisting(channels, makes, timeout_seconds)


def _insisting(
    channels: ChannelSet[PushChannel], makes: Mapping[int, Callable[[int], Message]], timeout_seconds: float
) -> Flow[None]:
    """Ask each core until it has done it; one that is being restarted is asked again."""
    deadline_ns = deadline_after(timeout_seconds)
    while makes:
        calls = {core: Call(make) for core, make in makes.items()}
        yield from channels.completing(calls, timeout_seconds)
        refusals = {core: call.error for core, call in calls.items() if is_retried(call.error)}
        makes = {core: makes[core] for core in refusals}
        raise_refusals(call for core, call in calls.items() if core not in makes or time.monotonic_ns() >= deadline_ns)
        if makes:
            yield min(deadline_ns, max(map(retry_at_ns, refusals.values())))


def deciding(
    channels: ChannelSet[PushChannel], txn_id: str, epoch: int, outcome: str, tokens: Sequence[Token], timeout: float
) -> Flow[Decision | None]:
    """Ask the node's own decision log; any worker will do.

    Raises:
        TransactionAborted, DecisionUnavailable, InvalidId: see `Decisions`.
    """
    encoded = tuple(token.encode() for token in tokens)
    call = Call(lambda tag: Decide(tag, txn_id, epoch, outcome, encoded))
    yield from channels.asking_any(call, timeout)
    raise_refusals([call])
    assert isinstance(call.answer, Decided), "only this answers Decide"
    if not call.answer.decision:
        return None
    try:
        return msgspec.json.decode(call.answer.decision, type=Decision)
    except msgspec.DecodeError as error:
        raise DecisionUnavailable(f"the worker's answer is no decision: {error}") from error


def _by_place(tokens: Iterable[Token]) -> dict[str, dict[int, list[Token]]]:
    found: dict[str, dict[int, list[Token]]] = {}
    for token in tokens:
        found.setdefault(token.topic, {}).setdefault(token.core, []).append(token)
    return found
