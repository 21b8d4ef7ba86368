"""Where bundles were lost, damaged entries stand between the others, and one of them may look like the entry of another bundle."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from quiver_actors.errors import ChecksumMismatch, FormatError
from quiver_actors.store.jobs.rebuild import Hints, rebuild
from quiver_actors.store.segment.checked import CheckedReader
from quiver_actors.store.segment.contents import Contents
from quiver_actors.store.segment.entry_places import entry_places
from quiver_actors.store.segment.layout import LOG_HEADER_BYTES
from tests.disks.simulated import SimDisk
from tests.unit.store.segment.logfile import LogFile

LENGTH_AT, SEQUENCE_AT = 0, 13


def log_of(rows: list[int], first_sequence: int) -> tuple[LogFile, list[int]]:
    """A log of bundles with so many rows, and the starts of its entries."""
    log, starts = LogFile(first_sequence=first_sequence), []
    for number, count in enumerate(rows):
        starts.append(len(log.data))
        log.push({slot: pa.record_batch({"id": [number * 1000 + row for row in range(count)]}) for slot in (1, 2)})
    return log, starts


def rescued(damaged: bytes) -> bytes:
    """What a rescue makes of it: the entry of bundle 1 is no bundle any more, and still in the file."""
    disk = SimDisk()
    found = rebuild(
        lambda length, offset: damaged[offset : offset + length], len(damaged), disk.create("new"), Hints(7, b"")
    )
    assert found is not None
    assert found.lost == (1,)
    return disk.contents()["new"]


def check_all_but_the_lost_one(log: LogFile, content: bytes) -> None:
    reader = CheckedReader(content)
    for index, pushed in enumerate(log.pushed):
        assert reader.bundle(index) == ({} if index == 1 else pushed), f"bundle {index}"


@pytest.mark.parametrize("first_sequence", [0, 1, 2])
@pytest.mark.parametrize("rows", [3, 4000])
def test_what_is_left_of_a_lost_bundle_is_not_taken_for_another_of_its_size(rows: int, first_sequence: int) -> None:
    """Regression: in a segment that began with sequence 1 the damaged entry of bundle 1 was taken for that of bundle 2, which had the same
    size: nobody could read bundle 2, and of large bundles none of the file."""
    log, starts = log_of([rows] * 4, first_sequence)
    content = bytearray(log.seal())
    content[starts[1] + 300] ^= 1
    check_all_but_the_lost_one(log, rescued(bytes(content)))


def flipped_heads(content: bytes, start: int) -> Iterator[bytes]:
    """Flip each bit of the length and the sequence of an entry."""
    for at in (*range(LENGTH_AT, LENGTH_AT + 4), *range(SEQUENCE_AT, SEQUENCE_AT + 8)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[start + at] ^= 1 << bit
            yield bytes(flipped)


def test_whatever_a_flipped_bit_makes_of_the_head_of_a_lost_bundle_the_others_are_found() -> None:
    log, starts = log_of([3, 3, 3, 40], 1)
    for damaged in flipped_heads(log.seal(), starts[1]):
        check_all_but_the_lost_one(log, rescued(damaged))


def test_a_damaged_head_that_says_it_is_the_next_entry_is_not_believed_before_its_checksum() -> None:
    """It claims the size and the number of the entry behind it, and would reach into that as far as its messages."""
    log, starts = log_of([3, 1, 400], 100)
    size = len(log.data) - starts[2]
    content = bytearray(log.seal())
    struct.pack_into("<I", content, starts[1], size - 8)
    struct.pack_into("<Q", content, starts[1] + SEQUENCE_AT, 102)
    check_all_but_the_lost_one(log, rescued(bytes(content)))


def test_damage_that_comes_later_costs_its_own_bundle_only() -> None:
    log, starts = log_of([4000] * 4, 1)
    content = bytearray(log.seal())
    content[starts[1] + 300] ^= 1
    later = bytearray(rescued(bytes(content)))
    later[starts[2] + 300] ^= 1
    reader = CheckedReader(bytes(later))
    assert reader.bundle(0) == log.pushed[0]
    assert reader.bundle(3) == log.pushed[3]
    with pytest.raises(ChecksumMismatch, match="bundle 2 is damaged"):
        reader.bundle(2)


def test_an_entry_whose_head_is_gone_is_not_found() -> None:
    log, starts = log_of([3] * 4, 1)
    content = bytearray(log.seal())
    content[starts[1] + 300] ^= 1
    later = bytearray(rescued(bytes(content)))
    later[starts[2] : starts[2] + 21] = bytes(21)
    with pytest.raises(FormatError, match="entry of bundle 2 is damaged: it cannot be found"):
        CheckedReader(bytes(later))


def test_an_entry_in_which_another_like_it_seems_to_begin_is_damaged_and_the_others_are_found() -> None:
    """The second head lies among those of the slots, where both places are in front of the first message."""
    log, starts = LogFile(first_sequence=1), []
    for number in range(4):
        starts.append(len(log.data))
        log.push({slot: pa.record_batch({"id": [number]}) for slot in range(20)})
    size = starts[3] - starts[2]
    content = bytearray(log.seal())
    content[starts[1] + size - 300] ^= 1
    broken = bytearray(rescued(bytes(content)))
    at = starts[2] + 64
    broken[at : at + 4], broken[at + 13 : at + 21] = broken[starts[2] : starts[2] + 4], struct.pack("<Q", 3)
    reader = CheckedReader(bytes(broken))
    with pytest.raises(ChecksumMismatch):
        reader.bundle(2)
    assert [reader.bundle(index) for index in (0, 1, 3)] == [log.pushed[0], {}, log.pushed[3]]


def rescued_contents() -> Contents:
    """The end of a rescued file, in which the messages of bundles say where their entries are."""
    log, starts = log_of([3] * 3, 1)
    content = bytearray(log.seal())
    content[starts[1] + 300] ^= 1
    file = memoryview(rescued(bytes(content)))
    reader = CheckedReader(file)
    streams = {each.stream_id: each for each in reader.streams}
    return Contents(file, lambda start, end: None, reader.footer, streams, reader.manifest)


def places_in(contents: Contents) -> tuple[list[int], list[int]]:
    extension = contents.footer.extension
    assert extension is not None
    entries_end = LOG_HEADER_BYTES + extension.wal_position_end - extension.wal_position_start
    starts, sizes = entry_places(contents, extension, entries_end)
    return starts.tolist(), sizes.tolist()


def test_where_no_bundle_has_slots_no_entry_is_looked_for() -> None:
    contents = rescued_contents()
    empty = contents.manifest._replace(ref_ends=[0] * len(contents.manifest.ref_ends))
    assert places_in(contents._replace(manifest=empty)) == ([LOG_HEADER_BYTES] * 3, [0] * 3)


@pytest.mark.parametrize("part", ["stream", "batch"])
def test_a_manifest_that_names_what_the_file_does_not_have_is_damaged(part: str) -> None:
    contents = rescued_contents()
    if part == "stream":
        wrong = contents._replace(streams={})
    else:
        chunks = [9] * len(contents.manifest.ref_chunks)
        wrong = contents._replace(manifest=contents.manifest._replace(ref_chunks=chunks))
    with pytest.raises(ChecksumMismatch, match=f"names a {part}"):
        places_in(wrong)
