"""The eventfd that wakes the loop of a worker: raised by its threads, by signal handlers and by whoever asks it to stop."""

from __future__ import annotations

import os
import threading


class LoopWake:
    """Takes over an eventfd. Safe for any thread, and for a signal handler that interrupts any of its calls.

    Args:
        descriptor: the eventfd; -1: the loop is woken in another way.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A signal handler may interrupt `close` in its own thread, so the lock is one that its thread can take again.
        self._lock = threading.RLock()

    def wake(self) -> None:
        """Wake the loop. After `close` nothing happens: the file that has the number by then is another one's."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Close the eventfd."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)
