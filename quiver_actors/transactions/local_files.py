"""Decision files in a directory of one disk, made exclusively by link(2)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.exclusive import create_once, remove_once, sweep
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.transactions.decision_files import DECISION_BYTES_MAX, is_left_over, new_token

_DIRECTORY_MODE = 0o750
"""Drivers and workers may be different users of one group."""


class LocalFiles:
    """A directory of one disk, on which they are made by link(2)."""

    def __init__(self, directory: str, disk: Disk | None = None, token: str = "") -> None:
        """
        Args:
            directory: an absolute path.
            disk: None: the real file system, from its root on.
            token: part of the names of temporary files; empty: another one each time.
        """
        self._directory = directory
        self._disk = disk
        self._token = token
        self._has_swept = False

    def read(self, name: str) -> bytes | None:
        """Return the content of a decision file, durable under its name, or None if there is none."""
        with self._opened() as disk:
            try:
                content = read_whole(disk, f"{self._directory}/{name}", DECISION_BYTES_MAX)
            except DiskError as error:
                if error.errno == errno.ENOENT:
                    return None
                raise
            # Who made it may have died before its name was durable, and whoever reads it acts on it.
            disk.sync_directory(self._directory)
            return content

    def create(self, name: str, content: bytes) -> None:
        """Write a decision file unless it exists; link(2) lets exactly one of several processes succeed. Durable on return."""
        with self._opened() as disk:
            if not self._has_swept:
                sweep(disk, self._directory, is_left_over)
                self._has_swept = True
            create_once(disk, self._directory, name, content, self._token or new_token())

    def remove(self, name: str) -> None:
        """Delete a decision file and what an interrupted writer left of it; durable on return."""
        with self._opened() as disk:
            remove_once(disk, self._directory, name)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Disk]:
        if self._disk is not None:
            yield self._disk
            return
        disk = PosixDisk("/", directory_mode=_DIRECTORY_MODE)
        try:
            yield disk
        finally:
            disk.close()
