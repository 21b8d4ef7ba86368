"""Idempotent producers whose unacknowledged bundles a power loss took from in front of others that it left: the missing ones can be
pushed again under their numbers, and everything is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import ENTRY_ROW, AckRun, KeyedPush
from quiver_actors.errors import ProtocolError, SequenceGap, SequenceTooOld
from quiver_actors.store.staged.keys import (
    PRODUCERS_MAGIC,
    RUNS_PER_PRODUCER,
    KeyRun,
    Windows,
    decode_windows,
    gaps,
    with_key,
)
from quiver_actors.store.staged.records import encode_frame
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import ManualClock, numbered_batch
from tests.support.host_bench import HostBench, clocks_of
from tests.unit.store.staged.test_keys import SETTINGS, KeyedDriver
from tests.unit.store.staged.test_stage_crashes import Recorder

OTHERS = 10_000
"""Number of the bundles of others."""
POWER_LOSSES = [mode for mode in CrashMode if mode is not CrashMode.KEEP]
SCATTERED = [CrashMode.REORDER, CrashMode.SCATTER, CrashMode.ZERO_FILL, CrashMode.GARBLE]


def opened(disk: SimDisk) -> KeyedDriver:
    return KeyedDriver(OrderMonitor(disk), SETTINGS)


def own(driver: KeyedDriver) -> list[int]:
    """The numbers that are stored, without those of others, in the order of delivery."""
    return [number for number in driver.stored() if number != OTHERS]


def holes(numbers: list[int], first: int) -> list[int]:
    """Return the numbers missing in front of the newest."""
    return sorted(set(range(first, max(numbers, default=first))) - set(numbers))


def with_holes(first_acknowledged: int) -> Iterator[tuple[SimDisk, list[int]]]:
    """Disks on which bundles 1 to 6 were pushed, up to that one acknowledged, and what a power loss has left of them, with holes."""
    inner = SimDisk()
    driver = KeyedDriver(inner, SETTINGS)
    driver.push_keyed(OTHERS, producer="other")
    driver.commit()  # the log has its name
    for number in range(1, first_acknowledged + 1):
        driver.push_keyed(number)
        driver.commit()
    for number in range(first_acknowledged + 1, 7):
        driver.push_keyed(number)
    found = 0
    for seed in range(400):
        left = inner.crash(CrashMode.REORDER, seed)
        numbers = own(opened(left.copy()))
        if holes(numbers, 1):
            found += 1
            yield left, numbers
        if found == 8:
            return
    raise AssertionError(f"{found} power losses of 400 have left holes")


# --- one engine ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_acknowledged", [0, 1, 2])
def test_what_is_missing_in_front_of_others_is_stored_when_it_comes_again(first_acknowledged: int) -> None:
    for disk, left in with_holes(first_acknowledged):
        driver = opened(disk)
        driver.restart()  # what is missing is known from the file now
        runs = driver.push_keyed(1, 8)
        pushed = [(number, run.is_duplicate) for number, run in zip(range(1, 9), spread(runs), strict=True)]
        assert pushed == [(number, number in left) for number in range(1, 9)]
        new = [number for number in range(1, 9) if number not in left]
        assert own(driver) == [*left, *new], "in the order in which they came"
        for _ in range(2):
            assert all(run.is_duplicate for run in driver.push_keyed(1, 8))
            driver.restart()


def spread(runs: list[AckRun]) -> list[AckRun]:
    """One bundle each."""
    return [
        AckRun(run.tag, run.segment_seq, run.bundle_index + at, run.sequence + at, 1, run.is_duplicate)
        for run in runs
        for at in range(run.count)
    ]


def test_a_producer_may_go_on_behind_what_is_missing_and_come_back_to_it_one_by_one() -> None:
    for disk, left in with_holes(1):
        driver = opened(disk)
        driver.push_keyed(max(left) + 1)
        with pytest.raises(SequenceGap):
            driver.push_keyed(max(left) + 3)
        with pytest.raises(SequenceTooOld):
            driver.push_keyed(0)
        for number in reversed(holes(left, 1)):
            assert not driver.push_keyed(number)[0].is_duplicate
            assert driver.push_keyed(number)[0].is_duplicate
            driver.settle()
            driver.restart()
        assert sorted(own(driver)) == list(range(1, max(left) + 2))


def damage_header(driver: KeyedDriver) -> None:
    log = driver.disk.open_write(f"{driver.directory}/wal/quiver.wal")
    log.write([b"\xff"], 12)
    log.fsync()
    log.close()


def test_a_push_with_holes_that_is_broken_stores_nothing() -> None:
    disk, left = next(with_holes(1))
    driver = opened(disk)
    bundles = [{0: numbered_batch(n), ENVELOPE_SLOT: with_key(None, "p", n)} for n in range(1, 8)]
    memory, push, schemas = driver.layout(bundles)
    broken = [
        {"slots": push.slots[:-4]},
        {"slots": push.slots[: -len(push.slots) // 7]},
        {"entries": push.entries[: 3 * ENTRY_ROW.size] + ENTRY_ROW.pack(64, 0, 1, -1, 0, 9, 1) * 4},
    ]
    if not driver.engine.intake.can_stage(len(memory)):
        driver.run_background()
    for changes in broken:
        keyed = KeyedPush(**(msgspec.structs.asdict(push) | changes), producer="p", first_number=1)
        with pytest.raises(ProtocolError):
            driver.engine.intake.stage(memory, keyed, schemas)
    assert own(driver) == left


# --- when it is acknowledged -------------------------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_before_all_of_the_message_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, left = next(with_holes(1))
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    bench = HostBench(clock, SETTINGS, disk)
    missing = holes(left, 1)[-1]
    assert missing + 1 in left
    try:
        bench.push(OTHERS)
        bench.settle()
        assert bench.acked() == [OTHERS]
        commits = len(bench.commits)
        # What is stored already has the higher number, and is far in front of it in the log.
        bench.push_keyed(missing, missing + 1, tag=7)
        bench.host.turn(clock.now_ns)
        assert len(bench.commits) == commits + 1, "its commit is on its way"
        assert bench.acked() == []
        bench.push_keyed(missing, missing, tag=8)
        bench.host.turn(clock.now_ns)
        assert bench.acked() == [], "the first copy is not durable yet"
        bench.settle()
        assert {7, 8} == set(bench.acked())
    finally:
        bench.close()


@pytest.mark.parametrize("damages_header", [False, True])
def test_what_a_start_has_only_seen_in_memory_is_not_remembered_as_stored(damages_header: bool) -> None:
    """The process is killed before a sync, the next start is cut off by a power loss."""
    inner = SimDisk()
    driver = KeyedDriver(inner, SETTINGS)
    driver.push_keyed(1, 3)
    driver.commit()
    if damages_header:  # its bundles go into logs of other names then
        damage_header(driver)
    driver.push_keyed(4, 3)
    recorder = Recorder(inner.crash(CrashMode.KEEP))
    opened(recorder)  # type: ignore[arg-type]
    random = Random("cut off")
    for disk, _ in recorder.moments:
        for mode in (CrashMode.DROP, random.choice(POWER_LOSSES)):
            left = opened(disk.crash(mode, random.randrange(1 << 30)))
            left.push_keyed(1, 8)
            assert sorted(left.stored()) == list(range(1, 9)), mode


# --- any order of pushes, crashes and pushes again ---------------------------------------------------------------------------------


class Model:
    """One producer and what must be true of its bundles, in dicts by number."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.first = random.choice((0, 1, 500))
        self.top = self.first
        """The next one that was never pushed."""
        self.where: dict[int, tuple[int, int]] = {}
        """Place of each stored bundle that the producer could know of, by number."""
        self.under_way: list[tuple[int, range]] = []
        """(sequence behind the highest, numbers) of the pushes that are not acknowledged."""
        self.acknowledged: set[int] = set()
        self.overtaken: set[int] = set()
        """Numbers that a power loss took from in front of others."""
        self.disk = SimDisk()
        self.driver = opened(self.disk)
        self.name_log()

    def name_log(self) -> None:
        """Before that a power loss leaves nothing of it."""
        self.driver.push_keyed(OTHERS, producer=f"other {self.random.random()}")
        self.driver.commit()

    def step(self) -> None:
        action = self.random.choice((*["push"] * 6, "commit", "background", "other", "kill", "power", "power"))
        if action == "push":
            # Where nothing is stored it may begin anywhere: with the first one.
            first = max(self.first, self.random.randint(self.top - 6, self.top)) if self.where else self.first
            self.push(range(first, first + self.random.choice((1, 1, 2, 5))))
        elif action == "commit":
            self.commit()
        elif action == "background":
            self.driver.run_background()
        elif action == "other":
            self.driver.push_keyed(OTHERS, producer=f"other {self.random.random()}")
        elif action == "kill":
            self.crash(CrashMode.KEEP)
        else:
            for number in range(self.top, self.top + 3 if self.where else self.top):
                self.push(range(number, number + 1))
            self.crash(self.random.choice([*POWER_LOSSES, *2 * SCATTERED]))

    def push(self, numbers: range) -> None:
        try:
            runs = self.driver.push_keyed(numbers.start, len(numbers))
        except SequenceGap:
            assert any(number not in self.where for number in range(self.first, numbers.start))
            return
        self.top = max(self.top, numbers.stop)
        self.under_way.append((max(run.sequence + run.count for run in runs), numbers))
        for number, run in zip(numbers, spread(runs), strict=True):
            place = (run.segment_seq, run.bundle_index)
            assert run.is_duplicate == (number in self.where), number
            assert self.where.setdefault(number, place) == place

    def commit(self) -> None:
        self.driver.commit()
        while self.under_way and self.under_way[0][0] <= self.driver.engine.group_commit.sequence_durable:
            self.acknowledged |= {*self.under_way.pop(0)[1]}

    def crash(self, mode: CrashMode) -> None:
        self.disk = self.disk.crash(mode, self.random.randrange(1 << 30))
        self.driver = opened(self.disk)
        self.under_way.clear()
        found = self.stored()
        self.where = dict(found)
        self.overtaken |= {*holes([*self.where], self.first)}
        self.check(found)
        self.name_log()

    def check(self, found: list[tuple[int, tuple[int, int]]]) -> None:
        numbers = [number for number, _ in found]
        assert len(set(numbers)) == len(numbers), f"twice: {numbers}"
        assert self.acknowledged <= set(numbers), f"{self.acknowledged} were acknowledged, {numbers} are there"
        in_order = [number for number in numbers if number not in self.overtaken]
        assert in_order == sorted(in_order)

    def stored(self) -> list[tuple[int, tuple[int, int]]]:
        """The numbers and where they are, in the order of delivery."""
        self.driver.seal()
        found = []
        for info in self.driver.engine.segments():
            reader = self.driver.read(info.segment_seq)
            for index in range(info.bundle_count):
                bundle = reader.bundle(index)
                if bundle:  # else it was lost
                    found.append((bundle[0].column(0)[0].as_py(), (info.segment_seq, index)))
        return [each for each in found if each[0] != OTHERS]

    def finish(self) -> None:
        """Push everything once more, which is possible whatever happened."""
        for first in range(self.first, self.top, 3):
            self.push(range(first, min(first + 3, self.top)))
        self.commit()
        found = self.stored()
        self.check(found)
        assert self.acknowledged == {number for number, _ in found} == set(range(self.first, self.top))


