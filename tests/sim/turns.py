"""Threads of which exactly one runs at a time, at the scheduler's choice: the worker's three threads, made deterministic.

A job runs in a thread of its own and stops wherever it calls `pause`; the scheduler decides who goes on. Each side waits for a lock that
only the other one lets go: plain locks, because a semaphore of Python's is made of several.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.disks.faulty import SimulatedCrash


class Turn:
    """One piece of work on its way. All methods but `pause` belong to the scheduler's thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.is_done = False
        self._work = work
        self._go, self._stopped = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stopped.acquire()
        self._is_abandoned = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def step(self) -> None:
        """Let the work go on to its next pause or its end. What it raises, this raises."""
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """The process of this thread is gone."""
        if not self.is_done:
            self._is_abandoned = True
            self._go.release()
            self._thread.join()

    def pause(self) -> None:
        """Called by the work itself: let others run."""
        self._stopped.release()
        self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        if self._is_abandoned:
            raise SimulatedCrash

    def _run(self) -> None:
        try:
            self._wait()
            self._work()
        except SimulatedCrash:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `step`
            self._error = error
        self.is_done = True
        self._stopped.release()
