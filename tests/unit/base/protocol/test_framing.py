"""The frame reader under every way of cutting a byte stream into pieces."""

from __future__ import annotations

import contextlib
import random
import socket

import msgspec
import pytest

from quiver_actors.base.protocol import messages
from quiver_actors.base.protocol.framing import (
    BUFFER_BYTES,
    LENGTH,
    FrameReader,
    decode_client_message,
    decode_worker_message,
    encode_frame,
)
from quiver_actors.errors import ProtocolError

SIZES = [0, 1, 3, 4, 500, 4095, BUFFER_BYTES - 5, BUFFER_BYTES - 4, BUFFER_BYTES - 3, BUFFER_BYTES, 3 * BUFFER_BYTES, 7]


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def bodies(seed: int, count: int) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.choice(SIZES)) for _ in range(count)]


def received(reader: FrameReader) -> list[bytes]:
    return [bytes(frame) for frame in reader.frames()]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("piece_max", [1000, 70_000, 1 << 20])
def test_feed_any_pieces_gives_every_frame_once(seed: int, piece_max: int) -> None:
    expected = bodies(seed, 40)
    stream = b"".join(map(framed, expected))
    chance = random.Random(seed)
    reader = FrameReader()
    found: list[bytes] = []
    position = 0
    while position < len(stream):
        piece = stream[position : position + chance.randint(1, piece_max)]
        position += len(piece)
        reader.feed(piece)
        found += received(reader)
    assert found == expected


@pytest.mark.parametrize("seed", range(5))
def test_writable_through_a_socket_gives_every_frame_once(seed: int) -> None:
    expected = bodies(seed, 40)
    stream = memoryview(b"".join(map(framed, expected)))
    source, target = socket.socketpair()
    source.setblocking(False)
    target.setblocking(False)
    reader = FrameReader()
    found: list[bytes] = []
    with source, target:
        while len(found) < len(expected):
            if stream:
                with contextlib.suppress(BlockingIOError):
                    stream = stream[source.send(stream[:150_000]) :]
            reader.advance(target.recv_into(reader.writable()))
            found += received(reader)
    assert found == expected


def test_byte_by_byte_around_the_length_field() -> None:
    reader = FrameReader()
    found: list[bytes] = []
    for byte in framed(b"") + framed(b"ab") + framed(b""):
        reader.feed(bytes([byte]))
        found += received(reader)
    assert found == [b"", b"ab", b""]


def test_abandoned_iteration_goes_on_with_the_next_frame() -> None:
    reader = FrameReader()
    reader.feed(framed(b"one") + framed(b"two"))
    assert bytes(next(iter(reader.frames()))) == b"one"
    assert received(reader) == [b"two"]


def test_buffer_shrinks_after_a_long_frame() -> None:
    reader = FrameReader()
    reader.feed(framed(b"x" * (1 << 20)))
    assert [len(frame) for frame in reader.frames()] == [1 << 20]
    assert len(reader.writable()) == BUFFER_BYTES


def test_frame_over_the_limit_is_refused_before_it_is_buffered() -> None:
    reader = FrameReader()
    reader.feed(LENGTH.pack(messages.FRAME_BYTES_MAX + 1))
    with pytest.raises(ProtocolError, match="over the limit"):
        received(reader)
    with pytest.raises(ProtocolError, match="over the limit"):
        reader.writable()


def test_limit_can_be_lower_until_the_peer_is_known() -> None:
    reader = FrameReader(frame_bytes_max=8)
    reader.feed(framed(b"12345678") + LENGTH.pack(9))
    frames = reader.frames()
    assert bytes(next(frames)) == b"12345678"
    with pytest.raises(ProtocolError, match="limit of 8 bytes"):
        next(frames)
    reader.frame_bytes_max = 9
    reader.feed(b"123456789")
    assert received(reader) == [b"123456789"]


def test_advance_beyond_the_buffer_is_a_bug_of_the_caller() -> None:
    reader = FrameReader()
    with pytest.raises(ValueError, match="do not fit"):
        reader.advance(len(reader.writable()) + 1)


