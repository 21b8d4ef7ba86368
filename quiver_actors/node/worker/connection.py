"""One accepted stream socket: frames in, frames and descriptors out, never blocking.

Owner: the loop thread. Unsent answers wait in memory; the loop stops reading from a peer that does not read
(`is_congested`), so that what waits is bounded by what was asked before.

Descriptors leave with the first byte of the frame that announces them, one a call, and are closed here once they are sent.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from quiver_actors.base.protocol.framing import FrameReader, decode_client_message, encode_frame
from quiver_actors.base.protocol.lone import LONE_PUSH, LoneFields, LonePush
from quiver_actors.base.protocol.messages import ClientMessage, Message
from quiver_actors.node.worker.access import Guest
from quiver_actors.node.worker.session_arena import SessionArena, Spans

UNSENT_BYTES_MAX = 1 << 20
"""Unsent bytes from which on a peer counts as not reading."""
DESCRIPTORS_UNREAD_MAX = 64
"""Descriptors sent to another user and not received, from which on the peer counts as not reading. The kernel limits the descriptors that a
process has on their way to all its peers together; above that limit it refuses to send any to anybody."""


NO_LIMIT = 1 << 62


class ClientConnection(Protocol):
    """A way to one client, by which messages come and go in order. Never blocks."""

    fd: int
    """The number by which the loop's poll knows it."""
    unsent_bytes: int
    """What waits until the client reads it."""
    descriptors_out: int
    """Descriptors that are queued or sent and not known to be read."""
    descriptors_max: int
    """Descriptors on their way with which the client counts as not reading."""
    is_one_way: bool
    """Whether no answer is sent any more, because the client takes none. What it has sent can still be received."""

    @property
    def is_congested(self) -> bool:
        """Whether the client reads too slowly to be sent more."""

    @property
    def memory_bytes(self) -> int:
        """The worker's memory that messages on their way take."""

    def limit_frames(self, frame_bytes_max: int) -> None:
        """Refuse longer messages from now on."""

    def spans(self, guest: Guest | None) -> Spans:
        """Return what the pushes of this connection refer to; to be called once."""

    def receive(self) -> bool:
        """Take in what has arrived; False when the client is gone. Raises ProtocolError: it sends nonsense."""

    def receive_lone(self) -> LoneFields | bool:
        """`receive`, or the fields of a lone push if that is all that there is."""

    def put_back(self, fields: LoneFields) -> None:
        """Let `messages` yield a lone push that `receive_lone` has returned."""

    def messages(self) -> Iterator[ClientMessage | LonePush]:
        """Yield every complete message that was received. Raises ProtocolError: a message is malformed."""

    def send(self, message: Message) -> None:
        """Queue a message for the next `flush()`."""

    def send_frame(self, frame: bytes) -> bool:
        """Send a whole frame at once; False: it is queued, and the next `flush()` sends it."""

    def send_at_once(self, message: Message) -> bool:
        """Send a message; False: it is queued, and the next `flush()` sends it."""

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        """Queue a message with a descriptor, which the connection owns from now on."""

    def flush(self) -> bool:
        """Send what can be sent; False when the client is gone, and `is_one_way` is set."""

    def stop_sending(self) -> None:
        """Drop unsent answers, and let the client know that no more will come. Idempotent."""

    def close(self) -> None:
        """Let go of the connection. Idempotent. Unsent answers are dropped."""


class _Piece:
    """Bytes of whole frames; a descriptor rides on the first byte."""

    __slots__ = ("data", "descriptor")

    def __init__(self, descriptor: int = -1) -> None:
        self.data = bytearray()
        self.descriptor = descriptor


