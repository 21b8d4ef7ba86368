"""Decisions about log files: the table, and the examination that it rests on. Each case of the table is
executed in tests/unit/store/engine/test_recovery_table.py."""

from __future__ import annotations

from itertools import product

import pytest

from quiver_actors.errors import UnsupportedVersion
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, encode_header
from quiver_actors.store.wal.decisions import RULES, Behind, Cursor, Decision, Entries, Header, Held, LogCase, decide
from quiver_actors.store.wal.reader import LogReader
from quiver_actors.store.wal.recovery import FoundLog, examine_log
from tests.unit.store.wal.logs import entry, flipped, reader_of

OURS, FOREIGN, UNREADABLE, ZERO = Header
FINISH, SEAL, RENEW, ADOPT, ADOPT_AND_KEEP, DROP, QUARANTINE = Decision
END, OTHER, TAIL = Behind
CASES = [LogCase(*case) for case in product(Cursor, Header, Entries, Behind, Held, (False, True))]


def test_exactly_one_row_applies_to_each_case() -> None:
    assert len(CASES) == 4 * 4 * 4 * 3 * 3 * 2
    assert {sum(rule.applies(case) for rule in RULES) for case in CASES} == {1}


def test_every_row_is_needed() -> None:
    assert {next(rule for rule in RULES if rule.applies(case)) for case in CASES} == set(RULES)


def test_entries_are_dropped_only_where_a_segment_holds_all_of_them() -> None:
    dropped = [case for case in CASES if decide(case) is DROP and case.entries is not Entries.NONE]
    assert {(case.header, case.held) for case in dropped} == {(OURS, Held.ALL)}


def test_what_cannot_be_parsed_is_dropped_only_as_a_torn_write_of_ours() -> None:
    dropped = [case for case in CASES if decide(case) is DROP and case.behind is OTHER]
    assert {case.header for case in dropped} == {OURS}


def test_the_cursor_and_a_clean_stop_never_decide_about_a_file() -> None:
    for case in CASES:
        others = (case._replace(cursor=cursor, is_clean=is_clean) for cursor in Cursor for is_clean in (False, True))
        assert {decide(other) for other in others} == {decide(case)}


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
        (RUST_HEADER + b"rubbish" * 50, FOREIGN, QUARANTINE, 0),
        (RUST_HEADER + ROOM + b"rubbish" * 50, FOREIGN, QUARANTINE, 0),
        (flipped(HEADER, 80) + ENTRIES + ROOM, UNREADABLE, ADOPT_AND_KEEP, 2),
        (flipped(HEADER, 0) + ENTRIES + ROOM, UNREADABLE, ADOPT_AND_KEEP, 2),
        (flipped(HEADER, 0) + b"rubbish" * 50, UNREADABLE, QUARANTINE, 0),
        (HEADER[:20], UNREADABLE, QUARANTINE, 0),
        (bytes(121) + ENTRIES + ROOM, ZERO, ADOPT_AND_KEEP, 2),
        (flipped(RUST_HEADER, 0) + ENTRIES, UNREADABLE, ADOPT_AND_KEEP, 2),
        (bytes(38) + ENTRIES, UNREADABLE, ADOPT_AND_KEEP, 2),
        (flipped(RUST_HEADER, 12) + ENTRIES, FOREIGN, ADOPT, 2),
        (flipped(RUST_HEADER, 13) + ENTRIES, FOREIGN, ADOPT, 2),
        (bytes(121) + b"rubbish" * 50, ZERO, QUARANTINE, 0),
        (ROOM, ZERO, DROP, 0),
        (b"", ZERO, DROP, 0),
    ],
)
def test_what_is_found_in_a_file(data: bytes, header: Header, decision: Decision, entries: int) -> None:
    found = examine(data)
    case = found.case(None, Held.NOTHING, is_clean=False)
    assert (found.header_state, decide(case), len(found.scan.entries)) == (header, decision, entries)
    assert found.last_sequence == (41 if entries else -1)


def test_a_finished_seal_is_not_read_again() -> None:
    found = examine(HEADER + ENTRIES + bytes(4) + b"tail" * 20, has_valid_trailer=True)
    assert (found.behind, found.scan.entries) == (TAIL, ())
    assert decide(found.case(None, Held.NOTHING, is_clean=False)) is FINISH


def test_where_the_next_log_begins_proves_an_end_that_is_damaged() -> None:
    first, second = entry(40, b"a" * 300), entry(41, b"b")
    damaged = examine(HEADER + first + flipped(second, 30) + ROOM)
    following = examine(encode_header(b"h" * 16, 500 + len(ENTRIES), Identity(8, 42, b"i" * 16)))
    assert damaged.entries is Entries.WHOLE
    damaged.learn_from(following)
    assert damaged.entries is Entries.DAMAGED
    assert (damaged.sequence_end, damaged.position_end) == (42, following.position_start)
    assert [(span.start, span.end) for span in damaged.damaged] == [(121 + len(first), 121 + len(ENTRIES))]


def test_a_log_of_another_life_proves_nothing() -> None:
    damaged = examine(HEADER + entry(40, b"a" * 300) + ROOM)
    for stranger in (Identity(8, 42, b"x" * 16), Identity(9, 42, b"i" * 16)):
        damaged.learn_from(examine(encode_header(b"h" * 16, 5_000, stranger)))
        assert damaged.entries is Entries.WHOLE


def test_positions_follow_from_the_header() -> None:
    found = examine(HEADER + ENTRIES + ROOM)
    assert (found.position_start, found.position_end) == (500, 500 + len(ENTRIES))
    rust = examine(RUST_HEADER + ENTRIES)
    assert (rust.position_start, rust.position_end) == (500, 500 + len(ENTRIES))
    assert examine(HEADER + ROOM).position_end == 500
    for byte in (12, 13):
        damaged = examine(flipped(RUST_HEADER, byte) + ENTRIES)
        assert (damaged.position_start, damaged.position_end) == (500, 500 + len(ENTRIES)), "its header_size is damaged"


def test_a_newer_version_is_refused_and_nothing_is_decided() -> None:
    newer = bytearray(RUST_HEADER + ENTRIES)
    newer[10] = 9
    with pytest.raises(UnsupportedVersion, match="version 9"):
        examine(bytes(newer))
