"""A lone push stays short: the number of Python functions that it calls, which no load of the machine changes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.calls import counts, least_push, listing

MARGIN = 1.1
"""Above the figures that `python -m benchmarks.calls` printed last (docs/performance.md)."""
CALLS = {"node": 75, "embedded": 37}
"""Calls without a subscriber; of a node those of a slow disk, whose syncs a thread makes. With one the count depends on which thread comes
first, by a few calls or a whole turn."""


@pytest.mark.parametrize("side", CALLS)
def test_a_lone_push_calls_few_functions(side: str) -> None:
    # Not in pytest's own directory: the paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="qc-") as directory:
        least = least_push(counts(side, Path(directory), is_live=False, pushes=100)[0])
    assert least.total() <= MARGIN * CALLS[side], "\n".join(listing(least))