class Connection:
    """One accepted stream socket that never blocks. Takes ownership of the socket."""

    __slots__ = (
        "_pieces",
        "_socket",
        "descriptors_max",
        "descriptors_out",
        "fd",
        "is_one_way",
        "reader",
        "unsent_bytes",
    )

    def __init__(self, connected: socket.socket, *, frame_bytes_max: int) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.fd = connected.fileno()
        self.reader = FrameReader(frame_bytes_max)
        self.unsent_bytes = 0
        self.descriptors_out = 0
        """Queued or sent since the peer was last found to have read everything."""
        self.descriptors_max = NO_LIMIT
        """Descriptors on their way with which the peer counts as not reading."""
        self.is_one_way = False
        self._pieces: deque[_Piece] = deque()

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads too slowly to be sent more: too many unsent bytes, or too many unread descriptors."""
        if self.unsent_bytes >= UNSENT_BYTES_MAX:
            return True
        return self.descriptors_out >= self.descriptors_max and not self._is_read()

    def _is_read(self) -> bool:
        """Whether the peer has read everything; then no descriptor is in transit to the peer."""
        if self.unsent_bytes or struct.unpack("i", fcntl.ioctl(self.fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0]:
            return False
        self.descriptors_out = 0
        return True

    @property
    def memory_bytes(self) -> int:
        """The worker's memory that frames on their way take."""
        return self.reader.capacity_bytes + self.unsent_bytes

    def limit_frames(self, frame_bytes_max: int) -> None:
        """Refuse longer frames from now on."""
        self.reader.frame_bytes_max = frame_bytes_max

    def spans(self, guest: Guest | None) -> Spans:
        """Return the arena of the connection, which is still to be made."""
        return SessionArena(guest)

    def messages(self) -> Iterator[ClientMessage | LonePush]:
        """Yield every whole message that was read. Raises ProtocolError: a frame cannot be decoded."""
        for frame in self.reader.frames():
            yield decode_client_message(frame)

    def receive(self) -> bool:
        """Read once into the reader; False at the end of the stream or when the peer is gone.

        Raises:
            ProtocolError: the frame that is arriving is too long.
        """
        room = self.reader.writable()
        try:
            size = self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        self.reader.advance(size)
        return size > 0

    def receive_lone(self) -> LoneFields | bool:
        """Receive as `receive` does. Returns the fields of a lone push if it is all that there is."""
        room = self.reader.writable()
        try:
            size = self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return self.reader.take_lone(size) or size > 0

    def put_back(self, fields: LoneFields) -> None:
        """Let `messages` yield a lone push that `receive_lone` has returned."""
        self.reader.feed(LONE_PUSH.pack(*fields))

    def send_frame(self, frame: bytes) -> bool:
        """Send a frame at once, where nothing waits in front of it. Returns False where something is left for the next `flush()`."""
        sent = 0
        if not self._pieces:
            # An error is found again by `flush`, which tells it.
            try:
                sent = self._socket.send(frame)
            except OSError:
                sent = 0
            if sent == len(frame):
                return True
            self._pieces.append(_Piece())
        self._pieces[-1].data += frame[sent:]
        self.unsent_bytes += len(frame) - sent
        return False

    def send(self, message: Message) -> None:
        """Queue a frame for the next `flush()`."""
        frame = encode_frame(message)
        if not self._pieces:
            self._pieces.append(_Piece())
        self._pieces[-1].data += frame
        self.unsent_bytes += len(frame)

    def send_at_once(self, message: Message) -> bool:
        """Send a message as `send_frame` sends its frame."""
        return self.send_frame(encode_frame(message))

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        """Queue a frame that carries a descriptor, which is closed once it is sent or the connection ends."""
        self.descriptors_out += 1
        piece = _Piece(descriptor)
        piece.data += encode_frame(message)
        self._pieces.append(piece)
        self.unsent_bytes += len(piece.data)

    def flush(self) -> bool:
        """Send what the socket takes; False when the peer is gone: no answer is sent behind one that is missing."""
        try:
            while self._pieces:
                if not self._send_piece(self._pieces[0]):
                    return True
                self._pieces.popleft()
        except OSError:
            self.stop_sending()
            return False
        return True

    def stop_sending(self) -> None:
        """Drop unsent answers, and end this direction of the stream. Idempotent."""
        self.is_one_way = True
        self._drop_unsent()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection and drop unsent answers. Idempotent."""
        self._drop_unsent()
        self._socket.close()

    def _drop_unsent(self) -> None:
        for piece in self._pieces:
            _close_descriptor(piece)
        self._pieces.clear()
        self.unsent_bytes = 0

    def _send_piece(self, piece: _Piece) -> bool:
        """True once all of it has left."""
        while piece.data:
            try:
                sent = self._socket.send(piece.data) if piece.descriptor < 0 else self._send_rights(piece)
            except (BlockingIOError, InterruptedError):
                return False
            self.unsent_bytes -= sent
            del piece.data[:sent]
        return True

    def _send_rights(self, piece: _Piece) -> int:
        rights = array.array("i", [piece.descriptor])
        sent = self._socket.sendmsg([piece.data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        _close_descriptor(piece)
        return sent


def _close_descriptor(piece: _Piece) -> None:
    descriptor, piece.descriptor = piece.descriptor, -1
    if descriptor >= 0:
        os.close(descriptor)
