"""Segments that move to a cold disk, go from there, are found damaged or gone, and lists of them that are stale or damaged. Both disks are
directories of one simulated disk, so that a crash hits them at the same call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache

import msgspec

from quiver_actors.base.config import TierSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.engine import Engine, EngineState
from quiver_actors.store.engine.events import ColdDiskFaulted, Event
from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.below import ColdDisksBelow
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.bundles import Producer, tiny
from tests.sim.damages import flip, paths, put_file, rewrite
from tests.sim.oracle import DIRECTORY, ManualClock
from tests.sim.profiles import PROFILES
from tests.sim.scenes import Scene

SEGMENTS = 4
_READER = "ann"
_SETTINGS = msgspec.structs.replace(PROFILES[0].settings, tier=TierSettings(cold_dir="cold", keep_hot_segments=1))
_FILE_BYTES_MAX = 1 << 30
_TURNS_MAX = 5_000


class Store:
    """One engine with both of its disks.

    Attributes:
        events: what it has told.
        told: segments that the reader was told to be lost.
    """

    def __init__(self, disk: Disk, settings: object = _SETTINGS) -> None:
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.told: set[int] = set()
        self._disk = disk
        assert isinstance(settings, type(_SETTINGS))
        self.engine = Engine.open(disk, DIRECTORY, settings, 0, self.clock, cold_disks=ColdDisksBelow(disk))

    def run(self, duration_ns: int = 3 * SECOND_NS) -> None:
        """Let time pass, and do all that becomes due."""
        end_ns = self.clock.now_ns + duration_ns
        for _ in range(_TURNS_MAX):
            self.events += self.engine.tick()
            jobs = (self.engine.next_commit(), self.engine.next_background(), self.engine.storage.next_cold())
            found = [job for job in jobs if job is not None]
            for job in found:
                job.run()
                job.took_ns = 0
                self.events += self.engine.finish(job)
            if found:
                continue
            due_ns = self.engine.next_deadline_ns()
            if due_ns is None or due_ns > end_ns or self.engine.state is EngineState.FAILED:
                return
            self.clock.now_ns = max(due_ns, self.clock.now_ns + 1)
        raise AssertionError("the engine asks for turns without end, and has nothing to do in them")

    def delivered(self) -> list[tuple[int, int, int]]:
        """Segment, index and number of what the reader gets, in order."""
        found: list[tuple[int, int, int]] = []
        owner = object()
        while True:
            granted = self.engine.claims.claim(_READER, owner, 1_000)
            notice = self.engine.claims.take_gap(_READER, owner) if not granted else None
            if notice is not None:
                self.told.add(notice.segment_seq)
            elif not granted:
                return found
            for grant in granted:
                reader = self._read(grant.segment_seq)
                found += [
                    (grant.segment_seq, index, reader.bundle(index)[0].column("number")[0].as_py())
                    for index in grant.indexes
                ]

    def _read(self, segment_seq: int) -> SegmentReader:
        name, directory = f"{segment_seq:016}.qseg", f"{DIRECTORY}/segments"
        if self.engine.storage.is_cold(segment_seq):
            (place,) = [path for path in paths(self._disk_below, name) if path.startswith("cold/")]
            return SegmentReader(read_whole(self._disk, place, _FILE_BYTES_MAX))
        return SegmentReader(read_whole(self._disk, f"{directory}/{name}", _FILE_BYTES_MAX))

    @property
    def _disk_below(self) -> SimDisk:
        assert isinstance(self._disk, SimDisk)
        return self._disk


@cache
def _filled() -> SimDisk:
    """Segments of one bundle each, all hot, and a subscriber that has none of them."""
    disk = SimDisk()
    store = Store(disk, msgspec.structs.replace(_SETTINGS, tier=TierSettings()))
    store.engine.registrations.register(_READER, "earliest")
    producer = Producer(store.engine.topic)
    for number in range(SEGMENTS):
        memory, push, schemas = producer.lay_out([tiny(number)])
        if not store.engine.intake.can_stage(len(memory)):
            store.run(0)
        store.engine.intake.stage(memory, push, schemas)
        store.engine.write()
        store.engine.seal_now()
        store.run(0)
    store.run(SECOND_NS)
    return disk.crash(CrashMode.DROP)


@cache
def _moved() -> SimDisk:
    disk = _filled().copy()
    Store(disk).run()
    return disk.crash(CrashMode.DROP)


def _judge(done: int = 0, may_lose: int = 0) -> Callable[[SimDisk], None]:
    """Every bundle is delivered in order, but for the first ones, with which the subscriber is done, and those that may be told as lost."""

    def judge(left: SimDisk) -> None:
        left.capacity_bytes = None
        monitor = OrderMonitor(left)
        store = Store(monitor)
        store._disk = left
        store.run()
        assert not [event for event in store.events if isinstance(event, ColdDiskFaulted)], "its own directory is taken"
        for segment_seq in range(may_lose):  # a reader could not read them
            store.engine.check_segment(segment_seq)
        store.run()
        found = store.delivered()
        assert found == sorted(found)
        assert all(segment_seq == number and index == 0 for segment_seq, index, number in found)
        there = {segment_seq for segment_seq, _, _ in found}
        owed = set(range(done, SEGMENTS))
        assert owed - there <= store.told, f"{owed - there} are missing, {store.told} were told"
        assert store.told <= set(range(may_lose)), "whole bundles were told to be lost"
        found_cold = [path for path in paths(left, ".qseg") if path.startswith("cold/") and ".stray" not in path]
        cold = {int(path[-21:-5]) for path in found_cold}
        assert cold <= {info.segment_seq for info in store.engine.segments()}, "leftovers on the cold disk"

    return judge


def _work(*steps: Callable[[Store], None]) -> Callable[[Disk], None]:
    def work(disk: Disk) -> None:
        store = Store(disk)
        for step in (*steps, Store.run):
            step(store)

    return work


def _open_and_delete(store: Store) -> None:
    """Files are wanted by readers, then everybody is done with two segments."""
    with contextlib.suppress(Exception):
        store.engine.open_segment(1)
    store.run()
    store.engine.claims.ack_through(_READER, 1, 0)


def _remove(store: Store) -> None:
    removal = store.engine.storage.remove_cold()
    assert removal is not None
    removal.run()


def _suspect(store: Store) -> None:
    store.engine.check_segment(0)


def _moving_scene(name: str, seed: int) -> Scene:
    """All but the newest move."""
    return Scene(name, _filled().copy(), _judge(), _work())


def _deleting_scene(name: str, seed: int) -> Scene:
    """Cold segments are opened, and deleted once everybody is done with them."""
    return Scene(name, _moved().copy(), _judge(done=2), _work(_open_and_delete))


def _damaged_scene(name: str, seed: int) -> Scene:
    """A cold file is damaged, or gone."""
    disk = _moved().copy()
    (path,) = [path for path in paths(disk, "0.qseg") if path.startswith("cold/") and path.endswith(f"{0:016}.qseg")]
    if name == _GONE:
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])
    else:
        put_file(disk, path, flip(150)(read_whole(disk, path, _FILE_BYTES_MAX)))
    return Scene(name, disk, _judge(may_lose=1), _work(_suspect))


def _list_scene(name: str, seed: int) -> Scene:
    """The list of cold segments is damaged, or names a segment that has a hot file, too, while a copy that was cut off is left."""
    disk = _moved().copy()
    if name == _DAMAGED_LIST:
        rewrite(f"{DIRECTORY}/quiver.cold", flip(60))(disk)
        return Scene(name, disk, _judge(), _work())
    (cold,) = [path for path in paths(disk, f"{1:016}.qseg") if path.startswith("cold/")]
    put_file(disk, f"{DIRECTORY}/segments/{1:016}.qseg", read_whole(disk, cold, _FILE_BYTES_MAX))
    put_file(disk, cold.replace(f"{1:016}", f"{9:016}") + ".tmp", b"cut off")
    return Scene(name, disk, _judge(), _work())


def _stray_scene(name: str, seed: int) -> Scene:
    """A segment that nobody knows lies on the cold disk, and another one in the place of a segment: both are kept, and never delivered."""
    disk = _moved().copy()
    first, second = (_cold_path(disk, segment_seq) for segment_seq in (0, 1))
    whole = read_whole(disk, second, _FILE_BYTES_MAX)
    put_file(disk, first, whole)
    put_file(disk, first.replace(f"{0:016}", f"{9:016}"), whole)
    judge = _judge(may_lose=1)

    def judge_strays(left: SimDisk) -> None:
        judge(left)
        strays = {path[-27:-11]: read_whole(left, path, _FILE_BYTES_MAX) for path in paths(left, ".qseg.stray")}
        assert strays == {f"{0:016}": whole, f"{9:016}": whole}

    return Scene(name, disk, judge_strays, _work(_suspect))


def _cold_path(disk: SimDisk, segment_seq: int) -> str:
    (path,) = [path for path in paths(disk, f"{segment_seq:016}.qseg") if path.startswith("cold/")]
    return path


def _former_scene(name: str, seed: int) -> Scene:
    """A program that knew no owners has moved the segments."""
    disk = _moved().copy()
    for path in paths(disk, "quiver.cold-owner"):
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])
    return Scene(name, disk, _judge(done=2), _work(_open_and_delete))


def _topic_scene(name: str, seed: int) -> Scene:
    """A topic is deleted: nothing of it is left on the cold disk, or all that nobody got to."""

    def judge(left: SimDisk) -> None:
        with contextlib.suppress(DiskError):
            _work(_remove)(left)
        assert not [path for path in paths(left, ".qseg") if path.startswith("cold/")]

    def work(disk: Disk) -> None:
        _remove(Store(disk))

    return Scene(name, _moved().copy(), judge, work)


_GONE, _DAMAGED_LIST = "cold segment gone", "list of cold segments flipped"
SCENES: dict[str, Callable[[str, int], Scene]] = {
    "segments move to the cold disk": _moving_scene,
    "cold segments go": _deleting_scene,
    "cold segment flipped": _damaged_scene,
    _GONE: _damaged_scene,
    _DAMAGED_LIST: _list_scene,
    "list of cold segments stale": _list_scene,
    "cold directory without an owner": _former_scene,
    "strays on the cold disk": _stray_scene,
    "topic with cold segments deleted": _topic_scene,
}
"""Makers of the scenes, by name; each takes the name and a seed."""
