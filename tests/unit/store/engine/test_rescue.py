"""A damaged segment costs the bundles that the damage touches, whatever it is and however it was found."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import Failed
from quiver_actors.store.segment.layout import EXTENSION, TRAILER
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal.layout import HEADER_BYTES, HEADER_EXTENSION_OFFSET
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
    assert reader.manifest.lost() == (3,)
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
    driver.engine.registrations.register("done", "earliest")
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


@pytest.mark.parametrize(
    "part", ["arrow footer", "directory", "manifest", "footer", "size of the extension", "trailer", "header"]
)
def test_damage_outside_of_the_entries_costs_nothing(disk: Disk, tmp_path: Path, part: str) -> None:
    """A segment with another size of its extension looked like one of another writer: it got a new number, and was delivered again."""
    closed_store(disk)
    path = tmp_path / segment()
    original = path.read_bytes()
    footer = SegmentReader(original).footer
    offset = {
        "arrow footer": footer.directory_offset - 100,
        "directory": footer.directory_offset + 700,
        "manifest": footer.manifest_offset + 900,
        "footer": len(original) - 100,
        "size of the extension": in_extension(path, 0),
        "trailer": len(original) - 10,
        "header": 75,
    }[part]
    flip(path, offset)
    driver = reopened(disk)
    assert driver.claim_numbers("s") == list(range(COUNT + 2))
    assert gaps(driver) == []
    assert driver.engine.figures().quarantined == 1
    assert path.read_bytes() == original, "rebuilt to the byte"


@pytest.mark.parametrize("mask", [0x02, 0x40])
def test_what_was_resolved_does_not_come_again_under_another_number(disk: Disk, tmp_path: Path, mask: int) -> None:
    driver = store(disk)
    ((segment_seq, indexes, *_), *_) = driver.claim("s", "owner", COUNT)
    driver.resolve("s", "owner", segment_seq, "ack", indexes[:-1])
    driver.flush_progress()
    driver.engine._lock.release()  # killed
    flip(tmp_path / segment(), in_extension(tmp_path / segment(), 0), mask)
    assert reopened(disk).claim_numbers("s") == list(range(COUNT - 1, COUNT + 2))


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
    assert gaps(driver) == [(0, 0, COUNT, "damaged")], "the segment behind it says how many they were"
    assert not path.exists()
    assert [info.segment_seq for info in driver.engine.segments()] == [1]
    driver.engine.registrations.register("new", "earliest")
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
