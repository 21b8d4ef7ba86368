"""What an idempotent push sends, and in which order."""

from __future__ import annotations

import pytest

from quiver_actors.base.protocol.messages import ClientMessage, KeyedPush
from quiver_actors.client import Client, connect
from quiver_actors.errors import SequenceGap
from tests.unit.client.feeding import batch
from tests.unit.client.peer import Peer, PeerSession, refuse, write_node_file


def first_numbers(peer: Peer) -> list[int]:
    return [message.first_number for message in peer.of_type(KeyedPush) if isinstance(message, KeyedPush)]


def test_nothing_follows_the_first_message_of_a_producer_before_it_is_stored(peer: Peer, client: Client) -> None:
    """A worker that does not know the producer would begin with the second one, and have the first for too old."""
    to_refuse = ["hard_pressed", "engine_failed"]

    def refuse_first(session: PeerSession, message: ClientMessage) -> bool:
        return refuse(to_refuse.pop())(session, message) if to_refuse else False

    peer.handlers[KeyedPush] = refuse_first
    client.push_many((batch(number) for number in range(200)), producer="p", sequence=1)
    assert first_numbers(peer) == [1, 1, 1, 65, 129, 193]


def test_nor_the_first_one_after_the_connection_was_lost(peer: Peer, client: Client) -> None:
    """Where pushes return before they are synced the worker may have forgotten what it had acknowledged."""
    seen: list[int] = []

    def lose_then_refuse(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, KeyedPush)
        seen.append(message.first_number)
        if seen == [1, 65]:
            session.close()
            return True
        return refuse("hard_pressed")(session, message) if seen == [1, 65, 65] else False

    peer.handlers[KeyedPush] = lose_then_refuse
    client.push_many((batch(number) for number in range(200)), producer="p", sequence=1)
    assert seen == [1, 65, 65, 65, 129, 193]


def test_what_may_or_may_not_have_been_stored_is_pushed_again(peer: Peer, client: Client) -> None:
    to_refuse = ["durability_unknown"]

    def refuse_first(session: PeerSession, message: ClientMessage) -> bool:
        return refuse(to_refuse.pop())(session, message) if to_refuse else False

    peer.handlers[KeyedPush] = refuse_first
    assert len(client.push_many((batch(number) for number in range(70)), producer="p", sequence=5)) == 70
    assert first_numbers(peer) == [5, 5, 69]


@pytest.mark.parametrize("refusal", ["producer_unsettled", "engine_failed", "hard_pressed", "durability_unknown"])
def test_a_gap_of_the_first_message_is_told_at_once_also_behind_another_refusal(
    peer: Peer, client: Client, refusal: str
) -> None:
    """It was taken for one that the refusal had caused: the call went on until its timeout, and then told of the refusal."""
    to_refuse = ["sequence_gap", refusal]

    def refuse_twice(session: PeerSession, message: ClientMessage) -> bool:
        return refuse(to_refuse.pop())(session, message) if to_refuse else False

    peer.handlers[KeyedPush] = refuse_twice
    with pytest.raises(SequenceGap):
        client.push_many((batch(number) for number in range(70)), producer="p", sequence=5)
    assert first_numbers(peer) == [5, 5]


@pytest.mark.parametrize("refusal", ["producer_unsettled", "engine_failed", "hard_pressed", "durability_unknown"])
def test_a_gap_that_the_refusal_of_a_message_before_it_has_caused_is_not_told(
    peer: Peer, client: Client, refusal: str
) -> None:
    """Three messages are under way when the first of them is refused."""
    held: list[KeyedPush] = []

    def refuse_three(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, KeyedPush)
        if message.first_number == 1 or len(held) == 3:
            return False
        held.append(message)
        if len(held) == 3:
            for each, code in zip(held, (refusal, "sequence_gap", "sequence_gap"), strict=True):
                refuse(code)(session, each)
        return True

    peer.handlers[KeyedPush] = refuse_three
    assert len(client.push_many((batch(number) for number in range(200)), producer="p", sequence=1)) == 200
    assert first_numbers(peer)[:5] == [1, 65, 129, 193, 65]


def test_a_producer_whose_core_has_no_worker_any_more_goes_elsewhere(two_cores: Peer) -> None:
    """The first push after the restart waited until its timeout, though nothing of it had been sent."""
    with connect(two_cores.run_dir) as client:
        name = next(str(n) for n in range(16) if client.core_for(str(n)) == 1)
        client.push(batch(1), producer=name, sequence=1)
        two_cores.kill(1)
        write_node_file(two_cores.run_dir, 2, adopted=[1])
        two_cores.listen(1)
        assert client.push(batch(2), producer=name, sequence=2).bundle_id.core == 0
