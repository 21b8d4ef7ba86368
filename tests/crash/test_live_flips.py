"""Bits flip in the files of a running node: a short form of `python -m tests.crash.live_flips 10000 1`."""

from __future__ import annotations

import os

import pytest

from tests.crash.live_flips import run

FLIPS = int(os.environ.get("LIVE_FLIPS", "300"))


@pytest.mark.timeout(600)
def test_no_wrong_value_is_shown_whatever_bit_flips() -> None:
    tally = run(FLIPS, 1)
    assert tally.failures == []
    assert tally.wrong == 0
    assert tally.flips >= FLIPS
    assert tally.compared > FLIPS
    assert tally.refused > 0
    assert tally.announced > 0
