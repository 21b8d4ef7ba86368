"""Rescues of files whose parts contradict each other, of other writers' files, and from disks that do not give everything back."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, DiskFile
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS
from quiver_actors.store.segment.layout import CRC
from quiver_actors.store.wal.layout import ENTRY_TYPE_STAGED, HEADER_BYTES
from tests.golden.parser import parse_segment
from tests.golden.test_segments import DATA
from tests.unit.store.engine.damaged_store import (
    COUNT,
    ENGINE,
    closed_store,
    entry_offsets,
    flip,
    gaps,
    in_extension,
    in_quarantine,
    overwrite,
    reopened,
    segment,
    store,
    with_right_checksum,
)

# --- parts that contradict each other ---------------------------------------------------------------------------------------


def number_at(path: Path, offset: int) -> int:
    return int.from_bytes(path.read_bytes()[offset:][:8], "little")


def with_another_type(path: Path, entry: int, end: int, entry_type: int) -> None:
    """The entry is whole, and of another type."""
    content = bytearray(path.read_bytes()[entry:end])
    content[4] = entry_type
    overwrite(path, entry, bytes(content[:-4]) + CRC.pack(crc32(content[4:-4])))


@pytest.mark.parametrize("is_next_damaged", [False, True])
def test_a_footer_that_says_a_smaller_end_costs_nothing_that_follows_whole(
    disk: Disk, tmp_path: Path, is_next_damaged: bool
) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    offsets = entry_offsets(path)
    at = in_extension(path, 10)
    overwrite(path, at, (number_at(path, at) - 2 * (offsets[7] - offsets[6])).to_bytes(8, "little"))
    if is_next_damaged:
        flip(path, offsets[6] + 100)
    driver = reopened(disk)
    left = driver.claim_numbers("s")
    assert left == [*range(6 if is_next_damaged else COUNT), COUNT, COUNT + 1]
    assert gaps(driver) == ([(0, 6, 2, "damaged")] if is_next_damaged else [])


def test_a_footer_that_numbers_other_bundles_than_the_header_is_not_believed(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    for field in (18, 26):
        at = in_extension(path, field)
        overwrite(path, at, (number_at(path, at) + 1).to_bytes(8, "little"))
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
    assert not gaps(driver)


def test_a_next_segment_that_begins_too_early_tells_nothing(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path, following = tmp_path / segment(), tmp_path / segment(1)
    overwrite(path, path.stat().st_size - 60, bytes(60))
    overwrite(following, in_extension(following, 2), bytes(8))
    with_right_checksum(following)
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
    assert not gaps(driver)


def test_two_damaged_segments_side_by_side_are_rescued_each(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    first, second = tmp_path / segment(), tmp_path / segment(1)
    flip(first, entry_offsets(first)[3] + 200)
    overwrite(second, second.stat().st_size - 60, bytes(60))
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT + 2)]
    assert gaps(driver) == [(0, 3, 1, "damaged")]


@pytest.mark.parametrize("what", ["no entry where the first was", "a first entry that says only its place"])
def test_entries_of_which_nobody_knows_the_numbers_are_lost(disk: Disk, tmp_path: Path, what: str) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    first, second, *_ = entry_offsets(path)
    overwrite(path, path.stat().st_size - 60, bytes(60))
    overwrite(path, 64, bytes(HEADER_BYTES - 64))
    if what == "no entry where the first was":
        flip(path, first + 200)
    else:
        with_another_type(path, first, second, ENTRY_TYPE_STAGED)
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    assert [gap[0] for gap in gaps(driver)] == [0]
    assert len(in_quarantine(tmp_path)) == 1


def test_whole_entries_that_are_no_bundles_leave_nothing(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment(1)
    first, second = entry_offsets(path)
    with_another_type(path, first, second, 9)
    with_another_type(path, second, second + (second - first), 9)
    overwrite(path, path.stat().st_size - 60, bytes(60))
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT))
    assert [gap[0] for gap in gaps(driver)] == [1]
    assert len(in_quarantine(tmp_path)) == 1


class OtherBytes(InterposedDisk):
    """A disk that reads back other bytes than a rescue has written."""

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        result = proceed()
        is_read = call.kind == "read" and ".rescued" in call.path
        return bytes(len(result)) if is_read and isinstance(result, bytes) else result  # type: ignore[return-value]


def test_a_rescue_that_does_not_read_back_ends_and_keeps_the_damaged_file(tmp_path: Path) -> None:
    disk = PosixDisk(str(tmp_path))
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    damaged = path.read_bytes()
    driver = reopened(OtherBytes(disk))
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    assert gaps(driver) == [(0, 0, COUNT, "damaged")]
    (kept,) = in_quarantine(tmp_path)
    assert (tmp_path / ENGINE / "quarantine" / kept).read_bytes() == damaged
    assert driver.engine.state is EngineState.READY
    disk.close()


# --- other files ----------------------------------------------------------------------------------------------------------


def compacted_store(disk: Disk) -> None:
    driver = store(disk, 400)
    driver.run_for(2 * COMPACTION_AGE_NS)
    assert driver.engine.figures().compactions == 1
    driver.drain_and_close()


def test_damage_in_a_compacted_segment_costs_its_bundle(disk: Disk, tmp_path: Path) -> None:
    compacted_store(disk)
    path = tmp_path / segment()
    # One flipped bit would be put right.
    flip(path, 50_000)
    flip(path, 50_001)
    driver = reopened(disk)
    left = driver.claim_numbers("s")
    assert len(left) == 401
    ((segment_seq, lost, count, _),) = gaps(driver)
    assert (segment_seq, count) == (0, 1)
    assert left == [number for number in range(402) if number != lost]
    parse_segment(path.read_bytes())
    assert driver.read(0).item_count(0) == 3


def test_damage_in_a_segment_of_another_writer_costs_the_segment(disk: Disk, tmp_path: Path) -> None:
    target = tmp_path / ENGINE
    shutil.copytree(DATA / "quiver-v1", target)
    for path in target.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)
    flip(tmp_path / segment(0), 500)
    driver = reopened(disk)
    driver.engine.registrations.register("new", "earliest")
    assert {grant.segment_seq for grant in driver.claim("new", "x", 100)} >= {1}
    found = [event for event in driver.events if isinstance(event, GapFound) and event.subscriber == "sub-a"]
    assert [(gap.segment_seq, gap.bundle_index, gap.bundle_count) for gap in found] == [(0, 1, 1)], (
        "0 and 2 were resolved"
    )
    assert not (tmp_path / segment(0)).exists()
    assert in_quarantine(tmp_path)


# --- disks that do not give everything back ---------------------------------------------------------------------------------


class BadSectors(PosixDisk):
    """Reads that touch a byte range of one file fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.bad: tuple[str, int, int] = ("", 0, 0)

    def open_read(self, path: str) -> Any:
        return _BadFile(super().open_read(path), self) if path == self.bad[0] else super().open_read(path)


