"""The fallback for an object store without conditional puts: the conditions are looked at before each put, by the one writer.

Guarantee: `create` and `replace` do what `object_store.Metadata` says as long as one process alone writes under a node's name, which the
operator promises (`archive.single_writer`). Two writers at the same moment could overwrite each other: nothing else tells them apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from quiver_actors.store.objects.object_store import (
    Found,
    ObjectChanged,
    ObjectExists,
    ObjectInfo,
    ObjectStore,
    Version,
)


class SingleWriterStore:
    """See `object_store.ObjectStore`. Its `create` and `replace` use plain puts of the store behind, which it owns."""

    def __init__(self, behind: ObjectStore) -> None:
        self.url = behind.url
        self._behind = behind
        self._lock = threading.Lock()

    def get(self, key: str) -> Found | None:
        """Read the object whole; None where there is none."""
        return self._behind.get(key)

    def create(self, key: str, content: bytes) -> Version:
        """Write the object if none is found. Raises ObjectExists."""
        with self._lock:
            if self._behind.head(key) is not None:
                raise ObjectExists(f"{self.url}, object {key}: it is there")
            return self._put(key, content)

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        """Write the object if it is found in that version. Raises ObjectChanged."""
        with self._lock:
            found = self._behind.get(key)
            if found is None or found.version.etag != version.etag:
                raise ObjectChanged(f"{self.url}, object {key}: it was changed by somebody else, or is gone")
            return self._put(key, content)

    def _put(self, key: str, content: bytes) -> Version:
        return Version(self._behind.put(key, [content], len(content)))

    def put(self, key: str, parts: Iterable[bytes | memoryview], size_bytes: int) -> str:
        """Write the object."""
        return self._behind.put(key, parts, size_bytes)

    def head(self, key: str) -> ObjectInfo | None:
        """Ask for the size of the object; None where there is none."""
        return self._behind.head(key)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Read ranges of the object. Raises ObjectMissing."""
        return self._behind.get_ranges(key, ranges)

    def read(self, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield a range of the object as it comes. Raises ObjectMissing."""
        return self._behind.read(key, start, end)

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects of a prefix."""
        return self._behind.objects(prefix)

    def children(self, prefix: str) -> list[ObjectInfo]:
        """The objects directly below a prefix."""
        return self._behind.children(prefix)

    def directories(self, prefix: str) -> list[str]:
        """The names directly below a prefix."""
        return self._behind.directories(prefix)

    def delete(self, key: str) -> None:
        """Delete the object."""
        self._behind.delete(key)

    def clear_unfinished(self, prefix: str) -> None:
        """Remove what interrupted puts have left."""
        self._behind.clear_unfinished(prefix)

    def close(self) -> None:
        """Close the store behind."""
        self._behind.close()
