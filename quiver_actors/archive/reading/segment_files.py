"""The objects of archived segments as files of this host, from which blocks are fetched when they are needed. Any thread may ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quiver_actors.archive.blocks import BlockSums, decode_sums
from quiver_actors.archive.keys import StreamKey, crc_key, parse_segment_key, segment_key, stream_prefix
from quiver_actors.archive.object_store import ObjectMissing, ObjectStore
from quiver_actors.archive.reading.block_cache import BlockCache
from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.archive.reading.pieces import Numbered
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, NotStored


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
        generations = self._generations(key, numbered, copy)
        if copy >= len(generations):
            raise NotStored(f"segment {numbered.segment_seq} of {stream_prefix(self._node, key)} has no copy {copy}")
        of_segment = segment_key(self._node, key, numbered.segment_seq, generations[copy])
        return self._cache.file(of_segment, lambda tell: self._made(of_segment, numbered, copy, tell))

    def close(self) -> None:
        """Forget all files; readers keep theirs. Idempotent."""
        self._cache.close()

    def _made(self, of_segment: str, numbered: Numbered, copy: int, tell: Callable[[int], None]) -> CachedFile:
        sums, expected = self._sums(of_segment), numbered.segment
        if (
            copy == 0
            and expected is not None
            and (sums.size_bytes, sums.crc32) != (expected.size_bytes, expected.crc32)
        ):
            raise ChecksumMismatch(
                f"object {crc_key(of_segment)} has the checksums of another content than the manifest names"
            )
        read = partial(self._read_range, of_segment)
        return CachedFile(self._cache_dir, sums, read, f"object {of_segment}", tell)

    def _sums(self, of_segment: str) -> BlockSums:
        found = self._store.get(crc_key(of_segment))
        if found is None:
            raise InvalidFormat(f"{self._store.url}: object {crc_key(of_segment)} is missing")
        return decode_sums(found.content)

    def _read_range(self, of_segment: str, start: int, end: int) -> bytes | memoryview:
        try:
            return self._store.get_ranges(of_segment, [(start, end)])[0]
        except ObjectMissing as error:
            raise InvalidFormat(f"{self._store.url}: object {of_segment} is missing") from error

    def _generations(self, key: StreamKey, numbered: Numbered, copy: int) -> list[int]:
        """The generations of a segment in the order in which they are read."""
        named = [] if numbered.segment is None else [numbered.segment.generation]
        if copy < len(named):
            return named
        keys = (parse_segment_key(info.key) for info in self._store.objects(stream_prefix(self._node, key)))
        found = {each.generation for each in keys if each is not None and each.segment_seq == numbered.segment_seq}
        return [*named, *sorted(found.difference(named), reverse=True)]
