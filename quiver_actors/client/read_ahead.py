"""Fetches the next archived segments of a range while a program reads the one before them.

Guarantees: nothing is fetched ahead before a second bundle of the range was read, and no more than `AHEAD_BYTES` of bundles or
`AHEAD_SEGMENTS` segments. Several segments are fetched at a time only where that is quick: over a slow line each would take so long that
its requests run out of time. What fails here is told to nobody: it fails again, and is told, when the program comes to it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from quiver_actors.base.locks import new_lock
from quiver_actors.client.archived_reader import ArchivedReader
from quiver_actors.errors import QuiverError

AHEAD_BYTES = 64 << 20
AHEAD_SEGMENTS = 8
QUICK_SECONDS = 1.0
"""A line that brings a segment within this time is quick."""
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
        self._lock = new_lock()
        self._running: set[threading.Thread] = set()
        self._is_quick = False
        """Whether the last fetch was quick."""
        self._is_closed = False
        self._pid = os.getpid()

    def begin(self, fetch: Callable[[], object]) -> bool:
        """Call `fetch` on a thread of its own. Returns False if that is not done: enough is under way, or it comes behind `close`, or in a
        child of the owner."""
        thread = threading.Thread(target=self._run, args=(fetch,), name="quiver-read-ahead")
        with self._lock:
            running_max = _THREADS_MAX if self._is_quick else 1
            if self._is_closed or self._pid != os.getpid() or len(self._running) >= running_max:
                return False
            self._running.add(thread)
            thread.start()
            return True

    def close(self) -> None:
        """Begin no more, and wait for those that are under way. Idempotent."""
        with self._lock:
            self._is_closed = True
        self.join()

    def stop(self) -> None:
        """Begin no more. Those that are under way end by themselves; does not wait."""
        with self._lock:
            self._is_closed = True

    def join(self) -> None:
        """Wait for those that are under way."""
        with self._lock:
            running = list(self._running) if self._pid == os.getpid() else []
        for thread in running:
            thread.join()

    def _run(self, fetch: Callable[[], object]) -> None:
        started = time.monotonic()
        try:
            with contextlib.suppress(QuiverError, IndexError):
                fetch()
        finally:
            with self._lock:
                self._is_quick = time.monotonic() - started < QUICK_SECONDS
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
        """Parts that were taken from the iterator and not given out yet."""
        self._waiting: deque[RangePart] = deque()
        """Upcoming parts that are not being fetched."""
        self._lock = new_lock()
        self._reads = 0
        self._is_due = True

    def __iter__(self) -> Iterator[RangePart]:
        return self

    def __next__(self) -> RangePart:
        with self._lock:
            self._is_due = True
            part = self._upcoming.popleft() if self._upcoming else next(self._parts)
            if self._waiting and self._waiting[0] is part:
                self._waiting.popleft()
            return part

    def note_read(self) -> None:
        """A bundle of a part that was given out was read: begin with what follows."""
        self._reads += 1
        if not self._is_due or self._reads < 2:
            return
        with self._lock:
            while len(self._upcoming) < AHEAD_SEGMENTS and self._ahead_bytes() < AHEAD_BYTES:
                following = next(self._parts, None)
                if following is None:
                    break
                self._upcoming.append(following)
                if following.size_bytes:
                    self._waiting.append(following)
            while self._waiting and self._fetches.begin(partial(self._waiting[0].reader.fetch, self._waiting[0].first)):
                self._waiting.popleft()
            self._is_due = bool(self._waiting)

    def _ahead_bytes(self) -> int:
        return sum(each.size_bytes for each in self._upcoming)
