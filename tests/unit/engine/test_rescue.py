"""A damaged segment costs the bundles that the damage touches, whatever it is and however it was found."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quiver_actors.checksum import crc32
from quiver_actors.config import RetentionSettings
from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import FaultyDisk, SimulatedCrash
from quiver_actors.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.disk.monitor import OrderMonitor
from quiver_actors.disk.posix import PosixDisk
from quiver_actors.disk.protocol import Disk, DiskFile
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.engine import EngineState
from quiver_actors.events import Failed, GapFound, Sealed
from quiver_actors.rescue import RescueJob
from quiver_actors.segment.layout import CRC, EXTENSION, TRAILER
from quiver_actors.segment.reader import SegmentReader
from quiver_actors.units import SECOND_NS
from quiver_actors.upkeep import COMPACTION_AGE_NS
from quiver_actors.wal.layout import ENTRY_TYPE_STAGED, HEADER_BYTES, HEADER_EXTENSION_OFFSET
from quiver_actors.wal.reader import LogReader
from tests.golden.parser import parse_segment
from tests.golden.test_segments import DATA
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings

ENGINE = "default/core_0"
COUNT = 8
"""Bundles of segment 0; segment 1 has two more."""


def segment(segment_seq: int = 0) -> str:
    return f"{ENGINE}/segments/{segment_seq:016}.qseg"


def store(disk: Disk, count: int = COUNT) -> EngineDriver:
    """Two sealed segments and a subscriber that is owed everything; closed."""
    driver = EngineDriver(disk)
    driver.engine.register("s", "earliest")
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
    """What the driver was told while it claimed."""
    return [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in driver.told]


def in_quarantine(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / ENGINE / "quarantine").iterdir())


# --- files sealed in place ------------------------------------------------------------------------------------------------


def test_a_damaged_entry_costs_its_bundle(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    damaged = path.read_bytes()
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT + 2)]
    assert gaps(driver) == [(0, 3, 1, "damaged")]
    assert (tmp_path / ENGINE / "quarantine" / in_quarantine(tmp_path)[0]).read_bytes() == damaged
    reader = driver.read(0)
    reader.verify_checksum()
    assert reader.bundles_without_slots() == (3,)
    assert [reader.sequence(index) for index in range(COUNT)] == list(range(COUNT))
    assert [reader.item_count(index) for index in (0, 2, 4)] == [3, 3, 3]
    assert path.stat().st_mode & 0o777 == 0o440
    assert driver.engine.figures().quarantined == 1


def test_what_was_rescued_is_healthy_at_the_next_start(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    driver = reopened(disk)
    driver.drain_and_close()
    driver = reopened(disk)
    assert driver.engine.figures().quarantined == 0
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT + 2)]
    assert gaps(driver) == [(0, 3, 1, "damaged")], "not acknowledged, and so told again"


def test_a_gap_is_only_for_what_a_subscriber_had_not_resolved(disk: Disk, tmp_path: Path) -> None:
    driver = store(disk)
    driver.engine.register("done", "earliest")
    for segment_seq, indexes, *_ in driver.claim("done", "x", 5):
        driver.resolve("done", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    driver.drain_and_close()
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    driver = reopened(disk)
    assert driver.claim_numbers("done") == [5, 6, 7, 8, 9]
    assert gaps(driver) == []
    assert len(driver.claim_numbers("s")) == COUNT + 1
    assert [gap[:3] for gap in gaps(driver)] == [(0, 3, 1)]


def test_claiming_one_by_one_does_not_stop_at_lost_bundles(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    first, *_ = entry_offsets(path)
    overwrite(path, first, bytes(entry_offsets(path)[3] - first))
    driver = reopened(disk)
    assert driver.claim_numbers("s", bundles=1) == [3]
    assert gaps(driver) == [(0, 0, 3, "damaged")]


@pytest.mark.parametrize("part", ["arrow footer", "directory", "manifest", "footer", "trailer", "header"])
def test_damage_outside_of_the_entries_costs_nothing(disk: Disk, tmp_path: Path, part: str) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    original = path.read_bytes()
    footer = SegmentReader(original).footer
    offset = {
        "arrow footer": footer.directory_offset - 100,
        "directory": footer.directory_offset + 700,
        "manifest": footer.manifest_offset + 900,
        "footer": len(original) - 100,
        "trailer": len(original) - 10,
        "header": 75,
    }[part]
    flip(path, offset)
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
    assert gaps(driver) == []
    assert driver.engine.figures().quarantined == 1
    assert path.read_bytes() == original, "rebuilt to the byte"


def test_item_counts_that_nothing_proves_become_unknown(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    data = path.read_bytes()
    manifest = SegmentReader(data).footer.manifest_offset
    offset = data.index((3).to_bytes(8, "little") * 4, manifest)
    overwrite(path, offset, b"\x07")
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
    assert {driver.read(0).item_count(index) for index in range(COUNT)} == {None}


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9])
def test_a_file_cut_short_loses_its_end(disk: Disk, tmp_path: Path, kept: float) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    offsets = entry_offsets(path)
    end = round(path.stat().st_size * kept)
    whole = sum(offset <= end for offset in offsets[1:])
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate(end)
    driver = reopened(disk)
    left = driver.claim_numbers("s")
    assert left == [*range(whole if kept < 0.9 else COUNT), COUNT, COUNT + 1]
    lost = COUNT - (len(left) - 2)
    assert gaps(driver) == ([(0, COUNT - lost, lost, "damaged")] if lost else [])


def test_an_end_that_nobody_knows_is_announced_as_one(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment(1)
    first, second = entry_offsets(path)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate((first + second) // 2 + (second - first))
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 1))
    assert gaps(driver) == [(1, 1, 0, "damaged")], "no later segment says how many there were"


def test_nothing_left_is_one_gap_and_later_segments_are_delivered(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    overwrite(path, 0, Random(1).randbytes(path.stat().st_size))
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    assert gaps(driver) == [(0, 0, 0, "damaged")], "nobody knows how many they were"
    assert not path.exists()
    assert [info.segment_seq for info in driver.engine.segments()] == [1]
    driver.engine.register("new", "earliest")
    assert driver.claim_numbers("new") == [COUNT, COUNT + 1]


def test_numbers_of_an_unreadable_segment_are_not_used_again(disk: Disk, tmp_path: Path) -> None:
    driver = store(disk)
    (run,) = driver.push_numbered(100)
    driver.settle()
    driver.seal()
    driver.drain_and_close()
    newest = tmp_path / segment(run.segment_seq)
    overwrite(newest, newest.stat().st_size - 200, bytes(200))
    (tmp_path / ENGINE / "quiver.core").unlink()
    (tmp_path / ENGINE / "wal/quiver.wal").unlink()
    driver = reopened(disk)
    (new,) = driver.push_numbered(101)
    assert new.segment_seq > run.segment_seq
    assert new.sequence > run.sequence
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("s")[-2:] == [100, 101]


def test_numbers_of_a_segment_that_tells_none_are_not_used_again(disk: Disk, tmp_path: Path) -> None:
    """Neither its end nor what its header says of it can be read: what was reserved ahead is what counts."""
    driver = store(disk)
    (run,) = driver.push_numbered(100)
    driver.settle()
    driver.seal()
    driver.engine.close()
    newest = tmp_path / segment(run.segment_seq)
    overwrite(newest, newest.stat().st_size - 200, bytes(200))
    overwrite(newest, HEADER_EXTENSION_OFFSET, bytes(HEADER_BYTES - HEADER_EXTENSION_OFFSET))
    driver = reopened(disk)
    (new,) = driver.push_numbered(101)
    assert new.segment_seq > run.segment_seq
    assert new.sequence > run.sequence


def test_a_footer_that_contradicts_itself_is_believed_if_the_checksum_is_right(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    row_count_at = path.stat().st_size - TRAILER.size - EXTENSION.size + 50
    overwrite(path, row_count_at, (1 << 50).to_bytes(8, "little"))
    with_right_checksum(path)
    driver = reopened(disk)
    assert driver.engine.segments()[0].row_count == 1 << 50
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
    assert (gaps(driver), driver.engine.figures().quarantined) == ([], 0)


def test_files_beside_the_segments_are_left_alone(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    notes = [tmp_path / ENGINE / "segments" / name for name in ("notes.txt", "7.qseg", "00000000000000007.qseg")]
    for path in notes:
        path.write_text("of an operator")
    assert reopened(disk).claim_numbers("s") == list(range(COUNT + 2))
    assert [path.read_text() for path in notes] == ["of an operator"] * 3


def test_a_flipped_version_is_damage_and_a_newer_version_is_not(disk: Disk, tmp_path: Path) -> None:
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, path.stat().st_size - 16 - 74 - 34, 0x02)
    assert reopened(disk).claim_numbers("s") == list(range(COUNT + 2))


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_is_survived_and_what_is_delivered_is_right(tmp_path: Path, disk: Disk, seed: int) -> None:
    closed_store(disk)
    path, random = tmp_path / segment(), Random(seed)
    size = path.stat().st_size
    for _ in range(random.randint(1, 4)):
        start = random.randrange(size)
        length = min(size - start, random.choice((1, 64, 512, 4096)))
        overwrite(path, start, random.choice((bytes(length), random.randbytes(length))))
    driver = reopened(disk)
    left = driver.claim_numbers("s")
    assert set(left) <= set(range(COUNT + 2))
    assert left[-2:] == [COUNT, COUNT + 1]
    named = {index for seq, first, count, _ in gaps(driver) for index in range(first, first + count)}
    assert named == set(range(COUNT)) - set(left) or (0, 0, 0, "damaged") in gaps(driver)
    assert not [event for event in driver.events if isinstance(event, Failed)]
    driver.push_numbered(50)
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("s") == [50]


# --- parts that contradict each other ---------------------------------------------------------------------------------------


def in_extension(path: Path, field: int) -> int:
    """Where that byte of the footer's extension stands."""
    return path.stat().st_size - TRAILER.size - EXTENSION.size + field


