"""A process killed at any moment, in its recovery too, leaves what the next one needs."""

from __future__ import annotations

import pytest

from tests import evidence


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_a_store_that_is_killed_again_and_again_keeps_what_it_acknowledged() -> None:
    tally = evidence.kills(evidence.QUICK)
    assert tally.failures == []
    assert tally.kills == evidence.QUICK.kills
    assert tally.at_points > tally.kills / 4
    assert tally.acknowledged > tally.kills
