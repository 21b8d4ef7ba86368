"""Staged bundles that find no room, or whose writing fails."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.units import KIB, SECOND_NS
from quiver_actors.store.engine import EngineState
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import numbered_batch
from tests.support.stage_driver import OWNER, StageDriver
from tests.unit.store.staged.test_stages import SMALL, STAGED, driver_on


@pytest.fixture
def driver() -> StageDriver:
    return driver_on(SimDisk())


def test_staged_bundles_are_on_the_bill(driver: StageDriver) -> None:
    number = driver.prepared(1, 2)
    file = driver.disk.open_read(f"{STAGED}/{number:016}.0000.stage")
    figures = driver.engine.figures()
    assert (figures.prepared_stages, figures.staged_bytes) == (1, file.size())
    assert figures.disk_bytes >= figures.staged_bytes > 0
    file.close()
    driver.publish(number)
    assert driver.engine.figures().staged_bytes == 0


def test_a_stage_that_cannot_be_written_is_dropped_alone() -> None:
    disk = FaultyDisk(SimDisk())
    driver = StageDriver(disk, SMALL)
    number, other = driver.begin(), driver.begin()
    driver.push_staged(number, 1)
    driver.push_staged(other, 2)
    disk.fail("fsync", 1, errno.EIO, path_part=f"{number:016}")
    driver.engine.stages.prepare(driver.engine.stages.get(number, OWNER))
    driver.settle()
    assert driver.engine.state is EngineState.READY
    assert [stage.number for stage in driver.engine.stages] == [other]
    driver.prepare(other)
    driver.publish(other)
    assert driver.stored() == [2]


def test_a_full_disk_makes_a_stage_wait() -> None:
    disk = SimDisk(capacity_bytes=16 << 20)
    driver = StageDriver(disk, SMALL)
    filler = disk.create("filler")
    filler.allocate(disk.free_bytes("."))
    number = driver.begin()
    memory, push, schemas = driver.layout([{0: numbered_batch(7)}])
    stages = driver.engine.stages
    assert not stages.can_stage(stages.get(number, OWNER), len(memory))
    driver.settle()
    assert not stages.can_stage(stages.get(number, OWNER), len(memory))
    assert driver.engine.state is EngineState.READY
    filler.close()
    disk.unlink("filler")
    driver.run_for(SECOND_NS)
    stage = stages.get(number, OWNER)
    assert stages.can_stage(stage, len(memory))
    stages.stage(stage, memory, push, schemas)
    stages.write(stage)
    driver.prepare(number)
    driver.publish(number)
    assert driver.stored() == [7]


def test_a_stage_takes_what_its_push_needs_where_the_usual_step_is_over_the_cap(driver: StageDriver) -> None:
    asked: list[int] = []

    def room(more_bytes: int) -> bool:
        asked.append(more_bytes)
        return more_bytes < 64 * KIB

    driver.settle()
    driver.engine.storage.share_room(room)
    number = driver.begin()
    driver.push_staged(number, 1)
    assert max(asked) >= 64 * KIB, "the usual step was asked for first"
    assert driver.engine.stages.get(number, OWNER).disk_bytes < 64 * KIB
    assert not driver.engine.storage.is_short
    driver.prepare(number)
    driver.publish(number)
    assert driver.stored() == [1]


def test_a_stage_that_waits_for_the_cap_says_how_little_it_needs(driver: StageDriver) -> None:
    driver.settle()
    allowed: list[bool] = []
    driver.engine.storage.share_room(lambda _: bool(allowed))
    number = driver.begin()
    stage = driver.engine.stages.get(number, OWNER)
    assert not driver.engine.stages.can_stage(stage, 1000)
    driver.settle()
    assert driver.engine.storage.is_short
    assert 1000 < driver.engine.storage.wanted_bytes < 64 * KIB
    allowed.append(True)
    driver.settle()
    assert not driver.engine.storage.is_short
    assert driver.engine.stages.can_stage(stage, 1000)
