"""What is done with a log file that is found: the whole table, and the examination that it rests on."""

from __future__ import annotations

from itertools import product

import pytest

from quiver_actors.errors import UnsupportedVersion
from quiver_actors.wal import layout
from quiver_actors.wal.codec import Identity, encode_header
from quiver_actors.wal.reader import LogReader
from quiver_actors.wal.recovery import Decision, FoundLog, HeaderState, decide, examine_log
from tests.unit.wal.logs import entry, flipped, reader_of

OURS, FOREIGN, UNREADABLE, ZERO = HeaderState.OURS, HeaderState.FOREIGN, HeaderState.UNREADABLE, HeaderState.ZERO
FINISH, SEAL, ADOPT, DROP, QUARANTINE = (
    Decision.FINISH,
    Decision.SEAL,
    Decision.ADOPT,
    Decision.DROP,
    Decision.QUARANTINE,
)

#: header, has entries, has a valid trailer, has other bytes -> decision
TABLE = {
    (OURS, False, False, False): DROP,
    (OURS, False, False, True): DROP,
    (OURS, False, True, False): FINISH,
    (OURS, False, True, True): FINISH,
    (OURS, True, False, False): SEAL,
    (OURS, True, False, True): SEAL,
    (OURS, True, True, False): FINISH,
    (OURS, True, True, True): FINISH,
    (FOREIGN, False, False, False): DROP,
    (FOREIGN, False, False, True): DROP,
    (FOREIGN, False, True, False): DROP,
    (FOREIGN, False, True, True): DROP,
    (FOREIGN, True, False, False): ADOPT,
    (FOREIGN, True, False, True): ADOPT,
    (FOREIGN, True, True, False): ADOPT,
    (FOREIGN, True, True, True): ADOPT,
    (UNREADABLE, False, False, False): DROP,
    (UNREADABLE, False, False, True): QUARANTINE,
    (UNREADABLE, False, True, False): DROP,
    (UNREADABLE, False, True, True): QUARANTINE,
    (UNREADABLE, True, False, False): ADOPT,
    (UNREADABLE, True, False, True): ADOPT,
    (UNREADABLE, True, True, False): ADOPT,
    (UNREADABLE, True, True, True): ADOPT,
    (ZERO, False, False, False): DROP,
    (ZERO, False, False, True): DROP,
    (ZERO, False, True, False): DROP,
    (ZERO, False, True, True): DROP,
    (ZERO, True, False, False): ADOPT,
    (ZERO, True, False, True): ADOPT,
    (ZERO, True, True, False): ADOPT,
    (ZERO, True, True, True): ADOPT,
}


def test_the_table_is_whole() -> None:
    states = product(HeaderState, (False, True), (False, True), (False, True))
    assert {state: decide(*state) for state in states} == TABLE


def test_nothing_with_entries_is_ever_dropped() -> None:
    assert not any(decision is DROP for (_, has_entries, _, _), decision in TABLE.items() if has_entries)


HEADER = encode_header(b"h" * 16, 500, Identity(7, 40, b"i" * 16))
RUST_HEADER = layout.HEADER.pack(layout.WAL_MAGIC, 1, 38, b"h" * 16, 500)
ENTRIES = entry(40, b"a" * 300) + entry(41, b"b")
ROOM = bytes(5000)


def examine(data: bytes, *, has_valid_trailer: bool = False) -> FoundLog:
    return examine_log("quiver.wal", LogReader(reader_of(data), len(data)), len(data), has_valid_trailer)


@pytest.mark.parametrize(
    ("data", "header", "decision", "entries"),
    [
        (HEADER + ENTRIES + ROOM, OURS, SEAL, 2),
        (HEADER + ENTRIES, OURS, SEAL, 2),
        (HEADER + ENTRIES + b"torn" * 9, OURS, SEAL, 2),
        (HEADER + ROOM, OURS, DROP, 0),
        (HEADER, OURS, DROP, 0),
        (HEADER + b"torn" * 9 + ROOM, OURS, DROP, 0),
        (RUST_HEADER + ENTRIES, FOREIGN, ADOPT, 2),
        (RUST_HEADER, FOREIGN, DROP, 0),
        (flipped(HEADER, 80) + ENTRIES + ROOM, UNREADABLE, ADOPT, 2),
        (flipped(HEADER, 0) + ENTRIES + ROOM, UNREADABLE, ADOPT, 2),
        (flipped(HEADER, 0) + b"rubbish" * 50, UNREADABLE, QUARANTINE, 0),
        (HEADER[:20], UNREADABLE, QUARANTINE, 0),
        (bytes(121) + ENTRIES + ROOM, ZERO, ADOPT, 2),
        (ROOM, ZERO, DROP, 0),
        (b"", ZERO, DROP, 0),
    ],
)
def test_what_is_found_in_a_file(data: bytes, header: HeaderState, decision: Decision, entries: int) -> None:
    found = examine(data)
    assert (found.header_state, found.decision, len(found.scan.entries)) == (header, decision, entries)
    assert found.last_sequence == (41 if entries else -1)


def test_a_finished_seal_is_not_read_again() -> None:
    found = examine(HEADER + ENTRIES + bytes(4) + b"tail" * 20, has_valid_trailer=True)
    assert (found.decision, found.scan.entries) == (FINISH, [])


def test_positions_follow_from_the_header() -> None:
    found = examine(HEADER + ENTRIES + ROOM)
    assert (found.position_start, found.position_end) == (500, 500 + len(ENTRIES))
    rust = examine(RUST_HEADER + ENTRIES)
    assert (rust.position_start, rust.position_end) == (500, 500 + len(ENTRIES))
    assert examine(HEADER + ROOM).position_end == 500


def test_a_newer_version_is_refused_and_nothing_is_decided() -> None:
    newer = bytearray(RUST_HEADER + ENTRIES)
    newer[10] = 9
    with pytest.raises(UnsupportedVersion, match="version 9"):
        examine(bytes(newer))
