"""Our engine and another writer take turns, cut off anywhere: what either has synced is delivered. The scenes of `tests.sim` have other
histories with every seed."""

from __future__ import annotations

import pytest

from tests.disks.crashes import CrashMode
from tests.sim.other_writers import Alternation

SEEDS = [*range(24), 22, 25, 39, 108, 122, 421, 486, 1079]
"""The last ones have found something: a cursor that speaks of other entries, a log that is adopted under a number of ours, a source that a
power loss has changed, an adoption that was cut off and whose logs the other writer has removed."""


@pytest.mark.parametrize("seed", sorted(set(SEEDS)))
def test_what_any_writer_has_synced_is_delivered(seed: int) -> None:
    history = Alternation(seed).run(8)
    history.check(history.disk.crash(CrashMode.KEEP))
