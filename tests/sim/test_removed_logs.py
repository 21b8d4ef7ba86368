"""Somebody removes the files of `wal/` below a running engine, at any of its calls: what is acknowledged from then on is there after the
next start, as before."""

from __future__ import annotations

from random import Random

import pytest

from quiver_actors.base.config import SegmentSettings, TopicSettings
from quiver_actors.errors import DiskError
from quiver_actors.store.engine import EngineState
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.sim.ledger import NEVER, BundleId
from tests.sim.oracle import DIRECTORY, ManualClock
from tests.sim.profiles import PROFILES, Profile
from tests.sim.world import World

RUNS = 14
"""Runs of each kind; the logs are removed at another call in each."""
OPERATIONS = 40
_LARGE = TopicSettings(name="topic", segment=SegmentSettings(target_size_bytes=400_000))
_KINDS = [
    Profile("large", _LARGE, keyed_share=0.0),
    *(profile for profile in PROFILES if profile.name == "age"),
]
"""A log that is rotated soon fails at its next rename; a large one is synced many times under no name."""


def removed_run(profile: Profile, seed: int) -> World:
    """A run that loses its logs somewhere in it. What they alone held is written off in the ledger."""
    counting = FaultyDisk(SimDisk())
    counted = World(seed, profile, keeps_moments=False, faulty=counting).start()
    calls_of_start = counting.mutating_count
    counted.run(OPERATIONS)
    faulty = FaultyDisk(SimDisk())
    faulty.remove_at(Random(seed).randint(calls_of_start + 1, counting.mutating_count), f"{DIRECTORY}/wal")
    world = World(seed, profile, keeps_moments=False, faulty=faulty).start()
    before: set[BundleId] | None = None
    """Bundles that were pushed until then."""
    for _ in range(OPERATIONS):
        try:
            world.run(1)
        except DiskError:  # a clean stop that did not come to its end
            break
        if faulty.removed and before is None:
            before = set(world.ledger.bundles)
        if world.has_ended:
            break
    world.jobs.abandon()
    kept = set(world.disk.list_directory(f"{DIRECTORY}/segments"))
    for id_ in before or ():
        if f"{id_[0]:016}.qseg" not in kept:
            world.ledger.bundles[id_].lost_at = world.calls
    return world


@pytest.mark.parametrize("profile", _KINDS, ids=lambda profile: profile.name)
def test_what_is_acknowledged_after_the_logs_were_removed_is_there_after_the_next_start(profile: Profile) -> None:
    worlds = [removed_run(profile, seed) for seed in range(RUNS)]
    for seed, world in enumerate(worlds):
        left = world.disk.copy()
        survey = world.oracle.survey(left, world.oracle.open(left, ManualClock(), left))
        promised = [b for b in world.ledger.bundles.values() if b.durable_at != NEVER and b.lost_at == NEVER]
        assert [(seed, bundle.id) for bundle in promised if not survey.holds(bundle.id)] == []
    assert sum(world.engine.state is EngineState.FAILED for world in worlds) > RUNS // 2
