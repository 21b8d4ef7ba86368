"""Fetches the next archived segments of a range while a program reads the one before them.

Guarantees: nothing is fetched ahead before a second bundle of the range was read, and no more than `AHEAD_BYTES` of bundles or
`AHEAD_SEGMENTS` segments. What fails here is told to nobody: it fails again, and is told, when the program comes to it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from quiver_actors.client.archived_reader import ArchivedReader
from quiver_actors.errors import QuiverError

AHEAD_BYTES = 64 << 20
AHEAD_SEGMENTS = 8
_THREADS_MAX = 8


class RangePart(NamedTuple):
    """Bundles `[first, end)` of one archived segment, which are read together."""

    segment_seq: int
    first: int
    end: int
    size_bytes: int
    """Bytes that reading them fetches, or more; 0: nothing of them is archived."""
    reader: ArchivedReader


class BackgroundFetches:
    """The threads that fetch ahead for one owner. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[threading.Thread] = set()
        self._is_closed = False
        self._pid = os.getpid()

    def begin(self, fetch: Callable[[], None]) -> None:
        """Call `fetch` on a thread of its own, unless many are under way. Nothing is called behind `close`, nor in a child of the owner."""
        thread = threading.Thread(target=self._run, args=(fetch,), name="quiver-read-ahead")
        with self._lock:
            if self._is_closed or self._pid != os.getpid() or len(self._running) >= _THREADS_MAX:
                return
            self._running.add(thread)
            thread.start()

    def close(self) -> None:
        """Begin no more, and wait for those that are under way. Idempotent."""
        with self._lock:
            self._is_closed = True
            running = list(self._running) if self._pid == os.getpid() else []
        for thread in running:
            thread.join()

    def _run(self, fetch: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(QuiverError, IndexError):
                fetch()
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())


class ReadAhead:
    """An iterator over the parts of one range, whose readers call `note_read` for each bundle."""

    def __init__(
        self, open_parts: Callable[[Callable[[], None]], Iterator[RangePart]], fetches: BackgroundFetches
    ) -> None:
        """`open_parts` gets `note_read`."""
        self._parts = open_parts(self.note_read)
        self._fetches = fetches
        self._upcoming: deque[RangePart] = deque()
        """Taken from `parts` and begun; not given out yet."""
        self._lock = threading.Lock()
        self._reads = 0
        self._is_due = True

    def __iter__(self) -> Iterator[RangePart]:
        return self

    def __next__(self) -> RangePart:
        with self._lock:
            self._is_due = True
            return self._upcoming.popleft() if self._upcoming else next(self._parts)

    def note_read(self) -> None:
        """A bundle of a part that was given out was read: begin with what follows."""
        self._reads += 1
        if not self._is_due or self._reads < 2:
            return
        with self._lock:
            self._is_due = False
            while len(self._upcoming) < AHEAD_SEGMENTS and self._ahead_bytes() < AHEAD_BYTES:
                following = next(self._parts, None)
                if following is None:
                    return
                self._upcoming.append(following)
                if following.size_bytes:
                    self._fetches.begin(partial(following.reader.fetch, following.first))

    def _ahead_bytes(self) -> int:
        return sum(each.size_bytes for each in self._upcoming)
