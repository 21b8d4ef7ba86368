"""Codec, `quiver inspect` and docs/formats.md agree about every field of every structure: offset, size, type and value."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import quiver_actors.store
from quiver_actors.base.rights import Ownership
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.core_file import CORE_TABLE, CoreFile, encode_core
from quiver_actors.store.files.foreign_record import (
    AdoptedEntry,
    AdoptedSource,
    ForeignRecord,
    ForeignSegment,
    encode_foreign,
)
from quiver_actors.store.files.summaries import StoredSchema, Summary, encode_summaries
from quiver_actors.store.format.fields import FieldTable
from quiver_actors.store.format.framing import Framing
from quiver_actors.store.inspection.look import look_at
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.inspection.views import FieldView, FileView
from quiver_actors.store.segment.codec import FooterExtension, SegmentFooter, encode_footer_and_trailer
from quiver_actors.store.segment.layout import CRC, EXTENSION, FOOTER, SEGMENT_MAGIC, TRAILER
from quiver_actors.store.staged.records import JournalRecord, encode_journal
from quiver_actors.store.subscriber.gaps import GapLedger
from quiver_actors.store.subscriber.progress import (
    ArchivedSegments,
    SegmentProgress,
    SubscriberProgress,
    encode_progress,
)
from quiver_actors.store.subscriber.progress_journal import JournalRecord as ProgressRecord
from quiver_actors.store.subscriber.progress_journal import encode_frame
from quiver_actors.store.subscriber.progress_journal import encode_header as encode_journal_header
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import (
    EntryHeader,
    Identity,
    decode_entry_header,
    decode_slots,
    encode_cursor,
    encode_header,
)
from tests.golden.cold_samples import COLD_SAMPLES
from tests.golden.field_tables import PAGE, SECTIONS, section, section_of

ID = bytes(range(1, 17))
HASH = bytes(range(101, 117))


class Row(NamedTuple):
    """One field as the page has it."""

    offset: int
    size_bytes: int
    name: str
    kind: str

    def read(self, data: bytes) -> int | bytes:
        raw = data[self.offset : self.offset + self.size_bytes]
        assert len(raw) == self.size_bytes
        return int.from_bytes(raw, "little", signed=self.kind[0] == "i") if self.kind[1:].isdecimal() else raw


def rows_of_the_page() -> dict[str, list[Row]]:
    """The rows of each table of fields, by the name of the structure."""
    tables: dict[str, list[Row]] = {}
    for line in section_of(PAGE.read_text(encoding="utf-8")).splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:5]]
        if cells[:2] == ["offset", "bytes"]:
            rows = tables[cells[2]] = []
        elif len(cells) == 4 and cells[0].isdecimal():
            rows.append(Row(int(cells[0]), int(cells[1]), cells[2], cells[3]))
    return tables


ROWS = rows_of_the_page()


def gaps() -> bytes:
    ledger = GapLedger()
    ledger.next_notice = 31
    ledger.ack(ledger.add(32, 33, 34, 35, "expired", 9).notice)
    return ledger.encode(0)


def footer() -> bytes:
    extension = FooterExtension(41, 42, 43, 44, 45, 46, 47, ID)
    return encode_footer_and_trailer(SegmentFooter(48, 49, 50, 51, 52, 53, extension, 0)) + CRC.pack(54)


HEADER = encode_header(HASH, 11, Identity(12, 13, ID))
CORE = encode_core(CoreFile(ID, 14, 15, 16, clean_shutdown=True))
ENTRIES = {22: SegmentProgress(65, bytes(16))}
PROGRESS = encode_progress(
    SubscriberProgress(
        oldest_incomplete_seg=21,
        entries=ENTRIES,
        trusted_watermark=True,
        ownership=Ownership(23, (24, 25, 26)),
        archived=ArchivedSegments(((22, 1),), 27),
    )
)
MARKER = bytes(range(8))
PROGRESS_JOURNAL = encode_journal_header(MARKER) + encode_frame(MARKER, [ProgressRecord("ann", 70, b"content")])
SOURCE = AdoptedSource("a.log", 61, 62, (AdoptedEntry(63, 64, 66), AdoptedEntry(65, 67, None)))
EMPTY = AdoptedSource("", 68, 69, ())
FOREIGN = encode_foreign(ForeignRecord(70, {71: ForeignSegment(72, 73)}, (74, 75, 66), (EMPTY, SOURCE), is_first=True))
SUMMARIES = encode_summaries({80: Summary(b"identity", ((StoredSchema(7, b"arrow"), 81),), b"abc")})
JOURNAL = encode_journal(JournalRecord())
SAMPLES: dict[str, tuple[bytes, int, dict[str, Any]]] = {
    "log header": (
        HEADER,
        0,
        {
            "magic": b"QUIVER\0WAL",
            "version": 1,
            "header_size": 121,
            "segment_cfg_hash": HASH,
            "wal_position_start": 11,
            "zeroes": bytes(26),
            "arrow_magic": b"ARROW1\0\0",
            "segment_seq": 12,
            "first_sequence": 13,
            "incarnation": ID,
            "zeroes_behind": bytes(13),
        },
    ),
    "cursor": (encode_cursor(17), 0, {"magic": b"QUIVER\0T", "version": 1, "size": 24, "wal_position": 17}),
    "segment footer": (
        footer(),
        0,
        {
            "version": 1,
            "stream_count": 48,
            "bundle_count": 49,
            "directory_offset": 50,
            "directory_length": 51,
            "manifest_offset": 52,
            "manifest_length": 53,
        },
    ),
    "segment footer extension": (
        footer(),
        34,
        {
            "extension_size": 74,
            "wal_position_start": 41,
            "wal_position_end": 42,
            "first_sequence": 43,
            "last_sequence": 44,
            "first_ingestion_ts_nanos": 45,
            "last_ingestion_ts_nanos": 46,
            "row_count": 47,
            "incarnation": ID,
        },
    ),
    "segment trailer": (footer(), 108, {"footer_size": 108, "magic": b"QUIVER\0S", "crc32": 54}),
    "core file": (
        CORE,
        0,
        {
            "magic": b"QUIVER\0C",
            "version": 1,
            "size": 53,
            "incarnation": ID,
            "core_id": 14,
            "next_segment_seq_reserved": 15,
            "next_sequence_reserved": 16,
            "clean_shutdown": 1,
        },
    ),
    "progress header": (
        PROGRESS,
        0,
        {
            "magic": b"QUIVSUB\0",
            "version": 1,
            "header_size": 84,
            "flags": 1,
            "oldest_incomplete_seg": 21,
            "entry_count": 1,
            "zeroes": bytes(6),
        },
    ),
    "owner of a subscriber": (PROGRESS, 32, {"magic": b"OWNR", "owner_uid": 23, "joined_count": 3}),
    "archived segments of a subscriber": (PROGRESS, 56, {"magic": b"ARCH", "run_count": 1, "mean_bytes": 27}),
    "progress entry": (PROGRESS, 84, {"segment_seq": 22, "bundle_count": 65, "bitmap_words": 2}),
    "journal of progress": (
        PROGRESS_JOURNAL,
        0,
        {"magic": b"QUIVPRJ\0", "version": 1, "size": 24, "marker": MARKER},
    ),
    "frame of a journal of progress": (PROGRESS_JOURNAL, 24, {"marker": MARKER, "body_bytes": 20}),
    "record of a journal of progress": (PROGRESS_JOURNAL, 36, {"name_bytes": 3, "base": 70, "content_bytes": 7}),
    "gap file": (
        gaps(),
        0,
        {
            "magic": b"QUIVGAPS",
            "version": 1,
            "header_size": 32,
            "record_count": 1,
            "next_notice": 32,
            "zeroes": bytes(8),
        },
    ),
    "record of a gap file": (
        gaps(),
        32,
        {
            "notice": 31,
            "segment_seq": 32,
            "bundle_index_first": 33,
            "bundle_count": 34,
            "row_count": 35,
            "reason": 2,
            "flags": 1,
            "zeroes": bytes(14),
        },
    ),
    "record of other writers": (
        FOREIGN,
        0,
        {
            "magic": b"QUIVER\0F",
            "version": 1,
            "header_size": 40,
            "flags": 1,
            "position": 70,
            "segment_count": 1,
            "target_count": 3,
            "source_count": 2,
            "entry_count": 2,
        },
    ),
    "segment of another writer": (FOREIGN, 40, {"segment_seq": 71, "size_bytes": 72, "crc32": 73}),
    "target of an adoption": (FOREIGN, 60, {"segment_seq": 74}),
    "source of an adoption": (
        FOREIGN,
        84 + 22,
        {"position_start": 61, "end": 62, "zeroes": bytes(4), "name_bytes": 5},
    ),
    "entry of a source": (FOREIGN, 84 + 22 + 27, {"start": 63, "crc32": 64, "source": 1, "target": 2}),
    "summaries of segments": (
        SUMMARIES,
        0,
        {"magic": b"QUIVSUM\0", "version": 1, "header_size": 20, "schema_count": 1, "segment_count": 1},
    ),
    "schema of summaries": (SUMMARIES, 20, {"slot_id": 7, "message_bytes": 5}),
    "summary of a segment": (
        SUMMARIES,
        33,
        {"segment_seq": 80, "identity": b"identity", "stream_count": 1, "statistics_bytes": 3},
    ),
    "stream of a summary": (SUMMARIES, 57, {"schema": 0, "row_count": 81}),
    **COLD_SAMPLES,
    "record": (
        JOURNAL,
        0,
        {"magic": b"QUIVTXN\0", "version": 1, "header_size": 16, "body_bytes": len(JOURNAL) - 20},
    ),
}
"""Bytes from the encoder of each structure, where the structure begins in them, and the values that it was given, by its name."""

READ_ONLY = {"log entry", "slot of a log entry"}
"""What a producer and a worker write together: tried by the decoders, below."""


def test_the_page_is_printed_from_the_tables() -> None:
    page = section_of(PAGE.read_text(encoding="utf-8"))
    assert page == section(), "run `python -m tests.golden.field_tables`"


def test_every_table_of_the_product_is_on_the_page() -> None:
    for module in pkgutil.walk_packages(quiver_actors.store.__path__, "quiver_actors.store."):
        importlib.import_module(module.name)
    modules = [module for name, module in sys.modules.items() if name.startswith("quiver_actors.")]
    named = {each.name for module in modules for each in vars(module).values() if isinstance(each, FieldTable)}
    parts = {part for each in SECTIONS for part in each.parts if isinstance(part, (FieldTable, Framing))}
    shown = {part.name if isinstance(part, FieldTable) else part.table.name for part in parts}
    assert named == shown == set(ROWS) == set(SAMPLES) | READ_ONLY


@pytest.mark.parametrize("name", SAMPLES)
def test_what_the_codec_was_given_stands_where_the_page_says(name: str) -> None:
    data, start, values = SAMPLES[name]
    found = {row.name: row.read(data[start:]) for row in ROWS[name]}
    assert {key: value for key, value in found.items() if key in values} == values
    assert set(found) - set(values) <= {"crc32"}
    given = [value for key, value in values.items() if key not in ("version", "flags", "reason", "zeroes")]
    assert len(given) - len(set(given)) <= 1, "distinct, so that no two fields can be mistaken for each other"


def laid(name: str, **values: int | bytes) -> bytes:
    """A structure with these values where the page says that they stand."""
    data = bytearray(ROWS[name][-1].offset + ROWS[name][-1].size_bytes)
    for row in ROWS[name]:
        value = values.pop(row.name)
        raw = value if isinstance(value, bytes) else value.to_bytes(row.size_bytes, "little", signed=row.kind[0] == "i")
        data[row.offset : row.offset + row.size_bytes] = raw
    assert not values
    return bytes(data)


def test_an_entry_laid_out_by_the_page_is_read() -> None:
    print_of_schema = bytes(range(32))
    slot = laid("slot of a log entry", slot_id=3, schema_fingerprint=print_of_schema, row_count=81, payload_len=4)
    entry = laid("log entry", entry_len=25 + 46, entry_type=2, ingestion_ts_nanos=-82, sequence=83, slot_bitmap=1 << 3)
    body = entry[4:] + slot + b"data"
    assert int.from_bytes(entry[:4], "little") == len(body)
    assert decode_entry_header(body) == EntryHeader(2, -82, 83, 8)
    (block,) = decode_slots(body, 8)
    assert (block.slot_id, block.fingerprint, block.row_count, block.payload_bytes) == (3, print_of_schema, 81, 4)
    assert body[block.payload_offset :] == b"data"
    assert layout.ENTRY_HEAD.unpack(entry) == (len(body), 2, -82, 83, 8)


def look(directory: Path, name: str, data: bytes) -> FileView:
    (directory / name).write_bytes(data)
    with Tree(PosixDisk(str(directory)), "").open(name) as source:
        return look_at(source, deep=False, limit=0)


def segment() -> bytes:
    """The end of a segment behind 200 bytes of streams."""
    end = footer()
    return bytes(200) + end


def of_segment(name: str) -> Callable[[FileView], list[FieldView]]:
    def fields(view: FileView) -> list[FieldView]:
        assert view.segment is not None
        both = view.segment.footer
        shown = {
            "segment footer": both[:7],
            "segment footer extension": both[7:],
            "segment trailer": view.segment.trailer,
        }
        return shown[name]

    return fields


def of_log(view: FileView) -> list[FieldView]:
    assert view.log is not None
    return view.log.header


def of_progress(view: FileView) -> list[FieldView]:
    assert view.progress is not None
    return view.progress.header


def of_gaps(view: FileView) -> list[FieldView]:
    assert view.gaps is not None
    return view.gaps.header


SHOWN: dict[str, tuple[str, bytes, int, Callable[[FileView], list[FieldView]]]] = {
    "log header": ("quiver.wal", HEADER, 0, of_log),
    "cursor": ("quiver.wal.cursor", encode_cursor(17), 0, lambda view: view.fields),
    "core file": ("quiver.core", CORE, 0, lambda view: view.fields),
    "progress header": ("quiver.sub.s", PROGRESS, 0, of_progress),
    "gap file": ("quiver.gaps.s", gaps(), 0, of_gaps),
    "segment footer": ("0000000000000001.qseg", segment(), 200, of_segment("segment footer")),
    "segment footer extension": ("0000000000000001.qseg", segment(), 234, of_segment("segment footer extension")),
    "segment trailer": ("0000000000000001.qseg", segment(), 308, of_segment("segment trailer")),
}


@pytest.mark.parametrize("name", SHOWN)
def test_inspect_shows_each_field_where_the_page_says(tmp_path: Path, name: str) -> None:
    file_name, data, start, fields = SHOWN[name]
    shown = fields(look(tmp_path, file_name, data))
    assert [(each.offset - start, each.size_bytes, each.name) for each in shown] == [row[:3] for row in ROWS[name]]
    for row, each in zip(ROWS[name], shown, strict=True):
        value = row.read(data[start:])
        if isinstance(value, int):
            assert each.value == (f"{value:#010x}" if row.name == "crc32" else value), row.name


def test_the_sizes_that_every_reader_relies_on() -> None:
    assert (FOOTER.size, EXTENSION.size, TRAILER.size, CORE_TABLE.size) == (34, 74, 16, 53)
    assert footer()[112:120] == SEGMENT_MAGIC
    assert (layout.HEADER_BYTES_V1, layout.HEADER_BYTES, layout.CURSOR_TABLE.size) == (38, 121, 24)
