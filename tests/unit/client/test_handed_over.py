"""The worker is told of each bundle that the caller is handed, where only such bundles count as delivered."""

from __future__ import annotations

from array import array
from pathlib import Path

from quiver_actors.base.protocol.messages import Credit, GroupTerms, Taken, Terms
from quiver_actors.base.protocol.subscriber_messages import HEARS_TAKEN
from quiver_actors.client import Client, connect
from tests.unit.client.feeding import deliver, open_segment, take
from tests.unit.client.peer import Peer
from tests.unit.client.test_terms import registered


def told(peer: Peer) -> list[int]:
    return [index for message in peer.of_type(Taken) for index in array("I", message.bundle_indexes)]


def test_the_worker_is_told_of_each_bundle_that_is_handed_over_where_that_counts(
    peer: Peer, client: Client, segment: Path
) -> None:
    peer.features = HEARS_TAKEN
    with connect(peer.run_dir) as fresh, fresh.subscribe("exporter", topic="travel", max_deliveries=2) as subscription:
        assert [message.tells_taken for message in registered(peer)] == [True]
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], *range(20), token=1)
        take(subscription, 2)
        peer.wait_for(lambda: told(peer) == [0, 1])
        assert {(message.segment_seq, message.token) for message in peer.of_type(Taken)} == {(4, 1)}
        peer.sessions[-1].send(GroupTerms("travel", "exporter", Terms(), 0))
        take(subscription, 5)
        subscription.flush()
        assert len(told(peer)) <= 7, "no longer than another consumer's terms want it"


def test_what_was_handed_over_before_is_told_once_another_consumer_wants_it_to_count(
    peer: Peer, client: Client, segment: Path
) -> None:
    peer.features = HEARS_TAKEN
    with connect(peer.run_dir) as fresh, fresh.subscribe("exporter", topic="travel") as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], *range(20), token=1)
        first, _, _ = take(subscription, 3)
        first.ack()
        subscription.flush()
        assert not peer.of_type(Taken)
        peer.sessions[-1].send(GroupTerms("travel", "exporter", Terms(max_deliveries=1), 0))
        subscription.flush()
        peer.wait_for(lambda: told(peer) == [1, 2])
        take(subscription, 1)
        peer.wait_for(lambda: told(peer) == [1, 2, 3])


def test_an_older_worker_is_told_nothing(peer: Peer, client: Client, segment: Path) -> None:
    with client.subscribe("exporter", topic="travel", max_deliveries=2) as subscription:
        assert [message.tells_taken for message in registered(peer)] == [False]
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], *range(20), token=1)
        take(subscription, 2)
        subscription.flush()
        assert not peer.of_type(Taken)
