"""Codec of the progress file `quiver.sub.<id>` of one subscriber (FORMATS section 4). Pure: bytes in, values out.

    header, 32 bytes                            entry, repeated                     footer
     0  8  magic "QUIVSUB\\0"                     0  8  u64 segment_seq               u32 checksum of all before it
     8  2  u16 version = 1                       8  4  u32 bundle_count
    10  2  u16 header_size = 32                 12  2  u16 bitmap_words
    12  2  u16 flags                            14     bitmap_words x u64, LSB first
    14  8  u64 oldest_incomplete_seg
    22  4  u32 entry_count
    26  6  zero

We write CRC-32C and read CRC-32 (the Rust implementation's) as well. A damaged file never decodes to less work than is owed:
either the checksum holds, or a typed error is raised.

A segment that has no entry is complete below a trusted watermark and wholly pending from there on. Hence files of ours carry
an entry for the oldest incomplete segment, for each that is partly resolved, and for completed ones that an older incomplete
segment keeps above the watermark (without it a restart would deliver them again).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import crc32c
import msgspec

from quiver_actors.errors import (
    ChecksumMismatch,
    InvalidFormat,
    InvalidId,
    Truncated,
    UnsupportedVersion,
    UsageError,
)
from quiver_actors.model import check_id
from quiver_actors.subscriber import bitmap as bitmaps

VERSION = 1
ENTRIES_MAX = 1_000_000
BITMAP_WORDS_MAX = 1024
FLAG_TRUSTED_WATERMARK = 1 << 0

FILE_PREFIX = "quiver.sub."

_MAGIC = b"QUIVSUB\0"
_HEADER = struct.Struct("<8sHHHQI6x")
_ENTRY = struct.Struct("<QIH")
_CHECKSUM = struct.Struct("<I")


class SegmentProgress(NamedTuple):
    """What is resolved of one segment."""

    bundle_count: int
    bitmap: bytes
    """`ceil(bundle_count / 64)` words, as in `subscriber.bitmap`."""

    @property
    def is_complete(self) -> bool:
        return bitmaps.resolved_count(self.bitmap) == self.bundle_count


class SubscriberProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one progress file."""

    oldest_incomplete_seg: int
    entries: Mapping[int, SegmentProgress]
    """By segment number; the order does not matter."""
    trusted_watermark: bool
    """Whether every segment below `oldest_incomplete_seg` is complete; if not (Rust's files) the field says nothing."""
    unknown_flags: int = 0
    """Flag bits of the file that this version does not know: worth a warning, never written back."""

    @property
    def watermark(self) -> int:
        """Every segment below this number is complete."""
        return self.oldest_incomplete_seg if self.trusted_watermark else 0


def encode_progress(progress: SubscriberProgress) -> bytes:
    """Lay the progress out as a version 1 file with a CRC-32C, entries by rising segment number.

    Raises:
        UsageError: more entries or bundles than a reader accepts, a bitmap that does not fit its bundle count, or an entry
            below the trusted watermark. Nothing that this writes is refused by `decode_progress`.
    """
    if len(progress.entries) > ENTRIES_MAX:
        raise UsageError(f"progress of {len(progress.entries)} segments: a file holds at most {ENTRIES_MAX}")
    flags = FLAG_TRUSTED_WATERMARK if progress.trusted_watermark else 0
    parts = [_HEADER.pack(_MAGIC, VERSION, _HEADER.size, flags, progress.oldest_incomplete_seg, len(progress.entries))]
    for segment_seq in sorted(progress.entries):
        if segment_seq < progress.watermark:
            raise UsageError(f"segment {segment_seq} has an entry below the watermark {progress.watermark}")
        parts += _entry_parts(segment_seq, *progress.entries[segment_seq])
    body = b"".join(parts)
    return body + _CHECKSUM.pack(crc32c.crc32c(body))


def _entry_parts(segment_seq: int, bundle_count: int, bitmap: bytes) -> tuple[bytes, bytes]:
    words = bitmaps.word_count(bundle_count)
    if words > BITMAP_WORDS_MAX or len(bitmap) != words * 8:
        raise UsageError(
            f"segment {segment_seq}: {bundle_count} bundles with a bitmap of {len(bitmap)} bytes; "
            f"expected {words * 8} bytes and at most {BITMAP_WORDS_MAX * bitmaps.WORD_BITS} bundles"
        )
    return _ENTRY.pack(segment_seq, bundle_count, words), bitmap


