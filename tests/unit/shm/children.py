"""Forked children for tests: run a function in another process and wait for its end with a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator

DEADLINE_SECONDS = 60


def fork(run: Callable[[], object]) -> int:
    """Run `run` in a forked child that ends with exit code 0, or 1 and a traceback on stderr."""
    with warnings.catch_warnings():
        # Newer interpreters warn when other tests have started threads; our children touch only their own code.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


def join(pid: int) -> int:
    """Wait for a child and return its exit code, minus the signal's number when a signal killed it."""
    pidfd = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([pidfd], [], [], DEADLINE_SECONDS)
        assert ended, f"child {pid} is still running after {DEADLINE_SECONDS} s"
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def running(run: Callable[[], object]) -> Iterator[int]:
    """A forked child for the length of a block: whatever happens there, it is gone and reaped afterwards."""
    pid = fork(run)
    try:
        yield pid
    finally:
        with contextlib.suppress(ChildProcessError):
            # Raises when the block has reaped the child: its number could be another process's by now.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


class Gate:
    """One process opens it, another waits for that."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()

    def open(self) -> None:
        os.write(self._write_fd, b"!")

    def wait(self) -> None:
        ready, _, _ = select.select([self._read_fd], [], [], DEADLINE_SECONDS)
        assert ready, f"nobody opened the gate within {DEADLINE_SECONDS} s"
        os.read(self._read_fd, 1)

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)
