"""The short form of `python -m tests.four_tiers`: ranges over archive, cold disk, hot disk and open log are right while bundles move."""

from __future__ import annotations

import pytest

from tests.four_tiers import run_four_tiers


@pytest.mark.timeout(600)
def test_ranges_over_four_tiers_are_right_while_bundles_move() -> None:
    tiers = run_four_tiers(40_000, segment_bytes=256 << 10, local_bytes=1 << 20)
    assert not tiers.failures, "\n".join(tiers.failures)
    at_the_end = tiers.figures["at_the_end"]
    assert isinstance(at_the_end, dict)
    assert sum(at_the_end.values()) == 40_000
    assert at_the_end["archive"]
    assert at_the_end["cold"]
