"""Numbers that are used once only: sequences wait until they are reserved durably, names of rotated logs rise above all that are there."""

from __future__ import annotations

import errno

from quiver_actors.store.disk.protocol import read_whole
from quiver_actors.store.files.core_file import SEQUENCE_BLOCK, decode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.wal.layout import rotation_number
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

PATHS = EnginePaths("default/core_0")
LOGS = 3


def test_a_push_waits_until_the_sequences_it_may_need_are_reserved_durably() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.intake.can_stage(100)
    driver.run_background()
    assert driver.engine.intake.can_stage(100)
    numbers = driver.engine._parts.numbers
    numbers.advance(numbers.next_sequence + SEQUENCE_BLOCK - 1, numbers.position)  # a million bundles later
    assert not driver.engine.intake.can_stage(100)
    assert driver.engine.intake.refusal() is None, "it only has to wait"
    driver.run_background()
    (run,) = driver.push_numbered(0)
    driver.commit()
    left = disk.crash(CrashMode.DROP)
    assert decode_core(read_whole(left, PATHS.core, 1000)).next_sequence_reserved > run.sequence


def test_rotated_logs_never_take_a_name_that_is_there() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.commit()
    driver.engine.close()
    disk.rename(PATHS.active, PATHS.rotated(100_000))  # the names of another writer are far above its segments' numbers
    disk.sync_directory(PATHS.wal)
    faulty = FaultyDisk(disk)
    driver = EngineDriver(faulty)
    faulty.fail("truncate", 1, errno.ENOSPC, then=["truncate"])  # seals wait
    for number in range(1, 1 + LOGS):
        driver.push_numbered(number)
        driver.engine.seal_now()
        driver.commit()
    rotated = [name for name in disk.list_directory(PATHS.wal) if rotation_number(name)]
    assert len(rotated) >= LOGS
    driver.engine.close()
    driver = EngineDriver(disk)
    driver.settle()
    assert driver.claim_numbers("s") == list(range(1 + LOGS))
