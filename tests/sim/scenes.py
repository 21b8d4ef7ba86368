"""Directories that no run leaves by itself: ours after the disk has damaged them. Those of the Rust implementation: `rust_scenes`.

Each scene is a disk image and a judge, which opens what is left of it and says what must be there. `sweep.sweep_recovery` crashes its
recovery at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.events import Event, GapFound
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.inspection.repair import repair_engine
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.jobs.offline_compaction import compact_segment
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME
from tests.disks.crashes import CrashMode
from tests.disks.faulty import CallSite, FaultyDisk, call_site
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.disks.simulated_files import BLOCK_BYTES
from tests.sim.damages import COMPACTED, DAMAGES, WITHOUT_A_TRACE, flip, paths, rewrite
from tests.sim.ledger import BundleId
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, push_plain, settle
from tests.sim.profiles import PROFILES
from tests.sim.recorder import Recorder
from tests.sim.world import World

ACTIVE = f"{DIRECTORY}/wal/quiver.wal"
FEW_BLOCKS = 8
"""Enough for the small files of a start, not for a log."""
_FEWER_BLOCKS = 2
"""Enough for one small file of a start after the other, not for the copy of a log with several entries."""

Judge = Callable[[SimDisk], None]
Work = Callable[[Disk], object]


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    disk: SimDisk
    judge: Judge
    """Opens what is left, and says what must be there."""
    work: Work
    """The work that is crashed and made to fail: it opens the directory, and does all that follows from that."""

    @property
    def after_errors(self) -> CallSite | None:
        """A call that only another one's failure leads to, to be crashed before."""
        return AFTER_ERRORS.get(self.name)


def open_and_settle(disk: Disk, oracle: Oracle) -> tuple[Engine, OrderMonitor]:
    """Open the directory and let everything finish that is due, the flush of what subscribers are to be told included."""
    monitor, clock = OrderMonitor(disk), ManualClock()
    engine = oracle.open(monitor, clock)
    settle(engine)
    clock.now_ns += SECOND_NS
    settle(engine)
    return engine, monitor


def opening(oracle: Oracle) -> Work:
    return lambda disk: open_and_settle(disk, oracle)


# --- our own directory, damaged ---------------------------------------------------------------------------------------------


def _damage_scene(name: str, seed: int) -> Scene:
    """A store with sealed segments, an open log, subscribers with progress, after a power loss; then something is damaged."""
    world = _damaged_world(seed, journals=name.startswith("journal"))
    left = world.disk.crash(CrashMode.DROP)
    untold = _newest_segment(left) if name in WITHOUT_A_TRACE else -1
    DAMAGES[name](left)
    world.oracle.finds_by_sequence = True
    return Scene(name, left, _announced_judge(world, untold), opening(world.oracle))


def _repair_scene(name: str, seed: int) -> Scene:
    """`quiver repair` of a damaged directory, cut off anywhere: the next start still finds everything, or says what is lost."""
    scene = _damage_scene(name.removeprefix("repair, "), seed)

    def work(disk: Disk) -> None:
        repair_engine(Tree(OrderMonitor(disk), ""), DIRECTORY, PROFILES[0].settings, dry_run=False)

    return replace(scene, name=name, work=work)


def _interrupted_scene(name: str, seed: int) -> Scene:
    """A start that was cut off, or that finds no room: what a recovery does in a place that few crashes lead to."""
    what, _, crowd = name.partition(", ")
    own_seed, has_ballast = seed + list(_INTERRUPTIONS).index(what), f", {crowd}" == _FULL
    world, left, at = _stopped_at(_INTERRUPTIONS[what], own_seed, has_ballast=has_ballast)
    if crowd:
        _doubt(left)
    if crowd and f", {crowd}" != _DOUBTED:
        _crowd(left, 0 if has_ballast else _FEWER_BLOCKS, keeps_ballast=has_ballast)
    return Scene(name, left, _promised_judge(world, at), opening(world.oracle))


def _doubt(disk: SimDisk) -> None:
    """Memory has a byte of each log, one that means nothing, of which the disk has never got the last value: it is written anew."""
    for path in paths(disk, "/quiver.wal"):
        file = disk.open_write(path)
        if file.size() > _PADDING_AT:
            file.write([b"\1"], _PADDING_AT)
            file.fdatasync()
            file.write([b"\0"], _PADDING_AT)
            file.fail_sync()
        file.close()


def _crowd(disk: SimDisk, blocks: int, *, keeps_ballast: bool) -> None:
    """Leave room for that many blocks."""
    temporary = [path for path in paths(disk, ".tmp") if not path.endswith(JOURNAL_NAME)]
    for path in [*paths(disk, "quiver.ballast")[: not keeps_ballast], *temporary]:
        disk.unlink(path)
    disk.capacity_bytes = disk.used_bytes + blocks * BLOCK_BYTES


