"""A thread that runs blocking I/O for the loop, one job after another.

Jobs go in through one list and come back, in order, through another that only the loop thread empties; an eventfd wakes either side.
Not a queue: raising an eventfd gives up the interpreter lock, so that the thread that it wakes on the same core can start its sync at
once, where a queue wakes it to find the lock taken (docs/performance.md).

A job touches no state of the loop while it runs: what it found out is applied by its `finished` callback, in the loop thread.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NoReturn, Protocol


class Job(Protocol):
    """Blocking work. An expected failure is kept in the job, for whoever finishes it."""

    def run(self) -> None: ...


Finished = Callable[[], None]
Submit = Callable[[Job, Finished], None]
"""Hand a job over; `finished` is called by the loop thread after the job has run."""


class JobThread:
    """One such thread. All methods belong to the loop thread.

    Attributes:
        done: what is to be called back for the jobs that have run; `finish_jobs` does it.
    """

    def __init__(self, name: str, wake_fd: int) -> None:
        """
        Args:
            wake_fd: eventfd of the loop, raised after each job.
        """
        self._wake_fd = wake_fd
        self._work_fd = os.eventfd(0, os.EFD_CLOEXEC)
        """Raised after each submission; -1 once the thread has ended."""
        self._submitted: deque[tuple[Job, Finished] | None] = deque()
        """None: nothing more will come."""
        self.done: deque[Finished] = deque()
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, finished: Finished) -> None:
        self._submitted.append((job, finished))
        if self._work_fd >= 0:
            os.eventfd_write(self._work_fd, 1)

    def finish_jobs(self) -> None:
        """Call back for every job that has run since the last call.

        Raises:
            BaseException: what a job let escape, which is a bug: the worker must not go on.
        """
        while self.done:
            self.done.popleft()()

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread after the jobs that were submitted; False if it did not end in time."""
        self._end()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        descriptor, self._work_fd = self._work_fd, -1
        if descriptor >= 0:
            os.close(descriptor)
        return True

    def _end(self) -> None:
        self._submitted.append(None)
        if self._work_fd >= 0:
            os.eventfd_write(self._work_fd, 1)

    def _next(self) -> tuple[Job, Finished] | None:
        """In the thread: wait for the next job; None at the end."""
        while not self._submitted:
            os.eventfd_read(self._work_fd)
        return self._submitted.popleft()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            job, finished = work
            try:
                job.run()
            except BaseException as error:  # noqa: BLE001 - raised again, in the loop thread
                self.done.append(partial(_raise, error))
                return
            else:
                self.done.append(finished)
            finally:
                os.eventfd_write(self._wake_fd, 1)


def _raise(error: BaseException) -> NoReturn:
    raise error


class AskThread(JobThread):
    """One for work that touches nothing of this worker's and may hang, such as a question to another machine: never waited for."""

    def stop(self, timeout_seconds: float) -> bool:
        self._end()
        return True
