"""Blocks of a log are reserved in steps, each before anything is written into them; what becomes of a log that gets no more."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, MIB, SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.jobs.room import GrowJob
from quiver_actors.store.retention.limits import Limit, NoRoom
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

FIRST_BYTES = 64 * KIB
ACTIVE = "default/core_0/wal/quiver.wal"


def batch(number: int, size_bytes: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number]), "body": pa.array([b"x" * size_bytes], pa.binary())})


def push(driver: EngineDriver, number: int, size_bytes: int = 10 * KIB) -> None:
    """Push as a worker does, which asks again after each job; then everything that is due."""
    memory, message, schemas = driver.layout([{0: batch(number, size_bytes)}])
    for _ in range(8):
        if driver.engine.intake.can_stage(len(memory)):
            break
        driver.commit()
        driver.run_background()
    driver.engine.intake.stage(memory, message, schemas)
    driver.engine.write()
    driver.settle()


def numbers(driver: EngineDriver) -> list[int]:
    driver.seal()
    if "s" not in driver.engine.progress.registry:
        driver.engine.registrations.register("s", "earliest")
    return driver.claim_numbers("s")


def log_bytes(driver: EngineDriver) -> int:
    return driver.engine.disk_account.disk_use().log_bytes


def test_a_topic_with_little_takes_little_of_the_disk_at_the_full_length_of_its_log(tmp_path: Path) -> None:
    driver = EngineDriver(PosixDisk(str(tmp_path)))
    push(driver, 0, size_bytes=100)
    found = (tmp_path / ACTIVE).stat()
    assert found.st_size > 32 * MIB
    assert found.st_blocks * 512 == FIRST_BYTES
    assert log_bytes(driver) == 2 * FIRST_BYTES, "the log and the spare"


def test_blocks_come_before_they_are_needed_and_nothing_is_written_behind_them(tmp_path: Path) -> None:
    driver = EngineDriver(OrderMonitor(PosixDisk(str(tmp_path))))
    for number in range(200):
        push(driver, number)
        entries = sum(log.end for log in driver.engine._parts.logs)
        assert entries < (tmp_path / ACTIVE).stat().st_blocks * 512 <= 16 * max(entries, FIRST_BYTES)
    assert len(driver.engine.segments()) == 0
    assert numbers(driver) == list(range(200))


def test_the_next_log_begins_with_what_the_last_one_took() -> None:
    disk = SimDisk()
    driver = EngineDriver(OrderMonitor(disk))
    for number in range(100):
        push(driver, number)
    driver.seal()
    push(driver, 100)
    assert disk.allocated_bytes(ACTIVE) >= MIB, "no step is needed for as much again"


def test_after_a_burst_the_disk_is_given_back() -> None:
    disk = SimDisk()
    driver = EngineDriver(OrderMonitor(disk))
    for number in range(100):
        push(driver, number)
    for number in range(100, 103):
        driver.seal()
        push(driver, number, size_bytes=100)
    assert disk.allocated_bytes(ACTIVE) == FIRST_BYTES
    assert log_bytes(driver) == 2 * FIRST_BYTES
    assert numbers(driver) == list(range(103))


def test_a_bundle_larger_than_all_blocks_gets_them() -> None:
    driver = EngineDriver(OrderMonitor(SimDisk()))
    push(driver, 0, size_bytes=100)
    push(driver, 1, size_bytes=3 * MIB)
    assert len(driver.engine._parts.logs) == 1, "both are in one log"
    assert numbers(driver) == [0, 1]


def test_a_log_that_gets_no_more_blocks_ends_and_the_next_one_takes_the_push() -> None:
    faulty = FaultyDisk(SimDisk())
    driver = EngineDriver(OrderMonitor(faulty))
    push(driver, 0, size_bytes=100)
    faulty.fail("allocate", 1, errno.ENOSPC)
    for number in range(1, 12):
        push(driver, number)
    driver.settle()
    assert [segment.segment_seq for segment in driver.engine.segments()] == [0]
    assert driver.engine.state is EngineState.READY
    assert numbers(driver) == list(range(12))


def test_a_step_that_fails_otherwise_fails_the_engine_and_loses_nothing() -> None:
    disk = SimDisk()
    faulty = FaultyDisk(disk)
    driver = EngineDriver(faulty)
    push(driver, 0, size_bytes=100)
    faulty.fail("allocate", 1, errno.EIO)
    for number in range(1, 4):
        push(driver, number)
    assert driver.engine.state is EngineState.FAILED
    again = EngineDriver(disk.crash(CrashMode.DROP))
    again.settle()
    assert numbers(again) == [0, 1, 2, 3]


def test_a_cap_that_admits_no_step_ends_the_log_for_a_push_that_waits_and_only_for_it() -> None:
    driver = EngineDriver(OrderMonitor(SimDisk()))
    push(driver, 0, size_bytes=100)
    limits = {"bytes": 0}
    driver.engine.storage.share_room(lambda size: size <= limits["bytes"], lambda: NoRoom(Limit.SIZE_CAP, 1, 1))
    for number in range(1, 5):  # more than half of the blocks: a step is due
        push(driver, number)
    assert driver.engine.segments() == []
    memory, _, _ = driver.layout([{0: batch(9, 40 * KIB)}])
    assert not driver.engine.intake.can_stage(len(memory))
    driver.settle()
    assert driver.engine.intake.can_stage(len(memory)), "the spare is there"
    driver.push({0: batch(5, 40 * KIB)})
    driver.settle()
    assert [segment.bundle_count for segment in driver.engine.segments()] == [5]
    limits["bytes"] = MIB
    push(driver, 6)
    assert numbers(driver) == [0, 1, 2, 3, 4, 5, 6]


def test_on_a_full_disk_the_open_log_is_sealed_for_a_push_that_waits_so_that_it_can_be_processed() -> None:
    faulty = FaultyDisk(SimDisk())
    driver = EngineDriver(OrderMonitor(faulty), topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS))
    push(driver, 0, size_bytes=100)
    faulty.fail("allocate", 1, errno.ENOSPC, then=["allocate"])
    memory, _, _ = driver.layout([{0: batch(1, 80 * KIB)}])
    for _ in range(4):
        assert not driver.engine.intake.can_stage(len(memory))
        driver.settle()
        driver.clock.advance(SECOND_NS)
    assert driver.engine.state is EngineState.FULL
    assert [segment.bundle_count for segment in driver.engine.segments()] == [1]


def test_the_low_water_mark_holds_for_steps() -> None:
    disk = SimDisk(capacity_bytes=3 * MIB)
    settings = topic_settings(retention=RetentionSettings(min_free_bytes=MIB))
    driver = EngineDriver(OrderMonitor(disk), settings)
    taken = 0
    while driver.engine.state is EngineState.READY and taken < 400:
        memory, message, schemas = driver.layout([{0: batch(taken, 10 * KIB)}])
        for _ in range(6):
            if driver.engine.intake.can_stage(len(memory)):
                driver.engine.intake.stage(memory, message, schemas)
                driver.engine.write()
                taken += 1
                break
            driver.settle()
        driver.settle()
    assert 20 < taken < 400
    assert disk.free_bytes(".") >= MIB - 64 * KIB, "seals and progress may go on below it"
    assert numbers(driver) == list(range(taken))


def test_a_log_is_written_committed_and_closed_while_its_step_is_under_way() -> None:
    disk = SimDisk()
    driver = EngineDriver(OrderMonitor(disk))
    push(driver, 0, size_bytes=100)
    memory, message, schemas = driver.layout([{0: batch(1, 40 * KIB)}])
    driver.engine.intake.stage(memory, message, schemas)
    driver.engine.write()
    job = driver.engine.next_background()
    assert isinstance(job, GrowJob)
    assert log_bytes(driver) >= 5 * FIRST_BYTES, "what is being reserved counts"
    driver.push_numbered(2)
    driver.commit()
    driver.engine.seal_now()
    driver.commit()
    job.run()
    driver.engine.finish(job)
    driver.settle()
    assert driver.engine.figures().segments == 1
    assert disk.allocated_bytes("default/core_0/segments/0000000000000000.qseg") < 2 * FIRST_BYTES
    assert numbers(driver) == [0, 1, 2]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_log_with_unreserved_blocks_is_recovered(is_killed: bool) -> None:
    disk = SimDisk()
    driver = EngineDriver(OrderMonitor(disk))
    for number in range(30):
        push(driver, number)
    left = disk.crash(CrashMode.DROP) if not is_killed else disk
    again = EngineDriver(left, directory="default/core_0") if not is_killed else driver
    if is_killed:
        driver.engine.close()
        driver.reopen()
    again.settle()
    assert numbers(again) == list(range(30))


@given(
    sizes=st.lists(st.integers(1, 300 * KIB), min_size=1, max_size=30),
    free=st.integers(256 * KIB, 8 * MIB),
    seals=st.sets(st.integers(0, 29)),
)
def test_whatever_comes_is_stored_in_order_and_never_behind_the_blocks(
    sizes: list[int], free: int, seals: set[int]
) -> None:
    disk = SimDisk(capacity_bytes=free)
    driver = EngineDriver(OrderMonitor(disk), topic_settings(segment_target_size_bytes=256 * KIB))
    taken = []
    for number, size in enumerate(sizes):
        memory, message, schemas = driver.layout([{0: batch(number, size)}])
        for _ in range(6):
            if driver.engine.intake.can_stage(len(memory)):
                driver.engine.intake.stage(memory, message, schemas)
                driver.engine.write()
                taken.append(number)
                break
            driver.settle()
        driver.settle()
        if number in seals:
            driver.seal()
    assert driver.engine.failure is None
    disk.capacity_bytes = None
    driver.run_for(SECOND_NS)
    assert numbers(driver) == taken
