"""The table of `store.wal.decisions`, executed: each case that can be is laid into a directory, which is then opened.

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
from quiver_actors.errors import DiskError
from quiver_actors.store.files.core_file import CoreFile, encode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.recovery.logs import examine_logs
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.subscriber.gaps import GapNotice
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, decode_header, encode_cursor, encode_header
from quiver_actors.store.wal.decisions import Behind, Cursor, Decision, Entries, Header, Held, LogCase, decide
from quiver_actors.store.wal.reader import LogReader
from quiver_actors.store.wal.recovery import FoundLog
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.sim.damages import put_file
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.other_writer import OtherWriter

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
    if case.entries is Entries.MIXED and not ours:
        return "all entries of another writer's log are another writer's"
    if ours and case.held is Held.SOME and case.entries is not Entries.MIXED:
        return "a log becomes one segment, as a whole: only another writer can have gone on behind that"
    if ours and case.held is Held.ALL and case.entries is Entries.MIXED:
        return "a segment of ours ends before what another writer has logged"
    if not ours and entries is Entries.DAMAGED and case.held is Held.ALL:
        return "a log that has changed since it was adopted counts as one that was not"
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
    entries = {
        Entries.NONE: b"",
        Entries.WHOLE: one + two + three,
        Entries.DAMAGED: one + damaged_two + three,
        Entries.MIXED: one + two + three + foreign_entry(4),
    }
    return headers[case.header] + entries[case.entries] + (bytes(4096) if case.behind is Behind.END else b"\7" * 200)


def foreign_entry(sequence: int) -> bytes:
    """Return an entry that another writer appends to a log of ours: not aligned behind its end."""
    disk = SimDisk()
    other = OtherWriter(disk, DIRECTORY)
    other.next_sequence = sequence
    other.append({0: numbered_batch(sequence)})
    return disk.contents()[PATHS.active][38:]


def cursor_of(case: LogCase) -> int | None:
    known = samples()
    foreign = foreign_entry(4) if case.entries is Entries.MIXED else b""
    start = known.position_start if case.header in (Header.OURS, Header.FOREIGN) else 0
    places = {
        Cursor.NONE: None,
        Cursor.BEFORE: start,
        Cursor.INSIDE: start + len(known.entries[0]),
        Cursor.BEHIND: start + sum(map(len, known.entries)) + len(foreign),
    }
    return places[case.cursor]


@cache
def adopted(header: Header, count: int) -> dict[str, bytes]:
    """What an adoption of the first entries of another writer's log leaves that is cut off before the log goes."""
    case = LogCase(Cursor.NONE, header, Entries.NONE, Behind.END, Held.NOTHING, False)
    disk = SimDisk()
    head = log_of(case)[: 38 if header is Header.FOREIGN else 121]
    put_file(disk, LOG, head + b"".join(samples().entries[:count]))
    faulty = FaultyDisk(disk)
    faulty.fail("unlink" if header is Header.FOREIGN else "rename", 1, errno.EIO, path_part=LOG)
    with pytest.raises(DiskError):
        EngineDriver(faulty, directory=DIRECTORY)
    return {path: content for path, content in disk.contents().items() if path.endswith((".qseg", "quiver.foreign"))}


def segments_of(case: LogCase) -> dict[str, bytes]:
    if case.held is Held.NOTHING:
        return {}
    if case.header is Header.OURS:
        return {PATHS.segment(1): samples().segment}
    return adopted(case.header, 1 if case.held is Held.SOME else 3)


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
        put_file(disk, path, content)
    return disk


# --- what must become of it -------------------------------------------------------------------------------------------------


def expected_sequences(case: LogCase) -> list[int]:
    ours = case.header is Header.OURS
    held = {Held.NOTHING: 0, Held.SOME: 3 if ours else 1, Held.ALL: 3}[case.held]
    readable = {
        Entries.NONE: (),
        Entries.WHOLE: SEQUENCES,
        Entries.DAMAGED: (1, 3),
        Entries.MIXED: (*SEQUENCES, len(SEQUENCES) + 1),
    }[case.entries]
    # An adoption that was cut off is behind the log: that the cursor speaks of the same positions is not believed then.
    is_believed = case.header is Header.FOREIGN and case.held is Held.NOTHING
    covered = {Cursor.INSIDE: 1, Cursor.BEHIND: 3}.get(case.cursor, 0) if is_believed else 0
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
    (found,), _ = examine_logs(disk, PATHS, [LOG.rpartition("/")[2]])
    return found


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
    put_file(disk, LOG, known.header + b"".join(entries) + bytes(4096))
    put_file(disk, PATHS.active, encode_header(layout.DEFAULT_CFG_HASH, position, following) + bytes(4096))
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    reader = SegmentReader(disk.contents()[PATHS.segment(1)])
    assert (reader.bundle_count, reader.manifest.lost()) == (3, damaged)
    assert served(disk) == [sequence for number, sequence in enumerate(SEQUENCES) if number not in damaged]
    kept = b"".join(content for path, content in disk.contents().items() if path.startswith(PATHS.quarantine))
    assert all(entries[number] in kept for number in damaged)
    driver.engine.registrations.register("late", "earliest")
    driver.run_background()
    assert [notice.bundle_count for notice in told(driver)] == [len(damaged)]


def test_the_last_log_is_cut_behind_its_last_whole_entry_and_nothing_is_announced() -> None:
    known, disk = samples(), SimDisk()
    torn = known.entries[2][:200] + bytes(len(known.entries[2]) - 200)
    put_file(disk, PATHS.active, known.header + b"".join(known.entries[:2]) + torn + bytes(4096))
    driver = EngineDriver(OrderMonitor(disk), directory=DIRECTORY)
    driver.run_background()
    assert served(disk) == [1, 2]
    driver.engine.registrations.register("late", "earliest")
    assert not told(driver)
    assert not [path for path in disk.contents() if path.startswith(PATHS.quarantine)]


def told(driver: EngineDriver) -> list[GapNotice]:
    """Return the losses that a subscriber that reads everything is told of."""
    owner, notices = object(), list[GapNotice]()
    while True:
        claimed = driver.engine.claims.claim("late", owner, 100)
        notice = driver.engine.claims.take_gap("late", owner)
        if notice is not None:
            notices.append(notice)
        elif not claimed:
            return notices
