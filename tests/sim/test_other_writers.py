"""Our engine and another writer take turns, cut off anywhere: what either has synced is delivered. The scenes of `tests.sim` have other
histories with every seed."""

from __future__ import annotations

from itertools import product

import pytest

from tests.disks.crashes import CrashMode
from tests.sim.other_writer_scenes import SCENES
from tests.sim.other_writers import Alternation
from tests.sim.recorder import Moment
from tests.sim.sweep import recording

SEEDS = [*range(24), 22, 25, 39, 108, 122, 421, 486, 1079]
"""The last ones have found something: a cursor that speaks of other entries, a log that is adopted under a number of ours, a source that a
power loss has changed, an adoption that was cut off and whose logs the other writer has removed."""


@pytest.mark.parametrize("seed", sorted(set(SEEDS)))
def test_what_any_writer_has_synced_is_delivered(seed: int) -> None:
    history = Alternation(seed).run(8)
    history.check(history.disk.crash(CrashMode.KEEP))


@pytest.mark.parametrize(
    ("name", "seed", "place"),
    [
        ("writers that took turns 0", 161, "Adoption._put_in_place"),
        ("writers that took turns 1", 248, "seal_file:fsync"),
        ("writers that took turns 1", 990_000, "FoundSegments.renumber"),
    ],
)
def test_a_start_behind_another_writer_may_be_cut_off(name: str, seed: int, place: str) -> None:
    """An empty log that a power loss brought back was taken for what an adoption had made; a segment kept a number that had been used; a
    finished seal went, of which another writer has sealed a part."""
    scene, moments = SCENES[name](name, seed), list[Moment]()
    scene.work(recording(scene.disk.copy(), moments))
    cut_off = [moment.disk for moment in moments if place in str(moment.site)]
    assert cut_off
    for disk, mode, crash_seed in product(cut_off, CrashMode, range(4)):
        scene.judge(disk.crash(mode, crash_seed))
