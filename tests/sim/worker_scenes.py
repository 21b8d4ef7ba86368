"""What a worker does beside one engine's bundles and progress: decisions, dead letters, stages and keys from their first call on, and what
it asks of a core that is no more. Every call of it is cut off and made to fail, as small as it can be; runs of `world` do the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

import msgspec

from quiver_actors.base.core_dirs import RETIRED_NAME
from quiver_actors.base.model import DEAD_LETTER_SUFFIX, ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import Terms
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import EngineFailed, QuiverError, TransactionAborted, TransactionLost, UnknownTransaction
from quiver_actors.node.worker.adoption import bring_back, retire
from quiver_actors.node.worker.dead_letters import DeadLetters
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.threads import Finished, Job
from quiver_actors.store.disk.exclusive import temporary_name
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.files.core_file import CoreFile, encode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.staged.keys import with_key
from quiver_actors.store.staged.records import DroppedRecord, JournalRecord, StageOrder, encode_journal
from quiver_actors.store.staged.retired import check_published
from quiver_actors.store.subscriber.dead_letters import origin_of, restored
from quiver_actors.store.subscriber.progress import progress_file_name
from quiver_actors.transactions.local_files import LocalFiles
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.bundles import Producer, Slots, same_slots, tiny
from tests.sim.damages import flip, put_file, rewrite
from tests.sim.keyed import lay_out_keyed
from tests.sim.oracle import DIRECTORY, ManualClock, push_plain, settle
from tests.sim.profiles import PROFILES
from tests.sim.scenes import Scene, open_and_settle
from tests.sim.scenes import _doubt as doubt
from tests.sim.world import World

ORACLE = World(0, PROFILES[0]).oracle
TOPIC = ORACLE.settings.name
DEAD = TOPIC + DEAD_LETTER_SUFFIX


def _stored(disk: Disk, engine: Engine, topic: str = TOPIC) -> list[Slots]:
    """All bundles, in order."""
    found: list[Slots] = []
    for info in engine.segments():
        file = disk.open_read(f"data/{topic}/core_0/segments/{info.segment_seq:016}.qseg")
        reader = SegmentReader(file.read(file.size(), 0))
        file.close()
        found += [reader.bundle(index) for index in range(reader.bundle_count)]
    return found


def _numbers(disk: Disk, engine: Engine) -> list[int]:
    """What the bundles of a finished engine are called by `bundles.tiny`."""
    engine.seal_now()
    settle(engine)
    return [slots[0].column("number")[0].as_py() for slots in _stored(disk, engine)]


# --- decisions ---------------------------------------------------------------------------------------------------------------

_DECISIONS = "quiver.decisions"
_LEFT_OVER = f"{_DECISIONS}/" + temporary_name("old.0.json", f"{0:08x}-{0:016x}")
_FIRST, _RIVAL = b'{"outcome": "commit"}', b'{"outcome": "abort"}'


def _decision_scene(name: str, seed: int) -> Scene:
    """One decision is made, asked for and contested, another one is forgotten: there is all of it or nothing, and never another."""

    def work(disk: Disk) -> None:
        files, rival = LocalFiles(_DECISIONS, disk, "one"), LocalFiles(_DECISIONS, disk, "two")
        files.create("t.0.json", _FIRST)
        rival.create("t.0.json", _RIVAL)
        assert files.read("t.0.json") == _FIRST
        files.create("u.0.json", _FIRST)
        files.remove("u.0.json")

    def judge(left: SimDisk) -> None:
        files, rival = LocalFiles(_DECISIONS, left, "three"), LocalFiles(_DECISIONS, OrderMonitor(left), "four")
        # A failed first try lets the rival decide.
        decided = [files.read(f"{txn}.0.json") for txn in "tu"]
        assert decided[0] in (None, _FIRST, _RIVAL)
        assert decided[1] in (None, _FIRST)
        rival.create("t.0.json", _RIVAL)
        assert files.read("t.0.json") == (decided[0] or _RIVAL)
        assert LocalFiles(_DECISIONS, left.crash(CrashMode.DROP)).read("t.0.json") == (decided[0] or _RIVAL)
        assert not left.exists(_LEFT_OVER)

    disk = SimDisk()
    put_file(disk, _LEFT_OVER, b"of a process that was killed")
    return Scene(name, disk, judge, work)


# --- dead letters ------------------------------------------------------------------------------------------------------------

_TERMS = Terms(max_deliveries=1)
_READER, _LETTERS = "ann", 3


class _Host:
    """The other topic of the same core."""

    is_given_up = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def touch(self) -> None:
        """It is looked at anyway."""


def _at_once(job: Job, finished: Finished) -> None:
    job.run()
    finished()


def _open(disk: Disk, topic: str, clock: ManualClock) -> Engine:
    engine = Engine.open(disk, f"data/{topic}/core_0", msgspec.structs.replace(ORACLE.settings, name=topic), 0, clock)
    settle(engine)
    return engine


def _nobody_waits(_: str) -> None:
    pass


def _bury_all(disk: Disk) -> tuple[Engine, Engine]:
    """Everything that the reader is owed comes back once, which is too often."""
    monitor, clock = OrderMonitor(disk), ManualClock()
    engine, dead = _open(monitor, TOPIC, clock), _open(monitor, DEAD, clock)
    engine.registrations.set_terms(
        _READER, lease_ns=0, max_deliveries=_TERMS.max_deliveries, exhausted=_TERMS.exhausted
    )
    for segment_seq, indexes, token, *_ in engine.claims.claim(_READER, "owner", _LETTERS):
        engine.claims.resolve(_READER, "owner", segment_seq, token, "defer", indexes, 0)
    letters = DeadLetters(
        engine, {_READER: _TERMS}, {}, {DEAD: _Host(dead)}.get, _at_once, _at_once, Journal(0), _nobody_waits
    )
    for _ in range(4):
        letters.step(clock.now_ns)
        dead.write()
        clock.now_ns += SECOND_NS
        settle(dead)
        settle(engine)
    return engine, dead


def _dead_letter_scene(name: str, seed: int) -> Scene:
    """A bundle that nobody takes goes to another topic: it is here, or there, or for a while in both places, and never in none."""
    disk, clock = SimDisk(shows_descriptors=True), ManualClock()
    engine = _open(disk, TOPIC, clock)
    engine.registrations.register(_READER, "earliest")
    pushed = [push_plain(engine, number)[2] for number in range(_LETTERS)]
    engine.seal_now()
    clock.now_ns += SECOND_NS
    settle(engine)
    _open(disk, DEAD, clock)

    def judge(left: SimDisk) -> None:
        left.capacity_bytes = None
        engine, dead = _bury_all(left)
        assert not engine.claims.claim(_READER, "owner", _LETTERS), "a bundle that was delivered too often comes again"
        assert engine.claims.exhausted(_READER) is None
        dead.seal_now()
        settle(dead)
        buried = set()
        for letter in _stored(left, dead, DEAD):
            origin = origin_of(letter)
            assert origin is not None
            assert same_slots(restored(letter), pushed[origin.bundle_index])
            buried.add(origin.bundle_index)
        assert buried == set(range(_LETTERS)), f"of {_LETTERS} bundles only {buried} have a letter"

    return Scene(name, disk.crash(CrashMode.DROP), judge, _bury_all)


# --- open logs ---------------------------------------------------------------------------------------------------------------


def _take_live(disk: Disk) -> None:
    """A consumer takes bundles of a log, cannot read one of them, and acknowledges the others."""
    engine = _open(disk, TOPIC, ManualClock())
    with contextlib.suppress(QuiverError):
        for number in range(_LETTERS):
            push_plain(engine, number)
        settle(engine)
        for segment_seq, indexes, token, *_ in engine.claims.claim(_READER, "owner", _LETTERS):
            if engine.readable_end.shown_count(segment_seq):
                os.close(engine.readable_end.open(segment_seq)[0])
            engine.cannot_read(_READER, "owner", segment_seq, token, indexes[-1:], 0)
            engine.claims.resolve(_READER, "owner", segment_seq, token, "ack", indexes[:-1], 0)
        engine.progress.flush()
        settle(engine)


def _open_log_scene(name: str, seed: int) -> Scene:
    """Nothing of a log that somebody was shown is lost, and nobody is told that it is."""
    disk = SimDisk(shows_descriptors=True)
    engine = _open(disk, TOPIC, ManualClock())
    engine.registrations.register(_READER, "earliest")
    engine.progress.flush()
    settle(engine)

    def judge(left: SimDisk) -> None:
        left.capacity_bytes = None
        engine, monitor = open_and_settle(left, ORACLE)
        stored = _numbers(monitor, engine)
        assert stored == list(range(len(stored)))
        owed = engine.owed.pending(_READER).in_range
        assert owed >= min(1, len(stored)), "the last one was never acknowledged"
        assert engine.claims.take_gap(_READER, "owner", in_order=False) is None

    return Scene(name, disk.crash(CrashMode.DROP), judge, _take_live)


# --- transactions ------------------------------------------------------------------------------------------------------------


def _stage_scene(name: str, seed: int) -> Scene:
    """A transaction from its begin to its end: what of it can be seen is all of it."""

    def judge(left: SimDisk) -> None:
        left.capacity_bytes = None
        engine, monitor = open_and_settle(left, ORACLE)
        prepared = [stage.number for stage in engine.stages]
        if prepared:
            engine.stages.publish("t", engine.incarnation, prepared)
            settle(engine)
        assert _numbers(monitor, engine) in ([[0, 1]] if prepared else [[], [0, 1]])

    return Scene(name, SimDisk(), judge, _transact)


def _transact(disk: Disk) -> None:
    engine, _ = open_and_settle(disk, ORACLE)
    stages, owner = engine.stages, object()
    memory, push, schemas = Producer(TOPIC).lay_out([tiny(0), tiny(1)])
    with contextlib.suppress(EngineFailed, TransactionAborted, TransactionLost, UnknownTransaction):
        number = stages.begin(StageOrder("t", 0, 0, 0, "", SECOND_NS), owner)
        stage = stages.get(number, owner)
        for _ in range(3):
            if stages.can_stage(stage, len(memory)):
                break
            settle(engine)
        else:
            return
        stages.stage(stages.get(number, owner), memory, push, schemas)
        stages.write(stage)
        stages.prepare(stages.get(number, owner))
        settle(engine)
        stages.publish("t", engine.incarnation, [number])
        settle(engine)


def _retired_scene(name: str, seed: int) -> Scene:
    """A core that the node does not have any more still tells what it has published."""
    disk, paths, incarnation = SimDisk(), EnginePaths(f"{TOPIC}/{RETIRED_NAME}/core_0"), bytes(range(16))
    put_file(disk, paths.core, encode_core(CoreFile(incarnation, 0, 0, 0, clean_shutdown=True)))
    dropped = DroppedRecord(2, "t", 0, "aborted", 0)
    put_file(disk, paths.transactions, encode_journal(JournalRecord(3, dropped=[dropped])))

    def work(disk: Disk) -> None:
        check_published(disk, TOPIC, 0, incarnation.hex(), [1])

    def judge(left: SimDisk) -> None:
        work(left)
        with contextlib.suppress(TransactionLost):
            check_published(left, TOPIC, 0, incarnation.hex(), [2])
            raise AssertionError("a stage that was dropped counts as published")

    return Scene(name, disk, judge, work)


def _adoption_scene(name: str, seed: int) -> Scene:
    """A core's directory is moved aside and taken up again: it is in one of the two places, whole."""
    disk, parent = SimDisk(), DIRECTORY.rpartition("/")[0]
    _push_keyed(_open(disk, TOPIC, ManualClock()), range(2))

    def work(disk: Disk) -> None:
        retire(disk, parent, 0)
        bring_back(disk, parent, 0)

    def judge(left: SimDisk) -> None:
        bring_back(left, parent, 0)
        engine, monitor = open_and_settle(left, ORACLE)
        assert _numbers(monitor, engine) == [0, 1]

    return Scene(name, disk.crash(CrashMode.DROP), judge, work)


