"""The state of one connection: its user, arena and schemas, its subscribers, and what waits for it.

Owner: the loop thread. Lives from accept until the connection ends; whatever still refers to a closed session may send to it, which does
nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quiver_actors.base.model import ARCHIVER_CLIENT
from quiver_actors.base.protocol.lone import LonePush
from quiver_actors.base.protocol.messages import FRAME_BYTES_MAX, PROTOCOL_VERSION, Hello, Message, Push, Refused
from quiver_actors.errors import ProtocolError, QuiverError
from quiver_actors.node.worker.access import Guest
from quiver_actors.node.worker.budgets import Budget
from quiver_actors.node.worker.connection import UNSENT_BYTES_MAX, ClientConnection
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.session_arena import Spans
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.lone import LoneStream

GREETING_BYTES_MAX = 4 << 10
"""Longest frame before Hello."""
GUEST_FRAME_BYTES_MAX = 1 << 20
"""Longest frame of another user: it has room for the longest Push, and for a schema with as many fields as that user may send."""
HELD_PUSHES_MAX = 1024
"""Most waiting pushes of one connection; with more the connection is not read."""
OWED_MAX = 1024
"""Most answers that wait until something is durable or sealed; with more the connection is not read."""
SCHEMAS_MAX = 4096
"""Per connection. A client that needs more opens another one."""
SCHEMA_BYTES_MAX = 64 << 20
"""Most bytes of all schema messages of one connection together."""

REFUSED_CALLS_MAX = 1024
"""Most call numbers kept for calls that timed out: the oldest are forgotten."""

_NO_SCHEMAS: Mapping[int, StreamSchema] = {}


class SessionHost(Protocol):
    """An engine that a session has had to do with."""

    is_given_up: bool

    def detach(self, session: Session) -> None:
        """Forget a session that has ended, and give its claims and pushes back."""


class SessionState(enum.Enum):
    """State of a session: before the client's `Hello`, in use, or ended."""

    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


_CLOSED = SessionState.CLOSED
"""Asked for at each answer: a member of an enum takes longer to look up."""


class EndSession(Exception):
    """The connection must end, after its peer has been told why."""

    def __init__(self, error: QuiverError, tag: int = 0) -> None:
        super().__init__(str(error))
        self.error = error
        self.tag = tag


class Announced(NamedTuple):
    """What a connection was told last of segments, as (topic, segment_seq): each is in one of these sets at most."""

    sealed: set[tuple[str, int]]
    """Sealed segments whose descriptors it has."""
    logs: set[tuple[str, int]]
    """Segments that were not sealed when their files were sent."""
    archived: set[tuple[str, int]]
    """Segments that it is to read in the archive. The file of one may be here all the same, for others."""

    def forget(self, key: tuple[str, int]) -> bool:
        """Forget a segment. Returns whether the connection was told anything of it."""
        known = [each for each in self if key in each]
        for each in known:
            each.discard(key)
        return bool(known)


class DeclaredSchemas:
    """The schemas that one connection has declared, by topic and handle.

    Attributes:
        size_bytes: of all schema messages together.
    """

    __slots__ = ("_by_topic", "_count", "lone", "size_bytes")

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, StreamSchema]] = {}
        self.lone: dict[int, tuple[str, LoneStream] | None] = {}
        """Topic and stream of each handle that lone pushes may name; None: several topics have it, or it has dictionaries."""
        self._count = 0
        self.size_bytes = 0

    def declare(self, topic: str, handle: int, schema: StreamSchema) -> None:
        """
        Raises:
            ProtocolError: the handle is taken, or there are too many.
        """
        declared = self._by_topic.setdefault(topic, {})
        if handle in declared:
            raise ProtocolError(f"schema handle {handle} was declared before on this connection")
        if self._count >= SCHEMAS_MAX or self.size_bytes + len(schema.message) > SCHEMA_BYTES_MAX:
            raise ProtocolError(
                f"more than {SCHEMAS_MAX} schemas, or {SCHEMA_BYTES_MAX} bytes of them, on one connection: open another one"
            )
        declared[handle] = schema
        self.lone[handle] = (topic, LoneStream(schema)) if handle not in self.lone and _is_plain(schema) else None
        self._count += 1
        self.size_bytes += len(schema.message)

    def push_of(self, lone: LonePush) -> Push:
        """What a lone push says, as a `Push`. Raises ProtocolError: its handle is none for lone pushes, or it contradicts itself."""
        known = self.lone.get(lone.handle)
        if known is None:
            raise ProtocolError(f"push {lone.tag}: schema handle {lone.handle} is not declared for lone pushes here")
        topic, stream = known
        return lone.push(topic, stream.schema.slot_id, len(stream.message))

    def of(self, topic: str) -> Mapping[int, StreamSchema]:
        """Declared schemas of a topic by handle."""
        return self._by_topic.get(topic, _NO_SCHEMAS)


def _is_plain(schema: StreamSchema) -> bool:
    """Whether payloads bring no dictionaries along, for all that can be told of the schema."""
    try:
        return not schema.has_dictionaries
    except QuiverError:
        return False


