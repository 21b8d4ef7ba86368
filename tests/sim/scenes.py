"""Directories that no run of ours leaves by itself: those of the Rust implementation, and ours after the disk has damaged them.

Each scene is a disk image and a judge, which opens what is left of it and says what must be there. `sweep.sweep_recovery` crashes its
recovery at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tests.golden
from quiver_actors.checksum import crc32
from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import CallSite, call_site
from quiver_actors.disk.monitor import OrderMonitor
from quiver_actors.disk.protocol import Disk
from quiver_actors.disk.simulated import BLOCK_BYTES, SimDisk
from quiver_actors.engine import Engine
from quiver_actors.events import Event, GapFound
from quiver_actors.inspection.repair import repair_engine
from quiver_actors.inspection.source import Tree
from quiver_actors.paths import EnginePaths
from quiver_actors.segment.reader import SegmentReader
from quiver_actors.units import SECOND_NS
from quiver_actors.upkeep import COMPACTION_AGE_NS, compact_segment
from quiver_actors.wal import layout
from quiver_actors.wal.reader import LogReader
from tests.sim.ledger import BundleId
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, push_plain, settle
from tests.sim.world import PROFILES, Recorder, World

GOLDEN = Path(str(tests.golden.__file__)).parent / "data"
ACTIVE = f"{DIRECTORY}/wal/quiver.wal"
FEW_BLOCKS = 8
"""Enough for the small files of a start, not for a log."""
OWED_TO_SUB_A = [1, 4, 5, 6, 7, 8]
_TIME_AND_TYPE_BYTES = 9

Judge = Callable[[SimDisk], None]
Work = Callable[[Disk], object]


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    disk: SimDisk
    judge: Judge
    """Opens what is left, and says what must be there."""
    work: Work
    """What is crashed and made to fail: the opening of the directory, and all that follows by itself."""

    @property
    def after_errors(self) -> CallSite | None:
        """A call that only another one's failure leads to, to be crashed before."""
        return AFTER_ERRORS.get(self.name)


def put_file(disk: SimDisk, path: str, content: bytes) -> None:
    """A durable file."""
    disk.make_directory(path.rpartition("/")[0])
    file = disk.create(path)
    file.write([content], 0)
    file.fsync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0])


def golden_disk(name: str) -> SimDisk:
    """A copy of a directory that the Rust implementation has written."""
    disk = SimDisk()
    for path in sorted((GOLDEN / name).rglob("*")):
        if path.is_file():
            put_file(disk, f"{DIRECTORY}/{path.relative_to(GOLDEN / name)}", path.read_bytes())
    return disk


# --- logs of the Rust implementation ----------------------------------------------------------------------------------------


def _rust_scene(name: str, seed: int) -> Scene:
    oracle = World(0, PROFILES[0]).oracle
    if name == "gaps":
        sequences = [[0, 1], [5, 6], [9, 10], [20]]
        return Scene(
            name, _logs_with_gaps(sequences), lambda disk: judge_gaps(disk, oracle, sequences), opening(oracle)
        )
    return Scene(name, golden_disk(name), lambda disk: judge_golden(disk, oracle), opening(oracle))


def judge_golden(disk: SimDisk, oracle: Oracle) -> None:
    """All nine bundles are there once, and `sub-a` is owed what the README says, in that order."""
    engine, monitor = open_and_settle(disk, oracle)
    assert [number for number, _ in stored_numbers(monitor, engine)] == list(range(9))
    claimed = engine.claim("sub-a", "owner", 100)
    owed = [golden_number(monitor, seq, index) for seq, indexes, *_ in claimed for index in indexes]
    assert owed == OWED_TO_SUB_A
    engine.release("owner")
    (_, sequence, _) = push_plain(engine, 0)
    assert sequence >= 9


def judge_gaps(disk: SimDisk, oracle: Oracle, sequences: Sequence[Sequence[int]]) -> None:
    """Every entry is there once, under its sequence."""
    engine, monitor = open_and_settle(disk, oracle)
    wanted = [sequence for log in sequences for sequence in log]
    assert [sequence for _, sequence in stored_numbers(monitor, engine)] == wanted


