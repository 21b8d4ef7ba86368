"""Entries whose checksum is put together from parts instead of being read again: the log replays, and the whole file's checksum fits."""

from __future__ import annotations

from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.segment.check import run_to_end, verify_steps
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch

LARGE_ROWS = 5000


def test_small_and_large_entries_are_replayed_after_a_kill_and_fit_their_segments_checksum() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    for number, rows in enumerate((5, LARGE_ROWS, 5, LARGE_ROWS, LARGE_ROWS)):
        driver.push({0: numbered_batch(number, rows)})
    driver.settle()
    driver.disk = disk.copy()
    driver.reopen()
    driver.push({0: numbered_batch(5, LARGE_ROWS)}, {0: numbered_batch(6)})
    driver.seal()
    assert driver.claim_numbers("s") == list(range(7))
    for info in driver.engine.segments():
        file = driver.disk.open_read(EnginePaths(driver.directory).segment(info.segment_seq))
        footer = run_to_end(verify_steps(file.read, file.size()))
        assert footer is not None
        file.close()