def test_whatever_is_pushed_crashes_and_is_pushed_again_everything_acknowledged_is_stored_once() -> None:
    overtaken = 0
    for seed in range(24):
        model = Model(Random(f"pushed again {seed}"))
        for _ in range(40):
            model.step()
        model.finish()
        overtaken += len(model.overtaken)
    assert overtaken > 10, "power losses left few holes"


# --- windows -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_windows_answer_as_a_dict_of_all_numbers_does(seed: int) -> None:
    random, windows, model = Random(seed), Windows(), dict[int, tuple[int, int, int]]()
    floor = 50
    for sequence in range(0, 4000, 20):
        first = random.randint(floor, 450)
        run = KeyRun(first, random.randint(1, 9), random.randint(1, 3), sequence, sequence)
        windows.add("p", run, floor)
        for at in range(run.bundles):
            model.setdefault(first + at, (run.segment_seq, sequence + at, sequence + at))
        if random.random() < 0.1:
            windows = decode_windows(windows.encode())
        asked = random.randint(floor, max(model) + 1)
        count = random.randint(1, 30)
        found = windows.stored("p", asked, count)
        spelled = {
            run.first + at: (run.segment_seq, run.bundle_index + at, run.sequence + at)
            for run in found
            for at in range(run.bundles)
        }
        assert spelled == {number: place for number, place in model.items() if asked <= number < asked + count}
        assert list(spelled) == sorted(spelled)
        missing = [number for first, end in gaps(asked, asked + count, found) for number in range(first, end)]
        assert missing == [number for number in range(asked, asked + count) if number not in spelled]
    with pytest.raises(SequenceGap):
        windows.stored("p", max(model) + 2, 1)
    with pytest.raises(SequenceTooOld):
        windows.stored("p", floor - 1, 1)


def test_the_oldest_run_is_forgotten_and_what_is_missing_behind_it_is_not() -> None:
    windows = Windows()
    for number in range(RUNS_PER_PRODUCER + 1):
        windows.add("p", KeyRun(3 * number, 1, number, 0, 0))
    for again in (windows, decode_windows(windows.encode())):
        with pytest.raises(SequenceTooOld, match="only 1 to"):
            again.stored("p", 0, 1)
        assert again.stored("p", 1, 3) == [KeyRun(3, 1, 1, 0, 0)]
    windows.add("p", KeyRun(1, 1, 9999, 0, 0))
    with pytest.raises(SequenceTooOld, match="only 2 to"):
        windows.stored("p", 1, 1)


def test_a_file_of_the_former_release_is_read() -> None:
    listed = [["p", [[7, 3, 1, 0, 100], [10, 2, 2, 0, 110]]], ["q", []]]
    windows = decode_windows(encode_frame(PRODUCERS_MAGIC, listed))
    assert windows.stored("p", 8, 9) == [KeyRun(8, 2, 1, 1, 101), KeyRun(10, 2, 2, 0, 110)]
    assert windows.stored("q", 5, 1) == []
    with pytest.raises(SequenceTooOld):
        windows.stored("p", 6, 1)