def _logs_with_gaps(sequences: Sequence[Sequence[int]]) -> SimDisk:
    """Rotated logs of another writer, numbered from 1; the last one is active. Their sequences have gaps."""
    data = (GOLDEN / "quiver-v1/wal/quiver.wal").read_bytes()
    scan = LogReader(lambda length, offset: data[offset : offset + length], len(data)).scan(38, stride=1)
    entries = [data[span.start : span.end] for span in scan.entries]
    disk, position = SimDisk(), 0
    for number, wanted in enumerate(sequences, 1):
        laid = b"".join(_renumbered(entries[sequence % len(entries)], sequence) for sequence in wanted)
        header = layout.HEADER.pack(layout.WAL_MAGIC, layout.WAL_VERSION, 38, layout.DEFAULT_CFG_HASH, position)
        name = "quiver.wal" if number == len(sequences) else f"quiver.wal.{number}"
        put_file(disk, f"{DIRECTORY}/wal/{name}", header + laid)
        position += len(laid)
    return disk


def _renumbered(entry: bytes, sequence: int) -> bytes:
    body = bytearray(entry[layout.ENTRY_LENGTH_BYTES : -layout.ENTRY_CRC.size])
    body[_TIME_AND_TYPE_BYTES : _TIME_AND_TYPE_BYTES + 8] = sequence.to_bytes(8, "little")
    return entry[: layout.ENTRY_LENGTH_BYTES] + bytes(body) + crc32(body).to_bytes(4, "little")


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


def stored_numbers(disk: OrderMonitor, engine: Engine) -> list[tuple[int, int]]:
    """(number in the README, sequence or -1) of every bundle of every segment, in order."""
    found = []
    for info in engine.segments():
        reader = segment_reader(disk, info.segment_seq)
        for index in range(reader.bundle_count):
            sequence = reader.sequence(index)
            found.append((golden_number(disk, info.segment_seq, index), -1 if sequence is None else sequence))
    return found


def golden_number(disk: OrderMonitor, segment_seq: int, index: int) -> int:
    values = segment_reader(disk, segment_seq).bundle(index)[30].column("value")
    return int(values[0].as_py()) // 1000


def segment_reader(disk: OrderMonitor, segment_seq: int) -> SegmentReader:
    file = disk.open_read(f"{DIRECTORY}/segments/{segment_seq:016}.qseg")
    try:
        return SegmentReader(file.read(file.size(), 0))
    finally:
        file.close()


# --- our own directory, damaged ---------------------------------------------------------------------------------------------


def _damage_scene(name: str, seed: int) -> Scene:
    """A store with sealed segments, an open log, subscribers with progress, after a power loss; then something is damaged."""
    world = _damaged_world(seed)
    left = world.disk.crash(CrashMode.DROP)
    untold = _newest_segment(left) if name in _WITHOUT_A_TRACE else -1
    _DAMAGES[name](left)
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
    world, left, at = _stopped_at(_INTERRUPTIONS[what], seed + list(_INTERRUPTIONS).index(what))
    if crowd:
        _doubt(left)
    if crowd and f", {crowd}" != _DOUBTED:
        _crowd(left, 0 if f", {crowd}" == _FULL else FEW_BLOCKS, keeps_ballast=f", {crowd}" == _FULL)
    return Scene(name, left, _promised_judge(world, at), opening(world.oracle))


def _doubt(disk: SimDisk) -> None:
    """Memory has a byte of each log, one that means nothing, of which the disk has never got the last value: it is written anew."""
    for path in _paths(disk, "/quiver.wal"):
        file = disk.open_write(path)
        if file.size() > _PADDING_AT:
            file.write([b"\1"], _PADDING_AT)
            file.fdatasync()
            file.write([b"\0"], _PADDING_AT)
            file.fail_sync()
        file.close()


def _crowd(disk: SimDisk, blocks: int, *, keeps_ballast: bool) -> None:
    """Leave room for that many blocks."""
    for path in [*_paths(disk, "quiver.ballast")[: not keeps_ballast], *_paths(disk, ".tmp")]:
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
    _COMPACTED[name](left)
    return Scene(name, left, _announced_judge(world, -1), opening(world.oracle))


def _world_to_compact(seed: int) -> World:
    profile = next(profile for profile in PROFILES if profile.ages)
    world = World(seed, profile, keeps_moments=False).start()
    world.run_script("register", *["push"] * 16, "claim", "resolve")
    world.abandon_jobs()
    return world


