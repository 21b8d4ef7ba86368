"""The socket that a worker is found by: a name in the run directory, mode 0600, or 0660 for a group.

Bound under a temporary name and renamed, so that the name always leads to a socket that is already listening with the right mode; one
left by a dead worker is replaced. The node sees to it that both names fit into a socket's address.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, Protocol

_BACKLOG = 1024


class Door(Protocol):
    """A place where clients come in.

    Attributes:
        fd: the number by which the loop's poll knows it; -1: it is closed.
    """

    fd: int

    def accept(self) -> Any:
        """The next waiting client, None if there is none (left). Raises OSError: it cannot be let in now, and goes on waiting."""

    def close(self) -> None:
        """Let nobody in any more. Idempotent."""


class Listener:
    """The listening socket of a worker, by its name in the run directory. Owned by the loop thread."""

    def __init__(self, run_dir: str, name: str, gid: int | None = None) -> None:
        """
        Args:
            gid: group whose members may connect too.

        Raises:
            OSError: the run directory is missing or not writable.
        """
        self._path = os.path.join(run_dir, name)
        self._gid = gid
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind()
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()

    def _bind(self) -> None:
        temporary = f"{self._path}.tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        self._socket.bind(temporary)
        os.chmod(temporary, 0o600)
        if self._gid is not None:
            os.chown(temporary, -1, self._gid)
            os.chmod(temporary, 0o660)
        self._socket.listen(_BACKLOG)
        os.rename(temporary, self._path)

    def accept(self) -> socket.socket | None:
        """The next waiting client, None if there is none (left).

        Raises:
            OSError: no descriptor or no memory left for it; it goes on waiting.
        """
        try:
            return self._socket.accept()[0]
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None

    def close(self) -> None:
        """Unlink the socket and refuse the connections that wait. Calling it again does nothing."""
        if self.fd >= 0:
            self.fd = -1
            self._socket.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
