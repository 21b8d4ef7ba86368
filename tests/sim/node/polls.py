"""Late messages: a poll that keeps some of what is ready to itself for a while.

Each connection is a stream, so its own messages stay in order; between connections any order comes about.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from random import Random


class Delays:
    """Whether and how often messages are late, for all polls of one machine."""

    def __init__(self, random: Random) -> None:
        self.share = 0.0
        self._random = random

    def is_late(self) -> bool:
        return self.share > 0 and self._random.random() < self.share


class DelayingPoll:
    """Stands in front of an epoll with level-triggered descriptors, except those in `prompt`: kept messages are ready again next time."""

    def __init__(self, inner: select.epoll, delays: Delays, prompt: Iterable[int] = ()) -> None:
        self._inner = inner
        self._delays = delays
        self._prompt = frozenset(prompt)
        self.register = inner.register
        self.modify = inner.modify
        self.unregister = inner.unregister
        self.close = inner.close
        self.fileno = inner.fileno

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        ready = self._inner.poll(timeout, maxevents)
        return [(fd, mask) for fd, mask in ready if fd in self._prompt or not self._delays.is_late()]
