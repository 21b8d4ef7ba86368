"""Holding a topic for a reader of ranges, against a worker that says what it is told to say."""

from __future__ import annotations

import pytest

from quiver_actors.client import Client
from quiver_actors.errors import QuotaExceeded
from quiver_actors.protocol.messages import Pending, Register
from tests.unit.client.peer import Peer, refuse


def test_who_may_not_attach_hears_why(peer: Peer, client: Client) -> None:
    """He heard that there is no such subscriber."""
    peer.handlers[Register] = refuse("quota_exceeded", "the topic has as many subscribers as it can")
    peer.handlers[Pending] = refuse("unknown_subscriber")
    hold = client.hold("stream", topic="travel")
    with pytest.raises(QuotaExceeded, match="as many subscribers"):
        hold.look()
    hold.close()
