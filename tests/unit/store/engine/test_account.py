"""The engine's account of its directory against `du`, with everything in it that can be: also what is there for a moment only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, MIB, SECOND_NS
from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.disk_account import LIST_INTERVAL_NS, MEASURE_INTERVAL_NS
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS, CompactJob
from quiver_actors.store.retention.account import DiskUse
from quiver_actors.supervisor.measure import measure
from tests.support.engine_driver import drop_segment, topic_settings
from tests.support.stage_driver import StageDriver

ENGINE = "default/core_0"
COUNT = 400


def damage(path: Path) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 64)


def counted(driver: StageDriver) -> DiskUse:
    """Return the disk use as it is found now: small files are measured first."""
    disk_account = driver.engine.disk_account
    disk_account.touched()
    driver.clock.advance(10 * SECOND_NS)
    job = disk_account.measure_job()
    assert job is not None
    job.run()
    disk_account.finish_measure(job)
    return disk_account.disk_use()


def assert_agrees(driver: StageDriver, root: Path) -> DiskUse:
    use = counted(driver)
    found = measure([str(root / ENGINE)])
    assert use.total_bytes + driver.engine.stages.table.disk_bytes == pytest.approx(found, rel=0.01)
    return use


def test_every_kind_of_file_counts_as_du_counts_it(disk: Disk, tmp_path: Path) -> None:
    settings = topic_settings(retention=RetentionSettings(steady_state_headroom_bytes=64 * MIB))
    driver = StageDriver(disk, settings)
    for subscriber in ("a", "b"):
        driver.engine.registrations.register(subscriber, "earliest")
    for first in range(0, 4 * COUNT, COUNT):
        driver.push_numbered(first, COUNT)
        driver.settle()
        driver.seal()
    drop_segment(driver.engine, 3, "dropped")
    driver.settle()
    driver.drain_and_close()
    damage(tmp_path / ENGINE / "segments" / f"{0:016}.qseg")
    driver.reopen()
    driver.settle()
    stage = driver.prepared(*range(50))
    driver.push_numbered(10_000, COUNT)
    driver.settle()
    use = assert_agrees(driver, tmp_path)
    present = {field.name for field in fields(use.small) if getattr(use.small, field.name)}
    assert present >= {"progress_bytes", "gaps_bytes", "quarantine_bytes", "ballast_bytes", "other_bytes"}
    assert driver.engine.stages.table.disk_bytes > 0
    assert use.log_bytes > 0
    assert use.segment_bytes > 0
    driver.publish(stage)
    driver.seal()
    assert_agrees(driver, tmp_path)


def next_compaction(driver: StageDriver) -> CompactJob:
    while (job := driver.engine.next_background()) is not None:
        if isinstance(job, CompactJob):
            return job
        finish(driver, job)
    raise AssertionError("nothing is compacted")


def finish(driver: StageDriver, job: Job) -> None:
    job.run()
    driver.engine.finish(job)


def test_the_output_of_a_compaction_counts_while_both_files_are_there_and_one_afterwards(
    disk: Disk, tmp_path: Path
) -> None:
    driver = StageDriver(disk, topic_settings())
    driver.engine.registrations.register("a", "earliest")
    driver.push_numbered(0, COUNT)
    driver.settle()
    driver.seal()
    before = assert_agrees(driver, tmp_path)
    driver.clock.advance(COMPACTION_AGE_NS)
    job = next_compaction(driver)
    while not sum(path.stat().st_blocks for path in (tmp_path / ENGINE / "segments").glob("*.tmp")):
        next(job._steps)
    during = assert_agrees(driver, tmp_path)
    assert during.small.compaction_bytes > 0
    assert during.segment_bytes == before.segment_bytes
    finish(driver, job)
    for _ in range(100):  # in slices of real time: how many depends on the machine
        driver.run_for(SECOND_NS)
    after = assert_agrees(driver, tmp_path)
    assert after.small.compaction_bytes == 0
    assert after.segment_bytes < before.segment_bytes


def test_a_log_that_is_becoming_a_segment_counts_as_allocated(disk: Disk, tmp_path: Path) -> None:
    driver = StageDriver(disk, topic_settings())
    driver.push_numbered(0, 10)
    driver.settle()
    driver.engine.seal_now()
    driver.commit()
    use = assert_agrees(driver, tmp_path)
    assert use.sealing_bytes == 64 * KIB
    driver.settle()
    assert assert_agrees(driver, tmp_path).sealing_bytes == 0


class Listings(InterposedDisk):
    """Counts how often each directory is listed."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.listed: list[str] = []

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        if call.kind == "list_directory":
            self.listed.append(call.path)
        return proceed()


def test_what_somebody_else_puts_beside_the_segments_counts_within_a_minute_and_until_it_is_gone(
    disk: Disk, tmp_path: Path
) -> None:
    driver = StageDriver(disk, topic_settings(segment_compaction="off"))
    driver.engine.registrations.register("a", "earliest")
    driver.push_numbered(0, COUNT)
    driver.settle()
    driver.seal()
    driver.run_for(3 * MEASURE_INTERVAL_NS)
    foreign = tmp_path / ENGINE / "segments" / "left-by-somebody"
    foreign.write_bytes(bytes(MIB))
    before = driver.engine.storage.disk_bytes
    driver.run_for(LIST_INTERVAL_NS)
    assert driver.engine.disk_account.look_again(), "also while nothing happens"
    driver.settle()
    assert driver.engine.storage.disk_bytes == before + MIB
    assert not driver.engine.disk_account.look_again()
    foreign.unlink()
    driver.push_numbered(COUNT)
    driver.run_for(3 * MEASURE_INTERVAL_NS)
    assert_agrees(driver, tmp_path)
    assert driver.engine.disk_account.disk_use().small.compaction_bytes == 0


def test_segments_that_are_known_are_not_listed_with_every_measurement(disk: Disk) -> None:
    listings = Listings(disk)
    driver = StageDriver(listings, topic_settings(segment_compaction="off"))
    driver.engine.registrations.register("a", "earliest")
    driver.run_for(SECOND_NS)
    listings.listed.clear()
    for number in range(30):
        driver.push_numbered(number)
        driver.seal()
        driver.run_for(MEASURE_INTERVAL_NS)
    assert listings.listed.count(ENGINE) >= 20, "small files are measured again and again"
    assert listings.listed.count(f"{ENGINE}/segments") <= 30 * MEASURE_INTERVAL_NS // LIST_INTERVAL_NS
