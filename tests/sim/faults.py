"""Lets one call of a run fail, and judges what the engine does about it and what the next start finds.

Rules that are checked
- Whatever fails in the way of a bundle to the disk (write, sync, rename) fails the engine for good, and so does any other call that
  changes the disk, unless only space is missing. A failed engine does nothing more to the disk.
- Where space is looked for (a new log, the tail of a seal, a small file) it is waited for; then the engine goes on by itself.
- A stop or start that meets a fault can be made again.
- Whatever happened, the next start loses nothing that was promised: after the end of the process, after a power loss, and after a
  power loss behind a start that had only seen what the cache of a failed sync still showed.
"""

from __future__ import annotations

import contextlib
import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError, EngineFailed
from quiver_actors.store.disk.interposed import KINDS, MUTATING_KINDS
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS
from quiver_actors.store.engine import EngineState
from tests.disks.crashes import CrashMode
from tests.disks.faulty import ANY, SPACE_KINDS, CallSite, Fault, FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.oracle import ManualClock
from tests.sim.profiles import Profile
from tests.sim.scenes import Scene
from tests.sim.world import World

OPERATIONS, OPERATIONS_OF_TRANSACTIONS = 40, 110
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_USUAL_SHARE = 4
"""What the start of every directory calls fails in one of so many of them."""
ErrnosOf = Callable[[CallSite], Sequence[int]]
"""What a call site is to fail with, in one run or scene after the other."""
WAITING_SITES = frozenset(
    [
        CallSite("create", "quiver_actors.store.jobs.room", "AllocateJob._allocate"),
        CallSite("allocate", "quiver_actors.store.jobs.room", "AllocateJob._allocate"),
        CallSite("allocate", "quiver_actors.store.jobs.room", "GrowJob.work"),
        CallSite("allocate", "quiver_actors.store.jobs.sealing", "seal_file"),
        CallSite("write", "quiver_actors.store.jobs.sealing", "seal_file"),
        CallSite("create", "quiver_actors.store.disk.protocol", "write_atomically"),
        CallSite("write", "quiver_actors.store.disk.protocol", "write_atomically"),
    ]
)
"""Sites where a lack of space must never fail an engine."""
FATAL_SITES = frozenset(
    [
        CallSite("write", "quiver_actors.store.wal.log", "Log.write"),
        CallSite("write", "quiver_actors.store.wal.log", "Log.write_lone"),
        CallSite("fdatasync", "quiver_actors.store.jobs.commits", "CommitJob.work"),
        CallSite("fdatasync", "quiver_actors.store.jobs.commits", "LoneCommit.run"),
        CallSite("rename", "quiver_actors.store.jobs.commits", "CommitJob.work"),
        CallSite("sync_directory", "quiver_actors.store.jobs.commits", "CommitJob.work"),
        CallSite("fsync", "quiver_actors.store.jobs.sealing", "seal_file"),
        CallSite("sync_directory", "quiver_actors.store.jobs.sealing", "seal_file"),
    ]
)
"""Sites where any failure must fail the engine, lack of space included."""
_STAGE_JOBS = "quiver_actors.store.staged.jobs"
TOLERATED_SITES = frozenset(
    [
        CallSite("unlink", "quiver_actors.store.disk.protocol", "write_atomically"),
        CallSite("create", "quiver_actors.store.jobs.upkeep", "CompactJob._rewrite"),
        CallSite("write", "quiver_actors.store.jobs.upkeep", "CompactJob._write"),
        CallSite("fsync", "quiver_actors.store.jobs.upkeep", "CompactJob._write"),
        CallSite("rename", "quiver_actors.store.jobs.upkeep", "CompactJob._rewrite"),
        CallSite("unlink", "quiver_actors.store.jobs.upkeep", "CompactJob._drop"),
        *(
            CallSite(kind, "quiver_actors.store.jobs.summaries", "SaveSummariesJob.work")
            for kind in ("create", "write", "fdatasync", "rename")
        ),
        *(CallSite(kind, _STAGE_JOBS, "PrepareJob.work") for kind in ("unlink", "truncate", "fsync", "sync_directory")),
        *(CallSite(kind, _STAGE_JOBS, "StageAllocateJob._create") for kind in ("make_directory", "create", "allocate")),
        CallSite("unlink", _STAGE_JOBS, "StageAllocateJob._create"),
        CallSite("allocate", _STAGE_JOBS, "StageAllocateJob.work"),
    ]
)
"""Where a failure follows another one, which is the one that is reported, or costs no more than a compaction, a stage or a derived file."""


def every_errno(site: CallSite) -> Sequence[int]:
    return ERRNOS


def one_errno(turn: int) -> ErrnosOf:
    """One for each call site, and the next one in the next turn."""
    return lambda site: (ERRNOS[_number(site, turn) % len(ERRNOS)],)


