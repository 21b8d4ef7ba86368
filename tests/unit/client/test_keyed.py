"""What an idempotent push sends, and in which order."""

from __future__ import annotations

from quiver_actors.client import Client, connect
from quiver_actors.protocol.messages import ClientMessage, KeyedPush
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


def test_a_producer_whose_core_has_no_worker_any_more_goes_elsewhere(two_cores: Peer) -> None:
    """The first push after the restart waited until its timeout, though nothing of it had been sent."""
    with connect(two_cores.run_dir) as client:
        name = next(str(n) for n in range(16) if client.core_for(str(n)) == 1)
        client.push(batch(1), producer=name, sequence=1)
        two_cores.kill(1)
        write_node_file(two_cores.run_dir, 2, adopted=[1])
        two_cores.listen(1)
        assert client.push(batch(2), producer=name, sequence=2).bundle_id.core == 0