def _new_core_scene(name: str, seed: int) -> Scene:
    """A core that stores nothing yet: whoever is known on another one is known on it before it takes a bundle."""
    disk, other = SimDisk(), f"data/{TOPIC}/core_1"
    for subscriber in (_READER, "ben"):
        put_file(disk, f"{other}/{progress_file_name(subscriber)}", b"of the other core, which alone reads it")

    def work(disk: Disk) -> None:
        engine = _open(disk, TOPIC, ManualClock())
        with contextlib.suppress(QuiverError):
            push_plain(engine, 0)
            settle(engine)

    def judge(left: SimDisk) -> None:
        engine, _ = open_and_settle(left, ORACLE)
        assert engine.registrations.names() == [_READER, "ben"]
        stored = sum(info.bundle_count for info in engine.segments())
        assert all(engine.owed.pending(subscriber).in_range == stored for subscriber in engine.registrations.names())

    return Scene(name, disk.crash(CrashMode.DROP), judge, work)


# --- keys --------------------------------------------------------------------------------------------------------------------

_KEYED, _PRODUCER = 3, "paula"


def _sealed(disk: SimDisk, engine: Engine) -> None:
    engine.seal_now()
    settle(engine)
    rewrite("quiver.producers", flip(30))(disk)


_KEYS: dict[str, Callable[[SimDisk, Engine], None]] = {
    "keys": lambda disk, engine: doubt(disk),
    "keys, log header flipped": lambda disk, engine: rewrite("/quiver.wal", flip(75))(disk),
    "keys, their file flipped": _sealed,
}


