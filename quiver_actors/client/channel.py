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
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from quiver_actors.client.connection import Connection
from quiver_actors.client.exchange import FOREVER_NS, Exchange
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import (
    NotRunning,
    ProtocolError,
    QuiverError,
    TopicRecreated,
    UnknownTopic,
    WorkerUnavailable,
    error_classes,
)
from quiver_actors.protocol.framing import encode_frame
from quiver_actors.protocol.messages import (
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
    SegmentList,
    SegmentOpened,
    Sought,
    StageList,
    StageReady,
    SubscriberList,
    TopicInfo,
    TopicList,
    Welcome,
    WorkerMessage,
)
from quiver_actors.units import MILLISECOND_NS, SECOND_NS

RETRY_NS_FIRST = 10 * MILLISECOND_NS
RETRY_NS_MAX = 200 * MILLISECOND_NS
LASTING_NS = SECOND_NS
"""A connection that held for so long makes the next retry a quick one again."""
GREETING_NS_MAX = 5 * SECOND_NS
"""A worker that took the connection but says nothing for so long (stopped, hung) is tried again."""

Answer: TypeAlias = (
    Done
    | Refused
    | SegmentList
    | SegmentOpened
    | ArenaAttached
    | Deliver
    | Extended
    | PendingInfo
    | SubscriberList
    | Sought
    | StageReady
    | StageList
    | Decided
    | TopicList
)
_ANSWERS = (
    Done,
    Refused,
    SegmentList,
    SegmentOpened,
    ArenaAttached,
    Extended,
    PendingInfo,
    SubscriberList,
    Sought,
    StageReady,
    StageList,
    Decided,
    TopicList,
)
"""What may answer a call as it stands. A Deliver is for subclasses: they hand it to `_answer`."""

_REFUSALS = error_classes()


def refusal_error(refused: Refused) -> QuiverError:
    """The exception that a refusal stands for."""
    kind = _REFUSALS.get(refused.code)
    if kind is None:
        return ProtocolError(f"the worker refused with the unknown code {refused.code!r}: {refused.message}")
    # Not kind(message): a class may build its message from parts that do not travel.
    error = kind.__new__(kind, refused.message)
    error.retry_after_ns = refused.retry_after_ns
    return error


Undo: TypeAlias = Callable[["WorkerMessage", int], "Message | None"]


class Call:
    """One request and its answer. Sent again on the next connection as long as it is not done."""

    __slots__ = ("answer", "descriptor", "error", "is_forgotten", "make", "request", "tag", "undo")

    def __init__(self, make: Callable[[int], Message], undo: Undo | None = None) -> None:
        """
        Args:
            make: builds the request for a tag.
            undo: builds what gives back that which an answer has granted, for a tag; None where it granted nothing. It is sent when an
                answer comes for which nobody waits any more.
        """
        self.make = make
        self.undo = undo
        self.is_forgotten = False
        self.tag = 0
        """0 while it is not under way."""
        self.request: Message | None = None
        """As it was last sent."""
        self.answer: WorkerMessage | None = None
        self.descriptor: int | None = None
        """What the answer carried; the caller owns it."""
        self.error: QuiverError | None = None

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None


class ChannelState(enum.Enum):
    CLOSED = enum.auto()
    GREETING = enum.auto()
    OPEN = enum.auto()


