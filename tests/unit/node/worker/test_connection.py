"""Frames and descriptors through a real socket pair that fills up, stalls and goes away."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import LENGTH, FrameReader, decode_worker_message, encode_frame
from quiver_actors.errors import ProtocolError
from quiver_actors.node.worker.connection import UNSENT_BYTES_MAX, Connection


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    near, far = socket.socketpair()
    connection = Connection(near, frame_bytes_max=4096)
    far.settimeout(10)
    with far:
        yield connection, far
        connection.close()


def read_all(far: socket.socket, connection: Connection, count: int) -> list[tuple[m.Message, list[int]]]:
    """`count` messages, each with the descriptors that arrived in the same or an earlier call."""
    reader, found, descriptors = FrameReader(), list[tuple[m.Message, list[int]]](), list[int]()
    while len(found) < count:
        assert connection.flush()
        data, ancillary, _, _ = far.recvmsg(1 << 16, socket.CMSG_SPACE(4))
        for _, _, payload in ancillary:
            descriptors += array.array("i", payload)
        reader.feed(data)
        for frame in reader.frames():
            found.append((decode_worker_message(frame), descriptors))
            descriptors = []
    return found


def temporary_file(text: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, text)
    return descriptor


def test_messages_leave_in_order_with_one_send(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    for tag in range(100):
        connection.send(m.Done(tag))
    assert connection.flush()
    assert connection.unsent_bytes == 0
    assert far.recv(1 << 16) == b"".join(encode_frame(m.Done(tag)) for tag in range(100))


def test_descriptors_arrive_with_their_frames_and_are_closed_here(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    sent = [temporary_file(b"first"), temporary_file(b"second")]
    connection.send(m.Done(1))
    connection.send_with_descriptor(m.SegmentOpened(0, "t", 1, 5), sent[0])
    connection.send(m.Done(2))
    connection.send_with_descriptor(m.SegmentOpened(0, "t", 2, 6), sent[1])
    found = read_all(far, connection, 4)
    assert [type(message).__name__ for message, _ in found] == ["Done", "SegmentOpened", "Done", "SegmentOpened"]
    contents = []
    for _, descriptors in found:
        for descriptor in descriptors:
            contents.append(os.pread(descriptor, 100, 0))
            os.close(descriptor)
    assert contents == [b"first", b"second"]
    for descriptor in sent:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_peer_that_does_not_read_is_congested_until_it_reads(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    sent = 0
    while not connection.is_congested:
        connection.send(m.Refused(sent, "usage", "x" * 1000))
        assert connection.flush()
        sent += 1
    assert UNSENT_BYTES_MAX <= connection.unsent_bytes < UNSENT_BYTES_MAX + 2000
    found = read_all(far, connection, sent)
    assert [message.tag for message, _ in found if isinstance(message, m.Refused)] == list(range(sent))
    assert not connection.is_congested
    assert connection.unsent_bytes == 0


def test_unsent_descriptor_is_closed_with_the_connection() -> None:
    near, far = socket.socketpair()
    connection = Connection(near, frame_bytes_max=4096)
    descriptor = temporary_file(b"never sent")
    with far:
        connection.send_with_descriptor(m.SegmentOpened(0, "t", 1, 5), descriptor)
        connection.close()
        connection.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_peer_that_is_gone_shows_on_both_ways(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    far.close()
    assert not connection.receive()
    connection.send(m.Done(1))
    assert not connection.flush()


def test_receive_without_data_says_that_the_peer_is_there(pair: tuple[Connection, socket.socket]) -> None:
    connection, _ = pair
    assert connection.receive()
    assert list(connection.reader.frames()) == []


def test_frame_over_the_limit_ends_the_reading(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    far.sendall(LENGTH.pack(4097))
    assert connection.receive()
    with pytest.raises(ProtocolError, match="over the limit"):
        connection.receive()


def test_descriptors_that_nobody_receives_stop_the_reading(pair: tuple[Connection, socket.socket]) -> None:
    connection, far = pair
    connection.descriptors_max = 8
    for number in range(8):
        assert not connection.is_congested
        connection.send_with_descriptor(m.SegmentOpened(number, "t", 0, 1), os.open("/dev/null", os.O_RDONLY))
        assert connection.flush()
    assert connection.is_congested, "eight descriptors are on their way"
    for _, descriptors in read_all(far, connection, 8):
        for descriptor in descriptors:
            os.close(descriptor)
    assert not connection.is_congested, "all were received"
