"""A crash anywhere in the flush that makes a seek durable: it was done or it was not, and nothing is lost unannounced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import UnknownSubscriber, UsageError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine.events import Retired
from quiver_actors.store.jobs.records import ProgressJob
from tests.disks.faulty import FaultyDisk
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.stage_driver import StageDriver

BUNDLES = 6


def stored(root: Path) -> EngineDriver:
    root.mkdir(exist_ok=True)
    driver = EngineDriver(PosixDisk(str(root)))
    driver.engine.registrations.register("s", "earliest")
    driver.push(*({0: numbered_batch(number)} for number in range(BUNDLES)))
    driver.seal()
    driver.settle()
    return driver


def crash_after(driver: EngineDriver, writes: int) -> int:
    """Crash after so many files of the next flush are written. Returns how many files it had."""
    while not isinstance(job := driver.engine.next_background(), ProgressJob):
        assert job is not None
        job.run()
        driver.engine.finish(job)
    total = len(job.writes)
    job.writes = job.writes[:writes]
    job.run()
    driver.engine._lock.release()
    driver.reopen()
    driver.settle()
    return total


def owed(driver: EngineDriver) -> tuple[int, int]:
    """(bundles that it will get, bundles that a notice names)."""
    announced = 0
    while (notice := driver.engine.claims.take_gap("s", "me")) is not None:
        announced += notice.bundle_count
    return driver.engine.owed.pending("s").pending, announced


def test_skipped_bundles_are_announced_or_still_owed_after_any_crash(tmp_path: Path) -> None:
    found = []
    for writes in range(4):
        driver = stored(tmp_path / str(writes))
        assert driver.engine.registrations.seek("s", "latest")[1:] == (BUNDLES, 0)
        total = crash_after(driver, writes)
        found.append(owed(driver))
        if writes == total:
            break
    assert found == [(BUNDLES, 0), *[(0, BUNDLES)] * total]


def test_withdrawn_notices_are_told_or_their_bundles_owed_after_any_crash(tmp_path: Path) -> None:
    found = []
    for writes in range(5):
        driver = stored(tmp_path / str(writes))
        driver.engine.registrations.register("keeper", "earliest")
        driver.engine.registrations.seek("s", "bundle:0/0/4")
        driver.settle()
        assert driver.engine.registrations.seek("s", "earliest")[1:] == (0, 4)
        total = crash_after(driver, writes)
        found.append(owed(driver))
        if writes == total:
            break
    assert all(pending + announced == BUNDLES for pending, announced in found)
    assert found[0] == (2, 4)
    assert found[-1] == (BUNDLES, 0)


def test_deleted_segments_do_not_come_back(tmp_path: Path) -> None:
    driver = stored(tmp_path)
    (grant,) = driver.engine.claims.claim("s", "me", BUNDLES)
    driver.engine.claims.resolve("s", "me", grant.segment_seq, grant.token, "ack", list(grant.indexes), 0)
    driver.settle()
    driver.clock.advance(1_000_000_000)
    driver.settle()
    assert not driver.engine.segments()
    driver.push({0: numbered_batch(9)})
    assert driver.engine.registrations.seek("s", "earliest")[1:] == (0, 0)
    driver.seal()
    driver.settle()
    assert owed(driver) == (1, 0)


def test_unsealed_bundles_are_skipped_and_announced_too(tmp_path: Path) -> None:
    driver = stored(tmp_path)
    driver.push({0: numbered_batch(7)}, {0: numbered_batch(8)})
    assert driver.engine.registrations.seek("s", "latest")[1:] == (BUNDLES + 2, 0)
    driver.push({0: numbered_batch(9)})
    driver.seal()
    driver.settle()
    assert owed(driver) == (1, BUNDLES + 2)


def test_a_segment_that_is_owed_again_is_not_called_finished_any_more(tmp_path: Path) -> None:
    """A consumer lets go of what it was just given of a segment that it is told is finished."""
    driver = stored(tmp_path)
    driver.claim("s", "me", BUNDLES)
    driver.resolve("s", "me", 0, "ack", range(BUNDLES))
    driver.engine.registrations.seek("s", "earliest")
    driver.claim("s", "me", BUNDLES)
    driver.events.clear()
    driver.settle()
    assert not [event for event in driver.events if isinstance(event, Retired)]
    driver.resolve("s", "me", 0, "ack", range(BUNDLES))
    driver.settle()
    assert [event for event in driver.events if isinstance(event, Retired)] == [Retired("s", 0)]


def test_what_cannot_be_done_changes_nothing(tmp_path: Path) -> None:
    driver = stored(tmp_path)
    with pytest.raises(UnknownSubscriber):
        driver.engine.registrations.seek("nobody", "latest")
    with pytest.raises(UsageError):
        driver.engine.registrations.seek("s", "yesterday")
    assert driver.engine.registrations.seek("s", "latest", is_dry=True)[1:] == (BUNDLES, 0)
    assert owed(driver) == (BUNDLES, 0)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_bundles_of_a_publish_under_way_are_owed_after_a_seek(tmp_path: Path, start: str) -> None:
    """They count as neither skipped nor owed: they become visible afterwards."""
    driver = StageDriver(PosixDisk(str(tmp_path)))
    driver.engine.registrations.register("s", "earliest")
    stage = driver.prepared(1, 2)
    driver.engine.stages.publish("t", driver.engine.incarnation, [stage], drop_others=False)
    assert driver.engine.registrations.seek("s", start)[1:] == (0, 0)
    driver.settle()
    assert driver.claim_numbers("s") == [1, 2]


def test_bundles_that_wait_for_room_to_be_rescued_are_owed_after_a_seek(tmp_path: Path) -> None:
    stored(tmp_path).drain_and_close()
    path = tmp_path / f"default/core_0/segments/{0:016}.qseg"
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 30)
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = EngineDriver(disk)
    driver.settle()
    assert driver.engine.registrations.seek("s", "earliest")[1:] == (0, 0)
    driver.settle()
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    assert driver.claim_numbers("s") == list(range(BUNDLES))