@dataclass(slots=True, eq=False)
class Session:
    """State of one client connection inside a worker."""

    connection: ClientConnection
    peer: Peer
    opened_ns: int
    unsent: set[Session]
    """Sessions that have something to flush; shared by all, owned by the loop."""
    budget: Budget[Session]
    """Budget of the session's user, shared by all of the user's sessions; the loop owns it."""
    guest: Guest | None = None
    """None: the peer's user is trusted."""
    state: SessionState = SessionState.GREETING
    is_archiver: bool = False
    """Whether the node's archiver is at the other end."""
    topics_version: int = 0
    """The version of the list of topics that it was greeted with."""
    watched: int = 0
    """The epoll events that the loop waits for; the loop's own note."""
    is_unfinished: bool = False
    """Whole frames, or portions of `work`, may be postponed by the loop."""
    waits_for_budget: bool = False
    """The postponed frames wait because the user's budget is used up."""
    is_unheard: bool = False
    """Whether the connection is not polled, because it waits for its user's budget."""
    work: Iterator[None] | None = None
    """The rest of a request that is carried out in portions; nothing else is taken from the connection before its end."""
    owed: int = 0
    """Answers that wait for something else than the connection: progress that becomes durable, a segment that is sealed."""
    hosts: dict[SessionHost, None] = field(default_factory=dict)
    """Hosts that the session has dealt with, in the order of its first requests."""
    announced: Announced = field(default_factory=lambda: Announced(set(), set(), set()))
    schemas: DeclaredSchemas = field(default_factory=DeclaredSchemas)
    arena: Spans = field(init=False)
    _refused_calls: set[int] = field(default_factory=set)
    """A message of which was refused, and not sent again yet."""

    def __post_init__(self) -> None:
        self.arena = self.connection.spans(self.guest)

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended; messages to it are dropped."""
        return self.state is SessionState.CLOSED

    @property
    def must_pause(self) -> bool:
        """True while nothing more should be taken from this connection. Where nobody takes the answers, they are not waited for."""
        return (
            len(self.arena.held) >= HELD_PUSHES_MAX
            or self.connection.unsent_bytes >= UNSENT_BYTES_MAX
            or self.owed >= OWED_MAX
            or (self.connection.descriptors_out >= self.connection.descriptors_max and self.connection.is_congested)
        ) and not self.connection.is_one_way

    def forget_gone_hosts(self) -> None:
        """A long connection keeps no topic in memory that was deleted."""
        for host in [host for host in self.hosts if host.is_given_up]:
            del self.hosts[host]

    @property
    def memory_bytes(self) -> int:
        """The worker's own memory that the connection takes."""
        return self.connection.memory_bytes + self.schemas.size_bytes

    # --- answers -------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue a message for the client; it leaves at the end of the turn. A closed session drops it."""
        if self.state is not _CLOSED:
            self.connection.send(message)
            self.unsent.add(self)

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        """Takes ownership of the descriptor; the session must be open."""
        assert self.state is not SessionState.CLOSED
        self.connection.send_with_descriptor(message, descriptor)
        self.unsent.add(self)

    def send_at_once(self, message: Message) -> None:
        """Send a message, now if nothing waits in front of it. A closed session drops it."""
        if self.state is not _CLOSED and not self.connection.send_at_once(message):
            self.unsent.add(self)

    def send_frame(self, frame: bytes) -> None:
        """Send a whole frame, now if nothing waits in front of it. A closed session drops it."""
        if self.state is not _CLOSED and not self.connection.send_frame(frame):
            self.unsent.add(self)

    def refuse(self, tag: int, error: QuiverError, retry_after_ns: int = 0) -> None:
        """Answer a request with an error; `retry_after_ns` above 0 tells the client when to try again."""
        self.send(Refused(tag, error.code, str(error), retry_after_ns))

    # --- state ---------------------------------------------------------------------------------------------------------

    def greet(self, hello: Hello) -> None:
        """
        Raises:
            ProtocolError: a second Hello, or another version.
        """
        if self.state is not SessionState.GREETING:
            raise ProtocolError("second Hello on one connection")
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"client {hello.client!r} speaks protocol version {hello.version}, this worker {PROTOCOL_VERSION}:"
                " install the same release of quiver-actors on both sides"
            )
        self.state = SessionState.OPEN
        self.is_archiver = self.guest is None and hello.client == ARCHIVER_CLIENT
        self.connection.limit_frames(FRAME_BYTES_MAX if self.guest is None else GUEST_FRAME_BYTES_MAX)

    def close(self) -> None:
        """Idempotent. Drops the arena and everything that was not sent."""
        if self.state is SessionState.CLOSED:
            return
        self.state = SessionState.CLOSED
        if self.guest is not None:
            self.guest.leave()
        self.connection.close()
        self.unsent.discard(self)
        self.work = None
        self.arena.close()

    # --- calls -----------------------------------------------------------------------------------------------------------

    def refuse_call(self, push: Push) -> None:
        """Refuse the later pushes of the same call too, so that none goes in front of this push when it is sent again."""
        if push.call:
            self._refused_calls.add(abs(push.call))
            if len(self._refused_calls) > REFUSED_CALLS_MAX:
                self._refused_calls.remove(min(self._refused_calls))

    def is_behind_refusal(self, push: Push) -> bool:
        """Whether the push was sent before its client heard that one in front of it was refused."""
        if push.call < 0:
            self._refused_calls.discard(-push.call)
        return push.call in self._refused_calls
