"""Runs of consecutive numbers: how sets of bundle indexes are written where most of them follow one another. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

Runs = list[tuple[int, int]]
"""Runs as (first number, count), rising. Where a count may be 0, nobody knows how many numbers the run has."""


def runs_of(numbers: Iterable[int]) -> Runs:
    """The runs of rising numbers, each number once."""
    runs: Runs = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


def runs_by_segment(places: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The runs of rising places (segment number, bundle index), each place once, as (segment number, first index, count)."""
    return [
        (segment_seq, first, count)
        for segment_seq, group in groupby(places, itemgetter(0))
        for first, count in runs_of(index for _, index in group)
    ]
