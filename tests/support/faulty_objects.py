"""An object store in front of another one whose calls fail as a network's do: not at all, without an effect, or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import Found, ObjectInfo, ObjectStore, Version

T = TypeVar("T")

UNAVAILABLE, LOST_ANSWER, SENT_TWICE = "unavailable", "lost answer", "sent twice"
FAULTS = (UNAVAILABLE, LOST_ANSWER, SENT_TWICE)


class FaultyStore:
    """Counts its calls, and lets the one of a number fail.

    Args:
        at: the number of the call that fails, from 0; -1: none.
        fault: one of `FAULTS`; a call that is sent twice has the outcome of the second time.
    """

    def __init__(self, inner: ObjectStore, at: int = -1, fault: str = UNAVAILABLE) -> None:
        self.url = inner.url
        self.inner = inner
        self.at = at
        self.fault = fault
        self.calls: list[str] = []

    def _call(self, name: str, call: Callable[[], T]) -> T:
        number = len(self.calls)
        self.calls.append(name)
        if number != self.at:
            return call()
        if self.fault == UNAVAILABLE:
            raise ArchiveUnavailable(f"call {number} ({name}) was not answered")
        done = call()
        if self.fault == LOST_ANSWER:
            raise ArchiveUnavailable(f"the answer to call {number} ({name}) was lost")
        return call() if name in ("create", "replace", "put", "delete") else done

    def get(self, key: str) -> Found | None:
        return self._call("get", lambda: self.inner.get(key))

    def create(self, key: str, content: bytes) -> Version:
        return self._call("create", lambda: self.inner.create(key, content))

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        return self._call("replace", lambda: self.inner.replace(key, content, version))

    def put(self, key: str, parts: Iterable[bytes | memoryview], size_bytes: int) -> str:
        pieces = list(parts)
        return self._call("put", lambda: self.inner.put(key, pieces, size_bytes))

    def head(self, key: str) -> ObjectInfo | None:
        return self._call("head", lambda: self.inner.head(key))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        return self._call("get_ranges", lambda: self.inner.get_ranges(key, ranges))

    def read(self, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        return self._call("read", lambda: iter(list(self.inner.read(key, start, end))))

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._call("objects", lambda: self.inner.objects(prefix))

    def children(self, prefix: str) -> list[ObjectInfo]:
        return self._call("children", lambda: self.inner.children(prefix))

    def directories(self, prefix: str) -> list[str]:
        return self._call("directories", lambda: self.inner.directories(prefix))

    def delete(self, key: str) -> None:
        return self._call("delete", lambda: self.inner.delete(key))

    def clear_unfinished(self, prefix: str) -> None:
        self._call("clear_unfinished", lambda: self.inner.clear_unfinished(prefix))

    def close(self) -> None:
        self.inner.close()


class UnconditionalStore(FaultyStore):
    """A store without conditional puts: it overwrites whatever is there."""

    def create(self, key: str, content: bytes) -> Version:
        self.inner.put(key, [content], len(content))
        found = self.inner.get(key)
        assert found is not None
        return found.version

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        return self.create(key, content)
