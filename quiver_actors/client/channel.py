"""The way to one worker: connects, greets, matches answers to requests, and connects again after a loss.

    CLOSED --connected--> GREETING --Welcome--> OPEN --lost--> CLOSED (retry after a growing delay)

Used under the lock of its exchange. Nothing here waits: callers ask `connect_if_due`, look at `is_open`, and wait on the exchange until
`retry_at_ns` at the latest.

Guarantees: a request whose connection was lost is marked unsent, never dropped; a tag is never used twice; `generation` rises with each
loss, so that what belonged to an earlier connection can be told.
"""

from __future__ import annotations

import enum
import os
import select
import time
from collections.abc import Iterable
from typing import TypeAlias

from quiver_actors.base.protocol.messages import (
    PROTOCOL_VERSION,
    ArenaAttached,
    Decided,
    Deliver,
    Done,
    Extended,
    Hello,
    Message,
    PendingInfo,
    Refused,
    SchemaList,
    SegmentList,
    SegmentOpened,
    Sought,
    StageList,
    StageReady,
    StatisticsList,
    SubscriberList,
    TopicList,
    Welcome,
    WorkerMessage,
)
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client.calls import ANSWERS, Call, PendingCalls, refusal_error
from quiver_actors.client.connection import WorkerConnection
from quiver_actors.client.exchange import FOREVER_NS, Exchange
from quiver_actors.client.known_topics import KnownTopics
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.errors import (
    ProtocolError,
    QuiverError,
    TopicRecreated,
    WorkerUnavailable,
)

RETRY_NS_FIRST = 10 * MILLISECOND_NS
RETRY_NS_MAX = 200 * MILLISECOND_NS
LASTING_NS = SECOND_NS
"""A connection that held for so long makes the next retry a quick one again."""
GREETING_NS_MAX = 5 * SECOND_NS
"""A worker that took the connection but says nothing for so long (stopped, hung) is tried again."""

Answer: TypeAlias = (
    Done
    | Refused
    | SchemaList
    | SegmentList
    | SegmentOpened
    | ArenaAttached
    | Deliver
    | Extended
    | PendingInfo
    | SubscriberList
    | Sought
    | StageReady
    | StatisticsList
    | StageList
    | Decided
    | TopicList
)


class ChannelState(enum.Enum):
    """State of a connection to a worker: none, waiting for the worker's `Welcome`, or usable."""

    CLOSED = enum.auto()
    GREETING = enum.auto()
    OPEN = enum.auto()


