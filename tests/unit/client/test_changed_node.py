"""A node that has changed since a client connected: it has more workers, or topics that the client has not heard of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.messages import (
    BeginStage,
    ClientMessage,
    Decide,
    Decided,
    Done,
    Flush,
    ListStages,
    ListTopics,
    Pending,
    PendingInfo,
    PublishStages,
    StageList,
    TopicInfo,
    TopicList,
    Unregister,
)
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, connect
from quiver_actors.errors import NotRunning, UnknownCore, WorkerUnavailable
from quiver_actors.transactions.model import Token
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import batch
from tests.unit.client.peer import TOPICS, Background, Peer, PeerSession, begin_stage, write_node_file
from tests.unit.node.worker.harness import until

NEW_TOPIC = TopicInfo("new", {}, "wal", 0)


def knows_new_topic(session: PeerSession, message: ClientMessage) -> bool:
    assert isinstance(message, ListTopics)
    session.send(TopicList(message.tag, [*TOPICS, NEW_TOPIC]))
    return True


def grow(peer: Peer, cores: int) -> None:
    """Restart the node with so many workers."""
    before, peer.cores = peer.cores, cores
    for core in range(before):
        peer.kill(core)
    write_node_file(peer.run_dir, cores)
    for core in range(cores):
        peer.listen(core)


def pending_on_second_core(session: PeerSession, message: ClientMessage) -> bool:
    assert isinstance(message, Pending)
    owed = 3 if session.core else 0
    session.send(PendingInfo(message.tag, owed, 0, 0, 0, 0, 0, -1, 0, 0, not owed))
    return True


def test_a_worker_that_the_node_has_got_meanwhile_is_asked_what_it_owes(peer: Peer, client: Client) -> None:
    """Regression: the worker was not asked, and a subscriber called drained to whom it owed bundles."""
    peer.handlers[Pending] = pending_on_second_core
    with client.subscribe("exporter", topic="travel") as subscription:
        assert subscription.all_drained()
        grow(peer, 2)
        assert not subscription.all_drained()
        assert subscription.pending_count() == 3


@pytest.mark.parametrize(
    ("kind", "ask"),
    [(Flush, lambda client: client.flush()), (Unregister, lambda client: client.unsubscribe("exporter"))],
)
def test_and_does_what_all_workers_are_to_do(peer: Peer, client: Client, kind: type[Message], ask: object) -> None:
    client.push(batch(1))
    grow(peer, 2)
    ask(client)  # type: ignore[operator]
    assert {core for core, message in peer.received if isinstance(message, kind)} == {0, 1}


def test_all_ways_of_pushing_find_a_topic_that_is_new(peer: Peer, client: Client) -> None:
    """An idempotent push and a stage said that there is none."""
    peer.handlers[ListTopics] = knows_new_topic
    peer.handlers[BeginStage] = begin_stage
    for push in (
        lambda: client.push(batch(1), topic="new"),
        lambda: client.push(batch(1), topic="new", producer="p", sequence=1),
        lambda: client.stage("t", topic="new"),
    ):
        peer.kill(0)
        peer.listen(0)
        client.push(batch(1))
        push()


def test_a_worker_that_is_lost_when_it_is_asked_for_a_topic_is_asked_again(peer: Peer, client: Client) -> None:
    """The client said that there is no such topic."""
    asked: list[int] = []

    def lost_at_first(session: PeerSession, message: ClientMessage) -> bool:
        asked.append(1)
        if len(asked) == 1:
            session.close()
            return True
        return knows_new_topic(session, message)

    peer.handlers[ListTopics] = lost_at_first
    client.push(batch(1))
    client.push(batch(1), topic="new")
    assert peer.stored[-1].topic == "new"


def test_a_worker_that_does_not_answer_is_not_waited_for_longer_than_is_asked_for(peer: Peer, client: Client) -> None:
    """The push waited for ever, as a worker that an operator has stopped is not killed."""
    client.push(batch(1))
    peer.handlers[ListTopics] = lambda session, message: True
    late = Background(lambda: client.push(batch(1), topic="new", timeout=0.05))
    assert late.ends_within(20)
    with pytest.raises(WorkerUnavailable, match="stopped or busy"):
        late.result()


def test_what_any_worker_can_tell_is_told_while_the_first_one_is_away(two_cores: Peer) -> None:
    """Only the first one was asked: no transaction could be decided while it had failed."""

    def nothing_is_decided(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Decide)
        session.send(Decided(message.tag, ""))
        return True

    two_cores.handlers[Decide] = nothing_is_decided
    two_cores.kill(0)
    with connect(two_cores.run_dir, timeout=20) as client:
        assert client.find_decision("t") is None
        assert client.topics().keys() == {"default", "travel"}
    assert {core for core, message in two_cores.received if isinstance(message, Decide | ListTopics)} == {1}


def test_who_is_asked_may_change_while_it_is_asked(two_cores: Peer, clock: ClientClock) -> None:
    """If no core answers, the error names the first one."""
    with connect(two_cores.run_dir, timeout=60) as client:
        assert client.topics()
        two_cores.kill(0)
        assert client.topics()
        two_cores.kill(1)
        asked = Background(client.topics)
        until(lambda: not client._channels.channel(1).is_open, "the loss to be noticed")
        clock.ahead_ns += 61 * SECOND_NS
        with pytest.raises(WorkerUnavailable, match="worker 0"):
            asked.result()


def without_second_core(peer: Peer) -> None:
    """Restart the node of two cores with one, without the directory of the other."""
    for core in range(2):
        peer.kill(core)
    write_node_file(peer.run_dir, 1)
    peer.listen(0)


def no_stages(session: PeerSession, message: ClientMessage) -> bool:
    assert isinstance(message, ListStages)
    session.send(StageList(message.tag, f"incarnation {session.core}", []))
    return True


def done(session: PeerSession, message: ClientMessage) -> bool:
    assert isinstance(message, PublishStages)
    session.send(Done(message.tag))
    return True


LOST = BundleId("default", 1, 5, 0)
PATIENCE_SECONDS = 24 * 3600.0


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.drop_stages("default", 1, "it", [7], "test"),
        lambda client: client.ack_through(LOST, subscriber="exporter"),
        lambda client: client.abort_tokens([token(1)], timeout=PATIENCE_SECONDS),
    ],
    ids=["drop_stages", "ack_through", "abort_tokens"],
)
def test_a_core_that_the_node_has_lost_is_not_waited_for(two_cores: Peer, ask: Callable[[Client], None]) -> None:
    with connect(two_cores.run_dir, timeout=PATIENCE_SECONDS) as client:
        client.flush()
        without_second_core(two_cores)
        with pytest.raises(UnknownCore, match=r"has no core 1: its cores are \[0\].*start the node again") as caught:
            ask(client)
    assert (caught.value.code, caught.value.retriable) == ("unknown_core", True)


def test_the_stages_are_those_of_the_cores_that_the_node_has_now(two_cores: Peer) -> None:
    two_cores.handlers[ListStages] = no_stages
    with connect(two_cores.run_dir, timeout=PATIENCE_SECONDS) as client:
        assert client.staged_of("default") == {0: ("incarnation 0", []), 1: ("incarnation 1", [])}
        without_second_core(two_cores)
        assert client.staged_of("default") == {0: ("incarnation 0", [])}


def test_a_core_whose_worker_is_being_restarted_is_waited_for(two_cores: Peer) -> None:
    two_cores.handlers[ListStages] = no_stages
    with connect(two_cores.run_dir, timeout=PATIENCE_SECONDS) as client:
        client.flush()
        two_cores.kill(1)
        asking = Background(lambda: client.staged_of("default"))
        two_cores.wait_for(lambda: (0, ListStages) in [(core, type(each)) for core, each in two_cores.received])
        acking = Background(lambda: client.ack_through(LOST, subscriber="exporter"))
        channel = client._channels.channel(1)
        until(lambda: channel.failure is not None and "cannot be reached" in str(channel.failure), "core 1 is away")
        assert asking.is_running
        assert acking.is_running
        two_cores.listen(1)
        assert asking.result() == {0: ("incarnation 0", []), 1: ("incarnation 1", [])}
        assert acking.result() is None


def test_a_node_that_is_stopped_is_waited_for_too(two_cores: Peer) -> None:
    with connect(two_cores.run_dir, timeout=PATIENCE_SECONDS) as client:
        client.flush()
        for core in range(2):
            two_cores.kill(core)
        (two_cores.run_dir / "node.json").unlink()
        acking = Background(lambda: client.ack_through(LOST, subscriber="exporter"))
        channel = client._channels.channel(1)
        until(lambda: isinstance(channel.failure, NotRunning), "the node is away")
        assert acking.is_running
        write_node_file(two_cores.run_dir, 2)
        for core in range(2):
            two_cores.listen(core)
        assert acking.result() is None


def token(core: int) -> Token:
    return Token("t", 0, 0, 0, "node", "default", core, "it", 7, 1, 1, 1, 0)


def test_tokens_of_a_core_that_goes_while_it_is_asked_are_published_by_another_one(two_cores: Peer) -> None:
    two_cores.handlers[PublishStages] = lambda session, message: session.core == 1 or done(session, message)
    with connect(two_cores.run_dir) as client:
        publishing = Background(lambda: client.publish([token(1)], timeout=PATIENCE_SECONDS))
        two_cores.wait_for(lambda: bool(two_cores.of_type(PublishStages)))
        without_second_core(two_cores)
        assert publishing.result() is None
    assert [each.retired_core for each in two_cores.of_type(PublishStages)] == [-1, 1]
