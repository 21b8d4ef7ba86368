"""The upload of one segment: proven before, under a key that belongs to its content alone, and looked at after.

Guarantees: a segment that is uploaded twice is one object; a segment whose bytes have changed in between (it was compacted) takes the next
generation and touches nothing that is there; what does not have the size that was sent is no upload.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from quiver_actors.archive.blocks import BlockSums, encode_sums, sums_of
from quiver_actors.archive.keys import GENERATION_MAX, StreamKey, crc_key, segment_key
from quiver_actors.archive.manifest import INDEX_STRIDE, Segment
from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import FormatError
from quiver_actors.store.objects.creation import create_once
from quiver_actors.store.objects.errors import ArchiveRefused, ArchiveUnavailable
from quiver_actors.store.objects.object_store import PART_BYTES, ObjectExists, ObjectMissing, ObjectStore
from quiver_actors.store.segment.layout import CRC
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader

_PIECE_BYTES = 1 << 20
T = TypeVar("T", bytes, memoryview)


class Throttle:
    """Hands out the pieces of what is sent no faster than a limit. Any thread may ask.

    Args:
        bytes_per_second: 0: no limit.
        wait: waits so many seconds, or less. Returns whether nothing is to be sent any more, as the process ends.

    Raises:
        ArchiveUnavailable: by what yields pieces: nothing is to be sent any more.
    """

    def __init__(self, bytes_per_second: int, wait: Callable[[float], object]) -> None:
        self._limit = bytes_per_second
        self._wait = wait
        self._lock = threading.Lock()
        self._free_ns = 0
        """The monotonic time at which all that was handed out so far is sent at the limit."""

    def pieces(self, view: memoryview) -> Iterator[memoryview]:
        """Yield a segment in pieces that fit a part, each when it may be sent."""
        step = PART_BYTES if not self._limit else min(PART_BYTES, max(_PIECE_BYTES, self._limit // 4))
        yield from self.paced(view[offset : offset + step] for offset in range(0, view.nbytes, step))

    def paced(self, pieces: Iterable[T]) -> Iterator[T]:
        """Yield pieces, each when it may be sent."""
        for piece in pieces:
            self._await_turn(len(piece))
            yield piece

    def _await_turn(self, size_bytes: int) -> None:
        if not self._limit:
            return
        with self._lock:
            turn_ns = max(self._free_ns, time.monotonic_ns())
            self._free_ns = turn_ns + size_bytes * SECOND_NS // self._limit
        while (left_ns := turn_ns - time.monotonic_ns()) > 0:
            if self._wait(left_ns / SECOND_NS):
                raise ArchiveUnavailable("the archiver ends: what it was sending is sent again by the next one")


def upload(
    store: ObjectStore, node: str, stream: StreamKey, info: SegmentInfo, view: memoryview, throttle: Throttle
) -> Segment:
    """Put one segment into the store and describe it.

    Args:
        info: what the worker says of the segment.
        view: the whole file.

    Raises:
        FormatError: the file is damaged; nothing was sent.
        ArchiveError: the store did not take it; the same call may be made again.
    """
    reader = SegmentReader(view, segment_seq=info.segment_seq)
    sums = sums_of(view)
    if crc32(view[-CRC.size :], reader.footer.crc32) != sums.crc32:
        reader.verify_checksum()  # says what is wrong
    generation = _reserve(store, node, stream, info.segment_seq, sums)
    key = segment_key(node, stream, info.segment_seq, generation)
    return Segment(
        segment_seq=info.segment_seq,
        generation=generation,
        bundle_count=reader.bundle_count,
        row_count=reader.row_count,
        size_bytes=sums.size_bytes,
        crc32=sums.crc32,
        etag=put_whole(store, key, throttle.pieces(view), view.nbytes, same_as(view)),
        created_unix_ns=time.time_ns(),
        first_ingestion_unix_ns=info.first_ingestion_ts_nanos,
        last_ingestion_unix_ns=info.last_ingestion_ts_nanos,
        position_start=info.position_start,
        position_end=info.position_end,
        index=sparse_index(view),
        digest=sums.digest.hex(),
    )


def _reserve(store: ObjectStore, node: str, stream: StreamKey, segment_seq: int, sums: BlockSums) -> int:
    """Write the checksums where they belong, and so reserve the generation whose key holds this content. Returns the generation."""
    content = encode_sums(sums)
    for generation in range(GENERATION_MAX):
        try:
            create_once(store, crc_key(segment_key(node, stream, segment_seq, generation)), content)
            return generation
        except ObjectExists:
            continue
    raise ArchiveRefused(
        f"{store.url}: segment {segment_seq} of {stream} is there in {GENERATION_MAX} different contents"
    )


Content = Iterator[bytes | memoryview]


def put_whole(
    store: ObjectStore,
    key: str,
    pieces: Iterable[bytes | memoryview],
    size_bytes: int,
    is_content: Callable[[Content], bool],
) -> str:
    """Send an object whose key belongs to its content unless it is there, as after a kill; returns the etag.

    Args:
        is_content: whether what is read in pieces is the content. An object of that key and size counts as sent only then: somebody may
            have put other bytes there, or it may have rotted.

    Raises:
        ArchiveError: the store did not take it; the same call may be made again.
    """
    found = store.head(key)
    if found is None or found.size_bytes != size_bytes or not _is_there(store, key, size_bytes, is_content):
        etag = store.put(key, pieces, size_bytes)
        found = store.head(key)
        if found is None or found.size_bytes != size_bytes:
            there = "nothing" if found is None else f"{found.size_bytes} bytes"
            raise ArchiveUnavailable(f"{store.url}: {there} of {key} arrived: {size_bytes} bytes were sent")
        return found.etag or etag
    return found.etag


def _is_there(store: ObjectStore, key: str, size_bytes: int, is_content: Callable[[Content], bool]) -> bool:
    try:
        return is_content(store.read(key, 0, size_bytes))
    except ObjectMissing:
        return False  # deleted meanwhile


def same_as(view: memoryview) -> Callable[[Content], bool]:
    """Return what compares pieces with a content, byte by byte."""

    def is_content(pieces: Content) -> bool:
        offset = 0
        for piece in pieces:
            if view[offset : offset + len(piece)] != piece:
                return False
            offset += len(piece)
        return offset == view.nbytes

    return is_content


def has_crc32(wanted: int) -> Callable[[Content], bool]:
    """Return what compares the CRC-32 of pieces with that of a content."""

    def is_content(pieces: Content) -> bool:
        crc = 0
        for piece in pieces:
            crc = crc32(piece, crc)
        return crc == wanted

    return is_content


def sparse_index(view: memoryview) -> tuple[int, ...]:
    """The byte at which each thousandth bundle begins; -1 for one that was lost; empty for a file of another writer."""

    def read(length: int, offset: int) -> bytes:
        return bytes(view[offset : offset + length])

    try:
        outline = read_outline(read, view.nbytes)
    except FormatError:
        return ()
    counts = outline.columns.slot_counts
    starts = np.concatenate([[0], np.cumsum(counts)])
    found = []
    for bundle in range(0, len(counts), INDEX_STRIDE):
        refs = outline.columns.refs[starts[bundle] : starts[bundle + 1]]
        offsets = [int(outline.streams[stream_id].batches[chunk, 0]) for _, stream_id, chunk in refs]
        found.append(min(offsets, default=-1))
    return tuple(found)
