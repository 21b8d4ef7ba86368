from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.supervisor import control
from quiver_actors.supervisor.errors import ControlError


def test_splitter_gives_the_same_bodies_however_the_bytes_arrive() -> None:
    stream = control.encode_frame(control.Ping()) + control.encode_frame(control.Drain())
    whole = control.FrameSplitter().feed(stream)
    bytewise = control.FrameSplitter()
    assert [body for byte in stream for body in bytewise.feed(bytes([byte]))] == whole
    assert len(whole) == 2


def test_splitter_refuses_a_frame_over_the_limit_before_it_arrives() -> None:
    with pytest.raises(ControlError, match="at most 1048576"):
        control.FrameSplitter().feed(struct.pack("<I", control.FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa2op\xa4open", b"\x93\x01\x02\x03"])
def test_answer_refuses_what_is_no_request(body: bytes) -> None:
    assert isinstance(control.answer(body, lambda request: control.Accepted()), control.Refused)


class Served:
    """A control server with a loop of its own, in a thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.requests: list[control.Request] = []
        self._turn = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._server = control.ControlServer(path, self._selector, self._handle)
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._stopped, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _handle(self, request: control.Request, uid: int) -> control.Reply:
        assert uid == os.geteuid()
        self.requests.append(request)
        return control.Pong(pid=7) if isinstance(request, control.Ping) else control.Accepted()

    def held(self) -> threading.Lock:
        """While it is held, the server takes nothing up."""
        return self._turn

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                with self._turn:
                    key.data()

    def close(self) -> None:
        self._stop.send(b".")
        self._thread.join()
        self._server.close()
        self._server.close()
        self._selector.close()
        self._stop.close()
        self._stopped.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.chdir(tmp_path)  # a short, relative address
    server = Served("s")
    yield server
    server.close()
    assert not Path("s").exists()


def test_request_is_handled_and_answered(served: Served) -> None:
    assert control.request(served.path, control.Ping()) == control.Pong(pid=7)
    assert control.request(served.path, control.Stop()) == control.Accepted()
    assert served.requests == [control.Ping(), control.Stop()]


def test_several_requests_in_one_packet_are_answered_in_order(served: Served) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(served.path)
        peer.sendall(control.encode_frame(control.Drain()) + control.encode_frame(control.Ping()))
        expected = control.encode_frame(control.Accepted()) + control.encode_frame(control.Pong(pid=7))
        received = b""
        while len(received) < len(expected):
            received += peer.recv(4096)
        assert received == expected


def test_sessions_over_the_limit_end_the_oldest_so_that_lingering_peers_lock_nobody_out(served: Served) -> None:
    peers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(control.SESSIONS_MAX + 1)]
    for peer in peers:
        peer.settimeout(30)
        peer.connect(served.path)
    assert peers[0].recv(1) == b""
    assert control.request(served.path, control.Ping()) == control.Pong(pid=7)
    for peer in peers:
        peer.close()
    assert control.request(served.path, control.Ping()) == control.Pong(pid=7)


def test_request_without_a_supervisor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ControlError, match="is the supervisor running"):
        control.request("nobody", control.Ping())


def test_request_to_a_supervisor_that_does_not_answer_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("s")
        listener.listen()
        with pytest.raises(ControlError, match="timed out"):
            control.request("s", control.Ping(), timeout_seconds=0.05)


def test_request_waits_its_turn_while_the_supervisors_backlog_is_full(served: Served) -> None:
    with contextlib.ExitStack() as waiting, served.held():
        queued = 0
        while queued <= control.SESSIONS_MAX:
            peer = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            peer.setblocking(False)
            try:
                peer.connect(served.path)
            except BlockingIOError:
                break
            queued += 1
        with pytest.raises(BlockingIOError):
            waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)).connect(
                served.path
            )
        with pytest.raises(ControlError, match="temporarily unavailable"):
            control.request(served.path, control.Ping(), timeout_seconds=0.05)
        answers: list[control.Reply] = []
        asking = threading.Thread(target=lambda: answers.append(control.request(served.path, control.Ping(), 30)))
        asking.start()
    asking.join()
    assert answers == [control.Pong(pid=7)]
