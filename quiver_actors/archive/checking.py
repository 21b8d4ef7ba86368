"""Reads archived segments whole and proves them against their checksums and the manifest."""

from __future__ import annotations

import xxhash

from quiver_actors.archive.blocks import BlockSums
from quiver_actors.archive.manifest import Segment
from quiver_actors.archive.packs import read_packed, read_sums
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, FormatError
from quiver_actors.store.objects.object_store import ObjectMissing, ObjectStore


def read_segment(store: ObjectStore, key: str, segment: Segment) -> bytes:
    """An archived segment, whole and proven.

    Args:
        key: `manifest.key_of` the segment.

    Raises:
        ObjectMissing: it is not there. ChecksumMismatch: it is not what was uploaded. ArchiveError: the store cannot be read.
    """
    content = _content(store, key, segment)
    if not is_whole(segment, content):
        raise ChecksumMismatch(
            f"{store.url}: {key} has {len(content)} bytes with CRC-32 {crc32(content):#010x}, and is not what the manifest says: "
            f"{segment.size_bytes} bytes with CRC-32 {segment.crc32:#010x}, digest {segment.digest or 'not recorded'}"
        )
    return content


def is_whole(segment: Segment, content: bytes) -> bool:
    """Whether a content is that of a segment, as far as its row says."""
    return is_of(
        content_of(segment), BlockSums(len(content), crc32(content), (), digest=xxhash.xxh3_128_digest(content))
    )


def content_of(segment: Segment) -> tuple[int, int, str]:
    """The size, the CRC-32 and the digest that the row of a segment has."""
    return segment.size_bytes, segment.crc32, segment.digest


def is_of(content: tuple[int, int, str], sums: BlockSums) -> bool:
    """Whether checksums are those of a content, which is as of `content_of`: former programs recorded no digest."""
    size_bytes, crc, digest = content
    if (sums.size_bytes, sums.crc32) != (size_bytes, crc):
        return False
    return not digest or not sums.digest or digest == sums.digest.hex()


def _content(store: ObjectStore, key: str, segment: Segment) -> bytes:
    if segment.pack is not None:
        return read_packed(store, segment.pack, 0, segment.size_bytes)
    found = store.get(key)
    if found is None:
        raise ObjectMissing(f"{store.url}: segment {key} is not there")
    return found.content


def check_segment(store: ObjectStore, key: str, segment: Segment) -> str:
    """Return the fault of an archived segment or its checksums; empty if there is none. Raises ArchiveError: the store cannot be read."""
    try:
        content = read_segment(store, key, segment)
        sums = read_sums(store, key, segment.pack)
        if not is_of(content_of(segment), sums):
            return "the checksums of its blocks are those of another content"
        sums.check(0, content)
    except (ObjectMissing, FormatError) as error:
        return str(error)
    return ""
