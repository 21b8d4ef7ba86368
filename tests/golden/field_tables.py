"""Section 11 of docs/formats.md: every structure on disk, printed from the tables that the codecs use.

`python -m tests.golden.field_tables` writes the section anew into the page; a test compares the two.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import crc32c
import msgspec
import pyarrow as pa

from quiver_actors.archive import manifest
from quiver_actors.base.topics import Catalogue, Deletion, Topic
from quiver_actors.store.files import cold_directory, cold_list, cold_owner, core_file, foreign_record, summaries
from quiver_actors.store.files.core_count import CoreGeneration
from quiver_actors.store.files.data_version import encode_data_version
from quiver_actors.store.files.topic_list import encode_catalogue
from quiver_actors.store.format.fields import Field, FieldTable, show
from quiver_actors.store.format.framing import Framing
from quiver_actors.store.segment import layout as segment_layout
from quiver_actors.store.segment.codec import DIRECTORY_SCHEMA, manifest_schema
from quiver_actors.store.staged import records
from quiver_actors.store.subscriber import gaps, progress, progress_journal
from quiver_actors.store.wal import codec
from quiver_actors.store.wal import layout as wal_layout
from quiver_actors.transactions.model import Decision, Token

HEADING = "## 11. Fields of every structure"
INTRODUCTION = (
    "`python -m tests.golden.field_tables` writes this section from the tables that the codecs and `quiver inspect` use. *Since* is the "
    "version of the structure that has the field first; `1+` marks an addition of ours to that version. A value in code quotes in the "
    "last column is what we always write."
)
PAGE = Path(__file__).parents[2] / "docs/formats.md"
TYPES = MappingProxyType({"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "q": "i64"})


class Line(NamedTuple):
    """The first line of a text file."""

    meaning: str
    example: bytes


class Section(NamedTuple):
    """The structures of one file."""

    title: str
    text: str
    parts: tuple[FieldTable | Framing | type[msgspec.Struct] | pa.Schema | Line, ...]


SECTIONS = (
    Section(
        "Log files",
        "A header, then entries. Each entry is the fields below, its slots, and the CRC-32 of everything behind `entry_len`. Each slot is "
        "the fields below and a payload. A header of another writer has the first 38 bytes only.",
        (wal_layout.HEADER_TABLE, wal_layout.ENTRY_TABLE, wal_layout.SLOT_TABLE),
    ),
    Section("Cursor", "", (codec.CURSOR,)),
    Section(
        "Segments",
        "What stands behind the streams: the stream directory and the batch manifest, each an Arrow file of one batch, the footer, our "
        "extension of the footer, and the trailer at the end of the file.",
        (
            DIRECTORY_SCHEMA,
            manifest_schema(item_count="some", bundle_crc32=True),
            segment_layout.FOOTER_TABLE,
            segment_layout.EXTENSION_TABLE,
            segment_layout.TRAILER_TABLE,
        ),
    ),
    Section("Core file", "", (core_file.CORE,)),
    Section(
        "Progress files",
        "A header, the owner and the archived segments where there are any, entries with their bitmaps, and the checksum. Files of Rust "
        "end in a CRC-32.",
        (progress.PROGRESS, progress.OWNER_TABLE, progress.ARCHIVED_TABLE, progress.ENTRY_TABLE),
    ),
    Section(
        "The journal of progress",
        "A header, then frames. Each frame is the fields below, records with the name and the content behind each, and the CRC-32C of all "
        "of the frame before it.",
        (progress_journal.PROGRESS_JOURNAL, progress_journal.FRAME_TABLE, progress_journal.RECORD_TABLE),
    ),
    Section("Gap files", "A header, records, and the checksum.", (gaps.GAPS, gaps.RECORD_TABLE)),
    Section(
        "The record of other writers",
        "A header, segments, targets, sources, entries, and the checksum.",
        (
            foreign_record.FOREIGN,
            foreign_record.SEGMENT_TABLE,
            foreign_record.TARGET_TABLE,
            foreign_record.SOURCE_TABLE,
            foreign_record.ENTRY_TABLE,
        ),
    ),
    Section(
        "The list of cold segments",
        "A header, segments, numbers of files to delete, the path of the cold directory, and the checksum. Behind each segment are "
        "its runs of lost bundles and the end of its file. The identity file is in the directory on the cold disk, the owner's on both.",
        (
            cold_list.COLD,
            cold_list.COLD_SEGMENT_TABLE,
            cold_list.COLD_LOST_TABLE,
            cold_list.COLD_UNWANTED_TABLE,
            cold_directory.IDENTITY,
            cold_owner.OWNER,
        ),
    ),
    Section(
        "Summaries of segments",
        "A header, schemas, segments, and the checksum. Each schema is the fields below and its Arrow message; each segment is the fields "
        "below, its streams, and its statistics.",
        (summaries.SUMMARIES, summaries.SCHEMA_TABLE, summaries.SEGMENT_TABLE, summaries.STREAM_TABLE),
    ),
    Section(
        "Prepared stages, transactions, producers",
        "`QUIVSTG\\0` begins a prepared stage, `QUIVTXN\\0` `quiver.transactions`, `QUIVPRD\\0` `quiver.producers`. A header, msgpack, and "
        "the checksum. The msgpack of a prepared stage and of `quiver.transactions` is a map with the fields below "
        "(PublishedRecord: an array of them); `store/staged/keys.py` describes that of `quiver.producers`.",
        (
            records.record_framing(b"QUIVSTG\0", "prepared stage"),
            records.PreparedRecord,
            records.StageOrder,
            records.PartRecord,
            records.JournalRecord,
            records.PublishingRecord,
            records.DroppedRecord,
            records.PublishedRecord,
        ),
    ),
    Section("Decisions", "One JSON object with the fields below.", (Decision, Token)),
    Section(
        "Text files",
        "One JSON object with the fields below follows the first line of `quiver.topics`.",
        (
            Line("`quiver.version`: the version of the data directory", encode_data_version()),
            Line("`quiver.cores`: version, cores, generation", CoreGeneration(4, 0).encode()),
            Line("`quiver.topics`, first line: version, CRC-32", encode_catalogue(Catalogue()).partition(b"\n")[0]),
            Catalogue,
            Topic,
            Deletion,
        ),
    ),
    Section(
        "The manifest of an archive",
        "Objects in the store, each one line of JSON with the fields below, bytes in Base64. Heads and parts have version "
        f"{manifest.PLAIN_VERSION}, those with packs version {manifest.PACKED_VERSION}. The head is "
        "`<node>/manifest.head`, a part `<node>/manifest.parts/<20 digits>-<8 hex>.json`. A field "
        "with a default is left out of most objects where it has that. A reader ignores fields that it does not know; a part without "
        "`schemas` and segments without a description are of an older program, and are always read. "
        "The last field of each line, `crc32`, is the CRC-32 (8 hexadecimal digits) of the line without this field and the line feed; "
        "objects of older programs lack it. A list `<node>/manifest.garbage/<20 digits>-<8 hex>.list` has one key on each line, and the "
        "CRC-32 of its content in its name. The head's `garbage` names lists like other keys; a list is deleted after the objects that it "
        "names.",
        (
            manifest.Head,
            manifest.Owner,
            manifest.StreamRef,
            manifest.Unswept,
            manifest.PartRef,
            manifest.StateRef,
            manifest.Part,
            manifest.Segment,
            manifest.Packed,
            manifest.Hole,
        ),
    ),
)


def lines() -> Iterator[str]:
    """The lines of the section."""
    yield from (HEADING, "", *wrapped(INTRODUCTION))
    for number, section in enumerate(SECTIONS, 1):
        yield from ("", f"### 11.{number} {section.title}")
        if section.text:
            yield from ("", *wrapped(section.text))
        for part in section.parts:
            yield ""
            yield from part_lines(part)


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 150, break_on_hyphens=False)


def part_lines(part: FieldTable | Framing | type[msgspec.Struct] | pa.Schema | Line) -> Iterator[str]:
    if isinstance(part, Line):
        yield f"{part.meaning}. Example: `{part.example.decode().strip()}`"
    elif isinstance(part, pa.Schema):
        yield from ("| column | type | |", "|---|---|---|")
        yield from (f"| {each.name} | {each.type} | {'nullable' if each.nullable else ''} |" for each in part)
    elif isinstance(part, FieldTable):
        yield from (f"| offset | bytes | {part.name} | type | since | |", "|---|---|---|---|---|---|")
        yield from (row_of(part, each) for each in part.fields)
    elif isinstance(part, Framing):
        yield from part_lines(part.table)
        kind = "CRC-32C" if part.checksums[0] is crc32c.crc32c else "CRC-32"
        yield from ("", f"Checksum: {kind} of everything before it, {part.place.value}.")
    else:
        yield from (f"| {part.__name__} | type | |", "|---|---|---|")
        meanings = meanings_of(part)
        hints = part.__annotations__
        yield from (f"| {name} | {hints[name].replace('|', 'or')} | {meanings.get(name, '')} |" for name in hints)


def row_of(table: FieldTable, field: Field) -> str:
    value = "" if field.constant is None or field.is_padding else f"`{show(field.constant)}`".replace(r"\x00", r"\0")
    text = "; ".join(each for each in (value, field.meaning) if each)
    kind = "zero" if field.is_padding else TYPES.get(field.code, "bytes")
    return f"| {table.offsets[field.name]} | {field.size_bytes} | {field.name} | {kind} | {field.since} | {text} |"


def meanings_of(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the docstrings behind the fields of a struct say, in one line each."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, behind in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(behind, ast.Expr):
            found[node.target.id] = " ".join(ast.literal_eval(behind.value).split()).rstrip(".")
    return found


def section() -> str:
    return "\n".join(lines()) + "\n"


def section_of(page: str) -> str:
    """The part of the page from the heading on."""
    return page[page.index(HEADING) :]


if __name__ == "__main__":
    written = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(written.replace(section_of(written), section()), encoding="utf-8")
