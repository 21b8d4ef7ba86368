"""No damage goes unseen, and none stops a look: bits flipped, ends cut off, rubbish."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quiver_actors.inspection.findings import has_damage
from quiver_actors.inspection.views import FileView
from quiver_actors.segment.tail import DecodedBundle, encode_contiguous
from tests.support.engine_driver import numbered_batch
from tests.unit.inspection.stores import ACTIVE, CORE, CURSOR, GOLDEN, PROGRESS, ROTATED, SEGMENT, looked_at

SMALL = [CURSOR, CORE, PROGRESS]
EVERY = [*SMALL, ACTIVE, ROTATED, SEGMENT]


def contents(store: Path, path: str) -> tuple[bytes, str]:
    """A file's bytes and its name. Of a log, without the unused rest."""
    data = (store / path).read_bytes()
    if path in (ACTIVE, ROTATED):
        data = data[: len(data.rstrip(b"\0")) + 64]
    return data, path.rpartition("/")[2]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def contiguous_segment() -> bytes:
    bundles = [DecodedBundle({0: numbered_batch(number)}, number, 1_700_000_000) for number in range(3)]
    return encode_contiguous(bundles, segment_seq=5)


@pytest.mark.parametrize("path", SMALL)
def test_every_flipped_bit_of_a_small_file_is_seen(healthy_store: Path, path: str) -> None:
    data, name = contents(healthy_store, path)
    assert not has_damage(looked_at(data, name).findings)
    unseen = [bit for bit in range(8 * len(data)) if not has_damage(looked_at(flipped(data, bit), name).findings)]
    assert unseen == []


def test_every_flipped_bit_of_a_log_header_is_seen(healthy_store: Path) -> None:
    data, name = contents(healthy_store, ROTATED)
    unseen = [bit for bit in range(8 * 121) if not has_damage(looked_at(flipped(data, bit), name).findings)]
    assert unseen == []


@pytest.mark.parametrize("deep", [True, False])
def test_flipped_bits_of_a_segment_are_seen_where_they_are_looked_for(healthy_store: Path, deep: bool) -> None:
    data, name = contents(healthy_store, SEGMENT)
    tail = range(8 * (len(data) - 124), 8 * (len(data) - 4), 3)
    bits = range(0, 8 * len(data), 23) if deep else tail
    unseen = [bit for bit in bits if not has_damage(looked_at(flipped(data, bit), name, deep=deep).findings)]
    if deep:
        assert unseen == []
    else:
        extension = range(8 * (len(data) - 16 - 74), 8 * (len(data) - 16))
        assert [bit for bit in unseen if bit not in extension] == [], (
            "only the numbers of the extension have no witness"
        )


def test_flipped_bits_of_entries_are_seen(healthy_store: Path) -> None:
    data, name = contents(healthy_store, ROTATED)
    end = len(data) - 64
    bits = range(8 * 121, 8 * end, 19)
    unseen = [bit for bit in bits if not has_damage(looked_at(flipped(data, bit), name).findings)]
    assert unseen == []


@pytest.mark.parametrize("made_by", ["us", "rust"])
def test_flipped_bits_of_contiguous_segments_are_seen(made_by: str) -> None:
    name = "0000000000000000.qseg"
    data = contiguous_segment() if made_by == "us" else (GOLDEN / "quiver-v1" / "segments" / name).read_bytes()
    assert not has_damage(looked_at(data, name).findings)
    bits = range(0, 8 * len(data), 79)
    unseen = [bit for bit in bits if not has_damage(looked_at(flipped(data, bit), name).findings)]
    assert unseen == []


