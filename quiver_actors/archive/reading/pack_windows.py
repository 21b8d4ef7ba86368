"""Ranges of packs, fetched in windows: who reads the segments of a pack one after the other asks the store once for many of them.

What is returned is not proven: whoever reads a segment compares its blocks with their checksums. Any thread may ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from quiver_actors.store.objects.object_store import ObjectStore

WINDOW_BYTES = 1 << 20
WINDOWS_MAX = 16
"""Windows that are kept in memory; the one that was used longest ago goes."""


class _Window(NamedTuple):
    content: bytes
    served: list[tuple[int, int]]
    """The spans of it that were returned."""

    def has_served(self, start: int, end: int) -> bool:
        return any(start < other_end and other_start < end for other_start, other_end in self.served)


class PackWindows:
    """The windows of an archive's packs that were read last.

    A pack never changes, but what came of it may be damaged. So what is asked for again is fetched again.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[str, int], _Window] = OrderedDict()
        self._under_way: dict[tuple[str, int], threading.Event] = {}
        """Windows that a thread is fetching; others that want them wait for it."""

    def read(self, key: str, start: int, end: int) -> bytes:
        """The bytes `[start, end)` of a pack; fewer where it ends before. Raises as `ObjectStore.get_ranges`."""
        found = []
        for number in range(start // WINDOW_BYTES, -(-end // WINDOW_BYTES)):
            first = number * WINDOW_BYTES
            found.append(self._read(key, number, max(0, start - first), min(WINDOW_BYTES, end - first)))
        return b"".join(found)

    def _read(self, key: str, number: int, start: int, end: int) -> bytes:
        place, done = (key, number), threading.Event()
        while True:
            with self._lock:
                known = self._windows.get(place)
                if known is not None and not known.has_served(start, end):
                    self._windows.move_to_end(place)
                    known.served.append((start, end))
                    return known.content[start:end]
                under_way = self._under_way.setdefault(place, done)
            if under_way is done:
                break
            under_way.wait()
        try:
            content = self._fetched(key, number)
            with self._lock:
                self._windows[place] = _Window(content, [(start, end)])
                self._windows.move_to_end(place)
                while len(self._windows) > WINDOWS_MAX:
                    self._windows.popitem(last=False)
        finally:
            with self._lock:
                del self._under_way[place]
            done.set()
        return content[start:end]

    def _fetched(self, key: str, number: int) -> bytes:
        first = number * WINDOW_BYTES
        return bytes(self._store.get_ranges(key, [(first, first + WINDOW_BYTES)])[0])
