"""Starts, terms, tokens, leases, claims by reference, tickets and gap notices: what goes over the wire, and what its answers become."""

from __future__ import annotations

import datetime
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import (
    AckThrough,
    BundleTime,
    ClaimRef,
    ClientMessage,
    Credit,
    Extend,
    Extended,
    GroupTerms,
    ListSubscribers,
    Message,
    NotResolved,
    Pending,
    PendingInfo,
    Refusal,
    Register,
    Resolve,
    SubscriberInfo,
    SubscriberList,
    Terms,
    Unregister,
    Withdrawn,
)
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, Delivery, Subscription, connect
from quiver_actors.errors import (
    AlreadyResolved,
    ClosedError,
    Fenced,
    LeaseExpired,
    NotClaimed,
    UnknownSlot,
    UsageError,
    WorkerUnavailable,
)
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, deliver, open_segment, resolved, take
from tests.unit.client.peer import Background, Handler, Peer, PeerSession, refuse

UTC = datetime.UTC


def answer(make: object) -> Handler:
    """A handler that answers with `make(message)`."""

    def handler(session: PeerSession, message: ClientMessage) -> bool:
        session.send(make(message))  # type: ignore[operator]
        return True

    return handler


def registered(peer: Peer) -> list[Register]:
    return [message for message in peer.of_type(Register) if isinstance(message, Register)]


def the_one(peer: Peer, kind: type[Message]) -> Message:
    peer.wait_for(lambda: bool(peer.of_type(kind)))
    (found,) = peer.of_type(kind)
    return found


# --- what is asked for ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        (1_700_000_000_123_456_789, "time:1700000000123456789"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), "time:1767323045000678000"),
    ],
)
def test_start_is_sent(peer: Peer, client: Client, start: str, text: str) -> None:
    client.subscribe("exporter", start=start).abort()
    assert [message.start for message in registered(peer)] == [text]


@pytest.mark.parametrize("start", ["yesterday", datetime.datetime(2026, 1, 1), -1, True, 1.5, None])
def test_impossible_start_is_refused(client: Client, start: Any) -> None:
    with pytest.raises(UsageError, match="start"):
        client.subscribe("exporter", start=start)


def test_start_at_a_bundle_begins_elsewhere_when_that_bundle_came(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as client:
        client.subscribe("exporter", start=BundleId("default", 1, 4, 7)).abort()
        starts = {core: message.start for core, message in two_cores.received if isinstance(message, Register)}
        assert starts == {1: "bundle:1/4/7", 0: "time:777"}
        two_cores.handlers[BundleTime] = refuse("usage", "never appended")
        with pytest.raises(UsageError, match="never appended"):
            client.subscribe("exporter", start=BundleId("default", 1, 4, 7))
        for wrong in (BundleId("default", 9, 4, 7), BundleId("travel", 1, 4, 7)):
            with pytest.raises(UsageError, match="not of topic"):
                client.subscribe("exporter", start=wrong)


def test_terms_are_sent(peer: Peer, client: Client) -> None:
    client.subscribe("exporter").abort()
    client.subscribe(
        "exporter",
        order="newest_backfill",
        backfill_ratio=3,
        max_in_flight=9,
        max_in_flight_bytes=1 << 20,
        lease=1.5,
        max_deliveries=4,
        exhausted="drop",
        dead_letter_topic="dead",
    ).abort()
    client.subscribe("exporter", lease=None).abort()
    assert [message.terms for message in registered(peer)] == [
        Terms(),
        Terms(1_500_000_000, "newest_backfill", 3, 9, 1 << 20, 4, "drop", "dead"),
        Terms(lease_ns=0),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"order": "random"},
        {"exhausted": "shrug"},
        {"lease": 0},
        {"lease": -1},
        {"backfill_ratio": 11},
        {"max_in_flight": 0},
        {"max_in_flight_bytes": -5},
        {"max_deliveries": 0},
        {"prefetch": 0},
        {"gaps": "hide"},
        {"slots": []},
        {"slots": "flights"},
        {"columns": {"flights": "id"}},
        {"prefech": 7},
    ],
)
def test_impossible_options_are_refused(client: Client, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        client.subscribe("exporter", topic="travel", **options)  # type: ignore[call-overload]


def test_slots_of_a_projection_must_exist(client: Client) -> None:
    with pytest.raises(UnknownSlot):
        client.subscribe("exporter", topic="travel", slots=["trains"])
    with pytest.raises(UsageError, match="leaves out"):
        client.subscribe("exporter", topic="travel", slots=["flights"], columns={"weather": ["id"]})


# --- batches, counts, tokens -----------------------------------------------------------------------------------------------------


def test_get_many_takes_what_is_there(feeder: Feeder, subscription: Subscription) -> None:
    found: list[Delivery] = []
    while len(found) < BUNDLES:
        more = subscription.get_many(50, 60)
        assert 1 <= len(more) <= 50
        found += more
    assert [delivery.bundle_id.bundle_index for delivery in found] == list(range(BUNDLES))
    assert subscription.get_many(5, 0.05) == []
    with pytest.raises(UsageError):
        subscription.get_many(0)


def test_delivery_knows_its_count_token_and_lease(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    until = time.monotonic_ns() + 60 * SECOND_NS
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], 7, token=99, count=3, until=until)
    (delivery,) = take(subscription)
    assert (delivery.delivery_count, delivery.token, delivery.lease_until_ns) == (3, 99, until)
    delivery.ack()
    subscription.flush()
    (message,) = [message for message in peer.of_type(Resolve) if isinstance(message, Resolve)]
    assert (message.token, message.segment_seq) == (99, 4)