def client_messages() -> list[messages.Message]:
    return [
        messages.Hello(messages.PROTOCOL_VERSION, 42, "test"),
        messages.AttachArena(1, 1 << 20),
        messages.DeclareSchema(0, "default", 30, bytes(32), b"schema"),
        messages.Push(2, "default", 64, 128, 192, b"e", b"s", b""),
        messages.Flush(3, "default"),
        messages.ListSegments(4, "default"),
        messages.OpenSegment(5, "default", 9),
        messages.Register(6, "default", "exporter", "latest"),
        messages.Unregister(7, "default", "exporter"),
        messages.Credit("default", "exporter", 64),
        messages.Resolve(8, "default", "exporter", 9, 1 << 62, "defer", b"\0\0\0\0", 5),
        messages.FlushProgress(9, "default", "exporter"),
        messages.Extend(10, "default", "exporter", bytes(8)),
        messages.ClaimRef(11, "default", "exporter", 9, 3),
        messages.AckThrough(12, "default", "exporter", 9, 3),
        messages.GapAck(13, "default", "exporter", 1),
        messages.Pending(14, "default", "exporter", 1, 2, 3, 4),
        messages.ListSubscribers(15, "default"),
        messages.Unreadable(16, "default", "exporter", 9, 1 << 62, bytes(4), "checksum"),
        messages.BundleTime(18, "default", 9, 3),
        messages.CheckSegment(6, "default", 7, "checksum"),
        messages.CountPruned(6, "default", 12),
        messages.Seek(19, "default", "exporter", "latest", is_dry=True),
        messages.Taken("default", "exporter", 9, 1 << 62, bytes(4)),
    ]


def worker_messages() -> list[messages.Message]:
    return [
        messages.Welcome(1, 0, "00" * 16, 42, [messages.TopicInfo("default", {"logs": 30}, "wal", 0)]),
        messages.ArenaAttached(1, 1 << 20),
        messages.Acked(3, [messages.AckRun(2, 1, 0, 5, 64)]),
        messages.Refused(2, "draining", "worker is going down", 10),
        messages.Done(3),
        messages.SegmentList(4, [messages.SegmentInfo(1, 2, 3, 4, 5, 6)]),
        messages.SegmentOpened(0, "default", 1, 4096),
        messages.Deliver("default", "exporter", 1, b"\0\0\0\0", 1 << 62, b"\1\0", 77),
        messages.SegmentRetired("default", "exporter", 1),
        messages.SegmentArchived("default", 1, "0a" * 16),
        messages.Gap("default", "exporter", 7, 1, 0, 2, 3, 30, "damaged"),
        messages.NotResolved(5, "default", "exporter", 1, 1 << 62, [messages.Refusal("fenced", bytes(4))]),
        messages.Extended(6, 77, bytes(8)),
        messages.PendingInfo(7, 1, 2, 3, 4, 5, 6, -1, 0, 9, False),
        messages.Sought(19, 3, 4),
        messages.SubscriberList(8, [messages.SubscriberInfo("exporter", *range(16))]),
    ]


@pytest.mark.parametrize("message", client_messages(), ids=lambda message: type(message).__name__)
def test_client_message_round_trip(message: messages.Message) -> None:
    reader = FrameReader()
    reader.feed(encode_frame(message))
    assert [decode_client_message(frame) for frame in reader.frames()] == [message]


@pytest.mark.parametrize("message", worker_messages(), ids=lambda message: type(message).__name__)
def test_worker_message_round_trip(message: messages.Message) -> None:
    reader = FrameReader()
    reader.feed(encode_frame(message))
    assert [decode_worker_message(frame) for frame in reader.frames()] == [message]


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x91\x7f", b"\x94\x01\xa1x\x01\xa1y", msgspec.msgpack.encode([64, 1])]
)
def test_rubbish_is_a_protocol_error_on_both_sides(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"that is not a (message|push)"):
        decode_client_message(frame)
    with pytest.raises(ProtocolError, match=r"that is not an? (message|acknowledgement)"):
        decode_worker_message(frame)


def test_message_over_the_frame_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_frame(messages.DeclareSchema(0, "t", 0, b"", bytes(messages.FRAME_BYTES_MAX)))


def test_decoded_message_owns_its_bytes() -> None:
    reader = FrameReader()
    reader.feed(encode_frame(messages.Push(1, "t", 0, 0, 0, b"rows", b"", b"")))
    (message,) = [decode_client_message(frame) for frame in reader.frames()]
    reader.feed(b"\xff" * 1000)
    assert isinstance(message, messages.Push)
    assert message.entries == b"rows"
