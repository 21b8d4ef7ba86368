"""`retention.keep_for`: what everybody is done with stays for a time, as in Kafka, and can be read again."""

from __future__ import annotations

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import MIB, SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.supervisor.figures import EvictionClass
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.stage_driver import StageDriver
from tests.unit.store.engine.test_retention import (
    HOUR_NS,
    acknowledge_all,
    announced,
    carry_out,
    engine_with,
    fill,
    stored,
)


@pytest.fixture
def disk() -> Disk:
    return SimDisk()


def processed(disk: Disk, segments: int = 3, **retention: object) -> EngineDriver:
    """Segments a second apart that the only subscriber is done with."""
    driver = engine_with(disk, **retention)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, segments)
    acknowledge_all(driver, "s")
    return driver


def deleted(driver: EngineDriver) -> dict[str, int]:
    return {reason: count for reason, count in driver.engine.storage.losses.evictions.items() if count}


def test_processed_segments_stay_until_their_newest_bundle_is_so_old(disk: Disk) -> None:
    driver = processed(disk, keep_for_ns=HOUR_NS)
    driver.run_for(HOUR_NS - 4 * SECOND_NS)
    assert stored(driver) == [0, 1, 2]
    driver.run_for(SECOND_NS + SECOND_NS // 2)
    assert stored(driver) == [1, 2], "by itself: nothing else happens"
    driver.run_for(2 * SECOND_NS)
    assert stored(driver) == []
    assert deleted(driver) == {"processed": 3}


def test_what_is_kept_is_there_for_whoever_comes_later(disk: Disk) -> None:
    driver = processed(disk, keep_for_ns=HOUR_NS)
    driver.engine.registrations.register("late", "earliest")
    second_ns = driver.engine.segments()[1].first_ingestion_ts_nanos
    driver.engine.registrations.register("later", f"time:{second_ns}")
    assert len(driver.claim_numbers("late")) == 12
    assert len(driver.claim_numbers("later")) == 8
    assert driver.read(0).bundle_count == 4
    driver.run_for(2 * HOUR_NS)
    assert stored(driver) == [0, 1, 2], "they are owed again, and nothing that is owed goes"


def test_the_cap_wins_and_takes_the_oldest_of_them_first(disk: Disk) -> None:
    driver = processed(disk, keep_for_ns=HOUR_NS, size_cap_policy="drop_oldest")
    driver.engine.registrations.register("slow", "latest")
    fill(driver, 1)
    carry_out(driver, EvictionClass.CLAIMED)
    assert stored(driver) == [1, 2, 3]
    assert deleted(driver) == {"size": 1}
    assert announced(driver, "slow", "evicted") == []


def test_max_age_wins(disk: Disk) -> None:
    driver = processed(disk, keep_for_ns=2 * HOUR_NS, max_age_ns=HOUR_NS)
    driver.run_for(HOUR_NS)
    assert stored(driver) == []
    assert deleted(driver) == {"expired": 3}


def test_both_settings_keep_what_either_of_them_keeps_and_figures_say_which(disk: Disk) -> None:
    driver = processed(disk, keep_for_ns=HOUR_NS, steady_state_headroom_bytes=8192)
    kept = driver.engine.retention.kept()
    assert (kept.keep_for_bytes > 0, kept.headroom_bytes) == (True, 0)
    driver.run_for(2 * HOUR_NS)
    assert stored(driver) == [2], "the newest, for its bytes"
    kept = driver.engine.retention.kept()
    assert (kept.keep_for_bytes, kept.headroom_bytes > 0) == (0, True)


def test_the_setting_changes_live_both_ways(disk: Disk) -> None:
    driver = processed(disk, keep_for_ns=HOUR_NS)
    driver.engine.change_settings(topic_settings(segment_compaction="off"))
    driver.settle()
    assert stored(driver) == []
    kept = RetentionSettings(keep_for_ns=60 * SECOND_NS)
    driver.engine.change_settings(topic_settings(segment_compaction="off", retention=kept))
    fill(driver, 1)
    acknowledge_all(driver, "s")
    assert stored(driver) == [3]
    shorter = RetentionSettings(keep_for_ns=30 * SECOND_NS)
    driver.engine.change_settings(topic_settings(segment_compaction="off", retention=shorter))
    driver.run_for(31 * SECOND_NS)
    assert stored(driver) == []


@pytest.mark.parametrize("wrong_by_ns", [-HOUR_NS, HOUR_NS])
def test_a_restart_goes_on_counting_and_a_clock_that_is_set_changes_nothing(wrong_by_ns: int) -> None:
    disk = SimDisk()
    driver = processed(disk, keep_for_ns=HOUR_NS)
    driver.clock.advance(HOUR_NS // 2)
    driver.disk = disk.crash(CrashMode.KEEP)
    driver.reopen()
    driver.settle()
    driver.clock.wrong_by_ns = wrong_by_ns
    driver.run_for(HOUR_NS // 2 - 10 * SECOND_NS)
    assert stored(driver) == [0, 1, 2]
    driver.run_for(20 * SECOND_NS)
    assert stored(driver) == []


def test_segments_of_transactions_are_kept_alike(disk: Disk) -> None:
    settings = topic_settings(segment_compaction="off", retention=RetentionSettings(keep_for_ns=HOUR_NS))
    driver = StageDriver(disk, settings)
    driver.engine.registrations.register("s", "earliest")
    driver.publish(driver.prepared(0, 1))
    driver.settle()
    acknowledge_all(driver, "s")
    (segment_seq,) = stored(driver)
    driver.run_for(HOUR_NS - 10 * SECOND_NS)
    assert stored(driver) == [segment_seq]
    driver.run_for(20 * SECOND_NS)
    assert stored(driver) == []


def test_a_segment_that_somebody_still_needs_is_no_part_of_it(disk: Disk) -> None:
    driver = engine_with(disk, keep_for_ns=SECOND_NS, steady_state_headroom_bytes=MIB)
    driver.engine.registrations.register("slow", "earliest")
    fill(driver, 2)
    driver.run_for(HOUR_NS)
    assert stored(driver) == [0, 1]
    assert driver.engine.retention.kept().keep_for_bytes == 0
