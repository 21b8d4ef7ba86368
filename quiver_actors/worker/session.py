"""What a worker knows of one connection: who it is, its arena, its schemas, what it subscribes to, what waits.

Owner: the loop thread. Lives from accept until the connection ends; whatever still refers to a closed session may send to it, which does
nothing. Ring credit goes back strictly in push order: a span is released once it and every span before it has been copied.
"""

from __future__ import annotations

import contextlib
import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quiver_actors.errors import ProtocolError, QuiverError
from quiver_actors.protocol.messages import FRAME_BYTES_MAX, PROTOCOL_VERSION, Hello, Message, Push, Refused
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.shm.arena import ArenaOwner
from quiver_actors.shm.errors import ShmError
from quiver_actors.worker.access import Guest
from quiver_actors.worker.connection import UNSENT_BYTES_MAX, Connection
from quiver_actors.worker.peer import Peer

if TYPE_CHECKING:
    from quiver_actors.worker.host import EngineHost

GREETING_BYTES_MAX = 4 << 10
"""Longest frame before Hello."""
HELD_PUSHES_MAX = 1024
"""With more pushes waiting than this the connection is not read."""
SCHEMAS_MAX = 4096
"""Per connection. A client that needs more opens another one."""
SCHEMA_BYTES_MAX = 64 << 20
"""The same for all their messages together."""

REFUSED_CALLS_MAX = 1024
"""Calls that have given up leave their numbers behind: the oldest are forgotten."""

_NO_SCHEMAS: Mapping[int, StreamSchema] = {}


class SessionState(enum.Enum):
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


