"""Holding a topic for a reader of ranges, against a worker that says what it is told to say."""

from __future__ import annotations

import os

import pytest

from quiver_actors.base.protocol.messages import (
    PROTOCOL_VERSION,
    ClientMessage,
    Hello,
    ListSegments,
    Pending,
    PendingInfo,
    Register,
    SegmentInfo,
    SegmentList,
    TopicInfo,
    Welcome,
)
from quiver_actors.client import Client
from quiver_actors.errors import QuotaExceeded, TooManySubscribers, UnknownTopic
from tests.unit.client.peer import TOPICS, Peer, PeerSession, refuse


def test_who_may_not_attach_hears_why(peer: Peer, client: Client) -> None:
    """He heard that there is no such subscriber."""
    peer.handlers[Register] = refuse("quota_exceeded", "the topic has as many subscribers as it can")
    peer.handlers[Pending] = refuse("unknown_subscriber")
    hold = client.hold("stream", topic="travel")
    with pytest.raises(QuotaExceeded, match="as many subscribers"):
        hold.look()
    hold.close()


def test_who_can_have_no_more_subscribers_hears_it_at_once(peer: Peer, client: Client) -> None:
    """After ten seconds of trying he heard that the worker did not answer."""
    peer.handlers[Register] = refuse("too_many_subscribers", "the topic has as many subscribers as it can")
    with pytest.raises(TooManySubscribers, match="as many subscribers"):
        client.subscribe("stream", topic="travel")


def test_a_topic_that_was_missing_is_attached_to_when_it_is_there(peer: Peer, client: Client) -> None:
    """The connection that had found it missing stayed, and nobody was attached by it: `UnknownSubscriber`, for ever."""
    topics = list(TOPICS)

    def welcome(session: PeerSession, message: ClientMessage) -> bool:
        session.send(Welcome(PROTOCOL_VERSION, session.core, "00" * 16, os.getpid(), topics))
        return True

    def pending(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Pending)
        if not peer.of_type(Register):
            return refuse("unknown_subscriber")(session, message)
        session.send(PendingInfo(message.tag, 0, 0, 0, 0, 0, 0, -1, 0, 0, True))
        return True

    peer.handlers[Hello] = welcome
    peer.handlers[Pending] = pending
    hold = client.hold("stream", topic="new")
    with pytest.raises(UnknownTopic):
        hold.look()
    topics.append(TopicInfo("new", {}, "wal", 0))
    assert hold.look().keys() == {0}
    hold.close()


def test_nothing_behind_a_segment_that_is_still_to_be_checked_is_settled(peer: Peer, client: Client) -> None:
    """Segments that are wanted are checked first. A query that wanted 4 again, while 3 was kept for others, heard that 4 is settled, did
    not get it, and passed over its bundles."""
    infos = [SegmentInfo(seq, 1, 1, 8, 0, 0, is_checked=seq != 3) for seq in (2, 3, 4)]

    def listed(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, ListSegments)
        session.send(SegmentList(message.tag, infos, (5,), 6, unsealed_from=(5, 700)))
        return True

    def pending(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Pending)
        session.send(PendingInfo(message.tag, 1, 0, 0, 0, 0, 0, 4, 0, 1, False))
        return True

    peer.handlers |= {ListSegments: listed, Pending: pending}
    hold = client.hold("stream", topic="travel")
    (held,) = hold.look().values()
    assert ([info.segment_seq for info in held.segments], held.unsettled) == ([2], [3, 4, 5])
    assert held.unsealed_from == (5, 700)
    hold.close()