# --- what breaks still shows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EVERY)
def test_no_truncation_stops_a_look(healthy_store: Path, path: str) -> None:
    data, name = contents(healthy_store, path)
    for end in range(0, len(data), max(1, len(data) // 60)):
        view = looked_at(data[:end], name)
        assert view.size_bytes == end
        if path in SMALL and end:
            assert has_damage(view.findings), end


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize("name", [None, "unknown"])
def test_no_mutation_stops_a_look(healthy_store: Path, path: str, name: str | None) -> None:
    data, own_name = contents(healthy_store, path)
    rng = random.Random(path)
    for _ in range(200):
        looked_at(mutated(data, rng), name or own_name, deep=rng.random() < 0.5)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, a piece cut out, doubled, zeroed, or rubbish appended."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(changed)) if changed else 0
        end = start + rng.choice([1, 4, 8, 64, 500])
        kind = rng.randrange(5)
        if kind == 0:
            changed[start:end] = rng.randbytes(end - start)
        elif kind == 1:
            del changed[start:end]
        elif kind == 2:
            changed[start:start] = changed[start:end]
        elif kind == 3:
            changed[start:end] = bytes(end - start)
        else:
            changed += rng.randbytes(end - start)
    return bytes(changed)


def test_damaged_log_shows_where_it_breaks_and_what_is_behind(healthy_store: Path) -> None:
    data, name = contents(healthy_store, ROTATED)
    view = looked_at(flipped(data, 8 * (121 + 640 + 100)), name)
    assert view.log is not None
    assert [entry.offset for entry in view.log.entries] == [121, 121 + 2 * 640, 121 + 3 * 640]
    assert [(span.start, span.end) for span in view.log.damaged] == [(121 + 640, 121 + 2 * 640)]
    (finding,) = view.findings
    assert finding.offset == 121 + 640
    assert finding.expected is not None
    assert finding.found is not None


def test_segment_without_its_end_shows_its_log(healthy_store: Path) -> None:
    data, name = contents(healthy_store, SEGMENT)
    view = looked_at(data[: len(data) // 2], name)
    assert view.kind == "segment"
    assert view.segment is not None
    assert view.segment.log is not None
    assert view.segment.log.entry_count == 3
    assert view.findings[0].code == "segment.trailer"


def test_contiguous_segment_without_its_end_shows_its_messages() -> None:
    data = (GOLDEN / "quiver-v1" / "segments" / "0000000000000000.qseg").read_bytes()
    view = looked_at(data[:-100], "0000000000000000.qseg", limit=100)
    kinds = [message.kind for message in view.messages]
    assert kinds.count("schema") >= 2
    assert kinds.count("record batch") >= 6
    assert view.message_count == len(view.messages)
    assert has_damage(view.findings)


@pytest.mark.parametrize(("path", "kind"), [(ACTIVE, "log"), (SEGMENT, "segment"), (PROGRESS, "progress")])
def test_kind_is_told_by_content_not_by_name(healthy_store: Path, path: str, kind: str) -> None:
    view = looked_at(contents(healthy_store, path)[0], "renamed.bin")
    assert (view.kind, view.recognised_by) == (kind, "content")


def test_log_without_its_magic_is_known_by_its_entries(healthy_store: Path) -> None:
    data, _ = contents(healthy_store, ACTIVE)
    view = looked_at(bytes(64) + data[64:], "renamed.bin")
    assert (view.kind, view.recognised_by) == ("log", "content")
    assert view.log is not None
    assert view.log.entry_count == 4
    assert has_damage(view.findings)


@pytest.mark.parametrize(
    ("content", "name", "kind", "damaged"),
    [
        (b"", "quiver.lock", "empty", False),
        (bytes(5000), "quiver.wal.spare-1.tmp", "zeroes", False),
        (b"quiver-data 1\n", "quiver.version", "version file", False),
        (b"hello", "notes.txt", "unknown", False),
        (b"hello", "quiver.wal.cursor", "cursor", True),
        (b"hello", "quiver.core", "core file", True),
        (b"hello", "quiver.sub.s", "progress", True),
        (b"hello", "0000000000000001.qseg", "segment", True),
    ],
)
def test_other_contents_are_named(content: bytes, name: str, kind: str, damaged: bool) -> None:
    view: FileView = looked_at(content, name)
    assert view.kind == kind
    assert has_damage(view.findings) is damaged


def test_newer_versions_with_their_checksum_are_warnings(healthy_store: Path) -> None:
    """Damage cannot change a version and the CRC over it alike; another program can."""
    from quiver_actors.checksum import crc32

    core = bytearray(contents(healthy_store, CORE)[0])
    core[8] = 2
    core[-4:] = crc32(core[:-4]).to_bytes(4, "little")
    log = bytearray(contents(healthy_store, ACTIVE)[0])
    log[10] = 2
    log[104:108] = crc32(log[:104]).to_bytes(4, "little")
    segment = bytearray(contents(healthy_store, SEGMENT)[0])
    segment[-124] = 2
    segment[-4:] = crc32(segment[:-4]).to_bytes(4, "little")
    for data, name in ((core, "quiver.core"), (log, "quiver.wal"), (segment, "0000000000000001.qseg")):
        findings = looked_at(bytes(data), name).findings
        assert [finding.severity.value for finding in findings] == ["warning"], name
        assert "newer version" in findings[0].message
