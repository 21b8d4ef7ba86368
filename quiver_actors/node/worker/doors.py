"""The sockets at which clients come in: a worker's own one, and one for each core that it has adopted.

Owner: the connections of the worker, on the loop thread.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol

from quiver_actors.node.worker.adoption import AdoptedCore, Adoption
from quiver_actors.node.worker.listener import Door


class Poll(Protocol):
    """Says which doors and connections of a loop have something for it; `select.epoll` is one."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Begin to look at a number."""

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Look for other events of a number."""

    def unregister(self, fd: int, /) -> None:
        """Look at a number no more."""

    def poll(self, timeout: float | None = None, maxevents: int = -1, /) -> Sequence[tuple[int, int]]:
        """Wait at most so many seconds, and return (number, event mask) pairs."""

    def close(self) -> None:
        """Close the poll; what it looked at stays open."""


"""A socket, and the core whose it is; None: the worker's own one."""


class Doors:
    """All listening sockets of a worker, and whether the loop's poll asks for them."""

    def __init__(self, poll: Poll, listener: Door, adoption: Adoption) -> None:
        """Take over the listener and those of the adopted cores."""
        self._epoll = poll
        self._listener = listener
        self._adoption = adoption
        self._is_accepting = False

    def at(self, fd: int) -> tuple[Door, AdoptedCore | None] | None:
        """Return the door with that descriptor, None if there is none."""
        if fd == self._listener.fd:
            return self._listener, None
        for adopted in self._adoption.cores:
            if fd == adopted.listener.fd:
                return adopted.listener, adopted
        return None

    def accept(self, *, is_wanted: bool) -> None:
        """Let new connections in, or let them wait, at all doors alike."""
        if is_wanted == self._is_accepting:
            return
        self._is_accepting = is_wanted
        for listener in [self._listener, *(adopted.listener for adopted in self._adoption.cores)]:
            if listener.fd < 0:
                continue
            if is_wanted:
                self._epoll.register(listener.fd, select.EPOLLIN)
            else:
                self._epoll.unregister(listener.fd)

    def close(self) -> None:
        """Take the names of all doors away. Idempotent."""
        self.accept(is_wanted=False)
        self._listener.close()
        for adopted in self._adoption.cores:
            adopted.listener.close()

    def close_of(self, adopted: AdoptedCore) -> None:
        """Take the name of an adopted core's door away. Idempotent."""
        if adopted.listener.fd >= 0 and self._is_accepting:
            self._epoll.unregister(adopted.listener.fd)
        adopted.listener.close()
