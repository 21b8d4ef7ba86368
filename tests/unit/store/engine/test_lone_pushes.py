"""Power losses and failing disks under pushes that travel alone: nothing acknowledged is lost, and nothing else is acknowledged."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.encoding.lone import lone_entry
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.engine import EngineState
from quiver_actors.store.jobs.commits import LoneCommit
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.lone import LoneStream
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch

_STREAMS = StreamTable("default")


def take(driver: EngineDriver, batch: pa.RecordBatch) -> LoneCommit | None:
    """Have the engine take a push that travels alone."""
    lone = lone_entry(batch, 0, _STREAMS, None)
    assert lone is not None
    stream = LoneStream(StreamSchema(0, lone.stream.fingerprint, lone.stream.message))
    fields = lone.crc, lone.row_count, lone.metadata_bytes, lone.body_bytes, lone.item_count
    return driver.engine.intake.take_lone(memoryview(lone.entry), stream, *fields)


def opened(disk: SimDisk) -> EngineDriver:
    """A store with a subscriber and a log whose first bundle is durable."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.flush_progress()
    driver.push_numbered(0)
    driver.settle()
    return driver


@pytest.mark.parametrize("mode", list(CrashMode))
@pytest.mark.parametrize("synced", range(4))
def test_a_power_loss_takes_no_acknowledged_bundle(mode: CrashMode, synced: int) -> None:
    disk = SimDisk()
    driver = opened(disk)
    for number in range(1, synced + 1):
        commit = take(driver, numbered_batch(number))
        assert commit is not None
        assert driver.engine.group_commit.sequence_durable == number, "not before its sync"
        commit.run()
        driver.engine.group_commit.finish_lone()
        assert driver.engine.group_commit.sequence_durable == number + 1
    assert take(driver, numbered_batch(synced + 1)) is not None, "written, and never synced"
    driver.engine.close()
    after = EngineDriver(disk.crash(mode))
    after.settle()
    assert after.claim_numbers("s")[: synced + 1] == list(range(synced + 1))


def test_while_anything_is_under_way_a_push_goes_the_general_way() -> None:
    driver = EngineDriver(SimDisk())
    assert take(driver, numbered_batch(0)) is None, "there is no log yet"
    driver.push_numbered(0)
    assert take(driver, numbered_batch(1)) is None, "it is not synced"
    driver.settle()
    first = take(driver, numbered_batch(1))
    assert first is not None
    assert take(driver, numbered_batch(2)) is None, "a commit is out"
    driver.push_numbered(2)
    first.run()
    driver.engine.group_commit.finish_lone()
    assert driver.engine.group_commit.sequence_durable == 2
    assert take(driver, numbered_batch(3)) is None, "what came during the commit is not synced"
    driver.commit()
    assert driver.engine.group_commit.sequence_durable == 3
    assert take(driver, numbered_batch(3)) is not None


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_log_that_waits_for_its_seal_is_not_in_the_way(mode: CrashMode) -> None:
    disk = SimDisk()
    driver = opened(disk)
    driver.engine.seal_now()
    driver.push_numbered(1)
    assert take(driver, numbered_batch(2)) is None, "neither log is synced"
    driver.commit()
    assert driver.engine.segments() == [], "the first one is not sealed"
    commit = take(driver, numbered_batch(2))
    assert commit is not None
    commit.run()
    driver.engine.group_commit.finish_lone()
    assert driver.engine.group_commit.sequence_durable == 3
    after = EngineDriver(disk.crash(mode))
    after.settle()
    assert after.claim_numbers("s") == [0, 1, 2]


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_a_failed_write_or_sync_fails_the_engine_and_acknowledges_nothing(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(SimDisk())

    def fail(*_: object) -> None:
        raise DiskError(operation, "quiver.wal", errno.EIO)

    log = driver.engine._parts.logs.active
    assert log is not None
    file: DiskFile = log.file
    monkeypatch.setattr(file, operation, fail)
    commit = take(driver, numbered_batch(1))
    assert commit is not None
    if operation == "fdatasync":
        assert commit.error is None
        commit.run()
        driver.engine.finish(commit)
    assert commit.error is not None
    assert driver.engine.state is EngineState.FAILED
    assert driver.engine.group_commit.sequence_durable == 1
    assert take(driver, numbered_batch(2)) is None
