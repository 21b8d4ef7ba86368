"""How far pushes may be acknowledged: never beyond what is durable, whichever log it is in, and never beyond a sync that failed."""

from __future__ import annotations

import errno

from quiver_actors.base.model import Durability
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.events import Failed
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings


def test_what_is_durable_ends_at_the_first_log_that_is_behind() -> None:
    driver = EngineDriver(SimDisk())
    driver.push_numbered(0, 2)
    job = driver.engine.next_commit()
    assert job is not None
    driver.push_numbered(2, 2)
    driver.engine.seal_now()
    driver.push_numbered(4, 2)
    job.run()
    driver.engine.finish(job)
    assert driver.engine.group_commit.acknowledges == (2, Durability.SYNCED), "neither log is synced to its end"
    driver.commit()
    assert driver.engine.group_commit.acknowledges == (6, Durability.SYNCED)


def test_a_sync_that_fails_acknowledges_nothing_and_ends_the_engine() -> None:
    disk = FaultyDisk(SimDisk())
    driver = EngineDriver(disk)
    driver.push_numbered(0)
    driver.commit()
    driver.push_numbered(1)
    disk.fail("fdatasync", 1, errno.EIO)
    driver.commit()
    assert driver.engine.group_commit.acknowledges == (1, Durability.SYNCED)
    assert driver.engine.state is EngineState.FAILED
    assert [event.reason for event in driver.events if isinstance(event, Failed)] == [driver.engine.failure]
    assert driver.engine.next_commit() is None, "what a failed sync was for is not synced again"
    assert not driver.engine.intake.can_stage(100)


def test_nothing_is_acknowledged_as_written_in_a_log_that_has_no_name_yet() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(wal_flush_interval_ns=25 * MILLISECOND_NS))
    driver.push_numbered(0)
    assert driver.engine.group_commit.acknowledges == (0, Durability.WRITTEN), (
        "a killed process would leave it in a temporary file"
    )
    driver.commit()
    assert driver.engine.group_commit.acknowledges == (1, Durability.WRITTEN)
    driver.disk = disk.crash(CrashMode.KEEP)
    driver.reopen()
    driver.engine.registrations.register("s", "earliest")
    driver.settle()
    assert driver.claim_numbers("s") == [0]


def test_a_log_that_somebody_has_removed_acknowledges_nothing_and_ends_the_engine() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.push_numbered(0)
    driver.commit()
    disk.unlink(f"{driver.directory}/wal/quiver.wal")
    driver.push_numbered(1)
    driver.commit()
    assert driver.engine.group_commit.acknowledges == (1, Durability.SYNCED)
    assert driver.engine.state is EngineState.FAILED
    assert "somebody removed the log" in str(driver.engine.failure)