def number_at(path: Path, offset: int) -> int:
    return int.from_bytes(path.read_bytes()[offset:][:8], "little")


def with_right_checksum(path: Path) -> None:
    content = path.read_bytes()[: -CRC.size]
    overwrite(path, len(content), CRC.pack(crc32(content)))


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
    """What is written for a rescue is read back as something else."""

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
    driver.engine.register("new", "earliest")
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


# --- in the middle of things ------------------------------------------------------------------------------------------------


def test_without_room_for_a_rescue_later_segments_are_delivered_first(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    assert driver.engine.state is EngineState.READY
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    driver.flush_progress()
    driver.run_for(25 * SECOND_NS)
    assert path.exists(), "the damaged file stays where it is until it can be rebuilt"
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT)]
    assert gaps(driver) == [(0, 3, 1, "damaged")]
    assert [event.segment_seq for event in driver.events if isinstance(event, Sealed)] == [1, 0]


@pytest.mark.parametrize("says_its_count", [True, False])
def test_what_waits_for_room_to_be_rescued_is_owed(tmp_path: Path, says_its_count: bool) -> None:
    """A consumer that asked after a lost connection was told that nothing is owed of it, and then got it again."""
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    if says_its_count:
        flip(path, entry_offsets(path)[3] + 200)
    else:
        path.chmod(0o600)
        os.truncate(path, path.stat().st_size - 30)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [COUNT, COUNT + 1]
    driver.resolve("s", "owner", 1, "ack", [0, 1])
    driver.flush_progress()
    # Who reads ranges must not take it for gone.
    assert (0 in driver.engine.unlisted_segments()) == (not says_its_count)
    counts = driver.engine.pending("s", (0, 2), (0, 3))
    assert (counts.in_range, counts.drained) == (1, False)
    assert counts.unsealed == (COUNT if says_its_count else 1)
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    counts = driver.engine.pending("s", (0, 2), (0, 3))
    assert (counts.in_range, counts.drained, counts.unsealed) == (1, False, 0)
    assert 0 not in driver.engine.unlisted_segments()
    driver.claim("s", "owner", COUNT)
    driver.resolve("s", "owner", 0, "ack", [0, 1, 2, *range(3 + says_its_count, COUNT)])
    driver.take_gaps("s")
    assert driver.engine.pending("s", (0, 2), (0, 3)).in_range == 0