class Channel:
    """The connection to the worker of one core. Subclasses add what they push or receive through the hooks at the end."""

    def __init__(self, exchange: Exchange, directory: NodeDirectory, core: int, client_name: str) -> None:
        self.core = core
        self.generation = 0
        self.retry_at_ns = 0
        """When `connect_if_due` does something again."""
        self.failure: QuiverError | None = None
        """Why the channel is not open; None while it is or was never tried."""
        self.topics: Mapping[str, TopicSlots] = {}
        self.topic_infos: Mapping[str, TopicInfo] = {}
        self._exchange = exchange
        self._directory = directory
        self._client_name = client_name
        self._connection: Connection | None = None
        self._state = ChannelState.CLOSED
        self._retry_ns = RETRY_NS_FIRST
        self._opened_at_ns = FOREVER_NS
        self._incarnations: dict[str, str] = {}
        """Of each topic, that this channel has heard of last."""
        self._recreated: set[str] = set()
        """Topics whose incarnation has changed since, which nobody was told yet."""
        self._tag = 0
        self._calls: dict[int, Call] = {}

    @property
    def is_open(self) -> bool:
        return self._state is ChannelState.OPEN

    @property
    def state(self) -> ChannelState:
        return self._state

    def connect_if_due(self, now_ns: int) -> None:
        """Connect, or give up a greeting that takes too long, if it is time to."""
        if self._state is ChannelState.OPEN or now_ns < self.retry_at_ns:
            return
        if self._state is ChannelState.GREETING:
            self._lose(WorkerUnavailable(f"worker {self.core} took the connection but does not answer"), now_ns)
            return
        try:
            connection = Connection.open(self._directory.socket_of(self.core))
        except OSError as error:
            self._fail(WorkerUnavailable(f"worker {self.core} cannot be reached: {error.strerror}"), now_ns)
        except (NotRunning, WorkerUnavailable) as error:
            self._fail(error, now_ns)
        else:
            self._greet(connection, now_ns)

    def check_usable(self) -> None:
        """Raise what makes further attempts useless: a refusal or another protocol, not an absent worker."""
        if self.failure is not None and not self.failure.retriable:
            raise self.failure

    def slots_of(self, topic: str) -> TopicSlots:
        """The topic's slots; the channel must be open.

        Raises:
            UnknownTopic: the node has no such topic.
        """
        if topic in self._recreated:
            # Told once: whoever goes on after that means the new one.
            self._recreated.discard(topic)
            raise TopicRecreated(
                f"topic {topic!r} was deleted and created anew: bundle ids and schemas of the former one do not fit"
            )
        found = self.topics.get(topic)
        if found is None:
            raise UnknownTopic(f"topic {topic!r} does not exist on this node: its topics are {sorted(self.topics)}")
        return found

    def is_learning(self, topic: str, call: Call) -> bool:
        """Whether it is still to be heard if there is such a topic, which may be newer than the connection; the channel must be open.

        Args:
            call: asks for the topics (`ListTopics`), one for each time that somebody wants to know.
        """
        if topic in self.topics or call.is_done:
            return False
        if not call.tag:
            self.call(call)
        return True

    def next_tag(self) -> int:
        self._tag += 1
        return self._tag

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages in order; the channel must be open."""
        assert self._connection is not None, "send on a channel that is not connected"
        self._connection.send(b"".join(map(encode_frame, messages)))
        if self._connection.wants_to_write:
            self._exchange.watch_writable(self._connection.fileno(), wanted=True)

    def call(self, call: Call) -> None:
        """Send a request whose answer will be in `call`; the channel must be open."""
        call.tag = self.next_tag()
        self._calls[call.tag] = call
        call.request = call.make(call.tag)
        self.send([call.request])

    def forget(self, call: Call) -> None:
        """Nobody waits for the answer any more, if it has not come yet; what it grants will be given back. A descriptor that has come and
        that nobody took is closed."""
        if call.descriptor is not None:
            os.close(call.descriptor)
            call.descriptor = None
        if call.undo is None:
            self._calls.pop(call.tag, None)
        else:
            call.is_forgotten = not call.is_done

    def _undo(self, call: Call) -> None:
        message = call.undo(call.answer, self.next_tag()) if call.undo and call.answer is not None else None
        if message is not None and self.is_open:
            self.send([message])

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

    def break_off(self) -> None:
        """See `Watched`. The worker is there: the next use connects anew."""
        self._lose(WorkerUnavailable("a call was interrupted in its middle"), 0)
        self.retry_at_ns = 0

    def abandon(self) -> None:
        """See `Watched`. The next use connects anew, as a client of its own."""
        self._lose(WorkerUnavailable("the process was forked"), 0)
        self.retry_at_ns = 0
        self.failure = None

    def _greet(self, connection: Connection, now_ns: int) -> None:
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
        elif isinstance(message, _ANSWERS) and self._answer(message, descriptor):
            pass
        elif isinstance(message, Refused) and message.tag == 0:
            # It answers no request in particular: what this connection is for cannot go on.
            self._fail_connection(refusal_error(message))
        elif not self._received(message, descriptor) and descriptor is not None:
            os.close(descriptor)

    def _answer(self, message: Answer, descriptor: int | None) -> bool:
        """Hand an answer to the call that waits for it; False if none does."""
        call = self._calls.pop(message.tag, None)
        if call is None:
            return False
        call.answer, call.descriptor = message, descriptor
        if isinstance(message, TopicList):
            self._know(message.topics)
        if isinstance(message, Refused):
            call.error = refusal_error(message)
            self._note_refusal(call.error, getattr(call.request, "topic", ""))
        if call.is_forgotten:
            self._undo(call)
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
        self._know(welcome.topics)
        self._state = ChannelState.OPEN
        self._opened_at_ns = time.monotonic_ns()
        self.retry_at_ns = FOREVER_NS
        self._opened()

    def _note_refusal(self, error: QuiverError, topic: str) -> None:
        """What this connection knows of a topic that was created anew is of no use: connect again, and do not tell it twice."""
        if isinstance(error, TopicRecreated):
            self._incarnations.pop(topic, None)
            self._fail_connection(WorkerUnavailable(f"topic {topic!r} was created anew"))

    def _know(self, infos: Iterable[TopicInfo]) -> None:
        self.topic_infos = {info.name: info for info in infos}
        self.topics = {name: TopicSlots(info) for name, info in self.topic_infos.items()}
        for name, info in self.topic_infos.items():
            if self._incarnations.get(name, info.incarnation) != info.incarnation:
                self._recreated.add(name)
            if info.incarnation:
                self._incarnations[name] = info.incarnation

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
        for call in self._calls.values():
            call.tag = 0
        self._calls.clear()
        self._fail(error, now_ns)
        self._lost()

    def _fail(self, error: QuiverError, now_ns: int) -> None:
        self._state = ChannelState.CLOSED
        self.failure = error
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
