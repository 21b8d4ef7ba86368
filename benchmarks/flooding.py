"""Clients that ask a worker for more than anybody needs: many connections, each with as many requests under way as its socket takes.

Used by `benchmarks.besieged` and by the tests that want to know whether a flood stops somebody else. One thread, no wait but `flood_once`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Sequence

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import encode_frame

_CHUNK_BYTES = 16 << 10
_RECEIVE_BYTES = 1 << 18
_GARBAGE = b"\x07\0\0\0garbage"
"""A whole frame that is no message: the worker ends the connection."""


def requests_of(topic: str) -> dict[str, Sequence[m.Message]]:
    """What a flood of each kind asks, over and over; `malformed` asks nothing."""
    subscriber = "flood"
    cheap = [
        m.Credit(topic, subscriber, 1),
        m.Pending(1, topic, subscriber),
        m.ListTopics(1),
        m.BundleTime(1, topic, 0, 0),
        m.Extend(1, topic, subscriber, b""),
        m.Resolve(1, topic, subscriber, 0, 0, "ack", b"\0\0\0\0"),
    ]
    costly = [m.ListSubscribers(1, topic), m.ListSegments(1, topic), m.OpenSegment(1, topic, 0)]
    durable = [m.FlushProgress(1, topic, subscriber), m.Flush(1, topic)]
    return {
        "lists": [m.ListSubscribers(1, topic)],
        "tiny": cheap,
        "mixed": [*cheap, *costly, *durable],
        "malformed": [],
    }


class Flood:
    """Connections that are always full. Owned by one thread."""

    def __init__(self, path: str, messages: Sequence[m.Message], connections: int, *, reads: bool = True) -> None:
        """
        Args:
            path: of the worker's socket.
            messages: what each connection asks, again and again; none: each sends one broken frame, and connects anew.
            reads: whether answers are read at all.
        """
        self._path = path
        self._hello = encode_frame(m.Hello(m.PROTOCOL_VERSION, os.getpid(), "flood"))
        frames = b"".join(map(encode_frame, messages))
        self._chunk = frames * max(1, _CHUNK_BYTES // len(frames)) if frames else b""
        self._reads = reads
        self._selector = selectors.DefaultSelector()
        self._unsent: dict[socket.socket, memoryview] = {}
        self.received_bytes = 0
        self.connected = 0
        """Number of connections made, repeated ones included."""
        for _ in range(connections):
            self._connect()

    def close(self) -> None:
        for connection in list(self._unsent):
            self._drop(connection)
        self._selector.close()

    def flood_once(self, timeout_seconds: float = 0.1) -> None:
        """Send and read what the sockets take and have now; connect anew where the worker has ended a connection."""
        for key, mask in self._selector.select(timeout_seconds):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                if mask & selectors.EVENT_READ:
                    self._receive(connection)
                if mask & selectors.EVENT_WRITE:
                    self._send(connection)
            except BlockingIOError:
                continue
            except OSError:
                self._drop(connection)
                self._connect()

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return
        connection.setblocking(False)
        self.connected += 1
        events = selectors.EVENT_WRITE | (selectors.EVENT_READ if self._reads or not self._chunk else 0)
        self._selector.register(connection, events)
        self._unsent[connection] = memoryview(self._hello + (self._chunk or _GARBAGE))

    def _receive(self, connection: socket.socket) -> None:
        received = connection.recv(_RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("the worker has ended the connection")
        self.received_bytes += len(received)

    def _send(self, connection: socket.socket) -> None:
        unsent = self._unsent[connection]
        sent = connection.send(unsent)
        if sent < len(unsent):
            self._unsent[connection] = unsent[sent:]
        elif self._chunk:
            self._unsent[connection] = memoryview(self._chunk)
        else:
            self._selector.modify(connection, selectors.EVENT_READ)

    def _drop(self, connection: socket.socket) -> None:
        self._unsent.pop(connection, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()


def flood_as(uid: int, make: Callable[[], Flood], is_over: Callable[[], bool], begun: Callable[[], None]) -> None:
    """Become that user for good, flood until it is over. To be called in a process of its own, as root.

    Args:
        begun: called once all connections are made.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    flood = make()
    begun()
    while not is_over():
        flood.flood_once()
    flood.close()
