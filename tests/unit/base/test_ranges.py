"""Runs name exactly the numbers they were made of, and are as few as possible."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.ranges import runs_by_segment, runs_of


@given(st.sets(st.integers(0, 40)))
def test_runs_hold_exactly_their_numbers_and_do_not_touch(numbers: set[int]) -> None:
    runs = runs_of(sorted(numbers))
    assert [first + place for first, count in runs for place in range(count)] == sorted(numbers)
    assert all(first + count < following for (first, count), (following, _) in itertools.pairwise(runs))


def test_runs_end_with_their_segment() -> None:
    assert runs_by_segment([(1, 5), (1, 6), (1, 8), (2, 9), (2, 10)]) == [(1, 5, 2), (1, 8, 1), (2, 9, 2)]
    assert runs_by_segment([]) == []
