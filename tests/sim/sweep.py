"""Crashes a run at every call that changes the disk, in every mode, and judges what the next start makes of it.

Each state is opened, looked at and compared with the ledger. A share of the states is taken further:
- the recovery is crashed itself, at one of its own calls, and what that leaves is judged by the same ledger;
- the opened directory loses power at once and is opened again: nothing may have changed but the reserved numbers;
- new bundles are pushed, sealed and delivered.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from random import Random

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.interposed import MUTATING_KINDS, Call
from tests.disks.crashes import CrashMode
from tests.disks.faulty import ANY, CallSite, FaultyDisk, call_site
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.file_kinds import kind_of
from tests.sim.ledger import NEVER, Ledger
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, Survey
from tests.sim.recorder import Moment, Recorder
from tests.sim.scenes import Scene
from tests.sim.world import World

MODES = tuple(CrashMode)
CORE_FILE = f"{DIRECTORY}/quiver.core"
BALLAST_FILE = f"{DIRECTORY}/quiver.ballast"


@dataclass(slots=True)
class Tally:
    """Counts of what was done."""

    runs: int = 0
    crashes: int = 0
    """Disks that a crash left and that were opened, those of crashed recoveries included."""
    images: set[int] = field(default_factory=set)
    """Distinct ones of them."""
    recoveries_crashed: int = 0
    repeated: int = 0
    continued: int = 0
    sites: Counter[CallSite] = field(default_factory=Counter)
    """Calls before which a crash was simulated."""
    file_kinds: Counter[str] = field(default_factory=Counter)
    """Kinds of files that those calls were to change."""

    def count(self, image: int, moment: Moment) -> None:
        """One more crash state."""
        self.crashes += 1
        self.images.add(image)
        self.sites[moment.site] += 1
        if kind := kind_of(moment.path, DIRECTORY):
            self.file_kinds[kind] += 1

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for name in ("runs", "crashes", "recoveries_crashed", "repeated", "continued"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.images |= other.images
        self.sites += other.sites
        self.file_kinds += other.file_kinds


class StateFailed(AssertionError):
    """A crash state that broke a rule, with what it takes to see it again."""


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the states is taken further: one in so many."""

    nested: int = 30
    repeat: int = 40
    go_on: int = 30


class CrashSweep:
    """Sweeps worlds into one tally."""

    def __init__(self, tally: Tally, seed: int = 0, share: Share = Share()) -> None:
        self.tally = tally
        self._random = Random(f"sweep {seed}")
        self._share = share

    def sweep(self, world: World, sites: Container[CallSite] | None = None, images_max: int = NEVER) -> None:
        """Every moment of a finished run in every mode. What one image shows is looked at once, and compared at each moment.

        Args:
            sites: only the moments before those calls.
            images_max: stop once the tally has that many distinct images.
        """
        self.tally.runs += 1
        self._seen: set[tuple[int, int, bool]] = set()
        self._surveys: dict[tuple[int, int | None], Survey] = {}
        versions = _versions(world.ledger)
        for moment in _from_anywhere(world.moments, self._random):
            if sites is not None and moment.site not in sites:
                continue
            if len(self.tally.images) >= images_max:
                return
            # Where nothing is pending, all crashes leave the same; a kill alone promises more.
            for mode in MODES if moment.disk.has_pending else (CrashMode.DROP, CrashMode.KEEP):
                seed = self._random.randrange(1 << 30)
                try:
                    self._crash(world, moment, mode, seed, versions)
                except Exception as error:
                    place = f"run {world.name}, call {moment.at} ({moment.site}), {mode.name}, seed {seed}"
                    raise StateFailed(f"{place}: {error}") from error

    def _crash(self, world: World, moment: Moment, mode: CrashMode, seed: int, versions: list[int]) -> None:
        left = moment.disk.crash(mode, seed)
        key = (left.fingerprint(), bisect_right(versions, moment.at), mode is CrashMode.KEEP)
        if key in self._seen:
            return
        self._seen.add(key)
        self.tally.count(key[0], moment)
        nested: list[Moment] | None = [] if self._one_in(self._share.nested) else None
        self._judge(world.oracle, left, key[0], moment.at, mode is CrashMode.KEEP, nested)
        for inner in nested or ():
            self._crash_recovery(world, moment, inner, mode)

    def _crash_recovery(self, world: World, moment: Moment, inner: Moment, outer: CrashMode) -> None:
        """One crash of the recovery right before one of its calls."""
        mode, seed = self._random.choice(MODES), self._random.randrange(1 << 30)
        left = inner.disk.crash(mode, seed)
        self.tally.recoveries_crashed += 1
        image = left.fingerprint()
        self.tally.count(image, inner)
        is_kill = outer is CrashMode.KEEP and mode is CrashMode.KEEP
        try:
            self._judge(world.oracle, left, image, moment.at, is_kill, None)
        except Exception as error:
            raise StateFailed(
                f"then recovery at call {inner.at} ({inner.site}), {mode.name}, seed {seed}: {error}"
            ) from error

    def _one_in(self, count: int) -> bool:
        return self._random.randrange(count) == 0

    def _judge(
        self, oracle: Oracle, left: SimDisk, image: int, at: int, is_kill: bool, moments: list[Moment] | None
    ) -> None:
        if self._one_in(self._share.repeat):
            check_repeated_recovery(oracle, left)
            self.tally.repeated += 1
        goes_on = moments is None and self._one_in(self._share.go_on)
        key = (image, left.capacity_bytes)
        if moments is None and not goes_on and key in self._surveys:
            oracle.check(self._surveys[key], at, is_kill=is_kill)
            return
        disk = OrderMonitor(left if moments is None else recording(left, moments))
        engine = oracle.open(disk, ManualClock(), left)
        self._surveys[key] = survey = oracle.survey(disk, engine)
        oracle.check(survey, at, is_kill=is_kill)
        left.capacity_bytes = None
        if goes_on:
            oracle.check_progress(disk, engine, survey, at)
            self.tally.continued += 1


