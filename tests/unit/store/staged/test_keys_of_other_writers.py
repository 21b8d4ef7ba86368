"""What idempotent producers have pushed and another writer of version 1 has sealed: known by its keys, and not stored again."""

from __future__ import annotations

import pytest

from quiver_actors.errors import SequenceGap
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import numbered_batch
from tests.support.other_writer import OtherWriter
from tests.unit.store.staged.test_keys import SETTINGS, KeyedDriver

DIRECTORY = "default/core_0"
THEIRS = 1_000


def killed_with_keys() -> SimDisk:
    """Numbers 1 to 5 in a segment, 6 to 9 in the open log."""
    disk = SimDisk()
    driver = KeyedDriver(disk, SETTINGS)
    driver.engine.registrations.register("s", "earliest")
    driver.push_keyed(1, 5)
    driver.seal()
    driver.push_keyed(6, 4)
    driver.commit()
    return disk.crash(CrashMode.KEEP)


@pytest.mark.parametrize("mode", list(CrashMode))
@pytest.mark.parametrize("what", ["sealed", "and_goes_on", "and_purged", "in_parts"])
def test_keys_are_known_of_what_another_writer_has_sealed(what: str, mode: CrashMode) -> None:
    disk = killed_with_keys()
    other = OtherWriter(disk, DIRECTORY)
    if what == "in_parts":
        other.open_bundles, rest = other.open_bundles[:2], other.open_bundles[2:]
        other.seal()
        other.open_bundles = rest
    if what == "and_purged":
        other.rotate()
    other.seal()
    theirs = []
    if what == "and_goes_on":
        other.append({0: numbered_batch(THEIRS)})
        theirs = [THEIRS]
    for _ in range(2):
        driver = KeyedDriver(disk, SETTINGS)
        assert all(run.is_duplicate for run in driver.push_keyed(6, 4))
        with pytest.raises(SequenceGap):
            driver.push_keyed(11)
        disk = disk.crash(mode)
    driver = KeyedDriver(disk, SETTINGS)
    (run,) = driver.push_keyed(10)
    assert not run.is_duplicate
    assert sorted(driver.stored()) == [*range(1, 11), *theirs]


def test_a_receipt_names_where_another_writer_has_put_the_bundle() -> None:
    disk = killed_with_keys()
    other = OtherWriter(disk, DIRECTORY)
    other.open_bundles, rest = other.open_bundles[:2], other.open_bundles[2:]
    other.seal()
    other.open_bundles = rest
    other.seal()
    driver = KeyedDriver(disk, SETTINGS)
    for number in range(6, 10):
        (run,) = driver.push_keyed(number)
        reader = driver.read(run.segment_seq)
        assert reader.bundle(run.bundle_index)[0].column(0)[0].as_py() == number


def test_envelopes_of_another_writer_that_cannot_be_read_keep_no_start_from_its_end() -> None:
    disk = killed_with_keys()
    other = OtherWriter(disk, DIRECTORY)
    other.append({0: numbered_batch(THEIRS), 63: numbered_batch(1)})
    other.seal()
    driver = KeyedDriver(disk, SETTINGS)
    assert all(run.is_duplicate for run in driver.push_keyed(6, 4))
    assert sorted(driver.stored()) == [*range(1, 10), THEIRS]
