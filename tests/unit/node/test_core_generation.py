"""The number of workers of a data directory: each change begins a generation, and no crash and no damage gives one twice."""

from __future__ import annotations

import contextlib
import errno

import pytest

from quiver_actors.errors import DiskError, InvalidFormat
from quiver_actors.node.core_generation import begin_with
from quiver_actors.store.files.core_count import CORES_FILE, CoreGeneration, decode_core_generation
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk


def test_only_another_number_begins_a_generation() -> None:
    disk = SimDisk()
    assert begin_with(disk, 2, 1000, is_new=True) == 0
    assert begin_with(disk, 2, 2000, is_new=False) == 0
    assert begin_with(disk, 3, 3000, is_new=False) == 3000
    assert begin_with(disk, 3, 4000, is_new=False) == 3000
    assert begin_with(disk, 2, 10, is_new=False) == 3001, "the clock was set back"


def test_of_a_directory_of_a_former_release_nobody_knows_what_it_had() -> None:
    assert begin_with(SimDisk(), 2, 1000, is_new=False) == 1000


@pytest.mark.parametrize(
    "text", [b"", b"quiver-cores 1 0 5\n", b"quiver-cores 1 2 5", b"quiver-cores 2 2 5\n", b"\xff" * 40]
)
def test_a_damaged_file_begins_a_generation(text: bytes) -> None:
    disk = SimDisk()
    file = disk.create(CORES_FILE)
    file.write([text], 0)
    file.close()
    with pytest.raises(InvalidFormat, match="expected `quiver-cores 1"):
        decode_core_generation(text)
    assert begin_with(disk, 2, 1000, is_new=False) == 1000
    assert decode_core_generation(CoreGeneration(2, 1000).encode()) == CoreGeneration(2, 1000)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_what_a_start_was_told_is_durable(mode: CrashMode) -> None:
    for point in range(1, 100):
        inner = SimDisk()
        begin_with(inner, 2, 1000, is_new=True)
        disk = FaultyDisk(inner)
        disk.crash_at(point)
        told = None
        with contextlib.suppress(SimulatedCrash):
            told = begin_with(disk, 3, 2000, is_new=False)
        again = begin_with(inner.crash(mode, point), 3, 3000, is_new=False)
        assert again == told if told is not None else again in (2000, 3000)
        if told is not None:
            return


def test_an_error_of_the_disk_is_no_new_generation() -> None:
    disk = FaultyDisk(SimDisk())
    begin_with(disk, 2, 1000, is_new=True)
    disk.fail("read", 1, errno.EIO)
    with pytest.raises(DiskError):
        begin_with(disk, 2, 2000, is_new=False)
    assert begin_with(disk, 2, 2000, is_new=False) == 0
