"""Gap notices among deliveries: in their place, once, and to one consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.protocol.messages import (
    Credit,
    GapAck,
)
from quiver_actors.client import Client, Delivery, GapNotice
from tests.unit.client.feeding import deliver, gap, open_segment
from tests.unit.client.peer import Peer

# --- gap notices -----------------------------------------------------------------------------------------------------------------


def test_gap_notice_comes_where_its_bundles_would_have_come(peer: Peer, client: Client, segment: Path) -> None:
    with client.subscribe("exporter", topic="travel", gaps="deliver", idle_timeout=1.0) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        session = peer.sessions[-1]
        open_segment(session, segment)
        deliver(session, 8, 9)
        session.send(gap(31, first=10, bundles=2, rows=-1), gap(32, first=12, bundles=0))
        deliver(session, 15)
        first, second, *rest = list(subscription)
        assert isinstance(first, Delivery)
        assert isinstance(second, Delivery)
        assert rest[0] == GapNotice("travel", 0, 4, 10, 11, 2, None, "damaged")
        assert isinstance(rest[1], GapNotice)
        assert rest[1].bundle_count is None
        assert isinstance(rest[2], Delivery)
        assert subscription.gap_count == 2
        subscription.flush()
    assert [message.notice for message in peer.of_type(GapAck) if isinstance(message, GapAck)] == [31, 32]


def test_gap_ends_a_batch(peer: Peer, client: Client, segment: Path) -> None:
    with client.subscribe("exporter", topic="travel", gaps="deliver") as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        session = peer.sessions[-1]
        open_segment(session, segment)
        deliver(session, 8, 9)
        session.send(gap(31))
        deliver(session, 15)
        found: list[object] = []
        sizes = []
        while len(found) < 4:
            more = subscription.get_many(10, 60)
            sizes.append(len(more))
            found += more
        assert [isinstance(event, GapNotice) for event in found] == [False, False, True, False]


def test_notice_whose_callback_fails_comes_again(peer: Peer, client: Client) -> None:
    calls: list[GapNotice] = []

    def on_gap(notice: GapNotice) -> None:
        calls.append(notice)
        if len(calls) == 1:
            raise LookupError

    with client.subscribe("exporter", topic="travel", on_gap=on_gap) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap(31))
        with pytest.raises(LookupError):
            subscription.get(60)
        assert peer.of_type(GapAck) == []
        assert subscription.get(0) is None
        subscription.flush()
    assert len(calls) == 2
    assert len(peer.of_type(GapAck)) == 1


def test_notice_whose_lease_is_over_is_left_to_the_consumer_that_has_it_since(peer: Peer, client: Client) -> None:
    calls: list[GapNotice] = []
    with client.subscribe("exporter", topic="travel", on_gap=calls.append) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap(31, until=1), gap(32))
        assert subscription.get(0.1) is None
        assert [notice.bundle_count for notice in calls] == [5]
        peer.sessions[-1].send(gap(31))
        assert subscription.get(0.1) is None
        subscription.flush()
    assert [message.notice for message in peer.of_type(GapAck)] == [32, 31]


def test_a_waiting_notice_that_is_sent_again_has_its_new_lease(peer: Peer, client: Client) -> None:
    calls: list[GapNotice] = []
    with client.subscribe("exporter", topic="travel", on_gap=calls.append) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap(31, until=1), gap(31))
        assert subscription.get(0.1) is None
        subscription.flush()
    assert len(calls) == 1


def test_notice_that_is_sent_again_is_told_once(peer: Peer, client: Client) -> None:
    calls: list[GapNotice] = []
    with client.subscribe("exporter", topic="travel", on_gap=calls.append) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap(31), gap(31))
        assert subscription.get(0.1) is None
        peer.sessions[-1].send(gap(31))
        assert subscription.get(0.1) is None
        subscription.flush()
    assert len(calls) == 1
    assert len(peer.of_type(GapAck)) == 2
