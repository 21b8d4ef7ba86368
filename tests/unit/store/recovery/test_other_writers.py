"""Directories that another writer of version 1 has gone on in between two of our starts: what either has synced is delivered."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from quiver_actors.store.disk.protocol import write_atomically
from quiver_actors.store.files.paths import EnginePaths
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.other_writer import OtherWriter, progress_bytes
from tests.unit.store.recovery.test_damaged_files import say_that_it_was_stopped

DIRECTORY = "default/core_0"
PATHS = EnginePaths(DIRECTORY)
THEIRS = 1_000
"""Their bundles are numbered from here on."""


def bundle(number: int, slots: int = 1) -> dict[int, pa.RecordBatch]:
    return {slot: numbered_batch(number, rows=1 + number % 5) for slot in range(slots)}


def killed(pushed: int, *, seals: bool = False, subscribers: tuple[str, ...] = ("s",)) -> SimDisk:
    """Our directory after a kill, with that many bundles in the open log, or sealed."""
    disk = SimDisk()
    driver = EngineDriver(disk, directory=DIRECTORY)
    for subscriber in subscribers:
        driver.engine.registrations.register(subscriber, "earliest")
    if pushed:
        driver.push_numbered(0, pushed)
    driver.commit()
    driver.flush_progress()
    if seals:
        driver.seal()
    return disk.crash(CrashMode.KEEP)


def stopped(pushed: int) -> SimDisk:
    """Return the disk after a clean stop."""
    disk = SimDisk()
    driver = EngineDriver(disk, directory=DIRECTORY)
    driver.engine.registrations.register("s", "earliest")
    if pushed:
        driver.push_numbered(0, pushed)
    driver.settle()
    driver.drain_and_close()
    return disk.crash(CrashMode.KEEP)


def opened(disk: SimDisk) -> EngineDriver:
    """Open an engine of a process that ends with the test, or is killed: the disk may be opened again."""
    driver = EngineDriver(disk, directory=DIRECTORY)
    driver.settle()
    return driver


def delivered(disk: SimDisk) -> list[int]:
    """Return what a start delivers; nothing is announced as lost."""
    driver = opened(disk)
    found = driver.claim_numbers("s")
    assert not driver.told
    return found


def consume_everything(disk: SimDisk) -> SimDisk:
    """Our node delivers all of it, deletes it, and is killed."""
    driver = opened(disk)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 1_000):
        driver.resolve("s", "x", segment_seq, "ack", indexes)
    for subscriber in set(driver.engine.owed.subscriber_figures()) - {"s"}:
        for segment_seq, indexes, *_ in driver.claim(subscriber, "x", 1_000):
            driver.resolve(subscriber, "x", segment_seq, "ack", indexes)
    driver.flush_progress()
    assert driver.engine.segments() == []
    return disk.crash(CrashMode.KEEP)


def test_entries_behind_a_segment_that_another_writer_has_made_of_our_log_are_delivered() -> None:
    disk = killed(50)
    other = OtherWriter(disk, DIRECTORY)
    assert len(other.open_bundles) == 50
    assert other.seal() == 0
    for number in range(10):
        other.append(bundle(THEIRS + number))
    driver = opened(disk)
    assert driver.engine.segments()[0].segment_seq == 0, "the ids that receipts named are right"
    assert driver.claim_numbers("s") == [*range(50), *range(THEIRS, THEIRS + 10)]
    assert not driver.told


def test_a_log_with_entries_of_both_is_written_anew_under_its_number() -> None:
    disk = killed(5)
    other = OtherWriter(disk, DIRECTORY)
    for number in range(10):
        other.append(bundle(THEIRS + number, slots=1 + number % 3))
    driver = opened(disk)
    (info,) = driver.engine.segments()
    assert (info.segment_seq, info.bundle_count) == (0, 15)
    reader = driver.read(0)
    assert [reader.sequence(index) for index in range(15)] == list(range(15))
    assert driver.claim_numbers("s") == [*range(5), *range(THEIRS, THEIRS + 10)]
    assert not [path for path in disk.contents() if "quarantine" in path]


@pytest.mark.parametrize("byte", [0, 12, 13], ids=["magic", "header_size", "header_size, high byte"])
def test_no_entry_is_lost_behind_a_damaged_header_of_another_writer(byte: int) -> None:
    """Such a header has no checksum: the entries themselves tell where they begin."""
    disk = stopped(0)
    other = OtherWriter(disk, "other/core_0")
    for number in range(10):
        other.append(bundle(THEIRS + number))
    log = bytearray(disk.contents()["other/core_0/wal/quiver.wal"])
    log[byte] ^= 0x40
    write_atomically(disk, f"{DIRECTORY}/wal/quiver.wal", bytes(log))
    driver = opened(disk)
    assert driver.claim_numbers("s") == list(range(THEIRS, THEIRS + 10))
    assert not driver.told


@pytest.mark.parametrize("pushed", [0, 3])
def test_entries_after_a_clean_stop_are_adopted(pushed: int) -> None:
    disk = stopped(pushed)
    other = OtherWriter(disk, DIRECTORY)
    assert other.next_sequence == 0
    for number in range(8):
        other.append(bundle(THEIRS + number))
    driver = opened(disk)
    assert driver.claim_numbers("s") == [*range(pushed), *range(THEIRS, THEIRS + 8)]
    assert not driver.told
    assert not [path for path in disk.contents() if "quarantine" in path]
    sequences = [driver.read(info.segment_seq).sequence(0) or 0 for info in driver.engine.segments()]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("consumes", [False, True])
def test_a_kill_with_everything_sealed_leaves_a_log_that_any_writer_goes_on_in(consumes: bool) -> None:
    disk = killed(5, seals=True)
    if consumes:
        disk = consume_everything(disk)
    position = int.from_bytes(disk.contents()[PATHS.cursor][12:20], "little")
    other = OtherWriter(disk, DIRECTORY)
    assert other.position_start == position > 0
    for number in range(4):
        other.append(bundle(THEIRS + number))
    assert len(OtherWriter(disk, DIRECTORY).open_bundles) == 4, "its own replay finds them, too"
    assert delivered(disk) == [*([] if consumes else range(5)), *range(THEIRS, THEIRS + 4)]


@pytest.mark.parametrize("consumes", [False, True])
def test_entries_of_a_log_that_begins_at_position_0_again_are_delivered(consumes: bool) -> None:
    disk = killed(5, seals=True)
    if consumes:
        disk = consume_everything(disk)
    disk.unlink(PATHS.active)
    other = OtherWriter(disk, DIRECTORY)
    assert other.position_start == 0
    for number in range(14):
        other.append(bundle(THEIRS + number))
    assert delivered(disk) == [*([] if consumes else range(5)), *range(THEIRS, THEIRS + 14)]


def test_segments_of_an_emptied_store_that_are_numbered_from_0_again_are_new_data() -> None:
    disk = consume_everything(killed(5))
    other = OtherWriter(disk, DIRECTORY)
    for number in range(6):
        other.append(bundle(THEIRS + number))
    assert other.seal() == 0
    assert delivered(disk) == list(range(THEIRS, THEIRS + 6))


def test_segments_that_were_announced_are_not_delivered_again() -> None:
    """The same holds where another subscriber keeps them, under numbers below the watermark of the first."""
    disk = killed(0, subscribers=("s", "slow"))
    other = OtherWriter(disk, DIRECTORY)
    for number in range(3):
        other.append(bundle(THEIRS + number))
    other.seal()
    driver = opened(disk)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 100):
        driver.resolve("s", "x", segment_seq, "ack", indexes)
    driver.flush_progress()
    assert delivered(disk.crash(CrashMode.KEEP)) == []
    assert opened(disk.crash(CrashMode.KEEP)).claim_numbers("slow") == list(range(THEIRS, THEIRS + 3))


def test_a_segment_that_was_announced_and_is_damaged_is_lost_and_no_new_data() -> None:
    """A bit of its checksum flipped: it was taken for another file of its number, and came again under a new one."""
    disk = killed(0, subscribers=("s", "slow"))
    other = OtherWriter(disk, DIRECTORY)
    for number in range(3):
        other.append(bundle(THEIRS + number))
    assert other.seal() == 0
    path = PATHS.segment(0)
    driver = opened(disk)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 100):
        driver.resolve("s", "x", segment_seq, "ack", indexes)
    driver.flush_progress()
    disk = disk.crash(CrashMode.KEEP)
    assert disk.flip_bit(path, len(disk.contents()[path]) - 1, 0)
    assert delivered(disk) == []
    driver = opened(disk.crash(CrashMode.KEEP))
    assert driver.claim_numbers("slow") == []
    assert [(gap.bundle_index_first, gap.bundle_count) for gap in driver.told] == [(0, 3)]


def test_the_same_bundles_again_under_the_same_number_are_new_data() -> None:
    """The file is the same to the last byte: what was deleted is not in the record any more."""
    disk = killed(0)
    for _ in range(3):
        other = OtherWriter(disk, DIRECTORY)
        other.append(bundle(THEIRS))
        assert other.seal() == 0
        assert delivered(disk.crash(CrashMode.KEEP)) == [THEIRS]
        disk = consume_everything(disk)


def test_a_damaged_record_delivers_again_rather_than_not_at_all() -> None:
    disk = consume_everything(killed(5))
    other = OtherWriter(disk, DIRECTORY)
    other.append(bundle(THEIRS))
    other.seal()
    file = disk.open_write(PATHS.foreign)
    file.write([b"damage"], 10)
    file.fsync()
    assert delivered(disk) == [THEIRS]
    assert any("quarantine/quiver.foreign" in path for path in disk.contents())


def test_without_a_record_segments_below_a_watermark_count_as_delivered() -> None:
    """The directory is of a program that kept none."""
    disk = consume_everything(killed(5))
    other = OtherWriter(disk, DIRECTORY)
    other.append(bundle(THEIRS))
    assert other.seal() == 0
    disk.unlink(PATHS.active)
    disk.unlink(PATHS.foreign)
    say_that_it_was_stopped(disk)
    assert delivered(disk) == []


def test_progress_of_another_writer_is_believed_of_its_own_segments() -> None:
    disk = consume_everything(killed(5, subscribers=("s", "other")))
    other = OtherWriter(disk, DIRECTORY)
    for number in range(4):
        other.append(bundle(THEIRS + number))
    assert other.seal() == 0
    file = disk.create(f"{DIRECTORY}/quiver.sub.other")
    file.write([progress_bytes({0: (4, {0, 2})})], 0)
    file.fsync()
    driver = opened(disk)
    assert driver.claim_numbers("other") == [THEIRS + 1, THEIRS + 3]
    assert driver.claim_numbers("s") == list(range(THEIRS, THEIRS + 4))


def test_a_log_that_was_rotated_by_another_writer_and_sealed_in_parts() -> None:
    disk = killed(4)
    other = OtherWriter(disk, DIRECTORY)
    other.append(bundle(THEIRS))
    other.rotate()
    other.append(bundle(THEIRS + 1))
    other.append(bundle(THEIRS + 2))
    other = OtherWriter(disk, DIRECTORY)
    assert len(other.open_bundles) == 7
    assert delivered(disk) == [*range(4), *range(THEIRS, THEIRS + 3)]


def test_a_log_of_more_entries_than_a_segment_holds_is_adopted_whole() -> None:
    disk = stopped(1)
    other = OtherWriter(disk, DIRECTORY)
    entries = 66_000
    template = bundle(THEIRS)
    first = other.append(template)
    data = disk.contents()[PATHS.active]
    entry = data[121:]
    _append_copies(disk, entry, first.sequence, entries)
    driver = opened(disk)
    assert sum(info.bundle_count for info in driver.engine.segments()) == entries + 1
    assert not driver.told


def _append_copies(disk: SimDisk, entry: bytes, sequence: int, count: int) -> None:
    import zlib

    copies = []
    for number in range(sequence + 1, count):
        body = entry[4:13] + number.to_bytes(8, "little") + entry[21:-4]
        copies.append(entry[:4] + body + zlib.crc32(body).to_bytes(4, "little"))
    file = disk.open_write(PATHS.active)
    file.write([b"".join(copies)], 121 + len(entry))
    file.fsync()


@pytest.mark.parametrize("rounds", [4])
def test_writers_that_take_turns_lose_nothing(rounds: int) -> None:
    disk, pushed, got = SimDisk(), list[int](), Counter[int]()
    for number in range(rounds * 10):
        driver = opened(disk)
        driver.engine.registrations.register("s", "earliest")
        driver.push_numbered(number * 10, 3)
        driver.commit()
        pushed += range(number * 10, number * 10 + 3)
        if number % 3:
            driver.settle()
            for segment_seq, indexes, *_ in driver.claim("s", "x", 100):
                reader = driver.read_claimed(segment_seq)
                got.update(int(reader.bundle(index)[0].column(0)[0].as_py()) for index in indexes)
                driver.resolve("s", "x", segment_seq, "ack", indexes)
        driver.flush_progress()
        disk = disk.crash(CrashMode.KEEP)
        other = OtherWriter(disk, DIRECTORY)
        for theirs in (100_000 + number * 10, 100_001 + number * 10):
            other.append(bundle(theirs, slots=1 + number % 2))
            pushed.append(theirs)
            if number % 4 == 1:
                other.seal()
            if number % 5 == 2:
                other.rotate()
        disk = disk.crash(CrashMode.KEEP)
    got.update(delivered(disk))
    assert set(got) == set(pushed)
