"""A loss is durable before its file goes, whatever crashes or fails in between."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.retention.choice import choose
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.store.engine.test_retention import engine_with, fill, stored

# --- a loss is durable before its file goes ----------------------------------------------------------------------------------


SMALL_FILES = "core_0/quiver."
"""Progress and gap notices, in their paths."""


def let_the_oldest_go(driver: EngineDriver) -> None:
    retention = driver.engine.retention
    retention.let_go(choose(retention.candidates(), EvictionClass.UNPROCESSED, NO_LIMIT, 1))
    driver.engine.progress.flush()


def owed_after_a_crash(image: SimDisk) -> tuple[list[int], list[tuple[int, str]]]:
    """What a subscriber is given, and what it is told is lost, by the next process."""
    again = EngineDriver(image, topic_settings(segment_compaction="off"))
    again.settle()
    found = again.claim_numbers("s")
    notices = [(notice.segment_seq, notice.reason) for notice in [*again.told, *again.take_gaps("s")]]
    return found, notices


@pytest.mark.parametrize("what", ["quiver.gaps", "quiver.sub"])
@pytest.mark.parametrize("kind", ["create", "write", "fdatasync", "rename"])
def test_without_room_for_the_notice_the_file_stays_until_there_is(what: str, kind: str) -> None:
    image = SimDisk()
    disk = FaultyDisk(image)
    driver = engine_with(OrderMonitor(disk), size_cap_policy="drop_oldest")
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    driver.flush_progress()
    fault = disk.fail(kind, 1, errno.ENOSPC, then=[kind], path_part=what)
    let_the_oldest_go(driver)
    driver.run_for(10 * SECOND_NS)
    assert fault.hits
    assert driver.engine.failure is None
    assert stored(driver) == [0, 1], "the file stays"
    assert image.exists(f"default/core_0/segments/{0:016}.qseg")
    assert driver.take_gaps("s") == [], "nobody is told what a crash would take back"
    found, notices = owed_after_a_crash(image.crash(CrashMode.DROP))
    assert (len(found) == 8) != bool(notices), "given or announced, never neither"
    disk.heal()
    driver.run_for(10 * SECOND_NS)
    assert stored(driver) == [1]
    assert [notice.segment_seq for notice in driver.take_gaps("s")] == [0]
    found, notices = owed_after_a_crash(image.crash(CrashMode.DROP))
    assert (len(found), notices) == (4, [(0, "evicted")])


@pytest.mark.parametrize("kind", ["write", "fdatasync"])
def test_a_notice_that_cannot_be_written_fails_the_engine_and_the_file_stays(kind: str) -> None:
    image = SimDisk()
    disk = FaultyDisk(image)
    driver = engine_with(OrderMonitor(disk), size_cap_policy="drop_oldest")
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    driver.flush_progress()
    fault = disk.fail(kind, 1, errno.EIO, path_part=SMALL_FILES)
    let_the_oldest_go(driver)
    driver.run_for(SECOND_NS)
    assert fault.hits == 1
    assert driver.engine.failure is not None
    assert image.exists(f"default/core_0/segments/{0:016}.qseg")
    found, notices = owed_after_a_crash(image.crash(CrashMode.DROP))
    assert (len(found) == 8) != bool(notices)
