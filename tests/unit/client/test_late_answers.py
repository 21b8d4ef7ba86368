"""Stages whose worker answers when nobody waits any more: what the answer grants is given back."""

from __future__ import annotations

import pytest

from quiver_actors.base.protocol.messages import (
    AbandonStage,
    BeginStage,
    ClientMessage,
    Done,
    DropStages,
    PrepareStage,
    Refused,
    StageReady,
)
from quiver_actors.client import Client, connect
from quiver_actors.client.stage import Stage, StagePlan
from quiver_actors.errors import TransactionAborted, WorkerUnavailable
from tests.unit.client.feeding import batch
from tests.unit.client.peer import Peer, PeerSession, begin_stage, write_node_file

INCARNATION = "ab" * 16


class Held:
    """Requests of one kind that are answered later."""

    def __init__(self) -> None:
        self.requests: list[tuple[PeerSession, int]] = []

    def __call__(self, session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, BeginStage | PrepareStage)
        self.requests.append((session, message.tag))
        return True


def ready(tag: int) -> StageReady:
    return StageReady(tag, INCARNATION, 7, bundles=1, rows=2, size_bytes=3, expires_unix_ns=4)


def test_a_stage_that_begins_too_late_is_given_up(peer: Peer, client: Client) -> None:
    held = peer.handlers[BeginStage] = Held()
    client.push(batch(1))
    with pytest.raises(WorkerUnavailable):
        client.stage("t", timeout=0.05)
    peer.wait_for(lambda: bool(held.requests))
    ((session, tag),) = held.requests
    session.send(Done(tag, 7))
    client.push(batch(1))
    peer.wait_for(lambda: any(isinstance(message, AbandonStage) for _, message in peer.received))
    assert peer.of_type(AbandonStage) == [AbandonStage("default", 7)]


def test_a_stage_begins_elsewhere_where_the_node_comes_back_without_its_core(two_cores: Peer) -> None:
    """Regression: the stage waited for the missing core until its timeout."""
    two_cores.handlers[BeginStage] = begin_stage
    with connect(two_cores.run_dir) as client:
        key = next(str(n) for n in range(16) if client.core_for(str(n)) == 1)
        client.push(batch(1), key=key)
        two_cores.kill(1)
        write_node_file(two_cores.run_dir, 1)
        assert client.stage("t", key=key).core == 0


def test_a_stage_whose_connection_is_lost_as_it_begins_is_gone(peer: Peer, client: Client) -> None:
    """Regression: where another thread read both answers first, a later push failed or went into a stage of the next connection."""

    def begin_and_die(session: PeerSession, message: ClientMessage) -> bool:
        begin_stage(session, message)
        session.close()
        return True

    peer.handlers[BeginStage] = begin_and_die
    client.push(batch(1))
    channels, plan = client._channels, StagePlan("t", "default", 0, 0, 0, "", 60.0, "here")
    stage = Stage(client._producer, channels, plan, None)
    flow, channel = stage.beginning(10), channels.channel(0)
    with channels.exchange.lock:
        next(flow)
        while channel.generation == 0:
            channels.exchange.look()
        with pytest.raises(StopIteration):
            next(flow)
    with pytest.raises(TransactionAborted, match="run it again"):
        stage.push(batch(1))


def test_a_late_refusal_gives_nothing_back(peer: Peer, client: Client) -> None:
    held = peer.handlers[BeginStage] = Held()
    client.push(batch(1))
    with pytest.raises(WorkerUnavailable):
        client.stage("t", timeout=0.05)
    peer.wait_for(lambda: bool(held.requests))
    ((session, tag),) = held.requests
    session.send(Refused(tag, "draining", "no"))
    client.push(batch(1))
    client.push(batch(1))
    assert not peer.of_type(AbandonStage)


def test_a_token_that_comes_too_late_is_dropped(peer: Peer, client: Client) -> None:
    peer.handlers[BeginStage] = begin_stage
    held = peer.handlers[PrepareStage] = Held()
    stage = client.stage("t")
    stage.push(batch(1))
    with pytest.raises(WorkerUnavailable):
        stage.prepare(timeout=0.05)
    peer.wait_for(lambda: bool(held.requests))
    ((session, tag),) = held.requests
    session.send(ready(tag))
    client.push(batch(1))
    peer.wait_for(lambda: any(isinstance(message, DropStages) for _, message in peer.received))
    (drop,) = peer.of_type(DropStages)
    assert isinstance(drop, DropStages)
    assert (drop.topic, drop.incarnation, drop.numbers) == ("default", INCARNATION, [7])
    session.send(Done(drop.tag))
    client.push(batch(1))


def test_a_token_that_comes_in_time_is_kept(peer: Peer, client: Client) -> None:
    peer.handlers[BeginStage] = begin_stage

    def prepare(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, PrepareStage)
        session.send(ready(message.tag))
        return True

    peer.handlers[PrepareStage] = prepare
    with client.stage("t") as stage:
        stage.push(batch(1))
        token = stage.prepare()
    client.push(batch(1))
    assert token is not None
    assert token.number == 7
    assert not peer.of_type(DropStages)
    assert not peer.of_type(AbandonStage)
