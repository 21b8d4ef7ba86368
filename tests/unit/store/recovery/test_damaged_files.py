"""Small files that are damaged or of a newer program when a directory is opened: no subscriber is forgotten, nothing is deleted."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable

import crc32c
import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import UnsupportedVersion
from quiver_actors.store.files.core_file import decode_core, encode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.staged.keys import PRODUCERS_MAGIC
from quiver_actors.store.staged.records import JOURNAL_MAGIC, STAGE_MAGIC, encode_frame
from quiver_actors.store.subscriber.gaps import GapLedger, gaps_file_name
from quiver_actors.store.subscriber.progress import progress_file_name
from quiver_actors.store.wal import layout
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
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


def say_that_it_was_stopped(disk: SimDisk) -> None:
    """Have `quiver.core` say that the last stop was a clean one, so that no log can have been lost."""
    replace(
        disk, PATHS.core, lambda content: encode_core(dataclasses.replace(decode_core(content), clean_shutdown=True))
    )


def flipped(content: bytes) -> bytes:
    return content[:20] + bytes([content[20] ^ 1]) + content[21:]


def newer(content: bytes) -> bytes:
    """Return the file as version 2, with a checksum that fits."""
    body = content[:8] + (2).to_bytes(2, "little") + content[10:-4]
    return body + crc32c.crc32c(body).to_bytes(4, "little")


def half_delivered() -> SimDisk:
    """A store that nobody has open, whose subscriber has resolved two of three bundles."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
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
    """Return the content of each file in quarantine."""
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


def with_a_notice_and_damaged_progress() -> SimDisk:
    """A store that nobody has open, with two segments of which the subscriber was moved past the first and not told yet."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    for first in (0, 2):
        driver.push_numbered(first, 2)
        driver.seal()
    driver.engine.registrations.seek("s", "bundle:0/1/0")
    driver.drain_and_close()
    replace(disk, PROGRESS, flipped)
    return disk


def test_with_damaged_progress_what_was_announced_as_lost_is_not_delivered() -> None:
    driver = opened(with_a_notice_and_damaged_progress())
    assert driver.claim_numbers("s") == [2, 3]
    assert [(gap.segment_seq, gap.bundle_count) for gap in driver.told] == [(0, 2)]


def test_with_damaged_progress_a_notice_that_was_acknowledged_is_not_told_again() -> None:
    disk = with_a_notice_and_damaged_progress()
    driver = opened(disk)
    driver.flush_progress()
    (notice,) = driver.take_gaps("s")
    ticket = driver.engine.claims.ack_gap("s", notice.notice)
    driver.settle()
    assert driver.engine.progress.durable >= ticket
    driver = opened(disk.crash(CrashMode.DROP))
    assert driver.take_gaps("s") == []


def newer_frame(magic: bytes) -> bytes:
    body = magic + b"\2\0" + encode_frame(magic, [])[10:-4]
    return body + crc32(body).to_bytes(4, "little")


def newer_core(content: bytes) -> bytes:
    return content[:8] + b"\2\0" + content[10:20] + flipped(content[:21])[20:] + content[21:]


def newer_segment(content: bytes) -> bytes:
    """A footer of version 2, under a checksum that fits."""
    footer_bytes = int.from_bytes(content[-16:-12], "little")
    start = len(content) - 16 - footer_bytes
    body = content[:start] + b"\2\0" + content[start + 2 : -4]
    return body + crc32(body).to_bytes(4, "little")


NEWER = {
    PROGRESS: newer,
    GAPS: lambda _: newer(GapLedger().encode(0)),
    PATHS.core: newer_core,
    PATHS.segment(0): newer_segment,
    PATHS.segment(7) + ".rescued": lambda _: newer_segment(half_delivered().contents()[PATHS.segment(0)]),
    f"{PATHS.wal}/quiver.wal": lambda _: layout.WAL_MAGIC + b"\2\0" + bytes(200),
    PATHS.producers: lambda _: newer_frame(PRODUCERS_MAGIC),
    PATHS.transactions: lambda _: newer_frame(JOURNAL_MAGIC),
    PATHS.prepared(1): lambda _: newer_frame(STAGE_MAGIC),
}
"""Changes that make a file one of a newer program."""


@pytest.mark.parametrize("path", NEWER, ids=lambda path: path.removeprefix(f"{PATHS.root}/"))
def test_a_directory_of_a_newer_program_is_refused_and_left_as_it_is(path: str) -> None:
    disk = half_delivered()
    if path.startswith(PATHS.staged):
        disk.make_directory(PATHS.staged)
    replace(disk, path, NEWER[path])
    damaged = next(other for other in (GAPS, PROGRESS, PATHS.core) if other != path)
    replace(disk, damaged, lambda _: b"damaged")
    for directory in (PATHS.root, PATHS.wal, PATHS.segments):
        replace(disk, f"{directory}/left over.tmp", lambda _: b"of a job that was cut off")
    before = disk.contents()
    with pytest.raises(UnsupportedVersion, match="version 2"):
        EngineDriver(disk)
    assert disk.contents() == before


def test_progress_that_the_disk_does_not_give_back_keeps_no_engine_from_opening() -> None:
    disk = half_delivered()
    faulty = FaultyDisk(disk)
    faulty.fail("read", 1, errno.EIO, then=["read"], path_part="quiver.sub.s")
    driver = EngineDriver(faulty)
    driver.settle()
    assert driver.claim_numbers("s") == [0, 1, 2]
    assert len(kept(disk)) == 1
