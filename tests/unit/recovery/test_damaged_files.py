"""Small files that are damaged or of a newer program when a directory is opened: no subscriber is forgotten, nothing is deleted."""

from __future__ import annotations

from collections.abc import Callable

import crc32c
import pytest

from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.errors import UnsupportedVersion
from quiver_actors.paths import EnginePaths
from quiver_actors.subscriber.gaps import GapLedger, gaps_file_name
from quiver_actors.subscriber.progress import progress_file_name
from tests.support.engine_driver import EngineDriver

PATHS = EnginePaths("default/core_0")
PROGRESS = PATHS.in_root(progress_file_name("s"))
GAPS = PATHS.in_root(gaps_file_name("s"))


def replace(disk: SimDisk, path: str, change: Callable[[bytes], bytes]) -> bytes:
    """Write a file anew. Returns what stands in it."""
    content = change(disk.contents().get(path, b""))
    if disk.exists(path):
        disk.unlink(path)
    file = disk.create(path)
    file.write([content], 0)
    file.fsync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0])
    return content


def flipped(content: bytes) -> bytes:
    return content[:20] + bytes([content[20] ^ 1]) + content[21:]


def newer(content: bytes) -> bytes:
    """The same of version 2, with a checksum that fits."""
    body = content[:8] + (2).to_bytes(2, "little") + content[10:-4]
    return body + crc32c.crc32c(body).to_bytes(4, "little")


def half_delivered() -> SimDisk:
    """A store that nobody has open, whose subscriber has resolved two of three bundles."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.register("s", "earliest")
    driver.push_numbered(0, 3)
    driver.seal()
    (grant,) = driver.claim("s", "owner", 2)
    driver.resolve("s", "owner", grant.segment_seq, "ack", grant.indexes)
    driver.flush_progress()
    driver.engine.close()
    return disk


def opened(disk: SimDisk) -> EngineDriver:
    driver = EngineDriver(disk)
    driver.settle()
    return driver


def kept(disk: SimDisk) -> list[bytes]:
    """What is in quarantine."""
    return [content for path, content in disk.contents().items() if path.startswith(f"{PATHS.quarantine}/")]


@pytest.mark.parametrize(
    "change", [flipped, lambda content: content[:10], lambda content: b""], ids=["bit", "cut", "empty"]
)
def test_a_subscriber_whose_progress_is_damaged_stays_known_and_gets_everything_again(
    change: Callable[[bytes], bytes],
) -> None:
    disk = half_delivered()
    damaged = replace(disk, PROGRESS, change)
    driver = opened(disk)
    assert driver.claim_numbers("s") == [0, 1, 2]
    assert kept(disk) == [damaged]
    assert any(PROGRESS in note for note in driver.engine.recovery_notes)
    driver.engine.close()
    left = disk.crash(CrashMode.DROP)
    driver = opened(left)
    assert driver.claim_numbers("s") == [0, 1, 2], "also after a power loss"
    assert kept(left) == [damaged], "moved aside once"


def test_damaged_notices_are_moved_aside_and_progress_is_kept() -> None:
    disk = half_delivered()
    damaged = replace(disk, GAPS, lambda _: flipped(GapLedger().encode(0)))
    driver = opened(disk)
    assert driver.claim_numbers("s") == [2]
    assert kept(disk) == [damaged]
    assert not disk.exists(GAPS)


@pytest.mark.parametrize("path", [PROGRESS, GAPS], ids=["progress", "notices"])
def test_files_of_a_newer_program_are_refused_and_left_alone(path: str) -> None:
    disk = half_delivered()
    replace(disk, path, lambda content: newer(content or GapLedger().encode(0)))
    before = disk.contents()
    with pytest.raises(UnsupportedVersion, match="version 2"):
        EngineDriver(disk)
    assert disk.contents() == before
