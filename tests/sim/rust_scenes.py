"""Directories of the Rust implementation, whose recovery is cut off anywhere: see `scenes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tests.golden
from quiver_actors.base.checksum import crc32
from quiver_actors.store.engine import Engine
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.reader import LogReader
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.damages import put_file
from tests.sim.oracle import DIRECTORY, Oracle, push_plain
from tests.sim.profiles import PROFILES
from tests.sim.scenes import Scene, open_and_settle, opening
from tests.sim.world import World

GOLDEN = Path(str(tests.golden.__file__)).parent / "data"
OWED_TO_SUB_A = [1, 4, 5, 6, 7, 8]
_TIME_AND_TYPE_BYTES = 9


def golden_disk(name: str) -> SimDisk:
    """A copy of a directory that the Rust implementation has written."""
    disk = SimDisk()
    for path in sorted((GOLDEN / name).rglob("*")):
        if path.is_file():
            put_file(disk, f"{DIRECTORY}/{path.relative_to(GOLDEN / name)}", path.read_bytes())
    return disk


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
    claimed = engine.claims.claim("sub-a", "owner", 100)
    owed = [golden_number(monitor, seq, index) for seq, indexes, *_ in claimed for index in indexes]
    assert owed == OWED_TO_SUB_A
    engine.claims.release("owner")
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


SCENES: dict[str, Callable[[str, int], Scene]] = dict.fromkeys(("quiver-v1", "quiver-v1-rotated", "gaps"), _rust_scene)
