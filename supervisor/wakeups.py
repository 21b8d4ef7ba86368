"""The pipe by which children wake the supervisor's loop."""

from __future__ import annotations

import contextlib
import os

_DRAIN_BYTES = 4096


class WakeupPipe:
    """A pipe whose reading end the loop waits on; children write a byte into the other end, which they inherit."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The end that is readable when somebody wants the loop to look."""
        return self._reader

    def drain(self) -> None:
        """Take out what was written."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, _DRAIN_BYTES)

    def close_in_child(self) -> None:
        """Close the end that is the parent's."""
        os.close(self._reader)

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reader)
        os.close(self.writer)
