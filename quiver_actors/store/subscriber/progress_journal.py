"""Codec of `quiver.progress.tmp`, the journal of the progress of one engine's subscribers. Pure: bytes in, values out.

Source: docs/formats.md section 3.8, "The journal of progress".

A header, then frames. A flush appends one frame with a record for each subscriber that has changed: the name, the checksum of the progress
file that the record goes on from, and the whole content that the file is to have. The last record of a subscriber counts, and only while
its file ends in that checksum: a file that anybody has written since, or that is gone, is newer than the journal.

A frame begins with the marker of its journal, 8 random bytes, so that no bytes that a subscriber chooses can pass for a frame. A power loss
tears the last frame. Any other frame that is not whole is damage: the frames behind it are found by their marker, and count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import crc32c

from quiver_actors.errors import InvalidFormat
from quiver_actors.store.format.fields import Field, FieldTable
from quiver_actors.store.format.framing import CRC, Framing, Place

JOURNAL_NAME = "quiver.progress.tmp"
"""A program that does not know the file deletes it when it opens the directory, as it deletes every temporary file."""

MARKER_BYTES = 8
JOURNAL_TABLE = FieldTable(
    "journal of progress",
    Field("magic", "8s", constant=b"QUIVPRJ\0"),
    Field("version", "H", constant=1),
    Field("size", "H", "bytes of the header", 24),
    Field("marker", "8s", "random; every frame of the journal begins with it"),
    Field("crc32", "I", "CRC-32 of all before"),
)
FRAME_TABLE = FieldTable(
    "frame of a journal of progress",
    Field("marker", "8s", "that of the header"),
    Field("body_bytes", "I", "bytes of the records behind it"),
)
RECORD_TABLE = FieldTable(
    "record of a journal of progress",
    Field("name_bytes", "H", "bytes of the subscriber's name, which follows"),
    Field("base", "I", "the last four bytes of the progress file that the record goes on from"),
    Field("content_bytes", "I", "bytes of the progress file that it is to become, which follow the name"),
)
PROGRESS_JOURNAL = Framing("journal of progress", JOURNAL_TABLE, Place.SIZE)
_FRAME, _RECORD = FRAME_TABLE.struct, RECORD_TABLE.struct


class JournalRecord(NamedTuple):
    """What a progress file is to become."""

    subscriber: str
    base: int
    """Checksum of the progress file that the record goes on from; see `base_of`."""
    content: bytes


class FoundJournal(NamedTuple):
    """What can be read of a journal."""

    latest: dict[str, JournalRecord]
    """The last record of each subscriber."""
    frame_count: int
    is_damaged: bool
    """Whether a frame is not whole that has a whole one behind it."""


def base_of(content: bytes) -> int:
    """The checksum at the end of a progress file. Raises struct.error: the file is shorter than that."""
    return int(CRC.unpack_from(content, len(content) - CRC.size)[0])


def current_content(content: bytes, record: JournalRecord | None) -> bytes:
    """What a progress file says together with its record in the journal, if it has one: the record's content, where the record goes on
    from this file."""
    goes_on = record is not None and len(content) >= CRC.size and base_of(content) == record.base
    return record.content if record is not None and goes_on else content


def encode_header(marker: bytes) -> bytes:
    """The beginning of a journal; `marker` has `MARKER_BYTES` random bytes."""
    return PROGRESS_JOURNAL.pack(marker=marker)


def encode_frame(marker: bytes, records: Iterable[JournalRecord]) -> bytes:
    """One frame, to be appended."""
    parts = []
    for record in records:
        name = record.subscriber.encode("ascii")
        parts += [_RECORD.pack(len(name), record.base, len(record.content)), name, record.content]
    body = b"".join(parts)
    head = _FRAME.pack(marker, len(body))
    return b"".join([head, body, CRC.pack(crc32c.crc32c(body, crc32c.crc32c(head)))])


def decode_progress_journal(data: bytes) -> FoundJournal:
    """Read a journal, as far as its frames are whole.

    Raises:
        Truncated, InvalidFormat, ChecksumMismatch: the header is damaged, so no frame can be found.
        UnsupportedVersion: written by a newer version.
    """
    PROGRESS_JOURNAL.open(data)
    header = JOURNAL_TABLE.unpack(data)
    latest: dict[str, JournalRecord] = {}
    count, end, is_damaged = 0, int(header["size"]), False
    at = data.find(header["marker"], end)
    while at >= 0:
        body = _whole_body(data, at)
        if body is None:
            at = data.find(header["marker"], at + 1)
            continue
        is_damaged = is_damaged or at != end
        latest.update((record.subscriber, record) for record in _records_of(body))
        count, end = count + 1, at + _FRAME.size + len(body) + CRC.size
        at = data.find(header["marker"], end)
    return FoundJournal(latest, count, is_damaged)


def _whole_body(data: bytes, at: int) -> bytes | None:
    """The body of the frame at `at`; None if it is not whole."""
    start = at + _FRAME.size
    if start > len(data):
        return None
    end = start + _FRAME.unpack_from(data, at)[1]
    if end + CRC.size > len(data) or CRC.unpack_from(data, end)[0] != crc32c.crc32c(memoryview(data)[at:end]):
        return None
    return data[start:end]


def _records_of(body: bytes) -> Iterator[JournalRecord]:
    """Raises InvalidFormat: the records do not fill the body of a frame whose checksum holds, which no program writes."""
    at = 0
    while at < len(body):
        if at + _RECORD.size > len(body):
            raise InvalidFormat(f"journal of progress: a record begins at {at} of a frame of {len(body)} bytes")
        name_bytes, base, content_bytes = _RECORD.unpack_from(body, at)
        start = at + _RECORD.size + name_bytes
        at = start + content_bytes
        if at > len(body):
            raise InvalidFormat(f"journal of progress: a record ends at {at} of a frame of {len(body)} bytes")
        name = body[start - name_bytes : start]
        if not name.isascii():
            raise InvalidFormat(f"journal of progress: {name!r} is no name of a subscriber")
        yield JournalRecord(name.decode("ascii"), base, body[start:at])
