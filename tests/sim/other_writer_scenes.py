"""Directories that another writer has gone on in: their starts are cut off, and made to fail, at every call."""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.interposed import Call
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from tests.disks.crashes import CrashMode
from tests.disks.faulty import CallSite, call_site
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.damages import put_file
from tests.sim.ledger import Ledger
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, settle
from tests.sim.other_writers import SUBSCRIBER, Alternation, bundle
from tests.sim.recorder import Moment, Recorder
from tests.sim.scenes import Scene, Work
from tests.support.engine_driver import EngineDriver
from tests.support.other_writer import OtherWriter

PATHS = EnginePaths(DIRECTORY)
_TURNS = 7


def _work(history: Alternation) -> Work:
    """A start, the delivery of everything, and the deletion of what everybody has."""
    oracle = Oracle(Ledger(), history.settings)

    def work(disk: Disk) -> None:
        clock = ManualClock()
        engine = oracle.open(OrderMonitor(disk), clock)
        engine.registrations.register(SUBSCRIBER, "earliest")
        settle(engine)
        clock.now_ns += SECOND_NS
        settle(engine)

    return work


def _scene(name: str, history: Alternation, disk: SimDisk) -> Scene:
    return Scene(name, disk, lambda left: _judge(history, left), _work(history))


def _judge(history: Alternation, left: SimDisk) -> None:
    left.capacity_bytes = None
    history.check(left)


def _turns_scene(name: str, seed: int) -> Scene:
    history = Alternation(1_000 * seed + int(name.rpartition(" ")[2])).run(_TURNS)
    return _scene(name, history, history.disk.crash(CrashMode.KEEP))


def _history(pushed: int, *, consumes: bool = False) -> Alternation:
    """Our directory after a kill: with a subscriber, and bundles that are in the open log, or were delivered and deleted."""
    history = Alternation(0)
    driver = EngineDriver(history.disk, history.settings, DIRECTORY)
    driver.engine.registrations.register(SUBSCRIBER, "earliest")
    driver.flush_progress()
    if pushed:
        driver.push(*(bundle(number) for number in range(1, pushed + 1)))
        driver.commit()
    if consumes:
        driver.seal()
        for segment_seq, indexes, *_ in driver.claim(SUBSCRIBER, "x", 100):
            driver.resolve(SUBSCRIBER, "x", segment_seq, "ack", indexes)
        driver.flush_progress()
    else:
        history.promised.update(range(1, pushed + 1))
    history.disk = history.disk.crash(CrashMode.KEEP)
    return history


def _append(history: Alternation, count: int, *, seals: bool = False) -> None:
    other = OtherWriter(history.disk, DIRECTORY)
    for number in range(100, 100 + count):
        other.append(bundle(number))
        history.promised.add(number)
    if seals:
        other.seal()


def _renumbered_scene(name: str, seed: int) -> Scene:
    history = _history(4, consumes=True)
    _append(history, 3, seals=True)
    return _scene(name, history, history.disk)


def _mixed_scene(name: str, seed: int) -> Scene:
    history = _history(4)
    _append(history, 5)
    return _scene(name, history, history.disk)


def _sealed_scene(name: str, seed: int) -> Scene:
    """The other writer has made a segment of our log, and appended to the log."""
    history = _history(4)
    OtherWriter(history.disk, DIRECTORY).seal()
    _append(history, 2)
    return _scene(name, history, history.disk)


def _sealed_twice_scene(name: str, seed: int) -> Scene:
    """Our segment lacks its name; the other writer has made one of the same log."""
    history = _history(4)
    history.disk = _cut_off(history, CallSite("rename", "quiver_actors.store.jobs.sealing", "seal_file"))
    OtherWriter(history.disk, DIRECTORY).seal()
    return _scene(name, history, history.disk)


def _cut_off(history: Alternation, site: CallSite) -> SimDisk:
    """Return the disk of a start that is killed right before its last call at `site`."""
    moments: list[Moment] = []
    disk = history.disk.copy()

    def before(call: Call) -> None:
        moments.append(Moment(disk.copy(), len(moments), call_site(call.kind)))

    _work(history)(Recorder(disk, before))
    return [moment for moment in moments if moment.site == site][-1].disk.crash(CrashMode.KEEP)


def _unfinished_scene(name: str, seed: int) -> Scene:
    """Two new logs were to get their names; one has."""
    history = _history(0)
    other = OtherWriter(history.disk, DIRECTORY)
    for number in (100, 101):
        other.append(bundle(number))
        other.next_sequence += 5
        history.promised.add(number)
    rename = CallSite("rename", "quiver_actors.store.recovery.adoption", "Adoption._put_in_place")
    return _scene(name, history, _cut_off(history, rename))


def _shortened_scene(name: str, seed: int) -> Scene:
    """A log of both was written anew; then a power loss has taken the end of the old one."""
    history = _history(4)
    whole = len(history.disk.contents()[PATHS.active].rstrip(b"\0"))
    _append(history, 5)
    left = _cut_off(history, CallSite("rename", "quiver_actors.store.jobs.sealing", "seal_file"))
    content = left.contents()[PATHS.active][: -(-(whole - 57) // 64) * 64 + 57]
    left.unlink(PATHS.active)
    put_file(left, PATHS.active, content)
    return _scene(name, history, left)


def _damaged_record_scene(name: str, seed: int) -> Scene:
    history = _history(4, consumes=True)
    _append(history, 3, seals=True)
    content = history.disk.contents()[PATHS.foreign]
    history.disk.unlink(PATHS.foreign)
    put_file(history.disk, PATHS.foreign, content[:20] + b"x" + content[21:])
    return _scene(name, history, history.disk)


def _deleted_scene(name: str, seed: int) -> Scene:
    """A segment of another writer is delivered, acknowledged and deleted."""
    history = _history(4, consumes=True)
    _append(history, 3, seals=True)

    def work(disk: Disk) -> None:
        driver = EngineDriver(OrderMonitor(disk), history.settings, DIRECTORY)
        driver.settle()
        for segment_seq, indexes, *_ in driver.claim(SUBSCRIBER, "x", 100):
            driver.resolve(SUBSCRIBER, "x", segment_seq, "ack", indexes)
        driver.flush_progress()

    def judge(left: SimDisk) -> None:
        """All of it is delivered, or none: then it was acknowledged."""
        left.capacity_bytes = None
        driver = EngineDriver(OrderMonitor(left), history.settings, DIRECTORY)
        driver.settle()
        found = driver.claim_numbers(SUBSCRIBER)
        assert found in ([], sorted(history.promised)), found
        assert not driver.told

    return Scene(name, history.disk, judge, work)


SCENES: dict[str, Callable[[str, int], Scene]] = {
    **dict.fromkeys(("writers that took turns 0", "writers that took turns 1"), _turns_scene),
    "segments of another writer under used numbers": _renumbered_scene,
    "log of both writers": _mixed_scene,
    "log of ours that another writer has sealed": _sealed_scene,
    "seal that lacks its name beside that of another writer": _sealed_twice_scene,
    "adoption that lacks names": _unfinished_scene,
    "log of both writers that was written anew and has lost its end": _shortened_scene,
    "record of other writers damaged": _damaged_record_scene,
    "segment of another writer that is deleted": _deleted_scene,
}
"""Makers of the scenes, by name; each takes the name and a seed."""
