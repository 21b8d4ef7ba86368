"""Whoever connects and does not speak the protocol is cut off, and nobody else notices."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Iterator

import msgspec
import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.node.worker import connections
from tests.security.guest import AS_ROOT, OWNER_UID, Besieged, besieged
from tests.unit.node.worker.harness import WireClient, until

HELLO = m.Hello(m.PROTOCOL_VERSION, 1, "guest")


@pytest.fixture(scope="module")
def node() -> Iterator[Besieged]:
    with besieged(max_connections=64) as started:
        yield started


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def packed(*fields: object) -> bytes:
    return framed(msgspec.msgpack.encode(fields))


GREETINGS: dict[str, bytes] = {
    "noise": bytes(range(256)) * 4,
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("160301020001000001fc0303") + bytes(60),
    "frame of 4 GiB": struct.pack("<I", 0xFFFFFFFF) + b"x",
    "frame over the greeting's limit": framed(b"x" * 5000),
    "empty frame": framed(b""),
    "nested arrays": framed(b"\x91" * 4000),
    "map instead of array": framed(msgspec.msgpack.encode({"type": 1})),
    "unknown tag": packed(250, 1, 2),
    "hello without fields": packed(1),
    "hello with fields of other types": packed(1, "two", None, 7),
    "name that is not UTF-8": framed(b"\x94\x01\x02\x01\xa2\xff\xfe"),
    "huge integer": packed(1, 2**63, 1, "x"),
    "wrong version": encode_frame(m.Hello(99, 1, "guest")),
    "push first": encode_frame(m.Push(1, "open", 0, 64, 64, b"", b"", b"")),
    "register first": encode_frame(m.Register(1, "open", "s", "earliest")),
    "hello twice": encode_frame(HELLO) * 2,
    "long client name": encode_frame(m.Hello(m.PROTOCOL_VERSION, 1, "x" * 4090)),
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_bad_greeting_ends_the_connection(node: Besieged, greeting: bytes) -> None:
    guest = node.guest(greet=False)
    guest.socket.sendall(greeting)
    while (message := guest.receive()) is not None:
        assert isinstance(message, m.Refused | m.Welcome)
    node.check_undisturbed()


@pytest.mark.parametrize("part", [b"", b"\x05", struct.pack("<I", 100), struct.pack("<I", 100) + b"half"])
def test_a_client_that_leaves_in_the_middle_costs_nothing(node: Besieged, part: bytes) -> None:
    guest = node.guest(greet=False)
    guest.socket.sendall(part)
    guest.close()
    node.check_undisturbed()


def test_handshakes_that_never_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELLO_PATIENCE_NS", 1)
    with besieged() as node:
        slow = [node.guest(greet=False) for _ in range(3)]
        for guest in slow:
            guest.socket.sendall(struct.pack("<I", 60) + b"\x94")
        for guest in slow:
            refusal = guest.receive()
            assert isinstance(refusal, m.Refused)
            assert guest.receive() is None


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def send_with_descriptors(guest: WireClient, data: bytes, descriptors: list[int]) -> None:
    rights = array.array("i", descriptors)
    guest.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def test_descriptors_that_a_client_sends_are_not_kept(node: Besieged) -> None:
    guest = node.guest()
    node.check_undisturbed()
    before = open_descriptors()
    for tag in range(50):
        send_with_descriptors(guest, encode_frame(m.ListSegments(tag, "open")), [0, 1, 2])
        guest.expect(m.SegmentList)
    node.check_undisturbed()
    # The worker may have opened a log or two meanwhile.
    until(lambda: open_descriptors() < before + 50, "descriptors to be closed")


@AS_ROOT
def test_a_user_that_no_topic_names_is_not_let_in(node: Besieged) -> None:
    stranger = node.guest(uid=12345, greet=False)
    refusal = stranger.receive()
    assert isinstance(refusal, m.Refused)
    assert refusal.code == "not_allowed"
    assert stranger.receive() is None


@AS_ROOT
def test_connections_of_one_user_are_limited_and_others_get_in() -> None:
    with besieged(max_connections=3) as node:
        for _ in range(3):
            node.guest()
        refusal = node.guest(greet=False).receive()
        assert isinstance(refusal, m.Refused)
        assert refusal.code == "quota_exceeded"
        node.guest(uid=OWNER_UID)
        node.worker.connect()


def test_a_client_that_reads_nothing_is_not_read_from(node: Besieged) -> None:
    """What waits for it stays small, however much it asks for."""
    guest = node.guest()
    guest.socket.settimeout(0.5)
    ask = b"".join(encode_frame(m.ListSegments(tag, "open")) for tag in range(1000))
    sent = 0

    def floods() -> bool:
        nonlocal sent
        try:
            sent += guest.socket.send(ask)
        except TimeoutError:
            return True
        return False

    until(floods, "the worker to stop reading")
    assert sent < 64 << 20
    node.check_undisturbed()


@pytest.mark.parametrize("ending", [socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])
def test_half_closed_connections(node: Besieged, ending: int) -> None:
    guest = node.guest()
    guest.socket.shutdown(ending)
    try:
        guest.send(m.ListSegments(1, "open"))
    except (BrokenPipeError, ConnectionResetError):
        assert ending != socket.SHUT_RD
    node.check_undisturbed()
