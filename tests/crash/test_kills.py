"""Killing anything at any moment loses nothing that was acknowledged."""

from __future__ import annotations

import pytest

from tests.crash.campaign import Campaign

ROUNDS = 30


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_kills_of_workers_supervisor_producers_and_subscriber_lose_nothing_acknowledged() -> None:
    with Campaign(seed=20_131) as campaign:
        campaign.run(ROUNDS)
        outcome = campaign.finish(ROUNDS)
    assert sum(outcome.kills.values()) == ROUNDS
    assert len(outcome.acknowledged) > ROUNDS
    assert outcome.different == []
    assert outcome.lost == []
    assert outcome.moved == []
