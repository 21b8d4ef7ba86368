"""A lone push stays short: the number of Python functions that it calls, which no load of the machine changes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.calls import counts, least_push, listing

MARGIN = 1.1
"""Above the figures that `python -m benchmarks.calls` printed last (docs/performance.md)."""
CALLS = {
    ("node", False): (75, 63),
    ("node", True): (89, 63),
    ("embedded", False): (37, 37),
    ("embedded", True): (54, 54),
}
"""Calls in all and until the receipt, by the side, without a subscriber and with one that waits for the bundle; of a node those of a slow
disk, whose syncs a thread makes."""


@pytest.mark.parametrize(("side", "is_live"), CALLS)
def test_a_lone_push_calls_few_functions(side: str, *, is_live: bool) -> None:
    in_all, until_receipt = CALLS[side, is_live]
    # Not in pytest's own directory: the paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="qc-") as directory:
        pushes, _ = counts(side, Path(directory), is_live=is_live, pushes=100)
    least = least_push(pushes)
    assert least.total() <= MARGIN * in_all, "\n".join(listing(least))
    assert min(push.until_receipt for push in pushes) <= MARGIN * until_receipt
