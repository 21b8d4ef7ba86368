"""Runs of bundles that are claimed together, and what a resolution of a whole span has ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

_RUN_MIN = 4
"""Fewer bundles than this are moved one by one: cheaper than a slice."""


class HeldRun(Protocol):
    """A claim of which `held` bundles, all within `start..stop`, are still held under `token`."""

    token: int
    held: int
    start: int
    stop: int


class Resolved(NamedTuple):
    """The claims and bundles that `resolve_span` has ended."""

    bundles: int
    deferred: int
    blocked: int
    """How many of the bundles were blocked or exhausted."""
    claimed: list[tuple[int, int]]
    """The claims that were ended, as (token, how many of its bundles)."""


def as_run(indexes: Sequence[int]) -> range:
    """`indexes` as a range if they are consecutive, rising and enough to gain by it, else an empty one.

    Mostly they are: what was delivered together is finished together.
    """
    if isinstance(indexes, range):
        return indexes if indexes.step == 1 and indexes and indexes.start >= 0 else range(0)
    size = len(indexes)
    if size < _RUN_MIN or indexes[0] < 0 or indexes[-1] - indexes[0] != size - 1:
        return range(0)
    run = range(indexes[0], indexes[0] + size)
    return run if list(indexes) == list(run) else range(0)
