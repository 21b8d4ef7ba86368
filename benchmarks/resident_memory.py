"""How much memory a process has resident, looked at again and again while something runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import psutil

from quiver_actors.base.units import MIB


class ResidentMemory:
    """The most that a process had resident in the first tenth of the time, and afterwards."""

    def __init__(self, pid: int, progress: Callable[[], float]) -> None:
        self.early = self.late = 0
        self._process = psutil.Process(pid)
        self._progress = progress

    def look(self) -> None:
        size = self._process.memory_info().rss
        if self._progress() < 0.1:
            self.early = max(self.early, size)
        else:
            self.late = max(self.late, size)

    @property
    def growth_mib(self) -> float:
        return (self.late - self.early) / MIB


class Looking(Protocol):
    def look(self) -> None: ...


@contextmanager
def watched(*memories: Looking) -> Iterator[None]:
    """While the block runs, have each of them look at its process again and again."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            for memory in memories:
                memory.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
