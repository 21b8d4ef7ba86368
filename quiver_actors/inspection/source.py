"""Files as a look sees them: read only, each with the name that people know it by, its size taken once.

A running node goes on writing meanwhile. What is appended behind the size taken at the opening does not exist for the look; a file
that is renamed or deleted stays readable through its open descriptor; one that is gone before it is opened is `Vanished`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quiver_actors.checksum import crc32
from quiver_actors.disk.protocol import Disk, DiskFile
from quiver_actors.errors import DiskError

CHUNK_BYTES = 1 << 20
_NO_ACCESS = frozenset([errno.EACCES, errno.EPERM])


class Vanished(Exception):
    """The file was there when its directory was listed, and is no more."""


class Source:
    """One open file. `path` is for messages."""

    def __init__(self, file: DiskFile, path: str, note_read: Callable[[int], None]) -> None:
        self._file = file
        self._note_read = note_read
        self.path = path
        self.size_bytes = file.size()

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`, fewer at the end of the file. Raises DiskError."""
        data = self._file.read(max(0, min(length, self.size_bytes - offset)), offset)
        self._note_read(len(data))
        return data

    def chunks(self, end: int) -> Iterator[bytes]:
        """Bytes `[0, end)` in pieces."""
        for offset in range(0, end, CHUNK_BYTES):
            yield self.read(min(CHUNK_BYTES, end - offset), offset)

    def crc32(self, end: int) -> int:
        value = 0
        for chunk in self.chunks(end):
            value = crc32(chunk, value)
        return value


class Tree:
    """A disk, what its root is called in messages, and who wants to know how many bytes were read."""

    def __init__(self, disk: Disk, label: str, note_read: Callable[[int], None] | None = None) -> None:
        self.disk = disk
        self.label = label
        self._note_read = note_read or (lambda _: None)

    def named(self, path: str) -> str:
        """The path as people know it."""
        return f"{self.label.rstrip('/')}/{path}" if path not in ("", ".") else self.label

    @contextmanager
    def open(self, path: str) -> Iterator[Source]:
        """Open a file of the disk for one look.

        Raises:
            Vanished: it is not there any more.
            DiskError: it cannot be opened or read.
        """
        try:
            file = self.disk.open_read(path)
        except DiskError as error:
            if error.errno == errno.ENOENT:
                raise Vanished(path) from error
            raise
        try:
            yield Source(file, self.named(path), self._note_read)
        finally:
            file.close()

    def is_directory(self, path: str) -> bool:
        try:
            return bool(self.disk.list_directory(path)) or self._is_empty_directory(path)
        except DiskError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return False
            raise

    def _is_empty_directory(self, path: str) -> bool:
        """Only asked where listing gave nothing: an empty directory, or nothing at all."""
        return path in ("", ".") or self.disk.exists(path)


def is_about_access(error: DiskError) -> bool:
    """The error is about who asks, not about what is stored."""
    return error.errno in _NO_ACCESS
