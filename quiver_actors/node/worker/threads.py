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

    def run(self) -> None:
        """Do the work on the thread. Errors go into the job, none is raised."""


Finished = Callable[[], None]
Submit = Callable[[Job, Finished], None]
"""Hand a job over; `finished` is called by the loop thread after the job has run."""


class JobThread:
    """One such thread. All methods belong to the loop thread.

    Attributes:
        done: callbacks of the jobs that have run; `finish_jobs` calls them.
        submissions: how many jobs were submitted.
    """

    def __init__(self, name: str, wake_fd: int) -> None:
        """
        Args:
            wake_fd: eventfd of the loop, raised after each job; -1 where `_wake_loop` does something else.
        """
        self._wake_fd = wake_fd
        self._work_fd = os.eventfd(0, os.EFD_CLOEXEC)
        """Raised after each submission; -1 once the thread has ended."""
        self._submitted: deque[tuple[Job, Finished] | None] = deque()
        """Submitted jobs; None: nothing more will come."""
        self.done: deque[Finished] = deque()
        self.submissions = 0
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, finished: Finished) -> None:
        """Give the thread a job; `finished` is called on the loop thread when it is done."""
        self.submissions += 1
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
        """Wait in the thread for the next job; None at the end."""
        while not self._submitted:
            os.eventfd_read(self._work_fd)
        return self._submitted.popleft()

    def _run(self) -> None:
        while self._run_next():
            continue

    def _run_next(self) -> bool:
        """Run the next job in the thread; False at the end.

        A call of its own, so that the thread keeps nothing of a job alive while it waits for the next one.
        """
        work = self._next()
        if work is None:
            return False
        job, finished = work
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001 - raised again, in the loop thread
            self.done.append(partial(_raise, error))
            return False
        else:
            self.done.append(finished)
        finally:
            self._wake_loop()
        return True

    def _wake_loop(self) -> None:
        os.eventfd_write(self._wake_fd, 1)


def _raise(error: BaseException) -> NoReturn:
    raise error


class UnawaitedThread(JobThread):
    """A thread for work that touches nothing of this worker's and may hang, such as a question to another machine: never waited for.

    It closes its own descriptor when it has ended.
    """

    def __init__(self, name: str, wake_fd: int) -> None:
        """See `JobThread`."""
        self._mutex = threading.Lock()
        """Held while the descriptor is raised or closed."""
        super().__init__(name, wake_fd)

    def submit(self, job: Job, finished: Finished) -> None:
        """Give the thread a job; `finished` is called on the loop thread when it is done."""
        with self._mutex:
            super().submit(job, finished)

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            with self._mutex:
                descriptor, self._work_fd = self._work_fd, -1
                os.close(descriptor)

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread without waiting for a question that is under way; always true."""
        with self._mutex:
            self._end()
        return True


class AskThread(UnawaitedThread):
    """One that wakes the loop of a worker by a descriptor."""

    def __init__(self, name: str, wake_fd: int) -> None:
        """Duplicate `wake_fd`: when a job ends late, the loop may be closed and its descriptor number may belong to another file."""
        super().__init__(name, os.dup(wake_fd))

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            os.close(self._wake_fd)
