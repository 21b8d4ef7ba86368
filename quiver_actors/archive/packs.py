"""Packs: objects that hold many small archived segments, one behind the other, each as it was uploaded. Pure, but for the two readers.

In front of each segment lie the checksums of its blocks (`archive.blocks`), as the object `.crc` beside a single segment has them. The
manifest says for each segment in which pack it lies, and where. So a segment that lies in a pack is read and proven like any other, and
its bundles keep their ids. The key of a pack has the CRC-32 of its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from quiver_actors.archive.blocks import BlockSums, decode_sums, encode_sums, sums_of
from quiver_actors.archive.keys import StreamKey, crc_key, pack_key
from quiver_actors.archive.manifest import Packed, Segment
from quiver_actors.base.checksum import crc32
from quiver_actors.store.objects.object_store import PART_BYTES, ObjectMissing, ObjectStore


class Pack(NamedTuple):
    """A pack that is to be uploaded."""

    key: str
    parts: tuple[bytes, ...]
    """The content: the checksums of each segment, and the segment."""
    size_bytes: int
    segments: tuple[Segment, ...]
    """Segments of the pack, as the manifest will have them."""

    def pieces(self) -> Iterator[bytes]:
        """The content in pieces of `PART_BYTES`, of which one is in memory beside the parts."""
        taken: list[memoryview] = []
        left_bytes = PART_BYTES
        for part in self.parts:
            view = memoryview(part)
            while view.nbytes:
                taken.append(view[:left_bytes])
                view, left_bytes = view[left_bytes:], left_bytes - taken[-1].nbytes
                if not left_bytes:
                    yield b"".join(taken)
                    taken, left_bytes = [], PART_BYTES
        if taken:
            yield b"".join(taken)

    def without_content(self) -> Pack:
        """The pack once it is uploaded."""
        return self._replace(parts=())


def pack(node: str, stream: StreamKey, segments: Iterable[tuple[Segment, bytes]]) -> Pack:
    """Lay out a pack of segments, each with its content, which was found to be that of its row. There must be one at least."""
    parts: list[bytes] = []
    size_bytes = crc = 0
    placed: list[tuple[Segment, int, int]] = []
    for segment, whole in segments:
        sums = encode_sums(sums_of(whole))
        placed.append((segment, size_bytes, size_bytes + len(sums)))
        parts += sums, whole
        size_bytes += len(sums) + len(whole)
        crc = crc32(whole, crc32(sums, crc))
    key = pack_key(node, stream, placed[0][0].segment_seq, placed[-1][0].segment_seq, crc)
    rows = (
        msgspec.structs.replace(segment, pack=Packed(key=key, sums_offset=sums_offset, offset=offset))
        for segment, sums_offset, offset in placed
    )
    return Pack(key, tuple(parts), size_bytes, tuple(rows))


def read_packed(store: ObjectStore, packed: Packed, start: int, end: int) -> bytes:
    """The bytes `[start, end)` of a segment that lies in a pack. Raises ObjectMissing, ArchiveError."""
    return bytes(store.get_ranges(packed.key, [(packed.offset + start, packed.offset + end)])[0])


def read_sums(
    store: ObjectStore, key: str, packed: Packed | None, read: Callable[[str, int, int], bytes] | None = None
) -> BlockSums:
    """The checksums of a segment's blocks.

    Args:
        key: of the segment's own object, if it lies in no pack.
        read: reads a range of a pack; None: with a request for it alone.

    Raises:
        ObjectMissing: they are not there. FormatError: they are damaged. ArchiveError: the store cannot be read.
    """
    if packed is not None:
        start, end = packed.sums_offset, packed.offset
        content = read(packed.key, start, end) if read else store.get_ranges(packed.key, [(start, end)])[0]
        return decode_sums(bytes(content))
    found = store.get(crc_key(key))
    if found is None:
        raise ObjectMissing(f"{store.url}: object {crc_key(key)} is missing")
    return decode_sums(found.content)


def left_without(going: Sequence[Segment], left: Sequence[Segment]) -> list[str]:
    """The keys of packs in which, when some segments of a part go, none of those that are left lies."""
    kept = {segment.pack.key for segment in left if segment.pack is not None}
    gone = dict.fromkeys(segment.pack.key for segment in going if segment.pack is not None)
    return [key for key in gone if key not in kept]
