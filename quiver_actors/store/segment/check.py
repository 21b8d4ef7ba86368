"""Checking a whole segment file against its checksum, in steps of bounded size. Pure: reads through a function.

Generators, so that whoever runs them can stop between two steps: each yields the number of bytes that it has just read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import ENTRY_BODY_BYTES_MAX, SEGMENT_BUNDLES_MAX
from quiver_actors.errors import ChecksumMismatch, Truncated
from quiver_actors.store.segment.codec import SegmentFooter, decode_manifest
from quiver_actors.store.segment.layout import CRC, TRAILER
from quiver_actors.store.segment.outline import Read
from quiver_actors.store.segment.reader import read_footer

STEP_BYTES = 1 << 20

_ROWS_MAX = 1 << 48

Result = TypeVar("Result")


def run_to_end(steps: Generator[int, None, Result]) -> Result:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def checksum_steps(read: Read, end: int) -> Generator[int, None, int]:
    """Compute the CRC-32 of bytes `[0, end)`.

    Raises:
        Truncated: the file has fewer bytes.
    """
    crc = offset = 0
    while offset < end:
        piece = read(min(STEP_BYTES, end - offset), offset)
        if not piece:
            raise Truncated(f"the file ends at {offset}: expected {end} bytes")
        crc = crc32(piece, crc)
        offset += len(piece)
        yield len(piece)
    return crc


def verify_steps(read: Read, size_bytes: int) -> Generator[int, None, SegmentFooter]:
    """Check the whole file. The checksum comes first: what is damaged is not believed to be of another version.

    Raises:
        ChecksumMismatch, Truncated: the file is damaged.
        FormatError: it is as it was written, and still no segment that this program reads.
    """
    if size_bytes < TRAILER.size:
        raise Truncated(f"segment has {size_bytes} bytes: expected at least the {TRAILER.size} of its trailer")
    crc = yield from checksum_steps(read, size_bytes - CRC.size)
    stored = int.from_bytes(read(CRC.size, size_bytes - CRC.size), "little")
    if crc != stored:
        raise ChecksumMismatch(f"CRC-32 is {crc:#010x}: the trailer says {stored:#010x}")
    return read_footer(read, size_bytes)


def empty_bundles(read: Read, footer: SegmentFooter) -> tuple[int, ...]:
    """Indexes of bundles without slots: those that were lost to damage before the file was written.

    Raises:
        FormatError: the manifest cannot be read.
    """
    ends = decode_manifest(read(footer.manifest_length, footer.manifest_offset)).ref_ends
    return tuple(index for index in range(len(ends) - 1) if ends[index] == ends[index + 1])


def is_plausible(footer: SegmentFooter) -> bool:
    """Whether the footer's numbers are possible and agree: it is read alone, without the checksum that covers it."""
    extension = footer.extension
    if extension is None:
        return footer.bundle_count <= SEGMENT_BUNDLES_MAX
    bundle_count = extension.last_sequence - extension.first_sequence + 1
    position_bytes = extension.wal_position_end - extension.wal_position_start
    return (
        bundle_count == footer.bundle_count <= SEGMENT_BUNDLES_MAX
        and extension.last_sequence < 1 << 63
        and 0 <= position_bytes <= footer.bundle_count * (ENTRY_BODY_BYTES_MAX + 8)
        and extension.wal_position_end < 1 << 63
        and extension.row_count < _ROWS_MAX
    )
