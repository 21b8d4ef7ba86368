"""A crash at every call that changes the disk, in every mode: a transaction is never half visible, never twice, and never lost once
it is prepared; what was not prepared never shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB
from quiver_actors.errors import TransactionLost
from quiver_actors.store.disk.interposed import MUTATING_KINDS, Call, InterposedDisk, Result
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import topic_settings
from tests.support.stage_driver import OWNER, StageDriver, order

SETTINGS = topic_settings(segment_target_size_bytes=64 * KIB, retention=RetentionSettings(min_free_bytes=0))
WINNERS = {1: [10, 11], 2: [20, 21, 22]}
"""Bundles by stage number: the first transaction. Stage 2 has two parts."""
DROPPED, FORGOTTEN, KEPT = 3, 4, 5
BUNDLES = {**WINNERS, DROPPED: [30], FORGOTTEN: [40], KEPT: [50]}


class Recorder(InterposedDisk):
    """Keeps the disk as it is before each call that changes it."""

    def __init__(self, inner: SimDisk) -> None:
        super().__init__(inner)
        self.disk = inner
        self.moments: list[tuple[SimDisk, int]] = []
        """Number of facts that were known then."""
        self.facts: list[str] = []

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        if call.kind in MUTATING_KINDS:
            self.moments.append((self.disk.copy(), len(self.facts)))
        return proceed()


@dataclass
class World:
    """One run to its end, what was known when, and the disk at every moment of it."""

    recorder: Recorder = field(default_factory=lambda: Recorder(SimDisk()))

    def __post_init__(self) -> None:
        self.driver = StageDriver(OrderMonitor(self.recorder), SETTINGS)
        self.recorder.moments.clear()

    def tell(self, fact: str) -> None:
        self.recorder.facts.append(fact)

    def run(self) -> None:
        driver = self.driver
        driver.push_numbered(0, 2)
        driver.commit()
        self.tell("pushed 0 1")
        self.stage(1, rows=5)
        self.stage(2, rows=1500)
        self.stage(DROPPED, rows=5)
        driver.begin(order("forgotten"))
        driver.push_staged(FORGOTTEN, *BUNDLES[FORGOTTEN])
        self.stage(KEPT, rows=5, txn_id="kept")
        self.tell("publish wanted")
        driver.publish(2, 1)
        self.tell("published")
        self.tell("drop wanted")
        driver.drop(DROPPED)
        self.tell("dropped")
        driver.push_numbered(2)
        driver.commit()
        self.tell("pushed 2")
        driver.seal()

    def stage(self, number: int, rows: int, txn_id: str = "t") -> None:
        found = self.driver.begin(order(txn_id, partition=number))
        assert found == number
        self.driver.push_staged(number, *BUNDLES[number], rows=rows)
        self.tell(f"prepare {number} wanted")
        self.driver.prepare(number)
        self.tell(f"prepared {number}")


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    made.run()
    assert len(made.driver.engine.stages.get(FORGOTTEN, OWNER).parts) == 1
    return made


def judge(driver: StageDriver, facts: list[str], *, goes_on: bool = True) -> None:
    """What recovery has made of a crash after those facts."""
    seen = driver.stored()
    known = set(facts)
    states = {stage.number for stage in driver.engine.stages}
    assert len(seen) == len(set(seen)), f"twice: {seen}"
    pushed = [int(word) for fact in facts if fact.startswith("pushed") for word in fact.split()[1:]]
    assert [number for number in seen if number in pushed] == pushed
    assert not set(seen) & {*BUNDLES[FORGOTTEN], *BUNDLES[KEPT], *BUNDLES[DROPPED]}
    for number in (1, 2, DROPPED, KEPT):
        if f"prepare {number} wanted" not in known:
            assert number not in states
        elif f"prepared {number}" in known and number in (KEPT, *(() if "drop wanted" in known else (DROPPED,))):
            assert number in states
    assert FORGOTTEN not in states
    visible = [number for number in seen if number in (10, 11, 20, 21, 22)]
    assert visible in ([], [10, 11, 20, 21, 22]), "half of it, or out of order"
    if "publish wanted" not in known:
        assert not visible
    if "published" in known:
        assert visible
    if visible:
        assert not states & set(WINNERS)
    elif {"prepared 1", "prepared 2"} <= known:
        assert set(WINNERS) <= states, "prepared, and gone"
    if "dropped" in known:
        assert DROPPED not in states
        with pytest.raises(TransactionLost):
            driver.publish(DROPPED)
    check_files(driver, states)
    if goes_on:
        go_on(driver, known, states)


def check_files(driver: StageDriver, states: set[int]) -> None:
    names = driver.disk.list_directory(f"{driver.directory}/staged")
    assert {int(name[:16]) for name in names} == states, "files of nobody are left"


def go_on(driver: StageDriver, known: set[str], states: set[int]) -> None:
    """The transaction ends well after the crash, whatever it interrupted, and numbers are not used twice."""
    if {"prepared 1", "prepared 2"} <= known:
        for _ in range(2):
            driver.publish(1, 2)
    if KEPT in states:
        driver.publish(KEPT, txn_id="kept")
    driver.push_numbered(90)
    driver.settle()
    driver.seal()
    seen = driver.stored()
    assert len(seen) == len(set(seen))
    wanted = [
        *([10, 11, 20, 21, 22] if {"prepared 1", "prepared 2"} <= known else []),
        *([50] if KEPT in states else []),
    ]
    assert [number for number in seen if number in {10, 11, 20, 21, 22, 50}] == wanted
    ranges = [driver.read(info.segment_seq) for info in driver.engine.segments()]
    sequences: list[Any] = [reader.sequence(index) for reader in ranges for index in range(reader.bundle_count)]
    assert sequences == sorted(set(sequences)), "a sequence was used twice, or behind a later one"


def reopen(disk: SimDisk) -> StageDriver:
    return StageDriver(OrderMonitor(disk), SETTINGS)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_every_crash_is_recovered_from(world: World, mode: CrashMode) -> None:
    random, seen = Random(f"stages {mode}"), set()
    for disk, fact_count in world.recorder.moments:
        seed = random.randrange(1 << 30)
        left = disk.crash(mode, seed)
        key = (left.fingerprint(), fact_count)
        if key in seen:
            continue
        seen.add(key)
        facts = world.recorder.facts[:fact_count]
        try:
            judge(reopen(left), facts, goes_on=random.randrange(3) == 0)
        except Exception as error:
            raise AssertionError(
                f"{mode}, seed {seed}, after {facts[-1:]}, {sorted(disk.contents())}: {error}"
            ) from error
    assert len(seen) > 20


def test_a_crash_of_the_recovery_is_recovered_from(world: World) -> None:
    """At one call of each recovery, chosen at random, in a random mode; and of the next recovery once more."""
    random = Random("nested")
    for disk, fact_count in world.recorder.moments:
        left = disk
        for _ in range(2):
            recorder = Recorder(left.crash(random.choice(list(CrashMode)), random.randrange(1 << 30)))
            StageDriver(recorder, SETTINGS).engine.close()
            left = random.choice(recorder.moments)[0]
        mode, seed = random.choice(list(CrashMode)), random.randrange(1 << 30)
        judge(reopen(left.crash(mode, seed)), world.recorder.facts[:fact_count])


def test_opening_again_changes_nothing(world: World) -> None:
    random = Random("again")
    for disk, _ in world.recorder.moments[::5]:
        driver = reopen(disk.crash(CrashMode.SCATTER, random.randrange(1 << 30)))
        before = (driver.stored(), [(stage.number, stage.size_bytes) for stage in driver.engine.stages])
        driver.restart()
        assert (driver.stored(), [(stage.number, stage.size_bytes) for stage in driver.engine.stages]) == before


@pytest.mark.parametrize("damaged", [".stage", ".prepared"])
def test_the_publisher_of_a_damaged_stage_is_told_also_where_its_recovery_was_cut_off(damaged: str) -> None:
    disk = SimDisk()
    driver = StageDriver(OrderMonitor(disk), SETTINGS)
    number = driver.prepared(10, 11)
    (path,) = [path for path in disk.contents() if path.endswith(damaged)]
    file = disk.open_write(path)
    file.write([b"\xff"], len(disk.contents()[path]) // 2)
    file.fsync()
    recorder = Recorder(disk.crash(CrashMode.DROP))
    StageDriver(OrderMonitor(recorder), SETTINGS)
    for left, _ in recorder.moments:
        for mode in (CrashMode.KEEP, CrashMode.DROP):
            again = reopen(left.crash(mode))
            with pytest.raises(TransactionLost, match="damaged"):
                again.publish(number)
            assert again.stored() == []
