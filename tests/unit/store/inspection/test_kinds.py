"""Every kind of file that docs/formats.md names is known to `quiver inspect`, and in an engine's directory to `quiver verify`."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import quiver_actors
from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.ownership import OwnRecord, Place
from quiver_actors.base.topics import Catalogue
from quiver_actors.cli.commands.inspect_text import render
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.cold_directory import IDENTITY
from quiver_actors.store.files.cold_list import ColdList, encode_cold_list
from quiver_actors.store.files.cold_owner import ColdOwner
from quiver_actors.store.files.core_count import CoreGeneration
from quiver_actors.store.files.data_version import encode_data_version
from quiver_actors.store.files.foreign_record import ForeignRecord, encode_foreign
from quiver_actors.store.files.summaries import encode_summaries
from quiver_actors.store.files.topic_list import encode_catalogue
from quiver_actors.store.format.framing import Framing
from quiver_actors.store.inspection.recognise import FileKind
from quiver_actors.store.staged.keys import KeyRun, Windows
from quiver_actors.store.subscriber.gaps import GapLedger
from quiver_actors.store.subscriber.progress_journal import JournalRecord, encode_frame, encode_header
from quiver_actors.transactions.model import COMMIT, Decision
from tests.golden.field_tables import PAGE
from tests.support.engine_driver import topic_settings
from tests.support.stage_driver import StageDriver
from tests.unit.store.inspection.stores import ENGINE, SEGMENT, codes, flip, looked_at, overwrite, verified

GAPS = f"{ENGINE}/quiver.gaps.exporter"
SEGMENT_NAME = SEGMENT.rpartition("/")[2]
PLACES = {
    "wal/quiver.wal": (f"{ENGINE}/wal/quiver.wal", FileKind.LOG),
    "wal/quiver.wal.<N>": (f"{ENGINE}/wal/quiver.wal.4", FileKind.LOG),
    "wal/quiver.wal.cursor": (f"{ENGINE}/wal/quiver.wal.cursor", FileKind.CURSOR),
    "segments/<16 digits>.qseg": (SEGMENT, FileKind.SEGMENT),
    "quiver.sub.<id>": (f"{ENGINE}/quiver.sub.exporter", FileKind.PROGRESS),
    "quiver.progress.tmp": (f"{ENGINE}/quiver.progress.tmp", FileKind.PROGRESS_JOURNAL),
    "quiver.gaps.<id>": (GAPS, FileKind.GAPS),
    "quiver.core": (f"{ENGINE}/quiver.core", FileKind.CORE),
    "held/<file name>.<inode>": (f"{ENGINE}/held/0000000000000000.qseg.12", FileKind.SEGMENT),
    "staged/<16 digits>.<4 digits>.stage": (f"{ENGINE}/staged/0000000000000001.0000.stage", FileKind.LOG),
    "staged/<16 digits>.prepared": (f"{ENGINE}/staged/0000000000000001.prepared", FileKind.STAGE),
    "quiver.transactions": (f"{ENGINE}/quiver.transactions", FileKind.TRANSACTIONS),
    "quiver.producers": (f"{ENGINE}/quiver.producers", FileKind.PRODUCERS),
    "quiver.foreign": (f"{ENGINE}/quiver.foreign", FileKind.FOREIGN),
    "quiver.summaries": (f"{ENGINE}/quiver.summaries", FileKind.SUMMARIES),
    "quiver.cold": (f"{ENGINE}/quiver.cold", FileKind.COLD),
    "quiver.cold-id": ("quiver.cold-id", FileKind.COLD_IDENTITY),
    "quiver.cold-owner": (f"{ENGINE}/quiver.cold-owner", FileKind.COLD_OWNER),
    "quiver.decisions/<txn_id>.<epoch>.json": ("quiver.decisions/t.1.json", FileKind.DECISION),
    "_claims/<txn_id>.<epoch>.json/<id>.<kind>": ("_claims/t.1.json/c0ffee.claim", FileKind.DECISION),
    "quiver.topics": ("quiver.topics", FileKind.TOPICS),
    "quiver.topics.previous": ("quiver.topics.previous", FileKind.TOPICS),
    "quiver.cores": ("quiver.cores", FileKind.CORES),
    "quiver.archive": ("quiver.archive", FileKind.ARCHIVE),
    "quiver.version": ("quiver.version", FileKind.VERSION),
    "quiver.ballast": (f"{ENGINE}/quiver.ballast", FileKind.ZEROES),
    "quiver.witness": (f"{ENGINE}/quiver.witness", FileKind.EMPTY),
    "segments/<16 digits>.qseg.rescued": (f"{ENGINE}/segments/{SEGMENT_NAME}.rescued", FileKind.SEGMENT),
    "<name>.<n>": (f"{ENGINE}/quarantine/quiver.gaps.exporter.1", FileKind.GAPS),
    "<name>.<start>-<end>.<crc32>.span.<n>": (f"{ENGINE}/quarantine/quiver.wal.40-99.0.span.1", FileKind.UNKNOWN),
    "quiver.wal.spare-<N>.tmp": (f"{ENGINE}/wal/quiver.wal.spare-6.tmp", FileKind.ZEROES),
}
"""Where one file of each kind lies, and its kind, by the name that the page gives it. A span of a log is no file of any kind."""


def archive_record() -> bytes:
    owner = Owner(epoch=1, directory="here", start="first", since_unix_ns=1)
    return msgspec.json.encode(OwnRecord(directory="here", places=(Place(url="file:///a", node="n", owner=owner),)))


def ledger() -> bytes:
    found = GapLedger()
    found.ack(found.add(5, 6, 7, 8, "evicted", 1).notice)
    found.add(9, 0, 0, -1, "damaged", 1)
    return found.encode(0)


def journal() -> bytes:
    records = [JournalRecord("exporter", 1, b"progress")]
    return encode_header(b"a marker") + encode_frame(b"a marker", records) * 2


def contents(root: Path) -> dict[str, bytes]:
    """What lies in the files that the store of the fixture has not."""
    decision = msgspec.json.encode(Decision("t", 1, COMMIT))
    windows = Windows()
    windows.add("p", KeyRun(1, 2, 3, 4, 5))
    segment = (root / SEGMENT).read_bytes()
    return {
        "quiver.progress.tmp": journal(),
        "quiver.gaps.<id>": ledger(),
        "held/<file name>.<inode>": segment,
        "quiver.producers": windows.encode(),
        "quiver.foreign": encode_foreign(ForeignRecord()),
        "quiver.summaries": encode_summaries({}),
        "quiver.cold": encode_cold_list(ColdList(bytes(range(16)), "/cold")),
        "quiver.cold-id": IDENTITY.pack(cold_id=bytes(range(16))),
        "quiver.cold-owner": ColdOwner(bytes(range(16)), bytes(range(16)), 7).encode(),
        "quiver.decisions/<txn_id>.<epoch>.json": decision,
        "_claims/<txn_id>.<epoch>.json/<id>.<kind>": decision,
        "quiver.topics": encode_catalogue(Catalogue()),
        "quiver.topics.previous": encode_catalogue(Catalogue()),
        "quiver.cores": CoreGeneration(4, 0).encode(),
        "quiver.archive": archive_record(),
        "quiver.version": encode_data_version(),
        "quiver.ballast": bytes(1 << 20),
        "quiver.witness": b"",
        "segments/<16 digits>.qseg.rescued": segment,
        "<name>.<n>": ledger(),
        "<name>.<start>-<end>.<crc32>.span.<n>": b"a span",
        "quiver.wal.spare-<N>.tmp": bytes(4096),
    }


@pytest.fixture
def one_of_each(store: Path, tmp_path: Path) -> Path:
    """A directory with one file of each kind."""
    staging = tmp_path / "staging"
    staging.mkdir()
    driver = StageDriver(PosixDisk(str(staging)), topic_settings())
    driver.prepared(1, 2)
    driver.drop(driver.prepared(3))
    driver.engine.close()
    shutil.copytree(staging / ENGINE / "staged", store / ENGINE / "staged")
    shutil.copy(staging / ENGINE / "quiver.transactions", store / ENGINE)
    for name, content in contents(store).items():
        path = store / PLACES[name][0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return store


ELSEWHERE = ("`<node>/", "in object stores", "in the directory of nodes")
"""Files that lie in no data directory."""


def names_of_the_page() -> Iterator[str]:
    """The names of files in the first column of section 1, and those that sections 3.7, 7.5 and 9 add."""
    sections = re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    by_title = {section.partition("\n")[0]: section for section in sections}
    for line in by_title["1. Files and their codecs"].splitlines():
        if line.startswith("| `") and not any(place in line for place in ELSEWHERE):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])
    yield from re.findall(
        r"^- `([^`/]+|[^`]+[^`/])`", by_title["3.7 Other files in an engine's directory"], re.MULTILINE
    )
    yield from re.findall(r"`(<name>[^`]+)`", by_title["3.7 Other files in an engine's directory"])
    yield from re.findall(r"`(quiver\.wal\.[^`]+)`", by_title["7.5 The spare log"])
    yield from re.findall(r"`(quiver\.topics\.[^`]+)`", by_title["9. List of topics: `quiver.topics`"])


def test_every_file_of_the_page_is_tried() -> None:
    assert set(names_of_the_page()) == set(PLACES)


@pytest.mark.parametrize("name", PLACES)
def test_every_file_of_the_page_is_known_to_inspect(one_of_each: Path, name: str) -> None:
    place, kind = PLACES[name]
    content = (one_of_each / place).read_bytes()
    view = looked_at(content, place)
    assert view.kind == kind
    if kind is not FileKind.UNKNOWN:
        assert view.recognised_by == "content"
        assert view.findings == []
    assert render(view).startswith(f"{place}: {kind}")


def test_every_kind_has_a_file_on_the_page() -> None:
    content_only = {FileKind.ARROW}
    assert {kind for _, kind in PLACES.values()} == set(FileKind) - content_only


def test_every_framing_is_known_by_its_magic_alone() -> None:
    for module in pkgutil.walk_packages(quiver_actors.__path__, "quiver_actors."):
        if module.name.startswith(("quiver_actors.store.", "quiver_actors.node.", "quiver_actors.transactions.")):
            importlib.import_module(module.name)
    found = {
        each.table.magic: each.name
        for name, module in sys.modules.items()
        if name.startswith("quiver_actors.")
        for each in vars(module).values()
        if isinstance(each, Framing)
    }
    assert len(found) > 4
    for magic, name in found.items():
        assert looked_at(magic + bytes(100), "renamed").kind != FileKind.UNKNOWN, name


def test_verify_knows_every_file_of_an_engine(one_of_each: Path) -> None:
    findings = verified(one_of_each)
    unknown = [each.path for each in findings if each.code == "file.unknown"]
    assert unknown == []
    assert not codes(findings) & {"gaps.record", "gaps.checksum", "gaps.header"}


def test_a_file_of_gap_notices_shows_its_fields_and_records() -> None:
    view = looked_at(ledger(), GAPS)
    assert view.gaps is not None
    assert (view.gaps.subscriber, view.gaps.checksum, view.gaps.notice_count) == ("exporter", "CRC-32C", 2)
    assert [(each.name, each.value) for each in view.gaps.header][3:5] == [("record_count", 2), ("next_notice", 3)]
    shown = [
        (each.segment_seq, each.bundle_index_first, each.bundle_count, each.row_count, each.reason, each.is_told)
        for each in view.gaps.notices
    ]
    assert shown == [(5, 6, 7, 8, "evicted", True), (9, 0, 0, -1, "damaged", False)]
    lines = [line.split() for line in render(view).splitlines()]
    assert ["80", "2", "9", "0", "-", "-", "damaged", "no"] in lines
    assert len(looked_at(ledger(), GAPS, limit=1).gaps.notices) == 1  # type: ignore[union-attr]


def test_each_flipped_bit_and_each_cut_of_gap_notices_is_damage() -> None:
    content = ledger()
    for bit in range(0, len(content) * 8, 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        view = looked_at(bytes(flipped), GAPS)
        assert view.kind == FileKind.GAPS
        assert "damage" in {finding.severity for finding in view.findings}, bit
    for end in range(1, len(content)):
        assert looked_at(content[:end], GAPS).findings, end


def test_verify_finds_damage_in_gap_notices_and_what_a_newer_program_wrote(one_of_each: Path) -> None:
    flip(one_of_each / GAPS, 33)
    (finding,) = [each for each in verified(one_of_each) if each.path.endswith("quiver.gaps.exporter")]
    assert (finding.severity, finding.code, finding.offset) == ("damage", "gaps.checksum", len(ledger()) - 4)
    newer = looked_at(newer_version(ledger()), GAPS)
    assert [(each.severity, each.code) for each in newer.findings] == [("warning", "gaps.version")]


def test_a_journal_of_progress_is_damaged_where_whole_frames_follow(one_of_each: Path) -> None:
    path = one_of_each / ENGINE / "quiver.progress.tmp"
    for offset, codes_found in ((4, ["progress.journal"]), (24 + 20, ["progress.journal"]), (len(journal()) - 9, [])):
        path.write_bytes(journal())
        flip(path, offset)
        found = [each.code for each in verified(one_of_each) if each.path.endswith("quiver.progress.tmp")]
        assert found == codes_found, offset


def newer_version(content: bytes) -> bytes:
    from quiver_actors.store.subscriber.gaps import GAPS as GAPS_FRAMING

    at = GAPS_FRAMING.table.offsets["version"]
    return GAPS_FRAMING.seal(content[:at] + b"\x02\x00" + content[at + 2 : -4])


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("quiver.topics", "topics"),
        ("quiver.cores", "cores"),
        ("quiver.archive", "archive"),
        ("quiver.decisions/<txn_id>.<epoch>.json", "decision"),
    ],
)
def test_damaged_text_files_are_said_to_be_damaged(one_of_each: Path, name: str, code: str) -> None:
    path = one_of_each / PLACES[name][0]
    overwrite(path, path.stat().st_size - 2, b"\x01\x01")
    view = looked_at(path.read_bytes(), PLACES[name][0])
    assert [(each.severity, each.code) for each in view.findings] == [("damage", code)]
