"""Ranges over segment numbers of which many were never used."""

from __future__ import annotations

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.client.ranges import SegmentPart, first_missing, parts_of
from quiver_actors.client.segments import ReadableSegments
from quiver_actors.errors import NotStored


@pytest.mark.parametrize("known_through", [1 << 40, 1 << 50])
def test_numbers_that_were_left_out_by_the_billion_are_passed_at_once(known_through: int) -> None:
    segments = [SegmentInfo(seq, 2, 8, 100, 1, 1) for seq in (3, 1 << 40)]
    assert parts_of(segments, None, None, "t", 0, known_through) == [SegmentPart(3, 0, 2), SegmentPart(1 << 40, 0, 2)]


def info(segment_seq: int, start: int, end: int, lost_count: int = 0) -> SegmentInfo:
    return SegmentInfo(segment_seq, 2, 8, 100, 1, 1, position_start=start, position_end=end, lost_count=lost_count)


NEXT_LOG = SegmentInfo(9, 0, -1, 0, 0, 0, position_start=30, position_end=30)
"""The log that comes next, as `ReadableSegments.bounded` has it."""


@pytest.mark.parametrize(
    ("segments", "start", "end", "missing"),
    [
        ([info(3, 10, 20), info(4, 20, 30)], None, None, None),
        ([info(4, 20, 30), info(3, 10, 20)], 2, None, 2),
        ([info(3, 10, 20), info(4, 20, 30)], 4, None, None),
        ([], 7, None, 7),
        ([], None, None, None),
        ([info(3, 10, 20), info(9, 20, 30)], None, None, None),
        ([info(3, 10, 20), info(9, 25, 30)], None, None, 4),
        ([info(3, 0, 0), info(9, 0, 0)], None, None, 4),
        ([info(3, 10, 20), info(9, 25, 30)], 6, None, 6),
        ([info(3, 10, 20), info(9, 25, 30)], 9, None, None),
        ([info(3, 10, 20), info(9, 25, 30)], None, 3, None),
        ([info(3, 10, 20), info(4, 20, 30, 1)], None, None, 4),
        ([info(3, 10, 20), info(4, 20, 30, 1)], None, 3, None),
        ([info(3, 10, 20, 1), info(4, 20, 30)], 4, None, None),
        ([info(3, 10, 20), info(4, 25, 30)], None, None, 3),
        ([info(3, 10, 20), info(4, 25, 30)], 4, None, None),
        ([info(3, 10, 20), NEXT_LOG], None, None, 4),
        ([info(3, 10, 20), NEXT_LOG], 5, 6, 5),
        ([info(3, 10, 20), NEXT_LOG], None, 3, None),
        ([info(3, 10, 30), NEXT_LOG], None, None, None),
        ([NEXT_LOG], None, None, None),
        ([NEXT_LOG], 7, None, 7),
    ],
)
def test_what_a_range_lacks_on_the_disk(
    segments: list[SegmentInfo], start: int | None, end: int | None, missing: int | None
) -> None:
    bounds = [None if seq is None else BundleId("t", 0, seq, 1) for seq in (start, end)]
    assert first_missing(segments, *bounds) == missing


def test_a_range_without_an_end_does_not_end_in_front_of_what_is_missing() -> None:
    with pytest.raises(NotStored, match=r"segment 4 of the range is not stored any more.*with `end`"):
        parts_of([info(3, 10, 20), NEXT_LOG], None, None, "t", 0)
    whole = [SegmentPart(3, 0, 2)]
    assert parts_of([info(3, 10, 30), NEXT_LOG], None, None, "t", 0) == whole
    assert parts_of([info(3, 10, 20), NEXT_LOG], None, BundleId("t", 0, 4, 0), "t", 0) == whole
    assert parts_of([NEXT_LOG], None, None, "t", 0) == []


@pytest.mark.parametrize(
    ("sealed", "unsealed", "unsealed_from", "has_next_log"),
    [
        ([info(3, 10, 20)], [], (9, 30), True),
        ([], [], (9, 30), True),
        ([info(3, 10, 20)], [], None, False),
        ([info(3, 10, 20)], [info(4, 20, 25)], (4, 20), False),
        ([info(3, 0, 0)], [], (9, 30), False),
    ],
)
def test_the_next_log_bounds_what_a_worker_has(
    sealed: list[SegmentInfo],
    unsealed: list[SegmentInfo],
    unsealed_from: tuple[int, int] | None,
    *,
    has_next_log: bool,
) -> None:
    found = ReadableSegments(sealed, unsealed, True, unsealed_from=unsealed_from)
    assert found.bounded == [*sealed, *unsealed, *([NEXT_LOG] if has_next_log else [])]