def _dictionaries_scene(name: str, seed: int) -> Scene:
    """Segments of many dictionaries; then an entry of one is damaged."""
    world = _world_to_compact(seed)
    left = world.disk.crash(CrashMode.DROP)
    _rewrite(".qseg", _flip(300))(left)
    return Scene(name, left, _announced_judge(world, -1), opening(world.oracle))


def _compact(disk: Disk, oracle: Oracle) -> None:
    """What the worker does in the background, and before it what `quiver compact --dry-run` does."""
    monitor, clock = OrderMonitor(disk), ManualClock()
    engine = oracle.open(monitor, clock)
    settle(engine)
    for info in engine.segments():
        compact_segment(monitor, EnginePaths(DIRECTORY), info.segment_seq, dry_run=True)
    clock.now_ns += COMPACTION_AGE_NS
    settle(engine)


def _stopped_at(site: CallSite, seed: int) -> tuple[World, SimDisk, int]:
    """A run whose process was killed right before its last call at that site, and how many calls it had done."""
    world = World(seed, PROFILES[0]).start()
    world.run()
    moment = [moment for moment in world.moments if moment.site == site][-1]
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


def _damaged_world(seed: int) -> World:
    """Everything in it is durable; the open log has several bundles."""
    world = World(seed, PROFILES[0], keeps_moments=False).start()
    world.run_script("register", "push", "push", "push", "claim", "resolve", "push", "push", "claim", "resolve", "push")
    return world


def _newest_segment(disk: SimDisk) -> int:
    return int(_paths(disk, ".qseg")[-1].rpartition("/")[2].partition(".")[0])


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


def _paths(disk: SimDisk, part: str) -> list[str]:
    return [path for path in disk.contents() if part in path]


def _rewrite(part: str, change: Callable[[bytes], bytes], which: int = 0) -> Callable[[SimDisk], None]:
    """A damage: the content of one file becomes what `change` makes of it."""

    def damage(disk: SimDisk) -> None:
        path = _paths(disk, part)[which]
        content = change(disk.contents()[path])
        disk.unlink(path)
        put_file(disk, path, content)

    return damage


def _remove(part: str, which: int = 0) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        path = _paths(disk, part)[which]
        disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])

    return damage


def _add(path: str, content: bytes) -> Callable[[SimDisk], None]:
    return lambda disk: put_file(disk, f"{DIRECTORY}/{path}", content)


def _add_all(*paths: str) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        for path in paths:
            _add(path, b"left over")(disk)

    return damage


