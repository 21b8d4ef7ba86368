"""Staging: what one attempt of one partition pushes invisibly into one worker, and what becomes of it.

Guarantees
- A token stands for bundles that are durable at the worker and visible to nobody.
- A stage is bound to the connection that began it: when that is lost, so is the stage, and every call on it says so. It is never pushed
  again behind the caller's back.
- `publishing` and `dropping` may be repeated for ever, over any connection.

A stage belongs to one thread at a time; its client may be shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from quiver_actors.base.envelope import TraceContext, parse_trace
from quiver_actors.base.protocol.messages import (
    AbandonStage,
    BeginStage,
    Done,
    DropStages,
    ListTopics,
    PrepareStage,
    StageReady,
    WorkerMessage,
)
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.exchange import Flow, Steps, deadline_after
from quiver_actors.client.producer import Producer, with_counts
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.sender import Sender, SendRules
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.client.targets import ToStage
from quiver_actors.errors import (
    QuiverError,
    TransactionAborted,
    UnknownTransaction,
    UsageError,
)
from quiver_actors.transactions.model import Token, check_txn_id

__all__ = ["Stage", "StagePlan"]

WaitArchived = Callable[[list[Token], float], None]
"""Waits until the bundles of tokens are in the archive, at most so many seconds. Raises NotArchived."""


class StagePlan(msgspec.Struct, frozen=True):
    """Identity of a stage: transaction, partition, attempt and decision log."""

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
        self,
        producer: Producer,
        channels: ChannelSet[PushChannel],
        wanted: StagePlan,
        key: str | bytes | None,
        wait_archived: WaitArchived | None = None,
    ) -> None:
        """Use `Client.stage`."""
        check_txn_id(wanted.txn_id)
        self.wanted = wanted
        self.token: Token | None = None
        """Token of the stage, once it is prepared."""
        self._producer = producer
        self._channels = channels
        self._exchange = channels.exchange
        self._key = key
        self._wait_archived = wait_archived
        self._core = -1
        self._number = 0
        """Number that the worker gave the stage; 0: the stage is not open."""
        self._generation = -1
        self._slots: TopicSlots | None = None

    @property
    def core(self) -> int:
        """The core whose worker holds the stage."""
        return self._core

    @property
    def is_open(self) -> bool:
        """Whether the worker has begun the stage, so that bundles may be pushed into it."""
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
        """Send a call until it is answered. Before each attempt the node may have come back with other workers."""
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
                        self._slots = channel.topics.slots_of(self.wanted.topic)
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
        """Return the message that abandons a stage begun after its call had timed out."""
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
        trace = parse_trace(trace_context)
        try:
            return self._exchange.run_steps(self.pushing(with_counts(bundles, item_counts), trace, timeout))
        except BaseException:
            self.abort()
            raise

    def pushing(
        self, bundles: Iterable[tuple[Bundle, int | None]], trace: Mapping[str, str], timeout_seconds: float
    ) -> Steps[int]:
        """Push bundles with their item counts like `push_many`, as steps. After an error the caller aborts the stage."""
        self._check_open()
        assert self._slots is not None, "an open stage knows its topic"
        groups = self._producer.grouped(self.wanted.topic, self._slots.traced(trace), bundles)
        streams = self._producer.streams(self.wanted.topic)
        sender = Sender(self._channels, _StageRules(self, self._number), streams, timeout_seconds)
        return len((yield from sender.sending(groups)))

    def _channel(self) -> PushChannel:
        """The connection that the stage is bound to. Raises as `check_bound`."""
        channel = self._channels.channel(self._core)
        self.check_bound(channel)
        return channel

    def check_bound(self, channel: PushChannel) -> None:
        """Check that a channel still has the connection that the stage was begun over.

        Raises:
            TransactionAborted: the connection is lost.
        """
        if channel.generation != self._generation:
            self._number = 0
            raise TransactionAborted(
                f"the connection to worker {self._core} was lost, and with it what was staged for transaction "
                f"{self.wanted.txn_id!r} (partition {self.wanted.partition}, attempt {self.wanted.attempt}): run it again"
            )

    def _check_open(self) -> None:
        if not self.is_open:
            raise UsageError(
                f"this stage of transaction {self.wanted.txn_id!r} is not open any more: begin another stage"
            )

    # --- ends ----------------------------------------------------------------------------------------------------------------

    def prepare(self, timeout: float = 60.0, *, until: str = "prepared") -> Token | None:
        """Make the stage durable. Nothing more can be pushed; it is visible to nobody until it is published.

        Args:
            until: "archived": return when the archive has the bundles, too, so that `quiver restore` prepares the stage again under its
                token if the node is lost.

        Returns:
            None if nothing was pushed: there is nothing to publish.

        Raises:
            TransactionAborted: the stage is gone. A token may exist all the same, if the connection was lost just now: nobody knows it,
                and its worker drops it after the ttl.
            WorkerUnavailable: no answer came in time. If one comes later to this client, the token is dropped then.
            NotArchived: the stage is prepared, `token` has its token, and the archive did not have it in time: decide about it as about any
                other, or wait with `Client.wait_archived([stage.token])`.
            UsageError: the topic is not archived. The stage is still open.
        """
        if until not in ("prepared", "archived"):
            raise UsageError(f"until {until!r} is not possible: expected one of prepared, archived")
        waits = self._wait_archived if until == "archived" else None
        deadline = time.monotonic() + timeout
        if waits is not None:
            waits([], 0.0)  # where nothing is ever archived, it is refused before anything is prepared
        token = self._exchange.run(self.preparing(timeout, is_awaited=waits is not None))
        if token is not None and waits is not None:
            waits([token], max(0.0, deadline - time.monotonic()))
        return token

    def preparing(self, timeout_seconds: float, *, is_awaited: bool = False) -> Flow[Token | None]:
        """Prepare the stage like `prepare`, as a flow, which does not wait for the archive."""
        self._check_open()
        number = self._number
        try:
            answer = yield from self._preparing(timeout_seconds, is_awaited=is_awaited)
        except UsageError:
            number = 0  # it was refused, and nothing has become of the stage
            raise
        finally:
            if number:
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

    def _preparing(self, timeout_seconds: float, *, is_awaited: bool) -> Flow[StageReady]:
        deadline_ns = deadline_after(timeout_seconds)
        channel, number = self._channel(), self._number
        call = Call(lambda tag: PrepareStage(tag, self.wanted.topic, number, is_awaited), self._drop_late)
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
        """Return the message that drops a stage whose token arrived too late, if its epoch is decided; the epoch may go on without it."""
        if not isinstance(answer, StageReady) or not answer.bundles:
            return None
        return DropStages(
            tag,
            self.wanted.topic,
            answer.incarnation,
            [answer.number],
            "its producer had given it up",
            only_decided=True,
        )

    def abort(self) -> None:
        """Abandon the stage if it is still open. `Client.abort_tokens` drops a prepared one. Never raises for a lost worker."""
        number, self._number = self._number, 0
        if not number:
            return
        with self._exchange.lock:
            self._exchange.check_open()
            channel = self._channels.channel(self._core)
            if channel.is_open and channel.generation == self._generation:
                try:
                    channel.send([AbandonStage(self.wanted.topic, number)])
                except BaseException:
                    self._exchange.break_off()
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def __repr__(self) -> str:
        state = "prepared" if self.token else "open" if self.is_open else "closed"
        return f"<Stage {self.wanted.txn_id!r} partition={self.wanted.partition} worker={self._core} {state}>"


class _StageRules(SendRules):
    """Bundles go into an open stage, over the connection that it was begun over and no other one."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._number = number

    def core(self) -> int:
        return self._stage.core

    def may_use(self, channel: PushChannel) -> bool:
        self._stage.check_bound(channel)
        return True

    def target(self, number: int) -> ToStage:
        return ToStage(self._number)

    def final_error(self, refusal: QuiverError, *, is_first: bool) -> QuiverError:
        return _gone(refusal)

    def timeout_text(
        self, topic: str, core: int, unsent: PushGroup | None, bundles: int, timeout_seconds: float
    ) -> str:
        return (
            f"worker {core} took no bundle of a stage for {timeout_seconds} s: it is stopped or waits for its disk; "
            "run the task again, and look at `quiver status`"
        )


def _gone(error: QuiverError) -> QuiverError:
    """A worker that does not know the stage has been restarted, or the connection is another one."""
    if isinstance(error, UnknownTransaction):
        return TransactionAborted(f"{error}: the worker was restarted or the connection lost; run it again")
    return error


# --- tokens ----------------------------------------------------------------------------------------------------------------------
