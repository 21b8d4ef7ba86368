"""The bell by which workers wake the archiver when pushes wait for it: an event descriptor that all of them inherit from the node."""

from __future__ import annotations

import contextlib
import os
import select


class Bell:
    """May be rung by any thread, process or signal handler; one thread waits.

    Args:
        descriptor: the node's; -1: the bell has one of its own, which only this process rings.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if descriptor < 0 else descriptor
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def ring(self) -> None:
        """Wake who waits, or will wait next."""
        ring(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until the bell was rung since the last wait, or for so long."""
        if self._poll.poll(max(0, round(seconds * 1000))):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)


def ring(descriptor: int) -> None:
    """Ring the bell of that descriptor, if there is one."""
    if descriptor >= 0:
        with contextlib.suppress(OSError):  # it was rung more often than it counts, and is
            os.eventfd_write(descriptor, 1)
