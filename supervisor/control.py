"""The control socket: how another process asks the supervisor to say how it is, to drain or to stop.

Layout: a frame is a little-endian u32 length and one msgpack map whose key `op` names the message.
Trust: the socket is open to its own user, root and the members of one group, if there is one; who asks is the kernel's word (SO_PEERCRED),
and goes with every request to whoever decides. Frames are small and bounded; a peer that does not read is dropped. *Guests*, neither
the own user nor root, have one request a connection and few connections, so that they can neither shut out nor slow down anybody.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Callable

import msgspec

from .errors import ControlError

SOCKET_NAME = "supervisor.sock"
FRAME_BYTES_MAX = 1 << 20
SESSIONS_MAX = 32
GUEST_SESSIONS_MAX = 8
"""How many of these sessions all guests together may have."""
GUEST_FRAME_BYTES_MAX = 64 << 10
_LENGTH = struct.Struct("<I")
_PEER = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_TIMEVAL = struct.Struct("ll")
_READ_BYTES = 64 << 10


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower):
    """Root of all control messages."""


class Ping(Message, frozen=True, kw_only=True):
    """Answered by Pong."""


class Status(Message, frozen=True, kw_only=True):
    """Answered by NodeStatus."""


class Drain(Message, frozen=True, kw_only=True):
    """Drain, then stop, as on SIGTERM. Repeated, also while the node is being stopped, it does nothing more. Answered by Accepted."""


class StopIntake(Message, frozen=True, kw_only=True):
    """Have every worker take no more pushes, seal what it has and go on serving subscribers. Lasts until the node ends, also for
    workers that are started again. Answered by Accepted."""


class Stop(Message, frozen=True, kw_only=True):
    """Kill the workers now; the log is replayed at the next start. Answered by Accepted."""


class Ask(Message, frozen=True, kw_only=True):
    """A request to the `Steward` that the node runs beside the supervisor, which does not look into it. Answered by Told."""

    subject: str
    body: bytes


class Pong(Message, frozen=True, kw_only=True):
    """Answer to `Ping`: the supervisor is alive; its process id."""

    pid: int


class Told(Message, frozen=True, kw_only=True):
    """Answer to `Ask`: what the handler of the subject returned."""

    body: bytes


class Accepted(Message, frozen=True, kw_only=True):
    """The request is being carried out."""


class Refused(Message, frozen=True, kw_only=True):
    """Answer to a request that was not carried out, with the reason."""

    reason: str


class ChildStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One child in a `NodeStatus`: its state, restarts, CPU and last exit."""

    name: str
    index: int
    state: str
    pid: int
    restarts: int
    cpu: int | None
    last_exit: str | None


class NodeStatus(Message, frozen=True, kw_only=True):
    """Answer to `Status`: the state of the supervisor and of its children."""

    pid: int
    state: str
    children: list[ChildStatus]


Request = Ping | Status | Drain | StopIntake | Stop | Ask
Reply = Pong | Accepted | Refused | NodeStatus | Told

