"""Which logs of a former process are sealed where they are, and which are written anew."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.interposed import Call, Result
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

SEGMENT = "default/core_0/segments/0000000000000000.qseg"
LOG = "default/core_0/wal/quiver.wal"


class WriteCounter(FaultyDisk):
    """Counts bytes written into logs."""

    log_bytes = 0

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        if call.kind == "write" and "/wal/" in call.path:
            self.log_bytes += sum(map(len, call.buffers))
        return super().around(call, proceed)


def numbers_in(disk: SimDisk) -> list[int]:
    reader = SegmentReader(disk.contents()[SEGMENT])
    reader.verify_checksum()
    return [reader.bundle(index)[0].column("number")[0].as_py() for index in range(reader.bundle_count)]


def with_log(disk: Disk, count: int = 40) -> None:
    """A synced log of a process that was killed."""
    driver = EngineDriver(disk)
    driver.push_numbered(0, count)
    driver.commit()
    driver.engine.close()


def test_a_log_that_the_disk_has_is_sealed_without_being_written_again() -> None:
    disk = SimDisk()
    with_log(disk)
    entry_bytes = len(disk.contents()[LOG].rstrip(b"\0"))
    counter = WriteCounter(disk)
    EngineDriver(counter)
    assert 0 < counter.log_bytes < entry_bytes / 2, "the tail and nothing else"
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40))


def with_log_in_memory(disk: Disk) -> None:
    """A sync has failed: readers see the bytes, and no later sync of that file would bring them to the disk."""
    faulty = FaultyDisk(disk)
    driver = EngineDriver(faulty)
    driver.push_numbered(0, 3)
    driver.commit()
    driver.push_numbered(3, 37)
    faulty.fail("fdatasync", 1, errno.EIO, path_part="/wal/")
    driver.commit()
    assert faulty.failed_sites, "the engine has failed"
    driver.engine.close()


def with_unsynced_log(disk: Disk) -> None:
    """A process was killed between two syncs."""
    driver = EngineDriver(disk)
    driver.push_numbered(0, 3)
    driver.commit()
    driver.push_numbered(3, 37)
    driver.engine.close()


def test_a_log_that_only_memory_has_is_written_anew() -> None:
    disk = SimDisk()
    with_log_in_memory(disk)
    EngineDriver(disk)
    assert numbers_in(disk) == list(range(40))
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40)), "all of it is on the disk now"


@pytest.mark.parametrize("lay", [with_log_in_memory, with_unsynced_log])
@pytest.mark.parametrize(
    ("kind", "number"), [("create", errno.ENOSPC), ("allocate", errno.ENOSPC), ("write", errno.EDQUOT)]
)
def test_without_room_for_a_copy_a_log_is_written_over_itself(
    lay: Callable[[Disk], None], kind: str, number: int
) -> None:
    disk = SimDisk()
    lay(disk)
    counter = WriteCounter(disk)
    fault = counter.fail(kind, 1, number, path_part=".spare-")
    EngineDriver(counter)
    assert fault.hits == 1
    assert counter.log_bytes > len(disk.contents()[SEGMENT]) / 2
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40))
    assert not [path for path in disk.contents() if ".spare-" in path], "nothing of the copy is left"


def test_a_copy_that_fails_for_another_reason_is_made_at_the_next_start() -> None:
    disk = SimDisk()
    with_unsynced_log(disk)
    faulty = FaultyDisk(disk)
    faulty.fail("write", 1, errno.EIO, path_part=".spare-")
    with pytest.raises(DiskError, match="spare-"):
        EngineDriver(faulty)
    assert not [path for path in disk.contents() if ".spare-" in path]
    EngineDriver(disk)
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40))


class ColdDisk(WriteCounter):
    """Memory holds nothing of any file, as after a start of the machine."""

    def around(self, call: Call, proceed: Callable[[], Any]) -> Any:
        return False if call.kind == "is_cached" else super().around(call, proceed)


def test_what_is_read_from_the_disk_itself_is_not_read_again() -> None:
    disk = SimDisk()
    with_log(disk)
    cold = ColdDisk(disk)
    EngineDriver(cold)
    assert not [site for site in cold.history if site.kind == "reread"]
    assert cold.log_bytes < len(disk.contents()[SEGMENT]) / 2, "it is sealed where it is"
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40))


def test_a_log_that_the_disk_does_not_give_back_is_written_anew() -> None:
    disk = SimDisk()
    with_log(disk)
    counter = WriteCounter(disk)
    counter.fail("reread", 1, errno.EIO, path_part=LOG)
    EngineDriver(counter)
    assert counter.log_bytes > len(disk.contents()[SEGMENT]) / 2
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40))


def test_a_log_with_bytes_that_wait_for_a_sync_is_written_anew() -> None:
    disk = SimDisk()
    with_unsynced_log(disk)
    counter = WriteCounter(disk)
    EngineDriver(counter)
    assert counter.log_bytes > len(disk.contents()[SEGMENT]) / 2
    assert numbers_in(disk.crash(CrashMode.DROP)) == list(range(40))


def test_on_a_file_system_too(tmp_path: object) -> None:
    disk = PosixDisk(str(tmp_path))
    with_log(disk)
    counter = WriteCounter(disk)
    driver = EngineDriver(counter)
    (info,) = driver.engine.segments()
    assert info.bundle_count == 40
    file = disk.open_read(SEGMENT)
    SegmentReader(file.read(file.size(), 0)).verify_checksum()
    file.close()
    driver.engine.close()
