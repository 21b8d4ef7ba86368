"""No damage goes unseen, and none stops a look: bits flipped, ends cut off, rubbish."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from quiver_actors.store.inspection.findings import has_damage
from quiver_actors.store.inspection.views import FileView
from quiver_actors.store.segment.outline import Outline, read_outline
from quiver_actors.store.segment.reader import SegmentReader
from tests.fuzz import corpus
from tests.support.engine_driver import numbered_batch
from tests.unit.store.inspection.stores import ACTIVE, CORE, CURSOR, GOLDEN, PROGRESS, ROTATED, SEGMENT, looked_at
from tests.unit.store.segment.logfile import contiguous

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
    return contiguous(({0: numbered_batch(number)} for number in range(3)), segment_seq=5)


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


# --- what no checksum tells --------------------------------------------------------------------------------------------------------


def forge(content: bytes, at: int, value: bytes) -> bytes:
    """Return the content with other bytes there, and a checksum that holds."""
    forged = bytearray(content)
    forged[at : at + len(value)] = value
    corpus.mend_segment(forged)
    return bytes(forged)


@dataclass(frozen=True)
class Places:
    """Where the numbers of a compacted segment stand that name something else."""

    content: bytes

    @property
    def outline(self) -> Outline:
        return read_outline(corpus.reader_of(self.content), len(self.content))

    def column(self, values: Sequence[int], bytes_each: int, first: int) -> int:
        """The place of that column, which is unlike all others behind `first`."""
        packed = b"".join(value.to_bytes(bytes_each, "little") for value in values)
        assert self.content.count(packed, first) == 1
        return self.content.index(packed, first)

    @property
    def chunk_counts(self) -> int:
        streams = SegmentReader(self.content).streams
        return self.column([s.chunk_count for s in streams], 4, self.outline.footer.directory_offset)

    @property
    def row_counts(self) -> int:
        streams = SegmentReader(self.content).streams
        return self.column([s.row_count for s in streams], 8, self.outline.footer.directory_offset)

    @property
    def refs(self) -> int:
        """Position of a chunk number in the manifest."""
        return self.column(self.outline.columns.refs[:, 2].tolist(), 4, self.outline.footer.manifest_offset)

    @property
    def bundle_count(self) -> int:
        """Position of the footer's bundle count."""
        return len(self.content) - 16 - int.from_bytes(self.content[-16:-12], "little") + 6

    @property
    def batch(self) -> int:
        """The metadata of the first batch, behind its length."""
        return int(self.outline.streams[0].batches[0][0]) + 8


@pytest.mark.parametrize(
    ("where", "value", "code"),
    [
        ("refs", b"\x4d\0\0\0", "segment.reference"),
        ("chunk_counts", b"\x4d\0\0\0", "segment.stream"),
        ("row_counts", b"\x4d\0\0\0", "segment.directory"),
        ("bundle_count", b"\x4d\0\0\0", "segment.manifest"),
        ("batch", b"\xff" * 24, "segment.batch"),
    ],
)
def test_references_that_lead_nowhere_are_damage_although_every_checksum_holds(
    where: str, value: bytes, code: str
) -> None:
    content = corpus.segment_specimens()[1].content
    name = "0000000000000000.qseg"
    assert not has_damage(looked_at(content, name).findings)
    findings = looked_at(forge(content, getattr(Places(content), where), value), name).findings
    assert code in {finding.code for finding in findings}
    assert "segment.checksum" not in {finding.code for finding in findings}
    assert has_damage(findings)


def test_two_bundles_that_name_one_batch_are_damage() -> None:
    content = corpus.segment_specimens()[1].content
    places = Places(content)
    refs = places.outline.columns.refs.tolist()
    second = next(index for index, ref in enumerate(refs) if ref[2] == 1)
    findings = looked_at(forge(content, places.refs + 4 * second, bytes(4)), "0000000000000000.qseg").findings
    assert any("two bundles refer to chunk 0" in finding.message for finding in findings)


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
    from quiver_actors.base.checksum import crc32

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
