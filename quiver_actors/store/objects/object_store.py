"""The seam to an object store: what a store offers, and what its errors mean. The manifest needs `Metadata` alone.

Guarantees of every implementation:
- A put is whole or not there: no reader ever sees a part of an object.
- Of several `create` of one key exactly one succeeds, and of several `replace` of one version exactly one.
- What a call that returned has written survives the death of this process; how much more, the store itself says.

A call whose answer is lost raises although it may have had its effect. `ArchiveUnavailable` says so, and so may `ObjectExists` and
`ObjectChanged`, because a library below may have sent a request twice. Who writes therefore looks at what is there after such an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from quiver_actors.store.objects.errors import ArchiveError

PART_BYTES = 8 << 20
"""The size of the pieces in which a large object is handed over."""
MULTIPART_BYTES = 16 << 20
"""A larger object is sent in parts, each of which can be sent again by itself."""


class ObjectExists(ArchiveError):
    """The key that was to be created is taken."""


class ObjectChanged(ArchiveError):
    """The object that was to be replaced has another version by now, or is gone."""


class ObjectMissing(ArchiveError):
    """There is no object of that key."""


class Version(NamedTuple):
    """One version of an object, as the store names it; passed back as it came."""

    etag: str
    number: str | None = None
    """The version's number, in stores that want it beside the etag."""


class Found(NamedTuple):
    """An object that was read whole."""

    content: bytes
    version: Version


class ObjectInfo(NamedTuple):
    """One object of a listing."""

    key: str
    size_bytes: int
    etag: str
    """Empty where the store would have to read the object to tell."""
    modified_unix_ns: int = 0
    """When it was written, by the clock of the store; 0: the store has no clock of its own."""


class Metadata(Protocol):
    """Small objects that are read whole and replaced by compare-and-swap. Safe to use from several threads and processes.

    All methods raise ArchiveUnavailable: the store did not answer, or its answer was lost; ArchiveRefused: it will not, until somebody
    changes its settings or ours.
    """

    def get(self, key: str) -> Found | None:
        """Return the object and its version; None where there is none."""

    def create(self, key: str, content: bytes) -> Version:
        """Write an object that must not be there. Raises ObjectExists."""

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        """Write an object that must still have that version. Raises ObjectChanged."""


class ObjectStore(Metadata, Protocol):
    """Objects of any size below one URL. Keys have parts with `/` between them. Methods raise as those of `Metadata`."""

    url: str

    def put(self, key: str, parts: Iterable[bytes | memoryview], size_bytes: int) -> str:
        """Write a large object and return its etag. Whoever calls this sees to it that a key always has the same content.

        Args:
            parts: the content in pieces of `PART_BYTES`, of which the last may be smaller.
            size_bytes: the size of all of them.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Return the size of an object; None where there is none."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Read the ranges `(start, end)` of one object. A range beyond the end of the object yields fewer bytes. Raises ObjectMissing."""

    def read(self, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes `[start, end)` of an object in pieces as they come, with one request; fewer where it ends before.

        Raises:
            ObjectMissing: there is no such object. This and other errors may come between two pieces.
        """

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects whose keys begin with the parts of `prefix`; all of the store for an empty one. In no order."""

    def children(self, prefix: str) -> list[ObjectInfo]:
        """The objects directly below `prefix`, without those that have a further `/` in their keys. In no order."""

    def directories(self, prefix: str) -> list[str]:
        """The names directly below `prefix` that further keys lie below, sorted."""

    def delete(self, key: str) -> None:
        """Remove an object. Nothing happens where there is none."""

    def clear_unfinished(self, prefix: str) -> None:
        """Remove what interrupted puts below the first part of `prefix` have left, where the store shows it. One writer at a time."""

    def close(self) -> None:
        """Give up connections and descriptors. Idempotent."""