def _keyed_scene(name: str, seed: int) -> Scene:
    """A producer goes on where its numbers are in a log only that has to be copied to be trusted, or has no header that can be read; and
    where they have to be found in segments."""
    disk = SimDisk()
    engine, _ = open_and_settle(disk, ORACLE)
    _push_keyed(engine, range(_KEYED))

    def work(disk: Disk) -> None:
        engine, _ = open_and_settle(disk, ORACLE)
        _push_keyed(engine, [_KEYED])
        engine.seal_now()
        settle(engine)

    def judge(left: SimDisk) -> None:
        left.capacity_bytes = None
        engine, monitor = open_and_settle(left, ORACLE)
        _push_keyed(engine, range(_KEYED + 1))
        assert _numbers(monitor, engine) == list(range(_KEYED + 1))

    if name == "keys":
        disk = disk.crash(CrashMode.KEEP)
    _KEYS[name](disk, engine)
    return Scene(name, disk.crash(CrashMode.KEEP), judge, work)


def _push_keyed(engine: Engine, numbers: Iterable[int]) -> None:
    producer = Producer(TOPIC)
    for number in numbers:
        slots = tiny(number) | {ENVELOPE_SLOT: with_key(None, _PRODUCER, number)}
        memory, push, schemas = lay_out_keyed(producer, _PRODUCER, number, [slots])
        if not engine.intake.can_stage(len(memory)):
            settle(engine)
        if engine.intake.can_stage(len(memory)):
            engine.intake.stage(memory, push, schemas)
            engine.write()
            settle(engine)


SCENES: dict[str, Callable[[str, int], Scene]] = {
    "decision": _decision_scene,
    "dead letters": _dead_letter_scene,
    "open log": _open_log_scene,
    "transaction": _stage_scene,
    "retired core": _retired_scene,
    "adoption": _adoption_scene,
    "new core": _new_core_scene,
    **dict.fromkeys(_KEYS, _keyed_scene),
}
"""Makers of the scenes, by name; each takes the name and a seed."""
