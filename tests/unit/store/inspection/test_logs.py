"""A deep look at a log file finds the entries, the damage and the end that recovery finds."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.inspection.findings import Severity
from quiver_actors.store.inspection.logs import END_OF_FILE, SEAL_TAIL, TORN_WRITE, ZEROES, LogLook, examine_log
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.wal import layout, recovery
from quiver_actors.store.wal.codec import Identity, encode_empty_header, encode_header
from quiver_actors.store.wal.decisions import Behind
from quiver_actors.store.wal.reader import LogReader
from tests.unit.store.wal.logs import entry, flipped, reader_of

HEADER = encode_header(b"h" * 16, 500, Identity(7, 40, b"i" * 16))
EMPTY = encode_empty_header(b"h" * 16, 500)
RUST_HEADER = layout.HEADER.pack(layout.WAL_MAGIC, 1, 38, b"h" * 16, 500)
FIRST, SECOND = entry(40, b"a" * 300), entry(41, b"b")
ENTRIES = FIRST + SECOND
ROOM = bytes(5000)
STORED = entry(40, bytes(35) + entry(1_000, b"of a log that a producer has stored") + bytes(500))
"""An entry with a log as data: what stands in it is a valid entry, at an offset where one of ours can start."""
UNALIGNED = entry(1_000, b"another writer's", aligned=False)

FILES = {
    "ours": HEADER + ENTRIES,
    "ours, with room": HEADER + ENTRIES + ROOM,
    "ours, torn": HEADER + ENTRIES + b"torn" * 9,
    "ours, with the tail of a seal": HEADER + ENTRIES + bytes(4) + b"tail" * 30,
    "ours, empty": HEADER + ROOM,
    "ours, header alone": HEADER,
    "ours, first entry torn": HEADER + b"torn" * 9 + ROOM,
    "ours, first entry damaged": flipped(HEADER + ENTRIES + ROOM, 200),
    "ours, length of the first entry damaged": flipped(HEADER + ENTRIES + ROOM, 121),
    "ours, second entry damaged": flipped(HEADER + ENTRIES + entry(42, b"c") + ROOM, 121 + len(FIRST) + 20),
    "ours, damage around a stored log": flipped(HEADER + STORED + SECOND + ROOM, 121),
    "ours, with entries of another writer": HEADER + ENTRIES + UNALIGNED,
    "ours, header damaged": flipped(HEADER, 80) + ENTRIES + ROOM,
    "ours, magic damaged": flipped(HEADER, 0) + ENTRIES + ROOM,
    "ours, header and first entry damaged": flipped(flipped(HEADER, 0) + ENTRIES + ROOM, 200),
    "empty one of ours": EMPTY,
    "empty one of ours, appended to": EMPTY + UNALIGNED,
    "another writer's": RUST_HEADER + ENTRIES,
    "another writer's, empty": RUST_HEADER,
    "another writer's, rubbish": RUST_HEADER + b"rubbish" * 50,
    "another writer's, magic damaged": flipped(RUST_HEADER, 0) + ENTRIES,
    "another writer's, header_size damaged": flipped(RUST_HEADER, 12) + ENTRIES,
    "another writer's, header_size beyond the end": flipped(RUST_HEADER, 13) + ENTRIES,
    "another writer's, header lost": bytes(38) + ENTRIES,
    "zeroes": ROOM,
    "zeroes, then rubbish": bytes(121) + b"rubbish" * 50,
    "header alone, cut off": HEADER[:20],
}


def look(directory: Path, data: bytes, *, deep: bool = True) -> LogLook:
    (directory / "quiver.wal").write_bytes(data)
    with contextlib.closing(PosixDisk(str(directory))) as disk, Tree(disk, "").open("quiver.wal") as source:
        return examine_log(source, deep=deep, limit=10, is_last=True)


@pytest.mark.parametrize("name", FILES)
def test_a_look_finds_what_recovery_finds(tmp_path: Path, name: str) -> None:
    data = FILES[name]
    found = recovery.examine_log("quiver.wal", LogReader(reader_of(data), len(data)), len(data), False)
    view = look(tmp_path, data).view
    assert [(each.offset, each.offset + each.size_bytes) for each in view.entries] == [
        (span.start, span.end) for span in found.scan.entries
    ]
    assert [(span.start, span.end) for span in view.damaged] == [(span.start, span.end) for span in found.scan.damaged]
    assert view.last_sequence == (found.last_sequence if found.scan.entry_count else None)
    assert (view.behind == TORN_WRITE) == (found.behind is Behind.OTHER)
    if found.scan.entry_count:
        assert view.written_end == found.end


@pytest.mark.parametrize(
    "name", ["another writer's, header_size damaged", "another writer's, header_size beyond the end"]
)
def test_a_header_size_that_the_entries_contradict_is_damage(tmp_path: Path, name: str) -> None:
    findings = look(tmp_path, FILES[name], deep=False).findings
    (finding,) = (finding for finding in findings if finding.code == "log.header")
    assert (finding.severity, finding.offset, finding.expected) == (Severity.DAMAGE, 12, "38")


@pytest.mark.parametrize(
    ("name", "behind"),
    [
        ("ours", END_OF_FILE),
        ("ours, with room", ZEROES),
        ("ours, torn", TORN_WRITE),
        ("ours, with the tail of a seal", SEAL_TAIL),
        ("ours, empty", ZEROES),
        ("ours, header alone", END_OF_FILE),
    ],
)
def test_what_stands_behind_the_entries_is_named(tmp_path: Path, name: str, behind: str) -> None:
    for deep in (True, False):
        assert look(tmp_path, FILES[name], deep=deep).view.behind == behind
