"""Memory of what is stored is for each segment, not for each bundle: the short form of `python -m benchmarks.backlog`.

A worker that kept 85 bytes a bundle (issue I, C.15) would have 20 MiB more by the end of this.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.backlog import MIB, measure

BUNDLES = 240_000
PER_BUNDLE_MAX = 40
ABOVE_EMPTY_MIB_MAX = 24


def test_a_worker_needs_nothing_for_each_bundle_that_it_has_stored(tmp_path: Path) -> None:
    found = measure(str(tmp_path), BUNDLES)
    assert found["segments"] > 8
    assert found["per_bundle"] < PER_BUNDLE_MAX, found
    assert max(found[phase] for phase in ("stored", "restarted", "catching_up")) < ABOVE_EMPTY_MIB_MAX * MIB, found
