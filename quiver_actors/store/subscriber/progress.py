"""Codec of the progress file `quiver.sub.<id>` of one subscriber. Pure: bytes in, values out.

Source: docs/formats.md section 3.5, "Progress", section 3.6, "Owner of a subscriber", and section 7.4, "Progress files of two writers".

The file is a header, the owner where the subscriber has one, its archived segments where its consumers read the archive, entries (each with
its bitmap behind it), and a checksum. Readers of version 1 skip what stands behind the header's 32 bytes by header_size.

Archived segments are those that the subscriber gets from the archive: no file of them is on the disk, and a start must not take them for
lost. Each of them has an entry, which says how many bundles it has. A number in their runs that has none, or a complete one, is no such
segment.

A header of 32 bytes, or one that goes on with another magic, says that the subscriber is the topic's owner's.
We write CRC-32C and read CRC-32 (the Rust implementation's) as well: the checksum says whose file it is. Flag bit 0 means in a file of ours
that every segment below `oldest_incomplete_seg` is complete; in a file of the Rust implementation, whose newer releases set it, that the
segment of that number is complete too. A damaged file never decodes to less work than is owed:
either the checksum holds, or a typed error is raised.

A segment that has no entry is complete below a trusted watermark and wholly pending from there on. Hence files of ours carry
an entry for the oldest incomplete segment, for each that is partly resolved, and for completed ones that an older incomplete
segment keeps above the watermark (without it a restart would deliver them again).
"""

from __future__ import annotations

import bisect
import struct
import zlib
from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple

import crc32c
import msgspec

from quiver_actors.base.model import check_id
from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.errors import InvalidFormat, InvalidId, Truncated, UsageError
from quiver_actors.store.format.fields import Field, FieldTable, at_least, at_most
from quiver_actors.store.format.framing import Framing, Place
from quiver_actors.store.subscriber import bitmap as bitmaps

ENTRIES_MAX = 1_000_000
BITMAP_WORDS_MAX = 1024
FLAG_TRUSTED_WATERMARK = 1 << 0

JOINED_MAX = 1024
"""Users that one subscriber can be shared with."""

FILE_PREFIX = "quiver.sub."

ARCHIVED_RUNS_MAX = 2048
"""Runs of numbers that a subscriber's archived segments may make up: they have to fit into the header."""

_OWNER_MAGIC = b"OWNR"
_ARCHIVED_MAGIC = b"ARCH"
_TOPICS_OWNER = 0xFFFFFFFF

PROGRESS_TABLE = FieldTable(
    "progress header",
    Field("magic", "8s", constant=b"QUIVSUB\0"),
    Field("version", "H", constant=1),
    Field("header_size", "H", "the owner and the archived segments included", 32, at_least(32)),
    Field("flags", "H", "bit 0: the watermark is trusted", check=at_most(FLAG_TRUSTED_WATERMARK)),
    Field("oldest_incomplete_seg", "Q", "of a trusted watermark: all segments below are complete"),
    Field("entry_count", "I", check=at_most(ENTRIES_MAX)),
    Field("zeroes", "6x"),
)
OWNER_TABLE = FieldTable(
    "owner of a subscriber",
    Field("magic", "4s", constant=_OWNER_MAGIC, since="1+"),
    Field("owner_uid", "I", "0xFFFFFFFF: the topic's owner", since="1+"),
    Field("joined_count", "I", "users that may join; their u32 uids follow, rising", since="1+"),
)
ARCHIVED_TABLE = FieldTable(
    "archived segments of a subscriber",
    Field("magic", "4s", constant=_ARCHIVED_MAGIC, since="1+"),
    Field(
        "run_count",
        "I",
        "runs of segment numbers follow, each a u64 (the first one) and a u32 (how many); may be 0",
        since="1+",
    ),
    Field("mean_bytes", "Q", "bytes of a bundle on average, for windows in bytes", since="1+"),
)
ENTRY_TABLE = FieldTable(
    "progress entry",
    Field("segment_seq", "Q"),
    Field("bundle_count", "I"),
    Field("bitmap_words", "H", "u64 words of the bitmap behind it, lowest bit first; set: resolved"),
)
PROGRESS = Framing("progress file", PROGRESS_TABLE, Place.FILE, (crc32c.crc32c, zlib.crc32))
_ENTRY, _OWNER, _ARCHIVED = ENTRY_TABLE.struct, OWNER_TABLE.struct, ARCHIVED_TABLE.struct
_RUN = struct.Struct("<QI")
_SEGMENT_SEQ_MAX = (1 << 64) - 1