@dataclass(slots=True)
class HeldSpan:
    """A span whose ring credit cannot go back yet."""

    end_position: int
    is_copied: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """See the module."""

    connection: Connection
    peer: Peer
    opened_ns: int
    unsent: set[Session]
    """Sessions that have something to flush; shared by all, owned by the loop."""
    guest: Guest | None = None
    """None: the peer's user is trusted."""
    state: SessionState = SessionState.GREETING
    client: str = ""
    topics_version: int = 0
    """The version of the list of topics that it was greeted with."""
    arena: ArenaOwner | None = None
    arena_is_coming: bool = False
    watched: int = 0
    """The epoll events that the loop waits for; the loop's own note."""
    hosts: dict[EngineHost, None] = field(default_factory=dict)
    """Those that it has had to do with, in the order of its first requests."""
    announced: set[tuple[str, int]] = field(default_factory=set)
    """(topic, segment_seq) whose descriptor this connection has."""
    schema_count: int = 0
    _schema_bytes: int = 0
    _schemas: dict[str, dict[int, StreamSchema]] = field(default_factory=dict)
    _held: deque[HeldSpan] = field(default_factory=deque)
    _refused_calls: set[int] = field(default_factory=set)
    """A message of which was refused, and not sent again yet."""

    @property
    def is_closed(self) -> bool:
        return self.state is SessionState.CLOSED

    @property
    def must_pause(self) -> bool:
        """True while nothing more should be taken from this connection."""
        return len(self._held) >= HELD_PUSHES_MAX or self.connection.unsent_bytes >= UNSENT_BYTES_MAX

    def forget_gone_hosts(self) -> None:
        """A long connection keeps no topic in memory that was deleted."""
        for host in [host for host in self.hosts if host.is_given_up]:
            del self.hosts[host]

    # --- answers -------------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        if self.state is not _CLOSED:
            self.connection.send(message)
            self.unsent.add(self)

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        """Takes ownership of the descriptor; the session must be open."""
        assert self.state is not SessionState.CLOSED
        self.connection.send_with_descriptor(message, descriptor)
        self.unsent.add(self)

    def refuse(self, tag: int, error: QuiverError, retry_after_ns: int = 0) -> None:
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
        self.client = hello.client
        self.connection.reader.frame_bytes_max = FRAME_BYTES_MAX

    def declare(self, topic: str, handle: int, schema: StreamSchema) -> None:
        """
        Raises:
            ProtocolError: the handle is taken, or there are too many.
        """
        declared = self._schemas.setdefault(topic, {})
        if handle in declared:
            raise ProtocolError(f"schema handle {handle} was declared before on this connection")
        if self.schema_count >= SCHEMAS_MAX or self._schema_bytes + len(schema.message) > SCHEMA_BYTES_MAX:
            raise ProtocolError(
                f"more than {SCHEMAS_MAX} schemas, or {SCHEMA_BYTES_MAX} bytes of them, on one connection: open another one"
            )
        declared[handle] = schema
        self.schema_count += 1
        self._schema_bytes += len(schema.message)

    def schemas_of(self, topic: str) -> Mapping[int, StreamSchema]:
        """Declared schemas of a topic by handle."""
        return self._schemas.get(topic, _NO_SCHEMAS)

    def expect_arena(self, size_bytes: int) -> None:
        """The arena is about to be made or replaced.

        Raises:
            ProtocolError: spans of the present one are still needed, or one is being made.
            QuotaExceeded: the peer's user has too much already.
        """
        if self._held or self.arena_is_coming:
            raise ProtocolError("AttachArena while pushes or another AttachArena of this connection wait")
        if self.guest is not None:
            self.guest.want_arena(size_bytes)
        self.arena_is_coming = True

    def give_up_arena(self) -> None:
        """The new one could not be made; the present one stays."""
        self.arena_is_coming = False
        if self.guest is not None:
            self.guest.has_arena(self.arena.size_bytes if self.arena is not None else 0)

    def attach(self, arena: ArenaOwner) -> None:
        """Takes ownership of the arena; the one before goes."""
        if self.arena is not None:
            self.arena.close()
        self.arena = arena
        self.arena_is_coming = False
        if self.guest is not None:
            self.guest.has_arena(arena.size_bytes)

    def close(self) -> None:
        """Idempotent. Drops the arena and everything that was not sent."""
        if self.state is SessionState.CLOSED:
            return
        self.state = SessionState.CLOSED
        if self.guest is not None:
            self.guest.leave()
        self.connection.close()
        self.unsent.discard(self)
        self._held.clear()
        if self.arena is not None:
            self.arena.close()
            self.arena = None

    # --- spans of pushes -------------------------------------------------------------------------------------------------

    def span(self, push: Push) -> memoryview:
        """The arena's bytes of a push: shared with the producer, to be copied before anything is checked.

        Raises:
            ProtocolError: no arena, or the span is not inside it.
        """
        if self.arena is None or self.arena_is_coming:
            raise ProtocolError("Push before ArenaAttached")
        try:
            return self.arena.span(push.offset, push.length)
        except ShmError as error:
            raise ProtocolError(f"push {push.tag}: {error}") from error

    def hold(self, push: Push) -> HeldSpan:
        """The push waits: its span, and the credit of all that come after it, must stay."""
        held = HeldSpan(push.end_position)
        self._held.append(held)
        return held

    def release(self, push: Push) -> None:
        """The span of a push that did not wait has been copied, or is not needed.

        Raises:
            ProtocolError: the position is not one that the producer has reached.
        """
        if self._held:
            self._held.append(HeldSpan(push.end_position, is_copied=True))
        else:
            self._publish(push.end_position)

    def release_held(self, held: HeldSpan) -> None:
        """The span of a push that waited has been copied, or is not needed.

        Raises:
            ProtocolError: the position is not one that the producer has reached.
        """
        held.is_copied = True
        end_position = -1
        while self._held and self._held[0].is_copied:
            end_position = self._held.popleft().end_position
        if end_position >= 0:
            self._publish(end_position)

    def release_refused(self, held: HeldSpan) -> None:
        """The push of a held span is refused. A position that makes no sense costs its producer credit, and nobody else anything."""
        if not self.is_closed:
            with contextlib.suppress(ProtocolError):
                self.release_held(held)

    def _publish(self, end_position: int) -> None:
        if self.arena is None:
            return
        try:
            self.arena.publish_released(end_position)
        except ShmError as error:
            raise ProtocolError(f"push ends at ring position {end_position}: {error}") from error

    # --- calls -----------------------------------------------------------------------------------------------------------

    def refuse_call(self, push: Push) -> None:
        """Let nothing of the push's call go in front of it when it is sent again."""
        if push.call:
            self._refused_calls.add(abs(push.call))
            if len(self._refused_calls) > REFUSED_CALLS_MAX:
                self._refused_calls.remove(min(self._refused_calls))

    def is_behind_refusal(self, push: Push) -> bool:
        """Whether the push was sent before its client heard that one in front of it was refused."""
        if push.call < 0:
            self._refused_calls.discard(-push.call)
        return push.call in self._refused_calls
