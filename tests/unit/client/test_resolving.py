"""Resolutions on their way to the worker: together, in time, once, and after a connection is lost or closed."""

import gc
from pathlib import Path

import pytest

from quiver_actors.base.protocol.messages import (
    ClientMessage,
    Credit,
    Done,
    FlushProgress,
    SegmentRetired,
)
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import Client, Subscription
from quiver_actors.errors import (
    AlreadyResolved,
    ClosedError,
    UsageError,
)
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, batch, deliver, open_segment, resolved, take
from tests.unit.client.peer import Background, Peer, PeerSession

# --- resolving ---------------------------------------------------------------------------------------------------------------


def test_outcomes_reach_the_worker(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    one, two, three, four = take(subscription, 4)
    one.ack()
    two.reject()
    three.defer()
    four.defer(1.5)
    subscription.flush()
    assert sorted(resolved(peer)) == [
        (4, "ack", 0, [0]),
        (4, "defer", 0, [2]),
        (4, "defer", 1_500_000_000, [3]),
        (4, "reject", 0, [1]),
    ]


def test_resolutions_travel_together(
    peer: Peer, feeder: Feeder, subscription: Subscription, clock: ClientClock
) -> None:
    deliveries = take(subscription, BUNDLES)
    clock.stop()
    for delivery in deliveries:
        delivery.ack()
    subscription.flush()
    sent = resolved(peer)
    assert sorted(index for *_, indexes in sent for index in indexes) == list(range(BUNDLES))
    # One message for each token and time of sending.
    assert len(sent) <= 20


def test_first_ack_leaves_at_once(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    take(subscription)[0].ack()
    peer.wait_for(lambda: feeder.resolved == {0})


def test_acks_leave_when_get_returns_nothing(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], 0, 1, 2)
    for delivery in take(subscription, 3):
        delivery.ack()
    assert subscription.get(0) is None
    peer.wait_for(lambda: sum(len(indexes) for *_, indexes in resolved(peer)) == 3)


def test_acks_leave_in_time_while_another_thread_waits_for_more(
    peer: Peer, subscription: Subscription, segment: Path
) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], *range(30))
    deliveries = take(subscription, 30)
    waiting = Background(subscription.get)
    for delivery in deliveries:
        delivery.ack()
    peer.wait_for(lambda: sum(len(indexes) for *_, indexes in resolved(peer)) == 30)
    assert waiting.is_running
    deliver(peer.sessions[-1], 31)
    assert waiting.result() is not None


def test_block_acknowledges_or_defers(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    good, bad, rejected = take(subscription, 3)
    with good:
        pass
    with pytest.raises(LookupError), bad:
        raise LookupError
    with rejected:
        rejected.reject()
    subscription.flush()
    assert sorted(resolved(peer)) == [(4, "ack", 0, [0]), (4, "defer", 0, [1]), (4, "reject", 0, [2])]


def test_resolving_twice_the_same_way_changes_nothing_and_another_way_is_refused(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    (delivery,) = take(subscription)
    delivery.ack()
    delivery.ack()
    for again in (delivery.reject, delivery.defer):
        with pytest.raises(AlreadyResolved, match="resolved before"):
            again()
    assert delivery.is_resolved
    subscription.flush()
    assert resolved(peer) == [(4, "ack", 0, [0])]


def test_negative_delay_is_refused(feeder: Feeder, subscription: Subscription) -> None:
    (delivery,) = take(subscription)
    with pytest.raises(UsageError):
        delivery.defer(-1)
    assert not delivery.is_resolved


def test_flush_waits_for_the_worker(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    waiting: list[tuple[PeerSession, int]] = []

    def hold(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, FlushProgress)
        waiting.append((session, message.tag))
        return True

    peer.handlers[FlushProgress] = hold
    take(subscription)[0].ack()
    flush = Background(subscription.flush)
    peer.wait_for(lambda: len(waiting) == 1)
    assert flush.is_running
    del peer.handlers[FlushProgress]
    waiting[0][0].send(Done(waiting[0][1]))
    flush.result()


def test_close_sends_and_flushes_what_was_resolved(
    peer: Peer, feeder: Feeder, client: Client, clock: ClientClock
) -> None:
    clock.stop()  # a close waits for a few seconds only
    with client.subscribe("exporter", topic="travel") as subscription:
        for delivery in take(subscription, 10):
            delivery.ack()
    assert feeder.resolved == set(range(10))
    assert len(peer.of_type(FlushProgress)) == 1
    peer.wait_for(lambda: not peer.sessions)


def test_delivery_of_a_closed_subscription_cannot_be_resolved_but_read(feeder: Feeder, client: Client) -> None:
    subscription = client.subscribe("exporter", topic="travel")
    (delivery,) = take(subscription)
    subscription.close()
    subscription.close()
    with pytest.raises(ClosedError):
        delivery.ack()
    assert delivery["flights"].equals(batch(0))


def test_error_of_a_block_is_not_hidden_by_a_closed_subscription(feeder: Feeder, client: Client) -> None:
    subscription = client.subscribe("exporter", topic="travel")
    (delivery,) = take(subscription)
    with pytest.raises(LookupError), delivery:
        _close_and_fail(subscription)


def _close_and_fail(subscription: Subscription) -> None:
    subscription.close()
    raise LookupError


def test_client_close_closes_its_subscriptions(peer: Peer, client: Client) -> None:
    subscription = client.subscribe("exporter")
    client.close()
    with pytest.raises(ClosedError):
        subscription.get()
    peer.wait_for(lambda: not peer.sessions)


def test_retired_segment_is_forgotten_but_stays_readable(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    gc.collect()  # What other tests left behind in reference cycles.
    deliveries = take(subscription, BUNDLES)
    mapped = "0000000000000004.qseg"
    assert mapped in Path("/proc/self/maps").read_text()
    peer.sessions[-1].send(SegmentRetired("travel", "exporter", 4))
    assert subscription.get(0.05) is None
    assert deliveries[7]["flights"].equals(batch(7))
    del deliveries
    assert mapped not in Path("/proc/self/maps").read_text()


def test_what_waits_of_a_retired_segment_is_not_handed_over(
    peer: Peer, client: Client, segment: Path, clock: ClientClock
) -> None:
    with client.subscribe("exporter", topic="travel", prefetch=8) as subscription:
        session = peer.sessions[-1]
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(session, segment)
        deliver(session, 0, 1, 2, 3)
        (first,) = take(subscription, 1)
        open_segment(session, segment, segment_seq=5)
        deliver(session, 7, segment_seq=5, token=2)
        session.send(SegmentRetired("travel", "exporter", 4))
        clock.ahead_ns += MILLISECOND_NS  # it looks by then
        (other,) = take(subscription, 1)
        assert other.bundle_id[2:] == (5, 7)
        assert first["flights"].equals(batch(0))
        # All four count as taken: others may come in their place.
        peer.wait_for(lambda: peer.of_type(Credit)[-1].total == 8 + 4)
        assert subscription.claims_lost == 0