class SegmentProgress(NamedTuple):
    """Which bundles of one segment are resolved."""

    bundle_count: int
    bitmap: bytes
    """The resolved bundles: `ceil(bundle_count / 64)` words, as in `store.subscriber.bitmap`."""

    @property
    def is_complete(self) -> bool:
        """Whether every bundle of the segment is resolved."""
        return bitmaps.resolved_count(self.bitmap) == self.bundle_count


class ArchivedSegments(NamedTuple):
    """The segments that a subscriber gets from the archive, and has not resolved: those of the runs that have an entry which is not
    complete."""

    runs: tuple[tuple[int, int], ...] = ()
    """Runs of numbers, as (first, how many), rising."""
    mean_bytes: int = 0
    """Bytes of one of their bundles, on average."""
    is_read: bool = False
    """Whether the subscriber's consumers read the archive: segments that leave the disk may follow. True where there are any."""

    def has(self, segment_seq: int) -> bool:
        """Whether a segment lies in one of the runs."""
        place = bisect.bisect(self.runs, segment_seq, key=itemgetter(0)) - 1
        return place >= 0 and segment_seq < sum(self.runs[place])


class SubscriberProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one progress file."""

    oldest_incomplete_seg: int
    entries: Mapping[int, SegmentProgress]
    """The progress of segments by their numbers; the order does not matter."""
    trusted_watermark: bool
    """Whether every segment below `oldest_incomplete_seg` is complete; if not (Rust's files) the field says nothing."""
    ownership: Ownership = OF_TOPICS_OWNER
    archived: ArchivedSegments = ArchivedSegments()
    """The segments among `entries` that are read from the archive."""
    unknown_flags: int = 0
    """Flag bits of the file that this version does not know: worth a warning, never written back."""
    by_other_writer: bool = False
    """The checksum is the one of the Rust implementation: the file speaks of segments by the numbers that it gave them."""

    @property
    def watermark(self) -> int:
        """Every segment below this number is complete."""
        return self.oldest_incomplete_seg if self.trusted_watermark else 0


def encode_for_rust(progress: SubscriberProgress) -> bytes:
    """Lay the progress out as the Rust implementation reads it: CRC-32 and no flags. What a watermark alone says is not in it, because
    that implementation goes by the entries: what it finds below the watermark, it delivers once more.

    Raises:
        UsageError: more entries or bundles than a reader accepts, or a bitmap that does not fit its bundle count.
    """
    return PROGRESS._replace(checksums=(zlib.crc32,)).seal(_body_of(progress, 0))


def encode_progress(progress: SubscriberProgress) -> bytes:
    """Lay the progress out as a version 1 file with a CRC-32C, entries by rising segment number.

    Raises:
        UsageError: more entries or bundles than a reader accepts, a bitmap that does not fit its bundle count, or an entry
            below the trusted watermark. Nothing that this writes is refused by `decode_progress`.
    """
    lowest = min(progress.entries, default=progress.watermark)
    if lowest < progress.watermark:
        raise UsageError(f"segment {lowest} has an entry below the watermark {progress.watermark}")
    return PROGRESS.seal(_body_of(progress, FLAG_TRUSTED_WATERMARK if progress.trusted_watermark else 0))


def _body_of(progress: SubscriberProgress, flags: int) -> bytes:
    if len(progress.entries) > ENTRIES_MAX:
        raise UsageError(f"progress of {len(progress.entries)} segments: a file holds at most {ENTRIES_MAX}")
    more = _encode_owner(progress.ownership) + _encode_archived(progress.archived)
    header = PROGRESS_TABLE.pack(
        header_size=PROGRESS_TABLE.size + len(more),
        flags=flags,
        oldest_incomplete_seg=progress.oldest_incomplete_seg,
        entry_count=len(progress.entries),
    )
    parts = [header, more]
    for segment_seq in sorted(progress.entries):
        parts += _entry_parts(segment_seq, *progress.entries[segment_seq])
    return b"".join(parts)


def _encode_owner(ownership: Ownership) -> bytes:
    """What stands behind the header; nothing for a subscriber that belongs to the topic's owner alone."""
    if ownership == OF_TOPICS_OWNER:
        return b""
    uid = _TOPICS_OWNER if ownership.owner_uid is None else ownership.owner_uid
    joined = ownership.joined_uids
    if len(joined) > JOINED_MAX:
        raise UsageError(f"a subscriber shared with {len(joined)} users: expected at most {JOINED_MAX}")
    return _OWNER.pack(_OWNER_MAGIC, uid, len(joined)) + struct.pack(f"<{len(joined)}I", *joined)


def _decode_owner(header: memoryview) -> Ownership:
    """
    Args:
        header: the whole header, what stands behind its first 32 bytes included.

    Raises:
        InvalidFormat: the users do not fit in the header.
    """
    start = PROGRESS_TABLE.size + _OWNER.size
    if len(header) < start or header[PROGRESS_TABLE.size :][:4] != _OWNER_MAGIC:
        return OF_TOPICS_OWNER
    _, uid, joined_count = _OWNER.unpack_from(header, PROGRESS_TABLE.size)
    if joined_count > JOINED_MAX or start + 4 * joined_count > len(header):
        raise InvalidFormat(f"progress header of {len(header)} bytes: {joined_count} users do not fit in it")
    return Ownership(
        None if uid == _TOPICS_OWNER else uid, tuple(struct.unpack_from(f"<{joined_count}I", header, start))
    )


def _encode_archived(archived: ArchivedSegments) -> bytes:
    """What stands behind the header and the owner; nothing for a subscriber whose consumers do not read the archive."""
    if not (archived.runs or archived.is_read):
        return b""
    if len(archived.runs) > ARCHIVED_RUNS_MAX:
        raise UsageError(
            f"{len(archived.runs)} runs of archived segments are too many for a progress file: {ARCHIVED_RUNS_MAX} fit"
        )
    head = _ARCHIVED.pack(_ARCHIVED_MAGIC, len(archived.runs), archived.mean_bytes)
    return head + b"".join(_RUN.pack(*run) for run in archived.runs)


def _decode_archived(header: memoryview) -> ArchivedSegments:
    """
    Args:
        header: the whole header, the owner included.

    Raises:
        InvalidFormat: the runs do not fit in the header.
    """
    at = PROGRESS_TABLE.size
    if header[at : at + 4] == _OWNER_MAGIC:
        at += _OWNER.size + 4 * _OWNER.unpack_from(header, at)[2]
    if len(header) < at + _ARCHIVED.size or header[at : at + 4] != _ARCHIVED_MAGIC:
        return ArchivedSegments()
    _, run_count, mean_bytes = _ARCHIVED.unpack_from(header, at)
    at += _ARCHIVED.size
    if run_count > ARCHIVED_RUNS_MAX or at + run_count * _RUN.size > len(header):
        raise InvalidFormat(f"progress header of {len(header)} bytes: {run_count} runs of segments do not fit in it")
    return ArchivedSegments(tuple(_RUN.iter_unpack(header[at : at + run_count * _RUN.size])), mean_bytes, is_read=True)


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
    body = PROGRESS.open(data)
    _, _, header_size, flags, oldest, entry_count = PROGRESS_TABLE.struct.unpack_from(data)
    if entry_count > ENTRIES_MAX:
        raise InvalidFormat(f"progress file of {entry_count} entries: expected at most {ENTRIES_MAX}")
    by_other_writer = PROGRESS.checksum_of(data) is not crc32c.crc32c
    entries = _decode_entries(body, header_size, entry_count)
    is_trusted = bool(flags & FLAG_TRUSTED_WATERMARK)
    if by_other_writer and is_trusted:
        # Its newer releases say up to where all is complete, that number included, and keep what is complete below.
        oldest = min(oldest + 1, _SEGMENT_SEQ_MAX)
        entries = {segment_seq: entry for segment_seq, entry in entries.items() if segment_seq >= oldest}
    progress = SubscriberProgress(
        oldest_incomplete_seg=oldest,
        entries=entries,
        trusted_watermark=is_trusted,
        ownership=_decode_owner(body[:header_size]),
        archived=_decode_archived(body[:header_size]),
        unknown_flags=flags & ~FLAG_TRUSTED_WATERMARK,
        by_other_writer=by_other_writer,
    )
    lowest = min(progress.entries, default=progress.watermark)
    if lowest < progress.watermark:
        raise InvalidFormat(f"progress entry of segment {lowest} is below the trusted watermark {progress.watermark}")
    return progress


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


def subscriber_of(file_name: str, prefix: str = FILE_PREFIX) -> str | None:
    """The subscriber whose progress file has that name; None for every other file, `*.tmp` and invalid ids included.

    Args:
        prefix: of another kind of file, one for each subscriber.
    """
    if not file_name.startswith(prefix):
        return None
    try:
        return check_id("subscriber", file_name.removeprefix(prefix))
    except InvalidId:
        return None