def _flip(offset: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        at = offset % len(content)
        return content[:at] + bytes([content[at] ^ 0x40]) + content[at + 1 :]

    return change


def _cut(share: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: round(len(content) * share)]


def _each(*damages: Callable[[SimDisk], None]) -> Callable[[SimDisk], None]:
    def damage(disk: SimDisk) -> None:
        for one in damages:
            one(disk)

    return damage


_ZERO: Callable[[bytes], bytes] = lambda content: bytes(len(content))  # noqa: E731

_INTERRUPTIONS = {
    "log with entries": CallSite("rename", "quiver_actors.jobs", "CommitJob.work"),
    "seal that lacks its name": CallSite("rename", "quiver_actors.sealing", "seal_file"),
    "seal that lacks its sync": CallSite("fsync", "quiver_actors.sealing", "seal_file"),
}
"""What is left, and the call that was next when it was left."""
_DOUBTED, _NO_ROOM, _FULL = (
    ", that only memory has",
    ", without room for a copy",
    ", with no room but its ballast's",
)
_PADDING_AT = 110
"""In the header of a log, behind its CRC."""
_RESCUES = {
    "rescue that lacks its move": CallSite("rename", "quiver_actors.quarantine", "move_to_quarantine"),
    "rescue that lacks its name": CallSite("rename", "quiver_actors.rescue", "_Rescue._swap"),
}

_DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "nothing": lambda disk: None,
    "core missing": _remove("quiver.core"),
    "core flipped": _rewrite("quiver.core", _flip(20)),
    "core cut": _rewrite("quiver.core", _cut(0.5)),
    "core zero": _rewrite("quiver.core", _ZERO),
    "cursor missing": _remove("cursor"),
    "cursor flipped": _rewrite("cursor", _flip(14)),
    "cursor empty": _rewrite("cursor", _cut(0)),
    "progress flipped": _rewrite("quiver.sub.", _flip(16)),
    "progress cut": _rewrite("quiver.sub.", _cut(0.7)),
    "progress empty": _rewrite("quiver.sub.", _cut(0)),
    "log header flipped": _rewrite("/quiver.wal", _flip(75)),
    "log header zero": _rewrite("/quiver.wal", lambda content: bytes(121) + content[121:]),
    "log entry flipped": _rewrite("/quiver.wal", _flip(121 + 40)),
    "log entry length flipped": _rewrite("/quiver.wal", _flip(121)),
    "log entry length huge": _rewrite("/quiver.wal", lambda content: content[:121] + b"\xff" * 4 + content[125:]),
    "segment entry flipped": _rewrite(".qseg", _flip(300), -1),
    "segment header flipped": _rewrite(".qseg", _flip(75), -1),
    "segment manifest flipped": _rewrite(".qseg", _flip(-300), -1),
    "segment trailer flipped": _rewrite(".qseg", _flip(-8), -1),
    "segment footer flipped": _rewrite(".qseg", _flip(-40), -1),
    "segment cut": _rewrite(".qseg", _cut(0.6), -1),
    "segment empty": _rewrite(".qseg", _cut(0), -1),
    "segment zero": _rewrite(".qseg", _ZERO, -1),
    "segment missing": _remove(".qseg", -1),
    "rotated log of nothing": _add("wal/quiver.wal.900", bytes(5000)),
    "rotated log of rubbish": _add("wal/quiver.wal.901", b"rubbish!" * 700),
    "empty rotated log": _add("wal/quiver.wal.902", b""),
    "core, cursor and segment flipped": _each(
        _rewrite("quiver.core", _flip(20)), _rewrite("cursor", _flip(14)), _rewrite(".qseg", _flip(300), -1)
    ),
    "temporaries": _add_all(
        "quiver.core.tmp", "quiver.sub.ann.tmp", "wal/quiver.wal.cursor.tmp", "segments/0000000000000099.qseg.tmp"
    ),
    "strangers": _add_all("notes.txt", "wal/notes.txt", "segments/notes.txt", "quiver.sub."),
}

AFTER_ERRORS = {
    "segment entry flipped": CallSite("unlink", "quiver_actors.rescue", "_Rescue._write_rebuilt"),
    "log entry flipped": CallSite("unlink", "quiver_actors.quarantine", "copy_span"),
    "compaction": CallSite("unlink", "quiver_actors.upkeep", "CompactJob._drop"),
    "publish that lacks segments": CallSite("unlink", "quiver_actors.transactions.recovery", "_Recovery._renew"),
    "transaction": CallSite("unlink", "quiver_actors.transactions.jobs", "StageAllocateJob._create"),
}
"""What is called only after another call has failed: to be crashed there too."""
_COMPACTED: dict[str, Callable[[SimDisk], None]] = {
    "compacted segment batch flipped": _rewrite(".qseg", lambda content: _flip(len(content) // 3)(content)),
    "compacted segment of nothing": _rewrite(".qseg", _ZERO),
}
_REPAIRED = ("core, cursor and segment flipped", "log entry flipped")
_WITHOUT_A_TRACE = frozenset(["segment empty", "segment zero", "segment missing"])

SCENES: dict[str, Callable[[str, int], Scene]] = {
    **dict.fromkeys(("quiver-v1", "quiver-v1-rotated", "gaps"), _rust_scene),
    **dict.fromkeys(_DAMAGES, _damage_scene),
    **dict.fromkeys([name + room for name in _INTERRUPTIONS for room in ("", _DOUBTED, _NO_ROOM)], _interrupted_scene),
    "log with entries" + _FULL: _interrupted_scene,
    **dict.fromkeys([*_RESCUES, "rescue without room"], _rescue_scene),
    "compaction": _compaction_scene,
    **dict.fromkeys([f"repair, {name}" for name in _REPAIRED], _repair_scene),
    **dict.fromkeys(_COMPACTED, _compacted_scene),
    "segment of many dictionaries flipped": _dictionaries_scene,
}
"""What makes the scene of that name, from the name and a seed."""


def make_scene(name: str, seed: int = 0) -> Scene:
    return SCENES[name](name, seed)
