"""Ranges over segment numbers of which many were never used."""

from __future__ import annotations

import pytest

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.ranges import SegmentPart, parts_of


@pytest.mark.parametrize("known_through", [1 << 40, 1 << 50])
def test_numbers_that_were_left_out_by_the_billion_are_passed_at_once(known_through: int) -> None:
    segments = [SegmentInfo(seq, 2, 8, 100, 1, 1) for seq in (3, 1 << 40)]
    assert parts_of(segments, None, None, "t", 0, known_through) == [SegmentPart(3, 0, 2), SegmentPart(1 << 40, 0, 2)]
