"""A directory with two segments, what damages it, and what an engine makes of it."""

from __future__ import annotations

from pathlib import Path

from quiver_actors.base.checksum import crc32
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.segment.layout import CRC, EXTENSION, TRAILER
from tests.golden.parser import parse_segment
from tests.support.engine_driver import EngineDriver, numbered_batch

ENGINE = "default/core_0"
COUNT = 8
"""Bundles of segment 0; segment 1 has two more."""


def segment(segment_seq: int = 0) -> str:
    return f"{ENGINE}/segments/{segment_seq:016}.qseg"


def store(disk: Disk, count: int = COUNT) -> EngineDriver:
    """Two sealed segments and a subscriber that is owed everything; closed."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push(*({0: numbered_batch(number)} for number in range(count)), item_count=3)
    driver.settle()
    driver.seal()
    driver.push_numbered(count, 2)
    driver.settle()
    driver.seal()
    return driver


def closed_store(disk: Disk, count: int = COUNT) -> None:
    store(disk, count).drain_and_close()


def reopened(disk: Disk) -> EngineDriver:
    driver = EngineDriver(disk)
    driver.settle()
    return driver


def overwrite(path: Path, offset: int, data: bytes) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int, mask: int = 0x40) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ mask]))


def entry_offsets(path: Path) -> list[int]:
    log = parse_segment(path.read_bytes()).log
    assert log is not None
    return [entry.at for entry in log.entries]


def gaps(driver: EngineDriver) -> list[tuple[int, int, int, str]]:
    """Return the notices that the driver was told while it claimed."""
    return [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in driver.told]


def in_quarantine(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / ENGINE / "quarantine").iterdir())


def in_extension(path: Path, field: int) -> int:
    """Return the place of a byte in the footer's extension."""
    return path.stat().st_size - TRAILER.size - EXTENSION.size + field


def with_right_checksum(path: Path) -> None:
    content = path.read_bytes()[: -CRC.size]
    overwrite(path, len(content), CRC.pack(crc32(content)))
