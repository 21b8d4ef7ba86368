"""Entries of another writer in a log that has damage, too: what can be read is adopted, what cannot is kept, and ids stay right."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.recovery import Recovery, realign_entry
from quiver_actors.store.recovery.findings import EffectKind
from quiver_actors.store.wal.codec import decode_entry_header, decode_slots
from quiver_actors.store.wal.layout import ALIGNMENT, ENTRY_LENGTH_BYTES, HEADER_BYTES
from quiver_actors.store.wal.reader import LogReader, Span
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.support.other_writer import WAL_HEADER, OtherWriter, entries_of
from tests.unit.store.recovery.test_damaged_files import kept
from tests.unit.store.recovery.test_other_writers import DIRECTORY, THEIRS, bundle, killed, opened
from tests.unit.store.wal.logs import reader_of

PATHS = EnginePaths(DIRECTORY)


def append(disk: SimDisk, count: int) -> None:
    other = OtherWriter(disk, DIRECTORY)
    for number in range(THEIRS, THEIRS + count):
        other.append(bundle(number))


def with_a_damaged_log_of_theirs() -> tuple[SimDisk, int, bytes]:
    """Return a disk with a log of three entries of which the second is damaged, where that begins, and its bytes."""
    disk = SimDisk()
    EngineDriver(disk, directory=DIRECTORY).drain_and_close()
    disk.unlink(PATHS.active)
    append(disk, 3)
    start, end = entries_of(disk.contents()[PATHS.active], WAL_HEADER.size)[0][1]
    assert disk.flip_bit(PATHS.active, start + 90, 3)
    return disk, start, disk.contents()[PATHS.active][start:end]


def test_what_is_damaged_between_entries_of_another_writer_is_kept_aside() -> None:
    disk, _, damaged = with_a_damaged_log_of_theirs()
    driver = opened(disk)
    driver.engine.registrations.register("s", "earliest")
    assert driver.claim_numbers("s") == [THEIRS, THEIRS + 2]
    assert kept(disk) == [damaged]


def test_a_recovery_says_what_it_has_done_with_whose_entries() -> None:
    disk, start, _ = with_a_damaged_log_of_theirs()
    recovery = Recovery(disk, PATHS, topic_settings(), 0)
    assert recovery.effects == []
    recovery.run()
    assert [(effect.kind, effect.path, effect.offset) for effect in recovery.effects] == [
        (EffectKind.SPAN_ASIDE, PATHS.active, start),
        (EffectKind.ADOPTED, PATHS.active, None),
    ]


def flip(disk: SimDisk, span: Span) -> None:
    assert disk.flip_bit(PATHS.active, span.start + 90, 3)


def make_unknown(disk: SimDisk, span: Span) -> None:
    """Give an entry a type that nobody knows, under a checksum that fits."""
    body = bytearray(disk.contents()[PATHS.active][span.start + ENTRY_LENGTH_BYTES : span.end - 4])
    body[0] = 9
    file = disk.open_write(PATHS.active)
    file.write([bytes(body) + zlib.crc32(body).to_bytes(4, "little")], span.start + ENTRY_LENGTH_BYTES)
    file.fsync()
    file.close()


@pytest.mark.parametrize("harm", [flip, make_unknown])
def test_a_bundle_of_ours_that_is_lost_in_a_log_of_both_keeps_its_id_and_is_told_as_lost(
    harm: Callable[[SimDisk, Span], None],
) -> None:
    disk = killed(5)
    append(disk, 2)
    log = disk.contents()[PATHS.active]
    spans = LogReader(reader_of(log), len(log)).scan(HEADER_BYTES, ALIGNMENT).entries
    harm(disk, spans[2])
    damaged = disk.contents()[PATHS.active][spans[2].start : spans[2].end]
    driver = opened(disk)
    (info,) = driver.engine.segments()
    assert (info.segment_seq, info.bundle_count) == (0, 7)
    reader = driver.read(0)
    assert [reader.sequence(index) for index in range(7)] == list(range(7))
    assert driver.claim_numbers("s") == [0, 1, 3, 4, THEIRS, THEIRS + 1]
    assert [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count) for gap in driver.told] == [(0, 2, 1)]
    assert kept(disk) == [damaged]


def test_an_entry_that_is_aligned_keeps_its_sequence_unless_it_gets_another_one() -> None:
    disk = SimDisk()
    other = OtherWriter(disk, DIRECTORY)
    other.next_sequence = 41
    other.append(bundle(THEIRS, slots=3))
    log = disk.contents()[PATHS.active]
    ((start, end),) = entries_of(log, WAL_HEADER.size)[0]
    body = log[start + 4 : end - 4]
    for given, sequence in ((None, 41), (7, 7)):
        entry = realign_entry(body, given)
        laid = entry[ENTRY_LENGTH_BYTES:-4]
        header = decode_entry_header(laid)
        blocks = list(decode_slots(laid, header.slot_bitmap))
        assert header.sequence == sequence
        assert [block.slot_id for block in blocks] == [0, 1, 2]
        assert all((HEADER_BYTES + ENTRY_LENGTH_BYTES + block.payload_offset) % ALIGNMENT == 0 for block in blocks)
        payloads = [laid[block.payload_offset :] for block in blocks]
        expected = numbered_batch(THEIRS, rows=1 + THEIRS % 5)
        assert all(pa.ipc.open_stream(payload).read_next_batch().equals(expected) for payload in payloads)
