"""A topic that only transactions write to: nothing that was delivered and deleted is told as lost, whatever a start finds beside it."""

from __future__ import annotations

from tests.disks.simulated import SimDisk
from tests.support.stage_driver import StageDriver

CONSUMER = "owner"
ACTIVE = "default/core_0/wal/quiver.wal"


def published(driver: StageDriver, *bundles: int) -> None:
    """Each in a transaction, and so in a segment, of its own."""
    for bundle in bundles:
        driver.publish(driver.prepared(bundle))


def delivered(driver: StageDriver, *segment_seqs: int) -> None:
    """Acknowledge segments of one bundle, and let them be deleted."""
    for grant in driver.claim("ann", CONSUMER, 100):
        if grant.segment_seq in segment_seqs:
            assert driver.resolve("ann", CONSUMER, grant.segment_seq, "ack", [0]) == []
    driver.engine.claims.release(CONSUMER)
    driver.flush_progress()
    assert not {info.segment_seq for info in driver.engine.segments()} & {*segment_seqs}


def with_an_empty_log(disk: SimDisk, *before: int) -> StageDriver:
    """What a clean stop leaves of these bundles, opened: an empty log that keeps position and numbers."""
    driver = StageDriver(disk)
    driver.engine.registrations.register("ann", "earliest")
    published(driver, *before)
    driver.drain_and_close()
    driver.reopen()
    assert disk.exists(ACTIVE)
    return driver


def check_nothing_is_told(driver: StageDriver, *left: int) -> None:
    driver.settle()
    assert [note for note in driver.engine.recovery_notes if "is gone" in note] == []
    driver.told.clear()
    assert driver.claim_numbers("ann") == [*left]
    assert driver.told == []
    assert driver.engine.storage.losses.by_reason["damaged"].segments == 0


def test_segments_published_behind_the_empty_log_of_a_clean_stop_are_not_told_once_they_were_delivered() -> None:
    disk = SimDisk()
    driver = with_an_empty_log(disk, 0)
    published(driver, 1, 2, 3)
    delivered(driver, 1, 2)
    for _ in range(3):
        driver.restart()
        check_nothing_is_told(driver, 0, 3)


def test_nor_where_nothing_is_in_front_of_it() -> None:
    driver = with_an_empty_log(SimDisk())
    published(driver, 0, 1, 2, 3)
    delivered(driver, 0, 1, 2)
    driver.restart()
    check_nothing_is_told(driver, 3)