def decode_progress(data: bytes) -> SubscriberProgress:
    """Read a progress file of any writer of version 1.

    The checksum is looked at before the version, so that damage never passes for a newer format. Bitmap bits beyond an entry's
    bundle count are ignored.

    Raises:
        Truncated: shorter than a header and a checksum, or an entry reaches beyond the end.
        InvalidFormat: wrong magic, impossible size or count, a segment that occurs twice, or an entry below the watermark.
        ChecksumMismatch: neither the CRC-32C nor the CRC-32 of the contents.
        UnsupportedVersion: written by a newer version.
    """
    if len(data) < _HEADER.size + _CHECKSUM.size:
        raise Truncated(f"progress file of {len(data)} bytes: expected at least {_HEADER.size + _CHECKSUM.size}")
    magic, version, header_size, flags, oldest, entry_count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise InvalidFormat(f"progress file starts with {magic!r}: expected {_MAGIC!r}")
    body = memoryview(data)[: -_CHECKSUM.size]
    _check_checksum(body, _CHECKSUM.unpack_from(data, len(body))[0])
    _check_header(version, header_size, entry_count, len(body))
    progress = SubscriberProgress(
        oldest_incomplete_seg=oldest,
        entries=_decode_entries(body, header_size, entry_count),
        trusted_watermark=bool(flags & FLAG_TRUSTED_WATERMARK),
        unknown_flags=flags & ~FLAG_TRUSTED_WATERMARK,
    )
    lowest = min(progress.entries, default=progress.watermark)
    if lowest < progress.watermark:
        raise InvalidFormat(f"progress entry of segment {lowest} is below the trusted watermark {progress.watermark}")
    return progress


def _check_checksum(body: memoryview, stored: int) -> None:
    found = crc32c.crc32c(body)
    if stored not in (found, zlib.crc32(body)):
        raise ChecksumMismatch(f"progress file: stored checksum {stored:#010x}, CRC-32C of its contents {found:#010x}")


def _check_header(version: int, header_size: int, entry_count: int, body_size: int) -> None:
    if version == 0:
        raise InvalidFormat(f"progress file version 0: expected {VERSION}")
    if version > VERSION:
        raise UnsupportedVersion(f"progress file version {version}: this Quiver reads version {VERSION}; upgrade it")
    if header_size < _HEADER.size:
        raise InvalidFormat(f"progress header of {header_size} bytes: expected at least {_HEADER.size}")
    if header_size > body_size:
        raise Truncated(f"progress header of {header_size} bytes in a file of {body_size} bytes and a checksum")
    if entry_count > ENTRIES_MAX:
        raise InvalidFormat(f"progress file of {entry_count} entries: expected at most {ENTRIES_MAX}")


def _decode_entries(body: memoryview, start: int, entry_count: int) -> dict[int, SegmentProgress]:
    entries: dict[int, SegmentProgress] = {}
    position = start
    for _ in range(entry_count):
        if position + _ENTRY.size > len(body):
            raise Truncated(f"progress entry {len(entries)} of {entry_count} starts at {position}, behind the last one")
        segment_seq, bundle_count, words = _ENTRY.unpack_from(body, position)
        if segment_seq in entries:
            raise InvalidFormat(f"progress file has two entries of segment {segment_seq}")
        if words > BITMAP_WORDS_MAX or words != bitmaps.word_count(bundle_count):
            raise InvalidFormat(f"progress of segment {segment_seq}: {words} words for {bundle_count} bundles")
        position += _ENTRY.size
        raw = bytes(body[position : position + words * 8])
        position += words * 8
        if position > len(body):
            raise Truncated(f"progress bitmap of segment {segment_seq} ends at {position} of {len(body)} bytes")
        entries[segment_seq] = SegmentProgress(bundle_count, bitmaps.resized(raw, bundle_count))
    return entries


def progress_file_name(subscriber: str) -> str:
    """The name of a subscriber's progress file.

    Raises:
        InvalidId: the id may not be used.
    """
    return FILE_PREFIX + check_id("subscriber", subscriber)


def subscriber_of(file_name: str) -> str | None:
    """The subscriber whose progress file has that name; None for every other file, `*.tmp` and invalid ids included."""
    if not file_name.startswith(FILE_PREFIX):
        return None
    try:
        return check_id("subscriber", file_name[len(FILE_PREFIX) :])
    except InvalidId:
        return None