def _from_anywhere(moments: Sequence[Moment], random: Random) -> Iterator[Moment]:
    """All of them, in half of the runs from any one on: a small effort takes but a part of each, and the end of a run is not like its
    beginning."""
    first = random.choice((0, random.randrange(len(moments))))
    return chain(islice(moments, first, None), islice(moments, first))


def recording(disk: SimDisk, moments: list[Moment]) -> Recorder:
    """Keeps a moment before each call that changes the disk."""

    def before(call: Call) -> None:
        moments.append(Moment(disk.copy(), len(moments), call_site(call.kind), call.target or call.path))

    return Recorder(disk, before)


def check_repeated_recovery(oracle: Oracle, left: SimDisk) -> None:
    """What a recovery has done is durable, and another one finds nothing to do but to reserve numbers."""
    first = left.copy()
    oracle.open(first, ManualClock(), first)
    second = first.crash(CrashMode.DROP)
    changed = _differences(first, second)
    assert not changed, f"recovery left something that is not durable: {changed}"
    oracle.open(second, ManualClock(), second)
    changed = _differences(first, second)
    assert not changed, f"a second recovery changed something: {changed}"


def _differences(one: SimDisk, other: SimDisk) -> list[str]:
    """Files that are not the same on both disks, but for the reserved numbers and what only holds space."""
    before, after = one.contents(), other.contents()
    ignored = {CORE_FILE, BALLAST_FILE}
    return sorted(path for path in (before.keys() | after.keys()) - ignored if before.get(path) != after.get(path))


def _versions(ledger: Ledger) -> list[int]:
    """Every time at which something became true, ascending."""
    times: list[int] = []
    for bundle in ledger.bundles.values():
        times += [bundle.staged_at, bundle.written_at, bundle.durable_at, bundle.lost_at]
    for subscription in ledger.subscriptions:
        facts = [subscription.registered, subscription.ended, *subscription.resolved.values()]
        times += [time for fact in facts for time in (fact.done_at, fact.durable_at)]
    for deletion in ledger.deletions.values():
        times += [deletion.started_at, deletion.done_at]
    times += ledger.stages.times()
    return sorted(time for time in times if time != NEVER)


def looked_at_once(scene: Scene) -> Scene:
    """The same, but that a disk is judged only the first time that it comes about: by what it shows, and what of that is durable."""
    seen: set[tuple[int, int, int | None]] = set()

    def judge(disk: SimDisk) -> None:
        key = (disk.fingerprint(), disk.crash(CrashMode.DROP).fingerprint(), disk.capacity_bytes)
        if key not in seen:
            scene.judge(disk)
            seen.add(key)

    return replace(scene, judge=judge)


def sweep_scene(scene: Scene, tally: Tally, *, modes_per_call: int = len(MODES), seed: int = 0) -> None:
    """Crash what a scene does at each of its calls, in some of the modes, and judge what is left."""
    random, moments, working = Random(f"{scene.name} {seed}"), list[Moment](), scene.disk.copy()
    scene.judge(scene.disk.copy())
    scene.work(OrderMonitor(recording(working, moments)))
    moments.append(Moment(working, len(moments), CallSite("end", __name__, "sweep_scene")))
    for moment in moments:
        for mode in random.sample(MODES, modes_per_call):
            _crash_scene(scene, moment, mode, random.randrange(1 << 30), tally)


def sweep_after_error(scene: Scene, tally: Tally, errnos: Sequence[int], site: CallSite) -> None:
    """Let one change of a scene after the other fail, until that leads to that call site; crash it there in every mode."""
    counting = FaultyDisk(scene.disk.copy())
    scene.work(counting)
    changes = [nth for nth, call in enumerate(counting.history, 1) if call.kind in MUTATING_KINDS]
    for code in errnos:
        for nth in changes:
            found = [moment for moment in _moments_after(scene, nth, code) if moment.site == site]
            for mode in MODES if found else ():
                _crash_scene(scene, found[0], mode, nth, tally)
            if found:
                return


def _moments_after(scene: Scene, nth: int, code: int) -> list[Moment]:
    """What a scene comes to whose n-th call fails."""
    moments: list[Moment] = []
    faulty = FaultyDisk(recording(scene.disk.copy(), moments))
    faulty.fail(ANY, nth, code)
    with contextlib.suppress(DiskError):
        scene.work(faulty)
    return moments


def _crash_scene(scene: Scene, moment: Moment, mode: CrashMode, seed: int, tally: Tally) -> None:
    crashed = moment.disk.crash(mode, seed)
    tally.count(crashed.fingerprint(), moment)
    tally.recoveries_crashed += 1
    try:
        scene.judge(crashed)
    except Exception as error:
        place = f"scene {scene.name}, call {moment.at} ({moment.site}), {mode.name}, seed {seed}"
        raise StateFailed(f"{place}: {error}") from error
