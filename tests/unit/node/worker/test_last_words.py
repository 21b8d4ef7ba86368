"""What a client sends before it goes is handled, at whatever moment the worker notices that it is gone; a guest cannot hold the loop so."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.node.worker.connections import LAST_READS_MAX
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.session import Session
from tests.unit.node.worker.harness import WireClient, settings, topic, until
from tests.unit.node.worker.test_loop import SteppedWorker, stepped

GUEST = 65534


def greeted(worker: SteppedWorker) -> tuple[WireClient, Session]:
    """A client that has been welcomed, and its session."""
    client = worker.connect(greet=False)
    known = set(worker.worker.loop.connections.sessions.values())
    client.send(m.Hello(m.PROTOCOL_VERSION, os.getpid(), "test"))
    worker.step()
    worker.step()
    (session,) = set(worker.worker.loop.connections.sessions.values()) - known
    client.expect(m.Welcome)
    return client, session


def step_until_closed(worker: SteppedWorker, session: Session) -> None:
    def is_closed() -> bool:
        worker.step()
        return session.is_closed

    until(is_closed, "the end of the session")


def registered(worker: SteppedWorker) -> set[str]:
    """Subscribers that the topic knows."""
    return {name for host in worker.worker.loop._hosts.values() for name in host.engine.registrations.names()}


def leave_with_an_answer_on_its_way(
    worker: SteppedWorker, client: WireClient, session: Session, count: int = 1
) -> None:
    """The client sends requests and is gone; the worker meets the end when it sends an answer, and has not read the requests."""
    client.send(*(m.Register(number, "default", f"s{number}", "earliest", m.Terms()) for number in range(count)))
    client.close()
    session.send(m.Done(1))
    worker.worker.loop.connections.flush()


def test_what_lies_in_the_socket_of_a_client_that_is_gone_is_handled(tmp_path: Path) -> None:
    with stepped(tmp_path) as worker:
        client, session = greeted(worker)
        leave_with_an_answer_on_its_way(worker, client, session, count=20)
        step_until_closed(worker, session)
        assert registered(worker) >= {f"s{number}" for number in range(20)}


def test_a_client_that_is_gone_while_it_pauses_is_heard_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not read its answers, so it was not read from; what it sent after that lies in the socket."""
    monkeypatch.setattr("quiver_actors.node.worker.session.UNSENT_BYTES_MAX", 1 << 15)
    with stepped(tmp_path) as worker:
        client, session = greeted(worker)
        asked = 0
        while not session.must_pause:
            client.send(m.Flush(asked, "t" * 10_000))
            asked += 1
            worker.step()
        worker.step()
        client.send(m.Register(asked, "default", "late", "earliest", m.Terms()))
        client.close()
        step_until_closed(worker, session)
        assert "late" in registered(worker)


def test_a_client_that_takes_no_answers_and_goes_on_sending_is_left(tmp_path: Path) -> None:
    with stepped(tmp_path) as worker:
        client, session = greeted(worker)
        client.socket.shutdown(socket.SHUT_RD)
        session.send(m.Done(1))
        turns = 0
        while not session.is_closed:
            client.send(m.Flush(turns, "default"))
            worker.step()
            turns += 1
            assert turns <= 2 * LAST_READS_MAX


def test_a_client_that_takes_no_answers_and_keeps_still_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver_actors.node.worker.connections.LAST_READS_MAX", 1)
    monkeypatch.setattr("quiver_actors.node.worker.loop._SWEEP_INTERVAL_NS", 0)
    with stepped(tmp_path) as worker:
        client, session = greeted(worker)
        client.socket.shutdown(socket.SHUT_RD)
        session.send(m.Done(1))
        step_until_closed(worker, session)


def test_a_guest_that_is_gone_is_not_heard_out(tmp_path: Path) -> None:
    with stepped(tmp_path, settings(topic(allowed_uids=(GUEST,)))) as worker:
        # One test process has one user: the worker is told that another one is at the other end.
        worker.worker.loop.connections.peer_of = lambda connection: Peer(os.getpid(), GUEST, GUEST)
        client, session = greeted(worker)
        assert session.guest is not None
        leave_with_an_answer_on_its_way(worker, client, session)
        assert session.is_closed
        assert not registered(worker)
