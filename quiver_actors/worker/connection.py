"""One accepted stream socket: frames in, frames and descriptors out, never blocking.

Owner: the loop thread. Unsent answers wait in memory; the loop stops reading from a peer that does not read
(`is_congested`), so that what waits is bounded by what was asked before.

Descriptors leave with the first byte of the frame that announces them, one a call, and are closed here once they are sent.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque

from quiver_actors.protocol.framing import FrameReader, encode_frame
from quiver_actors.protocol.messages import Message

UNSENT_BYTES_MAX = 1 << 20
"""From here on a peer counts as not reading."""


class _Piece:
    """Bytes of whole frames; a descriptor rides on the first byte."""

    __slots__ = ("data", "descriptor")

    def __init__(self, descriptor: int = -1) -> None:
        self.data = bytearray()
        self.descriptor = descriptor


class Connection:
    """See the module. Takes ownership of the socket."""

    __slots__ = ("_pieces", "_socket", "fd", "reader", "unsent_bytes")

    def __init__(self, connected: socket.socket, *, frame_bytes_max: int) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.fd = connected.fileno()
        self.reader = FrameReader(frame_bytes_max)
        self.unsent_bytes = 0
        self._pieces: deque[_Piece] = deque()

    @property
    def is_congested(self) -> bool:
        return self.unsent_bytes >= UNSENT_BYTES_MAX

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

    def send(self, message: Message) -> None:
        """Queue a frame for the next `flush()`."""
        frame = encode_frame(message)
        if not self._pieces:
            self._pieces.append(_Piece())
        self._pieces[-1].data += frame
        self.unsent_bytes += len(frame)

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        """Queue a frame that carries a descriptor, which is closed once it is sent or the connection ends."""
        piece = _Piece(descriptor)
        piece.data += encode_frame(message)
        self._pieces.append(piece)
        self.unsent_bytes += len(piece.data)

    def flush(self) -> bool:
        """Send what the socket takes; False when the peer is gone."""
        try:
            while self._pieces:
                if not self._send_piece(self._pieces[0]):
                    return True
                self._pieces.popleft()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Idempotent. Unsent answers are dropped."""
        for piece in self._pieces:
            _close_descriptor(piece)
        self._pieces.clear()
        self.unsent_bytes = 0
        self._socket.close()

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
