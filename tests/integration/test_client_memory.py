"""What passes through a node does not stay in its processes: the short form of `python -m benchmarks.subscribers --only memory`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.subscribers import through

PASSED_BYTES = 600_000_000
GROWTH_MIB_MAX = 128
"""Up to four segments of 32 MiB are mapped at a time: how many depends on how far the consumer is behind. The nine tenths after the
first, in which the growth is measured, would be four times as much."""


def test_memory_of_worker_and_consumer_stays_flat_while_bundles_pass(tmp_path: Path) -> None:
    measured = through(str(tmp_path), PASSED_BYTES)
    assert measured["worker"] < GROWTH_MIB_MAX
    assert measured["consumer"] < GROWTH_MIB_MAX