def fewer_errnos(turn: int, usual: Container[CallSite], errnos: Sequence[int]) -> ErrnosOf:
    """These where few directories lead to; of what is usual one of all, in some of the turns."""

    def errnos_of(site: CallSite) -> Sequence[int]:
        share, number = divmod(_number(site, turn), _USUAL_SHARE)
        if site in usual:
            return (ERRNOS[share % len(ERRNOS)],) if number == 0 else ()
        return errnos

    return errnos_of


def _number(site: CallSite, turn: int) -> int:
    return crc32(str(site).encode()) + turn


@dataclass(frozen=True, slots=True)
class FaultCase:
    """The n-th call of a run fails."""

    nth: int
    site: CallSite
    """Site of the call that fails, in the run without a fault."""
    errno: int
    always: bool
    written_share: float = 0.0
    second_nth: int = 0
    """Another call that fails, with EIO; 0 for none. What is done only after a failure can fail too."""

    def __str__(self) -> str:
        how = "from then on" if self.always else "once"
        then = f", then call {self.second_nth} with EIO" if self.second_nth else ""
        return f"call {self.nth} ({self.site}) fails with {errno.errorcode[self.errno]} {how}{then}"

    def set_up(self, faulty: FaultyDisk) -> Fault:
        """Let them fail. Returns the first fault."""
        later = SPACE_KINDS if self.errno in NO_SPACE_ERRNOS else KINDS
        then = later if self.always else ()
        fault = faulty.fail(ANY, self.nth, self.errno, then=then, written_share=self.written_share)
        if self.second_nth:
            faulty.fail(ANY, self.second_nth, errno.EIO)
        return fault

    def followed_by(self, faulty: FaultyDisk, known: Container[CallSite], tally: FaultTally) -> Iterator[FaultCase]:
        """The same with a second failure, at each call site that only this failure has led to and where none was tried."""
        found: dict[CallSite, int] = {}
        for number, site in enumerate(faulty.history[self.nth :], self.nth + 1):
            if site not in known and not tally.sites[site]:
                found.setdefault(site, number)
        return (replace(self, always=False, second_nth=number) for number in found.values())


