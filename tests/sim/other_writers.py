"""Our engine and another writer of version 1 take turns in one directory, and either may be cut off at any call.

The rule: what either has synced is delivered to a subscriber that was there from the beginning, at least once, until it has acknowledged
it; but for what the other writer removes itself before it has put it anywhere else, which no start of ours can see.

| turn | what may happen in it |
|---|---|
| ours | a start, pushes, seals, rotations, deliveries, acknowledgements, deletions; ended by a clean stop, a kill or a power loss |
| theirs | a start with its replay, appends with and without a sync, segments, rotations; ended in the same ways |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.oracle import DIRECTORY
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.support.other_writer import OtherWriter, Refused, bundle_of, entries_of, log_header

SUBSCRIBER = "ann"
_CALLS_MAX = 120
"""A turn that is cut off is cut off within so many changes of the disk."""
_MODES = (CrashMode.KEEP, CrashMode.KEEP, *CrashMode)


def bundle(number: int) -> dict[int, pa.RecordBatch]:
    """Make a bundle of one to three slots, some with a dictionary; each number occurs once."""
    slots = {slot: numbered_batch(number, rows=1 + number % 7) for slot in range(1 + number % 3)}
    if number % 4 == 0:
        words = pa.array([f"word {number % 5}", "other"]).dictionary_encode()
        slots[9] = pa.record_batch({"number": pa.array([number, number]), "word": words})
    return slots


def number_of(slots: dict[int, pa.RecordBatch]) -> int:
    return int(slots[0].column(0)[0].as_py())


@dataclass
class Alternation:
    """One directory and its history, by seed.

    Attributes:
        promised: what a writer has synced, and the subscriber has not acknowledged.
        turns: what has happened, for whoever looks for the cause of a failure.
        removed_by_them: how much the other writer has removed without having sealed it.
    """

    seed: int
    disk: SimDisk = field(default_factory=SimDisk)
    promised: set[int] = field(default_factory=set)
    turns: list[str] = field(default_factory=list)
    removed_by_them: int = 0

    def __post_init__(self) -> None:
        self.random = Random(f"other writers {self.seed}")
        self.settings = topic_settings(segment_target_size_bytes=self.random.choice((2_000, 20_000, 1 << 20)))
        self._number = 0
        self._their_cursor = 0
        """Where the other writer has put the cursor last. Its own replay passes over what it logs before that: a power loss takes entries
        that the cursor is past already, and others come in their places."""

    def run(self, turns: int) -> Alternation:
        """Take so many turns; the last one is theirs. Returns itself."""
        for turn in range(turns):
            if turn == 0 or (turn < turns - 1 and self.random.random() < 0.5):
                self._cut_off(self._our_turn)
            else:
                self._their_whole_turn()
        return self

    def check(self, disk: SimDisk) -> None:
        """A start delivers everything that is promised."""
        driver = EngineDriver(disk, self.settings, DIRECTORY)
        driver.engine.registrations.register(SUBSCRIBER, "earliest")
        missing = self.promised - set(self._delivered(driver))
        assert not missing, f"seed {self.seed}: {sorted(missing)} were synced and are not delivered, after {self.turns}"

    # --- ours ---------------------------------------------------------------------------------------------------------------

    def _our_turn(self, disk: Disk) -> None:
        driver = EngineDriver(OrderMonitor(disk), self.settings, DIRECTORY)
        driver.engine.registrations.register(SUBSCRIBER, "earliest")
        delivered = set(self._delivered(driver))
        assert self.promised <= delivered, f"seed {self.seed}: {sorted(self.promised - delivered)}, after {self.turns}"
        for _ in range(self.random.randrange(6)):
            self.random.choice((self._push, self._push, self._acknowledge, self._seal))(driver)
        if self.random.random() < 0.4:
            driver.settle()
            driver.drain_and_close()
            self.turns.append("clean stop")

    def _delivered(self, driver: EngineDriver) -> list[int]:
        driver.settle()
        found = [number_of(bundle) for bundle in self._claimed(driver)]
        driver.engine.claims.release("look")
        return found

    def _claimed(self, driver: EngineDriver) -> list[dict[int, pa.RecordBatch]]:
        found = []
        while (granted := driver.claim(SUBSCRIBER, "look", 1_000)) or driver.take_gaps(SUBSCRIBER, "look"):
            for segment_seq, indexes, *_ in granted:
                reader = driver.read_claimed(segment_seq)
                found += [reader.bundle(index) for index in indexes]
        return found

    def _push(self, driver: EngineDriver) -> None:
        numbers = [self._next() for _ in range(self.random.choice((1, 2, 6)))]
        runs = driver.push(*(bundle(number) for number in numbers))
        if self.random.random() < 0.3:
            return
        driver.commit()
        if driver.engine.group_commit.sequence_durable > runs[-1].sequence:
            self.promised.update(numbers)
        self.turns.append(f"push {numbers[0]}..{numbers[-1]}")
        if self.random.random() < 0.5:
            driver.settle()

    def _acknowledge(self, driver: EngineDriver) -> None:
        driver.settle()
        for segment_seq, indexes, *_ in driver.claim(SUBSCRIBER, "x", self.random.choice((1, 5, 100))):
            reader = driver.read_claimed(segment_seq)
            self.promised -= {number_of(reader.bundle(index)) for index in indexes}
            driver.resolve(SUBSCRIBER, "x", segment_seq, "ack", indexes)
        driver.engine.claims.release("x")
        driver.flush_progress()
        self.turns.append("acknowledge")

    def _seal(self, driver: EngineDriver) -> None:
        driver.engine.seal_now()
        driver.commit()
        if self.random.random() < 0.6:
            driver.settle()
        self.turns.append("seal")

    # --- theirs --------------------------------------------------------------------------------------------------------------

    def _their_whole_turn(self) -> None:
        before = numbers_on(self.disk)
        self._cut_off(self._their_turn)
        gone = before - numbers_on(self.disk)
        self.removed_by_them += len(gone & self.promised)
        self.promised -= gone

    def _their_turn(self, disk: Disk) -> None:
        self.turns.append("they start")
        other = OtherWriter(disk, DIRECTORY)
        unsynced: list[int] = []
        for _ in range(self.random.randrange(8)):
            step = self.random.choice(("append", "append", "append", "seal", "rotate"))
            if step == "append":
                number, syncs = self._next(), self.random.random() < 0.8
                entry = other.append(bundle(number), sync=syncs)
                if entry.position_end > self._their_cursor:
                    unsynced.append(number)
                self.turns.append(f"they append {number}")
                if not syncs:
                    continue
            elif step == "seal":
                self._their_cursor = max([self._their_cursor, *(each.position_end for each in other.open_bundles)])
                self.turns.append(f"they seal {other.seal()}")
                continue
            else:
                other.rotate()
                self.turns.append("they rotate")
            self._promise(unsynced)
            unsynced.clear()

    def _promise(self, numbers: Collection[int]) -> None:
        """What they have synced, but not what is in a log of ours whose name is not durable: they do not sync names."""
        self.promised |= set(numbers) & numbers_on(self.disk.crash(CrashMode.DROP))

    # --- both ------------------------------------------------------------------------------------------------------------------

    def _cut_off(self, turn: Callable[[Disk], None]) -> None:
        """Let a turn go on up to some call, then take the process or the power away."""
        faulty = FaultyDisk(self.disk)
        if self.random.random() < 0.6:
            faulty.crash_at(self.random.randrange(1, _CALLS_MAX))
        with contextlib.suppress(SimulatedCrash, Refused):
            turn(faulty)
        mode = self.random.choice(_MODES)
        self.disk = self.disk.crash(mode, self.random.randrange(1 << 30))
        self.turns.append(f"then {mode.name}")

    def _next(self) -> int:
        self._number += 1
        return self._number


def numbers_on(disk: SimDisk) -> set[int]:
    """Return the numbers of all bundles in logs and segments that can be read."""
    found: set[int] = set()
    for path, data in disk.contents().items():
        if path.endswith(".qseg"):
            with contextlib.suppress(Exception):
                reader = SegmentReader(data)
                found |= {number_of(slots) for index in range(reader.bundle_count) if (slots := reader.bundle(index))}
        elif "/wal/quiver.wal" in path and not path.endswith((".tmp", ".cursor")):
            with contextlib.suppress(Refused):
                entries, _ = entries_of(data, log_header(data)[0])
                found |= {number_of(bundle_of(data[start + 4 : end - 4])) for start, end in entries}
    return found
