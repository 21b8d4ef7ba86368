"""Leases of what a consumer holds, and tickets of its acknowledgements."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from quiver_actors.base.protocol.messages import (
    ClientMessage,
    Credit,
    Extend,
    Extended,
    FlushProgress,
    NotResolved,
    Refusal,
    Resolve,
)
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client import Client, Subscription
from quiver_actors.errors import (
    AlreadyResolved,
    Fenced,
    LeaseExpired,
    NotClaimed,
    WorkerUnavailable,
)
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import Feeder, deliver, open_segment, take
from tests.unit.client.peer import Peer, PeerSession
from tests.unit.client.test_terms import answer, the_one

# --- receipts of acknowledgements --------------------------------------------------------------------------------------------------


def test_ticket_waits_until_the_ack_is_durable_once_for_all(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    tickets = [delivery.ack() for delivery in take(subscription, 30)]
    for ticket in tickets:
        ticket.wait()
    assert feeder.resolved == set(range(30))
    assert len(peer.of_type(FlushProgress)) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("lease_expired", LeaseExpired),
        ("fenced", Fenced),
        ("already_resolved", AlreadyResolved),
        ("not_claimed", NotClaimed),
    ],
)
def test_ticket_of_a_refused_ack_raises_why(
    peer: Peer, feeder: Feeder, subscription: Subscription, code: str, kind: type[Exception]
) -> None:
    def refuse_bundle_1(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Resolve)
        indexes = array("I", message.bundle_indexes)
        if 1 in indexes:
            refused = [Refusal(code, array("I", [1]).tobytes())]
            session.send(NotResolved(message.tag, "travel", "exporter", 4, message.token, refused))
        return True

    peer.handlers[Resolve] = refuse_bundle_1
    good, bad = (delivery.ack() for delivery in take(subscription, 2))
    good.wait()
    with pytest.raises(kind):
        bad.wait()
    assert subscription.refused_count == 1


def test_ticket_over_a_lost_connection_says_so(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    first, second = take(subscription, 2)
    durable = first.ack()
    durable.wait()
    pending = second.ack()
    peer.kill(0)
    peer.listen(0)
    with pytest.raises(WorkerUnavailable):
        pending.wait()
    durable.wait()


def test_untouched_bundles_are_returned_at_close(peer: Peer, feeder: Feeder, client: Client) -> None:
    with client.subscribe("exporter", topic="travel", prefetch=10) as subscription:
        take(subscription)[0].ack()
    returned = [
        index
        for message in peer.of_type(Resolve)
        if isinstance(message, Resolve) and message.outcome == "return"
        for index in array("I", message.bundle_indexes)
    ]
    assert returned == list(range(1, 10))
    assert feeder.resolved == {0}


# --- leases ----------------------------------------------------------------------------------------------------------------------


def test_extend_begins_the_lease_anew(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    (delivery,) = take(subscription)
    assert delivery.lease_until_ns is None
    delivery.extend()
    assert delivery.lease_until_ns is not None
    message = the_one(peer, Extend)
    assert isinstance(message, Extend)
    assert array("Q", message.tokens).tolist() == [delivery.token]
    assert subscription.extend([delivery]) == []


def test_leases_of_what_waits_are_kept_while_a_slow_consumer_works_through_it(
    peer: Peer, client: Client, segment: Path, clock: ClientClock
) -> None:
    """Regression: the worker extended the leases, but the client did not hear of it before it had nothing left to deliver."""
    answered: list[int] = []

    def extend(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Extend)
        session.send(Extended(message.tag, clock.monotonic_ns() + 30 * SECOND_NS, b""))
        answered.append(message.tag)
        return True

    peer.handlers[Extend] = extend
    clock.stop()
    with client.subscribe("exporter", topic="travel", prefetch=64, lease=0.6) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], *range(64), until=clock.monotonic_ns() + 2 * SECOND_NS)
        for number in range(23):
            delivery = subscription.get(0 if number else 10)
            assert delivery is not None
            assert delivery.bundle_id.bundle_index == number
            clock.ahead_ns += SECOND_NS // 10
            if number == 5:
                peer.wait_for(lambda: bool(answered))
        assert subscription.claims_lost == 0


def test_extend_of_a_lost_lease_is_an_error(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    peer.handlers[Extend] = answer(lambda message: Extended(message.tag, 5, message.tokens))
    one, two = take(subscription, 2)
    with pytest.raises(LeaseExpired):
        one.extend()
    assert subscription.extend([one, two]) == [one, two]
    two.ack()
    with pytest.raises(AlreadyResolved):
        two.extend()


def test_waiting_bundles_are_extended_while_get_is_called(
    peer: Peer, client: Client, segment: Path, clock: ClientClock
) -> None:
    clock.stop()
    with client.subscribe("exporter", topic="travel", lease=0.15) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], 0, 1, 2, token=1, until=clock.monotonic_ns() + 60 * SECOND_NS)
        take(subscription)
        # A third of the lease passes.
        clock.ahead_ns += 60 * MILLISECOND_NS
        take(subscription)
        message = the_one(peer, Extend)
        assert isinstance(message, Extend)
        assert array("Q", message.tokens).tolist() == [1]


def test_a_consumer_that_nothing_comes_for_says_nothing(
    peer: Peer, client: Client, segment: Path, clock: ClientClock
) -> None:
    with client.subscribe("exporter", topic="travel", lease=60, prefetch=10) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        said = len(peer.received)
        for _ in range(10):
            clock.ahead_ns += 60 * SECOND_NS
            assert subscription.get(0) is None
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], 0, until=clock.monotonic_ns() + 60 * SECOND_NS)
        take(subscription)
        assert [type(message).__name__ for _, message in peer.received[said:]] == []
