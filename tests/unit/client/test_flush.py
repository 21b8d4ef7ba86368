"""A flush that returns speaks for everything that was resolved, also over connections that are gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.protocol.messages import ClientMessage, Credit, Done, FlushProgress, GapAck, Pending, Resolve
from quiver_actors.client import Client, GapNotice, Subscription, connect
from quiver_actors.client.subscriber_channel import UNCONFIRMED_MAX
from quiver_actors.client.unconfirmed import Place, Unconfirmed, ranges_of
from quiver_actors.errors import WorkerUnavailable
from tests.unit.client.feeding import Feeder, gap, take
from tests.unit.client.peer import Peer, PeerSession


def forget_resolutions(peer: Peer) -> None:
    """The worker hears of them, and dies before they are durable."""
    peer.handlers[Resolve] = lambda session, message: True


def restart(peer: Peer) -> None:
    peer.kill(0)
    peer.listen(0)


def test_what_was_lost_with_a_connection_is_told_once(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    forget_resolutions(peer)
    first, second, third, fourth = take(subscription, 4)
    first.ack()
    third.reject()
    fourth.defer()
    peer.wait_for(lambda: bool(peer.of_type(Resolve)))
    restart(peer)
    with pytest.raises(WorkerUnavailable, match="2 bundles are delivered again"):
        subscription.flush()
    subscription.flush()
    assert not second.is_resolved


def test_what_was_durable_before_the_loss_is_none(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    first, _, third = take(subscription, 3)
    first.ack()
    third.ack()
    with subscription._exchange.lock:
        subscription._consumer.resolutions.send(time.monotonic_ns())
    peer.wait_for(lambda: feeder.resolved == {0, 2})
    restart(peer)
    subscription.flush()
    # The bundle between them is owed, but was never acknowledged: so each of the two was asked for.
    asked = [message for message in peer.of_type(Pending) if isinstance(message, Pending)]
    assert [(message.from_bundle_index, message.to_bundle_index) for message in asked] == [(0, 3), (0, 1), (2, 3)]


def test_what_is_resolved_again_is_not_asked_for(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    usual = peer.handlers[Resolve]
    forget_resolutions(peer)
    (first,) = take(subscription)
    first.ack()
    peer.wait_for(lambda: bool(peer.of_type(Resolve)))
    restart(peer)
    peer.handlers[Resolve] = usual
    while (again := take(subscription)[0]).bundle_id != first.bundle_id:
        pass
    again.ack()
    subscription.flush()
    assert not peer.of_type(Pending)
    assert 0 in feeder.resolved


def test_a_worker_that_is_lost_meanwhile_is_asked_again(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    def die(session: PeerSession, message: ClientMessage) -> bool:
        del peer.handlers[FlushProgress]
        session.close()
        return True

    take(subscription)[0].ack()
    peer.handlers[FlushProgress] = die
    subscription.flush()
    assert len(peer.of_type(Pending)) == 1
    assert len(peer.of_type(FlushProgress)) == 2


def test_a_loss_meanwhile_does_not_hide_what_another_one_cost(two_cores: Peer, segment: Path) -> None:
    def die(session: PeerSession, message: ClientMessage) -> bool:
        if session.core == 1:
            del two_cores.handlers[FlushProgress]
            session.close()
        return session.core == 1

    Feeder(two_cores, segment)
    forget_resolutions(two_cores)
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel") as subscription:
        while (delivery := take(subscription)[0]).bundle_id.core != 0:
            pass
        delivery.ack()
        two_cores.wait_for(lambda: bool(two_cores.of_type(Resolve)))
        restart(two_cores)
        two_cores.handlers[FlushProgress] = die
        with pytest.raises(WorkerUnavailable, match="1 bundles are delivered again"):
            subscription.flush()


def test_a_worker_that_is_lost_while_another_one_is_asked_is_asked_too(two_cores: Peer, segment: Path) -> None:
    """Its connection was gone when progress was made durable, and it was left out: what was acknowledged there came again."""
    feeder = Feeder(two_cores, segment)

    def lose_core_0(session: PeerSession, message: ClientMessage) -> bool:
        two_cores.handlers[Pending] = feeder.tell_pending
        two_cores.kill(0)
        two_cores.listen(0)
        return feeder.tell_pending(session, message)

    forget_resolutions(two_cores)
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel") as subscription:
        seen: set[int] = set()
        while seen != {0, 1}:
            delivery = take(subscription)[0]
            if delivery.bundle_id.core not in seen:
                delivery.ack()
            seen.add(delivery.bundle_id.core)
        with subscription._exchange.lock:
            subscription._consumer.resolutions.send(time.monotonic_ns())
        two_cores.wait_for(lambda: len(two_cores.of_type(Resolve)) == 2)
        two_cores.kill(1)
        while subscription._consumer.channels.channel(1).is_open:
            subscription.get(0)  # looks, also once core 0 has no more bundles to give
        two_cores.listen(1)
        two_cores.handlers[Pending] = lose_core_0
        with pytest.raises(WorkerUnavailable, match="2 bundles are delivered again"):
            subscription.flush()


def test_a_flush_hears_of_notices_that_an_earlier_one_has_not_waited_for(peer: Peer, client: Client) -> None:
    held: list[tuple[PeerSession, GapAck]] = []

    def hold(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, GapAck)
        held.append((session, message))
        return True

    peer.handlers[GapAck] = hold
    with client.subscribe("exporter", topic="travel", gaps="deliver") as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap())
        assert isinstance(subscription.get(60), GapNotice)
        with pytest.raises(WorkerUnavailable, match="did not answer"):
            subscription.flush(timeout=0.2)
        peer.wait_for(lambda: bool(held))
        ((session, message),) = held
        session.send(Done(message.tag))
        subscription.flush(timeout=20)
    assert len(held) == 1


def test_a_worker_that_is_away_is_waited_for(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    take(subscription)[0].ack()
    peer.wait_for(lambda: feeder.resolved == {0})
    peer.kill(0)
    with pytest.raises(WorkerUnavailable, match="did not answer"):
        subscription.flush(timeout=0.2)
    peer.listen(0)
    subscription.flush()


def test_a_ticket_speaks_for_its_own_bundle_only(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    usual = peer.handlers[Resolve]
    forget_resolutions(peer)
    first, second = take(subscription, 2)
    ticket = first.ack()
    peer.wait_for(lambda: bool(peer.of_type(Resolve)))
    restart(peer)
    peer.handlers[Resolve] = usual
    while (again := take(subscription)[0]).bundle_id != second.bundle_id:
        pass
    again.ack().wait()
    with pytest.raises(WorkerUnavailable, match="may be delivered again"):
        ticket.wait()


def test_who_never_flushes_asks_now_and_then(peer: Peer, feeder: Feeder, client: Client) -> None:
    """The memory of a flush stays small."""
    with client.subscribe("exporter", topic="travel") as subscription:
        (channel,) = subscription._consumer.channels.opened()
        channel.unconfirmed.note(3, range(UNCONFIRMED_MAX))
        take(subscription)[0].ack()
        peer.wait_for(lambda: len(peer.of_type(FlushProgress)) == 1)
        assert channel.unconfirmed.noted_count == 0


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 12))), st.integers(1, 6))
def test_ranges_hold_all_places_and_no_others_if_they_may_be_enough(places: set[Place], ranges_max: int) -> None:
    rising = sorted(places)
    exact = ranges_of(rising, len(rising) + 1)
    assert [(seq, n) for (seq, first), (_, end) in exact for n in range(first, end)] == rising
    few = ranges_of(rising, ranges_max)
    assert len(few) <= ranges_max
    assert all(any(start <= place < end for start, end in few) for place in rising)


def test_an_answer_covers_what_was_noted_before_its_question() -> None:
    unconfirmed = Unconfirmed()
    unconfirmed.note(1, [0, 1])
    unconfirmed.asked(7)
    unconfirmed.note(1, [2])
    unconfirmed.asked(9)
    unconfirmed.note(1, [3])
    unconfirmed.confirmed(7)
    unconfirmed.connection_lost()
    assert unconfirmed.lost() == [(1, 2), (1, 3)]
    unconfirmed.note(1, [3])
    assert unconfirmed.lost() == [(1, 2)]
    unconfirmed.settle([(1, 2)])
    assert not unconfirmed.has_lost
