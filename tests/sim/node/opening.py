"""The start of a simulated worker, which may have to wait for room: it runs in a thread of its own, one stretch at a time.

Only one of the two threads runs at any time, so a seed stays a seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Killed(BaseException):
    """Comes out of the waiting of a start whose process is gone."""


class Opening:
    """Owner: the simulated worker."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self._may_go_on, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_over = self._is_killed = False

    @property
    def is_waiting(self) -> bool:
        return self._thread is not None and not self._is_over

    def go_on(self) -> bool:
        """Run it to where it waits again, or to its end: True. Raises what ended it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._may_go_on.release()
        self._has_paused.acquire()
        if self._is_over:
            self._thread.join()
            error, self._error = self._error, None
            if error is not None:
                raise error
        return self._is_over

    def wait(self) -> None:
        """Called by the start."""
        self._has_paused.release()
        self._may_go_on.acquire()
        if self._is_killed:
            raise Killed

    def kill(self) -> None:
        """Stop for ever. Idempotent."""
        if self._thread is not None and not self._is_over:
            self._is_killed = True
            self._may_go_on.release()
            self._thread.join()
            self._error = None

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `go_on`
            self._error = error
        self._is_over = True
        self._has_paused.release()