def test_bundles_whose_lease_is_over_are_not_given_out(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.handlers[Extend] = answer(lambda message: Extended(message.tag, 5, message.tokens))
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], *range(40), token=1, until=1)
    deliver(peer.sessions[-1], 50, token=2)
    assert take(subscription)[0].bundle_id.bundle_index == 50
    assert subscription.claims_lost == 40
    assert subscription._consumer.channels.channel(0).claims.bundle_count == 1, (
        "nothing is kept of a grant that is over"
    )
    peer.wait_for(lambda: any(m.total == 104 for m in peer.of_type(Credit) if isinstance(m, Credit)))


def test_bundles_whose_lease_another_consumer_made_longer_are_given_out(
    peer: Peer, subscription: Subscription, segment: Path
) -> None:
    """The worker is asked before the claims are dropped: the clock does not know the terms that others have set since."""
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], *range(40), token=1, until=1)
    assert [each.bundle_id.bundle_index for each in take(subscription, 40)] == list(range(40))
    assert subscription.claims_lost == 0
    assert len(peer.of_type(Extend)) == 1


def test_the_terms_of_another_consumer_hold_here_too(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], *range(4), token=1, until=1)
    peer.sessions[-1].send(GroupTerms("travel", "exporter", Terms(lease_ns=0), 0))
    assert len(take(subscription, 4)) == 4
    assert not peer.of_type(Extend), "there is no lease any more"
    assert subscription._consumer.channels.channel(0).claims.terms.lease_ns == 0


def test_what_the_worker_has_withdrawn_is_not_given_out(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], *range(20), token=1)
    (first,) = take(subscription)
    peer.sessions[-1].send(Withdrawn("travel", "exporter", 4, 1, 0, 15))
    assert [each.bundle_id.bundle_index for each in take(subscription, 5)] == [15, 16, 17, 18, 19]
    assert subscription.extend([first]) == [first], "it is not held any more"
    assert subscription._consumer.channels.channel(0).claims.bundle_count == 5


def test_flush_says_what_was_refused(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], 7, 8, 9, token=3)
    for each in take(subscription, 3):
        each.ack()
    assert subscription.flush() == []
    refusals = [Refusal("fenced", array("I", [8]).tobytes()), Refusal("lease_expired", array("I", [7]).tobytes())]
    peer.sessions[-1].send(NotResolved(1, "travel", "exporter", 4, 3, refusals))
    found = subscription.flush()
    assert [(each.bundle_id.bundle_index, each.token, type(each.error)) for each in found] == [
        (8, 3, Fenced),
        (7, 3, LeaseExpired),
    ]
    assert subscription.flush() == [], "each is told once"


def test_callback_gets_every_delivery_and_its_return_acknowledges(
    peer: Peer, feeder: Feeder, client: Client, clock: ClientClock
) -> None:
    seen: list[int] = []

    def on_bundle(delivery: Delivery) -> None:
        seen.append(delivery.bundle_id.bundle_index)
        if len(seen) == 5:
            delivery.reject()
        if len(seen) == BUNDLES:
            clock.go_on()

    clock.stop()
    with client.subscribe("exporter", topic="travel", on_bundle=on_bundle, idle_timeout=0.1) as subscription:
        assert subscription.run() == BUNDLES
    assert seen == list(range(BUNDLES))
    assert ("reject", [4]) in [(outcome, indexes) for _, outcome, _, indexes in resolved(peer)]
    assert feeder.resolved == set(range(BUNDLES))


def test_error_of_a_callback_defers_the_bundle_and_is_raised(peer: Peer, feeder: Feeder, client: Client) -> None:
    def on_bundle(delivery: Delivery) -> None:
        raise LookupError

    with client.subscribe("exporter", topic="travel", on_bundle=on_bundle) as subscription:
        with pytest.raises(LookupError):
            subscription.run()
        subscription.flush()
    assert resolved(peer) == [(4, "defer", 0, [0])]
    with client.subscribe("exporter", topic="travel") as without, pytest.raises(UsageError, match="on_bundle"):
        without.run()


