"""Adoptions that a power loss cuts off, of logs with bytes that were never synced: what is left of a log is not stored twice, and
what another writer puts in the place of what is gone is stored.
"""

from __future__ import annotations

from random import Random

from quiver_actors.base.config import RetentionSettings, TopicSettings
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.foreign_record import decode_foreign
from tests.disks.crashes import CrashMode
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.other_writers import numbers_on
from tests.support.engine_driver import numbered_batch, topic_settings
from tests.support.other_writer import OtherWriter
from tests.unit.store.staged.test_key_holes import damage_header
from tests.unit.store.staged.test_keys import KeyedDriver
from tests.unit.store.staged.test_stage_crashes import Recorder

DIRECTORY = "default/core_0"
THEIRS = 1_000
"""Their bundles are numbered from here on."""


def settings(target_size_bytes: int) -> TopicSettings:
    return topic_settings(segment_target_size_bytes=target_size_bytes, retention=RetentionSettings(min_free_bytes=0))


def opened(disk: Disk, target_size_bytes: int = 1 << 20) -> KeyedDriver:
    return KeyedDriver(OrderMonitor(disk), settings(target_size_bytes))


def recorded(disk: SimDisk, target_size_bytes: int = 1 << 20) -> list[SimDisk]:
    """The disk at every call of a start from the moment on at which it says what it adopts."""
    recorder = Recorder(disk.crash(CrashMode.KEEP))
    KeyedDriver(OrderMonitor(recorder), settings(target_size_bytes))
    moments = [moment for moment, _ in recorder.moments if is_adopting(moment)]
    assert moments
    return moments


def is_adopting(disk: SimDisk) -> bool:
    found = disk.contents().get(f"{DIRECTORY}/quiver.foreign")
    return found is not None and bool(decode_foreign(found).targets)


def append(other: OtherWriter, number: int, *, syncs: bool = True) -> None:
    other.append({0: numbered_batch(number)}, sync=syncs)


def test_a_log_that_is_laid_into_several_is_stored_once() -> None:
    """A power loss may leave only some of the new logs."""
    disk, small = SimDisk(), 2_500
    driver = opened(disk)
    driver.push_keyed(1, 2, rows=40)
    driver.commit()
    damage_header(driver)
    for number in range(3, 6):
        driver.push_keyed(number, rows=40)
    random, moments = Random("several"), recorded(disk, small)
    for moment in moments:
        for mode in (CrashMode.DROP, random.choice([*CrashMode])):
            left = opened(moment.crash(mode, random.randrange(1 << 30)), small)
            left.push_keyed(1, 6, rows=40)
            assert sorted(left.stored()) == list(range(1, 7)), mode


def test_what_another_writer_puts_in_the_place_of_lost_entries_is_stored() -> None:
    disk = SimDisk()
    opened(disk)
    other = OtherWriter(disk, DIRECTORY)
    for number in range(3):
        append(other, THEIRS + number)
    for number in range(3, 6):
        append(other, THEIRS + number, syncs=False)
    synced = {THEIRS, THEIRS + 1, THEIRS + 2}
    random = Random("in the place")
    for moment in recorded(disk):
        left = moment.crash(random.choice([*CrashMode]), random.randrange(1 << 30))
        append(OtherWriter(left, DIRECTORY), 2 * THEIRS)
        there = numbers_on(left)
        assert synced <= there
        found = opened(left).stored()
        assert there <= {*found}
        assert found.count(2 * THEIRS) == 1


def test_what_is_left_of_entries_of_another_writer_is_stored_once() -> None:
    disk = SimDisk()
    driver = opened(disk)
    driver.push_keyed(1, 3)
    driver.commit()
    other = OtherWriter(disk.crash(CrashMode.KEEP), DIRECTORY)
    for number in range(6):
        append(other, THEIRS + number, syncs=number == 2)
    random = Random("left")
    for moment in recorded(other.disk):
        for mode in (CrashMode.DROP, random.choice([*CrashMode])):
            left = opened(moment.crash(mode, random.randrange(1 << 30)))
            left.push_keyed(1, 4)
            found = left.stored()
            assert {1, 2, 3, 4, THEIRS, THEIRS + 1, THEIRS + 2} <= {*found}
            assert len(found) == len({*found}), mode


def test_what_another_writer_has_sealed_is_not_stored_again() -> None:
    disk = SimDisk()
    driver = opened(disk)
    driver.push_keyed(1, 3)
    driver.commit()
    other = OtherWriter(disk.crash(CrashMode.KEEP), DIRECTORY)
    assert other.seal() == 0
    append(other, THEIRS)
    append(other, THEIRS + 1, syncs=False)
    random = Random("sealed")
    for moment in recorded(other.disk):
        for mode in (CrashMode.KEEP, CrashMode.DROP, random.choice([*CrashMode])):
            found = opened(moment.crash(mode, random.randrange(1 << 30))).stored()
            assert {1, 2, 3, THEIRS} <= {*found}
            assert len(found) == len({*found}), mode
