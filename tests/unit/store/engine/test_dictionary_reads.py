"""A disk that does not give an old dictionary back while a push is staged: the engine fails, nothing half-staged is ever written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from quiver_actors.errors import EngineFailed, TransactionAborted
from quiver_actors.store.engine import EngineState
from quiver_actors.store.segment.dictionaries import RECENT_STREAMS
from tests.disks.crashes import CrashMode
from tests.disks.faulty import CallSite, FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver
from tests.support.stage_driver import OWNER, StageDriver, order

READ_BACK = CallSite("read", "quiver_actors.store.wal.log", "LogBytes.read")
DICTIONARIES = 2 * RECENT_STREAMS
PUSHES = 40


def recurring(number: int, which: int) -> pa.RecordBatch:
    """Bundle `number` with one of more dictionaries than the builder keeps in memory, none an extension of another."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([f"{which}", "yew"]))
    return pa.record_batch({"number": pa.array([number] * 2), "word": words})


def turns(seed: int) -> Iterator[list[list[pa.RecordBatch]]]:
    """Turns of a worker: in each some pushes of some bundles."""
    random, number = Random(seed), 0
    for _ in range(PUSHES):
        turn = []
        for _ in range(random.randint(1, 2)):
            count = random.randint(1, 3)
            turn.append([recurring(number + i, random.randrange(DICTIONARIES)) for i in range(count)])
            number += count
        yield turn


class Run:
    """Pushes until all is pushed or the engine has failed; knows what was acknowledged and what was refused."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk()
        self.faulty = FaultyDisk(self.disk)
        self.driver = EngineDriver(self.faulty)
        self.driver.settle()
        self.seed = seed
        self.acknowledged: list[int] = []
        self.in_doubt: list[int] = []
        self.refused: list[int] = []

    def until_failed(self) -> bool:
        return not all(self._turn(turn) for turn in turns(self.seed))

    def _turn(self, turn: list[list[pa.RecordBatch]]) -> bool:
        """Stage, write, commit. False once the engine has failed."""
        engine = self.driver.engine
        for bundles in turn:
            numbers = [batch.column(0)[0].as_py() for batch in bundles]
            memory, push, schemas = self.driver.layout([{1: batch} for batch in bundles])
            if not engine.intake.can_stage(len(memory)):
                self.driver.run_background()
            try:
                engine.intake.stage(memory, push, schemas)
            except EngineFailed:
                self.refused += numbers
                return False
            self.in_doubt += numbers
        engine.write()
        self.driver.commit()
        assert engine.group_commit.acknowledges[0] == len(self.acknowledged) + len(self.in_doubt)
        self.acknowledged += self.in_doubt
        self.in_doubt = []
        return True


def reads_back(seed: int) -> list[int]:
    """Return which calls of kind `read`, in a run without a fault, read a dictionary back."""
    run = Run(seed)
    assert not run.until_failed()
    reads = [site for site in run.faulty.history if site.kind == "read"]
    return [number for number, site in enumerate(reads, 1) if site == READ_BACK]


def found_after(disk: SimDisk) -> list[int]:
    """Return everything that the next start has."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("sub", "earliest")
    driver.settle()
    return [
        driver.read(grant.segment_seq).bundle(index)[1].column(0)[0].as_py()
        for grant in driver.claim("sub", "owner", 1_000)
        for index in grant.indexes
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
def test_each_read_back_that_fails_fails_the_engine_and_loses_nothing(seed: int, code: int) -> None:
    reads = reads_back(seed)
    assert len(reads) > 5, "the run reads dictionaries back"
    for nth in reads[:: max(1, len(reads) // 12)]:
        run = Run(seed)
        run.faulty.fail("read", nth, code)
        assert run.until_failed()
        assert list(run.faulty.failed_sites) == [READ_BACK]
        check_failed(run)
        for mode in (CrashMode.KEEP, CrashMode.DROP):
            assert found_after(run.disk.crash(mode)) == run.acknowledged, "neither lost nor invented"


def check_failed(run: Run) -> None:
    """Check that the failed engine changes nothing any more, whatever it is asked."""
    engine, changes = run.driver.engine, run.faulty.mutating_count
    run.faulty.heal()
    assert engine.state is EngineState.FAILED
    assert engine.failure is not None
    assert "read" in engine.failure
    assert isinstance(engine.intake.refusal(), EngineFailed)
    assert engine.write() == [], "what was staged before in the same turn is not written either"
    assert not engine.intake.can_stage(1)
    engine.seal_now()
    engine.tick()
    assert engine.next_commit() is None
    assert engine.next_background() is None
    engine.close()
    assert engine.write() == []
    assert run.faulty.mutating_count == changes
    assert run.acknowledged
    assert run.refused


def test_a_dictionary_of_the_same_turn_needs_no_read() -> None:
    """The dictionary is still staged in memory, so a disk that reads nothing does no harm."""
    run = Run(0)
    run.driver.push({1: recurring(0, 0)})
    run.faulty.fail("read", 1, errno.EIO, then=["read"])
    bundles = [{1: recurring(i, 1 + i % (DICTIONARIES - 1))} for i in range(1, 2 * DICTIONARIES)]
    run.driver.push(*bundles)
    run.driver.commit()
    assert run.driver.engine.group_commit.acknowledges[0] == 2 * DICTIONARIES
    assert run.driver.engine.state is EngineState.READY


def test_a_read_back_that_fails_drops_the_stage_and_nothing_else() -> None:
    """What it holds is a part of that push, so nothing may be laid behind it."""
    faulty = FaultyDisk(SimDisk())
    driver = StageDriver(faulty)
    stages, number = driver.engine.stages, driver.begin()
    for which in range(DICTIONARIES):
        driver.push_staged_batches(number, recurring(which, which))
    faulty.fail("read", 1, errno.EIO)
    with pytest.raises(TransactionAborted, match=r"stage 1 was dropped: .*read"):
        driver.push_staged_batches(number, recurring(50, DICTIONARIES - 1), recurring(51, 0))
    faulty.heal()
    with pytest.raises(TransactionAborted):
        stages.get(number, OWNER)
    driver.push_numbered(7)
    driver.publish(driver.prepared(8, wanted=order(attempt=1)))
    driver.seal()
    assert driver.stored() == [7, 8]
    assert list(faulty.failed_sites) == [READ_BACK]
