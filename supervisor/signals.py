"""Signals as bytes on a pipe. The handlers do nothing: the interpreter writes each number to the pipe, the loop reads it.

Owner: the supervisor's loop, on the main thread. `close` puts the former handlers back.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
IGNORED_BY_CHILDREN = (signal.SIGINT, signal.SIGHUP)
"""A terminal sends these to the whole foreground group; what they mean for a child is the supervisor's to decide."""


class SignalPipe:
    """Receives `WATCHED` from creation to `close`."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, _only_wake) for number in WATCHED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])

    def fileno(self) -> int:
        """Return the descriptor to watch: it is readable when a signal has come."""
        return self._reader

    def drain(self) -> list[int]:
        """The numbers that have arrived, oldest first."""
        try:
            arrived = os.read(self._reader, 4096)
        except BlockingIOError:
            return []
        return [number for number in arrived if number in WATCHED]

    def close(self) -> None:
        """Close the pipe and restore the former handlers. Idempotent."""
        if self._reader < 0:
            return
        for number, handler in self._former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._former_fd)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the descriptors only: the child's handlers are reset by `spawn`."""
        os.close(self._reader)
        os.close(self._writer)
        self._reader = self._writer = -1


def _only_wake(signal_number: int, frame: FrameType | None) -> None:
    del signal_number, frame


def hold_reloads() -> None:
    """Make a SIGHUP that comes before there is a `SignalPipe` wait for it, instead of ending the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def reset_in_child() -> None:
    """Set default handlers and an open mask, but ignore the terminal. SIGPIPE stays ignored: Python turns it into an error."""
    signal.set_wakeup_fd(-1)
    for number in WATCHED:
        signal.signal(number, signal.SIG_IGN if number in IGNORED_BY_CHILDREN else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
