"""Windows in bytes after a start: the manifest of a segment says how large its bundles are, and where it does not, all count alike."""

from __future__ import annotations

import errno

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.other_writer import segment_bytes
from tests.unit.store.recovery.test_damaged_files import replace

PATHS = EnginePaths("default/core_0")
ROWS = (10, 1000, 10)
WINDOW_BYTES = 22_000
"""Less than the second bundle has, more than two of the mean size have."""


def sealed() -> SimDisk:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push(*({0: numbered_batch(rows, rows)} for rows in ROWS))
    driver.seal()
    (info,) = driver.engine.segments()
    assert 2 * info.size_bytes // len(ROWS) < WINDOW_BYTES
    driver.flush_progress()
    return disk.crash(CrashMode.DROP)


def opened(disk: Disk) -> EngineDriver:
    driver = EngineDriver(disk)
    driver.settle()
    return driver


def claimed(driver: EngineDriver) -> list[int]:
    (grant,) = driver.claim("s", "owner", 10, size_limit_bytes=WINDOW_BYTES)
    return list(grant.indexes)


def test_a_claim_stops_before_a_bundle_that_is_larger_than_the_rest_of_the_window() -> None:
    assert claimed(opened(sealed())) == [0]


def test_without_its_manifest_a_segment_is_claimed_by_the_mean_size_of_its_bundles() -> None:
    faulty = FaultyDisk(sealed())
    driver = opened(faulty)
    faulty.fail("open_read", 1, errno.EIO, path_part=PATHS.segment(0))
    assert len(claimed(driver)) > 1
    assert faulty.failed_sites


def test_of_a_segment_of_another_writer_only_the_mean_size_is_known() -> None:
    disk = sealed()
    content = segment_bytes([{0: numbered_batch(rows, rows)} for rows in ROWS])
    replace(disk, PATHS.segment(0), lambda _: content)
    driver = opened(disk)
    assert len(claimed(driver)) > 1