class _BadFile:
    def __init__(self, inner: DiskFile, disk: BadSectors) -> None:
        self._inner = inner
        self._disk = disk
        self.path = inner.path

    def read(self, length: int, offset: int) -> bytes:
        _, start, end = self._disk.bad
        if offset < end and offset + length > start:
            from quiver_actors.errors import DiskError

            raise DiskError("read", self.path, errno.EIO)
        return self._inner.read(length, offset)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.fixture
def bad_disk(tmp_path: Path) -> Iterator[BadSectors]:
    disk = BadSectors(tmp_path)
    yield disk
    disk.close()


def test_a_sector_that_cannot_be_read_costs_the_bundles_in_it(bad_disk: BadSectors, tmp_path: Path) -> None:
    closed_store(bad_disk, 60)
    offsets = entry_offsets(tmp_path / segment())
    bad_disk.bad = (segment(), 8192, 12288)
    driver = reopened(bad_disk)
    bad_disk.bad = ("", 0, 0)  # the name is another file's now
    lost = [index for index, offset in enumerate(offsets[:-1]) if offset < 12288 and offsets[index + 1] > 8192]
    assert 0 < len(lost) < 12
    assert driver.claim_numbers("s") == [number for number in range(62) if number not in lost]
    assert gaps(driver) == [(0, lost[0], len(lost), "damaged")]
    assert driver.engine.state is EngineState.READY


def test_a_footer_that_cannot_be_read_does_not_keep_the_store_from_opening(
    bad_disk: BadSectors, tmp_path: Path
) -> None:
    closed_store(bad_disk)
    size = (tmp_path / segment()).stat().st_size
    bad_disk.bad = (segment(), size - 50, size)
    driver = reopened(bad_disk)
    bad_disk.bad = ("", 0, 0)
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
