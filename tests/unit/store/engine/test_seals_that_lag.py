"""Seals that lag turn into backpressure: `wal.max_rotated_files` and `wal.max_size`."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import KIB, SECOND_NS
from quiver_actors.store.engine import EngineState
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

BUNDLE = {0: pa.record_batch({"blob": pa.array([bytes(5 * KIB)])})}
PUSHES_MAX = 60


def fill(driver: EngineDriver) -> int:
    """Push until a push has to wait, with every job done that can be. Returns how many were taken."""
    for count in range(PUSHES_MAX):
        driver.commit()
        driver.run_background()
        if not driver.engine.intake.can_stage(len(driver.layout([BUNDLE])[0])):
            driver.run_background()
        if not driver.engine.intake.can_stage(len(driver.layout([BUNDLE])[0])):
            return count
        driver.push(BUNDLE)
    raise AssertionError("nothing stopped the pushes")


@pytest.mark.parametrize(
    "settings",
    [
        topic_settings(segment_target_size_bytes=4 * KIB, wal_max_rotated_files=3),
        topic_settings(segment_target_size_bytes=4 * KIB, wal_max_rotated_files=50, wal_max_size_bytes=24 * KIB),
    ],
    ids=["max_rotated_files", "max_size"],
)
def test_pushes_wait_for_seals_that_lag_and_go_on_by_themselves(settings: TopicSettings) -> None:
    disk = FaultyDisk(SimDisk())
    disk.fail("truncate", 1, errno.ENOSPC, then=["truncate"])  # only a seal cuts a log
    driver = EngineDriver(disk, settings)
    taken = fill(driver)
    assert taken == 4
    assert driver.engine.state is EngineState.READY
    assert driver.engine.intake.refusal() is None, "it only has to wait"
    assert driver.engine.group_commit.sequence_durable == taken
    assert driver.engine.figures().wal_bytes <= settings.wal.max_size_bytes
    assert driver.engine.figures().segments == 0
    disk.heal()
    driver.clock.advance(SECOND_NS)
    driver.run_background()
    assert driver.engine.figures().segments == taken
    driver.push(BUNDLE)
    driver.commit()
    assert driver.engine.group_commit.sequence_durable == taken + 1


def test_one_push_is_always_taken_however_large() -> None:
    driver = EngineDriver(SimDisk(), topic_settings(segment_target_size_bytes=4 * KIB, wal_max_size_bytes=4 * KIB))
    driver.push(BUNDLE)
    driver.commit()
    assert driver.engine.group_commit.sequence_durable == 1
