"""One connected socket to a worker: frames out, messages and descriptors in. Never blocks.

Owner: one `Channel`, under its exchange's lock. What does not fit the kernel's buffer is kept and sent when the socket is writable:
a worker that waits for us to read its answers can therefore never block our writes, nor we its reads.

Guarantees: messages come out whole and in order, each with its own descriptor; messages that arrived before the peer closed
are given out before the loss is reported.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from quiver_actors.base.protocol.framing import FrameReader, decode_worker_message, encode_frame
from quiver_actors.base.protocol.lone import LoneAck
from quiver_actors.base.protocol.messages import DESCRIPTORS_CARRIED, Message, WorkerMessage
from quiver_actors.errors import ProtocolError, QuiverError, WorkerUnavailable

_DESCRIPTORS_MAX = 253
"""The kernel's limit for one message (SCM_MAX_FD)."""
_DESCRIPTOR = struct.Struct("i")
_TRUNCATED = int(socket.MSG_CTRUNC)
"""The plain number, because testing flags with the enumeration's member costs more than reading the message."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS_MAX * _DESCRIPTOR.size)

Received = tuple[WorkerMessage, int | None]
"""A message, and the descriptor that it carries: the receiver owns it."""


class WorkerConnection(Protocol):
    """A way to one worker, by which messages go and come in order. Never blocks."""

    @property
    def lost(self) -> QuiverError | None:
        """Why nothing more will come or go, None while the connection stands."""

    @property
    def wants_to_write(self) -> bool:
        """Whether messages wait until they can be sent."""

    def fileno(self) -> int:
        """Return the number by which an exchange watches the connection."""

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages in order, now or as soon as it is possible. A loss is reported by `lost`."""

    def send_frames(self, frames: bytes) -> bool:
        """`send` of whole frames. Returns whether some wait until they can be sent."""

    def receive_ack(self) -> LoneAck | None:
        """Read once. Returns the acknowledgement of a lone push if that is all that there is; else what has come is left for `receive`."""

    def flush(self) -> None:
        """Send waiting messages, as far as possible."""

    def receive(self) -> list[Received]:
        """Every message that has arrived, in order."""

    def fail(self, error: QuiverError) -> None:
        """End the connection for that reason; messages received before count."""

    def close(self) -> None:
        """Let go of the connection, and of descriptors that nobody took. Idempotent."""


class Connection:
    """A connected, non-blocking socket with its buffers. Not thread-safe."""

    __slots__ = ("_descriptors", "_lost", "_out", "_reader", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.setblocking(False)
        self._socket = connected
        self._reader = FrameReader()
        self._descriptors: deque[int] = deque()
        self._out = bytearray()
        self._lost: QuiverError | None = None

    @property
    def lost(self) -> QuiverError | None:
        """Why nothing more will come or go, None while the connection stands.

        `WorkerUnavailable` when the peer went away, `ProtocolError` when it said something impossible.
        """
        return self._lost

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the socket to become writable."""
        return bool(self._out) and self._lost is None

    def fileno(self) -> int:
        """Return the descriptor of the socket, for epoll; the connection keeps owning it."""
        return self._socket.fileno()

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages, now or as soon as the socket takes them. A loss is reported by `lost`."""
        self.send_frames(b"".join(map(encode_frame, messages)))

    def send_frames(self, frames: bytes) -> bool:
        """`send` of whole frames. Returns whether some wait for the socket to become writable."""
        if self._lost is not None:
            return False
        if self._out:
            self._out += frames
            return True
        sent = self._write(frames)
        if sent < len(frames):
            self._out += memoryview(frames)[sent:]
        return bool(self._out)

    def flush(self) -> None:
        """Send waiting messages, as far as the socket takes them."""
        while self._out and self._lost is None:
            sent = self._write(self._out)
            if not sent:
                return
            del self._out[:sent]

    def receive(self) -> list[Received]:
        """Every complete message that has arrived; nothing when the socket was not readable."""
        received: list[Received] = []
        try:
            is_more = self._read_once()
            while True:
                for frame in self._reader.frames():
                    message = decode_worker_message(frame)
                    received.append((message, self._descriptor_of(message)))
                if not is_more:
                    return received
                is_more = self._read_once()
        except ProtocolError as error:
            self._lost = error
            return received

    def receive_ack(self) -> LoneAck | None:
        """Read once. Returns the acknowledgement of a lone push if that is all that there is; else what has come is left for `receive`."""
        try:
            return self._reader.take_ack(self._receive_into(self._reader.writable()))
        except ProtocolError as error:
            self._lost = error
            return None

    def fail(self, error: QuiverError) -> None:
        """End the connection for that reason; messages received before count. The owner still has to close it."""
        if self._lost is None or isinstance(self._lost, WorkerUnavailable):
            # That the peer has closed meanwhile says less.
            self._lost = error

    def close(self) -> None:
        """Close the socket (without a shutdown: a forked process may share it) and descriptors that nobody took. Idempotent."""
        if self._lost is None:
            self._lost = WorkerUnavailable("the connection was closed")
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._out.clear()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                self._lost = WorkerUnavailable(f"sending to the worker failed: {error.strerror}")
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            # Either way the socket is readable now, and reading tells: what the worker said before it went still counts.
            return len(data)

    def _read_once(self) -> bool:
        """Read once, and say whether more may be there. A short read is the end for now: the socket stays readable if it was not."""
        if self._lost is not None:
            return False
        target = self._reader.writable()
        size = self._receive_into(target)
        self._reader.advance(size)
        return size == len(target)

    def _receive_into(self, target: memoryview) -> int:
        """Read once into the reader's room, and take descriptors aside. Returns how many bytes came: 0 at the end, or if none are there."""
        if self._lost is not None:
            return 0
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into([target], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._lost = WorkerUnavailable(f"receiving from the worker failed: {error.strerror}")
            return 0
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(fd for (fd,) in _DESCRIPTOR.iter_unpack(data[: len(data) & -_DESCRIPTOR.size]))
        if flags & _TRUNCATED:
            raise ProtocolError(
                "a descriptor that a worker sent was lost, probably because this process has too many open files: "
                "close files, or raise the limit (ulimit -n)"
            )
        if size == 0:
            self._lost = WorkerUnavailable("the worker closed the connection")
        return size

    def _descriptor_of(self, message: WorkerMessage) -> int | None:
        if type(message) not in DESCRIPTORS_CARRIED:
            return None
        if not self._descriptors:
            raise ProtocolError(f"{type(message).__name__} came without its descriptor")
        return self._descriptors.popleft()
