"""Where the log entry of each bundle stands in a file that was sealed in place. Pure: works on the file's memory.

One entry stands behind the other, but where bundles were lost: there the damaged entries are still in the file, and may look like those of
other bundles. So an entry is taken for that of a bundle only if the messages that the bundle is decoded from lie inside it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, InvalidFormat
from quiver_actors.store.segment.arrow_file import read_file_footer
from quiver_actors.store.segment.blocks import unpack_blocks
from quiver_actors.store.segment.codec import FooterExtension
from quiver_actors.store.segment.contents import Contents
from quiver_actors.store.segment.layout import LOG_HEADER_BYTES
from quiver_actors.store.wal import layout as wal_layout

CRC_OF_WHOLE = 0x2144DF1C
"""CRC-32 of any bytes that are followed by their own CRC-32."""
LENGTH_BYTES = wal_layout.ENTRY_LENGTH_BYTES
"""Bytes at the start of an entry that its CRC does not cover."""

_HEAD = struct.Struct("<IBqQ")
"""How an entry begins: bytes of the body, type, time, sequence."""
_MESSAGES_FROM = wal_layout.ENTRY_HEAD.size + wal_layout.SLOT_HEAD.size
"""No message of an entry begins before it."""

Places = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Where the entry of each bundle starts, and its size; size 0 for a bundle that was lost."""


def entry_places(contents: Contents, extension: FooterExtension, entries_end: int) -> Places:
    """Where the entries are if the tail of the file is right.

    Args:
        entries_end: file offset behind the last entry.

    Raises:
        ChecksumMismatch: the tail is damaged, or the head of an entry that is looked for.
        InvalidFormat: no tail of ours.
    """
    manifest = contents.manifest
    if manifest.byte_count is None or isinstance(manifest.byte_count, list):
        raise InvalidFormat("the manifest lacks the byte counts that our own segments have")
    has_slots = np.diff(np.asarray(manifest.ref_ends, np.int64)) > 0
    sizes = np.where(has_slots, np.asarray(manifest.byte_count).astype(np.int64), 0)
    if (has_slots & ((sizes <= _HEAD.size) | (sizes > entries_end))).any():
        raise ChecksumMismatch("the manifest is damaged: it names a log entry that the file cannot hold")
    ends = LOG_HEADER_BYTES + np.cumsum(sizes)
    starts: npt.NDArray[np.int64] = ends - sizes
    if not len(sizes) or ends[-1] == entries_end:
        return starts, sizes
    return _search(contents, extension.first_sequence, entries_end, sizes), sizes


def _search(
    contents: Contents, first_sequence: int, entries_end: int, sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Where the entries are if something else stands between them."""
    starts = np.full(len(sizes), LOG_HEADER_BYTES, np.int64)
    kept = np.flatnonzero(sizes)
    if not len(kept):
        return starts
    firsts, lasts = _messages(contents, kept)
    at = LOG_HEADER_BYTES
    for index, size, first, last in zip(
        kept.tolist(), sizes[kept].tolist(), firsts.tolist(), lasts.tolist(), strict=True
    ):
        latest = min(first - _MESSAGES_FROM, entries_end - size)
        earliest = max(at, last + wal_layout.ENTRY_CRC.size - size)
        aligned = at + -(-(earliest - at) // wal_layout.ALIGNMENT) * wal_layout.ALIGNMENT
        places = range(aligned, latest + 1, wal_layout.ALIGNMENT)
        found = list(_alike(contents.view, places, (size, index), first_sequence))
        if not found:
            raise ChecksumMismatch(f"the entry of bundle {index} is damaged: it cannot be found in the file")
        starts[index] = found[0] if len(found) == 1 else _proven(contents.view, found, size)
        at = int(starts[index]) + size
    return starts


def _alike(view: memoryview, places: range, entry: tuple[int, int], first_sequence: int) -> Iterator[int]:
    """Yield those places at which something begins as the entry of that size and bundle does: with its length and its number."""
    size, index = entry
    for start in places:
        body_bytes, kind, _, sequence = _HEAD.unpack_from(view, start)
        # An entry of a published stage is numbered from 0.
        number = sequence if kind == wal_layout.ENTRY_TYPE_STAGED else sequence - first_sequence
        if number == index and body_bytes == size - wal_layout.ENTRY_OVERHEAD_BYTES:
            yield start


def _proven(view: memoryview, starts: list[int], size: int) -> int:
    """The place whose bytes have their checksum; the first one where none has, so that what follows is still found behind it."""
    whole = (start for start in starts if crc32(view[start + LENGTH_BYTES : start + size]) == CRC_OF_WHOLE)
    return next(whole, starts[0])


def _messages(contents: Contents, kept: npt.NDArray[np.int64]) -> Places:
    """Where the first message of each of these bundles begins, and where the last one ends, as the tail says. All of them have slots."""
    manifest = contents.manifest
    streams, chunks = np.asarray(manifest.ref_streams, np.int64), np.asarray(manifest.ref_chunks, np.int64)
    begins, ends = np.zeros(len(streams), np.int64), np.zeros(len(streams), np.int64)
    by_stream = np.argsort(streams, kind="stable")
    for refs in np.split(by_stream, np.flatnonzero(np.diff(streams[by_stream])) + 1):
        info = contents.streams.get(int(streams[refs[0]]))
        if info is None:
            raise ChecksumMismatch("the manifest is damaged: it names a stream that is not in the directory")
        end = info.byte_offset + info.byte_length
        spans = unpack_blocks(read_file_footer(contents.read, info.byte_offset, end).batch_blocks)
        if chunks[refs].max() >= len(spans):
            raise ChecksumMismatch("the manifest is damaged: it names a batch that its stream does not have")
        found = spans[chunks[refs]]
        begins[refs] = info.byte_offset + found[:, 0]
        ends[refs] = begins[refs] + found[:, 1] + found[:, 2]
    first_refs = np.asarray(manifest.ref_ends, np.int64)[:-1][kept]
    return np.minimum.reduceat(begins, first_refs), np.maximum.reduceat(ends, first_refs)
