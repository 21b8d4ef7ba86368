"""Scenes in which something touches the files of a running engine: a segment is deleted, damaged further while it is rescued, kept by a
guest who has it open, or holds a bundle that another writer made and Arrow cannot decode. Or guests have had the logs since before a
start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quiver_actors.store.disk.interposed import Call
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.disk_account import LIST_INTERVAL_NS
from quiver_actors.store.engine.held_files import LOOK_INTERVAL_NS
from quiver_actors.store.jobs.job import Job
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.damages import flip, paths, rewrite
from tests.sim.ledger import BundleId
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, settle
from tests.sim.recorder import Recorder
from tests.sim.scenes import (
    Judge,
    Scene,
    Work,
    _announced_judge,
    _compact,
    _damaged_world,
    _interrupted_scene,
    _world_to_compact,
    open_and_settle,
)
from tests.sim.world import World
from tests.support.engine_driver import drop_segment
from tests.support.undecodable import with_undecodable_bundle


def _deleted_scene(name: str, seed: int) -> Scene:
    """Somebody deletes the first segment of a running engine; the next listing of the directory misses it."""
    world = _damaged_world(seed)
    left = world.disk.crash(CrashMode.DROP)
    return Scene(name, left, _announced_judge(world, -1), lambda disk: _lose_a_segment(disk, world.oracle))


def _lose_a_segment(disk: Disk, oracle: Oracle) -> None:
    monitor, clock = OrderMonitor(disk), ManualClock()
    engine = oracle.open(monitor, clock)
    settle(engine)
    below = _innermost(disk)
    below.unlink(paths(below, ".qseg")[0])
    clock.now_ns += LIST_INTERVAL_NS
    settle(engine)


def _kept_scene(name: str, seed: int) -> Scene:
    """The engine deletes a segment that a guest has open, and lets it go when the guest has closed it."""
    world = _damaged_world(seed)
    left = world.disk.crash(CrashMode.DROP)
    return Scene(name, left, _announced_judge(world, -1), lambda disk: _delete_what_a_guest_has(disk, world.oracle))


def _delete_what_a_guest_has(disk: Disk, oracle: Oracle) -> None:
    monitor, clock = OrderMonitor(disk), ManualClock()
    # As by a worker that is started again: the directory is one that the node has had open.
    engine = Engine.open(monitor, DIRECTORY, oracle.settings, 0, clock, oracle.homes, was_open=True)
    settle(engine)
    below = _innermost(disk)
    below.shows_descriptors = True  # else nobody can have a file
    guests = below.guests_of(paths(below, ".qseg")[0])
    guests.add("guest")
    drop_segment(engine, engine.segments()[0].segment_seq, "evicted")
    _delete_what_is_due(engine)
    guests.clear()
    clock.now_ns += LOOK_INTERVAL_NS
    _delete_what_is_due(engine)


def _kept_logs_scene(name: str, seed: int) -> Scene:
    """A start replaces and deletes logs that guests have had open since the former process, and lets them go with their guests."""
    scene = _interrupted_scene("log with entries, that only memory has", seed)
    return replace(scene, name=name, work=lambda disk: _start_while_guests_have_the_logs(disk, scene.work))


def _start_while_guests_have_the_logs(disk: Disk, start: Work) -> None:
    below = _innermost(disk)
    below.shows_descriptors = True  # else nobody can have a file
    guests = [below.guests_of(path) for path in paths(below, ".wal")]
    for each in guests:
        each.add("guest")
    start(disk)
    for each in guests:
        each.clear()


def _delete_what_is_due(engine: Engine) -> None:
    """Run all background jobs, also those that delete, which `settle` puts off. One that fails is not tried again."""
    failed: set[type[Job]] = set()
    while (job := engine.next_background()) is not None and type(job) not in failed:
        job.run()
        if job.error is not None:
            failed.add(type(job))
        job.took_ns = 0  # time is the clock's alone
        engine.finish(job)


def _damaged_again_scene(name: str, seed: int) -> Scene:
    """A compacted segment is damaged; another of its bundles is damaged between the proof of what is left and the copy of it."""
    world = _world_to_compact(seed)
    left = world.disk.crash(CrashMode.DROP)
    _compact(left, world.oracle)
    left = left.crash(CrashMode.DROP)
    rewrite(".qseg", lambda content: flip(len(content) // 3)(content))(left)
    return Scene(name, left, _announced_judge(world, -1), lambda disk: _damage_while_copied(disk, world.oracle))


def _entry_damaged_again_scene(name: str, seed: int) -> Scene:
    """The same of a segment that was sealed in place: another entry is damaged between its proof and its copy."""
    world = _damaged_world(seed)
    left = world.disk.crash(CrashMode.DROP)
    rewrite(".qseg", flip(300))(left)
    return Scene(name, left, _announced_judge(world, -1), lambda disk: _damage_while_copied(disk, world.oracle))


def _damage_while_copied(disk: Disk, oracle: Oracle) -> None:
    below, is_done = _innermost(disk), False

    def before(call: Call) -> None:
        nonlocal is_done
        if not is_done and call.kind == "write" and "/segments/" in call.path:
            path = paths(below, ".qseg")[0]
            below.flip_bit(path, len(below.contents()[path]) // 4, 3)
            is_done = True

    _watch_below(disk, before)
    open_and_settle(disk, oracle)


def _watch_below(disk: Any, before: Callable[[Call], None]) -> None:
    """Call `before` ahead of each change, under all that watches the disk already: what counts calls sees the engine as the caller."""
    while not isinstance(disk.inner, SimDisk):
        disk = disk.inner
    disk.inner = Recorder(disk.inner, before)


def _undecodable_scene(name: str, seed: int) -> Scene:
    """A consumer reports the first bundle of a whole segment: Arrow cannot decode it, and the file is kept in quarantine as well."""
    world = _damaged_world(seed)
    left = world.disk.crash(CrashMode.DROP)
    rewrite(".qseg", lambda content: with_undecodable_bundle(content, 0))(left)
    subscribers = [each.subscriber for each in world.ledger.subscriptions]
    return Scene(name, left, _claimable_judge(world), lambda disk: _report_unreadable(disk, world.oracle, subscribers))


def _claimable_judge(world: World) -> Judge:
    """Each promised bundle that a subscriber has not resolved can be claimed by it, or it is told that it will not be. Nothing is read."""
    promised = list(world.ledger.promised(world.calls, is_kill=False))

    def judge(disk: SimDisk) -> None:
        engine, _ = open_and_settle(disk, world.oracle)
        for subscription in world.ledger.subscriptions:
            owed = {bundle.id for bundle in promised if subscription.owes(bundle)} - set(subscription.resolved)
            silent = owed - _all_that_comes(engine, subscription.subscriber)
            assert not silent, f"{subscription.subscriber} does not get {silent} and is not told"

    return judge


def _all_that_comes(engine: Engine, subscriber: str) -> set[BundleId]:
    found: set[BundleId] = set()
    while True:
        claimed = {
            (grant.segment_seq, index)
            for grant in engine.claims.claim(subscriber, "judge", 100)
            for index in grant.indexes
        }
        notice = engine.claims.take_gap(subscriber, "judge")
        if not claimed and notice is None:
            return found
        found |= claimed
        if notice is not None:
            first = notice.bundle_index_first
            found |= {(notice.segment_seq, first + index) for index in range(notice.bundle_count)}
            engine.claims.ack_gap(subscriber, notice.notice)


def _report_unreadable(disk: Disk, oracle: Oracle, subscribers: Sequence[str]) -> None:
    engine, _ = open_and_settle(disk, oracle)
    for subscriber in subscribers:
        for grant in engine.claims.claim(subscriber, "owner", 100, size_limit_bytes=1 << 30):
            engine.cannot_read(subscriber, "owner", grant.segment_seq, grant.token, list(grant.indexes[:1]), 0)
    settle(engine)


def _innermost(disk: Any) -> SimDisk:
    """The simulated disk under all that watches it: another hand is not seen by what stands between."""
    while not isinstance(disk, SimDisk):
        disk = disk.inner
    return disk


SCENES: dict[str, Callable[[str, int], Scene]] = {
    "segment deleted under a running engine": _deleted_scene,
    "segment deleted that a guest has open": _kept_scene,
    "logs kept by guests at a start": _kept_logs_scene,
    "compacted segment damaged while it is copied": _damaged_again_scene,
    "segment sealed in place damaged while it is copied": _entry_damaged_again_scene,
    "bundle that cannot be decoded": _undecodable_scene,
}
