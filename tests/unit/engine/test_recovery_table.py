"""The table of `wal.decisions`, executed: each case that can be is laid into a directory, which is then opened.

Whatever the case, each entry that is readable is served exactly once, nothing that cannot be parsed is deleted, and a second opening
changes nothing.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import tests.golden
from quiver_actors.checksum import crc32
from quiver_actors.core_file import CoreFile, encode_core
from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import FaultyDisk
from quiver_actors.disk.monitor import OrderMonitor
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.errors import DiskError
from quiver_actors.model import SEGMENT_BUNDLES_MAX
from quiver_actors.paths import EnginePaths
from quiver_actors.recovery.logs import whole_footer
from quiver_actors.segment.reader import SegmentReader
from quiver_actors.subscriber.gaps import GapNotice
from quiver_actors.wal import layout
from quiver_actors.wal.codec import Identity, decode_header, encode_cursor, encode_header
from quiver_actors.wal.decisions import Behind, Cursor, Decision, Entries, Header, Held, LogCase, decide
from quiver_actors.wal.reader import LogReader
from quiver_actors.wal.recovery import FoundLog, examine_log
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.unit.wal.logs import reader_of

DIRECTORY = "default/core_0"
PATHS = EnginePaths(DIRECTORY)
LOG = f"{PATHS.wal}/quiver.wal.3"
GOLDEN_SEGMENT = Path(str(tests.golden.__file__)).parent / "data/quiver-v1/segments/0000000000000000.qseg"
CASES = [LogCase(*case) for case in product(Cursor, Header, Entries, Behind, Held, (False, True))]
SEQUENCES = (1, 2, 3)


@dataclass(frozen=True)
class Samples:
    """Three bundles, sequences 1 to 3, in every form that they take on disk."""

    header: bytes
    entries: tuple[bytes, ...]
    segment: bytes
    position_start: int
    incarnation: bytes


def put(disk: SimDisk, path: str, content: bytes) -> None:
    disk.make_directory(path.rpartition("/")[0])
    file = disk.create(path)
    file.write([content], 0)
    file.fsync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0])


@cache
def samples() -> Samples:
    disk = SimDisk()
    driver = EngineDriver(disk, directory=DIRECTORY)
    driver.push_numbered(0)
    driver.commit()
    driver.engine.seal_now()
    for _ in range(3):
        driver.commit()
        driver.run_background()
    for number in SEQUENCES:
        driver.push_numbered(number)
    driver.commit()
    log = disk.contents()[PATHS.active]
    spans = LogReader(lambda length, at: log[at : at + length], len(log)).scan(121, stride=64).entries
    driver.engine.seal_now()
    for _ in range(3):
        driver.commit()
        driver.run_background()
    header = decode_header(log[:121])
    assert header.identity is not None
    entries = tuple(log[span.start : span.end] for span in spans)
    assert len(entries) == len(SEQUENCES)
    segment = disk.contents()[PATHS.segment(1)]
    return Samples(log[:121], entries, segment, header.position_start, header.identity.incarnation)


def unreachable(case: LogCase) -> str:
    """Why no directory can be like that; empty where one can."""
    ours, entries = case.header is Header.OURS, case.entries
    if case.behind is Behind.TAIL:
        if ours and entries is not Entries.WHOLE:
            return "the checksum of a tail proves the entries before it, and no segment without any is sealed"
        if case.header in (Header.FOREIGN, Header.ZERO):
            return "the checksum of a tail covers a header of ours, or that of a contiguous file"
        if not ours and entries is not Entries.NONE:
            return "a contiguous file has no entries"
        if ours and case.cursor is Cursor.INSIDE:
            return "a finished seal is not read again: it has no inside"
    if ours and case.held is Held.SOME:
        return "a log becomes one segment, as a whole"
    if not ours and entries is Entries.NONE and case.held is not Held.NOTHING:
        return "there is nothing that could be held"
    if case.cursor is Cursor.INSIDE and entries is Entries.NONE:
        return "without entries there is no inside"
    if case.cursor is Cursor.INSIDE and case.header in (Header.UNREADABLE, Header.ZERO):
        return "without a header nothing is known of positions"
    return ""


# --- laying a case into a directory -----------------------------------------------------------------------------------------


def log_of(case: LogCase) -> bytes:
    known = samples()
    if case.behind is Behind.TAIL:
        return known.segment if case.header is Header.OURS else GOLDEN_SEGMENT.read_bytes()
    foreign = layout.HEADER.pack(layout.WAL_MAGIC, 1, 38, layout.DEFAULT_CFG_HASH, known.position_start)
    damaged_header = known.header[:75] + bytes([known.header[75] ^ 1]) + known.header[76:]
    headers = {
        Header.OURS: known.header,
        Header.FOREIGN: foreign,
        Header.UNREADABLE: damaged_header,
        Header.ZERO: bytes(121),
    }
    one, two, three = known.entries
    damaged_two = two[:90] + bytes([two[90] ^ 1]) + two[91:]
    entries = {Entries.NONE: b"", Entries.WHOLE: one + two + three, Entries.DAMAGED: one + damaged_two + three}
    return headers[case.header] + entries[case.entries] + (bytes(4096) if case.behind is Behind.END else b"\7" * 200)


def cursor_of(case: LogCase) -> int | None:
    known = samples()
    start = known.position_start if case.header in (Header.OURS, Header.FOREIGN) else 0
    places = {
        Cursor.NONE: None,
        Cursor.BEFORE: start,
        Cursor.INSIDE: start + len(known.entries[0]),
        Cursor.BEHIND: start + sum(map(len, known.entries)),
    }
    return places[case.cursor]


@cache
def adopted(count: int) -> dict[str, bytes]:
    """Segments of ours that hold the first entries of another writer's log."""
    known, disk = samples(), SimDisk()
    header = layout.HEADER.pack(layout.WAL_MAGIC, 1, 38, layout.DEFAULT_CFG_HASH, known.position_start)
    put(disk, LOG, header + b"".join(known.entries[:count]))
    EngineDriver(disk, directory=DIRECTORY)
    return {path: content for path, content in disk.contents().items() if path.endswith(".qseg")}