def test_what_was_rescued_late_goes_out_of_age_like_any_other(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size - 30)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    hour_ns = 3600 * SECOND_NS
    driver = EngineDriver(disk, topic_settings(retention=RetentionSettings(max_age_ns=hour_ns)))
    driver.run_for(SECOND_NS)
    disk.heal()
    driver.run_for(25 * SECOND_NS)
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1]
    driver.run_for(hour_ns)
    assert driver.engine.segments() == []


def test_progress_before_and_after_a_postponed_rescue_agree(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 100):
        driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    driver.engine._lock.release()
    disk.heal()
    driver = reopened(disk)
    assert driver.claim_numbers("s") == [0, 1, 2, *range(4, COUNT)]


def test_bundles_before_an_open_end_are_owed_also_where_their_rescue_had_to_wait(tmp_path: Path) -> None:
    """Progress that was flushed before the rebuilt file had its place took the segment for one that was not there."""
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    closed_store(disk)
    path = tmp_path / segment(1)
    first, second = entry_offsets(path)
    path.chmod(0o600)
    os.truncate(path, (first + second) // 2 + (second - first))
    disk.fail("write", 1, errno.ENOSPC, then=["write"], path_part=".rescued")
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT))
    disk.heal()
    driver.clock.advance(25 * SECOND_NS)
    while not isinstance(job := driver.engine.next_background(), RescueJob):
        assert job is not None
        job.run()
        driver.events += driver.engine.finish(job)
    job.run()
    driver.events += driver.engine.finish(job)
    driver.resolve("s", "owner", 0, "ack", range(COUNT))
    driver.flush_progress()
    assert driver.claim_numbers("s") == [COUNT]
    assert gaps(driver) == [(1, 1, 0, "damaged")], "no later segment says how many there were"


