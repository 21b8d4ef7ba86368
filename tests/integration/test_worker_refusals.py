"""Pushes and connections that a worker refuses, over a real socket: with a reason, and at nobody else's cost."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from quiver_actors.base.metrics.figures import EngineFigure, WorkerFigure
from quiver_actors.base.protocol import messages as m
from quiver_actors.node.worker import connections
from quiver_actors.node.worker.requests import ARENA_BYTES_MAX
from tests.integration.test_worker_push import engine_figure, worker_figure
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, settings, table, topic, until
from tests.unit.node.worker.spans import Span

# --- refusals --------------------------------------------------------------------------------------------------------------


def refused(client: WireClient, tag: int) -> m.Refused:
    return client.expect(m.Refused, lambda answer: answer.tag == tag)


def test_unknown_topic_names_the_topics_and_returns_the_credit(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        answer = refused(client, client.push(table(1), topic="nowhere").tag)
        assert answer.code == "unknown_topic"
        assert "its topics are default" in answer.message
        assert client.arena is not None
        assert client.arena.in_flight_bytes() == 0
        client.push_and_wait(table(1))


def test_handle_of_another_topic_is_not_known(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic("clicks"))) as worker:
        client = worker.producer()
        answer = refused(client, client.push(table(1), topic="clicks").tag)
        assert answer.code == "protocol"
        assert "schema handle 0 was not declared" in answer.message


def test_damaged_bytes_are_refused_and_the_next_push_is_taken(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        span = Span()
        span.add([(0, 0, table(1))])
        span.data[150] ^= 1
        push = client.place(span)
        client.send(push)
        assert refused(client, push.tag).code == "protocol"
        assert client.push_and_wait(table(2)).sequence == 0
        until(lambda: engine_figure(worker, EngineFigure.REFUSED) == 1, "the count of refused pushes")


@pytest.mark.parametrize("size_bytes", [ARENA_BYTES_MAX + 1, 1 << 62])
def test_arena_over_the_limit_names_the_limit(tmp_path: Path, size_bytes: int) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.send(m.AttachArena(1, size_bytes))
        answer = refused(client, 1)
        assert answer.code == "bundle_too_large"
        assert "one bundle holds at most 256 MiB" in answer.message
        client.attach_arena()


def test_arena_size_may_be_left_to_the_worker(tmp_path: Path) -> None:
    with running(tmp_path, settings(arena_bytes=3 << 20)) as worker:
        client = worker.connect()
        client.attach_arena(0)
        assert client.arena is not None
        assert client.arena.size_bytes == 3 << 20


def ends_with(worker: WorkerThread, client: WireClient, code: str, text: str) -> None:
    answer = client.expect(m.Refused)
    assert (answer.code, text in answer.message) == (code, True), answer
    client.expect_end()
    other = worker.producer()
    other.push_and_wait(table(1))


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (m.DeclareSchema(1, "nowhere", 0, bytes(32), b""), "unknown_topic", "does not exist"),
        (m.DeclareSchema(1, "default", 64, bytes(32), b""), "unknown_slot", "outside 0..63"),
        (m.DeclareSchema(1, "default", 0, bytes(31), b""), "protocol", "fingerprint"),
        (m.DeclareSchema(1, "default", 0, bytes(32), b"no schema at all"), "protocol", "not an Arrow schema"),
        (m.Push(1, "default", 0, 64, 64, b"", b"", b""), "protocol", "before ArenaAttached"),
        (m.Hello(m.PROTOCOL_VERSION, 1, "again"), "protocol", "second Hello"),
        (m.Resolve(1, "default", "s", 0, 1, "burn", b""), "protocol", "are not valid"),
        (m.Resolve(1, "default", "s", 0, 1, "ack", b"abc"), "protocol", "are not valid"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else str(value)[:20],
)
def test_message_out_of_order_ends_its_connection_only(tmp_path: Path, sent: m.Message, code: str, text: str) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.send(sent)
        ends_with(worker, client, code, text)


def test_declared_slot_table_is_enforced(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(slots={"flights": 0, "weather": 1}))) as worker:
        client = worker.connect()
        assert client.welcome is not None
        assert client.welcome.topics == [m.TopicInfo("default", {"flights": 0, "weather": 1}, "wal", 0)]
        client.declare(0, table().schema, slot_id=2)
        answer = client.expect(m.Refused)
        assert (answer.code, answer.tag) == ("unknown_slot", 0)
        client.expect_end()


@pytest.mark.parametrize(
    "raw", [struct.pack("<I", m.FRAME_BYTES_MAX + 1), b"\x01\0\0\0\xc1", struct.pack("<I", 4097) + bytes(4097)]
)
def test_rubbish_on_the_socket_ends_the_connection_with_a_reason(tmp_path: Path, raw: bytes) -> None:
    with running(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.socket.sendall(raw)
        ends_with(worker, client, "protocol", "frame")


def test_message_before_hello_ends_the_connection(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.send(m.AttachArena(1, 100))
        ends_with(worker, client, "protocol", "AttachArena before Hello")


def test_span_outside_the_arena_ends_the_connection(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        client.send(m.Push(1, "default", 0, 1 << 40, 0, b"", b"", b""))
        ends_with(worker, client, "protocol", "not inside the arena")


def test_silent_connection_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = connections.HELLO_PATIENCE_NS
    monkeypatch.setattr(connections, "HELLO_PATIENCE_NS", 0)
    with running(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.received.append(client.expect(m.Refused))
        # The next one is to have the time for its Hello.
        monkeypatch.setattr(connections, "HELLO_PATIENCE_NS", patient)
        ends_with(worker, client, "protocol", "no Hello came in time")


def test_connections_over_the_limit_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SESSIONS_MAX", 2)
    with running(tmp_path) as worker:
        first, second = worker.producer(), worker.producer()
        # Figures come a little later: what is waited for below must not be what was there before both were counted.
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 2, "both to be counted")
        third = worker.connect(greet=False)
        assert third.expect(m.Refused).code == "worker_unavailable"
        third.expect_end()
        second.close()
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 1, "the place to be free")
        worker.producer().push_and_wait(table(1))
        first.push_and_wait(table(2))


def test_producer_that_dies_leaves_the_others_and_its_acknowledged_bundles(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        dying, living = worker.producer(), worker.producer()
        dying.push_and_wait(table(1))
        dying.push(table(2))
        dying.close()
        living.push_and_wait(table(3))
        living.flush()
        living.register("s", credit=10)
        stored = [values[0] for _, _, values in living.values(2)]
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 1, "the session to end")
        until(lambda: worker_figure(worker, WorkerFigure.ARENA_BYTES) == 1 << 20, "its arena to go")
    assert set(stored) <= {1, 2, 3}
    assert {1, 3} <= set(stored) or {1, 2} <= set(stored)