@dataclass(slots=True)
class FaultTally:
    cases: int = 0
    failed: int = 0
    """Engines that failed for good."""
    waited: int = 0
    """Engines that went on."""
    stopped: int = 0
    """Stops and starts that met the fault."""
    restarts: int = 0
    sites: Counter[CallSite] = field(default_factory=Counter)

    def add(self, other: FaultTally) -> None:
        """Add the counts of another tally."""
        for name in ("cases", "failed", "waited", "stopped", "restarts"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sites += other.sites


def operations_of(profile: Profile) -> int:
    """How long runs of that kind are."""
    return OPERATIONS_OF_TRANSACTIONS if profile.transacts else OPERATIONS


def history(profile: Profile, seed: int) -> list[CallSite]:
    """The calls of one run without a fault."""
    faulty = FaultyDisk(SimDisk())
    World(seed, profile, keeps_moments=False, faulty=faulty).start().run(operations_of(profile))
    return faulty.history


def cases(
    calls: Sequence[CallSite], random: Random, per_site: int, errnos: ErrnosOf, sites: Container[CallSite] | None
) -> Iterator[FaultCase]:
    """Which of those calls are to fail: at most `per_site` of each call site, and with `sites` only of those."""
    numbers: dict[CallSite, list[int]] = defaultdict(list)
    for number, site in enumerate(calls, 1):
        numbers[site].append(number)
    for site, found in numbers.items():
        if sites is not None and site not in sites:
            continue
        for nth in random.sample(found, min(per_site, len(found))):
            # By the contract of the seam that one needs no space.
            for code in (errno.EIO,) if site.kind == "make_read_only" else errnos(site):
                share = random.choice((0.0, 0.3, 0.99)) if site.kind == "write" else 0.0
                yield FaultCase(nth, site, code, random.random() < 0.5, share)


class FaultRun:
    """One run with one fault."""

    def __init__(self, profile: Profile, seed: int, case: FaultCase, tally: FaultTally) -> None:
        self._case = case
        self._tally = tally
        self.faulty = self._faulty = FaultyDisk(SimDisk())
        self._fault = case.set_up(self._faulty)
        self._world = World(seed, profile, keeps_moments=False, faulty=self._faulty)

    def run(self) -> None:
        self._tally.cases += 1
        try:
            self._world.start().run(operations_of(self._world.profile))
        except DiskError:
            self._tally.stopped += 1
            self._faulty.heal()
            self._check_restarts()
            return
        self._world.jobs.finish()
        if not self._fault.hits:
            return
        if self._world.engine.state is EngineState.FAILED:
            self._tally.failed += 1
            self._check_failed()
        else:
            self._tally.waited += 1
            self._check_goes_on()
        self._check_restarts()

    @property
    def _site(self) -> CallSite:
        """Site of the first failing call."""
        return next(iter(self._faulty.failed_sites))

    @property
    def _must_fail(self) -> bool:
        is_change = self._site.kind in MUTATING_KINDS and self._case.errno not in NO_SPACE_ERRNOS
        if self._world.staging.has_spoiled and self._site.function in ("write_atomically", "Log.write"):
            return False  # of a file of a stage
        return (is_change and self._site not in TOLERATED_SITES) or self._site in FATAL_SITES

    @property
    def _must_wait(self) -> bool:
        no_room = self._case.errno in NO_SPACE_ERRNOS and not self._case.second_nth
        return no_room and WAITING_SITES.issuperset(self._faulty.failed_sites)

    def _check_failed(self) -> None:
        world, engine = self._world, self._world.engine
        assert not self._must_wait, f"missing space at {self._site} failed the engine: {engine.failure}"
        assert engine.failure
        assert isinstance(engine.intake.refusal(), EngineFailed)
        self._faulty.heal()
        calls = self._faulty.mutating_count
        world.clock.now_ns += SECOND_NS
        engine.tick()
        engine.seal_now()
        engine.drain()
        assert not engine.intake.can_stage(1)
        assert engine.next_commit() is None
        assert engine.next_background() is None
        engine.close()
        assert self._faulty.mutating_count == calls, "a failed engine went on to change the disk"
        assert engine.state is EngineState.CLOSED

    def _check_goes_on(self) -> None:
        """Time passes, space is there again: everything is done that had to wait."""
        world = self._world
        assert not self._must_fail, f"the engine went on after a failure at {self._site}"
        self._faulty.heal()
        world.has_faults = False
        world.clock.now_ns += SECOND_NS
        if world.engine.state is not EngineState.DRAINING:
            world.rest()
            assert world.engine.state is EngineState.READY
        else:
            world.jobs.finish_all()
            assert world.engine.is_drained

    def _check_restarts(self) -> None:
        self._tally.sites.update(self._faulty.failed_sites)
        world, at = self._world, self._world.calls
        world.jobs.abandon()
        killed = world.disk.crash(CrashMode.KEEP)
        self._check(killed, at, is_kill=True)
        self._check(killed.crash(CrashMode.DROP), at, is_kill=False, goes_on=True)
        mode = Random(str(self._case)).choice(list(CrashMode))
        self._check(world.disk.crash(mode, at), at, is_kill=mode is CrashMode.KEEP)

    def _check(self, left: SimDisk, at: int, *, is_kill: bool, goes_on: bool = False) -> None:
        self._tally.restarts += 1
        disk, oracle = OrderMonitor(left), self._world.oracle
        engine = oracle.open(disk, ManualClock(), left)
        survey = oracle.survey(disk, engine)
        oracle.check(survey, at, is_kill=is_kill)
        left.capacity_bytes = None
        if goes_on:
            oracle.check_progress(disk, engine, survey, at)


def sweep(
    profile: Profile,
    seed: int,
    per_site: int,
    tally: FaultTally,
    errnos: ErrnosOf,
    sites: Container[CallSite] | None = None,
) -> None:
    """All cases of one run; with `sites` only those, and what nothing but another failure leads to.

    Raises:
        AssertionError: names the case.
    """
    calls, random = history(profile, seed), Random(f"cases {profile.name} {seed}")
    known = set(calls)
    for case in cases(calls, random, per_site, errnos, sites):
        run = _run_case(profile, seed, case, tally)
        for second in case.followed_by(run.faulty, known, tally):
            _run_case(profile, seed, second, tally)


def _run_case(profile: Profile, seed: int, case: FaultCase, tally: FaultTally) -> FaultRun:
    run = FaultRun(profile, seed, case, tally)
    try:
        run.run()
    except Exception as error:
        raise AssertionError(f"run {profile.name}/{seed}, {case}: {error}") from error
    return run


def calls_of(scene: Scene) -> list[CallSite]:
    """Return the calls that a scene makes where nothing fails."""
    counting = FaultyDisk(scene.disk.copy())
    scene.work(counting)
    return counting.history


def sweep_scene(scene: Scene, tally: FaultTally, errnos: ErrnosOf) -> None:
    """Let call sites of one directory's recovery fail once; the next start must find everything.

    Raises:
        AssertionError: names the case.
    """
    first = {site: number for number, site in reversed(list(enumerate(calls_of(scene), 1)))}
    for site, nth in first.items():
        for code in errnos(site):
            case = FaultCase(nth, site, code, always=False)
            faulty = _run_scene(scene, case, tally)
            for second in case.followed_by(faulty, first, tally):
                _run_scene(scene, second, tally)


def _run_scene(scene: Scene, case: FaultCase, tally: FaultTally) -> FaultyDisk:
    left = scene.disk.copy()
    faulty = FaultyDisk(left)
    case.set_up(faulty)
    tally.cases += 1
    with contextlib.suppress(DiskError):
        scene.work(faulty)
    tally.sites.update(faulty.failed_sites)
    for mode in (CrashMode.KEEP, CrashMode.DROP):
        tally.restarts += 1
        try:
            scene.judge(left.crash(mode))
        except Exception as error:
            raise AssertionError(f"scene {scene.name}, {case}, then {mode.name}: {error}") from error
    return faulty