def rescue_points() -> int:
    disk = FaultyDisk(SimDisk())
    damaged_simulated_store(disk)
    before = disk.mutating_count
    reopened(disk)
    return disk.mutating_count - before


def damaged_simulated_store(disk: Disk) -> None:
    closed_store(disk)
    file = disk.open_read(segment())
    data = bytearray(file.read(file.size(), 0))
    file.close()
    data[2000] ^= 1
    disk.unlink(segment())
    damaged = disk.create(segment())
    damaged.write([bytes(data)], 0)
    damaged.fsync()
    damaged.close()
    disk.sync_directory(f"{ENGINE}/segments")


@pytest.mark.parametrize("mode", list(CrashMode), ids=lambda mode: mode.name.lower())
def test_a_crash_at_any_call_of_a_rescue_loses_nothing_more(mode: CrashMode) -> None:
    points = rescue_points()
    assert points > 15
    for point in range(1, points + 1):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        damaged_simulated_store(disk)
        disk.crash_at(disk.mutating_count + point)
        with pytest.raises(SimulatedCrash):
            reopened(OrderMonitor(disk))
        left = inner.crash(mode, point)
        driver = reopened(left)
        assert driver.claim_numbers("s") == [number for number in range(COUNT + 2) if number != 2]
        assert [name for name in left.list_directory(f"{ENGINE}/quarantine") if name.endswith(".0")]
        names = left.list_directory(f"{ENGINE}/segments")
        assert names == [segment(0).rpartition("/")[2], segment(1).rpartition("/")[2]]


def cut_simulated_store(disk: Disk) -> None:
    """The last segment ends inside its second bundle: nobody knows how many there were."""
    closed_store(disk)
    file = disk.open_read(segment(1))
    data = file.read(file.size(), 0)
    file.close()
    scan = LogReader(lambda length, at: data[at : at + length], len(data)).scan(HEADER_BYTES, stride=64)
    second = scan.entries[1]
    cut = (second.start + second.end) // 2
    disk.unlink(segment(1))
    damaged = disk.create(segment(1))
    damaged.write([data[:cut]], 0)
    damaged.fsync()
    damaged.close()
    disk.sync_directory(f"{ENGINE}/segments")


@pytest.mark.parametrize("mode", list(CrashMode), ids=lambda mode: mode.name.lower())
def test_a_crash_at_any_call_of_a_rescue_does_not_lose_the_notice_of_an_open_end(mode: CrashMode) -> None:
    counted = FaultyDisk(SimDisk())
    cut_simulated_store(counted)
    before = counted.mutating_count
    whole = reopened(counted)
    points = counted.mutating_count - before
    whole.claim_numbers("s")
    assert gaps(whole) == [(1, 1, 0, "damaged")]
    for point in range(1, points + 1):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        cut_simulated_store(disk)
        disk.crash_at(disk.mutating_count + point)
        with pytest.raises(SimulatedCrash):
            reopened(OrderMonitor(disk))
        driver = reopened(inner.crash(mode, point))
        assert driver.claim_numbers("s") == list(range(COUNT + 1))
        assert gaps(driver) == [(1, 1, 0, "damaged")], f"a crash at call {point} of {points}"


def test_bundles_before_an_open_end_are_still_owed_after_a_restart() -> None:
    disk = SimDisk()
    cut_simulated_store(disk)
    reopened(disk).engine.close()
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 1))
    assert gaps(driver) == [(1, 1, 0, "damaged")]
