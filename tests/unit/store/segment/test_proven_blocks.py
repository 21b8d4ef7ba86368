"""Numbers of blocks as spans."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from quiver_actors.store.segment.proven_blocks import runs_of


def test_no_numbers_have_no_spans() -> None:
    assert list(runs_of([])) == []


@pytest.mark.parametrize("gap", [0, 1, 3])
@pytest.mark.parametrize("count_max", [1, 4, 1 << 62])
def test_spans_hold_all_numbers_and_little_else(gap: int, count_max: int) -> None:
    rng = Random(gap)
    for _ in range(50):
        numbers = sorted(rng.sample(range(40), rng.randint(1, 30)))
        spans = list(runs_of(numbers, gap, count_max))
        held = [number for first, stop in spans for number in range(first, stop)]
        assert held == sorted(set(held)), "they rise, and none is in another"
        assert set(numbers) <= set(held)
        assert {number for span in spans for number in (span[0], span[1] - 1)} <= set(numbers)
        assert all(stop - first <= count_max for first, stop in spans)
        for (first, stop), (following, _) in pairwise(spans):
            assert following - stop > gap or following + 1 - first > count_max, "two spans that could be one"
        for before, after in pairwise(numbers):
            if after - before - 1 > gap:
                assert not {before + 1, after - 1} & set(held)