def _rescue_scene(name: str, seed: int) -> Scene:
    """A rescue that was cut off, or that finds no room."""
    scene = _damage_scene("segment entry flipped", seed)
    if name not in _RESCUES:
        _crowd(scene.disk, FEW_BLOCKS, keeps_ballast=False)
        return replace(scene, name=name)
    moments: list[tuple[SimDisk, CallSite]] = []
    disk = scene.disk.copy()
    scene.work(Recorder(disk, lambda call: moments.append((disk.copy(), call_site(call.kind)))))
    last = [left for left, site in moments if site == _RESCUES[name]][-1]
    return replace(scene, name=name, disk=last.crash(CrashMode.KEEP))


def _compaction_scene(name: str, seed: int) -> Scene:
    """Segments that are worth it, a minute later."""
    world = _world_to_compact(seed)
    at, left = world.calls, world.disk.crash(CrashMode.DROP)
    return Scene(name, left, _promised_judge(world, at), lambda disk: _compact(disk, world.oracle))


def _compacted_scene(name: str, seed: int) -> Scene:
    """Segments that were compacted; then one of them is damaged."""
    world = _world_to_compact(seed)
    left = world.disk.crash(CrashMode.DROP)
    _compact(left, world.oracle)
    left = left.crash(CrashMode.DROP)
    COMPACTED[name](left)
    return Scene(name, left, _announced_judge(world, -1), opening(world.oracle))


def _world_to_compact(seed: int) -> World:
    profile = next(profile for profile in PROFILES if profile.ages)
    world = World(seed, profile, keeps_moments=False).start()
    world.run_script("register", *["push"] * 16, "claim", "resolve")
    world.jobs.abandon()
    return world


def _dictionaries_scene(name: str, seed: int) -> Scene:
    """Segments of many dictionaries; then an entry of one is damaged. The first run is taken whose rescue reads dictionaries back."""
    for run in range(seed, seed + _TRIES):
        world = _world_to_compact(run)
        left = world.disk.crash(CrashMode.DROP)
        rewrite(".qseg", flip(300))(left)
        scene = Scene(name, left, _announced_judge(world, -1), opening(world.oracle))
        counting = FaultyDisk(left.copy())
        scene.work(counting)
        if _READS_BACK in counting.calls:
            return scene
    raise AssertionError(f"no run from seed {seed} on leads to: {name}")


def _compact(disk: Disk, oracle: Oracle) -> None:
    """What the worker does in the background, and before it what `quiver compact --dry-run` does."""
    monitor, clock = OrderMonitor(disk), ManualClock()
    engine = oracle.open(monitor, clock)
    settle(engine)
    for info in engine.segments():
        compact_segment(monitor, EnginePaths(DIRECTORY), info.segment_seq, dry_run=True)
    clock.now_ns += COMPACTION_AGE_NS
    settle(engine)


def _stopped_at(site: CallSite, seed: int, *, has_ballast: bool = False) -> tuple[World, SimDisk, int]:
    """A run whose process was killed right before its last call at that site, and how many calls it had done.

    Args:
        has_ballast: before the last such call while there was a ballast file.
    """
    world = World(seed, PROFILES[0]).start()
    world.run()
    at_site = [moment for moment in world.moments if moment.site == site]
    moment = [each for each in at_site if not has_ballast or paths(each.disk, "quiver.ballast")][-1]
    return world, moment.disk.crash(CrashMode.KEEP), moment.at


def _promised_judge(world: World, at: int) -> Judge:
    def judge(disk: SimDisk) -> None:
        monitor = OrderMonitor(disk)
        engine = world.oracle.open(monitor, ManualClock(), disk)
        survey = world.oracle.survey(monitor, engine)
        world.oracle.check(survey, at, is_kill=False)
        disk.capacity_bytes = None
        world.oracle.check_progress(monitor, engine, survey, at)

    return judge


def _damaged_world(seed: int, *, journals: bool = False) -> World:
    """Everything in it is durable; the open log has several bundles.

    Args:
        journals: its last acknowledgements are in the journal of progress, and not in the progress files.
    """
    world = World(seed, PROFILES[0], keeps_moments=False).start()
    world.run_script("register", "push", "push", "push", "claim", "resolve", "push", "push", "claim", "resolve", "push")
    while journals and not paths(world.disk, JOURNAL_NAME):
        world.run_script("push", "follow")
    return world


