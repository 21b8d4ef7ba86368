"""A session's rules, with a real arena and socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import FrameReader, decode_worker_message
from quiver_actors.errors import Draining, ProtocolError, TopicDeleted
from quiver_actors.node.worker import session as session_module
from quiver_actors.node.worker.budgets import Budget
from quiver_actors.node.worker.connection import Connection
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.session import HELD_PUSHES_MAX, Session, SessionState
from quiver_actors.shm.arena import ArenaOwner, ArenaProducer
from quiver_actors.store.segment.placement import StreamSchema
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of


@dataclass
class Ends:
    session: Session
    producer: ArenaProducer
    far: socket.socket
    unsent: set[Session]

    def push(self, size_bytes: int = 1000) -> m.Push:
        offset = self.producer.reserve(size_bytes)
        assert offset is not None
        return m.Push(1, "t", offset, size_bytes, self.producer.commit(size_bytes), b"", b"", b"")


@pytest.fixture
def ends() -> Iterator[Ends]:
    near, far = socket.socketpair()
    unsent: set[Session] = set()
    session = Session(
        Connection(near, frame_bytes_max=4096), Peer(1, 2, 3), 0, unsent, Budget(is_guest=False, now_ns=0)
    )
    arena = ArenaOwner.create(1 << 16)
    producer = ArenaProducer.attach(arena.fd, arena.size_bytes)
    session.greet(m.Hello(m.PROTOCOL_VERSION, 1, "test"))
    session.arena.expect(1 << 20)
    session.arena.attach(arena)
    yield Ends(session, producer, far, unsent)
    session.close()
    producer.close()
    far.close()


def test_hello_of_another_version_names_both_and_what_to_do(ends: Ends) -> None:
    ends.session.state = SessionState.GREETING
    with pytest.raises(ProtocolError, match="speaks protocol version 99, this worker 4: install the same release"):
        ends.session.greet(m.Hello(99, 1, "old"))


def test_second_hello_is_refused(ends: Ends) -> None:
    with pytest.raises(ProtocolError, match="second Hello"):
        ends.session.greet(m.Hello(m.PROTOCOL_VERSION, 1, "again"))


def test_longer_frames_are_taken_after_hello_only(ends: Ends) -> None:
    assert isinstance(ends.session.connection, Connection)
    assert ends.session.connection.reader.frame_bytes_max == m.FRAME_BYTES_MAX


def test_session_pauses_with_too_many_waiting_pushes(ends: Ends) -> None:
    held = [ends.session.arena.hold(m.Push(1, "t", 0, 0, 0, b"", b"", b"")) for _ in range(HELD_PUSHES_MAX)]
    assert ends.session.must_pause
    ends.session.arena.release_held(held[0])
    assert not ends.session.must_pause


def test_schema_handles_are_single_use_and_bounded(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StreamSchema(0, bytes(32), b"schema")
    ends.session.schemas.declare("t", 1, schema)
    assert ends.session.schemas.of("t") == {1: schema}
    assert ends.session.schemas.of("other") == {}
    with pytest.raises(ProtocolError, match="was declared before"):
        ends.session.schemas.declare("t", 1, schema)
    monkeypatch.setattr(session_module, "SCHEMAS_MAX", 1)
    with pytest.raises(ProtocolError, match="more than 1 schemas"):
        ends.session.schemas.declare("t", 2, schema)


def test_answers_are_noted_for_the_next_flush(ends: Ends) -> None:
    ends.session.refuse(5, Draining("later"), 7)
    assert ends.unsent == {ends.session}
    assert ends.session.connection.flush()
    reader = FrameReader()
    reader.feed(ends.far.recv(4096))
    assert [decode_worker_message(frame) for frame in reader.frames()] == [m.Refused(5, "draining", "later", 7)]


def test_closed_session_takes_answers_and_drops_them(ends: Ends) -> None:
    held = ends.session.arena.hold(ends.push())
    ends.session.send(m.Done(1))
    ends.session.close()
    ends.session.close()
    ends.session.send(m.Done(2))
    ends.session.arena.release_held(held)
    assert ends.session.is_closed
    assert ends.unsent == set()
    assert ends.session.arena.size_bytes == 0


def test_a_long_connection_keeps_no_deleted_topic_in_memory(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    benches = [HostBench(clock, topic_settings()) for _ in range(2)]
    try:
        ends.session.hosts |= {bench.host: None for bench in benches}
        benches[0].host.give_up(TopicDeleted("gone"), lambda: None)
        ends.session.forget_gone_hosts()
        assert list(ends.session.hosts) == [benches[1].host]
    finally:
        for bench in benches:
            bench.close()
