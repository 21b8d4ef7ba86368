"""Which segments of another writer hold the entries of our logs, and which are new data under a number of ours: each bundle comes once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

from quiver_actors.store.files.paths import EnginePaths
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import numbered_batch
from tests.support.other_writer import FOOTER, OtherWriter, segment_bytes
from tests.unit.store.recovery.test_damaged_files import kept, replace
from tests.unit.store.recovery.test_other_writers import DIRECTORY, THEIRS, killed, opened

PATHS = EnginePaths(DIRECTORY)


def put_segment(disk: SimDisk, segment_seq: int, numbers: Sequence[int]) -> None:
    content = segment_bytes([{0: numbered_batch(number)} for number in numbers])
    replace(disk, PATHS.segment(segment_seq), lambda _: content)


def places(disk: SimDisk) -> list[tuple[int, list[int]]]:
    """Return the bundles that a start delivers, by segment, in order; nothing is announced as lost."""
    driver = opened(disk)
    found = list[tuple[int, list[int]]]()
    for segment_seq, indexes, *_ in driver.claim("s", "x", 1_000):
        reader = driver.read_claimed(segment_seq)
        found.append((segment_seq, [reader.bundle(index)[0].column(0)[0].as_py() for index in indexes]))
    assert driver.take_gaps("s") == []
    return found


def test_a_segment_of_other_bundles_gives_up_the_number_of_our_log() -> None:
    """Our log was out of its sight: it was brought back afterwards."""
    disk = killed(4)
    put_segment(disk, 0, [THEIRS, THEIRS + 1])
    (ours, theirs) = places(disk)
    assert ours == (0, [0, 1, 2, 3]), "the ids that receipts named are right"
    assert theirs[0] > 0
    assert theirs[1] == [THEIRS, THEIRS + 1]


def test_a_segment_of_other_bundles_ends_what_segments_hold_of_a_log() -> None:
    disk = killed(5)
    put_segment(disk, 0, [0, 1])
    put_segment(disk, 1, [THEIRS])
    found = places(disk)
    assert found[0] == (0, [0, 1])
    assert sorted(number for _, numbers in found for number in numbers) == [0, 1, 2, 3, 4, THEIRS]


def test_what_a_log_has_is_looked_for_in_every_segment_that_is_new() -> None:
    disk = killed(3)
    put_segment(disk, 0, [THEIRS])
    put_segment(disk, 1, [0, 1, 2])
    found = places(disk)
    assert sorted(number for _, numbers in found for number in numbers) == [0, 1, 2, THEIRS]


def with_a_finished_seal(disk: SimDisk) -> SimDisk:
    """Return the disk of a start that was killed between the seal of our log and its rename."""
    left = disk.copy()
    opened(left)
    whole = left.contents()[PATHS.segment(0)]
    replace(disk, PATHS.active, lambda _: whole)
    return disk


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_log_that_only_lacks_its_name_and_that_another_writer_has_sealed_comes_once(goes_on: bool) -> None:
    disk = with_a_finished_seal(killed(4))
    other = OtherWriter(disk.copy(), DIRECTORY)
    assert len(other.open_bundles) == 4
    put_segment(disk, 0, range(4))
    if goes_on:
        put_segment(disk, 1, [THEIRS])
    assert places(disk) == [(0, [0, 1, 2, 3]), *([(1, [THEIRS])] if goes_on else [])]
    assert kept(disk) == []
    assert [path for path in disk.contents() if path.endswith(".qseg")] == [
        PATHS.segment(number) for number in range(1 + goes_on)
    ]


def test_a_finished_seal_of_which_another_writer_has_sealed_nothing_keeps_its_number() -> None:
    disk = with_a_finished_seal(killed(4))
    put_segment(disk, 0, [THEIRS])
    (ours, theirs) = places(disk)
    assert ours == (0, [0, 1, 2, 3])
    assert theirs[1] == [THEIRS]


def test_a_new_segment_that_cannot_be_read_keeps_no_start_from_its_end() -> None:
    """Its checksum is right, and its directory is none."""
    disk = killed(4)
    content = garbled(segment_bytes([{0: numbered_batch(THEIRS)}]))
    replace(disk, PATHS.segment(5), lambda _: content)
    driver = opened(disk)
    assert any("keys of segment 5 cannot be read" in note for note in driver.engine.recovery_notes)
    assert [info.segment_seq for info in driver.engine.segments()][:1] == [0]
    assert driver.read(0).bundle_count == 4


def garbled(segment: bytes) -> bytes:
    """Return a segment whose directory is no Arrow file, under a checksum that fits."""
    footer_start = len(segment) - 16 - FOOTER.size
    directory_start, directory_bytes = FOOTER.unpack_from(segment, footer_start)[3:5]
    body = segment[:directory_start] + bytes(directory_bytes) + segment[directory_start + directory_bytes : -4]
    return body + zlib.crc32(body).to_bytes(4, "little")