def segments_of(case: LogCase) -> dict[str, bytes]:
    if case.held is Held.NOTHING:
        return {}
    if case.header is Header.OURS:
        return {PATHS.segment(1): samples().segment}
    return adopted(1 if case.held is Held.SOME else 3)


def lay(case: LogCase) -> SimDisk:
    disk = SimDisk()
    core = CoreFile(samples().incarnation, 0, 1_000, 1_000, clean_shutdown=case.is_clean)
    files = {PATHS.core: encode_core(core), LOG: log_of(case)} | segments_of(case)
    position = cursor_of(case)
    if position is not None:
        files[PATHS.cursor] = encode_cursor(position)
    elif case.is_clean:
        files[PATHS.cursor] = b"damaged" * 3
    for path, content in files.items():
        put(disk, path, content)
    return disk


# --- what must become of it -------------------------------------------------------------------------------------------------


def expected_sequences(case: LogCase) -> list[int]:
    held = {Held.NOTHING: 0, Held.SOME: 1, Held.ALL: 3}[case.held]
    readable = {Entries.NONE: (), Entries.WHOLE: SEQUENCES, Entries.DAMAGED: (1, 3)}[case.entries]
    covered = {Cursor.INSIDE: 1, Cursor.BEHIND: 3}.get(case.cursor, 0) if case.header is Header.FOREIGN else 0
    if case.behind is Behind.TAIL and case.header is not Header.OURS:
        readable = ()
    if decide(case) is Decision.DROP:
        return list(SEQUENCES[:held])
    return sorted({*SEQUENCES[:held], *(sequence for sequence in readable if sequence > covered)})


def served(disk: SimDisk) -> list[int]:
    """Sequences of all bundles that can be read, in order."""
    found: list[int] = []
    for path, content in sorted(disk.contents().items()):
        if path.endswith(".qseg"):
            reader = SegmentReader(content)
            reader.verify_checksum()
            for index in range(reader.bundle_count):
                slots = reader.bundle(index)
                if slots:
                    sequence = reader.sequence(index)
                    assert sequence is not None
                    assert slots[0].equals(numbered_batch(sequence))
                    found.append(sequence)
    return found


def examined(disk: SimDisk) -> FoundLog:
    data = disk.contents()[LOG]

    def read(length: int, offset: int) -> bytes:
        return data[offset : offset + length]

    return examine_log("quiver.wal.3", LogReader(read, len(data)), len(data), whole_footer(read, len(data)) is not None)


