"""The objects of archived segments as files of this host, from which blocks are fetched when they are needed. Any thread may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from quiver_actors.archive.checking import content_of, is_of
from quiver_actors.archive.keys import StreamKey, parse_segment_key, segment_key, stream_prefix
from quiver_actors.archive.manifest import Packed, Segment, key_of
from quiver_actors.archive.manifest_store import read_head, read_part
from quiver_actors.archive.packs import read_sums
from quiver_actors.archive.reading.block_cache import BlockCache
from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.archive.reading.pack_windows import PackWindows
from quiver_actors.archive.reading.pieces import Numbered
from quiver_actors.errors import ChecksumMismatch, FormatError, InvalidFormat, NotStored
from quiver_actors.store.objects.object_store import ObjectMissing, ObjectStore


class Place(NamedTuple):
    """Where a copy of a segment lies."""

    key: str
    packed: Packed | None = None
    """Where in the object, which is a pack then; None: it is the whole object."""
    content: tuple[int, int, str] | None = None
    """`checking.content_of` the row of the manifest that names it; None: none does."""


class SegmentFiles:
    """The files of one node's archive.

    Args:
        cache_dir: where they are made.
        cache_bytes: how many bytes of blocks are kept.
    """

    def __init__(self, store: ObjectStore, node: str, cache_dir: str, cache_bytes: int) -> None:
        self._store = store
        self._node = node
        self._cache_dir = cache_dir
        self._cache = BlockCache(cache_bytes)
        self._windows = PackWindows(store)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the blocks that are kept."""
        return self._cache.size_bytes

    def file(self, key: StreamKey, numbered: Numbered, copy: int) -> CachedFile:
        """The file of one copy of a segment; nothing of it need be fetched yet.

        Args:
            copy: 0: the object that the manifest names; 1 and more: objects of other generations, the newest first.

        Raises:
            NotStored: there is no copy of that number.
            ChecksumMismatch, InvalidFormat, Truncated: its checksums are missing, damaged, or not those of what the manifest names.
            ArchiveError, DiskError: the store cannot be read, or the file cannot be made.
        """
        places = self._places(key, numbered, copy)
        if not 0 <= copy < len(places):
            raise NotStored(f"segment {numbered.segment_seq} of {stream_prefix(self._node, key)} has no copy {copy}")
        place = places[copy]
        return self._cache.file(place, lambda tell: self._made(place, tell))

    def close(self) -> None:
        """Forget all files; readers keep theirs. Idempotent."""
        self._cache.close()

    def _made(self, place: Place, tell: Callable[[int], None]) -> CachedFile:
        try:
            sums = read_sums(self._store, place.key, place.packed, self._windows.read)
        except ObjectMissing as error:
            raise InvalidFormat(str(error)) from error
        if place.content is not None and not is_of(place.content, sums):
            raise ChecksumMismatch(f"object {place.key} has the checksums of another content than the manifest names")
        read = partial(_read_range, self._store, self._windows, place)
        return CachedFile(self._cache_dir, sums, read, f"object {place.key}", tell)

    def _places(self, key: StreamKey, numbered: Numbered, copy: int) -> list[Place]:
        """The places of a segment in the order in which they are read: where the manifest named it, where the manifest names it by now, and
        objects of other generations, the newest first."""
        named = [] if numbered.segment is None else [self._place(key, numbered.segment)]
        if copy < len(named):
            return named
        if numbered.segment is not None and numbered.segment.pack is not None:
            # The first one may have been asked for by a manifest that did not know the pack yet: then it was an object that is gone.
            named *= 2
        present = self._present(key, numbered.segment_seq)
        if present is not None and (moved := self._place(key, present)) not in named:
            named.append(moved)
        keys = (parse_segment_key(info.key) for info in self._store.objects(stream_prefix(self._node, key)))
        found = {each.generation for each in keys if each is not None and each.segment_seq == numbered.segment_seq}
        others = (segment_key(self._node, key, numbered.segment_seq, each) for each in sorted(found, reverse=True))
        known = {each.key for each in named}
        return [*named, *(Place(each) for each in others if each not in known)]

    def _place(self, key: StreamKey, segment: Segment) -> Place:
        return Place(key_of(self._node, key, segment), segment.pack, content_of(segment))

    def _present(self, key: StreamKey, segment_seq: int) -> Segment | None:
        """The row that the manifest has of a segment now; None if it has none, or is damaged itself: that says nothing of the copies."""
        try:
            head = read_head(self._store, self._node)
            stream = None if head is None else head.stream(key)
            refs = () if stream is None else stream.parts
            parts = [
                read_part(self._store, ref)
                for ref in refs
                if ref.first_segment_seq <= segment_seq <= ref.last_segment_seq
            ]
        except FormatError:
            return None
        return next((row for part in parts for row in part.segments if row.segment_seq == segment_seq), None)


def _read_range(
    store: ObjectStore, windows: PackWindows, place: Place, start: int, end: int
) -> Iterator[bytes | memoryview]:
    # No method: a file that led to what keeps it would wait for the collector when an archive is dropped.
    try:
        if place.packed is not None:
            yield windows.read(place.key, place.packed.offset + start, place.packed.offset + end)
        else:
            yield from store.read(place.key, start, end)
    except ObjectMissing as error:
        raise InvalidFormat(f"{store.url}: object {place.key} is missing") from error