def test_a_callback_may_close_the_subscription(peer: Peer, feeder: Feeder, client: Client) -> None:
    """`run` raised `ClosedError`, for the acknowledgement that it could not make."""
    opened: list[Subscription] = []
    with client.subscribe("exporter", topic="travel", on_bundle=lambda _: opened[0].close()) as subscription:
        opened.append(subscription)
        assert subscription.run() == 1
    assert not [outcome for _, outcome, _, _ in resolved(peer) if outcome == "ack"]

    def is_closed_elsewhere(delivery: Delivery) -> None:
        raise ClosedError("the destination's")

    with (
        client.subscribe("exporter", topic="travel", on_bundle=is_closed_elsewhere) as subscription,
        pytest.raises(ClosedError, match="the destination's"),
    ):
        subscription.run()


# --- by reference ------------------------------------------------------------------------------------------------------------------


def test_claim_by_reference(peer: Peer, client: Client, segment: Path) -> None:
    def give(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, ClaimRef)
        open_segment(session, segment, message.segment_seq)
        deliver(session, message.bundle_index, token=55, count=6, tag=message.tag)
        return True

    peer.handlers[ClaimRef] = give
    with client.subscribe("exporter", topic="travel") as subscription:
        delivery = subscription.claim(BundleId("travel", 0, 4, 12))
        assert (delivery.bundle_id.bundle_index, delivery.token, delivery.delivery_count) == (12, 55, 6)
        assert subscription.get(0) is None, "it is not given out twice"
        delivery.ack()
        subscription.flush()
        assert resolved(peer) == [(4, "ack", 0, [12])]
        for code, kind in (("already_resolved", AlreadyResolved), ("not_claimed", NotClaimed)):
            peer.handlers[ClaimRef] = refuse(code)
            with pytest.raises(kind):
                subscription.claim(BundleId("travel", 0, 4, 12))
        with pytest.raises(UsageError, match="not of topic"):
            subscription.claim(BundleId("default", 0, 4, 12))


def test_claim_that_comes_too_late_is_given_back(peer: Peer, client: Client, segment: Path) -> None:
    held: list[tuple[PeerSession, int]] = []

    def hold(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, ClaimRef)
        held.append((session, message.tag))
        return True

    peer.handlers[ClaimRef] = hold
    with client.subscribe("exporter", topic="travel") as subscription:
        with pytest.raises(WorkerUnavailable):
            subscription.claim(BundleId("travel", 0, 4, 12), timeout=0.05)
        peer.wait_for(lambda: bool(held))
        ((session, tag),) = held
        open_segment(session, segment)
        deliver(session, 12, tag=tag)
        assert subscription.get(0.1) is None
        message = the_one(peer, Resolve)
        assert isinstance(message, Resolve)
        assert (message.outcome, array("I", message.bundle_indexes).tolist()) == ("return", [12])


def test_ack_through_and_questions(peer: Peer, client: Client) -> None:
    peer.handlers[Pending] = answer(lambda message: PendingInfo(message.tag, 5, 4, 3, 2, 1, 1, 4, 9, 6, False))
    with client.subscribe("exporter", topic="travel") as subscription:
        bundle_id = BundleId("travel", 0, 4, 12)
        subscription.ack_through(bundle_id)
        client.ack_through(bundle_id, subscriber="exporter")
        assert [m.bundle_index for m in peer.of_type(AckThrough) if isinstance(m, AckThrough)] == [12, 12]
        assert subscription.pending_count() == 15
        assert subscription.oldest_incomplete() == {0: BundleId("travel", 0, 4, 9)}
        assert subscription.all_drained() is False
        assert subscription.pending_in_range(bundle_id, BundleId("travel", 0, 5, 0)) == 6
        last = peer.of_type(Pending)[-1]
        assert isinstance(last, Pending)
        assert (last.from_segment_seq, last.from_bundle_index) == (4, 12)
        assert (last.to_segment_seq, last.to_bundle_index) == (5, 0)


def test_a_question_whose_connection_is_lost_is_asked_again(peer: Peer, client: Client) -> None:
    with client.subscribe("exporter", topic="travel") as subscription:
        peer.handlers[Pending] = lambda session, message: True  # no answer
        asked = Background(subscription.pending_count)
        peer.wait_for(lambda: len(peer.of_type(Pending)) == 1)
        peer.handlers[Pending] = answer(lambda message: PendingInfo(message.tag, 5, 4, 3, 2, 1, 1, 4, 9, 6, False))
        peer.kill(0)
        peer.listen(0)
        assert asked.result() == 15
        assert len(peer.of_type(Pending)) == 2


def test_drop_orphan_spares_a_subscriber_with_a_consumer(peer: Peer, client: Client) -> None:
    def listed(connections: int) -> Handler:
        info = SubscriberInfo("exporter", connections, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0)
        return answer(lambda message: SubscriberList(message.tag, [info]))

    peer.handlers[ListSubscribers] = listed(1)
    with pytest.raises(UsageError, match="no orphan"):
        client.drop_orphan("exporter", topic="travel")
    assert peer.of_type(Unregister) == []
    peer.handlers[ListSubscribers] = listed(0)
    assert client.drop_orphan("exporter", topic="travel") == 0
    message = the_one(peer, Unregister)
    assert isinstance(message, Unregister)
    assert message.only_orphan