def check(case: LogCase) -> None:
    disk = lay(case)
    found = examined(disk)
    assert found.case(cursor_of(case), case.held, is_clean=case.is_clean) == case, "the directory is not the case"
    before = disk.contents()
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    after = disk.contents()
    assert LOG not in after
    assert served(disk) == expected_sequences(case)
    kept = [content for path, content in after.items() if path.startswith(PATHS.quarantine)]
    assert (before[LOG] in kept) == (decide(case) in (Decision.QUARANTINE, Decision.ADOPT_AND_KEEP))
    if case.entries is Entries.DAMAGED and decide(case) is not Decision.DROP:
        assert samples().entries[1][91:100] in b"".join(kept), "the damaged entry is kept"
    driver.engine.close()
    driver.reopen()
    again = disk.contents()
    assert {path for path in again if again[path] != after.get(path)} <= {PATHS.core}


def test_every_case_is_executed_or_cannot_be() -> None:
    executed = [case for case in CASES if not unreachable(case)]
    broken: dict[str, str] = {}
    for case in executed:
        try:
            check(case)
        except AssertionError as error:
            broken[" | ".join(str(getattr(value, "value", value)) for value in case)] = str(error).splitlines()[0]
    assert not broken
    assert {decide(case) for case in executed} == set(Decision)


@pytest.mark.parametrize("damaged", [(2,), (1, 2), (0, 1, 2)], ids=len)
def test_a_torn_end_is_cut_only_in_the_last_log(damaged: tuple[int, ...]) -> None:
    """A log that is followed by another one was complete: what is missing at its end keeps its numbers, and everybody is told."""
    known, disk = samples(), SimDisk()
    entries = [
        entry[:90] + bytes([entry[90] ^ 1]) + entry[91:] if number in damaged else entry
        for number, entry in enumerate(known.entries)
    ]
    following = Identity(2, 4, known.incarnation)
    position = known.position_start + sum(map(len, entries))
    put(disk, LOG, known.header + b"".join(entries) + bytes(4096))
    put(disk, PATHS.active, encode_header(layout.DEFAULT_CFG_HASH, position, following) + bytes(4096))
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    reader = SegmentReader(disk.contents()[PATHS.segment(1)])
    assert (reader.bundle_count, reader.bundles_without_slots()) == (3, damaged)
    assert served(disk) == [sequence for number, sequence in enumerate(SEQUENCES) if number not in damaged]
    kept = b"".join(content for path, content in disk.contents().items() if path.startswith(PATHS.quarantine))
    assert all(entries[number] in kept for number in damaged)
    driver.engine.register("late", "earliest")
    driver.run_background()
    assert [notice.bundle_count for notice in told(driver)] == [len(damaged)]


def test_the_last_log_is_cut_behind_its_last_whole_entry_and_nothing_is_announced() -> None:
    known, disk = samples(), SimDisk()
    torn = known.entries[2][:200] + bytes(len(known.entries[2]) - 200)
    put(disk, PATHS.active, known.header + b"".join(known.entries[:2]) + torn + bytes(4096))
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    assert served(disk) == [1, 2]
    driver.engine.register("late", "earliest")
    assert not told(driver)
    assert not [path for path in disk.contents() if path.startswith(PATHS.quarantine)]


def changed(entry: bytes, at: int, content: bytes) -> bytes:
    """With other bytes at that place, and a CRC that is right."""
    body = entry[4:at] + content + entry[at + len(content) : -4]
    return entry[:4] + body + crc32(body).to_bytes(4, "little")


def kept(disk: SimDisk) -> bytes:
    """What is in quarantine."""
    return b"".join(content for path, content in disk.contents().items() if path.startswith(PATHS.quarantine))


@pytest.mark.parametrize("header", [Header.OURS, Header.FOREIGN], ids=lambda header: header.value)
def test_entries_that_are_whole_and_no_bundles_are_kept_aside(header: Header) -> None:
    known, disk = samples(), SimDisk()
    case = LogCase(Cursor.NONE, header, Entries.NONE, Behind.END, Held.NOTHING, False)
    of_a_newer_type = changed(known.entries[1], layout.ENTRY_LENGTH_BYTES, b"\x09")
    without_its_slot = changed(known.entries[2], layout.ENTRY_HEAD.size, b"\x05")
    head = log_of(case).rstrip(b"\0").ljust(layout.HEADER_BYTES if header is Header.OURS else 38, b"\0")
    put(disk, LOG, head + known.entries[0] + of_a_newer_type + without_its_slot + bytes(4096))
    EngineDriver(OrderMonitor(disk), directory=DIRECTORY).run_background()
    assert served(disk) == [1]
    assert of_a_newer_type in kept(disk)
    assert without_its_slot in kept(disk)


