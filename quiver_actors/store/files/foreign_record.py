"""`quiver.foreign`: what a start found of another writer in one engine's directory, and took over. Pure codec.

Source: docs/formats.md section 7.3, "The record of other writers: `quiver.foreign`".

A header, segments, targets, sources (each with its name behind it), entries, and the CRC-32 of all.

Segments are those without our footer extension that subscribers were told of. Their numbers are the other writer's, which begins again at 0
when it finds no segment: only number, size and checksum together say that a file is one that was there before.

Targets and sources are an adoption under way: the entries of each source up to the file offset `end` are in the logs, or segments, of
the targets, as soon as all targets are there. A power loss may take entries of a source that were never synced there, and leave others:
each one that is left is known again by its place and its checksum, and is in its target if that is there. One without a target was in a
segment before. One checksum of the whole file would not do: as each entry ends with its own, it would be the same for any other entries
of these lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from quiver_actors.errors import InvalidFormat
from quiver_actors.store.format.fields import Field, FieldTable
from quiver_actors.store.format.framing import Framing, Place

FOREIGN_NAME = "quiver.foreign"
FOREIGN_TABLE = FieldTable(
    "record of other writers",
    Field("magic", "8s", constant=b"QUIVER\0F"),
    Field("version", "H", constant=1),
    Field("header_size", "H", "a reader skips what it does not know", 40),
    Field("flags", "I", "bit 0: of the first start that keeps a record, which is not done yet"),
    Field("position", "Q", "every log entry before it was accounted for by the last start"),
    Field("segment_count", "I"),
    Field("target_count", "I"),
    Field("source_count", "I"),
    Field("entry_count", "I", "a header of 36 bytes has none", since="1+"),
)
SEGMENT_TABLE = FieldTable(
    "segment of another writer",
    Field("segment_seq", "Q"),
    Field("size_bytes", "Q"),
    Field("crc32", "I", "CRC-32 in the trailer"),
)
TARGET_TABLE = FieldTable("target of an adoption", Field("segment_seq", "Q", "of the log that is written"))
SOURCE_TABLE = FieldTable(
    "source of an adoption",
    Field("position_start", "Q", "log position of its first entry"),
    Field("end", "Q", "file offset behind the last entry that was read"),
    Field("zeroes", "4x"),
    Field("name_bytes", "H", "bytes of the file name behind it"),
)
ENTRY_TABLE = FieldTable(
    "entry of a source",
    Field("start", "Q", "file offset at which it begins"),
    Field("crc32", "I", "CRC-32 at its end"),
    Field("source", "I", "which source"),
    Field("target", "I", "which target, or 2**32 - 1 for none"),
)
_FLAG_FIRST = 1 << 0
_NO_TARGET = (1 << 32) - 1
FOREIGN = Framing(FOREIGN_NAME, FOREIGN_TABLE, Place.FILE, size_least=FOREIGN_TABLE.size - 4)


class ForeignSegment(NamedTuple):
    """Properties that tell a segment file of another writer from later files of the same number."""

    size_bytes: int
    crc32: int


class AdoptedEntry(NamedTuple):
    """One entry of a source."""

    start: int
    """File offset at which the entry begins."""
    crc32: int
    """The CRC-32 that stands at the entry's end."""
    target: int | None
    """Segment number of the log that it was laid into; None if it needs none: a segment holds it, or it cannot be a bundle."""


class AdoptedSource(NamedTuple):
    """A log file whose entries are being laid into logs of ours."""

    name: str
    position_start: int
    end: int
    """File offset behind the last entry that was read."""
    entries: tuple[AdoptedEntry, ...]
    """The entries that were read: a power loss may take some, and others come in their places. Empty if the program kept none."""


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """The contents of the file.

    Attributes:
        position: log position behind everything that the last start has accounted for.
        segments: by segment number.
        targets: segment numbers of the logs that an adoption writes.
        sources: the log files that it reads; they go when it is done.
        is_first: no start that keeps a record was done before.
    """

    position: int = 0
    segments: Mapping[int, ForeignSegment] = field(default_factory=lambda: MappingProxyType({}))
    targets: tuple[int, ...] = ()
    sources: tuple[AdoptedSource, ...] = ()
    is_first: bool = False


def encode_foreign(record: ForeignRecord) -> bytes:
    """Lay the record out, segments by rising number."""
    entries = _lay_entries(record)
    header = FOREIGN_TABLE.pack(
        flags=_FLAG_FIRST if record.is_first else 0,
        position=record.position,
        segment_count=len(record.segments),
        target_count=len(record.targets),
        source_count=len(record.sources),
        entry_count=len(entries),
    )
    parts = [header]
    parts += [
        SEGMENT_TABLE.struct.pack(segment_seq, *record.segments[segment_seq]) for segment_seq in sorted(record.segments)
    ]
    parts += [TARGET_TABLE.struct.pack(segment_seq) for segment_seq in record.targets]
    for name, position_start, end, _ in record.sources:
        encoded = name.encode()
        parts += [SOURCE_TABLE.struct.pack(position_start, end, len(encoded)), encoded]
    return FOREIGN.seal(b"".join([*parts, *entries]))


def _lay_entries(record: ForeignRecord) -> list[bytes]:
    which: dict[int | None, int] = {target: number for number, target in enumerate(record.targets)}
    which[None] = _NO_TARGET
    return [
        ENTRY_TABLE.struct.pack(entry.start, entry.crc32, number, which[entry.target])
        for number, source in enumerate(record.sources)
        for entry in source.entries
    ]


def decode_foreign(data: bytes) -> ForeignRecord:
    """Read the record. Raises as `Framing.open`."""
    body = FOREIGN.open(data)
    header = FOREIGN_TABLE.unpack(data)
    at = header["header_size"]
    entry_count = header["entry_count"] if at >= FOREIGN_TABLE.size else 0
    try:
        rows = SEGMENT_TABLE.rows(body, at, header["segment_count"])
        segments = {segment_seq: ForeignSegment(size, crc) for segment_seq, size, crc in rows}
        at += SEGMENT_TABLE.size * len(rows)
        targets = tuple(segment_seq for (segment_seq,) in TARGET_TABLE.rows(body, at, header["target_count"]))
        sources, at = _read_sources(body, at + TARGET_TABLE.size * len(targets), header["source_count"])
        sources = _with_entries(sources, targets, ENTRY_TABLE.rows(body, at, entry_count))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise InvalidFormat(f"{FOREIGN_NAME}: its counts do not fit its {len(data)} bytes") from error
    return ForeignRecord(header["position"], segments, targets, sources, bool(header["flags"] & _FLAG_FIRST))


def _read_sources(body: memoryview, at: int, count: int) -> tuple[tuple[AdoptedSource, ...], int]:
    found = []
    for _ in range(count):
        position_start, end, name_bytes = SOURCE_TABLE.struct.unpack_from(body, at)
        at += SOURCE_TABLE.size
        found.append(AdoptedSource(str(body[at : at + name_bytes], "utf-8"), position_start, end, ()))
        at += name_bytes
    return tuple(found), at


def _with_entries(
    sources: tuple[AdoptedSource, ...], targets: tuple[int, ...], rows: list[tuple[int, int, int, int]]
) -> tuple[AdoptedSource, ...]:
    entries: list[list[AdoptedEntry]] = [[] for _ in sources]
    for start, crc, source, target in rows:
        entries[source].append(AdoptedEntry(start, crc, None if target == _NO_TARGET else targets[target]))
    return tuple(source._replace(entries=tuple(of_it)) for source, of_it in zip(sources, entries, strict=True))