def _newest_segment(disk: SimDisk) -> int:
    return int(paths(disk, ".qseg")[-1].rpartition("/")[2].partition(".")[0])


def _announced_judge(world: World, untold: int) -> Judge:
    """Every promised bundle that a subscriber has not resolved is delivered to it, or it is told that it will not be.

    Of the segment `untold` nothing is left from which anybody could tell.
    """
    promised = list(world.ledger.promised(world.calls, is_kill=False))

    def judge(disk: SimDisk) -> None:
        disk.capacity_bytes = None
        monitor = OrderMonitor(disk)
        engine = world.oracle.open(monitor, ManualClock(), disk)
        survey = world.oracle.survey(monitor, engine)
        for subscription in world.ledger.subscriptions:
            delivered = {survey.sequence_of(id_) for id_ in survey.deliverable[subscription.subscriber]}
            told = _gaps(survey.events, subscription.subscriber)
            silent = [
                bundle.id
                for bundle in promised
                if subscription.owes(bundle)
                and bundle.id[0] != untold
                and bundle.id not in subscription.resolved
                and bundle.sequence not in delivered
                and bundle.id not in told
            ]
            assert not silent, f"{subscription.subscriber} does not get {silent} and is not told"
        world.oracle.check_order(survey)
        push_plain(engine, 0)

    return judge


def _gaps(events: Sequence[Event], subscriber: str) -> set[BundleId]:
    gaps = [event for event in events if isinstance(event, GapFound) and event.subscriber == subscriber]
    return {(g.segment_seq, index) for g in gaps for index in range(g.bundle_index, g.bundle_index + g.bundle_count)}


_INTERRUPTIONS = {
    "log with entries": CallSite("rename", "quiver_actors.store.jobs.commits", "CommitJob.work"),
    "seal that lacks its name": CallSite("rename", "quiver_actors.store.jobs.sealing", "seal_file"),
    "seal that lacks its sync": CallSite("fsync", "quiver_actors.store.jobs.sealing", "seal_file"),
}
"""Scene names, and the call that was next when the work was interrupted."""
_DOUBTED, _NO_ROOM, _FULL = (
    ", that only memory has",
    ", without room for a copy",
    ", with no room but its ballast's",
)
_READS_BACK = CallSite("read", "quiver_actors.store.jobs.rebuild", "_InPlace._fill")
_TRIES = 20
_PADDING_AT = 110
"""A place in the header of a log, behind its CRC."""
_RESCUES = {
    "rescue that lacks its move": CallSite("rename", "quiver_actors.store.files.quarantine", "move_to_quarantine"),
    "rescue that lacks its name": CallSite("rename", "quiver_actors.store.jobs.rescue", "_swap"),
}

AFTER_ERRORS = {
    "open log": CallSite("unlink", "quiver_actors.store.jobs.room", "AllocateJob._allocate"),
    "segment entry flipped": CallSite("unlink", "quiver_actors.store.jobs.rescue", "_Rescue._write_rebuilt"),
    "log entry flipped": CallSite("unlink", "quiver_actors.store.files.quarantine", "copy_span"),
    "segment deleted that a guest has open": CallSite("unlink", "quiver_actors.store.files.held_names", "put_back"),
    "compaction": CallSite("unlink", "quiver_actors.store.jobs.upkeep", "CompactJob._drop"),
    "log of both writers": CallSite("unlink", "quiver_actors.store.recovery.adoption", "Adoption._replace_by_empty"),
    "publish that lacks segments": CallSite("unlink", "quiver_actors.store.staged.recovery", "_Recovery._renew"),
    "transaction": CallSite("unlink", "quiver_actors.store.staged.jobs", "StageAllocateJob._create"),
}
"""Calls that happen only after another call has failed, so that they are crashed there too."""
_REPAIRED = ("core, cursor and segment flipped", "log entry flipped")

SCENES: dict[str, Callable[[str, int], Scene]] = {
    **dict.fromkeys(DAMAGES, _damage_scene),
    **dict.fromkeys([name + room for name in _INTERRUPTIONS for room in ("", _DOUBTED, _NO_ROOM)], _interrupted_scene),
    "log with entries" + _FULL: _interrupted_scene,
    **dict.fromkeys([*_RESCUES, "rescue without room"], _rescue_scene),
    "compaction": _compaction_scene,
    **dict.fromkeys([f"repair, {name}" for name in _REPAIRED], _repair_scene),
    **dict.fromkeys(COMPACTED, _compacted_scene),
    "segment of many dictionaries flipped": _dictionaries_scene,
}
"""Makers of the scenes, by name; each takes the name and a seed."""


def make_scene(name: str, seed: int = 0) -> Scene:
    return SCENES[name](name, seed)
