"""Reads archived segments whole and proves them against their checksums and the manifest."""

from __future__ import annotations

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
    if (len(content), crc32(content)) != (segment.size_bytes, segment.crc32):
        raise ChecksumMismatch(
            f"{store.url}: {key} has {len(content)} bytes with CRC-32 {crc32(content):#010x}: the manifest says {segment.size_bytes} "
            f"and {segment.crc32:#010x}"
        )
    return content


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
        if (sums.size_bytes, sums.crc32) != (segment.size_bytes, segment.crc32):
            return "the checksums of its blocks are those of another content"
        sums.check(0, content)
    except (ObjectMissing, FormatError) as error:
        return str(error)
    return ""
