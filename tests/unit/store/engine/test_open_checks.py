"""Bundles of an open log that a consumer reports are checked in the background; what is damaged is announced, and kept in quarantine."""

from __future__ import annotations

import errno

import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.checking import LogCheckJob
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

PATHS = EnginePaths("default/core_0")
LOG = "default/core_0/wal/quiver.wal"
CRC_BYTES = 4


def with_bundles(disk: Disk, count: int = 4) -> EngineDriver:
    """An open log whose bundles a subscriber has claimed."""
    driver = EngineDriver(disk, topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS))
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, count)
    driver.commit()
    return driver


def place_of(driver: EngineDriver, index: int) -> tuple[int, int]:
    ((offset, size_bytes, _),) = PLACE.iter_unpack(driver.engine.readable_end.places(0, [index]))
    return offset, size_bytes


def rot(disk: SimDisk, driver: EngineDriver, index: int) -> None:
    assert disk.flip_bit(LOG, place_of(driver, index)[0] + 200, 3)


def make_undecodable(disk: SimDisk, driver: EngineDriver, index: int) -> None:
    """Overwrite the Arrow messages of a bundle, and make its checksum right."""
    offset, size_bytes = place_of(driver, index)
    file = disk.open_write(LOG)
    body = bytearray(file.read(size_bytes, offset)[4:-CRC_BYTES])
    body[110:200] = b"\xff" * 90
    file.write([bytes(body), crc32(bytes(body)).to_bytes(CRC_BYTES, "little")], offset + 4)
    file.close()


def report(driver: EngineDriver, *indexes: int) -> None:
    """What a consumer does that cannot read bundles."""
    grants = driver.claim("s", "owner", 100)
    for grant in grants:
        mine = [index for index in grant.indexes if index in indexes]
        others = [index for index in grant.indexes if index not in indexes]
        driver.engine.cannot_read("s", "owner", 0, grant.token, mine, SECOND_NS)
        driver.engine.claims.resolve("s", "owner", 0, grant.token, "return", others, 0)


def announced(driver: EngineDriver) -> list[int]:
    return [event.bundle_index for event in driver.events if isinstance(event, GapFound)]


def kept(disk: Disk) -> list[str]:
    return disk.list_directory(PATHS.quarantine) if disk.exists(PATHS.quarantine) else []


@pytest.mark.parametrize("spoil", [rot, make_undecodable])
def test_what_is_damaged_is_announced_and_its_entry_is_kept(spoil: object) -> None:
    disk = SimDisk()
    driver = with_bundles(disk)
    spoil(disk, driver, 1)  # type: ignore[operator]
    offset, size_bytes = place_of(driver, 1)
    report(driver, 1)
    driver.settle()
    assert announced(driver) == [1]
    (name,) = kept(disk)
    assert name.startswith(f"quiver.wal.{offset}-{offset + size_bytes}.")
    assert name.endswith(".span.0")
    path = f"{PATHS.quarantine}/{name}"
    assert disk.contents()[path] == disk.contents()[LOG][offset : offset + size_bytes]
    assert driver.engine.figures().quarantined == 1


def test_an_entry_is_kept_once_however_often_it_is_reported() -> None:
    disk = SimDisk()
    driver = with_bundles(disk)
    rot(disk, driver, 1)
    report(driver, 1)
    driver.settle()
    driver.engine.registrations.register("later", "earliest")
    driver.engine.check_segment(0, [1])
    driver.run_for(2 * SECOND_NS)
    assert len(kept(disk)) == driver.engine.figures().quarantined == 1


def test_the_check_is_a_job_of_the_background() -> None:
    disk = SimDisk()
    driver = with_bundles(disk)
    rot(disk, driver, 2)
    driver.run_background()
    report(driver, 2)
    assert announced(driver) == []
    job = driver.engine.next_background()
    assert isinstance(job, LogCheckJob)
    job.run()
    assert driver.engine.finish(job) != []
    assert job.damaged.keys() == {2}


def test_whole_bundles_that_are_reported_leave_nothing_behind() -> None:
    disk = SimDisk()
    driver = with_bundles(disk)
    driver.engine.check_segment(0, [0, 1, 2, 3, 4, -1, 1 << 40])
    driver.settle()
    assert (announced(driver), kept(disk), driver.engine.figures().quarantined) == ([], [], 0)
    assert driver.claim_numbers("s") == [0, 1, 2, 3]


def test_a_log_that_is_sealed_before_its_check_is_checked_as_a_segment() -> None:
    disk = SimDisk()
    driver = with_bundles(disk)
    rot(disk, driver, 1)
    report(driver, 1)
    driver.engine.seal_now()
    driver.commit()
    driver.run_for(30 * SECOND_NS)
    assert announced(driver) == [1]
    assert [name.partition(".qseg")[0] for name in kept(disk)] == ["0" * 16]


def test_more_bundles_than_one_job_checks_are_all_checked() -> None:
    disk = SimDisk()
    driver = with_bundles(disk, 200)
    for index in (3, 70, 199):
        rot(disk, driver, index)
    driver.engine.check_segment(0, range(200))
    driver.run_for(60 * SECOND_NS)
    assert sorted(announced(driver)) == [3, 70, 199]
    assert len(kept(disk)) == 3


def test_a_check_that_finds_no_room_for_the_copy_is_made_again() -> None:
    disk = FaultyDisk(SimDisk())
    driver = with_bundles(disk)
    rot(disk.inner, driver, 1)  # type: ignore[arg-type]
    disk.fail("create", 1, errno.ENOSPC)
    report(driver, 1)
    driver.run_for(10 * SECOND_NS)
    assert announced(driver) == [1]
    assert len(kept(disk)) == 1
    assert driver.engine.state is EngineState.READY


def test_what_the_disk_does_not_give_back_is_kept_with_zeroes_in_its_place() -> None:
    disk = FaultyDisk(SimDisk())
    driver = with_bundles(disk)
    _, size_bytes = place_of(driver, 1)
    disk.fail("read", 1, errno.EIO, then=["read"])
    report(driver, 1)
    driver.run_for(10 * SECOND_NS)
    disk.heal()
    assert announced(driver) == [1]
    (name,) = kept(disk)
    file = disk.open_read(f"{PATHS.quarantine}/{name}")
    assert file.read(file.size(), 0) == bytes(size_bytes)
    file.close()
