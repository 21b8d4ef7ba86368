"""The sweeps as they are run by the tests and by `python -m tests.sim`, and what they add up to.

A sweep is cut into tasks that know nothing of each other, so that they can run in several processes. The same effort gives the same
states in any number of them.
"""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

from tests.disks.faulty import CallSite
from tests.sim import faults
from tests.sim.faults import ERRNOS, FaultTally, calls_of, every_errno, fewer_errnos, one_errno
from tests.sim.file_kinds import KINDS
from tests.sim.profiles import PROFILES, Profile
from tests.sim.sites import call_sites, mutating_sites
from tests.sim.staged_scenes import SCENES, make_scene
from tests.sim.sweep import MODES, CrashSweep, Tally, looked_at_once, sweep_after_error, sweep_scene
from tests.sim.world import World

STATES_DEFAULT = 20_000
PARTS_PER_PROFILE = 2
"""Each with seeds of its own, so that no task is much longer than the others."""
GAP_SEED_OFFSET, GAP_SEEDS = 1_000_000, 12
_UNDAMAGED = "nothing"
"""A scene."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Amount of work."""

    crash_states: int
    """Distinct images that crashes leave of runs; those of damaged directories come on top."""
    seed: int = 0
    all_errors: bool = False

    @property
    def scale(self) -> float:
        return self.crash_states / STATES_DEFAULT

    @property
    def modes_per_call(self) -> int:
        """Crash modes tried at each call of the recovery of a scene."""
        return min(len(MODES), max(1, round(2 * self.scale)))

    @property
    def is_long(self) -> bool:
        """Every call site fails with every errno in every run and scene; otherwise they take turns."""
        return self.all_errors or self.scale > 1

    def errnos_of(self, scene: str) -> tuple[int, ...]:
        """A small effort uses one of the two errors of missing space for each scene, because one rule handles both."""
        return ERRNOS if self.is_long else (errno.EIO, (errno.ENOSPC, errno.EDQUOT)[len(scene) % 2])

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

    def add(self, other: Report) -> None:
        """Add the findings of another task."""
        self.crashes.add(other.crashes)
        self.faults.add(other.faults)

    def crash_figures(self) -> dict[str, int]:
        """Return the counts of crashes."""
        return {
            "crash_states": len(self.crashes.images),
            "crash_states_opened": self.crashes.crashes,
            "recoveries_crashed": self.crashes.recoveries_crashed,
            "recoveries_repeated": self.crashes.repeated,
            "states_continued": self.crashes.continued,
            "runs": self.crashes.runs,
            "file_kinds": len(KINDS),
            "file_kinds_hit": len(KINDS) - len(self.file_kinds_without_crash()),
        }

    def figures(self) -> dict[str, int]:
        """Everything that was counted. A site counts as hit when a crash (if it changes the disk) and an error were tried at it."""
        known = call_sites()
        hit = known - self.sites_without_crash() - self.sites_without_error()
        return self.crash_figures() | {
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

    def file_kinds_without_crash(self) -> set[str]:
        return KINDS.keys() - self.crashes.file_kinds.keys()

    def sites_without_error(self) -> set[CallSite]:
        return set(call_sites()) - set(self.faults.sites)


# --- tasks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CrashTask:
    """Crash runs of one kind until its share of the states is reached."""

    profile: str
    part: int
    effort: Effort

    def run(self) -> Report:
        report, profile = Report(), profile_named(self.profile)
        wanted = -(-self.effort.crash_states // (len(PROFILES) * PARTS_PER_PROFILE))
        for seed in count(self.effort.seed + self.part, PARTS_PER_PROFILE):
            if len(report.crashes.images) >= wanted:
                return report
            CrashSweep(report.crashes, seed).sweep(finished_run(profile, seed), images_max=wanted)
        raise AssertionError("count() has no end")


@dataclass(frozen=True, slots=True)
class FaultTask:
    """Let calls of runs of one kind fail."""

    profile: str
    effort: Effort

    def run(self) -> Report:
        report, profile = Report(), profile_named(self.profile)
        errnos = every_errno if self.effort.is_long else one_errno(PROFILES.index(profile))
        for seed in range(self.effort.seed, self.effort.seed + self.effort.fault_seeds):
            faults.sweep(profile, seed, 1, report.faults, errnos)
        return report


@dataclass(frozen=True, slots=True)
class SceneTask:
    """Crash the recovery of one damaged or foreign directory, and let its calls fail."""

    scene: str
    effort: Effort

    def run(self) -> Report:
        report, scene = Report(), looked_at_once(make_scene(self.scene, self.effort.seed))
        modes, errnos = self.effort.modes_per_call, self.effort.errnos_of(self.scene)
        sweep_scene(scene, report.crashes, modes_per_call=modes, seed=self.effort.seed)
        if scene.after_errors is not None:
            sweep_after_error(scene, report.crashes, errnos, scene.after_errors)
        turn, usual = list(SCENES).index(self.scene), usual_calls(self.effort.seed)
        errnos_of = every_errno if self.effort.is_long else fewer_errnos(turn, usual, errnos)
        faults.sweep_scene(scene, report.faults, errnos_of)
        return report


Task = CrashTask | FaultTask | SceneTask


@lru_cache
def usual_calls(seed: int) -> frozenset[CallSite]:
    """What the start of a directory calls in which nothing is wrong."""
    return frozenset(calls_of(make_scene(_UNDAMAGED, seed)))


def profile_named(name: str) -> Profile:
    return next(profile for profile in PROFILES if profile.name == name)


def finished_run(profile: Profile, seed: int) -> World:
    world = World(seed, profile).start()
    world.run()
    return world


def crash_tasks(effort: Effort) -> Iterator[CrashTask]:
    return (CrashTask(profile.name, part, effort) for profile in PROFILES for part in range(PARTS_PER_PROFILE))


def fault_tasks(effort: Effort) -> Iterator[FaultTask]:
    return (FaultTask(profile.name, effort) for profile in PROFILES)


def scene_tasks(effort: Effort) -> Iterator[SceneTask]:
    return (SceneTask(name, effort) for name in SCENES)


def run_task(task: Task) -> Report:
    """Do it in this process.

    Raises:
        AssertionError: a rule is broken; says what it takes to see that again.
    """
    logging.disable(logging.CRITICAL)
    # What a sweep keeps lives as long as it: looking through it again and again takes a tenth of the time. What it drops, an engine and a
    # disk for each state, is found where it still is in the processor's caches.
    gc.set_threshold(10_000, 100, 50)
    try:
        return task.run()
    except Exception as error:  # noqa: BLE001
        # Not every exception comes through a pipe as it was.
        raise AssertionError(f"{error}\n{''.join(traceback.format_exception(error))}") from None


def close_gaps(report: Report, effort: Effort) -> None:
    """Further runs, until a crash and an error were tried at every call site, or it is plain that none will reach the rest."""
    for seed in range(effort.seed + GAP_SEED_OFFSET, effort.seed + GAP_SEED_OFFSET + GAP_SEEDS):
        for profile in PROFILES:
            if missing := report.sites_without_crash():
                CrashSweep(report.crashes, seed).sweep(finished_run(profile, seed), missing)
            if missing := report.sites_without_error():
                faults.sweep(profile, seed, 1, report.faults, every_errno, missing)


def processes(count: int = 0) -> Executor:
    """A pool of processes, 0: one for each CPU, that import everything again: a fork would copy the threads of the caller."""
    return ProcessPoolExecutor(count or len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"))


def run_all(effort: Effort, process_count: int = 0, *, crashes_only: bool = False) -> Report:
    """Everything, in the order in which the tests do it."""
    report = Report()
    others: list[Task] = [] if crashes_only else [*scene_tasks(effort), *fault_tasks(effort)]
    wanted = (*crash_tasks(effort), *others)
    if process_count == 1:
        for task in wanted:
            report.add(run_task(task))
    else:
        _run_beside(wanted, process_count, report)
    if not crashes_only:
        close_gaps(report, effort)
    return report


def _run_beside(wanted: Sequence[Task], process_count: int, report: Report) -> None:
    with processes(process_count) as pool:
        futures = [pool.submit(run_task, task) for task in wanted]
        try:
            for future in futures:
                report.add(future.result())
        except AssertionError:
            pool.shutdown(cancel_futures=True)
            raise