def test_a_bundle_without_slots_of_another_writer_spoils_none_behind_it() -> None:
    """Its entry is shorter than what keeps the payloads aligned."""
    known, disk = samples(), SimDisk()
    case = LogCase(Cursor.NONE, Header.FOREIGN, Entries.NONE, Behind.END, Held.NOTHING, False)
    body = known.entries[1][4 : layout.ENTRY_HEAD.size - 8] + bytes(8)
    empty = len(body).to_bytes(4, "little") + body + crc32(body).to_bytes(4, "little")
    put(
        disk, LOG, log_of(case).rstrip(b"\0").ljust(38, b"\0") + known.entries[0] + empty + known.entries[2] + bytes(64)
    )
    EngineDriver(OrderMonitor(disk), directory=DIRECTORY).run_background()
    assert served(disk) == [1, 3]
    sequences = [
        (reader.sequence(index), sorted(reader.bundle(index)))
        for path, content in sorted(disk.contents().items())
        if path.endswith(".qseg")
        for reader in [SegmentReader(content)]
        for index in range(reader.bundle_count)
    ]
    assert sequences == [(1, [0]), (2, []), (3, [0])]


@pytest.mark.parametrize("count", [1, 3])
def test_entries_with_numbers_that_no_log_can_hold_do_not_keep_a_store_from_opening(count: int) -> None:
    known, disk = samples(), SimDisk()
    wild = [
        changed(entry, layout.ENTRY_LENGTH_BYTES + 9, (SEGMENT_BUNDLES_MAX + 1 + number).to_bytes(8, "little"))
        for number, entry in enumerate(known.entries[-count:])
    ]
    put(disk, LOG, known.header + b"".join([*known.entries[:-count], *wild]) + bytes(4096))
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    assert served(disk) == list(SEQUENCES[:-count])
    assert all(entry in kept(disk) for entry in wild)
    driver.engine.close()
    driver.reopen()
    driver.engine.register("late", "earliest")
    assert not told(driver)
    assert driver.push_numbered(7)[0].sequence > SEGMENT_BUNDLES_MAX


def test_damage_is_kept_once_however_often_a_start_is_cut_off() -> None:
    known, disk = samples(), SimDisk()
    damaged = known.entries[1][:90] + bytes([known.entries[1][90] ^ 1]) + known.entries[1][91:]
    put(disk, LOG, known.header + known.entries[0] + damaged + known.entries[2] + bytes(4096))
    for _ in range(2):
        faulty = FaultyDisk(disk)
        faulty.fail("rename", 1, errno.EIO, path_part=".qseg")
        with pytest.raises(DiskError):
            EngineDriver(faulty, directory=DIRECTORY)
    EngineDriver(disk, directory=DIRECTORY).run_background()
    assert served(disk) == [1, 3]
    assert [content for path, content in disk.contents().items() if path.startswith(PATHS.quarantine)] == [damaged]


def told(driver: EngineDriver) -> list[GapNotice]:
    """What a subscriber that reads everything is told that it will not get."""
    owner, notices = object(), list[GapNotice]()
    while True:
        claimed = driver.engine.claim("late", owner, 100)
        notice = driver.engine.take_gap("late", owner)
        if notice is not None:
            notices.append(notice)
        elif not claimed:
            return notices


def test_what_a_power_loss_leaves_out_before_a_bundle_that_it_kept_is_announced() -> None:
    """Neither was acknowledged, but nothing on the disk says so (docs/delivery.md)."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.register("s", "earliest")
    driver.push_numbered(0)
    driver.settle()
    path = PATHS.active
    synced_end = driver.engine.figures().wal_bytes
    driver.push_numbered(1)
    driver.push_numbered(2)
    assert driver.engine.sequence_durable == 1
    left = disk.crash(CrashMode.KEEP)
    content = left.contents()[path]
    scan = LogReader(reader_of(content), len(content)).scan(121, stride=64)
    lost = scan.entries[1]
    assert synced_end <= lost.end
    file = left.open_write(path)
    file.write([bytes(lost.end - lost.start)], lost.start)
    file.fsync()
    file.close()
    driver = EngineDriver(left)
    driver.settle()
    assert driver.claim_numbers("s") == [0, 2]
    assert [(gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in driver.told] == [(1, 1, "damaged")]
