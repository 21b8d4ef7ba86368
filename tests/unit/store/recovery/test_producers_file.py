"""A damaged `quiver.producers`: what producers have stored is found again in the segments that are there, and what is forgotten is told."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.errors import DiskError, FormatError, SequenceGap, SequenceTooOld
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.offline_compaction import compact_segment
from quiver_actors.store.recovery.stored_keys import keys_in_segment
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.store.staged.keys import NUMBER_COLUMN, PRODUCER_COLUMN, KeyRun, Windows, decode_windows, with_key
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import numbered_batch
from tests.unit.store.recovery.test_damaged_files import flipped, kept, replace
from tests.unit.store.segment.logfile import LogFile
from tests.unit.store.segment.test_compaction import of_an_unknown_type
from tests.unit.store.staged.test_keys import SETTINGS, KeyedDriver
from tests.unit.store.wal.logs import reader_of

PATHS = EnginePaths("default/core_0")


def opened(disk: SimDisk) -> KeyedDriver:
    driver = KeyedDriver(OrderMonitor(disk), SETTINGS)
    driver.settle()
    return driver


def sealed(disk: SimDisk, *groups: range) -> KeyedDriver:
    """Bundles of producer "p" under these numbers, one segment a group; what the producer of no key stores lies between them."""
    driver = opened(disk)
    for numbers in groups:
        driver.push_numbered(1000)
        driver.push_keyed(numbers.start, len(numbers))
        driver.push_numbered(1001)
        driver.seal()
    driver.engine.close()
    return driver


def damaged(disk: SimDisk) -> bytes:
    return replace(disk, PATHS.producers, flipped)


def duplicates(driver: KeyedDriver, first: int, count: int) -> list[bool]:
    runs = driver.push_keyed(first, count)
    return [run.is_duplicate for run in runs for _ in range(run.count)]


@pytest.mark.parametrize(
    "change", [flipped, lambda content: content[:9], lambda content: b""], ids=["bit", "cut", "empty"]
)
def test_what_is_in_segments_is_found_again(change: object) -> None:
    disk = SimDisk()
    sealed(disk, range(1, 4), range(4, 9))
    content = replace(disk, PATHS.producers, change)  # type: ignore[arg-type]
    driver = opened(disk)
    assert kept(disk) == [content]
    (note,) = [note for note in driver.engine.recovery_notes if PATHS.producers in note]
    assert "what 1 producers have stored was found again in the 2 segments." in note
    first, second = driver.engine.segments()
    runs = driver.push_keyed(1, 10)
    assert [(run.segment_seq, run.bundle_index, run.count, run.is_duplicate) for run in runs[:2]] == [
        (first.segment_seq, 1, 3, True),
        (second.segment_seq, 1, 5, True),
    ]
    assert [run.is_duplicate for run in runs] == [True, True, False]
    driver.engine.close()
    driver = opened(disk.crash(CrashMode.DROP))
    assert duplicates(driver, 1, 9) == [True] * 8 + [False], "durable at once"


def test_what_was_pushed_last_may_be_behind_all_that_is_found() -> None:
    disk = SimDisk()
    sealed(disk, range(1, 4))
    damaged(disk)
    driver = opened(disk)
    for _ in range(2):  # also after a start that has nothing to find
        driver.engine.close()
        driver = opened(disk)
    assert duplicates(driver, 3, 1) == [True]
    assert duplicates(driver, 20, 1) == [False], "20 was the next one, for all that is known"
    with pytest.raises(SequenceTooOld):
        driver.push_keyed(3)
    with pytest.raises(SequenceGap, match="the next one is 21"):
        driver.push_keyed(22)
    driver.seal()
    driver.engine.close()
    with pytest.raises(SequenceGap):
        opened(disk).push_keyed(22)


def test_what_deleted_segments_held_is_not_taken_for_never_stored() -> None:
    disk = SimDisk()
    driver = sealed(disk, range(1, 4), range(4, 7), range(7, 10))
    second = driver.engine.segments()[1].segment_seq
    disk.unlink(PATHS.segment(second))
    damaged(disk)
    driver = opened(disk)
    for number in (3, 5):
        with pytest.raises(SequenceTooOld, match="only 7 to 9"):
            driver.push_keyed(number)
    assert duplicates(driver, 7, 4) == [True, True, True, False]


def test_a_segment_that_is_damaged_too_is_not_believed() -> None:
    disk = SimDisk()
    driver = sealed(disk, range(1, 4), range(4, 7))
    path = PATHS.segment(driver.engine.segments()[0].segment_seq)
    replace(disk, path, lambda content: content[:400] + bytes([content[400] ^ 1]) + content[401:])
    damaged(disk)
    driver = opened(disk)
    assert any(
        "found again in the 2 segments but for 1 that cannot be read" in note for note in driver.engine.recovery_notes
    )
    assert duplicates(driver, 4, 3) == [True] * 3
    with pytest.raises(SequenceTooOld):
        driver.push_keyed(3)


@pytest.mark.parametrize("fails_again", [False, True])
def test_what_the_disk_does_not_give_back_is_asked_for_twice(fails_again: bool) -> None:
    disk = SimDisk()
    driver = sealed(disk, range(1, 4), range(4, 7))
    path = PATHS.segment(driver.engine.segments()[0].segment_seq)
    damaged(disk)
    faulty = FaultyDisk(disk)
    # The first reading is that of its footer.
    fault = faulty.fail("read", 2, errno.EIO, then=["read"] if fails_again else [], path_part=path)
    opening = KeyedDriver(faulty, SETTINGS)
    faulty.heal()
    assert fault.hits == 1 + fails_again
    (note,) = [note for note in opening.engine.recovery_notes if PATHS.producers in note]
    assert ("but for 1 that cannot be read" in note) == fails_again
    assert duplicates(opening, 4, 3) == [True] * 3
    if fails_again:
        with pytest.raises(SequenceTooOld):
            opening.push_keyed(3)
    else:
        assert duplicates(opening, 1, 3) == [True] * 3


def test_a_reading_that_fails_for_another_reason_can_be_done_at_the_next_start() -> None:
    disk = SimDisk()
    driver = sealed(disk, range(1, 4))
    content = damaged(disk)
    faulty = FaultyDisk(disk)
    faulty.fail("read", 2, errno.ENOMEM, path_part=PATHS.segment(driver.engine.segments()[0].segment_seq))
    with pytest.raises(DiskError):
        KeyedDriver(faulty, SETTINGS)
    assert disk.contents()[PATHS.producers] == content
    assert duplicates(opened(disk), 1, 4) == [True] * 3 + [False]


def test_envelopes_that_hold_no_key_are_passed_over() -> None:
    disk = SimDisk()
    driver = opened(disk)
    nobody = pa.record_batch(
        {PRODUCER_COLUMN: pa.array([None], pa.string()), NUMBER_COLUMN: pa.array([7], pa.uint64())}
    )
    for envelope in (pa.record_batch({"trace": ["t"]}), nobody):
        driver.push({0: numbered_batch(1000), ENVELOPE_SLOT: envelope})
    driver.push_keyed(1, 2)
    driver.seal()
    driver.engine.close()
    damaged(disk)
    driver = opened(disk)
    assert duplicates(driver, 1, 3) == [True, True, False]
    assert len(driver.engine.segments()) == 1


def unreadable_schema() -> bytes:
    return of_an_unknown_type(["a"])


def unreadable_batch() -> bytes:
    """Return a batch that has fewer columns than its schema."""
    envelope = with_key(None, "p", 1)
    batch = pa.record_batch({"x": [1]}).serialize().to_pybytes()
    return bytes(envelope.schema.serialize().to_pybytes() + batch + END_OF_STREAM)


@pytest.mark.parametrize("payload", [unreadable_schema, unreadable_batch])
def test_envelopes_that_nobody_can_decode_are_an_error(payload: Callable[[], bytes]) -> None:
    log = LogFile()
    log.push_payloads({ENVELOPE_SLOT: payload()}, {ENVELOPE_SLOT: bytes(32)}, {ENVELOPE_SLOT: 1})
    data = log.seal()
    with pytest.raises(FormatError, match="cannot be decoded"):
        keys_in_segment(reader_of(data), len(data), 7)


def test_keys_of_compacted_segments_and_beside_dictionaries_are_found() -> None:
    disk = SimDisk()
    driver = opened(disk)
    for number in range(40):
        own = pa.record_batch({"trace": pa.array(["a", str(number), "a"]).dictionary_encode()})
        driver.push({0: numbered_batch(number), ENVELOPE_SLOT: with_key(own, "p", number)})
    driver.seal()
    (info,) = driver.engine.segments()
    driver.engine.close()
    assert compact_segment(disk, PATHS, info.segment_seq, dry_run=False).new_size_bytes
    replace(disk, PATHS.producers, lambda _: b"")
    assert duplicates(opened(disk), 0, 41) == [True] * 40 + [False]


@pytest.mark.parametrize("is_doubted", [False, True])
def test_the_keys_of_a_segment_that_only_lacks_its_name_are_found(is_doubted: bool) -> None:
    disk = SimDisk()
    driver = sealed(disk, range(1, 4), range(4, 7))
    path = PATHS.segment(driver.engine.segments()[1].segment_seq)
    content = disk.contents()[path]
    disk.unlink(path)
    replace(disk, PATHS.rotated(7), lambda _: content)
    if is_doubted:  # memory and the disk are not the same: it is written anew
        log = disk.open_write(PATHS.rotated(7))
        log.write([content[:1]], 0)
    damaged(disk)
    driver = opened(disk)
    assert any("finished the seal" in note for note in driver.engine.recovery_notes)
    driver.engine.close()
    assert duplicates(opened(disk.crash(CrashMode.DROP)), 1, 7) == [True] * 6 + [False]


def test_an_open_end_is_kept_in_the_file_and_ends_with_the_next_push() -> None:
    windows = Windows()
    windows.find("p", KeyRun(5, 2, 1, 0, 0))
    windows.find("p", KeyRun(9, 2, 2, 0, 0))
    again = decode_windows(windows.encode())
    assert again.stored("p", 11, 1) == again.stored("p", 50, 1) == []
    assert again.stored("p", 9, 5) == [KeyRun(9, 2, 2, 0, 0)]
    again.add("p", KeyRun(50, 1, 3, 0, 0))
    for closed in (again, decode_windows(again.encode())):
        assert closed.stored("p", 50, 1) == [KeyRun(50, 1, 3, 0, 0)]
        with pytest.raises(SequenceGap):
            closed.stored("p", 52, 1)
        with pytest.raises(SequenceTooOld):
            closed.stored("p", 49, 1)
