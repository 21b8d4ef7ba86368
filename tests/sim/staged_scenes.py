"""Directories with transactions in them: cut off where few crashes cut, or damaged. Also all scenes there are.

A damaged stage that waits for its decision is lost, and whoever publishes it is told; one that is being published loses what is
damaged and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.base.topics import Catalogue
from quiver_actors.errors import TransactionLost
from quiver_actors.node.topics.catalogue import read_catalogue, write_catalogue
from quiver_actors.store.staged.records import decode_journal
from tests.disks.crashes import CrashMode
from tests.disks.faulty import CallSite
from tests.disks.simulated import SimDisk
from tests.sim import cold_scenes, other_hand_scenes, other_writer_scenes, rust_scenes, scenes, worker_scenes
from tests.sim.damages import flip, paths, remove, rewrite
from tests.sim.oracle import Oracle, push_plain
from tests.sim.profiles import PROFILES
from tests.sim.recorder import Moment
from tests.sim.scenes import Judge, Scene, open_and_settle, opening
from tests.sim.scenes import _promised_judge as promised_judge
from tests.sim.world import World

_JOBS = "quiver_actors.store.staged.jobs"
_JOURNAL = "quiver.transactions"
_TRIES = 40

_CUT_OFF: dict[str, Callable[[Moment], bool]] = {
    "stage whose record lacks its name": lambda moment: bool(paths(moment.disk, ".prepared.tmp")),
    "stage that is prepared": lambda moment: bool(paths(moment.disk, ".prepared")),
    "publish that lacks segments": lambda moment: moment.site == CallSite("write", _JOBS, "_publish_part"),
    "publish that lacks its end": lambda moment: moment.site == CallSite("unlink", _JOBS, "publish_parts"),
    "drop that lacks its end": lambda moment: moment.site == CallSite("unlink", _JOBS, "delete_stage"),
}
"""Scene names, and the test that recognises the moment of a run at which the scene begins."""
_PREPARED, _PUBLISHING = "stage that is prepared", "publish that lacks segments"
_LOG_MISSING = "log missing in front of others"
_DAMAGED: dict[str, tuple[str, Callable[[Moment], Callable[[SimDisk], None]]]] = {
    "prepared stage whose part is flipped": (_PREPARED, lambda _: rewrite(".stage", flip(300), -1)),
    "prepared stage without its part": (_PREPARED, lambda _: remove(".stage", -1)),
    "prepared stage whose record is flipped": (_PREPARED, lambda _: rewrite(".prepared", flip(40), -1)),
    "journal flipped": (_PREPARED, lambda _: rewrite(_JOURNAL, flip(20))),
    "publish whose part is flipped": (_PUBLISHING, lambda moment: rewrite(moment.path, flip(300))),
    "publish without a part": (_PUBLISHING, lambda moment: remove(moment.path)),
}
"""Scene names, and what is damaged at which moment; a publish is cut off at a write to one of its parts."""


def _cut_off_scene(name: str, seed: int) -> Scene:
    world, moment = _find(_CUT_OFF[name], name, seed)
    left = moment.disk.crash(CrashMode.KEEP)
    return Scene(name, left, promised_judge(world, moment.at), opening(world.oracle))


def _damaged_scene(name: str, seed: int) -> Scene:
    place, damage = _DAMAGED[name]

    def fits(moment: Moment) -> bool:
        if name.startswith("journal") and not paths(moment.disk, _JOURNAL):
            return False
        return _CUT_OFF[place](moment) and (place != _PREPARED or _waits_for_decision(moment.disk))

    world, moment = _find(fits, name, seed)
    left = moment.disk.crash(CrashMode.KEEP)
    before = _numbers(left)
    damage(moment)(left)
    lost = [] if place != _PREPARED or name.startswith("journal") else [max(before)]
    return Scene(name, left, _given_up_judge(world.oracle, lost), opening(world.oracle))


def _log_missing_scene(name: str, seed: int) -> Scene:
    """Somebody has deleted a log that was not sealed yet: with others behind it nothing else explains the hole."""

    def fits(moment: Moment) -> bool:
        is_sealing = moment.site == CallSite("rename", "quiver_actors.store.jobs.sealing", "seal_file")
        return is_sealing and len(_rotated(moment.disk)) > 1 and not paths(moment.disk, ".prepared")

    world, moment = _find(fits, name, seed)
    left = moment.disk.crash(CrashMode.KEEP)
    remove(_rotated(left)[0])(left)
    return Scene(name, left, _given_up_judge(world.oracle, []), opening(world.oracle))


def _rotated(disk: SimDisk) -> list[str]:
    """The oldest one first."""
    found = [path for path in paths(disk, "/quiver.wal.") if path.rpartition(".")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.rpartition(".")[2]))


def _waits_for_decision(disk: SimDisk) -> bool:
    """Whether the last stage is prepared, and nobody has decided about it yet."""
    if not _parts(disk) or max(_parts(disk)) != max(_numbers(disk), default=-1):
        return False
    decided: set[int] = set()
    for path in paths(disk, _JOURNAL):
        if path.endswith(_JOURNAL):
            journal = decode_journal(disk.contents()[path])
            decided.update(record.number for record in journal.publishing)
            decided.update(record.number for record in journal.dropped)
    return max(_numbers(disk)) not in decided


def _find(fits: Callable[[Moment], bool], name: str, seed: int) -> tuple[World, Moment]:
    """The last such moment of the first run that has one."""
    profile = next(profile for profile in PROFILES if profile.transacts)
    for run in range(seed, seed + _TRIES):
        world = World(run, profile).start()
        world.run()
        found = [moment for moment in world.moments if fits(moment)]
        if found:
            return world, found[-1]
    raise AssertionError(f"no run from seed {seed} on leads to: {name}")


def _numbers(disk: SimDisk) -> list[int]:
    return [int(path.rpartition("/")[2].partition(".")[0]) for path in paths(disk, ".prepared")]


def _parts(disk: SimDisk) -> list[int]:
    """The numbers of the stages that have a file, prepared or not."""
    return [int(path.rpartition("/")[2].partition(".")[0]) for path in paths(disk, ".stage")]


def _given_up_judge(oracle: Oracle, lost: list[int]) -> Judge:
    """Everything that can be read is what was pushed; of the stages in `lost` their publisher learns that they are."""

    def judge(disk: SimDisk) -> None:
        disk.capacity_bytes = None
        engine, monitor = open_and_settle(disk, oracle)
        oracle.check_order(oracle.survey(monitor, engine))
        there = {stage.number for stage in engine.stages}
        for number in lost:
            assert number not in there, f"stage {number} is damaged and waits to be published"
            try:
                engine.stages.publish("txn-0", engine.incarnation, [number])
            except TransactionLost:
                continue
            raise AssertionError(f"stage {number} is damaged, and its publisher is told that all is well")
        push_plain(engine, 0)

    return judge


def _topics_scene(name: str, seed: int) -> Scene:
    """The list of topics is written anew: afterwards it is the one or the other."""
    disk = SimDisk()
    for version in (1, 2):
        write_catalogue(disk, Catalogue(version=version))

    def judge(left: SimDisk) -> None:
        found = read_catalogue(left)
        assert found is not None
        assert found.version in (2, 3)

    return Scene(name, disk, judge, lambda disk: write_catalogue(disk, Catalogue(version=3)))


SCENES: dict[str, Callable[[str, int], Scene]] = {
    **rust_scenes.SCENES,
    **scenes.SCENES,
    **worker_scenes.SCENES,
    **other_writer_scenes.SCENES,
    **other_hand_scenes.SCENES,
    **cold_scenes.SCENES,
    "list of topics": _topics_scene,
    **dict.fromkeys(_CUT_OFF, _cut_off_scene),
    **dict.fromkeys(_DAMAGED, _damaged_scene),
    _LOG_MISSING: _log_missing_scene,
}
"""Makers of the scenes, by name; each takes the name and a seed."""


def make_scene(name: str, seed: int = 0) -> Scene:
    return SCENES[name](name, seed)
