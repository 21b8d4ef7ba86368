from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator

import pytest

from quiver_actors.base.protocol.framing import FrameReader, decode_client_message, encode_frame
from quiver_actors.base.protocol.messages import (
    ArenaAttached,
    Done,
    FlushProgress,
    Message,
    SegmentOpened,
    WorkerMessage,
)
from quiver_actors.client.connection import Connection
from quiver_actors.errors import ProtocolError, WorkerUnavailable


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Connection]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    opened = Connection(there)
    with here:
        yield here, opened
    opened.close()


@pytest.fixture
def worker(ends: tuple[socket.socket, Connection]) -> socket.socket:
    """The worker's end of the socket."""
    return ends[0]


@pytest.fixture
def connection(ends: tuple[socket.socket, Connection]) -> Connection:
    return ends[1]


def send(worker: socket.socket, *messages: Message, descriptors: list[int] | None = None) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    worker.sendmsg([b"".join(map(encode_frame, messages))], ancillary)


def messages(connection: Connection) -> list[WorkerMessage]:
    return [message for message, _ in connection.receive()]


def pipe_named(content: bytes) -> int:
    """A descriptor that can be told by what it reads."""
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    return reader


def test_nothing_received_is_no_message(connection: Connection) -> None:
    assert connection.receive() == []
    assert connection.lost is None


def test_messages_come_whole_and_in_order(worker: socket.socket, connection: Connection) -> None:
    frames = b"".join(encode_frame(Done(tag)) for tag in range(100))
    found = []
    for start in range(0, len(frames), 7):
        worker.sendall(frames[start : start + 7])
        found += messages(connection)
    assert found == [Done(tag) for tag in range(100)]


def test_many_messages_are_received_at_once(worker: socket.socket, connection: Connection) -> None:
    send(worker, *(Done(tag) for tag in range(10_000)))
    assert len(messages(connection)) == 10_000


def test_each_descriptor_comes_with_its_message(worker: socket.socket, connection: Connection) -> None:
    first, second = pipe_named(b"first"), pipe_named(b"second")
    opened = SegmentOpened(0, "t", 1, 10)
    send(worker, Done(1), ArenaAttached(2, 4096), Done(3), opened, descriptors=[first, second])
    os.close(first)
    os.close(second)
    (one, no), (arena, arena_fd), (three, none), (segment, segment_fd) = connection.receive()
    assert (one, no, three, none) == (Done(1), None, Done(3), None)
    assert (arena, segment) == (ArenaAttached(2, 4096), opened)
    assert arena_fd is not None
    assert segment_fd is not None
    assert (os.read(arena_fd, 10), os.read(segment_fd, 10)) == (b"first", b"second")
    assert not os.get_inheritable(arena_fd)
    os.close(arena_fd)
    os.close(segment_fd)


def test_missing_descriptor_is_a_protocol_error_behind_what_came_before(
    worker: socket.socket, connection: Connection
) -> None:
    send(worker, Done(1), ArenaAttached(2, 4096))
    assert messages(connection) == [Done(1)]
    assert isinstance(connection.lost, ProtocolError)


def test_what_is_no_message_is_a_protocol_error(worker: socket.socket, connection: Connection) -> None:
    send(worker, Done(1))
    worker.sendall(b"\x03\x00\x00\x00abc")
    assert messages(connection) == [Done(1)]
    assert isinstance(connection.lost, ProtocolError)


def test_descriptors_that_nobody_took_are_closed(worker: socket.socket, connection: Connection) -> None:
    before = set(os.listdir("/proc/self/fd"))
    descriptor = pipe_named(b"x")
    send(worker, Done(1), descriptors=[descriptor])
    os.close(descriptor)
    assert messages(connection) == [Done(1)]
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    connection.close()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_messages_before_the_end_are_given_out_before_the_loss(worker: socket.socket, connection: Connection) -> None:
    send(worker, Done(1))
    worker.close()
    connection.send([FlushProgress(1, "t", "s")])
    assert connection.lost is None
    assert messages(connection) == [Done(1)]
    assert messages(connection) == []
    assert isinstance(connection.lost, WorkerUnavailable)


def test_what_the_socket_does_not_take_is_sent_later_and_in_order(
    worker: socket.socket, connection: Connection
) -> None:
    total = 20_000
    for tag in range(total):
        connection.send([FlushProgress(tag, "topic", "subscriber")])
    assert connection.wants_to_write
    reader = FrameReader()
    tags: list[int] = []
    while len(tags) < total:
        reader.advance(worker.recv_into(reader.writable()))
        tags += [decode_client_message(frame).tag for frame in reader.frames()]  # type: ignore[union-attr]
        connection.flush()
    assert tags == list(range(total))
    assert not connection.wants_to_write


def test_own_reason_to_end_counts_more_than_the_peers_end(worker: socket.socket, connection: Connection) -> None:
    worker.close()
    connection.receive()
    reason = ProtocolError("not what we speak")
    connection.fail(reason)
    assert connection.lost is reason


def test_closed_connection_sends_and_receives_nothing(connection: Connection) -> None:
    connection.close()
    connection.close()
    connection.send([FlushProgress(1, "t", "s")])
    assert connection.receive() == []
    assert connection.lost is not None