class Channel:
    """The connection to the worker of one core. Subclasses add what they push or receive through the hooks at the end."""

    def __init__(self, exchange: Exchange, directory: WorkerDirectory, core: int, client_name: str) -> None:
        self.core = core
        self.generation = 0
        self.features = 0
        """Bits of `Welcome.features` of the worker that has welcomed last."""
        self.retry_at_ns = 0
        """Monotonic time from which `connect_if_due` tries again."""
        self.failure: QuiverError | None = None
        """Reason why the channel is not open; None while it is open or was never tried."""
        self._was_raised = False
        """Whether a caller was told of the failure."""
        self.topics = KnownTopics()
        """Topics that the worker has named; those of the last connection while the channel is not open."""
        self._exchange = exchange
        self._directory = directory
        self._client_name = client_name
        self._connection: WorkerConnection | None = None
        self._state = ChannelState.CLOSED
        self._retry_ns = RETRY_NS_FIRST
        self._opened_at_ns = FOREVER_NS
        self._calls = PendingCalls()

    @property
    def is_open(self) -> bool:
        """Whether the worker has greeted, so that requests can be sent."""
        return self._state is ChannelState.OPEN

    def connect_if_due(self, now_ns: int) -> None:
        """Connect, or give up a greeting that takes too long, if it is time to."""
        if self._state is ChannelState.OPEN or now_ns < self.retry_at_ns:
            return
        if self._state is ChannelState.GREETING:
            self._lose(WorkerUnavailable(f"worker {self.core} took the connection but does not answer"), now_ns)
            return
        try:
            connection = self._directory.connect(self.core)
        except OSError as error:
            self._fail(WorkerUnavailable(f"worker {self.core} cannot be reached: {error.strerror}"), now_ns)
        except QuiverError as error:
            self._fail(error, now_ns)
        else:
            self._greet(connection, now_ns)

    def check_usable(self, *, is_news: bool = False) -> None:
        """Raise what makes further attempts useless: a refusal or another protocol, not an absent worker.

        Args:
            is_news: only what nobody was told yet, before the next connection takes its place.
        """
        if self.failure is not None and not self.failure.retriable and not (is_news and self._was_raised):
            self._was_raised = True
            raise self.failure

    def is_learning(self, topic: str, call: Call) -> bool:
        """Whether the channel still has to learn if the topic exists, as it may be newer than the connection; the channel must be open.

        Args:
            call: request for the topics (`ListTopics`); a new one for each question.
        """
        if topic in self.topics or call.is_done:
            return False
        if not call.tag:
            self.call(call)
        return True

    def next_tag(self) -> int:
        """Return a tag for a message whose answer is no `Call`'s."""
        return self._calls.next_tag()

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages in order; the channel must be open."""
        assert self._connection is not None, "send on a channel that is not connected"
        self._connection.send(messages)
        if self._connection.wants_to_write:
            self._exchange.watch_writable(self._connection.fileno(), wanted=True)

    def call(self, call: Call) -> None:
        """Send a request whose answer will be in `call`; the channel must be open."""
        self.send([self._calls.begin(call)])

    def forget(self, call: Call) -> None:
        """Stop waiting for the answer of a call; whatever a late answer grants will be given back. A descriptor that has arrived and
        was not taken is closed."""
        self._calls.forget(call)

    def handle_events(self, events: int) -> None:
        """See `Watched`."""
        connection = self._connection
        if connection is None:
            return
        if events & select.EPOLLOUT:
            connection.flush()
            if not connection.wants_to_write:
                self._exchange.watch_writable(connection.fileno(), wanted=False)
        if events & ~select.EPOLLOUT:
            try:
                for message, descriptor in connection.receive():
                    self._handle(message, descriptor)
            except BaseException:
                # An interrupt, or what the channel is for is gone. What came behind it is lost, and said again on another connection.
                self._lose(WorkerUnavailable("what the worker said was not heard to its end"), time.monotonic_ns())
                raise
        if connection.lost is not None:
            self._lose(connection.lost, time.monotonic_ns())

    def close(self) -> None:
        """Close the connection; the worker gives claims back and forgets unanswered requests. Idempotent."""
        if self._connection is not None:
            self._lose(WorkerUnavailable("the connection was closed by its own side"), FOREVER_NS)
        else:
            # One that was raised refers to this channel by its traceback.
            self.failure = None

    def break_off(self) -> None:
        """End the connection after an interrupted call, as `Watched` says; the next use connects again."""
        self._lose(WorkerUnavailable("a call was interrupted in its middle"), 0)
        self.retry_at_ns = 0

    def abandon(self) -> None:
        """See `Watched`. The next use connects anew, as a client of its own."""
        self._lose(WorkerUnavailable("the process was forked"), 0)
        self.retry_at_ns = 0
        self.failure = None

    def _greet(self, connection: WorkerConnection, now_ns: int) -> None:
        self._connection = connection
        # Before anything waits for it: an interrupt in here breaks off what is watched.
        self._exchange.watch(connection.fileno(), self)
        self._state = ChannelState.GREETING
        self.retry_at_ns = now_ns + GREETING_NS_MAX
        self.failure = None
        self.send([Hello(PROTOCOL_VERSION, os.getpid(), self._client_name)])

    def _handle(self, message: WorkerMessage, descriptor: int | None) -> None:
        if isinstance(message, Welcome):
            self._welcome(message)
        elif isinstance(message, ANSWERS) and self._answer(message, descriptor):
            pass
        elif isinstance(message, Refused) and message.tag == 0:
            # It answers no request in particular: what this connection is for cannot go on.
            self._fail_connection(refusal_error(message))
        elif not self._received(message, descriptor) and descriptor is not None:
            os.close(descriptor)

    def _answer(self, message: Answer, descriptor: int | None) -> bool:
        """Hand an answer to the call that waits for it; False if none does."""
        call = self._calls.take(message.tag)
        if call is None:
            return False
        call.answer, call.descriptor = message, descriptor
        if isinstance(message, TopicList):
            self.topics.learn(message.topics)
        if isinstance(message, Refused):
            call.error = refusal_error(message)
            self._note_refusal(call.error, getattr(call.request, "topic", ""))
        undo = call.undoing(self.next_tag()) if call.is_forgotten else None
        if undo is not None and self.is_open:
            self.send([undo])
        self._answered(call)
        return True

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.version != PROTOCOL_VERSION:
            self._fail_connection(
                ProtocolError(
                    f"worker {self.core} speaks protocol version {welcome.version}, this client {PROTOCOL_VERSION}: "
                    "install the same version of quiver-actors on both sides"
                )
            )
            return
        self.topics.learn(welcome.topics)
        self.features = welcome.features
        self._state = ChannelState.OPEN
        self._opened_at_ns = time.monotonic_ns()
        self.retry_at_ns = FOREVER_NS
        self._opened()

    def _note_refusal(self, error: QuiverError, topic: str) -> None:
        """Reconnect if the topic was created anew, as this connection's knowledge is out of date. The error has told the caller already."""
        if isinstance(error, TopicRecreated):
            self.topics.forget_incarnation(topic)
            self._fail_connection(WorkerUnavailable(f"topic {topic!r} was created anew"))

    def _fail_connection(self, error: QuiverError) -> None:
        """End the connection for a reason of our own, once all messages that have arrived are handled."""
        assert self._connection is not None, "a message came without a connection"
        self._connection.fail(error)

    def _lose(self, error: QuiverError, now_ns: int) -> None:
        connection = self._connection
        assert connection is not None, "a connection is lost once"
        self._exchange.unwatch(connection.fileno())
        connection.close()
        self._connection = None
        if now_ns - self._opened_at_ns >= LASTING_NS:
            self._retry_ns = RETRY_NS_FIRST
        self._opened_at_ns = FOREVER_NS
        self.generation += 1
        self._calls.lose()
        self._fail(error, now_ns)
        self._lost()

    def _fail(self, error: QuiverError, now_ns: int) -> None:
        self._state = ChannelState.CLOSED
        # Without the frames that it came through: they refer to this channel, which would keep itself in memory.
        self.failure = error.with_traceback(None)
        self._was_raised = False
        self.retry_at_ns = now_ns + self._retry_ns
        self._retry_ns = min(2 * self._retry_ns, RETRY_NS_MAX)

    # --- what subclasses add ---------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """The worker has welcomed this client."""

    def _answered(self, call: Call) -> None:
        """A call has its answer."""

    def _received(self, message: WorkerMessage, descriptor: int | None) -> bool:
        """Take a message that answers no call, and its descriptor; False: neither is of interest."""
        return False

    def _lost(self) -> None:
        """The connection is gone, and all that was under way on it."""
