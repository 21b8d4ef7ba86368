"""`quiver.cold`: which segments of one engine lie on the cold disk, and what is known of them without a look there. Pure codec.

Source: docs/formats.md section 3.10, "The list of cold segments: `quiver.cold`".

A header, cold segments (each with its runs of lost bundles and the end of its file behind it), numbers of files that are still to be
deleted on the cold disk, the path of the cold directory in UTF-8, and the CRC-32 of all.

The list decides where a segment is: one that it names and that has no file in `segments/` is on the cold disk, whether that is mounted or
not. Where both exist the file in `segments/` counts. What a start needs of a segment is in the end of its file (footer and trailer), so
that a start reads nothing of the cold disk.
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

COLD_NAME = "quiver.cold"
COLD_LIST_BYTES_MAX = 1 << 30
COLD_ID_BYTES = 16
COLD_TABLE = FieldTable(
    "list of cold segments",
    Field("magic", "8s", constant=b"QUIVER\0H"),
    Field("version", "H", constant=1),
    Field("header_size", "H", "a reader skips what it does not know", 44),
    Field("cold_id", "16s", "names the directory on the cold disk, and is in its identity file"),
    Field("segment_count", "I"),
    Field("unwanted_count", "I"),
    Field("root_bytes", "H", "bytes of the cold directory's path"),
    Field("zeroes", "6x"),
)
COLD_SEGMENT_TABLE = FieldTable(
    "cold segment",
    Field("segment_seq", "Q"),
    Field("size_bytes", "Q", "of its file"),
    Field("lost_count", "I", "runs of lost bundles behind it"),
    Field("end_bytes", "I", "bytes of the file's end behind them"),
)
COLD_LOST_TABLE = FieldTable(
    "lost bundles of a cold segment", Field("first", "I", "index of the first"), Field("count", "I")
)
COLD_UNWANTED_TABLE = FieldTable("cold file to delete", Field("segment_seq", "Q"))
COLD = Framing(COLD_NAME, COLD_TABLE, Place.FILE)


class ColdEntry(NamedTuple):
    """One segment on the cold disk."""

    size_bytes: int
    end: bytes
    """The last bytes of its file, from the footer on."""
    lost: tuple[tuple[int, int], ...] = ()
    """Runs of bundles, as (first, count), that the segment itself records as lost."""


@dataclass(frozen=True, slots=True)
class ColdList:
    """The contents of the file.

    Attributes:
        cold_id: 16 bytes.
        root: the cold directory, as the settings named it when the list was written.
        segments: by segment number.
        unwanted: numbers of segments whose files are to be deleted on the cold disk.
    """

    cold_id: bytes
    root: str
    segments: Mapping[int, ColdEntry] = field(default_factory=lambda: MappingProxyType({}))
    unwanted: tuple[int, ...] = ()


def encode_cold_list(content: ColdList) -> bytes:
    """Lay the list out, segments by rising number."""
    root = content.root.encode()
    parts = [
        COLD_TABLE.pack(
            cold_id=content.cold_id,
            segment_count=len(content.segments),
            unwanted_count=len(content.unwanted),
            root_bytes=len(root),
        )
    ]
    for segment_seq in sorted(content.segments):
        size_bytes, end, lost = content.segments[segment_seq]
        parts.append(COLD_SEGMENT_TABLE.struct.pack(segment_seq, size_bytes, len(lost), len(end)))
        parts += [COLD_LOST_TABLE.struct.pack(first, count) for first, count in lost]
        parts.append(end)
    parts += [COLD_UNWANTED_TABLE.struct.pack(segment_seq) for segment_seq in sorted(content.unwanted)]
    return COLD.seal(b"".join([*parts, root]))


def decode_cold_list(data: bytes) -> ColdList:
    """Read the list. Raises as `Framing.open`."""
    body = COLD.open(data)
    header = COLD_TABLE.unpack(data)
    at, segments = header["header_size"], dict[int, ColdEntry]()
    try:
        for _ in range(header["segment_count"]):
            segment_seq, entry, at = _read_segment(body, at)
            segments[segment_seq] = entry
        unwanted = tuple(number for (number,) in COLD_UNWANTED_TABLE.rows(body, at, header["unwanted_count"]))
        at += COLD_UNWANTED_TABLE.size * len(unwanted)
        root = str(body[at : at + header["root_bytes"]], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise InvalidFormat(f"{COLD_NAME}: its counts do not fit its {len(data)} bytes") from error
    return ColdList(header["cold_id"], root, segments, unwanted)


def _read_segment(body: memoryview, at: int) -> tuple[int, ColdEntry, int]:
    segment_seq, size_bytes, lost_count, end_bytes = COLD_SEGMENT_TABLE.struct.unpack_from(body, at)
    at += COLD_SEGMENT_TABLE.size
    lost = tuple((first, count) for first, count in COLD_LOST_TABLE.rows(body, at, lost_count))
    at += COLD_LOST_TABLE.size * lost_count
    if at + end_bytes > len(body):
        raise struct.error("the end of a segment is not there")
    return segment_seq, ColdEntry(size_bytes, bytes(body[at : at + end_bytes]), lost), at + end_bytes
