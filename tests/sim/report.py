"""The sweeps as they are run by the tests and by `python -m tests.sim`, and what they add up to."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, count

from quiver_actors.disk.faulty import CallSite
from tests.sim import faults
from tests.sim.faults import FaultTally
from tests.sim.scenes import Scene, damage_scenes, interrupted_scenes, rust_scenes
from tests.sim.sites import call_sites, mutating_sites
from tests.sim.sweep import MODES, CrashSweep, Tally, sweep_recovery
from tests.sim.world import PROFILES, Profile, World

STATES_DEFAULT = 20_000
GAP_SEED_OFFSET, GAP_SEEDS = 1_000_000, 12
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done."""

    crash_states: int
    """Distinct images that crashes leave of runs."""
    seed: int = 0

    @property
    def scale(self) -> float:
        return self.crash_states / STATES_DEFAULT

    @property
    def modes_per_call(self) -> int:
        """Of the recovery of each scene."""
        return min(len(MODES), max(1, round(2 * self.scale)))

    @property
    def scene_faults_per_site(self) -> int:
        return round(20 * self.scale)

    @property
    def fault_seeds(self) -> int:
        return max(1, round(self.scale))


def effort_from_environment() -> Effort:
    """`QUIVER_CRASH_STATES` and `QUIVER_SIM_SEED`, or the defaults."""
    states = int(os.environ.get("QUIVER_CRASH_STATES", STATES_DEFAULT))
    return Effort(states, int(os.environ.get("QUIVER_SIM_SEED", "0")))


@dataclass(slots=True)
class Report:
    crashes: Tally = field(default_factory=Tally)
    faults: FaultTally = field(default_factory=FaultTally)

    def figures(self) -> dict[str, int]:
        """Everything that was counted. A site counts as hit when a crash (if it changes the disk) and an error were tried at it."""
        known = call_sites()
        hit = known - self.sites_without_crash() - self.sites_without_error()
        return {
            "crash_states": len(self.crashes.images),
            "crash_states_opened": self.crashes.crashes,
            "recoveries_crashed": self.crashes.recoveries_crashed,
            "recoveries_repeated": self.crashes.repeated,
            "states_continued": self.crashes.continued,
            "runs": self.crashes.runs,
            "call_sites": len(known),
            "call_sites_hit": len(hit),
            "error_cases": self.faults.cases,
            "error_cases_failed_engine": self.faults.failed,
            "error_cases_went_on": self.faults.waited,
            "error_cases_at_start_or_stop": self.faults.stopped,
            "error_restarts": self.faults.restarts,
        }

    def sites_without_crash(self) -> set[CallSite]:
        return mutating_sites() - set(self.crashes.sites)

    def sites_without_error(self) -> set[CallSite]:
        return call_sites() - set(self.faults.sites)


def crash_profile(profile: Profile, effort: Effort, tally: Tally) -> None:
    """Crash runs of one kind until its share of the states is reached."""
    wanted = len(tally.images) + effort.crash_states // len(PROFILES)
    for seed in count(effort.seed):
        if len(tally.images) >= wanted:
            return
        world = World(seed, profile).start()
        world.run()
        CrashSweep(tally, seed).sweep(world, images_max=wanted)


def scenes(effort: Effort) -> Iterable[Scene]:
    return chain(rust_scenes(), damage_scenes(effort.seed), interrupted_scenes(effort.seed))


def sweep_scene(scene: Scene, effort: Effort, report: Report) -> None:
    """Crash the recovery of one damaged or foreign directory, and let its calls fail."""
    modes = effort.modes_per_call
    sweep_recovery(scene.disk, scene.judge, scene.oracle, report.crashes, modes_per_call=modes, seed=effort.seed)
    faults.sweep_scene(scene, report.faults, ERRNOS, effort.scene_faults_per_site)


def fail_profile(profile: Profile, effort: Effort, tally: FaultTally) -> None:
    """Let calls of runs of one kind fail."""
    for seed in range(effort.seed, effort.seed + effort.fault_seeds):
        faults.sweep(profile, seed, 1, tally, ERRNOS)


def close_gaps(report: Report, effort: Effort) -> None:
    """Further runs, until a crash and an error were tried at every call site, or it is plain that none will reach the rest."""
    for seed in range(effort.seed + GAP_SEED_OFFSET, effort.seed + GAP_SEED_OFFSET + GAP_SEEDS):
        for profile in PROFILES:
            if missing := report.sites_without_crash():
                world = World(seed, profile).start()
                world.run()
                CrashSweep(report.crashes, seed).sweep(world, missing)
            if missing := report.sites_without_error():
                faults.sweep(profile, seed, 1, report.faults, ERRNOS, missing)


def run_all(effort: Effort) -> Report:
    """Everything, in the order in which the tests do it."""
    report = Report()
    for profile in PROFILES:
        crash_profile(profile, effort, report.crashes)
    for scene in scenes(effort):
        sweep_scene(scene, effort, report)
    for profile in PROFILES:
        fail_profile(profile, effort, report.faults)
    close_gaps(report, effort)
    return report