_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def encode_frame(message: Message) -> bytes:
    """One message, ready to be sent."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Splits arriving bytes into whole message bodies. No I/O."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._pending = bytearray()
        self._frame_bytes_max = frame_bytes_max

    def feed(self, arrived: bytes) -> list[bytes]:
        """Take bytes, and return the bodies that are whole. Raises ControlError when a frame is longer than allowed."""
        self._pending += arrived
        bodies = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > self._frame_bytes_max:
                raise ControlError(f"control frame of {length} bytes, at most {self._frame_bytes_max} are allowed")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                break
            bodies.append(bytes(self._pending[_LENGTH.size : end]))
            del self._pending[:end]
        return bodies


def is_trusted(uid: int) -> bool:
    """Whether that user is the one that this process runs as, or root."""
    return uid in (0, os.geteuid())


def answer(body: bytes, handle: Callable[[Request], Reply]) -> Reply:
    """Decode a request and have it handled; what cannot be decoded is refused."""
    try:
        request = _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refused(reason=f"not a control request: {error}")
    return handle(request)


class ControlServer:
    """Listens on `path` and answers requests, driven by the supervisor's selector. Owner: the supervisor's loop.

    Args:
        path: in a directory of this user alone; whatever was there has been swept.
        handle: turns a request of a user into its reply; must not block.
        gid: group whose members may connect too.

    Raises:
        OSError: the socket cannot be bound.
    """

    def __init__(
        self,
        path: str,
        selector: selectors.BaseSelector,
        handle: Callable[[Request, int], Reply],
        gid: int | None = None,
    ) -> None:
        self._selector = selector
        self._handle = handle
        self._sessions: dict[socket.socket, _Session] = {}
        self._path = path
        self._listener = _listen(path, gid)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            session, _ = self._listener.accept()
        except OSError:
            # The peer went away again, or descriptors have run out: it may ask once more.
            return
        uid = _uid_of(session)
        is_guest = not is_trusted(uid)
        self._make_room(is_guest=is_guest)
        session.setblocking(False)
        self._sessions[session] = _Session(uid, is_guest)
        self._selector.register(session, selectors.EVENT_READ, lambda: self._serve(session))

    def _make_room(self, *, is_guest: bool) -> None:
        """End the oldest session where there are too many: whoever asks now is better served than whoever lingers."""
        guests = [session for session, of in self._sessions.items() if of.is_guest]
        if is_guest and len(guests) >= GUEST_SESSIONS_MAX:
            self._end(guests[0])
        elif len(self._sessions) >= SESSIONS_MAX:
            self._end(next(iter(self._sessions)))

    def _serve(self, session: socket.socket) -> None:
        if session not in self._sessions:
            return  # ended in the same turn
        of = self._sessions[session]
        try:
            arrived = session.recv(_READ_BYTES)
            bodies = of.splitter.feed(arrived)
            for body in bodies[:1] if of.is_guest else bodies:
                # Replies are smaller than a socket's buffer: one that does not fit has a peer that does not read.
                session.sendall(encode_frame(answer(body, lambda request: self._handle(request, of.uid))))
        except (OSError, ControlError):
            arrived, bodies = b"", []
        if not arrived or (of.is_guest and bodies):
            self._end(session)

    def _end(self, session: socket.socket) -> None:
        self._selector.unregister(session)
        del self._sessions[session]
        session.close()

    def close(self) -> None:
        """Stop listening and remove the socket. Idempotent."""
        for session in list(self._sessions):
            self._end(session)
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def close_in_child(self) -> None:
        """Close the descriptors only."""
        self._listener.close()
        for session in self._sessions:
            session.close()


class _Session:
    """One connection, and the bytes that have arrived on it."""

    def __init__(self, uid: int, is_guest: bool) -> None:
        self.uid = uid
        self.is_guest = is_guest
        self.splitter = FrameSplitter(GUEST_FRAME_BYTES_MAX if is_guest else FRAME_BYTES_MAX)


def _listen(path: str, gid: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
        if gid is not None:
            os.chown(path, -1, gid)
            os.chmod(path, 0o660)
        listener.listen(SESSIONS_MAX)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def _uid_of(session: socket.socket) -> int:
    """The user who was at the other end when the connection was made."""
    _, uid, _ = _PEER.unpack(session.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)


def _connect(path: str, timeout_seconds: float) -> socket.socket:
    """A socket connected to the listener at `path`, with this timeout for each call on it.

    The connect itself blocks under the kernel's own timeout: a non-blocking one fails at once (EAGAIN) while the listener's backlog is
    full, as it is for a moment when many connect together.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        seconds, fraction = divmod(timeout_seconds, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), int(fraction * 1e6)))
        connection.connect(path)
        connection.settimeout(timeout_seconds)
    except OSError:
        connection.close()
        raise
    return connection


def request(
    path: str,
    message: Request,
    timeout_seconds: float = 5.0,
    check_peer: Callable[[socket.socket], None] = lambda _: None,
) -> Reply:
    """Send one request to the supervisor that listens at `path` and wait for the reply.

    Args:
        check_peer: called with the connected socket before anything is sent; raises if its peer is not to be trusted.

    Raises:
        ControlError: nobody listens, no reply in time, or the peer speaks something else.
    """
    splitter = FrameSplitter()
    try:
        with _connect(path, timeout_seconds) as connection:
            check_peer(connection)
            connection.sendall(encode_frame(message))
            while arrived := connection.recv(_READ_BYTES):
                for body in splitter.feed(arrived):
                    reply: Reply = _replies.decode(body)
                    return reply
    except OSError as error:
        raise ControlError(f"no answer from {path}: {error.strerror or error}; is the supervisor running?") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ControlError(f"{path} sent an answer that is not a control reply: {error}") from error
    raise ControlError(f"{path} closed the connection without an answer")
