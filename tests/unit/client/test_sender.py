"""The window of a call, in what plain, numbered and staged pushes have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from quiver_actors.base.protocol.messages import (
    ENTRY_ROW,
    BeginStage,
    ClientMessage,
    Done,
    Hello,
    KeyedPush,
    Message,
    Push,
    StagePush,
    TopicInfo,
    Welcome,
)
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, connect
from quiver_actors.errors import PushTimeout, SequenceGap, TopicRecreated, TransactionAborted
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import batch
from tests.unit.client.peer import Background, Peer, PeerSession, refuse, write_node_file

BUNDLES = 200
_NOBODYS_TAG = 1 << 40

Way = tuple[type[Message], Callable[[Client], object]]


def begin(session: PeerSession, message: ClientMessage) -> bool:
    assert isinstance(message, BeginStage)
    session.send(Done(message.tag, 7))
    return True


def many() -> Iterator[object]:
    return map(batch, range(BUNDLES))


def push_plain(client: Client) -> object:
    return client.push_many(many(), timeout=30)


def push_numbered(client: Client) -> object:
    return client.push_many(many(), producer="p", sequence=1, timeout=30)


def push_staged(client: Client) -> object:
    with client.stage("t") as stage:
        return stage.push_many(many(), timeout=30)


AGAIN: list[Way] = [(Push, push_plain), (KeyedPush, push_numbered)]
"""Ways of pushing that send again what a lost connection took."""
EVERY: list[Way] = [*AGAIN, (StagePush, push_staged)]


@pytest.mark.parametrize(("kind", "push"), AGAIN)
def test_a_call_ends_where_its_topic_was_created_anew_while_the_connection_was_lost(
    peer: Peer, client: Client, kind: type[Message], push: Callable[[Client], object]
) -> None:
    """A plain push went on: bundles made for the slots of the former topic were stored in the new one."""
    incarnations = iter(["first", "second", "second"])

    def greet(session: PeerSession, message: ClientMessage) -> bool:
        topic = TopicInfo("default", {}, "wal", 0, next(incarnations))
        session.send(Welcome(peer.version, session.core, "00" * 16, os.getpid(), [topic]))
        return True

    def lose(session: PeerSession, message: ClientMessage) -> bool:
        session.close()
        return True

    peer.handlers[Hello] = greet
    peer.handlers[kind] = lose
    with pytest.raises(TopicRecreated):
        push(client)
    del peer.handlers[kind]
    assert not peer.stored
    push(client)
    assert len(peer.stored) == BUNDLES


def test_and_where_it_was_created_anew_on_the_worker_that_takes_over(two_cores: Peer) -> None:
    """This worker's channel has never heard of the former topic."""

    def greet(session: PeerSession, message: ClientMessage) -> bool:
        topic = TopicInfo("default", {}, "wal", 0, "first" if session.core else "second")
        session.send(Welcome(two_cores.version, session.core, "00" * 16, os.getpid(), [topic]))
        return True

    two_cores.handlers[Hello] = greet
    two_cores.holds_acks = True
    with connect(two_cores.run_dir) as client:
        key = next(str(number) for number in range(16) if client.core_for(str(number)) == 1)
        pushed = Background(lambda: client.push_many(many(), key=key, timeout=30))
        two_cores.wait_for(lambda: bool(two_cores.unacknowledged))
        write_node_file(two_cores.run_dir, 1)
        two_cores.kill(1)
        with pytest.raises(TopicRecreated):
            pushed.result()
    assert {stored.core for stored in two_cores.stored} == {1}


@pytest.mark.parametrize(("kind", "push"), EVERY)
def test_a_worker_that_acknowledges_nothing_is_waited_for_until_the_timeout(
    peer: Peer, client: Client, clock: ClientClock, kind: type[Message], push: Callable[[Client], object]
) -> None:
    def stay_silent(session: PeerSession, message: ClientMessage) -> bool:
        clock.ahead_ns += 31 * SECOND_NS
        # It answers nothing: a client that waits already looks at its clock again.
        session.send(Done(_NOBODYS_TAG))
        return True

    peer.handlers[BeginStage] = begin
    peer.handlers[kind] = stay_silent
    with pytest.raises(PushTimeout, match="30 s"):
        push(client)


def test_numbers_behind_a_refused_message_are_sent_again_in_their_order(peer: Peer, client: Client) -> None:
    """The worker calls them a gap. `test_push` has the same of plain pushes, which carry the number of their call instead."""
    expected = [1]
    to_refuse = ["hard_pressed"]

    def take_in_order(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, KeyedPush)
        if message.first_number > 1 and to_refuse:
            return refuse(to_refuse.pop())(session, message)
        if message.first_number != expected[0]:
            return refuse(SequenceGap.code)(session, message)
        expected[0] += len(message.entries) // ENTRY_ROW.size
        return False

    peer.handlers[KeyedPush] = take_in_order
    push_numbered(client)
    assert [stored.entry.batches[0].to_pydict()["id"][0] for stored in peer.stored] == list(range(BUNDLES))


def test_what_was_staged_is_not_sent_again_over_another_connection(peer: Peer, client: Client) -> None:
    """Its worker drops a stage whose connection is lost: bundles that came later would be all that there is of it."""

    def lose(session: PeerSession, message: ClientMessage) -> bool:
        session.close()
        return True

    peer.handlers[BeginStage] = begin
    peer.handlers[StagePush] = lose
    with pytest.raises(TransactionAborted, match="run it again"):
        push_staged(client)
    assert not peer.stored


def test_a_stage_counts_what_was_pushed_into_it(peer: Peer, client: Client) -> None:
    peer.handlers[BeginStage] = begin
    assert push_staged(client) == BUNDLES
    assert [stored.entry.batches[0].num_rows for stored in peer.stored] == [2] * BUNDLES
