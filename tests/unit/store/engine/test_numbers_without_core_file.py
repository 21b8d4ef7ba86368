"""`quiver.core` is gone, by damage or by hand: no number is used twice that anything else on the disk still knows of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver_actors.base.protocol.messages import AckRun
from quiver_actors.store.wal.codec import decode_cursor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

ENGINE = "default/core_0"
CORE = f"{ENGINE}/quiver.core"


def sealed(driver: EngineDriver) -> list[AckRun]:
    """Three sealed segments."""
    runs = []
    for first in (0, 4, 8):
        runs += driver.push_numbered(first, 4)
        driver.settle()
        driver.seal()
    return runs


def logged(driver: EngineDriver) -> list[AckRun]:
    """Three sealed segments and a log that nobody sealed."""
    runs = [*sealed(driver), *driver.push_numbered(12, 5)]
    driver.commit()
    return runs


def emptied(driver: EngineDriver) -> list[AckRun]:
    """All was delivered and deleted; progress, cursor and an empty log are left."""
    runs = sealed(driver)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 1_000):
        assert driver.resolve("s", "x", segment_seq, "ack", indexes, 0) == []
    driver.flush_progress()
    driver.settle()
    assert not driver.engine.segments()
    return runs


def emptied_and_logged(driver: EngineDriver) -> list[AckRun]:
    """The same, and a log with bundles."""
    runs = [*emptied(driver), *driver.push_numbered(20, 2)]
    driver.commit()
    return runs


STATES = [sealed, logged, emptied, emptied_and_logged]


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("core", ["missing", "damaged", "empty"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_numbers_are_not_used_twice(state: Callable[[EngineDriver], list[AckRun]], core: str, clean: bool) -> None:
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings())
    driver.engine.registrations.register("s", "earliest")
    runs = state(driver)
    if clean:
        driver.drain_and_close()
    else:
        driver.engine.close()
    position = decode_cursor(disk.contents()[f"{ENGINE}/wal/quiver.wal.cursor"])
    spoil(disk, core)
    driver = EngineDriver(disk, topic_settings())
    driver.settle()
    (new,) = driver.push_numbered(99)
    driver.settle()
    driver.seal()
    assert new.segment_seq > max(run.segment_seq for run in runs)
    assert new.sequence >= max(run.sequence + run.count for run in runs)
    assert 99 in driver.claim_numbers("s"), "the new bundle does not count as one that was delivered"
    assert decode_cursor(disk.contents()[f"{ENGINE}/wal/quiver.wal.cursor"]) > position


def spoil(disk: SimDisk, how: str) -> None:
    content = disk.contents()[CORE]
    disk.unlink(CORE)
    if how != "missing":
        file = disk.create(CORE)
        file.write([b"" if how == "empty" else content[:20] + b"\xff" + content[21:]], 0)
        file.fsync()
        file.close()
    disk.sync_directory(ENGINE)
